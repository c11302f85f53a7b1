import numpy as np
import pytest
import torch
from torch import Tensor

from arquant.independence import depends_on_batch

IMAGES = torch.stack([torch.full((3, 4, 4), 0.5), torch.rand((3, 4, 4), generator=torch.Generator().manual_seed(0))])
CLASSES = 4


def plain(x: Tensor) -> Tensor:
    return x.flatten(1)[:, :CLASSES]


def centred_by_batch(x: Tensor) -> Tensor:
    return plain(x - x.mean(0))


def rounded_to_the_range_of_the_batch(x: Tensor) -> Tensor:
    scale = x.abs().max() / 127
    return plain(torch.round(x / scale) * scale)


def one_coin(x: Tensor) -> Tensor:
    return plain(x) + 5 * float(torch.rand(()) < 0.5)


def one_coin_of_numpy(x: Tensor) -> Tensor:
    return plain(x) + 5 * float(np.random.rand() < 0.5)  # noqa: NPY002


def a_coin_each(x: Tensor) -> Tensor:
    return plain(x) + 5 * (torch.rand(len(x), 1) < 0.5)


def a_draw_that_changes_nothing(x: Tensor) -> Tensor:
    return plain(x) + 0 * torch.rand(())


@pytest.mark.parametrize("network", [plain, a_coin_each, a_draw_that_changes_nothing])
def test_a_network_that_answers_for_each_image_passes(network):
    torch.manual_seed(0)
    assert not depends_on_batch(network, IMAGES)


@pytest.mark.parametrize("network", [centred_by_batch, rounded_to_the_range_of_the_batch, one_coin, one_coin_of_numpy])
def test_what_the_images_of_a_batch_share_is_seen(network):
    # a coin that falls the same way in all eight calls is missed: once in 128
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    assert depends_on_batch(network, IMAGES)
