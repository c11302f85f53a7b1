"""ResNet-50 for 224x224 images: v1.5, whose blocks have their stride in the 3x3 convolution, and v1, in the first 1x1.

Parameter names are torchvision's (`conv1`, `layer1.0.conv3`, `layer1.0.downsample.0`, `fc`), so public ImageNet
state-dicts load by name: torchvision's and timm's are of v1.5, Keras's and Caffe's of v1. The shapes are the same, so that
weights of one load into the other too, where they are right less often. 54 conv/linear layers and 25,502,912 conv+fc
weights; 4,089,184,256 MACs at 224x224, of v1 3,857,973,248.
"""

import torch
from torch import Tensor, nn

BLOCKS = (3, 4, 6, 3)
EXPANSION = 4


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution and a shortcut; the first or second convolution and the shortcut carry the stride."""

    def __init__(self, c_in: int, width: int, stride: int, *, stride_first: bool) -> None:
        super().__init__()
        c_out = width * EXPANSION
        first, second = (stride, 1) if stride_first else (1, stride)
        self.conv1 = nn.Conv2d(c_in, width, 1, first, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, second, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, c_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(c_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or c_in != c_out:
            self.downsample = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))

    def forward(self, x: Tensor) -> Tensor:
        """Map features (N, c_in, H, W) to (N, c_out, H / stride, W / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        activation: Tensor = self.relu(out + shortcut)
        return activation


class ResNet50(nn.Module):
    """Maps normalised images (N, 3, H, W), usually 224x224, to logits (N, num_classes).

    It is v1 with `stride_first`, else v1.5.
    """

    def __init__(self, num_classes: int = 1000, *, stride_first: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = _stage(64, 64, BLOCKS[0], stride=1, stride_first=stride_first)
        self.layer2 = _stage(256, 128, BLOCKS[1], stride=2, stride_first=stride_first)
        self.layer3 = _stage(512, 256, BLOCKS[2], stride=2, stride_first=stride_first)
        self.layer4 = _stage(1024, 512, BLOCKS[3], stride=2, stride_first=stride_first)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2048, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, 3, H, W), normalised, to logits (N, num_classes)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


def _stage(c_in: int, width: int, blocks: int, *, stride: int, stride_first: bool) -> nn.Sequential:
    first = Bottleneck(c_in, width, stride, stride_first=stride_first)
    others = (Bottleneck(width * EXPANSION, width, 1, stride_first=stride_first) for _ in range(blocks - 1))
    return nn.Sequential(first, *others)
