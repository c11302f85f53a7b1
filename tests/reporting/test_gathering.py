"""What a report reads from run folders, whole, unfinished, damaged or hostile."""

import csv
import json
import shutil
from dataclasses import replace
from io import StringIO
from itertools import pairwise

import pytest

from arquant.base.errors import ArquantError, FileFormatError, InputError
from arquant.certificates.certificate import CertificateSet, Settings
from arquant.certificates.files import labels_digest
from arquant.commands.main import main
from arquant.quantization.policy import Policy
from arquant.reporting.charts import Series
from arquant.reporting.figures import charts
from arquant.reporting.gathering import gather
from arquant.reporting.html import to_html
from arquant.reporting.result_charts import pareto_front
from arquant.reporting.tables import tables, to_csv
from tests.support.report_runs import candidate, sensitivity, write_certificates, write_front, write_search
from tests.support.some_certificates import SETTINGS, certificate, certificate_set


def figure(report, key):
    return next(chart for chart in charts(report) if chart.key == key)


def test_a_folder_of_certify(tmp_path):
    run = write_certificates(tmp_path / "run", certificate_set())
    report = gather([run])
    (entry,) = report.entries
    assert entry.name == "toy"
    assert entry.certificates is not None
    assert entry.certificates.acr == pytest.approx(certificate_set().acr, abs=1e-7)
    assert entry.refused == ""
    assert not report.gallery
    assert "cannot be read again" in report.gallery_note


def test_a_search_with_controls(tmp_path):
    report = gather([write_search(tmp_path / "run")])
    assert [(entry.name, entry.role) for entry in report.entries] == [
        ("searched (w3a3)", "result"), ("float network", "float"), ("uniform (w2a2)", "uniform"),
    ]  # fmt: skip
    assert [entry.colour for entry in report.entries] == [0, 1, 2]
    assert {(d.first, d.second) for d in report.differences} == {
        ("float network", "searched (w3a3)"),
        ("uniform (w2a2)", "searched (w3a3)"),
    }
    assert report.entries[0].costs.bops == 2e9  # of the journal: the toy network cannot be built
    (search,) = report.searches
    assert [c.outcome for c in search.candidates] == ["scored", "abandoned", "failed", "scored", "repeated"]
    assert search.facts["examined"] == 4
    assert search.facts["seconds"] == pytest.approx(6.0)


def test_every_search_has_its_curve_and_speaks_for_its_own_models_only(tmp_path):
    first, second = write_search(tmp_path / "first"), write_search(tmp_path / "second")
    journal = second / "journal.jsonl"
    journal.write_text(journal.read_text().replace("bops<=3bit", "bops<=2bit") + json.dumps(candidate(5, 0.5)) + "\n")
    alone = write_certificates(tmp_path / "alone", certificate_set())
    report = gather([alone, first, second])
    assert [search.folder for search in report.searches] == [str(first), str(second)]
    assert [entry.search for entry in report.entries if entry.role == "result"] == [None, *report.searches]
    curves = [chart for chart in charts(report) if chart.key.startswith("learning")]
    assert [(chart.key, len(chart.rows)) for chart in curves] == [("learning", 5), ("learning-2", 6)]
    assert all(search.folder in chart.title for chart, search in zip(curves, report.searches, strict=True))
    assert any(str(second / "sensitivity.json") in note for note in report.notes)


def test_a_uniform_control_is_compared_with_its_own_point_only(tmp_path):
    for place, slug in enumerate(("one", "two")):
        point = tmp_path / "run" / "points" / slug
        write_certificates(point, certificate_set(better=0.02 * place))
        write_certificates(point / "controls" / "uniform", certificate_set())
    report = gather([tmp_path / "run"])
    assert {(d.first, d.second) for d in report.differences} == {
        ("uniform one", "toy, one"),
        ("uniform two", "toy, two"),
    }


def test_a_quantized_run_of_ours_has_costs_and_shares(tmp_path):
    from arquant.loading.models import load_model
    from arquant.models.tracing.layers import find_layers
    from arquant.quantization.costs import cost_summary

    layers = find_layers(load_model("resnet20", weights_required=False))
    policy = Policy.uniform(layers, 3)
    policy.save(tmp_path / "policy.json", model=layers.facts())
    (entry,) = gather([tmp_path]).entries
    assert entry.costs.bops == pytest.approx(cost_summary(policy, layers)["gbops"] * 1e9)
    assert sum(layer.bops_share or 0 for layer in entry.layers) == pytest.approx(1)
    assert sum(layer.bytes_share or 0 for layer in entry.layers) == pytest.approx(1)
    assert entry.widths == "w3a3"


