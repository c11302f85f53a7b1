import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arquant
from arquant.base.progress import Status, duration
from arquant.certificates.bounds import certified_radius, clopper_pearson_lower
from arquant.certificates.certificate import CertificateSet
from arquant.certificates.files import read_certificates, write_sidecar
from arquant.certificates.recomputation import recompute
from arquant.certificates.table import parse_time
from arquant.commands.console import Console, describe
from arquant.commands.main import COMMANDS, find_command
from arquant.engines.choice import ENGINES
from tests.support.command_line import Answer, InProcess, Project, images

CERTIFY = ("certify", "toy:colours", "npz:data.npz", "--sigma", "0.5")


def certified(cli: InProcess, out: str, *options: str) -> CertificateSet:
    answer = cli(*CERTIFY, "--n", "300", "--out", out, *options)
    assert answer.code == 0, answer.err
    return read_certificates(Path(out))


def table(path: Path | str) -> list[list[str]]:
    """The rows of a TSV, the header first, without the time column."""
    rows = [line.split("\t") for line in (Path(path) / "certificates.tsv").read_text().splitlines()]
    return [row[:5] + row[6:] for row in rows]


def test_the_module_runs_as_a_program(project: Project) -> None:
    answer = project.run("--help")
    assert (answer.code, answer.err) == (0, "")
    assert all(f"\n  {name} " in answer.out for name in COMMANDS)


def test_ctrl_c_while_python_still_imports_is_no_traceback() -> None:
    script = """if True:
        import sys
        class Interrupting:
            def find_spec(self, name, path, target=None):
                if name == "arquant.commands.console":
                    raise KeyboardInterrupt
        sys.meta_path.insert(0, Interrupting())
        from arquant.__main__ import entry
        entry()
    """
    done = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (130, "interrupted\n", "")


def test_certify_as_a_user_runs_it(project: Project) -> None:
    answer = project.run(*CERTIFY, "--n", "1e3", "--out", "user")
    assert answer.code == 0, answer.err
    assert "1,000 votes at alpha 0.001 and sigma 0.5" in answer.err
    assert "radii up to 1.231" in answer.err  # 0.5 * 2.4633, rounded down
    assert "6 images x 1,100 votes" in answer.err
    assert "ACR" in answer.out
    assert "certificates: user/certificates.tsv" in answer.out
    header, *rows = (project.folder / "user/certificates.tsv").read_text().splitlines()
    assert header.split("\t")[:6] == ["idx", "label", "predict", "radius", "correct", "time"]
    assert [row.split("\t")[0] for row in rows] == ["0", "1", "2", "3", "4", "5"]
    assert [row.split("\t")[2] for row in rows] == ["0", "1", "2", "0", "1", "2"]


def test_certificates_follow_from_their_votes(cli: InProcess) -> None:
    found = certified(cli, "follow")
    assert recompute(found) == []
    assert {c.n for c in found.certificates} == {300}
    for c in found.certificates:
        assert c.p_lower == pytest.approx(clopper_pearson_lower(c.votes, 300, 0.001), abs=1e-12)
        assert 0 <= certified_radius(c.p_lower, 0.5) - c.radius < 1.1e-8
    summary = json.loads(cli("metrics", "follow/certificates.tsv", "--json").out)
    assert summary["acr"] == pytest.approx(np.mean([c.radius * c.correct for c in found.certificates]), abs=1e-12)


def test_the_sidecar_holds_the_trust_checklist(cli: InProcess) -> None:
    certified(cli, "checklist", "--adaptive", "--family-wise", "--seed", "7")
    data = json.loads(Path("checklist/certificates.json").read_text())
    settings, record = data["settings"], data["provenance"]
    assert settings == {
        "sigma": 0.5, "noise": "grid", "norm": "l2", "n0": 100, "n": 300, "alpha": 0.001, "alpha_per_image": 0.001 / 6,
        "family_wise": 6, "certificate": "one-sided", "mode": "select", "seed": 7,
        "adaptive": {"tolerance": 0.02, "futility_beta": 1e-4},
    }  # fmt: skip
    assert (data["rows"], len(data["images_sha256"]), len(record["model"]["fingerprint"])) == (6, 64, 64)
    assert record["bound"] == "Clopper-Pearson"
    assert record["candidates_examined"] is None, "a float model was chosen by others"
    assert {"engine", "version", "precision", "device", "threads", "batch"} <= set(record["engine"])
    assert record["noise"]["key_id"]
    assert 0 < record["noise"]["total_variation"] < 1e-12
    assert {"python", "arquant", "torch", "numpy", "scipy"} <= set(record["versions"])
    assert {"machine", "commit", "command", "written", "data", "identity"} <= set(record)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--label-directed"], {"mode": "label"}),
        (["--multiclass"], {"certificate": "multiclass"}),
        (["--adaptive", "--tolerance", "0.1"], {"adaptive": {"tolerance": 0.1, "futility_beta": 1e-4}}),
        (["--noise", "laplace"], {"noise": "laplace", "norm": "l1"}),
        (["--images", "every:2", "--family-wise"], {"family_wise": 3}),
    ],
)
def test_every_mode_is_recorded_and_follows_from_its_votes(
    cli: InProcess, options: list[str], expected: dict[str, Any]
) -> None:
    out = "mode" + "".join(options).replace(":", "")
    assert recompute(certified(cli, out, *options)) == []
    assert expected.items() <= json.loads(Path(out, "certificates.json").read_text())["settings"].items()


