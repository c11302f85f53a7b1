"""`certify` and `predict` of networks that are no fixed function of one image: exit 2, and nothing left to be believed."""

import json
from pathlib import Path

import pytest

from arquant.engines.guard import Guard, NotOneFunction
from tests.support.command_line import InProcess, Project

NETWORKS = '''
import os

import torch
from toy import Brightest, has_two_rows, wrap


class Rescaled(Brightest):
    """Takes the images for bytes if one of them is bright."""

    def forward(self, x):
        if x.max() > 2:
            x = x / 255 - 1
        return super().forward(torch.relu(x)) + torch.tensor([0.0, 0.05, 0.0])


class Crowded(Brightest):
    """Answers the first images of a batch only."""

    def forward(self, x):
        kept = (torch.arange(len(x)) < 100).float()[:, None]
        return super().forward(x) * kept + (1 - kept) * torch.tensor([0.0, 0.0, 1.0])


class Tired(Brightest):
    """Answers some calls."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        logits = super().forward(x)
        return logits if self.calls < 40 else torch.zeros_like(logits) + torch.tensor([1.0, 0.0, 0.0])


class Turned(Brightest):
    """Changes its answers when its run has written two rows, by what no digest can see."""

    def forward(self, x):
        logits = super().forward(x)
        return -logits if has_two_rows(os.environ.get("TURNED_TABLE", "")) else logits


def rescaled():
    return wrap(Rescaled())


def crowded():
    return wrap(Crowded())


def tired():
    return wrap(Tired())


def turned():
    return wrap(Turned())
'''
REASON = "is not one fixed function of one image"
UNCOMPILED = {"TORCHDYNAMO_DISABLE": "1"}


@pytest.fixture(autouse=True)
def networks(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.folder / "odd.py").write_text(NETWORKS)
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")


def command(name: str, model: str, out: str, *options: str) -> list[str]:
    return [
        name,
        f"odd:{model}",
        "npz:data.npz",
        "--sigma",
        "0.5",
        "--n",
        "300",
        "--out",
        out,
        "--threads",
        "1",
        *options,
    ]


@pytest.mark.parametrize(
    ("model", "engine"), [("rescaled", "torch"), ("crowded", "openvino"), ("tired", "torch"), ("tired", "auto")]
)
def test_a_user_gets_exit_2_and_the_reason(project: Project, model: str, engine: str) -> None:
    answer = project.run(*command("certify", model, f"{model}-{engine}", "--engine", engine), env=UNCOMPILED)
    assert answer.code == 2, answer.err
    assert REASON in answer.err
    assert "Traceback" not in answer.err
    assert not (project.folder / f"{model}-{engine}" / "certificates.tsv").exists()


@pytest.mark.parametrize("model", ["rescaled", "crowded", "tired"])
def test_so_does_who_asks_for_predictions(cli: InProcess, project: Project, model: str) -> None:
    answer = cli(*command("predict", model, f"{model}.tsv", "--engine", "torch"))
    assert answer.code == 2
    assert REASON in answer.err
    assert not (project.folder / f"{model}.tsv").exists()


def test_a_run_that_fails_at_its_end_leaves_no_certificates(
    cli: InProcess, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = command("certify", "turned", "turned", "--engine", "torch", "--batch", "16")
    assert cli(*words).code == 0  # as long as it does not turn
    monkeypatch.setenv("TURNED_TABLE", "again/certificates.tsv")
    words[words.index("turned")] = "again"
    answer = cli(*words)
    assert answer.code == 2
    assert REASON in answer.err
    assert "nothing of this run is a certificate: its rows are in certificates.tsv.refused" in answer.err
    left = {path.name for path in (project.folder / "again").iterdir()}
    assert left == {"certificates.tsv.refused", "certificates.json.refused"}
    assert cli("metrics", "again").code == 2
    monkeypatch.delenv("TURNED_TABLE")
    assert cli(*words).code == 0  # the same command begins anew


def probes_of(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "certificates.json").read_text())["provenance"]["probes"]
    return found


def edit_probes(folder: Path, **changes: object) -> None:
    sidecar = folder / "certificates.json"
    record = json.loads(sidecar.read_text())
    record["provenance"]["probes"].update(changes)
    sidecar.write_text(json.dumps(record))


def test_a_run_killed_after_its_last_row_is_probed_when_it_is_resumed(
    cli: InProcess, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, folder = command("certify", "turned", "last", "--engine", "torch"), project.folder / "last"
    assert cli(*words).code == 0
    assert probes_of(folder)["repeated"] is True
    edit_probes(folder, repeated=False)
    assert cli(*words).code == 0
    assert probes_of(folder)["repeated"] is True

    def refuse(self: Guard) -> None:
        raise NotOneFunction("it turned")

    edit_probes(folder, repeated=False)
    monkeypatch.setattr(Guard, "end", refuse)
    assert cli(*words).code == 2
    assert not (folder / "certificates.tsv").exists()


def test_another_function_of_the_same_fingerprint_does_not_go_on(cli: InProcess, project: Project) -> None:
    words, folder = command("certify", "turned", "other", "--engine", "torch"), project.folder / "other"
    assert cli(*words).code == 0
    answers = probes_of(folder)["answers"]
    assert isinstance(answers, list)
    edit_probes(folder, answers=[None if answer is None else (answer + 1) % 3 for answer in answers])
    rows = (folder / "certificates.tsv").read_bytes()
    answer = cli(*words)
    assert answer.code == 2
    assert "probes otherwise than when the run in other began" in answer.err
    assert (folder / "certificates.tsv").read_bytes() == rows
