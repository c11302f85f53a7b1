"""TensorBoard logs of training and of searches; needs the extra `tensorboard`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arquant.base.errors import MissingExtraError
from arquant.base.progress import Report, Status


@contextmanager
def tensorboard_log(folder: str | Path, report: Report) -> Iterator[Report]:
    """Return a report function that also writes every status' values to event files, as `stage/name` by step.

    A run that is resumed adds a file to the same folder; TensorBoard shows them as one.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError("tensorboard", "tensorboard") from error
    writer = SummaryWriter(str(folder))

    def log(status: Status) -> None:
        for name, value in status.values.items():
            writer.add_scalar(f"{status.stage}/{name}", value, status.step)
        report(status)

    try:
        yield log
    finally:
        writer.close()
