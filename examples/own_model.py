"""A hand-written nn.Module: wrapped, trained with noise, quantized to 4 bits, certified.   python examples/own_model.py"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from arquant import Classifier, ImageSet, Recipe, Settings, Smoothed, load_data
from arquant.quantization.quantized import quantize
from arquant.training.loop import train

SIGMA = 0.25  # of the noise; 1.0 is black to white


class Small(nn.Module):
    """Any module will do that maps images to logits; functional calls and additions need no rewriting."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.left = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.right = nn.Conv2d(16, 32, 1, stride=2)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = F.relu(self.left(x) + self.right(x))
        return self.head(x.mean((2, 3)))


def trained(steps: int = 40) -> Classifier:
    """Return the module in pixel space: normalisation goes inside, so that sigma and radii are in pixel units."""
    torch.manual_seed(0)
    wrapped = Classifier(Small(), num_classes=10, input_shape=(3, 32, 32), mean=[0.49, 0.48, 0.45], std=[0.2])
    wrapped.arch = "own_model:Small"  # the spelling of MODEL that builds the module again
    fit(wrapped, Recipe(sigma=SIGMA, steps=steps, batch=64, lr=0.1))
    return wrapped.eval()


def fit(classifier: Classifier, recipe: Recipe) -> None:
    """Train on noisy images: a classifier that has not seen the noise gets no certificates."""
    data: ImageSet = load_data("sample", "calibrate")
    train(classifier, torch.from_numpy(data.images), torch.from_numpy(data.labels), recipe, compiled=False)


if __name__ == "__main__":
    base = trained()
    small = quantize(base, "w4a4", load_data("sample", "calibrate"), sigma=SIGMA, images=128)
    fit(small, Recipe(sigma=SIGMA, steps=20, batch=64, lr=0.01))
    images = load_data("sample", "certify").select("first:5")
    for name, classifier in (("float", base), ("4-bit", small.eval())):
        smoothed = Smoothed(classifier, SIGMA)
        for c in smoothed.certify(images, Settings(sigma=SIGMA, n=500)):
            answer = "abstained" if c.abstained else f"class {c.predict} within radius {c.radius:.3f}"
            print(f"{name}: image {c.idx} of class {c.label}: {answer} ({c.votes} of {c.n} votes)")
        smoothed.close()