def test_json_of_certify_and_quiet(cli: InProcess) -> None:
    answer = cli(*CERTIFY, "--n", "300", "--out", "json", "--json", "-q", "--images", "0-1")
    assert answer.err == ""
    summary = json.loads(answer.out)
    assert (summary["images"], summary["certificates"]) == (2, "json/certificates.tsv")
    loud = cli(*CERTIFY, "--n", "300", "--out", "json", "--json", "--images", "0-1")
    assert json.loads(loud.out) == summary, "notes belong on stderr"


def test_what_a_model_prints_stays_out_of_the_result(cli: InProcess) -> None:
    answer = cli("certify", "toy:talkative", "npz:data.npz", "--sigma", "0.5", "--n", "100", "--out", "talk", "--json")
    assert json.loads(answer.out)["images"] == 6
    assert "loading, please wait\n" in answer.err


def test_a_folder_of_ones_own_is_named_after_what_is_certified(cli: InProcess) -> None:
    names = [
        json.loads(cli(*CERTIFY, "--n", n, "--json", "-q", "--images", "first:1").out)["certificates"]
        for n in ("100", "100", "200")
    ]
    assert names[0] == names[1] != names[2]
    assert all(name.startswith("runs/certify-") for name in names)


def test_metrics_json_has_the_keys_of_the_contract(cli: InProcess) -> None:
    certified(cli, "keys")
    summary = json.loads(cli("metrics", "keys/certificates.tsv", "--json").out)
    radii = ["0.0", "0.25", "0.5", "0.75", "1.0", "1.25", "1.5", "1.75", "2.0"]
    assert list(summary["certified_accuracy"]) == radii
    assert {"acr", "certified_accuracy", "abstained", "images"} <= set(summary)
    assert summary["images"] == 6
    assert summary["certified_accuracy"]["0.0"] == 1.0
    assert summary["abstained"] == 0.0
    assert not {"second", "difference"} & set(summary)
    some = json.loads(cli("metrics", "keys", "--json", "--radii", "0.1,1").out)
    assert list(some["certified_accuracy"]) == ["0.1", "1.0"]


def test_two_files_are_compared_image_by_image(cli: InProcess) -> None:
    first, second = certified(cli, "pair-a"), certified(cli, "pair-b", "--adaptive", "--seed", "1")
    answer = cli("metrics", "pair-a/certificates.tsv", "pair-b/certificates.tsv", "--json")
    data = json.loads(answer.out)
    assert data["second"]["acr"] == second.acr
    assert set(data["difference"]) == {"acr", "low", "high"}
    assert data["difference"]["acr"] == pytest.approx(second.acr - first.acr, abs=1e-12)
    assert data["difference"]["low"] <= data["difference"]["acr"] <= data["difference"]["high"]
    assert any("adaptive" in note for note in data["notes"])
    assert data["settings"]["adaptive"] is None
    assert data["second"]["settings"]["adaptive"] == {"tolerance": 0.02, "futility_beta": 1e-4}
    text = cli("metrics", "pair-a", "pair-b").out
    assert len(text.splitlines()[3].split()) == 3, "the columns do not touch"
    assert "second - first: ACR" in text
    assert "paired over 6 images" in text


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--n", "400"], "n 300 / 400"),
        (["--sigma", "0.25"], "sigma 0.5 / 0.25"),
        (["--alpha", "0.01"], "alpha 0.001 / 0.01"),
        (["--multiclass"], "certificate one-sided / multiclass"),
        (["--images", "first:5"], "idx: 1 only in the first (5)"),
    ],
)
def test_sets_of_other_settings_are_not_compared(cli: InProcess, options: list[str], named: str) -> None:
    certified(cli, "here")
    other = "there" + "".join(options).replace(":", "")
    certified(cli, other, *options)
    answer = cli("metrics", "here/certificates.tsv", f"{other}/certificates.tsv", "--json")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert named in answer.err


