"""The options of `train` as a recipe."""

from arquant.base.options import built
from arquant.commands.train import Train
from arquant.training.recipe import Recipe


def test_presets_are_recipes_that_options_change() -> None:
    options = built(
        Train, {"model": "vit_tiny", "out": "x", "sigma": 0.5, "preset": "vit", "lr": 5e-4, "precision": "float32"}
    )
    assert options.recipe == Recipe(
        sigma=0.5, epochs=40.0, batch=128, lr=5e-4, weight_decay=0.05, optimizer="adamw", max_gradient=1.0
    )
    plain = built(Train, {"model": "resnet20", "out": "x", "sigma": 0.5})
    assert plain.recipe == Recipe(sigma=0.5, epochs=64.0)
