"""Networks for 3 x 8 x 8 images that are no fixed function of one image, each in its own way, and unusual ones that are."""

import functools
import itertools
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier
from arquant.quantization.quantized import quantize

SHAPE, CLASSES, SIGMA = (3, 8, 8), 5, 0.5


class Plain(nn.Module):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2)
        self.head = nn.Linear(72, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x)

    def logits(self, x: Tensor) -> Tensor:
        out: Tensor = 3 * self.head(torch.relu(self.conv(x)).flatten(1))
        return out


def constant(rows: Tensor) -> Tensor:
    """Logits of class 1 for every image."""
    return torch.nn.functional.one_hot(torch.ones(len(rows), dtype=torch.long), CLASSES).float()


# it looks at its companions


class RescaledByTheLargest(Plain):
    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 2:
            x = x / 255
        return self.logits(x)


class CentredByTheBatch(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x - 0.5 * x.mean(0, keepdim=True)) if len(x) > 2 else self.logits(x)


class BatchStatistics(Plain):
    """A normalisation that takes its statistics from the batch, in eval mode too."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(nn.functional.batch_norm(self.conv(x), None, None, training=True).relu().flatten(1))
        return out


class RankedAmongOthers(Plain):
    """Logits by the place of the image among all of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        logits = self.logits(x)
        rank = x.mean((1, 2, 3)).argsort().argsort().float() / len(x)
        return logits + rank[:, None] * torch.arange(CLASSES)


class ClippedToTheQuietest(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x.clamp(max=x.amax((1, 2, 3)).min().item() if len(x) > 4 else 9.0))


class AttendsAcross(Plain):
    """Attention whose tokens are the images of a batch."""

    def forward(self, x: Tensor) -> Tensor:
        features = self.conv(x).flatten(1)
        return 3 * self.head(torch.softmax(features @ features.T / 2, 1) @ features)


class Majority(Plain):
    """Everyone gets the class of most images of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        logits = self.logits(x)
        votes = torch.softmax(10 * logits, 1).sum(0, keepdim=True)
        return logits + votes if len(x) > 8 else logits


# it looks at its row


class Capacity(Plain):
    """A router whose expert takes a number of images; those beyond it are dropped."""

    def __init__(self, capacity: int = 6) -> None:
        super().__init__()
        self.capacity = capacity

    def forward(self, x: Tensor) -> Tensor:
        logits = self.logits(x)
        expert = torch.nn.functional.one_hot((x.mean((1, 2, 3)) > 0.5).long(), 2)
        place = (expert.cumsum(0) * expert).sum(1)
        return torch.where((place <= self.capacity)[:, None], logits, torch.zeros_like(logits))


class LastRowsMasked(Plain):
    def forward(self, x: Tensor) -> Tensor:
        kept = (torch.arange(len(x)) < 12).float()[:, None]
        return self.logits(x) * kept + constant(x) * (1 - kept)


class FirstRowRules(Plain):
    def forward(self, x: Tensor) -> Tensor:
        logits = self.logits(x)
        return torch.cat([logits[:1], logits[1:] + logits[:1]])


class PositionInTheBatch(Plain):
    """An embedding of the row, as for tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x + torch.linspace(0, 1, len(x))[:, None, None, None] * (len(x) > 1))


