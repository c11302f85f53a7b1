import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arquant.base.errors import InputError
from arquant.base.processor import Precision
from arquant.certificates.adaptive import Adaptive
from arquant.certificates.certificate import ABSTAIN, Certificate, Settings
from arquant.certification.certify_work import CertifyWork, Started
from arquant.certification.smoothing import Smoothed
from arquant.images.imageset import ImageSet
from arquant.noise.source import CHUNK
from tests.support.closed_forms import copies, half_space, smoothed

SIGMA = 0.5
FIXED = Settings(sigma=SIGMA, noise="grid", n0=20, n=150, alpha=0.01)
ADAPTIVE = replace(FIXED, n=1000, adaptive=Adaptive(tolerance=0.1))
LABEL = replace(FIXED, mode="label")


def model(*, batch: int = 32, seed: int = 0, noise: str = "grid", fail: int | None = None) -> Smoothed:
    """Class 0 where the first of two pixels, with noise, is brighter than 0.4; the engine fails at call `fail`."""
    calls = 0
    rule = half_space(0.4)

    def counted(z: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls == fail:
            raise ArithmeticError("the engine fails")
        return rule(z)

    return smoothed(counted, SIGMA, noise=noise, batch=batch, seed=seed)


def greys(levels: Sequence[int], labels: Sequence[int] | None = None) -> ImageSet:
    """Images of one grey level each, with indices 5, 15, 25, ..."""
    images = np.repeat(np.array(levels, np.uint8).reshape(-1, 1, 1, 1), 2, axis=3)
    truth = np.zeros(len(levels), np.int64) if labels is None else np.array(labels, np.int64)
    return ImageSet(images, truth, 5 + 10 * np.arange(len(levels), dtype=np.int64), "greys", 2)


MIXED = greys([255, 110, 0, 150, 102, 240, 60, 200])


def outcome(certificate: Certificate) -> Certificate:
    """A certificate without its time."""
    return replace(certificate, seconds=0.0)


def outcomes(certificates: Sequence[Certificate]) -> list[Certificate]:
    return [outcome(certificate) for certificate in certificates]


def test_counts_are_those_of_the_addressed_noise() -> None:
    smoothed_model = model()
    source = smoothed_model.source("search")
    counts = smoothed_model.count(MIXED, 100, "search")
    for row, (image, index) in enumerate(zip(MIXED.images, MIXED.indices, strict=True)):
        noise = np.concatenate([source.integers(int(index), chunk) for chunk in range(2)])[:100]
        zeros = int((noise[:, 0, 0, 0] + int(image[0, 0, 0]) > 0.4 * 255).sum())
        assert counts[row].tolist() == [zeros, 100 - zeros]


@pytest.mark.parametrize("settings", [FIXED, ADAPTIVE, LABEL], ids=["fixed", "adaptive", "label"])
def test_certificates_come_in_the_order_of_the_images_as_soon_as_known(settings: Settings) -> None:
    told: list[Certificate] = []
    returned = model().certify(MIXED, settings, on_certificate=told.append)
    assert [c.idx for c in told] == MIXED.indices.tolist()
    assert told == returned
    assert any(c.abstained for c in told)
    assert {c.predict for c in told} >= ({0} if settings.mode == "label" else {0, 1})


def test_an_image_that_ends_early_waits_for_those_before_it() -> None:
    # at 0.4 + 1/510 the vote is open to the last; the others are decided at the first look
    images = greys([102, 255, 255, 0])
    used = [c.n for c in model(batch=16).certify(images, ADAPTIVE)]
    assert used[0] == 1000
    assert max(used[1:]) < 1000


def test_label_mode_tries_the_label_and_selects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Smoothed.source
    drawn: list[tuple[str, int]] = []

    def source(self: Smoothed, purpose: str, **options: Any) -> Any:
        made = own(self, purpose, **options)
        add = made.add
        made.add = lambda image, index, *rest: (drawn.append((purpose, index)), add(image, index, *rest))
        return made

    monkeypatch.setattr(Smoothed, "source", source)
    images = greys([255, 0, 255, 0], labels=[0, 0, 1, 1])
    certificates = model().certify(images, LABEL)
    assert {purpose for purpose, _ in drawn} == {"certify"}
    assert [c.predict for c in certificates] == [0, ABSTAIN, ABSTAIN, 1]
    assert [(c.n0, c.select_votes) for c in certificates] == [(0, 0)] * 4
    assert [c.votes for c in certificates] == [dict(c.counts).get(c.label, 0) for c in certificates]


def test_selection_and_estimation_use_separate_noise() -> None:
    smoothed_model = model()
    select, certify = smoothed_model.source("select"), smoothed_model.source("certify")
    assert not np.array_equal(select.integers(0, 0), certify.integers(0, 0))
    certificate = smoothed_model.certify(greys([140]), FIXED)[0]
    selected = smoothed_model.count(greys([140]), FIXED.n0, "select")[0]
    estimated = smoothed_model.count(greys([140]), FIXED.n, "certify")[0]
    assert certificate.select_votes == selected.max()
    assert dict(certificate.counts) == {k: v for k, v in enumerate(estimated.tolist()) if v}


def test_float_images_equal_their_8_bit_images_under_grid_noise() -> None:
    unit = ImageSet(MIXED.images.astype(np.float32) / 255, MIXED.labels, MIXED.indices, "unit", 2)
    assert outcomes(model().certify(unit, FIXED)) == outcomes(model().certify(MIXED, FIXED))


def test_a_real_perturbation_is_rounded_after_the_noise() -> None:
    # 0.3 levels up: rint(255 (x + e)) moves by one level for some samples only, never by rint(0.3) = 0 for all
    smoothed_model = model()
    source = smoothed_model.source("search")
    here, there = (np.empty((CHUNK, 1, 1, 2), np.int16) for _ in range(2))
    source.add(np.full((1, 1, 2), 100 / 255, np.float32), 0, 0, CHUNK, here)
    source.add(np.full((1, 1, 2), 100.3 / 255, np.float32), 0, 0, CHUNK, there)
    moved = there - here
    assert set(np.unique(moved)) == {0, 1}
    assert moved.mean() == pytest.approx(0.3, abs=0.15)


def snapshots(settings: Settings, images: ImageSet) -> Iterator[tuple[list[Certificate], dict[int, Started]]]:
    """After every few votes of a run: the certificates so far, and the images in progress as they go through a file."""
    done: list[Certificate] = []
    kept: list[tuple[list[Certificate], str]] = []

    def look(votes: int, work: CertifyWork) -> None:
        states = {str(index): state.to_json() for index, state in work.in_progress().items()}
        kept.append((list(done), json.dumps(states)))

    model().certify(images, settings, on_certificate=done.append, on_votes=look)
    for certificates, text in kept:
        yield certificates, {int(i): Started.from_json(state) for i, state in json.loads(text).items()}


@pytest.mark.parametrize("settings", [FIXED, ADAPTIVE, LABEL], ids=["fixed", "adaptive", "label"])
@pytest.mark.parametrize("batch", [32, 50])
def test_a_run_resumed_at_any_point_ends_like_an_uninterrupted_one(settings: Settings, batch: int) -> None:
    whole = outcomes(model().certify(MIXED, settings))
    partial = 0
    for done, started in list(snapshots(settings, MIXED))[::7]:
        finished = {c.idx for c in done}
        left = MIXED.take([row for row, index in enumerate(MIXED.indices) if int(index) not in finished])
        partial += any(state.counted for state in started.values())
        assert all(state.fits(settings, 2) for state in started.values())
        rest = model(batch=batch).certify(left, settings, started=started) if len(left) else []
        assert outcomes([*done, *rest]) == whole
    assert partial, "no snapshot was taken inside an image"


def test_earlier_votes_are_not_changed_and_are_passed_on_until_their_image_opens() -> None:
    _, started = max(snapshots(replace(FIXED, n=300), MIXED), key=lambda pair: sum(s.counted for s in pair[1].values()))
    (index, state), *_ = started.items()
    later = {index: state, int(MIXED.indices[-1]): state}
    before = json.dumps(state.to_json())
    seen: list[set[int]] = []
    model().certify(
        MIXED,
        replace(FIXED, n=300),
        started=later,
        on_votes=lambda votes, work: seen.append(set(work.in_progress())),
    )
    assert json.dumps(state.to_json()) == before
    assert all(int(MIXED.indices[-1]) in images for images in seen[: len(seen) // 2])


votes = st.dictionaries(st.integers(0, 20), st.integers(1, 10**9), max_size=6)


@given(st.builds(Started, st.booleans(), st.integers(0, 10**9), votes, votes, st.floats(0, 1e6)))
def test_votes_in_progress_survive_a_file(state: Started) -> None:
    assert Started.from_json(json.loads(json.dumps(state.to_json()))) == state


@pytest.mark.parametrize(
    "state",
    [
        Started(False, 40, {0: 20}, {0: 39}),  # a vote is missing
        Started(False, 40, {0: 19}, {0: 40}),  # a selecting vote is missing
        Started(False, 150, {0: 20}, {0: 150}),  # nothing is left to do
        Started(False, 200, {0: 20}, {0: 200}),  # more than n
        Started(False, 40, {0: 20}, {0: 20, 2: 20}),  # no such class
        Started(False, 40, {0: 20}, {0: 41, 1: -1}),
        Started(False, 40, {}, {0: 40}),  # nothing was selected
        Started(True, 10, {0: 9}),
        Started(True, 20, {0: 20}),
        Started(True, 10, {0: 10}, {0: 1}),
        Started(False, 40, {0: 20}, {0: 40}, float("nan")),
    ],
)
def test_votes_that_cannot_be_of_this_run_are_refused(state: Started) -> None:
    assert not state.fits(FIXED, 2)
    with pytest.raises(InputError, match="image 5"):
        model().certify(MIXED, FIXED, started={5: state})


def test_an_engine_that_failed_once_is_usable_again() -> None:
    whole = outcomes(model().certify(MIXED, FIXED))
    failing = model(fail=3)
    with pytest.raises(ArithmeticError, match="the engine fails"):
        failing.certify(MIXED, FIXED)
    assert outcomes(failing.certify(MIXED, FIXED)) == whole


def test_memory_does_not_grow_with_n(monkeypatch: pytest.MonkeyPatch) -> None:
    smoothed_model = model(batch=64)
    engine, used = smoothed_model.engine, set()
    labels_of = engine.labels_of
    monkeypatch.setattr(engine, "labels_of", lambda batch: (used.add(id(batch)), labels_of(batch))[1])
    most = 0

    def look(votes: int, work: CertifyWork) -> None:
        nonlocal most
        most = max(most, len(work.open))

    smoothed_model.certify(greys(range(0, 250, 5)), replace(FIXED, n=2000), on_votes=look)
    assert len(used) <= engine.depth + 1
    waiting = -(-(engine.depth + 1) * 64 // FIXED.n0)  # images whose selection fills all batches that may be under way
    assert most <= waiting + 1, "images are opened while earlier ones could use samples"


def test_settings_of_another_smoothed_classifier_are_refused() -> None:
    for other in (replace(FIXED, sigma=0.25), replace(FIXED, noise="gaussian"), replace(FIXED, seed=1)):
        with pytest.raises(InputError, match="another smoothed classifier"):
            model().certify(MIXED, other)


def test_a_classifier_that_has_changed_is_refused() -> None:
    changing = model()
    changing.certify(greys([255]), FIXED)
    changing.classifier.mean += 0.1
    with pytest.raises(InputError, match="changed since it was smoothed"):
        changing.certify(greys([255]), FIXED)


def test_images_of_another_shape_are_refused() -> None:
    images = ImageSet(np.zeros((1, 3, 4, 4), np.uint8), np.zeros(1, np.int64), np.zeros(1, np.int64), "rgb", 2)
    for run in (lambda: model().certify(images, FIXED), lambda: model().predict(images)):
        with pytest.raises(InputError, match=r"\(3, 4, 4\).*\(1, 1, 2\)"):
            run()


def test_predict_is_reproducible_with_a_seed_and_fresh_without() -> None:
    images = copies(np.array([102, 102], np.uint8), 20)

    def predicted(seed: int | None) -> list[int]:
        return [p.votes for p in model().predict(images, n=200, seed=seed)]

    assert predicted(3) == predicted(3)
    assert predicted(3) != predicted(4)
    assert predicted(None) != predicted(None)


def test_predict_tells_the_two_largest_counts_and_the_progress() -> None:
    told: list[int] = []
    first, *_ = predictions = model().predict(MIXED, n=100, alpha=0.01, seed=1, on_votes=told.append)
    assert sum(told) == 100 * len(MIXED)
    assert (first.idx, first.label, first.predict, first.votes + first.runner_up_votes) == (5, 0, 0, 100)
    assert [p.predict for p in predictions if p.p_value > 0.01] == [ABSTAIN] * sum(
        p.p_value > 0.01 for p in predictions
    )


@pytest.mark.parametrize(
    ("n", "alpha", "message"),
    [
        (100, 0.0, "alpha"),
        (100, 1.0, "alpha"),
        (0, 0.001, "n=0"),
        (10, 0.001, "n >= 11"),
        (99.5, 0.001, "n must be a whole number, got 99.5"),
    ],
)
def test_predict_refuses_what_it_cannot_answer(n: float, alpha: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        model().predict(MIXED, n=n, alpha=alpha)  # type: ignore[arg-type]


def test_eleven_unanimous_votes_are_enough_at_alpha_0_001() -> None:
    assert model().predict(greys([255]), n=11, seed=0)[0].n == 11


def test_the_engine_is_made_for_the_votes_that_are_asked_for() -> None:
    ready, asked = model(), []

    def make(classifier: Any, *, votes: int, **_: Any) -> Any:
        asked.append(votes)
        return ready.engine

    lazy = Smoothed(ready.classifier, SIGMA, make=make)
    assert asked == []
    lazy.certify(MIXED, FIXED)
    lazy.predict(MIXED, n=500)
    assert asked == [len(MIXED) * FIXED.n]
    predicting = Smoothed(ready.classifier, SIGMA, make=make)
    predicting.predict(MIXED, n=500)
    assert asked[1:] == [len(MIXED) * 500]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_arithmetic_of_the_engine_is_the_one_asked_for(precision: Precision) -> None:
    asked = Smoothed(model().classifier, SIGMA, engine="torch", precision=precision)
    assert asked.engine.describe()["precision"] == precision
    asked.close()