def test_costs_are_those_of_the_image_size_that_the_policy_is_for(tmp_path):
    from arquant.loading.models import load_model
    from arquant.models.tracing.layers import find_layers
    from arquant.quantization.costs import cost_summary

    layers = find_layers(load_model("resnet20", weights_required=False, input_shape=(3, 64, 64)))
    policy = Policy.uniform(layers, 3)
    policy.save(tmp_path / "policy.json", model=layers.facts())
    (entry,) = gather([tmp_path]).entries
    assert entry.costs.bops == pytest.approx(cost_summary(policy, layers)["gbops"] * 1e9)


def test_sets_that_are_not_comparable_are_told(tmp_path):
    a = write_certificates(tmp_path / "a", certificate_set())
    b = write_certificates(tmp_path / "b", certificate_set(settings=Settings(0.25, n=1000)))
    (difference,) = gather([a, b]).differences
    assert difference.acr is None
    assert "sigma" in difference.notes[0]
    assert any("sigma" in note for note in gather([a, b]).notes)


def test_an_unfinished_run_is_noted_and_not_shown(tmp_path):
    run = write_search(tmp_path / "run")
    write_certificates(tmp_path / "run" / "controls" / "late", certificate_set(), rows=99)
    report = gather([run])
    assert not any("late" in entry.folder for entry in report.entries)
    assert any("99" in note for note in report.notes)


def test_a_changed_radius_is_found(tmp_path):
    run = write_certificates(tmp_path / "run", certificate_set())
    lines = (run / "certificates.tsv").read_text().splitlines()
    cells = next(line for line in lines[1:] if float(line.split("\t")[3]) > 0).split("\t")
    forged = "\t".join([*cells[:3], "1.9", *cells[4:]])
    (run / "certificates.tsv").write_text("\n".join(lines).replace("\t".join(cells), forged) + "\n")
    report = gather([run])
    (entry,) = report.entries
    assert entry.certificates is None
    assert f"{run}/certificates.tsv is damaged: the radius of image" in entry.refused
    assert report.notes == (entry.refused,)
    assert report.certified == ()
    assert report.judged == (entry,)
    with pytest.raises(FileFormatError, match="is damaged: the radius of image"):
        gather([run / "certificates.tsv"])


def test_a_row_without_votes_or_with_another_label_is_no_evidence(tmp_path):
    found = certificate_set()
    digest = labels_digest((c.idx, c.label) for c in found.certificates)
    run = write_certificates(tmp_path / "run", found, labels_sha256=digest)
    assert gather([run]).certified
    place, honest = next((i, c) for i, c in enumerate(found.certificates) if not c.abstained)
    empty = replace(honest, votes=0, n=0, counts=(), p_lower=None, radius=9.0)
    other = replace(honest, label=honest.label + 1)
    for forged, named in ((empty, f"the n of image {honest.idx} is 0"), (other, "labels or indices are not those")):
        rows = CertificateSet([*found.certificates[:place], forged, *found.certificates[place + 1 :]], found.settings)
        shutil.rmtree(run)
        write_certificates(run, rows, labels_sha256=digest)
        (entry,) = gather([run]).entries
        assert (entry.certificates, named in entry.refused) == (None, True)


