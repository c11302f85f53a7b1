"""`arquant search` as a user types it."""

import json

import numpy as np
import pytest

from arquant.base.errors import Interrupted
from arquant.base.run_folder import read_config
from arquant.certificates.files import read_sidecar
from arquant.commands.main import find_command, main, read_options
from tests.support.small_search import SIGMA, image_set


@pytest.fixture
def data(tmp_path):
    images = image_set(160, 31)
    np.savez(tmp_path / "images.npz", images=images.images, labels=images.labels)
    return f"npz:{tmp_path / 'images.npz'}"


def command(data, out, *more):
    return [
        "search", "tests.support.small_search:factory", data, "--input", "3,8,8", "--classes", "4",
        "--split", "60,20,20", "--sigma", str(SIGMA), "--budget", "bops<=3bit", "--out", str(out),
        "--strategy", "random", "--trials", "2", "--search-n", "48", "--reference-n", "1e2", "--steps", "2",
        "--final-steps", "2", "--train-batch", "32", "--n0", "10", "--n", "100", "--shortlist", "1", *more,
    ]  # fmt: skip


def test_a_search_prints_its_summary(data, tmp_path, capsys):
    assert main(command(data, tmp_path / "run", "--controls", "none")) == 0
    said = capsys.readouterr()
    assert "2 candidates examined" in said.out
    assert "images that the search never saw" in said.out
    assert "reference" in said.err
    assert main(command(data, tmp_path / "run", "--controls", "none", "--json", "-q")) == 0
    again = capsys.readouterr()
    assert json.loads(again.out)["candidates_examined"] == 2
    assert again.err == ""

    # certified again, with more votes: the images that the search kept for this, and no others
    run = str(tmp_path / "run")
    words = ["certify", run, "--n", "200", "--arch", "tests.support.small_search:factory", "--json", "-q", "--out"]
    for name, given in (("a", []), ("b", [data])):
        out = tmp_path / name
        assert main([*words[:2], *given, *words[2:], str(out)]) == 0
        assert json.loads(capsys.readouterr().out)["images"] == 32
        same = [read_sidecar(place / "certificates.json") for place in (tmp_path / "run", out)]
        assert same[0]["images_sha256"] == same[1]["images_sha256"]
        assert same[1]["provenance"]["candidates_examined"] == 2
    images = image_set(160, 31)
    np.savez(tmp_path / "other.npz", images=images.images, labels=images.labels)
    assert main([*words[:2], f"npz:{tmp_path / 'other.npz'}", *words[2:], str(tmp_path / "c")]) == 2
    assert "(calibrate), with 95 others of 160" in capsys.readouterr().err


def options_for(*words):
    return read_options(find_command("search"), words)[1]


def test_flags_become_options():
    found = options_for(
        "resnet20:sigma=0.5", "--sigma", "0.5", "--budget", "bops<=3bit", "cifar10", "--budget", "bytes<=1e5", "--out", "run",
        "--option", "episodes=150", "--option", "noise = 0.3", "--keep", "fc=8", "--per-channel", "--no-racing",
        "--final-epochs", "2", "--controls", "none",
    )  # fmt: skip
    assert (found.model, found.data) == ("resnet20:sigma=0.5", "cifar10")
    assert found.budget == ("bops<=3bit", "bytes<=1e5")
    assert found.strategy_options == {"episodes": "150", "noise": "0.3"}
    assert (found.keep, found.racing, found.per_channel, found.controls) == (("fc=8",), False, True, ())
    assert (found.final_recipe.epochs, found.hours, found.trials) == (2.0, 1.0, None)


def test_trials_take_the_place_of_the_hours_that_are_not_stated():
    words = ("m", "--sigma", "0.5", "--budget", "bops<=3bit", "--out", "run", "--trials", "5")
    assert options_for(*words).hours is None
    assert options_for(*words, "--hours", "2").hours == 2.0


def test_the_shape_of_a_network_is_that_of_the_data(data, tmp_path, capsys):
    words = [word for word in command(data, tmp_path / "run", "--controls", "none") if word not in ("--input", "3,8,8")]
    assert main([*words, "-q"]) == 0
    assert read_config(tmp_path / "run")["model_options"]["input_shape"] == [3, 8, 8], (
        "later commands need no data to load it"
    )
    arch = ("--arch", "tests.support.small_search:factory")
    assert main(["finetune", str(tmp_path / "run"), "--steps", "1", "--batch", "32", "-q", *arch]) == 0
    capsys.readouterr()


def test_ctrl_c_is_no_error(data, tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise Interrupted("interrupted: nothing yet; to go on: arquant search")

    monkeypatch.setattr(find_command("search"), "run", interrupted)
    assert main(command(data, tmp_path / "run", "--progress", "json")) == 130
    assert json.loads(capsys.readouterr().err.splitlines()[-1]) == {
        "interrupted": "interrupted: nothing yet; to go on: arquant search"
    }


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--budget", "bops<=1bit"], "cannot be met"),
        (["--strategy", "arc"], "unknown strategy 'arc'"),
        (["--option", "speed"], "NAME=VALUE"),
        (["--option", "speed=1"], "no option 'speed'"),
        (["--search-images", "33"], "33 search images were asked for"),
        (["--train-batch", "194"], "fewer than one batch of 97"),
        (["--train-batch", "31"], "a batch of 31 cannot hold two copies"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(data, tmp_path, capsys, more, message):
    try:
        code = main(command(data, tmp_path / "run", *more))
    except SystemExit as end:  # what the options themselves refuse
        code = end.code
    assert code == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("error:") == 1
