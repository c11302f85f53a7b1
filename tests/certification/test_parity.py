"""Files are judged by the votes that they move to other classes, the same way every time."""

import numpy as np
import torch
from torch import Tensor, nn

from arquant.certification.parity import MOST_MOVED, parity, parity_images
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier


class OddOrEven(nn.Module):
    """The class is the parity of the sum of levels; sums with one of some remainders modulo 32 get the other class."""

    def __init__(self, flipped: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.register_buffer("flipped", torch.tensor([*flipped, -1.0]))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.round(255 * x).sum((1, 2, 3))
        flipped = (torch.remainder(total, 32)[:, None] == self.flipped).any(1).float()
        odd = torch.remainder(total + flipped, 2)
        return torch.stack([1 - odd, odd], 1)


def _classifier(*flipped: int) -> Classifier:
    return Classifier(OddOrEven(flipped), num_classes=2, input_shape=(1, 4, 4)).eval()


def _images() -> ImageSet:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 1, 4, 4), dtype=np.uint8)
    return ImageSet(pixels, np.zeros(8, np.int64), np.arange(8), "some", 2)


def test_answers_near_a_tie_may_differ_if_they_do_so_in_both_directions() -> None:
    found = parity(_classifier(), _classifier(0, 1), _images(), 0.25, engines=("torch",))["torch"]
    assert found.different > 2 * MOST_MOVED
    assert found.close
    assert found == parity(_classifier(), _classifier(0, 1), _images(), 0.25, engines=("torch",))["torch"], (
        "no coin is flipped"
    )


def test_votes_that_go_to_one_class_are_told_with_tolerance_and_remedy() -> None:
    found = parity(_classifier(), _classifier(0, 2), _images(), 0.25, engines=("torch",))["torch"]
    assert not found.close
    assert found.votes == 8 * 512
    said = found.problem("model.onnx", "onnxruntime")
    assert "other votes than the model in ONNX Runtime" in said
    assert "at most 2%" in said
    assert "certify the file itself" in said
    assert "(some)" in said


def test_equal_networks_are_compared_on_few_votes() -> None:
    found = parity(_classifier(), _classifier(), _images(), 0.25)["auto"]
    assert (found.different, found.moved, found.votes) == (0.0, 0.0, 8 * 64)


def test_without_images_of_a_run_random_pixels_are_compared() -> None:
    assert parity_images(_classifier(), None).name == "random pixels"


def test_engines_are_compared_one_after_the_other_until_one_is_not_close() -> None:
    engines = ("torch", "openvino")
    assert list(parity(_classifier(), _classifier(), _images(), 0.25, engines=engines)) == ["torch", "openvino"]
    assert list(parity(_classifier(), _classifier(0, 2), _images(), 0.25, engines=engines)) == ["torch"]
