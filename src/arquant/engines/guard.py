"""Is what an engine computes one fixed function of one image, and the network's own? Only then do its votes count.

A certificate is about one function. A network that looks at the images beside it in a batch, at its row or at earlier calls
is none, and a graph that lost a branch of its network is another. The finished engine is tested at its own batch with the
run's images and noise (`probes`): each probe stands at many rows and beside different companions, and everywhere the logits
must be those that PyTorch gives in eager mode for the image alone. What the network keeps from call to call must not change.
The same is asked again at the end of the run, and some of its votes are (`witness`).

Rounding differs between kernels. Logits of a float network may differ by a fiftieth of their spread. Where rounding can carry
a value over an edge (quantized networks, bfloat16, networks that react to a change in the last digit of a pixel) single rows
may differ by more. A network that draws at random for each image is legitimate; of its logits the means are compared.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from arquant.base.errors import ArquantError, InputError
from arquant.engines.base import BUFFER_TYPES, Engine, GraphEngine
from arquant.engines.faithfulness import UNFAITHFUL, WRONGLY_COMPILED, is_file, is_quantized_file, unlikeness
from arquant.engines.likeness import Rows, differ, scale_of
from arquant.engines.probes import ORDINARY, Layout, Probes, layouts
from arquant.engines.reference import EagerReference, FileReference, Logits
from arquant.engines.witness import Witness
from arquant.models.classifier import Classifier
from arquant.models.network_state import Luck, State, changed, state_of
from arquant.quantization.quantized import QuantizedClassifier

_SAME, _NEAR, _LOOSE = 0.005, 0.02, 0.05
"""differences of logits as shares of their spread: of one call and the next, of two kernels, where rounding is coarse"""
_STRAY = 1 / 16
"""share of the rows that rounding may carry over an edge"""
_STRAYS = 2
"""rows that it may carry however few there are"""
_CLEAR = 0.1
_SAMPLES, _ENOUGH_ROWS, _DEVIATIONS = 32, 8, 6.0
_BATCHES, _RATIO = 12, 3.0
"""batches of one image of a random network, and how many times more than by chance their means may vary"""
_DEPENDENT = (
    "its votes would depend on each other; take what looks across the batch, or at the row, out of its forward pass"
)

Answers = list[tuple[Layout, Logits]]


class NotOneFunction(InputError):
    """A network, or what an engine makes of it, is not one fixed function of one image: nothing it says is a certificate."""


class Guard:
    """Tests one engine with the probes of one run: `begin` before the first vote, `end` after the last."""

    def __init__(self, engine: GraphEngine, classifier: Classifier, probes: Probes) -> None:
        self.engine, self.probes = engine, probes
        self._classifier, self._kind = classifier, str(engine.describe()["engine"])
        self._layouts = layouts(len(probes), engine.batch)
        self._first = -(-len(probes) // engine.batch)
        """how many of the layouts it takes to show all probes once"""
        self._network = engine.network
        self._luck = None if self._network is None else Luck(self._network)
        self._witness = Witness()
        self._refused: NotOneFunction | None = None

    def begin(self) -> None:
        """Test the engine.

        Raises:
            NotOneFunction: it does not compute one fixed function of one image, the network's own; or the network is none.
            InputError: it cannot run the network at its batch.
        """
        if is_file(self._classifier):
            self._eager = None
            self._expected = self._alone(self.probes.images)
        else:
            self._eager = EagerReference(self._classifier, self.engine.input_kind)
            self._eager.logits_of(self.probes.images[:1])  # what it keeps from its first call only is no memory
            self._expected = self._alone(self.probes.images)
            self._kept = self._eager.state_after(self.probes.images[0])
            self._check_memory()
        self._scale = scale_of(self._expected)
        self._drawn = self._samples()
        self._check_engine()

    def saw(self, images: np.ndarray, labels: npt.NDArray[np.int64]) -> None:
        """Take note of a batch of the run and its labels."""
        self._witness.see(images, labels)

    def end(self) -> None:
        """Ask again what was asked in the beginning, and for some votes of the run.

        Raises:
            NotOneFunction: an answer, or what the network keeps, is no longer what it was.
        """
        if self._refused is not None:
            raise self._refused
        if self._eager is not None:
            self._check_memory()
        again = [(layout, self._ask(layout)) for layout in self._layouts[self._first :][:1]]
        again += self._ask_first()
        before = {layout.tobytes(): logits for layout, logits in self._answers}
        if self._drawn:
            self._check_draws(again)
        else:
            apart = [differ(logits, before[layout.tobytes()], self._scale[layout], _SAME) for layout, logits in again]
            if np.mean(apart) > (_STRAY if self._is_loose else 0):
                self._refuse(
                    f"{self._kind} no longer answers as in the beginning for {int(np.sum(apart))} of {np.size(apart)} probes: "
                    "the network remembers earlier calls; take out of its forward pass what changes from call to call"
                )
        self._check_state(self._state, self._present_state())
        self._check_sample(*self._witness.take())

    def answers(self) -> list[int | None]:
        """Return the class of each probe by the reference, None where it is a near thing: equal in each part of a run."""
        second, best = np.sort(self._expected, axis=1)[:, -2:].T
        clear = best - second > _CLEAR * self._scale
        labels = self._expected.argmax(axis=1).tolist()
        return [label if sure and not self._drawn else None for label, sure in zip(labels, clear.tolist(), strict=True)]

    def _refuse(self, reason: str) -> NoReturn:
        self._refused = NotOneFunction(
            f"model {self._classifier.name!r} is not one fixed function of one image: {reason}"
        )
        raise self._refused

    # the network by itself

    def _alone(self, images: np.ndarray) -> Logits:
        """Return the reference's logits of images, one at a time."""
        if self._eager is not None:
            return self._eager.logits_of(images)
        alone = FileReference(self._classifier, self.engine)
        try:
            return alone.logits_of(images)
        finally:
            alone.close()

    def _check_memory(self) -> None:
        """Refuse a network that answers otherwise when it is called again, or that keeps something new."""
        if self._eager is None:
            raise AssertionError("a file has no network that could remember")
        images = self.probes.images
        again = self._eager.logits_of(images[::-1])[::-1]
        if differ(again, self._expected, scale_of(self._expected), _SAME).any():
            self._refuse(
                "it answers otherwise when it is called again with the same image; take out of its forward pass what "
                "changes from call to call"
            )
        self._check_state(self._kept, self._eager.state_after(images[0]))

    def _check_state(self, before: State, after: State) -> None:
        if names := changed(before, after):
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            self._refuse(
                f"its forward pass changes {_readable(names[0])}{others} from call to call, so that its answers may change; "
                "keep nothing there in eval mode"
            )

    def _check_sample(self, images: np.ndarray, labels: npt.NDArray[np.int64]) -> None:
        """Refuse votes of the run that are not the reference's, where that is sure."""
        if self._drawn or not len(labels):
            return
        expected, loose = self._alone(images), self._is_loose or self._draws
        second, best = np.sort(expected, axis=1)[:, -2:].T
        clear = best - second > (_CLEAR if loose else _LOOSE) * scale_of(expected)
        wrong = np.flatnonzero((labels != expected.argmax(axis=1)) & clear)
        if len(wrong) > (max(_STRAYS, _STRAY * len(labels)) if loose or self._are_touchy(images[wrong]) else 0):
            self._refuse(
                f"{len(wrong)} of {len(labels)} votes drawn from the run, all clear, are not what the network answers to these "
                f"images alone: it looks at the batch, or was another function for a while; {_DEPENDENT}"
            )

    def _samples(self) -> dict[int, Logits]:
        """Draws of some probes' logits, for a network whose answers are random; none for others."""
        self._draws = self._eager is not None and self._eager.draws(self.probes.images[0])
        if self._eager is None or not self._draws:
            return {}
        drawn = {probe: self._eager.samples(self.probes.images[probe], _SAMPLES) for probe in (0, 1, 2)}
        spread = max(float(np.max(found.std(axis=0)) / self._scale[probe]) for probe, found in drawn.items())
        return drawn if spread > _NEAR else {}

    # the engine

    @property
    def _is_loose(self) -> bool:
        quantized = isinstance(self._classifier, QuantizedClassifier) or is_quantized_file(self._classifier)
        return quantized or self.engine.describe()["precision"] != "float32"

    def _check_engine(self) -> None:
        answers = self._ask_first()
        self._state = self._present_state()
        others = self._ask_all(self._layouts[self._first :])
        self._check_votes(answers)
        again = self._ask_first()
        self._check_state(self._state, self._present_state())
        self._answers = [*answers, *others]
        if self._drawn:
            self._check_shared_draws()
            self._check_draws([*self._answers, *again])
        elif self._is_loose or not self._agrees([*self._answers, *again]):
            self._check_loosely([*self._answers, *again])

    def _ask(self, layout: Layout) -> Logits:
        """Return the engine's logits of a batch."""
        buffer = self.engine.buffer()
        try:
            buffer[:] = self.probes.images[layout]
            with self._may_fail():
                logits = self.engine.logits_of(buffer)
        finally:
            self.engine.release(buffer)
        wanted = (self.engine.batch, self._classifier.num_classes)
        if logits.shape != wanted:
            raise InputError(
                f"{self._kind} gives logits of shape {logits.shape} for model {self._classifier.name!r}, not {wanted}"
            )
        return logits

    def _ask_all(self, layouts: Sequence[Layout]) -> Answers:
        """Return the engine's logits of several batches, as many at once as it has workers."""
        with ThreadPoolExecutor(self.engine.workers) as pool:
            return list(zip(layouts, pool.map(self._ask, layouts), strict=True))

    def _ask_first(self) -> Answers:
        """Return the engine's logits of all probes, with the luck of the first time."""
        with contextlib.nullcontext() if self._luck is None else self._luck.again():
            return [(layout, self._ask(layout)) for layout in self._layouts[: self._first]]

    def _present_state(self) -> State:
        return {} if self._network is None else state_of(self._network)

    @contextlib.contextmanager
    def _may_fail(self) -> Iterator[None]:
        try:
            yield
        except ArquantError:
            raise
        except Exception as error:  # a user's network, and each engine, may raise anything
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise InputError(
                f"{self._kind} cannot run model {self._classifier.name!r} in batches of {self.engine.batch} images: {reason}"
            ) from error

    def _check_votes(self, answers: Answers) -> None:
        """Refuse labels, by each of the engine's workers, that are not those of its logits."""
        if self._drawn:
            return
        for layout, logits in answers:
            second, best = np.sort(logits, axis=1)[:, -2:].T
            clear = best - second > _LOOSE * self._scale[layout]
            for labels in self._votes(layout):
                wrong = int((labels != logits.argmax(axis=1))[clear].sum())
                if wrong > (_STRAY * self.engine.batch if self._is_loose else 0):
                    self._refuse(f"{self._kind} votes otherwise than by its logits for {wrong} of {clear.sum()} images")

    def _votes(self, layout: Layout) -> list[npt.NDArray[np.int64]]:
        """Return the engine's labels of one batch, as often as it has workers, all at once."""
        try:
            for _ in range(self.engine.workers):
                buffer = self.engine.buffer()
                buffer[:] = self.probes.images[layout]
                self.engine.submit(buffer)
            with self._may_fail():
                return [self.engine.collect() for _ in range(self.engine.workers)]
        finally:
            self.engine.drop()

    def _agrees(self, answers: Answers) -> bool:
        """Tell whether all logits are the reference's; False also where rounding can explain that some are not."""
        apart = [differ(logits, self._expected[layout], self._scale[layout], _NEAR) for layout, logits in answers]
        if not np.any(apart):
            return True
        probes = {int(probe) for (layout, _), rows in zip(answers, apart, strict=True) for probe in layout[rows]}
        if not self._are_touchy(self.probes.images[sorted(probes)]):
            self._refuse_difference(answers, apart)
        return False

    def _are_touchy(self, images: np.ndarray) -> bool:
        """Tell whether a change in the last digit of its pixels changes the answer to each of some images."""
        if self._eager is None:
            return False
        for image in images:
            nudged, expected = self._eager.nudged(image, 4), self._eager.logits_of(image[None])
            scale = np.full(len(nudged), np.maximum(scale_of(expected), 0.1 * np.median(self._scale[:ORDINARY])))
            if not differ(nudged, expected[[0] * len(nudged)], scale, _SAME).any():
                return False
        return True

    def _check_loosely(self, answers: Answers) -> None:
        """Refuse rows that differ more often than rounding makes them, and typical logits that are not the reference's."""
        typical = self._typical(answers)
        apart = np.array([differ(logits, typical[layout], self._scale[layout], _LOOSE) for layout, logits in answers])
        by_row = apart.mean(axis=0).max() > 0.5 and self.engine.batch > 1
        if apart.mean() > _STRAY or by_row or apart.mean(axis=1).max() > max(0.25, 1 / self.engine.batch):
            self._refuse_difference(answers, list(apart))
        labels, name = typical.argmax(axis=1)[None], self._classifier.name
        if wrong := unlikeness(labels, typical, self._expected, name=name, ties=1):
            self._refuse(f"{self._kind} {wrong}: {self._advice()}")

    def _typical(self, answers: Answers) -> Logits:
        """Return the median of each probe's logits over all rows that it has stood at."""
        where, logits = (
            np.concatenate([layout for layout, _ in answers]),
            np.concatenate([found for _, found in answers]),
        )
        return np.stack([np.median(logits[where == probe], axis=0) for probe in range(len(self.probes))])

    def _refuse_difference(self, answers: Answers, apart: Sequence[Rows]) -> NoReturn:
        typical = self._typical(answers)
        moved = [differ(logits, typical[layout], self._scale[layout], _NEAR) for layout, logits in answers]
        batch = self.engine.batch
        if np.any(moved) and batch > 1:
            row = int(np.argmax(np.sum(moved, axis=0)))
            self._refuse(
                f"{self._kind} answers otherwise for the same image at other rows of a batch of {batch}, or beside others "
                f"(in row {row}, for one): {_DEPENDENT}"
            )
        rows, total = int(np.sum(apart)), int(np.size(apart))
        if self._kind == "torch":
            self._refuse(
                f"in batches of {batch} it answers otherwise than for one image alone, at {rows} of {total} rows: {_DEPENDENT}"
            )
        self._refuse(
            f"{self._kind} computes other logits than the network alone, at {rows} of {total} rows: {self._advice()}"
        )

    def _advice(self) -> str:
        return WRONGLY_COMPILED if is_file(self._classifier) else UNFAITHFUL if self._kind != "torch" else _DEPENDENT

    def _check_draws(self, answers: Answers) -> None:
        """Refuse draws that the images of a batch share, and means that are not those of the network alone."""
        for probe, drawn in self._drawn.items():
            near, mean, spread = _LOOSE * self._scale[probe], drawn.mean(axis=0), drawn.std(axis=0)
            for layout, logits in answers:
                rows = logits[layout == probe]
                if len(rows) < _ENOUGH_ROWS:
                    continue
                found = rows.std(axis=0)
                if (found < spread / 4)[spread > near].all():
                    self._refuse(
                        f"{self._kind} draws at random once for a whole batch, or not at all; draw for each image"
                    )
                error = np.maximum(found, spread) * np.sqrt(1 / len(rows) + 1 / len(drawn))
                if (np.abs(rows.mean(axis=0) - mean) > _DEVIATIONS * error + near).any():
                    self._refuse(
                        f"{self._kind} gives random answers whose mean is not that for the image alone: {_DEPENDENT}"
                    )

    def _check_shared_draws(self) -> None:
        """Refuse a network whose mean over a batch of equal images varies by more than draws for each image explain."""
        if self.engine.batch < _ENOUGH_ROWS:
            return
        batches = np.stack([self._ask(np.zeros(self.engine.batch, np.int64)) for _ in range(_BATCHES)])
        within, between = batches.std(axis=1).mean(axis=0), batches.mean(axis=1).std(axis=0)
        if (between > _RATIO * within / np.sqrt(self.engine.batch) + _NEAR * self._scale[0]).any():
            self._refuse(f"{self._kind} draws at random for a whole batch at once; draw for each image")


def guarded(engine: Engine, classifier: Classifier, probes: Probes) -> Guard | None:
    """Test an engine of ours before its first vote, unless it has passed with this noise; one that fails is refused.

    Returns:
        The test that it has passed; None for an engine that shows no logits.
    """
    if not isinstance(engine, GraphEngine):
        return None
    if probes.images.shape[1:] != engine.input_shape:
        raise InputError(f"images of shape {probes.images.shape[1:]} do not fit the model's input {engine.input_shape}")
    if probes.images.dtype != BUFFER_TYPES[engine.input_kind]:
        raise InputError(f"an engine for images as {engine.input_kind} cannot vote under {probes.noise.kind} noise")
    known = engine.guard
    if isinstance(known, Guard) and known.probes.noise == probes.noise and engine.fingerprint is not None:
        return known
    engine.guard = guard = Guard(engine, classifier, probes)
    guard.begin()
    return guard


def _readable(path: str) -> str:
    """Return a path without the names of PyTorch's own tables."""
    return re.sub(r"\b(_modules|_buffers|_parameters)\.", "", path).removeprefix("classifier.module").lstrip(".:")
