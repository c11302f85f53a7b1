import random

import numpy as np
import pytest
import torch
from torch import Tensor

from arquant.models.independence import depends_on_batch

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


def beside_the_first(x: Tensor) -> Tensor:
    return plain(x - x[0])


def beside_the_last(x: Tensor) -> Tensor:
    return plain(x - x[-1])


def a_draw_that_changes_nothing(x: Tensor) -> Tensor:
    return plain(x) + 0 * torch.rand(())


@pytest.mark.parametrize("network", [plain, a_coin_each, a_draw_that_changes_nothing])
def test_a_network_that_answers_for_each_image_passes(network):
    torch.manual_seed(0)
    assert not depends_on_batch(network, IMAGES)


@pytest.mark.parametrize(
    "network",
    [
        centred_by_batch,
        rounded_to_the_range_of_the_batch,
        beside_the_first,
        beside_the_last,
        one_coin,
        one_coin_of_numpy,
    ],
)
def test_what_the_images_of_a_batch_share_is_seen(network):
    # a coin that falls the same way in all eight calls is missed: once in 128
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    assert depends_on_batch(network, IMAGES)


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), lambda: np.random.rand(), random.random])  # noqa: NPY002
def test_a_shared_coin_is_seen_even_if_it_falls_alike_in_the_first_calls(draw):
    """That something was drawn at all shows in the generator that it came from."""
    falls = iter([0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0])

    def network(x: Tensor) -> Tensor:
        draw()
        return plain(x) + 5 * next(falls)

    assert depends_on_batch(network, IMAGES)


def test_noise_for_each_image_from_a_generator_of_its_own_passes():
    generator = torch.Generator().manual_seed(0)
    assert not depends_on_batch(lambda x: plain(x) + torch.rand((len(x), 1), generator=generator), IMAGES)


def test_digits_that_vary_from_call_to_call_are_no_dependence():
    last_digit = iter(1e-6 * np.arange(20))
    assert not depends_on_batch(lambda x: plain(x) + float(next(last_digit)), IMAGES)