def test_runs_under_other_conditions_are_told_apart(tmp_path):
    search = write_search(tmp_path / "run")
    shutil.rmtree(search / "controls" / "float")
    write_certificates(tmp_path / "other", certificate_set(settings=replace(SETTINGS, noise="uniform", sigma=1.0)))
    report = gather([search, tmp_path / "other"])
    assert [(d.first, d.second, d.verdict) for d in report.differences] == [
        ("uniform (w2a2)", "searched (w3a3)", report.differences[0].verdict),
        ("searched (w3a3)", "toy", "not comparable"),
    ]
    assert any("searched" in note and "sigma" in note for note in report.notes)
    assert figure(report, "accuracy").x_label == "radius (ℓ₂ or ℓ₁, units of the pixel range)"
    table, *_ = tables(report)
    assert table.columns[-1] == "certified with"
    assert [row[-1].partition(" (")[0] for row in table.rows] == ["grid noise of σ = 0.5"] * 2 + [
        "uniform noise of σ = 1"
    ]
    alone, *_ = tables(gather([search]))
    assert "certified with" not in alone.columns
    assert alone.caption.endswith("Certified with grid noise of σ = 0.5 (ℓ₂ radii), n = 1,000, α = 0.001.")
    rows = list(csv.DictReader(StringIO(to_csv(report))))
    assert [(row["noise"], row["norm"], row["mode"]) for row in rows][::2] == [
        ("grid", "l2", "select"),
        ("uniform", "l1", "select"),
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"score": {"valuE": 0.3}}, {"score": {"value": float("nan")}}, {"acr": 0.3}, {"within": 3}, {"seconds": {"votes": "x"}},
        {"policy": {"a": "w99a2"}}, {"policy": ["w2a2"]}, {"cost": []}, {"usage": "all"}, {"score": {"value": 0.3, "low": "x"}},
    ],
)  # fmt: skip
def test_a_damaged_candidate_is_noted(tmp_path, change, capsys):
    run = write_search(tmp_path / "run")
    with (run / "journal.jsonl").open("a") as journal:
        journal.write(json.dumps({**candidate(5, 0.3), **change}) + "\n")
    report = gather([run])
    assert any(f"journal.jsonl, line 12, {next(iter(change))}" in note for note in report.notes)
    assert (report.searches, len(report.certified)) == ((), 3)
    assert main(["watch", str(run), "--once"]) == 2
    assert "the line is damaged" in capsys.readouterr().err


def test_no_two_lines_look_alike():
    lines = [Series("", "line", (), (), (), colour=number) for number in range(32)]
    assert len({(line.colour % 8, line.dash) for line in lines}) == 32


@pytest.mark.parametrize("runs", [[], ["missing"], ["."]])
def test_nothing_to_report_is_an_error(tmp_path, monkeypatch, runs):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        gather(runs)


def test_data_that_would_run_code_are_not_loaded(tmp_path, monkeypatch):
    run = write_certificates(tmp_path / "run", certificate_set())
    sidecar = json.loads((run / "certificates.json").read_text())
    sidecar["provenance"]["data"]["name"] = "evil_module:factory"
    sidecar["provenance"]["model"]["name"] = "evil_module:factory"
    (run / "certificates.json").write_text(json.dumps(sidecar))
    (tmp_path / "evil_module.py").write_text("raise SystemExit('code of a file was run')")
    monkeypatch.chdir(tmp_path)
    assert gather([run]).gallery == ()


def test_same_names_are_told_apart(tmp_path):
    first, second = (write_certificates(tmp_path / x / "run", certificate_set()) for x in "ab")
    names = [entry.name for entry in gather([first, second]).entries]
    assert len(set(names)) == 2


def test_charts_of_a_search(tmp_path):
    found = {chart.key: chart for chart in charts(gather([write_search(tmp_path / "run")]))}
    assert list(found) == [
        "outcomes", "differences", "accuracy", "votes", "bits-0", "learning", "sensitivity-w", "sensitivity-a",
    ]  # fmt: skip
    losses = found["sensitivity-a"]
    assert losses.ticks == ("b", "a")
    assert [each.name for each in losses.series] == ["2 bits", "3 bits"]
    assert losses.rows == (("b", "0.300", "-0.020"), ("a", "0.300", "-0.020"))
    assert [len(each.x) for each in found["learning"].series] == [2, 1, 4, 1]
    for chart in found.values():
        assert all(len(row) == len(chart.columns) for row in chart.rows)
        assert all(not each.tips or len(each.tips) == len(each.x) == len(each.y) for each in chart.series)


def test_the_curve_has_every_score_and_counts_shared_candidates_for_every_budget(tmp_path):
    folder, both = write_search(tmp_path / "run"), ["bops<=3bit", "bops<=4bit"]
    dropped = {**candidate(5, 0.1, abandoned={"votes": 0, "fine_tuned": False}), "acr": None}
    with (folder / "journal.jsonl").open("a") as journal:
        for line in (
            dropped,
            candidate(6, 0.9, within=both),
            candidate(7, 0.2, budget=both[1], within=both[1:]),
        ):
            journal.write(json.dumps(line) + "\n")
    (curve,) = (chart for chart in charts(gather([folder])) if chart.key == "learning")
    series = {each.name: each for each in curve.series}
    assert 5.0 in series["dropped early"].x
    assert curve.y_label == "estimated ACR"
    assert series[f"best so far, {both[1]}"].y == (0.9,) * 4, (
        "it was proposed for another budget, and is within this one"
    )


