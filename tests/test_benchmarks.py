"""The parts of the benchmarks that decide their figures; the scripts themselves are run by `make bench`."""

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from arquant.certificates.files import CertificateWriter, write_sidecar
from arquant.loading.models import load_model
from arquant.quantization.policy import Bits
from tests.support.some_certificates import certificate_set

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def benchmark_of(monkeypatch: pytest.MonkeyPatch) -> object:
    """Imports a script of the folder as Python does when it is run."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> ModuleType:
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


def test_contenders_take_turns_in_processes_of_their_own(
    benchmark_of: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os, sys; print('chatter'); print(json.dumps({'pid': os.getpid(), 'n': len(sys.argv)}))"
    )
    alternation = benchmark_of("alternation")  # type: ignore[operator]
    found = alternation.alternate(str(script), ["a", "b"], rounds=3, arguments=["--fast"])
    assert [len(found[name]) for name in ("a", "b")] == [3, 3]
    assert len({one["pid"] for each in found.values() for one in each}) == 6
    assert {one["n"] for one in found["a"]} == {4}
    turns = [line.rsplit(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert turns == ["a", "b", "a", "b", "a", "b"]
    assert alternation.medians([{"x": 1}, {"x": 9}, {"x": 2}]) == {"x": 2}


def test_a_network_without_weights_gets_images_of_its_size_and_statistics_of_them(
    benchmark_of: object, tmp_path: Path
) -> None:
    subjects = benchmark_of("subjects")  # type: ignore[operator]
    levels = np.random.default_rng(0).integers(0, 256, (6, 3, 16, 24), dtype=np.uint8)
    np.savez(tmp_path / "small.npz", images=levels, labels=np.zeros(6, np.int64))
    parser = argparse.ArgumentParser()
    subjects.add_subject(parser)
    options = parser.parse_args(["--model", "resnet20", "--data", f"npz:{tmp_path / 'small.npz'}", "--bits", "w3a5"])
    network = subjects.quantized_network(options)
    shown = subjects.images(options, network, "certify")
    assert shown.shape == (3, 32, 32)
    assert abs(float(shown.images.mean()) - float(levels.mean())) < 2
    assert network.policy["layer1.0.conv1"] == Bits(3, 5)
    assert set(subjects.quantized_network(options, bits=8).policy.values()) == {Bits(8, 8)}
    fresh = load_model("resnet20", weights_required=False)
    assert not torch.equal(network.module.bn1.running_var, fresh.module.bn1.running_var)


def test_the_adaptive_rule_is_replayed_on_the_votes_of_a_file(benchmark_of: object, tmp_path: Path) -> None:
    made = certificate_set(100)
    assert made.settings is not None
    with CertificateWriter(tmp_path / "certificates.tsv") as writer:
        for certificate in made.certificates:
            writer.write(certificate)
    write_sidecar(tmp_path / "certificates.json", made.settings, rows=100)
    certify = benchmark_of("certify")  # type: ignore[operator]
    replayed = certify.replay_adaptive(tmp_path / "certificates.tsv", 10_000, 5)
    assert replayed["fixed_samples"] == 10_100
    assert 164 <= replayed["adaptive_samples"] < 10_100
    loss = replayed["fixed_acr"] - replayed["adaptive_acr"]
    assert 0 <= loss < 0.05 * made.settings.sigma
    assert replayed["fixed_acr"] > made.acr, "ten times as many votes prove larger radii"


def test_a_file_that_cannot_be_replayed_is_found_before_anything_is_measured(
    benchmark_of: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certify = benchmark_of("certify")  # type: ignore[operator]
    monkeypatch.setattr(certify, "alternate", lambda *_, **__: pytest.fail("measured"))
    (tmp_path / "c.tsv").write_text("idx\tlabel\n")
    monkeypatch.setattr(sys, "argv", ["certify.py", f"--certificates={tmp_path / 'c.tsv'}"])
    with pytest.raises(SystemExit, match=r"error: .*c\.tsv.*--certificates"):
        certify.main()


def test_a_search_is_charged_for_its_reference_and_for_what_it_really_trained(benchmark_of: object) -> None:
    """The published search of the paper's agent: 150 candidates, 27 of them repetitions; 60 steps, 500 images."""
    search = benchmark_of("search")  # type: ignore[operator]
    pace = search.Pace(steps=1.0, votes=1000.0, float_votes=10_000.0, compiling=7.0)
    points = list(search.curve(search.PUBLISHED["arq-paper"], pace))
    assert [point.candidate for point in points] == list(range(150))
    assert points[-1].steps == 123 * 60
    assert points[-1].seconds == pytest.approx(500 * 2000 * 0.0001 + 123 * (7 + 60 + 500 * 200 * 0.001))
    assert points[-1].best == max(point.best for point in points)
    abandoned = list(search.curve(search.PUBLISHED["random"], pace))[-1]
    assert abandoned.steps < 150 * 60
    assert abandoned.seconds < 100 + 150 * (7 + 160)