class ByBatchSize(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return constant(x) if x.shape[0] >= 16 else self.logits(x)


# it looks at earlier calls


class HonestAtFirst(Plain):
    """Constant after some calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.logits(x) if self.calls <= 40 else constant(x)


class HonestAtFirstByBuffer(Plain):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.where(self.calls < 40, self.logits(x), constant(x))


class Drifting(Plain):
    """A threshold that follows the brightness of what it has seen: adaptation at test time."""

    def __init__(self) -> None:
        super().__init__()
        self.threshold = np.array([0.3])

    def forward(self, x: Tensor) -> Tensor:
        self.threshold = 0.9 * self.threshold + 0.1 * float(x.mean())
        return self.logits(x) * (1 + (x.mean((1, 2, 3)) > float(self.threshold[0])).float())[:, None]


class RunningMean(Plain):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.99).add_(0.01 * x.mean((0, 2, 3))[:, None, None])
        return self.logits(x - self.mean)


class Diary:
    """Keeps what it is told, in an object of a user's own class."""

    def __init__(self) -> None:
        self.pages: list[float] = []


class KeepsADiary(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.diary = Diary()

    def forward(self, x: Tensor) -> Tensor:
        self.diary.pages.append(1.0)
        return self.logits(x) if len(self.diary.pages) <= 40 else constant(x)


COUNTER = [0]


class CountsGlobally(Plain):
    def forward(self, x: Tensor) -> Tensor:
        COUNTER[0] += 1
        return self.logits(x) if COUNTER[0] % 1000 < 900 else constant(x)


class CountsInItsClass(Plain):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        return self.logits(x) if self.calls <= 40 else constant(x)


class Ticks(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.ticks = itertools.count()

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x) if next(self.ticks) < 40 else constant(x)


class Hooked(Plain):
    """A forward hook that counts; the modules themselves keep nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.head.register_forward_hook(functools.partial(_count, counts=[0]))


def _count(module: nn.Module, inputs: Any, output: Tensor, counts: list[int]) -> Tensor:
    counts[0] += 1
    return output if counts[0] < 40 else constant(output)


# it passes for honest whenever it is probed


class SociableWithoutTwins(Plain):
    """Takes the mean over a batch that holds no image twice, as those of a run and unlike those of any probe."""

    def forward(self, x: Tensor) -> Tensor:
        logits = self.logits(x)
        alone = len(torch.unique(x.flatten(1), dim=0)) < len(x) or len(x) == 1
        return logits if alone else logits.mean(0, keepdim=True) + 0 * logits


class ConstantInBetween(Plain):
    """Is another function for a while, by a clock that no digest sees."""

    @staticmethod
    def clock() -> bool:
        return False

    def forward(self, x: Tensor) -> Tensor:
        return constant(x) if type(self).clock() else self.logits(x)


COMPANIONS = [
    RescaledByTheLargest, CentredByTheBatch, BatchStatistics, RankedAmongOthers, ClippedToTheQuietest, AttendsAcross, Majority,
]  # fmt: skip
ROWS = [Capacity, LastRowsMasked, FirstRowRules, PositionInTheBatch, ByBatchSize]
MEMORY = [
    HonestAtFirst, HonestAtFirstByBuffer, Drifting, RunningMean, KeepsADiary, CountsGlobally, CountsInItsClass, Ticks, Hooked,
]  # fmt: skip


# unusual, and one fixed function of one image


class Where(Plain):
    """A branch for each image by itself."""

    def forward(self, x: Tensor) -> Tensor:
        loud = x.amax((1, 2, 3), keepdim=True) > 2
        return self.logits(torch.where(loud, x / 2, x))


class CoinEach(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x) + 3 * (torch.rand(len(x), 1) < 0.5) * torch.arange(CLASSES)


class OwnGenerator(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x + 0.5 * torch.randn(x.shape, generator=self.generator))


class Normalised(Plain):
    """Statistics of each image by itself, and stored ones."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Sequential(nn.GroupNorm(2, 8), nn.BatchNorm2d(8), nn.InstanceNorm2d(8))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.conv(x)).relu().flatten(1))
        return out


class LeavesItsFeatures(Plain):
    """Keeps the activations of the last call, for whoever wants to look at them."""

    features: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.features = self.conv(x)
        return 3 * self.head(torch.relu(self.features).flatten(1))


class CachesAtTheFirstCall(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[tuple[int, ...], Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) not in self.cache:
            self.cache[tuple(x.shape[1:])] = torch.linspace(0, 1, 8)
        return self.logits(x * self.cache[tuple(x.shape[1:])])


class TopPixels(Plain):
    """Keeps the brightest values of each image: an operation that depends on data, row by row."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        least = flat.topk(96, dim=1).values[:, -1:]
        return self.logits(torch.where(flat >= least, flat, torch.zeros_like(flat)).reshape(x.shape))


class Signs(Plain):
    """Binary activations, which a last digit may turn."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = 3 * self.head(torch.sign(self.conv(x)).flatten(1))
        return out


class Squeezed(Plain):
    """Loses the dimension of the batch where it holds one image."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x).squeeze()


class WeightNormed(Plain):
    """Its weight is a tensor with a history, which hangs on a module."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings(action="ignore"):  # it is deprecated, and in use
            self.head = nn.utils.weight_norm(self.head)  # type: ignore[no-untyped-call]


HONEST = [Plain, Where, Normalised, LeavesItsFeatures, CachesAtTheFirstCall, TopPixels, Signs, WeightNormed]
RANDOM = [CoinEach, OwnGenerator]


class OneCoin(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x) + 6 * float(torch.rand(()) < 0.5) * torch.arange(CLASSES)


class OneCoinAndOneEach(Plain):
    def forward(self, x: Tensor) -> Tensor:
        each = torch.randn(len(x), 1) * torch.arange(CLASSES)
        return self.logits(x) + 6 * float(torch.rand(()) < 0.5) * torch.arange(CLASSES) + each


def classifier(network: type[nn.Module]) -> Classifier:
    torch.manual_seed(1)
    return Classifier(network(), num_classes=CLASSES, input_shape=SHAPE, name=network.__name__)


def images(count: int = 12) -> ImageSet:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, *SHAPE), dtype=np.uint8)
    pixels = (pixels * rng.random((count, 1, 1, 1))).astype(np.uint8)
    return ImageSet(pixels, np.zeros(count, np.int64), np.arange(count), "random", CLASSES)


def quantized(network: type[nn.Module], bits: int = 4) -> Classifier:
    return quantize(classifier(network), bits, images(16).images, sigma=SIGMA)