def test_a_folder_with_sensitivities_alone(tmp_path):
    sensitivity().save(tmp_path / "sensitivity.json")
    found = gather([tmp_path])
    assert found.entries == ()
    assert [chart.key for chart in charts(found)] == ["sensitivity-w", "sensitivity-a"]
    assert "Sensitivity of each layer and width: weights" in to_html(found)
    (tmp_path / "sensitivity.json").write_text("{")
    with pytest.raises(InputError, match="holds nothing to report"):
        gather([tmp_path])


def test_the_curve_is_the_certified_accuracy(tmp_path):
    found = certificate_set()
    chart = figure(gather([write_certificates(tmp_path / "run", found)]), "accuracy")
    for x, y in zip(chart.series[0].x, chart.series[0].y, strict=True):
        assert y == found.certified_accuracy(x)
    path = chart.series[0].path
    assert path[0] == (0.0, found.clean_accuracy)
    area = sum((b[0] - a[0]) * a[1] for a, b in pairwise(path))
    assert area == pytest.approx(found.acr, abs=1e-6)  # the area under the curve is ACR


def test_pareto_front():
    assert pareto_front([(1, 1), (2, 0.5), (3, 2), (3, 1.5), (0.5, 0.2)]) == [(0.5, 0.2), (1, 1), (3, 2)]


def write_point(folder, bits, found):
    """A certified network of one layer, whose cost follows from its width."""
    write_certificates(folder, found)
    Policy({"a": f"w{bits}a{bits}"}).save(folder / "policy.json", model={"name": "mine", "macs": {"a": 1000}})
    return folder


@pytest.mark.parametrize(
    "change", [{"sigma": 0.25}, {"n": 2000}, {"alpha": 0.01}, {"noise": "uniform"}, {"images": 30}]
)
def test_a_front_joins_only_what_can_be_compared(tmp_path, change):
    other = {"settings": replace(SETTINGS, **change)} if "images" not in change else change
    runs = [
        write_point(tmp_path / "a", 8, certificate_set(better=0.1)),
        write_point(tmp_path / "b", 2, certificate_set()),
        write_point(tmp_path / "c", 4, certificate_set(**other, better=0.2)),
        write_point(tmp_path / "d", 3, certificate_set(**other, better=0.1)),
    ]
    chart = next(chart for chart in charts(gather(runs)) if chart.key == "pareto")
    costs = [tuple(1e9 * x for x in line.x) for line in chart.series if line.kind == "line"]
    assert costs == [pytest.approx((4000, 64_000)), pytest.approx((9000, 16_000))]
    assert "A dashed line joins the models" in chart.caption
    assert "2 such groups" in chart.caption
    (alone,) = [
        line.name for chart in charts(gather(runs[:3])) if chart.key == "pareto" for line in chart.series
        if line.kind == "line"
    ]  # fmt: skip
    assert alone == "Pareto front, σ = 0.5, n = 1,000, 40 images"


def test_certificates_of_unknown_settings_are_on_no_front(tmp_path):
    runs = [
        write_point(tmp_path / name, bits, certificate_set(better=bits / 50)) for name, bits in (("a", 2), ("b", 4))
    ]
    for run in runs:
        (run / "certificates.json").unlink()
    chart = next(chart for chart in charts(gather(runs)) if chart.key == "pareto")
    assert [each.kind for each in chart.series] == ["points", "points"]
    assert "No line is drawn" in chart.caption


