"""Recipes and the one loop that trains and fine-tunes."""

from arquant.base.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "loop": ["Diverged", "Look", "train"],
        "losses": ["Answers", "find_loss", "register_loss"],
        "recipe": ["PRESETS", "Preset", "Recipe"],
    },
)
