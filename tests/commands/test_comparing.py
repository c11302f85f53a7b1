"""`arquant compare`: many certified models beside the first of them."""

import csv
import json
from dataclasses import replace

import pytest

import arquant
from arquant.base.errors import InputError, MismatchError
from arquant.certificates.files import TSV_NAME
from arquant.certificates.metrics import compare as compare_sets
from arquant.certificates.rounding import down
from arquant.commands.main import main
from arquant.quantization.policy import Policy
from tests.support.report_runs import write_certificates, write_search
from tests.support.some_certificates import SETTINGS, certificate_set


@pytest.fixture
def runs(tmp_path):
    """Two certified models and one that is better; the last has an artifact beside its certificates."""
    for name, better in (("base", 0.0), ("same", 0.0), ("better", 0.1)):
        write_certificates(tmp_path / name, certificate_set(better=better))
    Policy({"a": "w8a8", "b": "w3a3", "c": "w8a8"}).save(tmp_path / "better" / "policy.json")
    (tmp_path / "better" / "model.safetensors").write_bytes(b"x" * 1234)
    return tmp_path


def test_every_model_is_compared_with_the_first(runs):
    found = arquant.compare(runs / "base", runs / "same", runs / "better" / TSV_NAME)
    assert [entry.name for entry in found.entries] == ["base", "same", "better"]
    assert [(d.first, d.second, d.verdict) for d in found.differences] == [
        ("base", "same", "a tie"), ("base", "better", "larger"),
    ]  # fmt: skip
    known = compare_sets(certificate_set(), certificate_set(better=0.1))
    assert found.differences[1].acr == pytest.approx(known.acr, abs=1e-5)  # files hold radii rounded down
    assert set(found.differences[1].certified_accuracy) == set(known.certified_accuracy)


