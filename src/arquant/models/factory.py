"""Models of the user's own code: `package.module:factory`, with the current folder importable."""

import difflib
import importlib
import logging
import re
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from arquant.base.errors import ArquantError, InputError
from arquant.base.importing import current_folder_importable
from arquant.models.architectures.registry import canonical_name
from arquant.models.classifier import Classifier, copy_of
from arquant.models.options import Options, ShapeUnknownError, seeded_init
from arquant.models.outputs import WRAPPER, logits_of

log = logging.getLogger(__name__)
_SPELLING = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_HUBS = ("timm", "torchvision")
_HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.+-]*")
"""of a network in a package; others name a place, such as hf-hub:someone/else or local-dir:/somewhere"""
_PREFIXES = (*_HUBS, "resnet20", "resnet50")


class ConsentError(InputError):
    """Code, or a place, that only a file names, and that the user has not agreed to."""


def is_factory(spec: str) -> bool:
    """Tell whether `spec` is spelled `package.module:factory`."""
    return _SPELLING.fullmatch(spec) is not None


def names_network(spec: str) -> bool:
    """Tell whether `spec` names a network to build (ours, a hub's or a factory's) rather than a file."""
    return canonical_name(spec) is not None or spec.startswith(("timm:", "torchvision:")) or is_factory(spec)


def runs_code(spec: str) -> bool:
    """Tell whether building the network that `spec` names runs the user's code."""
    return is_factory(spec) and spec.partition(":")[0] not in _HUBS


def needs_consent(spec: str) -> bool:
    """Tell whether a user must agree before the network that a file names is built."""
    return runs_code(spec) or _leads_elsewhere(spec)


def _leads_elsewhere(spec: str) -> bool:
    """Tell whether the network is looked up on the disk or in the net, not in an installed package."""
    hub, _, name = spec.partition(":")
    return hub in _HUBS and _HUB_NAME.fullmatch(name) is None


def allow_code(spec: str, allowed: str | None, source: object) -> None:
    """Refuse a network that only a file, `source`, names, if building it runs code, or asks a place of the file's choice.

    The user has to name it too.
    """
    if spec == allowed or not needs_consent(spec):
        return
    if runs_code(spec):
        raise ConsentError(
            f"{source} is built by the code {spec!r}, which would run now; if you trust that code, add --arch {spec}"
        )
    raise ConsentError(
        f"{source} takes its network from {spec!r}, a place of its own choice; if you trust it, add --arch {spec}"
    )


def call_factory(spec: str) -> Any:
    """Import what `package.module:factory` names and call it without arguments (an nn.Module instance is not called).

    The current folder comes first on the import path while this runs. Random weights come out the same every time.

    Raises:
        InputError: the module or attribute does not exist, or the user's code raised; the cause is chained.
    """
    module_name, _, attribute = spec.partition(":")
    with current_folder_importable():
        try:
            with seeded_init():
                found = reduce(getattr, attribute.split("."), importlib.import_module(module_name))
        except ModuleNotFoundError as error:
            close = difflib.get_close_matches(module_name, _PREFIXES, n=1)
            hint = f"; did you mean {close[0]}:{attribute}?" if close else ""
            raise InputError(
                f"cannot import {module_name!r} for {spec!r}: {error} (searched: the current folder, then installed "
                f"packages){hint}"
            ) from error
        except AttributeError as error:
            raise InputError(f"cannot find {attribute!r} of {spec!r}: {error}") from error
        except Exception as error:
            raise InputError(f"importing {module_name!r} for {spec!r} failed: {_reason(error)}") from error
        if isinstance(found, nn.Module):
            return found
        if not callable(found):
            raise InputError(f"{spec!r} is a {type(found).__name__}; name a function that takes no arguments")
        try:
            with seeded_init():
                return found()
        except ArquantError:
            raise
        except Exception as error:
            raise InputError(f"{spec!r} raised when called without arguments: {_reason(error)}") from error


def build_factory(spec: str, options: Options) -> Classifier:
    """Call the factory and return its result as a Classifier. A bare module is taken to normalise its images itself."""
    made = call_factory(spec)
    if isinstance(made, Classifier):
        return options.confirm(made)
    if not isinstance(made, nn.Module):
        raise InputError(f"{spec!r} returned a {type(made).__name__}; return an nn.Module or an arquant Classifier")
    if options.input_shape is None:
        raise ShapeUnknownError(
            f"{spec!r} returned a bare module; state the shape of its images, for example --input 3,32,32"
        )
    num_classes = options.num_classes or _count_classes(made, spec, options)
    return options.classifier(made, name=spec, num_classes=num_classes, input_shape=options.input_shape)


def _count_classes(module: nn.Module, spec: str, options: Options) -> int:
    """Count the logits of one image. A copy of `module` is asked, since a forward pass may change it."""
    probe = torch.full((2, *(options.input_shape or ())), sum(options.bounds) / 2)
    try:
        module = copy_of(module)
    except Exception as error:
        log.debug("the module of %s cannot be copied: %s", spec, error)  # whoever needs a copy says so
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            logits = logits_of(module(probe))
    except Exception as error:
        raise InputError(
            f"the module of {spec!r} does not accept images of shape {options.input_shape}: {_reason(error)}"
        ) from error
    finally:
        module.train(was_training)
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != 2:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(
            f"the module of {spec!r} returned {got} for 2 images, expected logits of shape (2, classes); {WRAPPER}"
        )
    return logits.shape[1]


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