def test_bit_operations_of_a_network_that_is_not_built_come_from_its_recorded_products(tmp_path):
    facts = {"name": "mine:factory", "macs": {"a": 1000, "b": 500}}
    policy = Policy({"a": "w8a8", "b": "w2a3"})
    policy.save(tmp_path / "policy.json", model=facts)
    (entry,) = gather([tmp_path]).entries
    assert entry.costs.bops == 64_000 + 3_000
    assert entry.costs.percent == pytest.approx(100 * 67 / (1.5 * 1024))
    assert [layer.bops_share for layer in entry.layers] == [64 / 67, 3 / 67]
    policy.save(tmp_path / "policy.json", model={**facts, "macs": {"a": 1000, "b": "many"}})
    assert gather([tmp_path]).entries[0].costs.bops is None
    left = {**facts, "macs": {"a": 1000, "b": 500, "c": 10}, "left": ["c"]}
    policy.save(tmp_path / "policy.json", model=left)
    (entry,) = gather([tmp_path]).entries
    assert entry.costs.bops == 64_000 + 3_000 + 10_240
    assert entry.costs.percent == pytest.approx(100 * 77.24 / (1.51 * 1024))


def test_bytes_of_a_network_that_is_not_built_come_from_its_shapes(tmp_path):
    facts = {"name": "mine:factory", "shapes": {"a": [4, 3, 3, 3], "b": [10, 4], "b#qk": []}}
    Policy({"a": "w8a8", "b": "w2a3", "b#qk": "w4a4"}).save(tmp_path / "policy.json", model=facts)
    (entry,) = gather([tmp_path]).entries
    assert entry.costs.weight_bytes == 108 + 10
    assert [layer.bytes_share for layer in entry.layers] == [108 / 118, 10 / 118, 0]
    assert entry.costs.bops is None
    assert entry.widths == "w2a3"


def test_the_float_cost_of_a_network_that_is_not_built_comes_from_a_policy_of_the_same_run(tmp_path):
    write_certificates(tmp_path / "controls" / "float", certificate_set(better=0.1))
    assert gather([tmp_path]).entries[0].costs.bops is None
    facts = {"name": "mine:factory", "macs": {"a": 1000, "b": 500}, "shapes": {"a": [4, 3, 3, 3], "b": [10, 4]}}
    write_certificates(tmp_path, certificate_set())
    Policy({"a": "w8a8", "b": "w2a3"}).save(tmp_path / "policy.json", model=facts)
    quantized, control = gather([tmp_path]).entries
    assert (control.costs.bops, control.costs.percent, control.costs.weight_bytes) == (1024 * 1500, 100, 4 * 148)
    assert quantized.costs.percent == pytest.approx(100 * (quantized.costs.bops or 0) / (control.costs.bops or 1))