def test_json_has_figures_costs_and_differences(runs, capsys):
    assert main(["compare", str(runs / "base"), str(runs / "better"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in found["models"]] == ["base", "better"]
    assert found["models"][1]["costs"]["file_bytes"] == 1234
    assert found["models"][0]["costs"]["file_bytes"] is None
    assert found["models"][0]["acr_low"] <= found["models"][0]["acr"] <= found["models"][0]["acr_high"]
    (difference,) = found["differences"]
    assert difference["acr"]["low"] > 0
    assert difference["certified_accuracy"]["0.25"].keys() == {"value", "low", "high"}


@pytest.mark.parametrize(
    ("format", "words"), [("text", "better − base"), ("md", "| better − base |"), ("latex", r"better $-$ base")]
)
def test_tables(runs, capsys, format, words):
    assert main(["compare", str(runs / "base"), str(runs / "better"), "--format", format]) == 0
    said = capsys.readouterr().out
    assert words in said
    assert "1.2 kB" in said
    assert "larger" in said


def test_csv_has_one_row_per_model(runs, capsys):
    assert main(["compare", str(runs / "base"), str(runs / "better"), "--format", "csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [(row["model"], row["file_bytes"]) for row in rows] == [("base", ""), ("better", "1234")]
    assert float(rows[1]["acr"]) > float(rows[0]["acr"])


def test_controls_of_a_search_are_named_and_tables_are_aligned(tmp_path, capsys):
    run = write_search(tmp_path / "run")
    assert main(["compare", str(run / "controls" / "uniform"), str(run), str(run / "controls" / "float")]) == 0
    lines = capsys.readouterr().out.splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith("model"))
    assert [line.split()[0] for line in lines[header + 1 : header + 4]] == ["uniform", "run", "float"]
    assert len({len(line) for line in lines[header : header + 4]}) == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [({"sigma": 0.25}, "sigma 0.5 / 0.25"), ({"alpha": 0.01}, "alpha"), ({"certificate": "multiclass"}, "certificate")],
)
def test_other_settings_are_refused(runs, change, named, capsys):
    write_certificates(runs / "other", certificate_set(settings=replace(SETTINGS, **change)))
    with pytest.raises(MismatchError, match=named):
        arquant.compare(runs / "base", runs / "same", runs / "other")
    assert main(["compare", str(runs / "base"), str(runs / "other")]) == 2
    assert "cannot be compared" in capsys.readouterr().err


def test_what_cannot_be_compared_is_said(runs, tmp_path):
    with pytest.raises(InputError, match="at least two different"):
        arquant.compare(runs / "base", runs / "base")
    with pytest.raises(InputError, match=r"no certificates; make some: arquant certify .* --out"):
        arquant.compare(runs / "base", tmp_path / "missing")
    assert main(["compare", str(runs / "base")]) == 2


def test_settings_that_are_unknown_are_warned_of(runs, capsys):
    (runs / "same" / "certificates.json").unlink()
    assert main(["compare", str(runs / "base"), str(runs / "same")]) == 0
    assert "settings unknown" in capsys.readouterr().err


def test_certificates_that_do_not_follow_from_their_votes_are_refused(runs, capsys):
    file = runs / "better" / TSV_NAME
    header, *rows = file.read_text().splitlines()
    place = next(number for number, row in enumerate(rows) if row.split("\t")[2] != "-1")
    cells = rows[place].split("\t")
    rows[place] = "\t".join([*cells[:3], "9.0", *cells[4:]])
    file.write_text("\n".join([header, *rows]) + "\n")
    assert main(["compare", str(runs / "base"), str(runs / "better")]) == 2
    said = capsys.readouterr()
    assert "is damaged: the radius of image" in said.err
    assert said.out == ""


def test_few_images_are_no_ground_for_a_verdict(tmp_path, capsys):
    for name, better in (("first", 0.0), ("second", 0.1)):
        write_certificates(tmp_path / name, certificate_set(9, better=better))
    (difference,) = arquant.compare(tmp_path / "first", tmp_path / "second").differences
    assert difference.verdict == "too few images"
    assert main(["metrics", str(tmp_path / "first" / TSV_NAME), str(tmp_path / "second" / TSV_NAME)]) == 0
    assert "paired over 9 images: too few images" in capsys.readouterr().out


def test_two_files_are_compared_on_their_common_images(tmp_path, capsys):
    whole, part = certificate_set(), certificate_set(better=0.1)
    write_certificates(tmp_path / "whole", whole)
    write_certificates(tmp_path / "part", replace(part, certificates=part.certificates[:15]))
    words = ["metrics", str(tmp_path / "whole"), str(tmp_path / "part")]
    assert main(words) == 2
    assert "--common compares the 15 that both have" in capsys.readouterr().err
    found = arquant.metrics(*words[1:], common=True)
    assert (found["images"], found["second"]["images"]) == (15, 15)
    few = replace(whole, certificates=whole.certificates[:15])
    assert found["difference"]["acr"] == pytest.approx(
        compare_sets(few, replace(part, certificates=part.certificates[:15])).acr.value, abs=1e-7
    )
    assert main([*words[:2], "--common"]) == 2


def test_radii_that_no_vote_can_prove_are_named_once(tmp_path, capsys):
    assert 1.0 < SETTINGS.largest_radius < 1.25
    write_certificates(tmp_path / "run", certificate_set())
    assert main(["metrics", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "certified at 1.0" in said
    assert "certified at 1.25" not in said
    assert f"not provable with n = 1,000: 1.25, 1.5, 1.75, 2.0 (at most {down(SETTINGS.largest_radius)})" in said


def test_a_radius_is_shown_rounded_down():
    assert (down(0.49994), down(0.5), down(0.4999999, 0)) == ("0.499", "0.500", "0")


def test_a_search_within_several_budgets_stands_for_its_points(tmp_path):
    for name, better in (("bops-3bit", 0.0), ("bops-4bit", 0.1)):
        write_certificates(tmp_path / "run" / "points" / name, certificate_set(better=better))
    (tmp_path / "run" / "points" / "bops-5bit").mkdir()
    found = arquant.compare([tmp_path / "run"])
    assert [entry.name for entry in found.entries] == ["bops-3bit", "bops-4bit"]
