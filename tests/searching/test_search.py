"""`arquant.search` on a tiny network: the whole line, resumed after a kill at any stage, and one clear message each."""

import errno
import json
import re
import shutil
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

from arquant.base.errors import InputError, Interrupted, MismatchError
from arquant.base.journal import Journal, read_journal
from arquant.base.options import built
from arquant.base.run_folder import read_config
from arquant.certificates.files import CertificateWriter, read_certificates, read_sidecar
from arquant.certificates.recomputation import recompute
from arquant.certification import smoothing_certifier, vote_cache
from arquant.certification.smoothing_certifier import Smoothing
from arquant.commands.check import check
from arquant.commands.report import report
from arquant.commands.search import search
from arquant.engines.choice import ENGINES
from arquant.models.classifier import Classifier
from arquant.models.tracing.layers import find_layers
from arquant.quantization.artifact import load_artifact as load_any_artifact
from arquant.quantization.artifact import read_provenance, save_artifact
from arquant.quantization.policy import Policy
from arquant.quantization.quantized import quantize
from arquant.searching import delivery, release, workbench
from arquant.searching import run as search_run
from arquant.searching.forecast import Pace
from arquant.searching.history import latest_options
from arquant.searching.journal_lines import read_search_journal
from arquant.searching.kept_networks import KeptNetworks
from arquant.searching.options import TaskOptions
from arquant.searching.strategies import ddpg
from arquant.searching.summary import summary_lines
from arquant.searching.task import prepare
from arquant.training import run as training
from tests.support.small_search import (
    CLASSES,
    SHAPE,
    SHIPPED_ENGINES,
    SIGMA,
    image_set,
    quick_engines,
    small_classifier,
    small_space,
)

DATA = {"calibrate": image_set(96, 2, "calibrate"), "certify": image_set(12, 3, "certify")}
SEARCH = image_set(20, 1, "search")
SMALL = {
    "strategy": "random", "trials": 3, "search_n": 48, "reference_n": 160, "n0": 16, "n": 120, "steps": 2, "final_steps": 4,
    "train_batch": 32, "shortlist": 2, "compiled": False,
}  # fmt: skip


def load_artifact(path):
    return load_any_artifact(path, arch="tests.support.small_search:factory")


class Killed(BaseException):
    """Stands for the signal that ends a process."""


@pytest.fixture(scope="module")
def classifier():
    return small_classifier()


@pytest.fixture(scope="module", autouse=True)
def _quick_engines():
    """One test has the real ones."""
    with quick_engines():
        yield


def run_search(classifier, out, budget="bops<=3bit", **changes):
    return search(classifier, SEARCH, sigma=SIGMA, budget=budget, out=out, **{**DATA, **SMALL, **changes})


