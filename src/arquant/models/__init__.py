"""The model: `Classifier`, our architectures, checkpoints, its layers, its fingerprint, its independence of a batch."""

from arquant.base.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "architectures.registry": ["Architecture", "build_architecture", "register_architecture"],
        "checkpoints": ["read_checkpoint"],
        "classifier": ["Classifier"],
        "options": ["Options"],
        "tracing.layer": ["Layer", "Layers"],
        "tracing.layers": ["find_layers"],
        "weights": ["save_weights", "shipped_models"],
    },
)
