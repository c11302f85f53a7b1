"""HAQ's size mode: an agent that chooses how many values weights share, from proposal to the file that ships."""

from pathlib import Path

import numpy as np
import pytest

from arquant.base.errors import InputError
from arquant.commands.search import search
from arquant.quantization.artifact import counted_bytes, load_artifact
from arquant.quantization.budget import Budget
from arquant.searching.space import Space
from arquant.searching.strategies.haq_kmeans import HaqKmeans
from arquant.searching.testing import toy_reward
from tests.support.small_search import SIGMA, image_set, quick_engines, small_layers

NETWORK, BUDGET = "tests.support.small_search:factory", "bytes<=5100"
"""between 2 and 8 bits for the two searched layers"""


def space() -> Space:
    return Space(Budget.parse(BUDGET, small_layers(), books=True))


@pytest.mark.parametrize("fit", [False, True])
def test_it_chooses_weights_only_and_keeps_the_budget(fit: bool) -> None:
    found = space()
    strategy = HaqKmeans(found, seed=0, options={"hidden": 16, "batch": 16, "episodes": 12, "warmup": 100, "fit": fit})
    reward_of = toy_reward(found)
    widths = set()
    for _ in range(12):
        (proposal,) = strategy.ask(1)
        bits = found.bits(proposal.policy)
        assert found.contains(proposal.policy)
        assert (bits[:, 1] == 8).all(), "inputs cost no bytes"
        widths.add(tuple(bits[:, 0]))
        strategy.tell(proposal, reward_of(proposal.policy))
    assert len(widths) > 2
    assert len(strategy._facts) == len(small_layers()), "one step per layer"


def run(tmp_path: Path, **changes: object) -> dict[str, object]:
    images = image_set(80, 31)
    np.savez(tmp_path / "images.npz", images=np.asarray(images.images), labels=images.labels)
    options = {
        "input": (3, 8, 8), "classes": 4, "split": (60, 20, 20), "sigma": SIGMA, "budget": BUDGET, "out": tmp_path / "out",
        "strategy": "haq-kmeans", "trials": 3, "search_n": 24, "reference_n": 40, "steps": 2, "final_steps": 3,
        "train_batch": 32, "n0": 8, "n": 40, "threads": 1, "compiled": False, "train_precision": "float32",
    }  # fmt: skip
    with quick_engines():
        return search(NETWORK, f"npz:{tmp_path / 'images.npz'}", **{**options, **changes})  # type: ignore[arg-type]


def test_what_ships_shares_weights_and_its_file_keeps_the_budget(tmp_path: Path) -> None:
    summary = run(tmp_path, controls=("uniform",))
    file = tmp_path / "out" / "model.safetensors"
    assert counted_bytes(file) <= 5100
    model = load_artifact(file, arch=NETWORK)
    assert model.learn == "kmeans"
    assert model.policy.widths() == summary["policy"]
    for name, layer in model.integer_state().items():
        assert layer.weight is not None
        assert len(np.unique(layer.weight)) <= 2 ** model.policy[name].w


def test_a_budget_that_shared_weights_do_not_change_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="shared weights make the file smaller, and nothing else"):
        run(tmp_path, budget="bops<=3bit")
    assert not (tmp_path / "out").exists()
