import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from arquant.engines.base import Engine

SHAPE = (1, 1, 2)


class Echo(Engine):
    """The label of an image is its first value; a batch that starts with a negative one fails."""

    def __init__(self, *, workers: int = 1, kind: Any = "levels", batch: int = 3) -> None:
        super().__init__(batch=batch, input_shape=SHAPE, input_kind=kind, workers=workers)
        self.slow = threading.Event()
        self.slow.set()

    def labels_of(self, batch: np.ndarray) -> npt.NDArray[np.int64]:
        first = int(batch[0, 0, 0, 0])
        if first < 0:
            raise ArithmeticError(f"batch {first}")
        if first == 1:
            self.slow.wait(20)
        return batch[:, 0, 0, 0].astype(np.int64)

    def describe(self) -> dict[str, Any]:
        return {"engine": "echo"}

    @property
    def free(self) -> int:
        return len(self._free)


@pytest.fixture
def engine() -> Iterator[Echo]:
    echo = Echo(workers=2)
    yield echo
    echo.close()


def send(engine: Engine, value: int) -> None:
    buffer = engine.buffer()
    buffer[:] = value
    engine.submit(buffer)


def test_labels_come_back_in_the_order_of_submission(engine: Echo) -> None:
    engine.slow.clear()
    send(engine, 1)
    send(engine, 2)
    send(engine, 3)
    assert engine.in_flight == engine.depth == 3
    engine.slow.set()
    assert [engine.collect().tolist() for _ in range(3)] == [[1] * 3, [2] * 3, [3] * 3]
    assert engine.in_flight == 0


@pytest.mark.parametrize("workers", [1, 3])
def test_memory_is_a_fixed_number_of_buffers(workers: int) -> None:
    engine = Echo(workers=workers)
    seen = set()
    for value in range(100):
        buffer = engine.buffer()
        seen.add(id(buffer))
        buffer[:] = value
        engine.submit(buffer)
        if engine.in_flight == engine.depth:
            engine.collect()
    engine.drop()
    assert len(seen) == engine.free == engine.depth + 1 == workers + 2
    engine.close()


@pytest.mark.parametrize(("kind", "dtype"), [("levels", np.int16), ("unit", np.float32)])
def test_buffers_hold_what_the_noise_writes(kind: str, dtype: type) -> None:
    engine = Echo(kind=kind, batch=5)
    assert (engine.buffer().dtype, engine.buffer().shape) == (dtype, (5, *SHAPE))
    engine.close()


def test_a_failed_batch_raises_where_it_is_collected_and_gives_its_buffer_back(engine: Echo) -> None:
    send(engine, -1)
    send(engine, 2)
    with pytest.raises(ArithmeticError, match="batch -1"):
        engine.collect()
    assert engine.collect().tolist() == [2, 2, 2]
    assert engine.free == engine.depth + 1


def test_dropped_batches_leave_nothing_behind(engine: Echo) -> None:
    for value in (5, -1, -2):
        send(engine, value)
    engine.drop()
    assert (engine.in_flight, engine.free) == (0, engine.depth + 1)
    send(engine, 6)
    assert engine.collect().tolist() == [6, 6, 6]


def test_a_batch_that_has_not_begun_is_not_computed_when_dropped() -> None:
    engine = Echo(workers=1)
    computed: list[int] = []
    labels_of = engine.labels_of
    engine.labels_of = lambda batch: computed.append(int(batch[0, 0, 0, 0])) or labels_of(batch)  # type: ignore[method-assign,func-returns-value]
    engine.slow.clear()
    send(engine, 1)
    send(engine, 2)
    threading.Timer(0.2, engine.slow.set).start()
    engine.drop()
    engine.close()
    assert 2 not in computed


def test_throughput_is_measured_without_a_trace(engine: Echo) -> None:
    assert engine.images_per_second(0.0) > 0
    assert engine.images_per_second(0.01) > 0
    assert (engine.in_flight, engine.free) == (0, engine.depth + 1)


def test_throughput_of_a_failing_engine_leaves_it_usable(engine: Echo) -> None:
    for buffer in engine._free:
        buffer[:] = -3
    with pytest.raises(ArithmeticError):
        engine.images_per_second(0.01)
    assert (engine.in_flight, engine.free) == (0, engine.depth + 1)
    send(engine, 4)
    assert engine.collect().tolist() == [4, 4, 4]


def test_a_closed_engine_takes_no_more_work() -> None:
    engine = Echo()
    engine.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        send(engine, 1)
