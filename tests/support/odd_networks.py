"""Networks for 8 x 8 images that use their weights in unusual ways, each with a layer called `odd` or computed like one."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Odd(nn.Module):
    """A convolution, the mean over positions, an odd part of 16 features, a head."""

    def __init__(self, odd: nn.Module | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        if odd is not None:
            self.odd = odd
        self.head = nn.Linear(16, 5)

    def features(self, x: Tensor) -> Tensor:
        return functional.relu(self.conv(x)).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(functional.relu(self.odd(self.features(x))))
        return out


class Standardized(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight / self.weight.std(), self.bias)


class WithAdapter(Standardized):
    def __init__(self, size: int) -> None:
        super().__init__(size, size)
        self.down, self.up = nn.Linear(size, 2), nn.Linear(2, size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x) + self.up(self.down(x))
        return out


def adapter() -> nn.Module:
    """A computed weight in a module that contains other layers."""
    return Odd(WithAdapter(16))


class _Gain(nn.Conv2d):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 1, groups=channels, bias=False)
        self.gain = nn.Parameter(torch.linspace(1, 4, channels))

    def forward(self, x: Tensor) -> Tensor:
        scaled = functional.conv2d(x[:, :, None, None], self.weight * 2, groups=self.groups)
        return scaled[:, :, 0, 0] * self.gain


def gain() -> nn.Module:
    """A parameter with as many values as a computed weight, which it is no part of."""
    return Odd(_Gain(16))


class _Dynamic(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([functional.linear(row, self.weight * row.mean(), self.bias) for row in x.split(1)])


def dynamic() -> nn.Module:
    """A weight that is computed from the image."""
    return Odd(_Dynamic(16, 16))


class _Gram(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.odd = nn.Parameter(torch.randn(16, 16) / 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(functional.relu(functional.linear(self.features(x), self.odd)) @ self.odd)
        return out


def gram() -> nn.Module:
    """A parameter that is the weight of a functional layer and a factor elsewhere."""
    return _Gram()


class _TiedAndRead(Odd):
    def __init__(self) -> None:
        super().__init__(nn.Linear(16, 16))
        self.tied = nn.Linear(16, 16)
        self.tied.weight = self.odd.weight  # type: ignore[union-attr, assignment]

    def forward(self, x: Tensor) -> Tensor:
        first = functional.relu(self.odd(self.features(x)))
        out: Tensor = self.head(functional.relu(self.tied(first)) + self.odd.weight.abs().mean())  # type: ignore[operator, union-attr]
        return out


def tied_and_read() -> nn.Module:
    """One weight of two layers, which is read under its first name."""
    return _TiedAndRead()


class _ByName(Odd):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(input=functional.relu(self.odd(input=self.features(x))))
        return out


def by_name() -> nn.Module:
    """Layers whose input is a named argument."""
    return _ByName(nn.Linear(16, 16))


class _Root(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16) / 4)
        self.values = Standardized(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.values(functional.relu(functional.linear(self.features(x), self.weight))))
        return out


def root() -> nn.Module:
    """Intercepted layers whose names, "" and "values", no ModuleDict takes."""
    return _Root()
