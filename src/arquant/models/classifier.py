"""A classifier in pixel space: bounds, normalisation inside, number of classes.

Everything that takes a model takes a `Classifier`. Sizes of perturbations (sigma, radii) are always in units of the pixel
range: 1.0 is the distance from black to white, whatever `bounds` are.
"""

import copy
import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from arquant.base.errors import InputError
from arquant.base.seen import Seen
from arquant.models.fingerprint.function_facts import FunctionFacts
from arquant.models.fingerprint.spelling import Spelling
from arquant.models.fingerprint.tensor_spelling import tensor_bytes
from arquant.models.independence import depends_on_batch
from arquant.models.outputs import WRAPPER, logits_of

Module = TypeVar("Module", bound=nn.Module)

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2023, 0.1994, 0.2010)


class Classifier(nn.Module):
    """A module that maps images in `bounds` to logits, with its normalisation inside.

    Args:
        module: maps normalised images (N, C, H, W) to logits (N, num_classes), or to what holds them (`models.outputs`).
        num_classes: how many classes the logits have.
        input_shape: (C, H, W) of one image.
        mean, std: per channel, in the units of `bounds`; the module sees `(x - mean) / std`.
        bounds: the smallest and largest pixel value.
        name: how the model was asked for, for reports.
        made_from: the classifier whose module this is, or of which it is a copy made to compute on integers.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        module: nn.Module,
        *,
        num_classes: int,
        input_shape: Sequence[int],
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        bounds: tuple[float, float] = (0.0, 1.0),
        name: str = "",
        made_from: "Classifier | None" = None,
    ) -> None:
        super().__init__()
        if num_classes < 2:
            raise InputError(f"a classifier needs at least 2 classes, got num_classes={num_classes}")
        if len(input_shape) != 3 or min(input_shape) < 1:
            raise InputError(f"input_shape must be (channels, height, width), got {tuple(input_shape)}")
        if not bounds[0] < bounds[1]:
            raise InputError(f"bounds must be (low, high) with low < high, got {bounds}")
        channels = input_shape[0]
        self.module = module
        self.num_classes = num_classes
        self.input_shape = (int(input_shape[0]), int(input_shape[1]), int(input_shape[2]))
        self.bounds = (float(bounds[0]), float(bounds[1]))
        self.name = name or type(module).__name__
        self.arch = ""
        """the MODEL spelling that builds this network without its weights; empty if unknown"""
        self.sigma: float | None = None
        """the noise that it was trained, calibrated or last fine-tuned for, as its file says; None if unknown"""
        self.made_by: Mapping[str, Any] = {}
        """the record of its training, as its file says; empty if unknown"""
        self.seen: Seen | None = None
        """the images that it was made with, as its file says; None for a network that no file of ours describes"""
        self.class_names: tuple[str, ...] = ()
        """one per class, as its training images named them; empty if unknown"""
        self.fit: str | None = None
        """how photos of another size became its input (`arquant.models.photo_fit`), as its file says; None if unknown"""
        self.register_buffer("mean", _per_channel("mean", mean, channels, 0.0), persistent=False)
        self.register_buffer("std", _per_channel("std", std, channels, 1.0), persistent=False)
        if not bool((self.std > 0).all()):
            raise InputError(f"std must be positive in every channel, got {tuple(std or ())}")
        if made_from is None:
            self.function_facts = FunctionFacts.of(self, lambda: copy_of(self), self.input_shape)
        else:
            self.function_facts = made_from.function_facts.handed_on(made_from, self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, num_classes) of images (N, C, H, W) in `bounds`."""
        logits: Tensor = logits_of(self.module((x - self.mean) / self.std))
        return logits

    def from_unit(self, unit: Tensor) -> Tensor:
        """Turn images in units of the pixel range (0 black, 1 white, noise may go beyond) into pixels in `bounds`."""
        low, high = self.bounds
        return unit if (low, high) == (0.0, 1.0) else low + (high - low) * unit

    def check(self) -> None:
        """Refuse NaN or infinite weights, outputs that are not finite logits, and answers that depend on the batch.

        The model is probed in eval mode with a mid-grey and a noisy image; its training mode is restored.
        """
        self._check_weights()
        device = next((p.device for p in self.parameters()), torch.device("cpu"))
        unit = torch.full((2, *self.input_shape), 0.5)
        unit[1] += 0.25 * torch.randn(self.input_shape, generator=torch.Generator().manual_seed(0))
        images = self.from_unit(unit).to(device)
        was_training = self.training
        self.eval()
        try:
            self._check_logits(images)
            dependent = depends_on_batch(self, images)
        finally:
            self.train(was_training)
        if dependent:
            raise InputError(
                f"model {self.name!r} answers otherwise for an image when another image stands beside it, or draws at random "
                "once for a whole batch: its votes would depend on each other; take what looks across the batch out of its "
                "forward pass, and draw for each image"
            )

    @cached_property
    def memory_format(self) -> torch.memory_format:
        """Return the layout to compute in: channels last, which is faster, unless only contiguous images work.

        The latter holds of `x.view(len(x), -1)`, where `x.flatten(1)` takes any layout, and of training with certain
        convolutions: see `_overruns_memory`.
        """
        if any(map(_overruns_memory, self.modules())):
            return torch.contiguous_format
        network, images = self.snapshot().eval(), torch.zeros(2, *self.input_shape, device=self.mean.device)
        try:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            with torch.no_grad():
                network(self.from_unit(images).contiguous(memory_format=torch.channels_last))
        except Exception:  # of a network that fails in either layout too: whoever runs it says so
            return torch.contiguous_format
        return torch.channels_last

    def snapshot(self) -> Self:
        """Return a copy that does not change when this classifier does."""
        try:
            return copy_of(self)
        except Exception as error:  # of a user's own classes, or PyTorch's for tensors with gradients
            raise InputError(
                f"model {self.name!r} cannot be copied: {error}; leave no tensors with gradients on it"
            ) from error

    def _check_weights(self) -> None:
        for name, tensor in self.state_dict().items():
            if not isinstance(tensor, Tensor):
                raise InputError(
                    f"model {self.name!r}: {name} is no tensor but a {type(tensor).__name__}, as in networks that PyTorch has "
                    "quantized; give the float network"
                )
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                bad = int((~torch.isfinite(tensor)).sum())
                raise InputError(
                    f"model {self.name!r}: {name} holds {bad} NaN or infinite values of {tensor.numel()}; "
                    "load an intact checkpoint"
                )

    def _check_logits(self, images: Tensor) -> None:
        try:
            with torch.no_grad():
                logits = self(images)
        except Exception as error:  # a user's model may raise anything
            types = {str(p.dtype).removeprefix("torch.") for p in self.parameters()} - {"float32"}
            hint = f"its weights are {', '.join(sorted(types))}: give it in float32 (model.float())" if types else ""
            raise InputError(
                f"model {self.name!r} does not accept images of shape {self.input_shape}: {type(error).__name__}: {error}; "
                + (hint or "state the right one with --input C,H,W")
            ) from error
        if not isinstance(logits, Tensor) or logits.shape != (len(images), self.num_classes):
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            fix = f"wrap the model so that it returns logits only: {WRAPPER}"
            if isinstance(got, tuple) and len(got) == 2 and got[0] == len(images):
                fix = f"if it has {got[1]} classes, state --classes {got[1]}"
            raise InputError(
                f"model {self.name!r} returned {got} for 2 images, expected logits of shape (2, {self.num_classes}); {fix}"
            )
        if not bool(torch.isfinite(logits).all()):
            raise InputError(f"model {self.name!r} returns NaN or infinite logits for a mid-grey or a noisy image")

    def fingerprint(self) -> str:
        """Return a SHA-256 over all that decides answers: architecture, weights, normalisation, bounds and more.

        Equal for equal functions; `arquant.models.fingerprint` says which versions there are (`function_facts`) and what cannot
        be seen (`spelling`).
        """
        return self._digest({**self.state_dict(), "mean": self.mean, "std": self.std})

    def structure(self) -> str:
        """Return a SHA-256 like `fingerprint`, without the weights."""
        return self._digest({"mean": self.mean, "std": self.std})

    def spelling(self) -> Spelling:
        """Return what a fingerprint holds beside text and weights, and what it cannot hold; empty in version 1."""
        return self.function_facts.now(self)

    def layout(self) -> str:
        """Return the text in which the network prints itself, without addresses, which differ between processes."""
        return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(self.module))

    def _digest(self, tensors: Mapping[str, Tensor]) -> str:
        digest, spelling = hashlib.sha256(), self.spelling()
        digest.update(self._opening(spelling))
        for name in sorted(tensors):
            digest.update(f"{name}:".encode() + tensor_bytes(tensors[name]))
        for fact in self._closing(spelling):
            digest.update(fact)
        return digest.hexdigest()

    def _opening(self, spelling: Spelling) -> bytes:
        """Return the beginning of a fingerprint: the network's text, or the version where the spelling holds more."""
        text = f"fingerprint version {spelling.version}" if spelling.entries else self.layout()
        return repr((text, self.num_classes, self.input_shape, self.bounds)).encode()

    def _closing(self, spelling: Spelling) -> Iterator[bytes]:
        """Return the end of a fingerprint: settings that no text shows, and the spelling."""
        yield from self.function_facts.settings_now(self)
        for name, entry in spelling.entries.items():
            yield f"{name}={entry};".encode()


