"""Evaluating candidates: equal policies get equal outcomes whatever came before; NaN is a failure; bad ones are dropped."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from arquant.base.errors import InputError
from arquant.certification.smoothing import Smoothed
from arquant.certification.smoothing_certifier import Smoothing
from arquant.certification.vote_cache import VoteCache, reference_votes
from arquant.engines.base import NO_CLASS
from arquant.engines.choice import ENGINES, EngineOptions
from arquant.engines.torch import TorchEngine
from arquant.quantization.calibration import NoisyImages
from arquant.quantization.policy import Policy
from arquant.quantization.quantized import QuantizedClassifier, quantize
from arquant.searching.candidate import Evaluator
from arquant.searching.journal_lines import Candidate
from arquant.searching.kept_networks import Kept
from arquant.searching.racing import Racing
from arquant.searching.score import find_reward
from arquant.searching.strategy import Proposal
from arquant.searching.workbench import Workbench
from arquant.training.batches import noisy_batch
from arquant.training.loop import Diverged
from arquant.training.recipe import Recipe
from tests.support.small_search import SIGMA, image_set, small_classifier, small_layers

IMAGES, N = image_set(20, 11), 64
RECIPE = Recipe(sigma=SIGMA, steps=3, batch=32, lr=0.02)
TWO, THREE = (Policy.uniform(small_layers(), bits) for bits in (2, 3))


@pytest.fixture(scope="module")
def classifier():
    return small_classifier()


@pytest.fixture(scope="module")
def quantized(classifier):
    return quantize(classifier, 4, image_set(64, 12), sigma=SIGMA)


@pytest.fixture
def bench(classifier, quantized):
    made = Workbench(classifier, quantized, image_set(64, 12), compiled=False, engines=EngineOptions("openvino"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def cache(classifier, tmp_path_factory) -> VoteCache:
    smoothed = Smoothed(classifier, SIGMA, engine="openvino", batch=64)
    made = reference_votes(smoothed, IMAGES, tmp_path_factory.mktemp("cache"), n=2 * N, n0=20)
    smoothed.close()
    return made


@pytest.fixture
def evaluator(bench, cache):
    return Evaluator(bench, IMAGES, cache, Smoothing(SIGMA), find_reward("acr-cv"), n=N, recipe=RECIPE)


def test_equal_policies_have_equal_outcomes_whatever_came_between(evaluator):
    first = evaluator(Proposal(TWO))
    other = evaluator(Proposal(THREE))
    again = evaluator(Proposal(TWO))
    assert (first.votes == again.votes).all()
    assert first.score.value == again.score.value
    assert (first.disagreement, first.engine) == (again.disagreement, again.engine)
    assert all(torch.equal(first.network[name], again.network[name]) for name in first.network)
    assert not (first.votes == other.votes).all()


def test_the_teacher_is_asked_once_for_each_recipe_within_a_limit(bench, classifier, monkeypatch):
    first, second = (replace(RECIPE, distill=1.0, seed=seed) for seed in (0, 1))
    asked = []
    hook = classifier.register_forward_hook(lambda *_: asked.append(1))

    def questions(*recipes):
        asked.clear()
        for recipe in recipes:
            bench.set_(TWO)
            bench.finetune_(recipe)
        return len(asked)

    try:
        assert questions(first, second) == 2 * RECIPE.steps
        assert questions(first, second, first) == 0
        monkeypatch.setattr(
            "arquant.searching.workbench.MOST_ANSWERS", 3 * RECIPE.steps * RECIPE.batch * classifier.num_classes
        )
        third, longest = replace(first, seed=2), replace(first, steps=4 * RECIPE.steps)
        assert questions(third, first, second, third) == RECIPE.steps, "three recipes are kept"
        assert questions(longest, longest) == 8 * RECIPE.steps, "too many to be kept"
        assert questions(first) == 0, "which does not cost the others their place"
        assert questions(replace(first, seed=3), first) == 2 * RECIPE.steps, "a fourth takes the place of all"
    finally:
        hook.remove()


@pytest.mark.parametrize("options", [{}, {"learn": "lsq", "per_channel": True}])
def test_a_fresh_workbench_gives_what_a_used_one_gives(classifier, cache, options):
    """With everything on that could remember: statistics estimated anew, and a teacher."""
    images = image_set(64, 12)
    outcomes = []
    for before in ([], [THREE]):
        statistics = NoisyImages(images, classifier, sigma=SIGMA, count=32)
        made = quantize(classifier, 4, images, sigma=SIGMA, **options)
        bench = Workbench(classifier, made, images, statistics=statistics, compiled=False)
        recipe = replace(RECIPE, distill=0.5)
        evaluator = Evaluator(bench, IMAGES, cache, Smoothing(SIGMA), find_reward("acr"), n=N, recipe=recipe)
        for policy in before:
            evaluator(Proposal(policy))
        outcomes.append(evaluator(Proposal(TWO)))
        bench.close()
    first, second = outcomes
    assert all(torch.equal(first.network[name], second.network[name]) for name in first.network)
    assert (first.votes == second.votes).all()


def test_an_outcome_says_what_was_found_and_how_long_it_took(evaluator):
    outcome = evaluator(Proposal(THREE))
    assert outcome.complete
    assert outcome.votes.shape == (20, N)
    assert set(outcome.seconds) == {"quantize", "finetune", "compile", "votes"}
    line = outcome.line(Candidate(number=7, policy=THREE)).plain()
    assert (line["number"], line["policy"]) == (7, THREE.widths())
    assert line["score"]["n"] == N
    assert line["score"]["estimate"] == "acr-cv"
    assert 0 < line["disagreement"] < 1
    assert line["failure"] is None
    assert line["abandoned"] is None
    reference = evaluator._ballots(outcome.votes).reference_radii().mean()
    assert line["acr_minus_float"]["value"] == pytest.approx(outcome.acr.value - reference)


def test_a_proposal_may_state_its_steps(evaluator, monkeypatch):
    trained = []
    finetune = evaluator.workbench.finetune_

    def counted(recipe, **options):
        trained.append(recipe.steps)
        return finetune(recipe, **options)

    monkeypatch.setattr(evaluator.workbench, "finetune_", counted)
    short, longer = evaluator(Proposal(THREE)), evaluator(Proposal(THREE, 5))
    assert trained == [RECIPE.steps, 5]
    assert not all(torch.equal(short.network[name], longer.network[name]) for name in short.network)


def test_without_a_recipe_nothing_is_fine_tuned(evaluator, monkeypatch):
    monkeypatch.setattr(evaluator.workbench, "finetune_", None)
    evaluator.recipe = None
    outcome = evaluator(Proposal(THREE))
    assert outcome.complete
    assert "finetune" not in outcome.seconds
    with pytest.raises(InputError, match="5 steps"):
        evaluator(Proposal(THREE, 5))


def test_fine_tuning_that_diverges_is_a_failure(bench, evaluator, monkeypatch):
    evaluator.recipe = replace(RECIPE, lr=1e30)
    outcome = evaluator(Proposal(TWO))
    assert outcome.score is None
    assert not outcome.complete
    assert "nan" in outcome.failure
    evaluator.recipe = RECIPE
    assert evaluator(Proposal(TWO)).complete  # and harms nothing that comes after


def test_a_weight_that_is_no_number_is_a_failure(bench, monkeypatch):
    def spoil(model, *args, **kwargs):
        model.module[0].weight.data[0] = torch.inf
        return {"loss": 1.0}

    monkeypatch.setattr("arquant.searching.workbench.train", spoil)
    bench.set_(TWO)
    with pytest.raises(Diverged, match=r"0\.weight"):
        bench.finetune_(RECIPE)


def test_a_network_without_an_answer_is_a_failure(evaluator, monkeypatch):
    class NoAnswers(TorchEngine):
        def labels_of(self, batch):
            return np.full(len(batch), NO_CLASS)

    def no_answers(classifier, *, batch, input_kind, **_):
        return NoAnswers(classifier, batch=batch, input_kind=input_kind, compiled=False)

    with monkeypatch.context() as patch:
        patch.setitem(ENGINES, "openvino", no_answers)
        outcome = evaluator(Proposal(THREE))
        assert (outcome.score, outcome.complete) == (None, False)
        assert "logits are NaN" in outcome.failure
        assert evaluator.look_again(THREE, RECIPE, 8) is None
    assert evaluator(Proposal(THREE)).failure is None


def test_a_clearly_worse_candidate_is_dropped_early(bench, cache):
    racing = Evaluator(
        bench, IMAGES, cache, Smoothing(SIGMA), find_reward("acr-cv"), n=N, recipe=RECIPE, racing=Racing(level=0.05)
    )
    # fine-tuned with an absurd rate, the network is useless but finite
    racing.recipe = replace(RECIPE, lr=20.0, schedule="constant")
    best = np.repeat(IMAGES.labels[:, None], N, axis=1).astype(np.uint8)
    outcome = racing(Proposal(TWO), Kept({}, best))
    assert outcome.race is not None
    assert not outcome.complete
    assert outcome.race.votes == 16
    assert outcome.network is None
    # the score is on the scale of the best one's
    reward = find_reward("acr-cv")
    full = reward.score(racing._ballots(best)).value
    assert outcome.score.value == pytest.approx(full + outcome.race.difference)
    assert outcome.race.line().votes == 16


def test_a_candidate_that_is_as_good_gets_all_its_votes(bench, cache, evaluator):
    votes = evaluator(Proposal(THREE)).votes
    racing = Evaluator(
        bench, IMAGES, cache, Smoothing(SIGMA), find_reward("acr-cv"), n=N, recipe=RECIPE, racing=Racing()
    )
    outcome = racing(Proposal(THREE), Kept({}, votes))
    assert outcome.complete
    assert (outcome.votes == votes).all()


def test_a_look_on_the_way_changes_nothing(bench, cache, evaluator):
    recipe = replace(RECIPE, steps=12)
    evaluator.recipe = recipe
    plain = evaluator(Proposal(THREE))
    assert plain.early is None
    racing = Evaluator(
        bench, IMAGES, cache, Smoothing(SIGMA), find_reward("acr-cv"), n=N, recipe=recipe, racing=Racing()
    )
    looked = racing(Proposal(THREE))
    assert looked.early.shape == (20, 16)
    assert not (looked.early == looked.votes[:, :16]).all()
    assert all(torch.equal(plain.network[name], looked.network[name]) for name in plain.network)
    assert (plain.votes == looked.votes).all()
    again = racing(Proposal(THREE), Kept(looked.network, looked.votes, looked.early))
    assert again.complete


def test_a_clearly_worse_candidate_is_not_fine_tuned_to_the_end(bench, cache, monkeypatch):
    recipe = replace(RECIPE, steps=12, lr=20.0, schedule="constant")
    racing = Evaluator(
        bench, IMAGES, cache, Smoothing(SIGMA), find_reward("acr-cv"), n=N, recipe=recipe, racing=Racing(level=0.05)
    )
    steps = []
    monkeypatch.setattr("arquant.training.loop.noisy_batch", lambda *args: steps.append(args[-1]) or noisy_batch(*args))
    best = np.repeat(IMAGES.labels[:, None], N, axis=1).astype(np.uint8)
    outcome = racing(Proposal(TWO), Kept({}, best, best[:, :16]))
    assert steps == [0, 1, 2, 3]
    assert not outcome.complete
    assert outcome.network is None
    assert outcome.race.line().fine_tuned is False
    assert outcome.acr is None
    full = find_reward("acr-cv").score(racing._ballots(best)).value
    assert outcome.score.value == pytest.approx(full + outcome.race.difference)


def test_a_network_that_was_kept_votes_as_before(bench, evaluator):
    outcome = evaluator(Proposal(TWO))
    evaluator(Proposal(THREE))
    bench.put_(outcome.network)
    assert bench.quantized.policy == TWO
    assert (evaluator.vote("search", N) == outcome.votes).all()
    assert not (evaluator.vote("shortlist", N) == outcome.votes).all()


def test_pytorch_serves_all_candidates_with_one_engine(classifier, quantized, cache):
    bench = Workbench(
        classifier, quantized, image_set(64, 12), compiled=False, engines=EngineOptions("torch", batch=64)
    )
    evaluator = Evaluator(bench, IMAGES, cache, Smoothing(SIGMA), find_reward("acr"), n=N, recipe=RECIPE)
    outcomes = [evaluator(Proposal(policy)) for policy in (TWO, THREE, TWO)]
    assert (outcomes[0].votes == outcomes[2].votes).all()
    assert not (outcomes[0].votes == outcomes[1].votes).all()
    assert outcomes[0].engine == "torch"
    bench.close()


def test_the_one_engine_of_a_gpu_finds_every_network_there(classifier, quantized, monkeypatch):
    """Without fine-tuning nothing else would move a network that was set on the CPU."""
    monkeypatch.setattr("arquant.searching.workbench.resolve_device", lambda _: "cuda")
    places = []

    def live(model, *, device, **_):
        model.to(device)
        return SimpleNamespace(close=lambda: None)

    bench = Workbench(classifier, quantized, image_set(64, 12), compiled=False, live=live)
    monkeypatch.setattr(QuantizedClassifier, "to", lambda self, device: places.append(device))
    monkeypatch.setattr(QuantizedClassifier, "cpu", lambda self: places.append("cpu"))
    for policy in (TWO, THREE):
        bench.set_(policy)
        assert places[-1] == "cpu"
        with bench.engine():
            assert places[-1] == "cuda"
    bench.close()


def test_auto_falls_back_to_pytorch_where_openvino_cannot(classifier, quantized, monkeypatch):
    def fail(*args, **kwargs):
        raise InputError("OpenVINO cannot convert this")

    monkeypatch.setitem(ENGINES, "openvino", fail)
    bench = Workbench(classifier, quantized, image_set(64, 12), compiled=False)
    with bench.engine() as engine:
        assert engine.describe()["engine"] == "torch"
    bench.close()
    strict = Workbench(classifier, quantized, image_set(64, 12), compiled=False, engines=EngineOptions("openvino"))
    with pytest.raises(InputError, match="cannot convert"), strict.engine():
        pass


def test_too_few_images_for_a_batch_are_refused_at_once(bench):
    with pytest.raises(InputError, match="64 training images are fewer than one batch of 65"):
        bench.finetune_(replace(RECIPE, batch=65))
    with pytest.raises(InputError, match="40 training images"):
        bench.finetune_(replace(RECIPE, batch=64, images=40))


def test_a_network_that_openvino_cannot_run_votes_with_pytorch_and_the_next_does_not(
    classifier, quantized, monkeypatch, caplog
):
    bench = Workbench(classifier, quantized, image_set(64, 12), compiled=False)
    own = ENGINES["openvino"]

    def refuse(*_, **__):
        raise InputError("openvino answers otherwise")

    used = []
    for make in (refuse, refuse, own):
        monkeypatch.setitem(ENGINES, "openvino", make)
        with caplog.at_level(logging.WARNING, "arquant"), bench.engine() as engine:
            used.append(engine.describe()["engine"])
    bench.close()
    assert used == ["torch", "torch", "openvino"]
    assert [record.message for record in caplog.records] == ["openvino answers otherwise"]


def test_an_engine_that_fails_in_an_early_look_is_not_taken_for_divergence(bench, cache, monkeypatch):
    racing = Evaluator(
        bench,
        IMAGES,
        cache,
        Smoothing(SIGMA),
        find_reward("acr-cv"),
        n=N,
        recipe=replace(RECIPE, steps=40),
        racing=Racing(),
    )

    def refuse(*_, **__):
        raise InputError("openvino cannot run it")

    monkeypatch.setitem(ENGINES, "openvino", refuse)
    with pytest.raises(InputError, match="openvino cannot run it"):
        racing(Proposal(TWO))
