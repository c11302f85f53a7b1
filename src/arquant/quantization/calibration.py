"""What the layers of a float network see on noisy images: bounded samples, from which clips of any width follow.

One pass over the images serves every policy. The images carry noise of the purpose "calibrate".
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from arquant.base.errors import InputError
from arquant.base.progress import Report, Status, silent
from arquant.images.imageset import ImageSet
from arquant.images.photos import Photos
from arquant.models.classifier import Classifier
from arquant.models.tracing.attention import tap
from arquant.models.tracing.layer import Layers
from arquant.noise.source import Noise, NoiseSource, noise_key
from arquant.quantization.clipping import MOST_VALUES, ClipRule, clips, is_skewed, skewed_grid
from arquant.quantization.quantized_layers import has_twin, intercepted
from arquant.quantization.quantizers import activation_levels

Images = ImageSet | NDArray[Any] | Tensor
Operand = tuple[str, str]
"""a layer's name, and "a" or "w" (the latter for matmuls only)"""


@dataclass
class Samples:
    """Values that an operand took: an even sample of at most `MOST_VALUES`, and the extremes of all values."""

    values: Tensor
    smallest: float
    largest: float
    _grids: dict[tuple[int, bool, ClipRule], tuple[float, int | None]] = field(default_factory=dict, repr=False)

    def grid(self, bits: int, *, signed: bool, rule: ClipRule) -> tuple[float, int | None]:
        """Return a quantizer's clip at `bits` bits and, if its grid is skewed, the smallest integer; found once and remembered.

        Grids are skewed where values are signed but hardly negative, at more than one bit, unless the rule is that of the
        paper's code or the maximum. At 8 bits they are not: levels below zero would leave no more than 127 above.
        """
        key = (bits, signed, rule)
        if key not in self._grids:
            self._grids[key] = self._find(bits, signed=signed, rule=rule)
        return self._grids[key]

    def _find(self, bits: int, *, signed: bool, rule: ClipRule) -> tuple[float, int | None]:
        if signed and 1 < bits < 8 and rule in ("auto", "mse") and is_skewed(self.smallest, self.largest):
            skewed, clip = skewed_grid(self.values, bits, largest=self.largest)
            return clip, skewed
        low, high = activation_levels(bits, signed=signed)
        top = max(self.largest, -self.smallest) if low < 0 else self.largest
        return float(clips(self.values[None], low, high, rule=rule, largest=top)), None


