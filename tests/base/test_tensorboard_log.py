"""TensorBoard logs, read back."""

import sys

import pytest

from arquant.base.errors import MissingExtraError
from arquant.base.progress import Status
from arquant.base.tensorboard_log import tensorboard_log
from arquant.commands.main import main
from tests.commands.test_search import command, data  # noqa: F401


def scalars(folder):
    """All logged values: tag to (step, value) pairs."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_values_are_logged_by_stage_and_step_and_passed_on(tmp_path):
    pytest.importorskip("tensorboard")
    seen = []
    first = Status("train", 1, 2, "images", {}, {"loss": 1.5, "lr": 0.25}, 10)
    with tensorboard_log(tmp_path / "log", seen.append) as report:
        report(first)
        report(Status("train", 2, 2, "images", {}, {"loss": 0.5}, 20))
        report(Status("certify", 1, 2, "votes"))
    assert scalars(tmp_path / "log") == {"train/loss": [(10, 1.5), (20, 0.5)], "train/lr": [(10, 0.25)]}
    assert seen[0] is first
    assert len(seen) == 3


def test_without_the_extra_it_is_said_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with (
        pytest.raises(MissingExtraError, match=r"pip install 'arquant\[tensorboard\]'"),
        tensorboard_log(tmp_path, print),
    ):
        pass
    line = ["train", "resnet20", "sample", "--sigma", "0.5", "--steps", "1", "--out", str(tmp_path / "run")]
    assert main([*line, "--tensorboard", str(tmp_path / "log")]) == 2
    assert "arquant[tensorboard]" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_search_logs_its_candidates_and_the_final_training(data, tmp_path):  # noqa: F811
    pytest.importorskip("tensorboard")
    log = tmp_path / "log"
    assert main(command(data, tmp_path / "run", "--controls", "none", "-q", "--tensorboard", str(log))) == 0
    found = scalars(log)
    assert [step for step, _ in found["search/score"]] == [1, 2]
    best = [value for _, value in found["search/best"]]
    assert best[-1] == pytest.approx(max(value for _, value in found["search/score"]))
    assert [step for step, _ in found["fine-tune the winner/loss"]] == [2]
    assert found["fine-tune the winner/lr"][0][1] > 0