def test_a_named_file_that_holds_no_certificates_is_refused(tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("nothing of ours\n")
    with pytest.raises(ArquantError, match=r"notes\.txt"):
        gather([other])


def test_names_say_what_a_model_is(tmp_path):
    policy = Policy({"a": "w8a8", "b": "w3a3", "c": "w2a5", "d": "w8a8"})
    for name in ("x", "y"):
        policy.save(write_certificates(tmp_path / name, certificate_set()) / "policy.json")
    tuned = write_certificates(tmp_path / "tuned", certificate_set())
    (tuned / "training.json").write_text(json.dumps({"model": "toy", "init": "toy:weights", "history": []}))
    first = write_certificates(tmp_path / "first", certificate_set())
    (first / "training.json").write_text(json.dumps({"model": "toy", "init": None, "history": []}))
    report = gather([tmp_path / "x", tmp_path / "y", tuned, first])
    assert [entry.name for entry in report.entries] == [
        "quantized (mixed w2-3, a3-5), x", "quantized (mixed w2-3, a3-5), y", "float network, fine-tuned", "toy",
    ]  # fmt: skip
    assert [entry.role for entry in report.entries] == ["result", "result", "tuned", "result"]


def test_outcomes_count_every_image_once(tmp_path):
    found = certificate_set()
    chart = figure(gather([write_certificates(tmp_path / "run", found)]), "outcomes")
    wrong = sum(not c.correct and not c.abstained for c in found.certificates)
    counts = [int(cell) for cell in chart.rows[0][1:]]
    assert sum(counts) == len(found)
    assert counts[:1] == [round(found.certified_accuracy(0.5) * len(found))]
    assert counts[2:] == [wrong, sum(c.abstained for c in found.certificates)]
    assert wrong > 0
    assert f"{wrong} of {len(found) - counts[3]} (toy)" in chart.caption
    assert [each.high[0] for each in chart.series][-1] == pytest.approx(1)


def test_the_limit_of_n_votes_is_drawn_and_said(tmp_path):
    found = certificate_set()
    limit = SETTINGS.largest_radius
    report = gather([write_certificates(tmp_path / "run", found)])
    chart = figure(report, "accuracy")
    assert [(line.at, line.closed) for line in chart.lines] == [(limit, True)]
    assert chart.series[0].x[-1] > limit
    assert chart.rows[-1] == ("1.25", "not provable with n = 1,000")
    assert f"above {limit:.3f} are not provable with n = 1,000" in chart.caption
    assert "r = 1.25" not in tables(report)[0].columns
    low, high = chart.series[0].low, chart.series[0].high
    assert all(a <= y <= b for a, y, b in zip(low, chart.series[0].y, high, strict=True))


def test_p_a_is_the_share_of_the_right_class(tmp_path):
    rows = [
        certificate(999, idx=0, label=0), certificate(720, idx=1, label=0, klass=1, others={0: 200}.items()),
        certificate(550, idx=2, label=2, klass=2),
    ]  # fmt: skip
    chart = figure(gather([write_certificates(tmp_path / "run", CertificateSet(rows, SETTINGS))]), "votes")
    assert chart.rows[0][1:] == ("66.7%", "33.3%", "33.3%", "33.3%")
    assert [line.at for line in chart.lines] == [0.5]
    assert chart.series[0].y[4] == pytest.approx(1 / 3), "a fifth of its votes were right"


def test_the_winner_is_marked_and_explained(tmp_path):
    report = gather([write_search(tmp_path / "run")])
    (winner,) = report.searches[0].winners
    assert winner.number == 0
    assert "of 2 candidates looked at twice it had the best mean" in winner.why
    assert "(0.375); candidate 3 (w3a3), first at first, came to 0.365" in winner.why
    curve = figure(report, "learning")
    mark = next(each for each in curve.series if each.name == "winner")
    assert (mark.x, mark.colour) == ((0.0,), report.entries[0].colour)
    assert winner.why in curve.caption
    assert all(each.colour < 0 for each in curve.series if each is not mark), "candidates have no model's colour"
    assert curve.series[0].low == pytest.approx((0.3 - 0.0196, 0.4 - 0.0196))


def test_a_search_within_several_budgets_has_its_front_with_uniform_pairs_beside_it(tmp_path):
    report = gather([write_front(tmp_path)])
    front = figure(report, "pareto")
    assert [(each.name, each.kind, len(each.x)) for each in front.series] == [
        ("searched", "points", 2), ("uniform", "points", 2),
        ("searched, by budget", "line", 2), ("uniform, by budget", "line", 2),
    ]  # fmt: skip
    lines = {each.name: each for each in front.series}
    assert lines["searched"].colour == lines["searched, by budget"].colour != lines["uniform"].colour
    seen = figure(report, "candidates-1")
    assert [(each.name, len(each.x)) for each in seen.series] == [("mixed widths", 2), ("uniform pairs", 2)]
    assert [row[0] for row in seen.rows] == ["w2a2", "mixed w2-3, a2-5", "w4a4", "mixed w3-4, a4-5"]
    assert "estimates" in seen.caption


def test_scores_after_longer_fine_tunings_are_told_apart(tmp_path):
    run = write_search(tmp_path / "run")
    lines = (run / "journal.jsonl").read_text().splitlines()
    longer = [json.dumps(candidate(number, value, steps=240)) for number, value in ((5, 0.31), (6, 0.35))]
    ended = json.dumps({"kind": "end", "reason": "7 trials"})
    winner = json.dumps({"kind": "winner", "budget": "bops<=3bit", "number": 6})
    (run / "journal.jsonl").write_text("\n".join([*lines[:6], *longer, ended, winner]) + "\n")
    report = gather([run])
    (search,) = report.searches
    assert search.winners[0].why == "Candidate 6 (w3a3) won: it had the best score of those fine-tuned for 240 steps."
    assert search.leader("bops<=3bit") is search.best_uniform is search.candidates[6]
    curve = figure(report, "learning")
    names = [each.name for each in curve.series]
    assert names[:2] == ["candidates after 60 steps", "candidates after 240 steps"]
    best = next(each for each in curve.series if each.name.startswith("best so far"))
    assert best.path == ((0, 0.3), (3, 0.3), (3, 0.4), (5, 0.4), (5, 0.31), (6, 0.31), (6, 0.35), (6, 0.35))
    assert "the longest decide" in curve.caption
