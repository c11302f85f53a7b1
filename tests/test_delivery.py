"""From a policy to a model that ships, and what becomes of the models of shorter searches."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from arquant.artifact import load_artifact
from arquant.delivery import Delivery
from arquant.journal import Journal
from arquant.progress import silent
from arquant.search_options import search_options
from arquant.workbench import EngineOptions
from arquant.workbench_setup import workbench_for
from tests.small_search import SIGMA, image_set, quick_engines, small_classifier, small_space

ARCH = "tests.small_search:factory"


@pytest.fixture
def delivery(tmp_path: Path) -> Iterator[Delivery]:
    options = search_options(
        SIGMA, final_steps=1, train_batch=16, n=32, n0=8, alpha=0.01, distill=0.0, train_precision="float32"
    )
    space = small_space()
    bench = workbench_for(
        small_classifier(), space.budget.cheapest(), image_set(64, 1), options, EngineOptions(), layers=space.layers,
        compiled=False,
    )  # fmt: skip
    with quick_engines(), Journal(tmp_path / "journal.jsonl", {}) as journal:
        yield Delivery(
            tmp_path,
            bench,
            options,
            image_set(4, 2),
            EngineOptions(),
            journal,
            {"command": "search"},
            {},
            silent,
            silent,
        )
    bench.close()


def test_a_model_that_was_made_again_is_set_aside_again(
    delivery: Delivery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (small_space().uniform(pair) for pair in small_space().uniform_pairs[:3])

    def make(policy):
        model = delivery.model(tmp_path, policy, examined=1)
        return delivery.certificates(tmp_path, model, "it", examined=1)

    before = make(first)
    with monkeypatch.context() as patch:
        patch.setattr("arquant.workbench.train", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            make(second)
    assert make(first).acr == before.acr
    make(third)
    assert load_artifact(tmp_path / "model.safetensors", arch=ARCH).policy == third
    aside = tmp_path / "earlier" / "1"
    assert load_artifact(aside / "model.safetensors", arch=ARCH).policy == first
    assert (aside / "certificates.tsv").exists()
