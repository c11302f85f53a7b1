"""Small networks of every kind that is lowered and exported, quantized once per test session."""

import functools

import numpy as np
import torch
from torch import Tensor, nn

from arquant.engines.torch import LabelsFromPixels
from arquant.models.architectures.resnet_cifar import CifarResNet
from arquant.models.architectures.vit import VisionTransformer
from arquant.models.classifier import Classifier
from arquant.quantization.quantized import QuantizedClassifier, quantize

SIDE, BATCH = 8, 32
SHAPE = (3, SIDE, SIDE)


class Mobile(nn.Module):
    """Grouped and depthwise convolutions with biases, ReLU6, a shared layer and a linear residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU6())
        self.depthwise = nn.Sequential(
            nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False), nn.BatchNorm2d(16), nn.ReLU6()
        )
        self.grouped = nn.Conv2d(16, 16, 1, groups=2)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.grouped(self.depthwise(x))
        x = x + self.grouped(x)
        return self.head(x.mean((2, 3)))


class Encoder(nn.Module):
    """A transformer layer of PyTorch: packed projections, F.multi_head_attention_forward."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 2, 2)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        return self.head((tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]).mean(1))


NETWORKS = {
    "resnet": lambda: CifarResNet(8),
    "vit": lambda: VisionTransformer(10, image_size=SIDE, patch=2, dim=32, depth=1, heads=2, hidden=64),
    "mobile": Mobile,
    "encoder": Encoder,
}


def float_classifier(name: str, bounds: tuple[float, float] = (0.0, 1.0)) -> Classifier:
    torch.manual_seed(0)
    network = NETWORKS[name]()
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_var.uniform_(0.5, 1.5)
            part.bias.data.normal_(0, 0.2)
        elif isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, 0, 0.3)
    return Classifier(
        network, num_classes=10, input_shape=SHAPE, mean=[0.5], std=[0.25], bounds=bounds, name=name
    ).eval()


@functools.cache
def quantized(name: str, per_channel: bool) -> QuantizedClassifier:
    """Made once at 4 bits; some tests change its policy."""
    images = np.random.default_rng(0).integers(0, 256, (32, *SHAPE)).astype(np.uint8)
    return quantize(float_classifier(name), 4, images, sigma=0.5, per_channel=per_channel)


def noisy(count: int = BATCH) -> np.ndarray:
    return np.random.default_rng(1).integers(-200, 455, (count, 3, SIDE, SIDE)).astype(np.int16)


def reference(classifier: Classifier, batch: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        logits: np.ndarray = LabelsFromPixels(classifier, "levels").logits(torch.from_numpy(batch)).numpy()
    return logits
