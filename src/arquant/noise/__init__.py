"""Draw noise by address: key, purpose, image, chunk. No torch."""

from arquant.base.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "keys": ["NoiseKey", "fresh_seed", "noise_key"],
        "source": ["Noise", "NoiseSource"],
        "table": ["grid_table"],
    },
)