def copy_of(module: Module) -> Module:
    """Return a deep copy that can be trained and moved.

    A tensor with a history that hangs on a module, which `deepcopy` refuses, is copied without it: the `weight` that
    `weight_norm` computes before each call, or activations of the last call.
    """
    values = (value for each in module.modules() for value in vars(each).values())
    computed = {
        id(value): value.detach().clone() for value in values if isinstance(value, Tensor) and not value.is_leaf
    }
    copied = copy.deepcopy(module, computed)
    for parameter in copied.parameters():
        if not parameter.is_leaf:  # of a copied TorchScript part: no optimizer would take it
            parameter.detach_().requires_grad_()
    return copied


def _overruns_memory(module: nn.Module) -> bool:
    """Tell whether oneDNN, in PyTorch 2.13, writes beyond its memory in the backward pass of a channels-last module.

    It does for pointwise convolutions with a stride and fewer than 16 input channels: the process crashes, sometimes.
    """
    if not isinstance(module, nn.Conv2d):
        return False
    return set(module.kernel_size) == {1} and max(module.stride) > 1 and module.weight.shape[1] < 16


def _per_channel(what: str, values: Sequence[float] | None, channels: int, default: float) -> Tensor:
    """Return `values` as a (C, 1, 1) tensor; one value serves all channels."""
    numbers = [default] if values is None else [float(v) for v in values]
    if len(numbers) == 1:
        numbers = numbers * channels
    if len(numbers) != channels:
        raise InputError(f"{what} has {len(numbers)} values for {channels} channels")
    if not all(math.isfinite(number) for number in numbers):
        raise InputError(f"{what} must be finite in every channel, got {', '.join(map(str, numbers))}")
    return torch.tensor(numbers, dtype=torch.float32).reshape(channels, 1, 1)
