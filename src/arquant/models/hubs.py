"""Networks of timm and torchvision, by their names there."""

import difflib
from collections.abc import Callable
from typing import Any

from torch import nn

from arquant.base.errors import InputError
from arquant.models.classifier import Classifier
from arquant.models.optional import hub_mode, import_timm, import_torchvision
from arquant.models.options import Options, seeded_init

_TIMM_SCHEMES = ("hf-hub:", "hf_hub:", "local-dir:")
_AS_WITH_WEIGHTS = {
    name: {"transform_input": True, "aux_logits": True, "init_weights": False} for name in ("googlenet", "inception_v3")
}
"""torchvision builds these otherwise if it is to load its own weights: a file of theirs would become another function"""


def build_timm(name: str, options: Options, *, pretrained: bool) -> Classifier:
    """Build timm's network `name`; normalisation and image size come from timm's configuration of it.

    Args:
        pretrained: download its public weights or take them from the cache; otherwise they are random, always the same.
    """
    timm = import_timm()
    if not name.startswith(_TIMM_SCHEMES) and not timm.is_model(name):
        raise InputError(_unknown("timm", name, timm.list_models()))

    def create() -> nn.Module:
        arguments: dict[str, Any] = (
            {} if pretrained or not options.num_classes else {"num_classes": options.num_classes}
        )
        if options.input_shape is None:
            return _module(timm.create_model(name, pretrained=pretrained, **arguments))
        channels, *size = options.input_shape
        arguments |= {"in_chans": channels} if channels != 3 else {}
        # networks with positions must be told the size: most take a pair, some only the side of a square
        sizes: list[Any] = [tuple(size), *({*size} if len({*size}) == 1 else ())]
        for place, wish in enumerate(sizes, start=1):
            try:
                return _module(timm.create_model(name, pretrained=pretrained, img_size=wish, **arguments))
            except TypeError as error:
                if "img_size" in str(error):  # convolutional networks take images of any size
                    break
                if place == len(sizes):
                    raise
        return _module(timm.create_model(name, pretrained=pretrained, **arguments))

    module = _created("timm", name, create, pretrained=pretrained)
    config = timm.data.resolve_model_data_config(module)
    num_classes = int(module.num_classes)  # type: ignore[arg-type]
    _agree("timm", name, options, num_classes)
    return options.classifier(
        module,
        name=f"timm:{name}",
        num_classes=num_classes,
        input_shape=config["input_size"],
        mean=config["mean"],
        std=config["std"],
    )


def build_torchvision(name: str, options: Options, *, pretrained: bool) -> Classifier:
    """Build torchvision's classification network `name`, with normalisation and image size of its default weights.

    Args:
        pretrained: download its public weights or take them from the cache; otherwise they are random, always the same.
    """
    models = import_torchvision().models
    names = models.list_models(module=models)
    if name not in names:
        raise InputError(_unknown("torchvision", name, names))
    weights = models.get_model_weights(name).DEFAULT
    public_classes = len(weights.meta["categories"])
    num_classes = public_classes if pretrained or options.num_classes is None else options.num_classes

    more = _AS_WITH_WEIGHTS.get(name, {})

    def create() -> nn.Module:
        return _module(models.get_model(name, weights=weights if pretrained else None, num_classes=num_classes, **more))

    _agree("torchvision", name, options, num_classes)
    preset = weights.transforms()
    return options.classifier(
        _created("torchvision", name, create, pretrained=pretrained),
        name=f"torchvision:{name}",
        num_classes=num_classes,
        input_shape=(3, preset.crop_size[0], preset.crop_size[0]),
        mean=preset.mean,
        std=preset.std,
    )


def _created(hub: str, name: str, create: Callable[[], nn.Module], *, pretrained: bool) -> nn.Module:
    """Run `create`; whatever goes wrong inside the other package becomes one message that says what to do."""
    try:
        with seeded_init(), hub_mode():
            return create()
    except Exception as error:  # hubs raise what their HTTP clients do: no common base class
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        if not pretrained:
            raise InputError(f"{hub} cannot build {name!r} ({reason})") from error
        raise InputError(
            f"the public weights of {hub}:{name} cannot be had ({reason}); "
            f"pass a state-dict file of your own: FILE.safetensors --arch {hub}:{name}"
        ) from error


def _module(created: object) -> nn.Module:
    if not isinstance(created, nn.Module):
        raise InputError(f"expected an nn.Module, got {type(created).__name__}")
    return created


def _agree(hub: str, name: str, options: Options, num_classes: int) -> None:
    if options.num_classes not in (None, num_classes):
        raise InputError(
            f"the public weights of {hub}:{name} are for {num_classes} classes, not {options.num_classes}; "
            f"pass a state-dict file of your own: FILE.safetensors --arch {hub}:{name} --classes {options.num_classes}"
        )


def _unknown(hub: str, name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    hint = f"did you mean {', '.join(f'{hub}:{match}' for match in close)}?" if close else f"{hub} knows {len(names)}"
    return f"{hub} has no model {name!r}; {hint}"