@pytest.fixture(scope="module")
def finished(classifier, tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    notes = []
    return out, run_search(classifier, out, note=notes.append), notes


def candidates_of(out):
    _, records = read_journal(out / "journal.jsonl")
    return [record for record in records if record["kind"] == "candidate"]


def result_of(out):
    """All that must not depend on how often a run was killed."""
    lines = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds", None)
    tables = {}
    for path in sorted(out.rglob("certificates.tsv")):
        rows = [line.split("\t") for line in path.read_text().splitlines()]
        time = rows[0].index("time")
        tables[str(path.relative_to(out))] = [row[:time] + row[time + 1 :] for row in rows]
    models = {
        str(path.relative_to(out)): load_artifact(path).fingerprint() for path in sorted(out.rglob("model.safetensors"))
    }
    policies = {str(path.relative_to(out)): path.read_text() for path in sorted(out.rglob("policy.json"))}
    summary = json.loads((out / "summary.json").read_text())
    del summary["search_seconds"], summary["run"]
    for point in summary["points"]:
        del point["folder"]
    return lines, tables, models, policies, summary


def test_a_run_folder_holds_everything(finished):
    out, summary, notes = finished
    names = {path.name for path in out.iterdir()}
    assert names == {
        "config.yaml", "journal.jsonl", "policy.json", "model.safetensors", "certificates.tsv", "certificates.json",
        "provenance.json", "summary.json", "seen.npz", "reference", "kept", "controls", "models", "current.json",
    }  # fmt: skip
    assert {path.name for path in (out / "controls").iterdir()} == {"float", "uniform"}
    assert json.loads((out / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert [note.split()[0] for note in notes[:7]] == [
        "reference", "search", "shortlist", "fine-tune", "certify", "certify", "all",
    ]  # fmt: skip


def test_the_winner_is_within_budget_and_the_model_has_its_policy(finished):
    out, summary, _ = finished
    policy = Policy.load(out / "policy.json")
    assert small_space().contains(policy)
    assert summary["policy"] == {name: str(bits) for name, bits in policy.items()}
    assert load_artifact(out / "model.safetensors").policy == policy
    assert set(summary["cost"]) == {"bops", "bops@paper", "weight_bytes"}
    looks = [(look["number"], look["seed"], look["score"]["value"]) for look in looks_of(out)]
    assert {seed for _, seed, _ in looks} == {1, 2}, "the candidates themselves were fine-tuned with seed 0"
    scores = {number: [value for found, _, value in looks if found == number] for number, _, _ in looks}
    assert policy in [Policy(candidates_of(out)[number]["policy"]) for number in scores]
    assert len(scores) in (2, 3)
    assert all(len(values) == 2 for values in scores.values())


def test_certificates_are_of_the_frozen_model_on_unseen_images(finished):
    out, summary, _ = finished
    certificates = read_certificates(out)
    assert certificates.idx.tolist() == DATA["certify"].indices.tolist()
    facts = read_sidecar(out / "certificates.json")["provenance"]
    assert facts["candidates_examined"] == summary["candidates_examined"] == 3
    for control, examined in (("float", None), ("uniform", 1)):
        sidecar = read_sidecar(out / "controls" / control / "certificates.json")
        assert sidecar["provenance"]["candidates_examined"] == examined
    assert facts["model"]["fingerprint"] == load_artifact(out / "model.safetensors").fingerprint()
    assert recompute(certificates) == []
    assert summary["certified"]["acr"] == pytest.approx(certificates.acr)
    uniform = summary["certified"]["controls"]["uniform"]
    assert uniform["difference"]["acr"]["value"] == pytest.approx(certificates.acr - uniform["acr"])


def test_the_engine_that_ships_certifies(classifier, tmp_path, monkeypatch):
    monkeypatch.setitem(ENGINES, "openvino", SHIPPED_ENGINES["openvino"])
    summary = run_search(classifier, tmp_path / "run", trials=1, shortlist=1, controls=())
    engine = read_sidecar(tmp_path / "run" / "certificates.json")["provenance"]["engine"]
    assert (engine["engine"], engine["precision"]) == ("openvino", "int8")
    assert summary["certified"]["acr"] > 0


def test_a_layer_left_in_float_stays_so_to_the_end(classifier, tmp_path):
    out = tmp_path / "run"
    summary = run_search(classifier, out, "bops<=60%", keep=["3=float"])
    policy, model = Policy.load(out / "policy.json"), load_artifact(out / "model.safetensors")
    assert policy.left == model.policy.left == ("3",)
    assert set(policy) == set(model.policy) == {"0", "6", "11"}
    assert summary["points"][0]["cost"]["bops"] > 32**2 * find_layers(classifier)["3"].macs
    found = {each.check: each for each in check(out, arch=model.arch)}
    assert found["policy"].passed, found
    assert found["budget"].passed, found
    with pytest.raises(InputError, match="cannot be met"):
        run_search(classifier, tmp_path / "other", "bops<=3%", keep=["3=float"])


def test_the_summary_tells_estimates_from_certificates(finished):
    text = "\n".join(summary_lines(finished[1]))
    assert "a score, for ranking only" in text
    assert "images that the search never saw" in text
    assert "3 candidates examined" in text
    for control in ("float", "uniform"):
        assert re.search(rf"found - {control}: ACR \S+ \[.*\n +certified accuracy \S+ \[\S+ \S+\] at 0.0, ", text)


def test_the_same_call_again_computes_nothing(finished, classifier, tmp_path, monkeypatch):
    out = tmp_path / "run"
    shutil.copytree(finished[0], out)

    def never(*args, **kwargs):
        raise AssertionError("nothing is left to train")

    monkeypatch.setattr("arquant.searching.workbench.train", never)
    again = run_search(classifier, out)
    assert result_of(out) == result_of(finished[0])
    assert again["certified"] == finished[1]["certified"]


def test_a_finished_search_goes_on_with_more_trials(classifier, tmp_path):
    out, at_once, notes = tmp_path / "run", tmp_path / "at once", []
    options = {"shortlist": 1, "controls": ("uniform",), "consistency": 0.0}  # the best of five is then not the first
    first = run_search(classifier, out, trials=1, **options)
    first_model = load_artifact(out / "model.safetensors").fingerprint()
    (out / "quantized.safetensors").write_bytes(b"what `finetune` started from")
    (out / "small.onnx").write_bytes(b"what `export --out small.onnx` wrote")
    (out / "exports.json").write_text('{"small.onnx": {"format": "onnx", "sha256": "", "fingerprint": ""}}')
    extended = run_search(classifier, out, trials=5, note=notes.append, **options)
    whole = run_search(classifier, at_once, trials=5, **options)
    assert len(candidates_of(out)) == 5
    assert extended["policy"] == whole["policy"] != first["policy"]
    assert extended["certified"] == whole["certified"]
    assert [load_artifact(place / "model.safetensors").policy for place in (out, at_once)] == [
        Policy(whole["policy"])
    ] * 2
    assert read_sidecar(out / "certificates.json")["provenance"]["candidates_examined"] == 5
    # what the first part ended with is kept
    assert any("shows another model now" in note for note in notes)
    assert f"goes on after 1 candidates that {out}/journal.jsonl holds, about " in notes[0]
    earlier = out / "models" / first_model[:12]
    assert {path.name for path in earlier.iterdir()} >= {"small.onnx", "exports.json", "quantized.safetensors"}
    assert not (out / "quantized.safetensors").exists(), "`finetune` would start from it"
    assert not (out / "small.onnx").exists(), "it is of another model than the one here"
    assert read_certificates(earlier).acr == first["certified"]["acr"]
    assert load_artifact(earlier / "model.safetensors").policy == Policy(first["policy"])
    assert run_search(classifier, out, trials=5, **options)["certified"] == extended["certified"]
    # the same winner of more candidates is not made again, but says how many there were
    once_more = run_search(classifier, out, trials=6, **options)
    assert read_provenance(out / "model.safetensors")["candidates_examined"] == once_more["candidates_examined"] == 6


def test_a_finished_search_can_choose_its_winner_with_more_care(finished, classifier, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished[0], out)
    more = {"shortlist": 3, "shortlist_seeds": 1, "shortlist_steps": 5, "shortlist_n": 60}
    careful = run_search(classifier, out, **more)
    assert candidates_of(out) == candidates_of(finished[0])
    looks = looks_of(out)
    assert [(look["steps"], look["n"]) for look in looks if look not in looks_of(finished[0])] == [(5, 60)] * 3
    assert careful["options"]["shortlist_steps"] == read_config(out)["shortlist_steps"] == 5
    at_once = run_search(classifier, tmp_path / "at once", **more)
    assert [careful[name] for name in ("policy", "certified")] == [at_once[name] for name in ("policy", "certified")]
    assert latest_options(*read_search_journal(out / "journal.jsonl"))["shortlist_steps"] == 5
    # back to the first way: its looks are still there
    notes = []
    again = run_search(classifier, out, note=notes.append)
    assert "the winner is chosen in another way than before: shortlist 3 there, 2 here" in notes[0]
    assert again["certified"] == finished[1]["certified"]
    assert len(looks_of(out)) == len(looks)
    assert again["models_certified"] == 1 + (careful["policy"] != again["policy"])
    with pytest.raises(MismatchError, match=r"recipe\.steps 2 there, 3 here"):
        run_search(classifier, out, steps=3)


@pytest.mark.parametrize("name", ["model.safetensors", "policy.json", "certificates.tsv"])
def test_what_lies_in_the_folder_and_is_not_of_a_search_is_not_replaced(classifier, tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(MismatchError, match=f"holds the {name} of something else"):
        run_search(classifier, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_the_same_steps_are_no_longer_looks_and_fewer_are_refused(finished, classifier, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished[0], out)
    again = run_search(classifier, out, shortlist_steps=SMALL["steps"])
    assert looks_of(out) == looks_of(finished[0])
    assert (again["options"]["shortlist_steps"], again["certified"]) == (None, finished[1]["certified"])
    with pytest.raises(InputError, match="shortlist_steps=1 must be more than the 2 steps"):
        run_search(classifier, out, shortlist_steps=1)


def looks_of(out):
    return [record for record in read_journal(out / "journal.jsonl")[1] if record["kind"] == "shortlist"]


def test_the_summary_of_a_shorter_search_does_not_stand_for_a_longer_one(classifier, tmp_path, monkeypatch):
    out = tmp_path / "run"
    run_search(classifier, out, trials=1, shortlist=1)
    assert (out / "summary.json").exists()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("arquant.searching.study.Study._step", interrupted)
    with pytest.raises(Interrupted):
        run_search(classifier, out, trials=2, shortlist=1)
    assert not (out / "summary.json").exists()


def test_an_extension_keeps_the_schedule_of_its_first_part(classifier, tmp_path):
    out, options = tmp_path / "run", {"strategy": "arq-ddpg", "controls": (), "shortlist": 1}
    run_search(classifier, out, trials=2, **options)
    told: list[str] = []
    run_search(classifier, out, trials=3, note=told.append, **options)
    assert len(candidates_of(out)) == 3
    assert "arq-ddpg keeps the plan that this search began with, of 2 candidates" in told[0]
    assert read_config(out)["strategy_options"]["episodes"] == 2


def test_a_search_of_hours_plans_for_the_candidates_that_they_should_last_for(classifier, tmp_path, monkeypatch):
    out, options = tmp_path / "run", {"strategy": "arq-ddpg", "controls": (), "shortlist": 1}
    hours = 2e-4
    pace = Pace(float_votes=1e9, votes=1e9, steps=40 * SMALL["steps"] / (3600 * hours))
    monkeypatch.setattr(search_run, "measure", lambda *_: pace)
    run_search(classifier, out, trials=None, hours=hours, **options)
    planned = [record["episodes"] for record in read_journal(out / "journal.jsonl")[1] if record["kind"] == "plan"]
    assert planned == [40]
    assert "episodes" not in read_config(out)["strategy_options"]
    plans = []
    propose = ddpg.ArqDdpg._propose
    monkeypatch.setattr(ddpg.ArqDdpg, "_propose", lambda self: (plans.append(self._config.episodes), propose(self))[1])
    more = len(candidates_of(out)) + 1
    run_search(classifier, out, trials=more, **options)
    assert len(candidates_of(out)) == more
    assert set(plans) == {40}, "a search that goes on keeps its plan"


@pytest.mark.parametrize(("trials", "planned"), [(3, 3), (1000, 40), (None, 40)])
def test_the_plan_is_the_smaller_of_all_limits(classifier, tmp_path, monkeypatch, trials, planned):
    hours = 2e-4
    monkeypatch.setattr(search_run, "measure", lambda *_: Pace(1e9, 1e9, steps=40 * SMALL["steps"] / (3600 * hours)))
    out, options = tmp_path / "run", {"strategy": "arq-ddpg", "controls": (), "shortlist": 1}
    with monkeypatch.context() as patched:
        patched.setattr(smoothing_certifier, "reference_votes", _interrupted)
        with pytest.raises(Interrupted):
            run_search(classifier, out, trials=trials, hours=hours, **options)
    records = read_journal(out / "journal.jsonl")[1]
    assert [record["episodes"] for record in records if record["kind"] == "plan"] == [planned]


def test_a_search_that_was_stopped_before_its_plan_takes_the_new_limits(classifier, tmp_path, monkeypatch):
    out, options = tmp_path / "run", {"strategy": "arq-ddpg", "controls": (), "shortlist": 1}
    with monkeypatch.context() as patched:
        patched.setattr(search_run, "measure", _interrupted)
        with pytest.raises(Interrupted):
            run_search(classifier, out, trials=None, hours=1.0, **options)
    run_search(classifier, out, trials=2, **options)
    records = read_journal(out / "journal.jsonl")[1]
    assert [record["episodes"] for record in records if record["kind"] == "plan"] == [2]


def _interrupted(*_, **__):
    raise KeyboardInterrupt


EVENTS = [
    (Journal, "append"),
    (KeptNetworks, "save"),
    (CertificateWriter, "write"),
    (vote_cache._Part, "append"),
    (training, "save_checkpoint"),
    (delivery, "save_artifact"),
    (release, "copy_file"),
    (release, "write_json"),
    (search_run, "write_json"),
]
"""what leaves something on the disk"""


def stop_at(monkeypatch, at, error):
    """Let event number `at` end with an error; an event counts twice, before and after its work."""
    count = 0

    def step():
        nonlocal count
        count += 1
        if count == at:
            raise error

    def between(original):
        def wrapped(*args, **kwargs):
            step()
            result = original(*args, **kwargs)
            step()
            return result

        return wrapped

    for owner, name in EVENTS:
        monkeypatch.setattr(owner, name, between(getattr(owner, name)))


FULL = OSError(errno.ENOSPC, "No space left on device")
QUOTA = OSError(errno.EDQUOT, "Disk quota exceeded")


@pytest.mark.parametrize(
    ("error", "raised", "seed"),
    [(Killed(), Killed, 0), (FULL, InputError, 1), (QUOTA, InputError, 2)],
    ids=["kill", "full disk", "quota"],
)
def test_stopped_at_every_stage_it_ends_with_the_same_result(
    finished, classifier, tmp_path, monkeypatch, error, raised, seed
):
    out, messages = tmp_path / "run", []
    steps = np.random.default_rng(seed)
    while not (out / "summary.json").exists():
        with monkeypatch.context() as patch:
            patch.setattr(vote_cache, "_SAVED_VOTES", 4 * 176)
            stop_at(patch, int(steps.integers(5, 16)), error)
            with suppress(Killed):
                try:
                    run_search(classifier, out)
                except InputError as stopped:
                    messages.append(str(stopped))
    run_search(classifier, out)
    assert result_of(out) == result_of(finished[0])
    assert (len(messages) > 4) == (raised is InputError)
    assert all("no space left" in message and "kept" in message for message in messages)


def test_ctrl_c_ends_with_the_best_so_far_and_the_way_to_resume(finished, classifier, tmp_path, monkeypatch):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_at(patch, 14, KeyboardInterrupt())
        with pytest.raises(Interrupted, match=r"best so far has the score acr-cv .*policy\.json.*same call") as stopped:
            run_search(classifier, out)
    assert stopped.value.exit_code == 130
    assert small_space().contains(Policy.load(out / "policy.json"))
    run_search(classifier, out)
    assert result_of(out) == result_of(finished[0])


def test_ctrl_c_leaves_the_policy_of_a_finished_model(classifier, tmp_path, monkeypatch):
    out, options = tmp_path / "run", {"controls": (), "shortlist": 2}
    with monkeypatch.context() as patch:
        # the shortlist's winner need not be the candidate with the best score
        patch.setattr(search_run, "winner_of", lambda track, study, *_: (study.standings.ranking(track)[1], []))
        patch.setattr(Smoothing, "certify", interrupt)
        with pytest.raises(Interrupted, match="candidate"):
            run_search(classifier, out, **options)
    assert load_artifact(out / "model.safetensors").policy == Policy.load(out / "policy.json")


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


def test_ctrl_c_saves_the_best_of_every_budget(classifier, tmp_path, monkeypatch):
    budgets = ["bops<=2.5bit", "bops<=4bit"]
    monkeypatch.setattr(search_run, "winner_of", interrupt)
    with pytest.raises(Interrupted, match=r"bops<=2.5bit: the best so far.*bops<=4bit: the best so far"):
        run_search(classifier, tmp_path / "run", budgets, strategy="uniform", trials=6)
    for budget in budgets:
        space = small_space(budget)
        assert space.contains(Policy.load(tmp_path / "run" / "points" / space.budget.slug / "policy.json"))


def test_ctrl_c_before_the_loop_says_what_is_kept(finished, classifier, monkeypatch, tmp_path):
    out = tmp_path / "run"
    monkeypatch.setattr(search_run, "workbench_for", interrupt)
    with pytest.raises(Interrupted, match="no candidate was under way"):
        run_search(classifier, out)
    shutil.copytree(finished[0], out, dirs_exist_ok=True)
    count = len(candidates_of(out))
    with pytest.raises(Interrupted, match=rf"the {count} candidates of .*journal.jsonl are kept"):
        run_search(classifier, out)


def test_a_budget_without_a_winner_is_known_before_the_others_are_delivered(classifier, tmp_path, monkeypatch):
    budgets = ["bops<=2.5bit", "bops<=4bit"]

    def winner_of(track, study, *rest):
        if track.name == budgets[1]:
            raise InputError("no candidate within bops<=4bit could be scored")
        return study.standings.ranking(track)[0], []

    monkeypatch.setattr(search_run, "winner_of", winner_of)
    with pytest.raises(InputError, match="could be scored"):
        run_search(classifier, tmp_path / "run", budgets, strategy="uniform", trials=2)
    assert not (tmp_path / "run" / "points").exists()


def test_several_budgets_share_their_evaluations(classifier, tmp_path):
    out = tmp_path / "run"
    budgets = ["bops<=2.5bit", "bops<=4bit"]
    stages: list[str] = []
    summary = run_search(
        classifier, out, budgets, strategy="uniform", trials=6, controls=("uniform",), shortlist=1,
        report=lambda status: stages.append(f"{status.stage}: {status.details.get('best', '')}"),
    )  # fmt: skip
    for budget in budgets:
        assert any(stage.startswith(f"certify the winner, {budget}: ") for stage in stages)
        assert any(f"{budget} 0." in stage for stage in stages), "the best of each budget"
    assert {path.name for path in (out / "points").iterdir()} == {"bops-2.5bit", "bops-4bit"}
    assert [point["budget"] for point in summary["points"]] == budgets
    for point, budget in zip(summary["points"], budgets, strict=True):
        policy = Policy(point["policy"])
        assert small_space(budget).contains(policy)
        assert load_artifact(out / "points" / small_space(budget).budget.slug / "model.safetensors").policy == policy
    policies = [str(record["policy"]) for record in candidates_of(out) if record["repeat_of"] is None]
    assert len(set(policies)) == len(policies)


def test_what_several_budgets_have_in_common_is_delivered_once(classifier, tmp_path, monkeypatch):
    out, budgets, made, certified = tmp_path / "run", ["bops<=3bit", "bops<=3.2bit"], [], []
    finetune, certify = workbench.Workbench.finetune_, Smoothing.certify

    def finetunes(bench, recipe, *, checkpoint=None, **options):
        made.extend([] if checkpoint is None else [bench.quantized.policy])
        return finetune(bench, recipe, checkpoint=checkpoint, **options)

    def certifies(smoothing, model, images, folder, **options):
        certified.append((folder, (folder / "certificates.tsv").exists()))
        return certify(smoothing, model, images, folder, **options)

    monkeypatch.setattr(workbench.Workbench, "finetune_", finetunes)
    monkeypatch.setattr(Smoothing, "certify", certifies)
    monkeypatch.setattr(search_run, "winner_of", lambda track, study, *_: (study.candidates[1], []))
    options = {"strategy": "uniform", "trials": 4, "controls": ("uniform",)}
    summary = run_search(classifier, out, budgets, **options)
    first, second = (point["certified"] for point in summary["points"])
    places = [out / "points" / small_space(budget).budget.slug for budget in budgets]
    places += [place / "controls" / "uniform" for place in places]
    winner, _, control, _ = places
    assert made == [Policy.load(place / "policy.json") for place in (winner, control)]
    releases = [out / "models" / load_artifact(p / "model.safetensors").fingerprint()[:12] for p in (winner, control)]
    assert [place for place, was_there in certified if not was_there] == releases
    assert sorted((out / "models").iterdir()) == sorted(releases)
    assert first["acr"] == second["acr"] == second["controls"]["uniform"]["acr"]
    assert first["controls"]["uniform"]["acr"] != first["acr"], "its control is another policy"
    for place in places:
        examined = 1 if place.name == "uniform" else summary["candidates_examined"]
        assert read_provenance(place / "model.safetensors")["candidates_examined"] == examined
        assert read_config(place)["policy"] == Policy.load(place / "policy.json").widths()
        assert read_config(place)["budget"] == [budgets["3.2" in str(place)]]
    run_search(classifier, out, budgets, **options)
    assert len(made) == 2


def test_a_winner_that_is_uniform_is_its_own_control(classifier, tmp_path):
    options = {"strategy": "pact", "controls": ("uniform",), "final_start": "float", "learn": "lsq"}
    summary = run_search(classifier, tmp_path / "run", "bops<=3bit", **options)
    assert load_artifact(tmp_path / "run" / "model.safetensors").learn == "pact", (
        "PACT learns clips, whatever the study does"
    )
    assert summary["points"][0]["is_uniform"]
    assert summary["ended"] == "all policies of the strategy"
    gap = summary["certified"]["controls"]["uniform"]["difference"]["acr"]
    assert (gap["low"], gap["value"], gap["high"]) == (0, 0, 0)
    again = run_search(classifier, tmp_path / "run", "bops<=3bit", **options)
    assert again["certified"] == summary["certified"]


def test_a_control_was_not_chosen_even_if_it_is_the_winner(classifier, tmp_path, monkeypatch):
    monkeypatch.setattr(search_run, "winner_of", lambda track, study, *_: (study.candidates[0], []))
    run_search(classifier, tmp_path, strategy="uniform", trials=2, controls=("uniform",))
    for place, examined in ((tmp_path, 2), (tmp_path / "controls" / "uniform", 1)):
        assert read_provenance(place / "model.safetensors")["candidates_examined"] == examined
        assert read_sidecar(place / "certificates.json")["provenance"]["candidates_examined"] == examined
    fingerprints = {load_artifact(path).fingerprint() for path in tmp_path.rglob("model.safetensors")}
    assert len(fingerprints) == 1


def test_the_final_model_may_start_from_the_candidate(classifier, tmp_path, finished):
    summary = run_search(classifier, tmp_path / "run", final_start="kept", controls=())
    assert summary["policy"] == finished[1]["policy"]
    files = [out / "model.safetensors" for out in (tmp_path / "run", finished[0])]
    assert load_artifact(files[0]).fingerprint() != load_artifact(files[1]).fingerprint()


def test_one_candidate_that_diverges_does_not_end_the_search(finished, classifier, tmp_path, monkeypatch):
    train = workbench.train
    bad = Policy(candidates_of(finished[0])[1]["policy"])

    def sometimes(model, *args, **kwargs):
        if model.policy == bad:
            raise training.Diverged("the loss became nan before step 2; use a smaller --lr")
        return train(model, *args, **kwargs)

    monkeypatch.setattr("arquant.searching.workbench.train", sometimes)
    summary = run_search(classifier, tmp_path / "run", controls=())
    assert summary["failed"] == 1
    assert "nan" in candidates_of(tmp_path / "run")[1]["failure"]
    assert summary["candidates_examined"] == 3
    assert summary["policy"] != candidates_of(tmp_path / "run")[1]["policy"]


def test_a_rate_at_which_nothing_converges_is_one_clear_message(classifier, tmp_path):
    with pytest.raises(InputError, match=r"first 5 candidates failed.*smaller lr"):
        run_search(classifier, tmp_path / "run", lr=1e30, trials=20)
    assert len(candidates_of(tmp_path / "run")) == 5


def test_a_control_that_diverges_does_not_take_the_winner_along(finished, classifier, tmp_path, monkeypatch):
    out, finetune = tmp_path / "run", workbench.Workbench.finetune_

    def diverges(bench, recipe, *, checkpoint=None, **options):
        if checkpoint is not None and bench.quantized.policy == small_space().uniform(small_space().uniform_pairs[0]):
            raise training.Diverged("the loss became nan")
        return finetune(bench, recipe, checkpoint=checkpoint, **options)

    monkeypatch.setattr(workbench.Workbench, "finetune_", diverges)
    summary = run_search(classifier, out)
    (point,) = summary["points"]
    assert list(point["certified"]["controls"]) == ["float"]
    assert point["certified"]["acr"] == finished[1]["points"][0]["certified"]["acr"]
    lines = [line for line in summary_lines(summary) if "not certified" in line]
    assert len(lines) == 1
    assert "uniform" in lines[0]
    assert "the loss became nan" in lines[0]
    assert json.loads((out / "summary.json").read_text())["points"] == summary["points"]
    assert report(out).path.exists()


def test_a_winner_that_diverges_does_not_take_the_other_budgets_along(classifier, tmp_path, monkeypatch):
    out, budgets, finetune = tmp_path / "run", ["bops<=2.5bit", "bops<=4bit"], workbench.Workbench.finetune_

    def diverges(bench, recipe, *, checkpoint=None, **options):
        if checkpoint is not None and small_space(budgets[0]).contains(bench.quantized.policy):
            raise training.Diverged("the loss became nan")
        return finetune(bench, recipe, checkpoint=checkpoint, **options)

    monkeypatch.setattr(workbench.Workbench, "finetune_", diverges)
    with pytest.raises(training.Diverged, match="full fine-tuning failed: the loss became nan") as refused:
        run_search(classifier, out, budgets, strategy="uniform", trials=4, controls=(), shortlist=1)
    (policy,) = (out / "models").glob("making-*/policy.json")
    assert str(policy) in str(refused.value)
    assert small_space(budgets[0]).contains(Policy.load(policy))
    other = out / "points" / "bops-4bit"
    assert small_space(budgets[1]).contains(load_artifact(other / "model.safetensors").policy)
    assert len(read_certificates(other)) == 12
    assert not (out / "summary.json").exists()


def test_an_unreachable_budget_is_refused_before_anything_is_written(classifier, tmp_path):
    with pytest.raises(InputError, match="cannot be met"):
        run_search(classifier, tmp_path / "run", "bops<=1bit")
    assert not (tmp_path / "run").exists()


class Constant(nn.Module):
    def forward(self, x):
        return x.mean((2, 3)) @ torch.ones(3, CLASSES)


def test_a_model_with_nothing_to_quantize_is_refused(tmp_path):
    model = Classifier(Constant(), num_classes=CLASSES, input_shape=SHAPE)
    with pytest.raises(InputError, match="nothing to quantize"):
        run_search(model, tmp_path / "run")
    two = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES))
    with pytest.raises(InputError, match="nothing to search"):
        run_search(Classifier(two, num_classes=CLASSES, input_shape=SHAPE), tmp_path / "run", "bops<=8bit")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"search_images": 21}, r"21 search images were asked for \(search_images\), search has 20"),
        ({"train_images": 97}, r"97 training images were asked for \(train_images\), there are 96"),
        ({"train_images": 97, "preset": "paper-imagenet", "search_images": 20}, "97 training images were asked for"),
        ({"train_batch": 194}, "96 training images are fewer than one batch of 97"),
        ({"search_n": 161}, "must not exceed reference_n=160"),
        ({"calibrate": None}, "calibrate DATA, or split"),
        ({"certify": SEARCH}, "are the same"),
        ({"strategy": "rondom"}, "random"),
        ({"reward": "arc"}, "acr"),
        ({"preset": "paper"}, "paper-cifar"),
        ({"n": 9}, "cannot certify anything"),
        ({"budget": ["bops<=3bit", "bops <= 3bit"]}, "given twice"),
        ({"budget": []}, "needs a budget"),
        ({"trials": 0}, "trials must be positive"),
        ({"tolerance": 0.1}, "belongs to adaptive"),
        ({"threads": -1}, "threads must be at least 1, got -1"),
        ({"hours": float("inf")}, "hours must be positive and finite"),
        ({"budget": ["bops<=3bit", "bops<=4bit"], "trials": 1}, "1 trials for 2 budgets"),
        ({"reward": "acc@3"}, "the same for every candidate"),
        ({"reward": "acr-signed", "noise": "uniform"}, "defined for Gaussian noise"),
        ({"schedule": "step"}, "the step schedule decays at milestones, and has none"),
        ({"strategy": "ilp"}, "table"),
    ],
)
def test_bad_input_is_one_clear_message_before_anything_is_written(classifier, tmp_path, changes, message):
    with pytest.raises((InputError, MismatchError), match=message):
        run_search(classifier, tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def task_of(classifier, note=print, **changes):
    stated = {
        "model": classifier,
        "data": SEARCH,
        "sigma": SIGMA,
        "budget": "bops<=3bit",
        "search_images": 20,
        **changes,
    }
    return prepare(built(TaskOptions, stated), note)


def test_a_preset_certifies_500_images_unless_others_are_asked_for(classifier):
    data = {**DATA, "certify": image_set(600, 3, "certify")}
    for images, count in ((None, 500), ("first:7", 7)):
        task = task_of(classifier, preset="paper-cifar", images=images, **data)
        assert len(task.roles.certify) == count
        assert task.roles.certify.indices[-1] == (599 if images is None else 6)


def test_a_preset_trains_on_all_images_where_it_wants_more_and_says_so(classifier):
    notes = []
    task = task_of(classifier, notes.append, preset="paper-imagenet", train_batch=32, images="first:5", **DATA)
    assert (task.options.recipe.images, task.options.final_recipe.images) == (96, 0)
    assert notes == ["calibrate has 96 images: training on all of them, where the preset takes 60,000"]


def test_a_model_that_nobody_could_build_again_is_refused_before_the_search(tmp_path):
    nameless = small_classifier()
    nameless.arch, nameless.name = "", "mine"
    with pytest.raises(InputError, match="does not say which network"):
        run_search(nameless, tmp_path / "run")


def test_a_quantized_model_is_refused(classifier, tmp_path):
    quantized = quantize(classifier, 3, DATA["calibrate"], sigma=SIGMA)
    with pytest.raises(InputError, match="quantized already"):
        run_search(quantized, tmp_path / "run")


def test_another_search_in_the_folder_is_refused_and_foreign_files_are_left_alone(finished, classifier, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished[0], out)
    with pytest.raises(MismatchError, match="search_n 48 there, 50 here"):
        run_search(classifier, out, search_n=50)
    with pytest.raises(MismatchError, match="another search"):
        search(classifier, image_set(20, 9, "search"), sigma=SIGMA, budget="bops<=3bit", out=out, **{**DATA, **SMALL})
    assert result_of(out) == result_of(finished[0])


def test_scores_against_other_votes_of_the_float_model_are_not_mixed(finished, classifier, tmp_path, monkeypatch):
    out = tmp_path / "run"
    shutil.copytree(finished[0], out)
    shutil.rmtree(out / "reference")
    run_search(classifier, out)  # made again, the votes are the same
    shutil.rmtree(out / "reference")
    sample_votes = vote_cache.sample_votes

    def by_another_library(*args, **options):
        votes = sample_votes(*args, **options)
        votes[:, 0] = (votes[:, 0] + 1) % CLASSES
        return votes

    monkeypatch.setattr(vote_cache, "sample_votes", by_another_library)
    with pytest.raises(MismatchError, match="scores against other votes"):
        run_search(classifier, out, trials=4)
    assert len(candidates_of(out)) == 3


def changed(path):
    """Another model in place of the one in a file; returns its fingerprint."""
    other = load_artifact(path)
    other.module[0].weight.data *= -1
    save_artifact(path, other, {})
    return load_artifact(path).fingerprint()


def test_a_release_that_something_changed_is_refused(finished, classifier, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished[0], out)
    release = out / "models" / load_artifact(out / "model.safetensors").fingerprint()[:12]
    changed(release / "model.safetensors")
    with pytest.raises(MismatchError, match=f"not the model that this search made.*move {release} away"):
        run_search(classifier, out)
    shutil.rmtree(release)
    run_search(classifier, out)
    assert result_of(out) == result_of(finished[0]), "the copy at the root became the release again"


def test_a_model_that_something_put_into_the_folder_is_kept_and_the_searchs_own_is_back(finished, classifier, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished[0], out)
    other = changed(out / "model.safetensors")
    run_search(classifier, out)
    kept = out / "models" / other[:12]
    assert load_artifact(kept / "model.safetensors").fingerprint() == other
    assert not (kept / "certificates.tsv").exists(), "the certificates beside it were of another model"
    shutil.rmtree(kept)
    assert result_of(out) == result_of(finished[0])


def test_a_release_is_never_written_again(finished, classifier, tmp_path):
    """Not even by a longer search that it wins again, and that has examined more candidates."""
    out = tmp_path / "run"
    shutil.copytree(finished[0], out)

    def files():
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (out / "models").glob("*/*")}

    before = files()
    run_search(classifier, out, trials=4)
    assert len(before) == 10
    assert {path: files()[path] for path in before} == before