def test_files_of_the_field_are_read_with_a_warning(cli: InProcess) -> None:
    lines = ["idx\tlabel\tpredict\tradius\tcorrect\ttime", "0\t3\t3\t1.25\t1\t0:00:15.4", "20\t1\t-1\t0.0\t0\t15.4"]
    Path("field.tsv").write_text("\n".join([*lines, "mean radius\t0.625", ""]))
    answer = cli("metrics", "field.tsv", "--json")
    assert json.loads(answer.out)["acr"] == 0.625
    assert "settings unknown" in answer.err
    assert "ignored 1 line(s)" in answer.err


def test_compatible_files_have_three_decimals(cli: InProcess) -> None:
    certified(cli, "plain")
    certified(cli, "compatible", "--compat")
    plain, compatible = (read_certificates(f"{name}/certificates.tsv").certificates for name in ("plain", "compatible"))
    assert [math.floor(1000 * c.radius) / 1000 for c in plain] == [c.radius for c in compatible]
    assert max(c.radius for c in compatible) > 0


def test_predict_can_use_the_arithmetic_of_a_certificate(cli: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    own = ENGINES["openvino"]
    monkeypatch.setitem(ENGINES, "openvino", lambda *a, **o: asked.append(o["precision"]) or own(*a, **o))
    words = ["predict", "toy:colours", "npz:data.npz", "--sigma", "0.5", "--n", "100", "--images", "first:2"]
    assert cli(*words, "--precision", "bfloat16").code == 0
    assert asked == ["bfloat16"]


def test_predict_prints_and_writes_its_answers(cli: InProcess) -> None:
    arguments = ("predict", "toy:colours", "npz:data.npz", "--sigma", "0.5", "--n", "200", "--out", "answers.tsv")
    answer = cli(*arguments, "--seed", "1", "--json")
    assert answer.code == 0, answer.err
    predictions = json.loads(answer.out)
    assert [p["predict"] for p in predictions][:3] == [0, 1, 2]
    assert [p["idx"] for p in predictions] == list(range(6))
    header, *rows = Path("answers.tsv").read_text().splitlines()
    assert header.split("\t")[:5] == ["idx", "label", "predict", "correct", "time"]
    assert [int(row.split("\t")[2]) for row in rows] == [p["predict"] for p in predictions]
    assert all(parse_time(row.split("\t")[4]) > 0 for row in rows)
    again = json.loads(cli(*arguments, "--seed", "1", "--json").out)
    assert [{**p, "seconds": 0} for p in again] == [{**p, "seconds": 0} for p in predictions]
    assert "right" in cli(*arguments, "-q").out


def test_a_configuration_file_is_overridden_by_flags(cli: InProcess) -> None:
    Path("run.yaml").write_text("sigma: 0.25\nn: 2e2\nadaptive: true\nimages: first:2\nout: configured\n")
    answer = cli("certify", "toy:colours", "npz:data.npz", "--config", "run.yaml", "--sigma", "0.5")
    assert answer.code == 0, answer.err
    settings = read_certificates("configured").settings
    assert settings is not None
    assert (settings.sigma, settings.n, settings.adaptive is not None) == (0.5, 200, True)
    assert len(table("configured")) == 1 + 2


def test_a_model_without_a_wrapper_takes_its_shape_from_the_data(cli: InProcess) -> None:
    few = ("--sigma", "0.5", "--n", "100", "--images", "first:1")
    assert cli("certify", "toy:bare", "npz:data.npz", *few, "--out", "bare").code == 0
    assert cli("certify", "toy:bare", "npz:data.npz", *few, "--out", "bare", "--input", "3,4,4").code == 0, "it resumes"
    assert cli("predict", "toy:bare", "npz:data.npz", *few).code == 0
    trained = ("--sigma", "0.5", "--steps", "1", "--batch", "4", "--out", "trained-bare")
    assert cli("train", "toy:bare", "npz:data.npz", *trained).code == 0
    alone = cli("export", "toy:bare")
    assert (alone.code, "--input 3,32,32" in alone.err) == (2, True)
    checked = ("check", "bare", "--model", "toy:bare", "--data", "npz:data.npz", "--min-acr", "0")
    assert cli(*checked).code == 0


def test_arguments_may_stand_among_options(cli: InProcess) -> None:
    words = ("certify", "--n", "100", "trained/model.safetensors", "--arch", "toy:colours", "npz:others.npz")
    cli.project.save("others", *(part[:2] for part in images()))
    train = (
        "train",
        "--sigma",
        "0.5",
        "toy:colours",
        "--steps",
        "1",
        "--batch",
        "4",
        "npz:data.npz",
        "--out",
        "trained",
    )
    assert cli(*train).code == 0
    assert "was used by" in cli(*words, "--out", "mixed").err, "DATA is what was typed last"
    pixels, labels = images()
    cli.project.save("others", pixels[:2] + 1, labels[:2])
    assert cli(*words, "--out", "mixed").code == 0
    assert len(table("mixed")) == 1 + 2


def test_several_runs_are_a_list_or_stated_one_by_one(cli: InProcess) -> None:
    certified(cli, "one")
    certified(cli, "two")
    by_one, listed = arquant.compare("one", Path("two")), arquant.compare(["one", "two"])
    assert [entry.name for entry in by_one.entries] == [entry.name for entry in listed.entries] == ["one", "two"]
    assert arquant.report("one", out="page").models == ("toy",)
    assert arquant.report("one", "two", out="page").models == ("toy, one", "toy, two")


def test_a_finished_run_is_not_done_again(cli: InProcess) -> None:
    certified(cli, "finished")
    before = {path.name: path.read_bytes() for path in Path("finished").iterdir()}
    again = cli(*CERTIFY, "--n", "300", "--out", "finished", "-v")
    assert again.code == 0
    assert {path.name: path.read_bytes() for path in Path("finished").iterdir()} == before, "nobody made it anew"


def test_other_files_of_the_folder_are_left_alone(cli: InProcess) -> None:
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("keep me")
    certified(cli, "mine", "--images", "first:1")
    assert Path("mine/notes.txt").read_text() == "keep me"


def test_fewer_rows_than_the_sidecar_states_is_an_unfinished_run(cli: InProcess) -> None:
    found = certified(cli, "short")
    assert found.settings is not None
    write_sidecar("short/certificates.json", found.settings, rows=7)
    answer = cli("metrics", "short")
    assert answer.code == 2
    assert "6 rows where certificates.json states 7" in answer.err


@pytest.mark.parametrize("words", [("metrics", "one.tsv", "-q"), ("export", "--help"), ("--help",), ("--version",)])
def test_a_reader_that_leaves_early_is_no_error(words: tuple[str, ...], project: Project) -> None:
    row = "0\t3\t3\t1.25\t1\t15.4"
    (project.folder / "one.tsv").write_text(f"idx\tlabel\tpredict\tradius\tcorrect\ttime\n{row}\n")
    process = project.start(*words)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")


def test_an_internal_error_is_one_line_and_its_place_with_v(cli: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Answer:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(find_command("metrics"), "run", fail)
    short = cli("metrics", "x.tsv")
    assert (short.code, short.out) == (1, "")
    assert short.err == "internal error: ZeroDivisionError: planted (-v shows where)\n"
    assert "Traceback" in cli("metrics", "x.tsv", "-v").err


def test_progress_says_how_far_how_fast_and_how_long() -> None:
    status = Status("certify", 3000, 9000, "votes", {"images": "2/6", "ACR": "0.512"})
    assert describe(status, 10.0, 1000) == ("certify: 3,000/9,000 votes, 200 votes/s, 30 s left, images 2/6, ACR 0.512")
    assert describe(Status("search", 2.5, 6, "candidates"), 50.0, 0) == "search: 2/6 candidates, 20 s each, 70 s left"
    assert describe(Status("search", 12, 120, "minutes"), 50.0, 0) == "search: 12/120 minutes, 1.8 h left"
    assert describe(Status("search", 22.02, 150, "candidates"), 47.0, 22) == "search: 22/150 candidates"
    assert [duration(s) for s in (45, 720, 12240)] == ["45 s", "12 min", "3.4 h"]


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_goes_to_stderr_and_not_at_all_when_quiet(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    for quiet in (True, False):
        with Console(quiet=quiet).progress() as report:
            for done in (0, 50, 100):
                report(Status("certify", done, 100, "votes", {"ACR": "0.5"}))
        out, err = capsys.readouterr()
        assert out == ""
        assert ("100/100 votes" in err) is not quiet