class NoisyImages:
    """Batches of noisy images in a classifier's bounds, the same whenever they are iterated.

    Args:
        images: an ImageSet, or uint8 levels or floats in unit space of shape (N, C, H, W).
        sigma: standard deviation of the noise in units of the pixel range; 0 for none.
        noise: its kind; "grid" rounds to the 1/255 grid as the base classifier of a certificate does.
        count: at most so many images, evenly spaced over the set.
        batch: images per batch; the last one may be smaller.
    """

    def __init__(
        self,
        images: Images,
        classifier: Classifier,
        *,
        sigma: float,
        noise: str = "grid",
        seed: int = 0,
        count: int = 512,
        batch: int = 128,
    ) -> None:
        pixels, indices = _pixels(images)
        if pixels.ndim != 4 or pixels.shape[1:] != classifier.input_shape or not len(pixels):
            raise InputError(
                f"calibration images must have shape (N, {', '.join(map(str, classifier.input_shape))}), "
                f"got {pixels.shape}"
            )
        if sigma < 0 or batch < 1 or count < 1:
            raise InputError(f"calibration needs sigma >= 0, batch >= 1, count >= 1, got {sigma}, {batch}, {count}")
        chosen = np.unique(np.linspace(0, len(pixels) - 1, min(count, len(pixels))).round().astype(np.int64))
        self.pixels, self.indices, self.batch = pixels[chosen], indices[chosen], batch
        self.bounds, self.device = classifier.bounds, classifier.mean.device
        key = noise_key(seed, "calibrate")
        self.source = NoiseSource(Noise(noise, sigma), key, classifier.input_shape) if sigma else None

    def __len__(self) -> int:
        return -(-len(self.pixels) // self.batch)

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(0, len(self.pixels), self.batch):
            part = slice(start, start + self.batch)
            rows = [self._noisy(image, int(i)) for image, i in zip(self.pixels[part], self.indices[part], strict=True)]
            low, high = self.bounds
            yield torch.from_numpy(low + (high - low) * np.stack(rows)).float().to(self.device)

    def _noisy(self, image: NDArray[Any], index: int) -> NDArray[np.float32]:
        if self.source is None:
            noisy, levels = image, image.dtype == np.uint8
        else:
            levels = self.source.noise.kind == "grid"
            copies = np.empty((1, *image.shape), np.int16 if levels else np.float32)
            self.source.add(image, index, 0, 1, copies)
            noisy = copies[0]
        unit: NDArray[np.float32] = np.divide(noisy, 255 if levels else 1, dtype=np.float32)
        return unit


def collect(
    classifier: Classifier, layers: Layers, batches: NoisyImages, report: Report = silent
) -> dict[Operand, Samples]:
    """Run the float classifier on the batches and sample what its layers multiply (not the weights).

    The classifier is copied and left alone; the copy runs in eval mode.

    Raises:
        InputError: an input of a layer is NaN or infinite.
    """
    running = classifier.snapshot().eval()
    recorder = _Recorder(MOST_VALUES // len(batches))
    for scope, members in list(intercepted(running.module, layers)):
        tap(running.module.get_submodule(scope), {layer.name: layer.call for layer in members}, recorder)
    for layer in layers:
        if has_twin(running.module, layer):
            running.module.get_submodule(layer.name).register_forward_pre_hook(
                recorder.hook(layer.name), with_kwargs=True
            )
    weighted = {layer.name for layer in layers if layer.weight_shape}
    recorder.ignored = {(name, "w") for name in weighted}
    done, total = 0, len(batches.pixels)
    report(Status("calibrate", done, total, "images"))
    with torch.no_grad():
        for batch in batches:
            running(batch)
            done += len(batch)
            report(Status("calibrate", done, total, "images"))
    return recorder.samples()


class _Recorder:
    """Samples `per_batch` values of every operand of every batch."""

    def __init__(self, per_batch: int) -> None:
        self.per_batch = max(1, per_batch)
        self.ignored: set[Operand] = set()
        self.kept: dict[Operand, list[Tensor]] = {}
        self.extremes: dict[Operand, tuple[float, float]] = {}

    def __call__(self, name: str, role: str, operand: Tensor) -> Tensor:
        if (name, role) not in self.ignored:
            self.record((name, role), operand.detach())
        return operand

    def hook(self, name: str) -> Any:
        def record(_: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
            self.record((name, "a"), args[0] if args else named["input"])

        return record

    def record(self, operand: Operand, tensor: Tensor) -> None:
        smallest, largest = float(tensor.min()), float(tensor.max())
        if not (np.isfinite(smallest) and np.isfinite(largest)):
            raise InputError(f"layer {operand[0]!r}: its input is NaN or infinite on a calibration image")
        kept = self.kept.setdefault(operand, [])
        generator = torch.Generator().manual_seed(len(kept))
        chosen = torch.randint(tensor.numel(), (self.per_batch,), generator=generator)
        kept.append(tensor.reshape(-1)[chosen.to(tensor.device)].float().cpu())
        least, most = self.extremes.get(operand, (smallest, largest))
        self.extremes[operand] = min(least, smallest), max(most, largest)

    def samples(self) -> dict[Operand, Samples]:
        return {operand: Samples(torch.cat(values), *self.extremes[operand]) for operand, values in self.kept.items()}


@torch.no_grad()
def estimate_batchnorm_(classifier: Classifier, batches: Iterable[Tensor]) -> None:
    """Replace the running statistics of every BatchNorm by their averages over the batches.

    All else runs in eval mode; the classifier is left in eval mode. Batches of a single image are left out.
    """
    classifier.eval()
    norms = [part for part in classifier.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    norms = [norm for norm in norms if norm.track_running_stats]
    momenta: Mapping[nn.Module, float | None] = {norm: norm.momentum for norm in norms}
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    used = 0
    try:
        for batch in batches:
            if len(batch) > 1:
                classifier(batch)
                used += 1
    finally:
        for norm in norms:
            norm.momentum = momenta[norm]
            norm.eval()
    if not used:
        raise InputError("BatchNorm statistics need at least 2 images")


def _pixels(images: Images) -> tuple[NDArray[Any] | Photos, NDArray[np.int64]]:
    if isinstance(images, ImageSet):
        return images.images, images.indices
    pixels = images.detach().cpu().numpy() if isinstance(images, Tensor) else np.asarray(images)
    return pixels, np.arange(len(pixels), dtype=np.int64)
