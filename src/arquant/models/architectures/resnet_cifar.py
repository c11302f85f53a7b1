"""CIFAR ResNets with 1x1 projection shortcuts, the base classifiers of the smoothing literature.

Parameter names are those of the usual public checkpoints (`conv1`, `layer1.0.conv1`, `layer2.0.downsample.0`, `fc`), so
their state-dicts load by name. ResNet-20: 22 conv/linear layers, 270,896 conv+fc weights, 40,813,184 MACs at 32x32.
"""

import torch
from torch import Tensor, nn

from arquant.base.errors import InputError


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; the first convolution and the shortcut carry the stride."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.downsample: nn.Module | None = None
        if stride != 1 or c_in != c_out:
            self.downsample = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))

    def forward(self, x: Tensor) -> Tensor:
        """Map features (N, c_in, H, W) to (N, c_out, H / stride, W / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        activation: Tensor = self.relu(out + shortcut)
        return activation


class CifarResNet(nn.Module):
    """A ResNet of `6 n + 2` layers for 32x32 images: three stages of `n` basic blocks with 16, 32 and 64 channels."""

    def __init__(self, depth: int = 20, num_classes: int = 10) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise InputError(f"depth must be 6n + 2 (20, 32, 44, 56, 110), got {depth}")
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks, stride=2)
        self.layer3 = _stage(32, 64, blocks, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, 3, H, W), normalised, to logits (N, num_classes)."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


def _stage(c_in: int, c_out: int, blocks: int, *, stride: int) -> nn.Sequential:
    first = BasicBlock(c_in, c_out, stride)
    return nn.Sequential(first, *(BasicBlock(c_out, c_out, 1) for _ in range(blocks - 1)))
