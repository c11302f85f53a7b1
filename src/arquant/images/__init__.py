"""Image sets and the readers of the formats they come in."""

from arquant.base.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "cifar10": ["load_cifar10"],
        "cifar10_fetch": ["fetch_cifar10"],
        "folder": ["load_folder"],
        "imageset": ["ImageSet", "RoleOf", "check_disjoint", "split"],
        "sample": ["load_sample"],
    },
)
