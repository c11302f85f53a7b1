"""Read every spelling of MODEL and DATA, and decide which images a run may use for what."""

from arquant.base.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "datasets": ["from_arrays", "load_data"],
        "models": ["load_model"],
        "roles": ["Roles", "images_for", "load_roles"],
    },
)
