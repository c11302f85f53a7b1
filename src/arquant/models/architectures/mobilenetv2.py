"""MobileNetV2 (width 1.0) for 224x224 images: inverted residuals with linear bottlenecks.

Parameter names are torchvision's (`features.1.conv.0.0`, `classifier.1`), so public ImageNet state-dicts load by name.
53 conv/linear layers, 3,469,760 conv+fc weights and 300,774,272 MACs at 224x224.
"""

from torch import Tensor, nn

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""(expansion, output channels, blocks, stride of the first block) of each stage"""


class InvertedResidual(nn.Module):
    """Expand with a 1x1 convolution, filter each channel 3x3, project linearly; added to its input if shapes allow."""

    def __init__(self, c_in: int, c_out: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = c_in * expansion
        self.residual = stride == 1 and c_in == c_out
        expand = [] if expansion == 1 else [_conv_bn_relu(c_in, width, kernel=1)]
        depthwise = _conv_bn_relu(width, width, stride=stride, groups=width)
        project = (nn.Conv2d(width, c_out, 1, bias=False), nn.BatchNorm2d(c_out))
        self.conv = nn.Sequential(*expand, depthwise, *project)

    def forward(self, x: Tensor) -> Tensor:
        """Map features (N, c_in, H, W) to (N, c_out, H / stride, W / stride)."""
        out: Tensor = self.conv(x)
        return x + out if self.residual else out


class MobileNetV2(nn.Module):
    """Maps normalised images (N, 3, H, W), usually 224x224, to logits (N, num_classes)."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        channels = 32
        layers: list[nn.Module] = [_conv_bn_relu(3, channels, stride=2)]
        for expansion, c_out, blocks, stride in STAGES:
            for block in range(blocks):
                layers.append(InvertedResidual(channels, c_out, stride if block == 0 else 1, expansion))
                channels = c_out
        layers.append(_conv_bn_relu(channels, 1280, kernel=1))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, num_classes))
        self._initialise()

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, 3, H, W), normalised, to logits (N, num_classes)."""
        logits: Tensor = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return logits

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, 0.01)
                nn.init.zeros_(module.bias)


def _conv_bn_relu(c_in: int, c_out: int, *, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(c_out), nn.ReLU6(inplace=True))