def test_a_search_of_an_earlier_version_goes_on(finished, classifier, tmp_path):
    """Its folder has no releases: what lies there becomes one, and nothing is made or certified again."""
    out = tmp_path / "run"
    shutil.copytree(finished[0], out)
    shutil.rmtree(out / "models")
    (out / "current.json").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("arquant.searching.workbench.train", _interrupted)
        patch.setattr("arquant.certificates.files.CertificateWriter.write", _interrupted)
        again = run_search(classifier, out)
    assert again["certified"] == finished[1]["certified"]
    assert result_of(out) == result_of(finished[0])


def test_small_data_have_small_batches(classifier, tmp_path):
    notes = []

    def stop(text):
        notes.append(text)
        raise Killed

    with pytest.raises(Killed):
        run_search(classifier, tmp_path / "run", train_batch=None, note=stop)
    assert notes == ["calibrate has 96 images: training batches of 96"]


def test_a_split_gives_all_roles(classifier, tmp_path):
    data = image_set(160, 21, "all")
    options = {**SMALL, "controls": (), "trials": 1, "shortlist": 1}
    summary = search(
        classifier, data, split=(60, 20, 20), sigma=SIGMA, budget="bops<=3bit", out=tmp_path / "run", **options
    )
    assert summary["certified"]["images"] == 32
    assert summary["estimates"]["score"]["images"] == 32
