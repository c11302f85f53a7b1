"""Which engine computes the votes of a classifier, and with what batch.

On CPU, quantized networks and exported files run on OpenVINO. A float network runs on OpenVINO too, unless so many
votes are wanted that it pays to compile it with PyTorch as well and measure which is faster. Other devices: PyTorch.

A choice that was measured may fall differently next time. Whoever resumes a run passes the `engine`, `batch`, `threads`
and `device` of `Engine.describe()` on, as recorded by the first part.
"""

import logging
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import torch

from arquant.base.errors import InputError
from arquant.base.processor import Precision
from arquant.base.registry import registering
from arquant.base.threads import available_cores
from arquant.engines.base import Engine, InputKind, input_kind
from arquant.engines.faithfulness import is_file, is_quantized_file, traced_faithfully
from arquant.engines.guard import guarded
from arquant.engines.probes import Probes
from arquant.engines.torch import TorchEngine
from arquant.models.classifier import Classifier
from arquant.quantization.quantized import QuantizedClassifier

PRECISIONS: tuple[str, ...] = get_args(Precision)
MEASURE_FROM = 1_000_000
"""votes; some minutes of work, against which compiling and measuring take little"""
_PIXELS_PER_BATCH, _SMALLEST, _LARGEST = 1 << 17, 16, 128
_ROUNDS = 3

log = logging.getLogger("arquant")
_measured: dict[tuple[object, ...], str] = {}

Builder = Callable[..., Engine]
"""makes an engine of a classifier from `batch`, `input_kind`, `threads`, `device`, `precision` and `compiled`; raises
InputError where it cannot run the classifier"""
ENGINES: dict[str, Builder] = {}


def register_engine(name: str) -> Callable[[Builder], Builder]:
    """Register a builder of engines under a name, which `--engine` then takes; the last one registered counts."""
    return registering(ENGINES, name)


def make_engine(
    classifier: Classifier,
    *,
    kind: str = "auto",
    batch: int | None = None,
    input_kind: InputKind,
    threads: int | None = None,
    device: str = "auto",
    votes: int = 0,
    precision: Precision = "float32",
    probes: Probes | None = None,
    compiled: bool = True,
    warn: Callable[[str], None] = log.warning,
) -> Engine:
    """Return an engine for the classifier; what was chosen is in its `describe()`.

    Args:
        kind: auto, or the name of a registered engine: torch, openvino, onnxruntime.
        batch: images per batch; by default as many as keep all cores busy in little memory.
        input_kind: what the buffers hold.
        threads: at most this many; by default all cores of this process.
        device: auto, or a PyTorch device; anything but cpu needs torch.
        votes: how many votes will be asked for, if known; from MEASURE_FROM on, `auto` measures float networks.
        precision: float32 or bfloat16, of float networks; the latter is faster where the processor has it.
        probes: of the run that the engine is for; with them it is tested whether it computes one fixed function of one image.
        compiled: PyTorch compiles the network where it can; False repeats votes that were counted without.
        warn: is told why OpenVINO cannot run a model that PyTorch runs instead.
    """
    check_amounts(batch, threads)
    _check_precision(classifier, precision)
    kind = _kind_for(classifier, kind)
    device = resolve_device(device, kind)
    batch = batch or default_batch(classifier.input_shape)
    threads = threads or available_cores()
    fingerprint = classifier.fingerprint()

    def build(kind: str) -> Engine:
        engine = ENGINES[kind](
            classifier, batch=batch, input_kind=input_kind, threads=threads, device=device, precision=precision,
            compiled=compiled,
        )  # fmt: skip
        engine.fingerprint = fingerprint
        return engine

    def admit(engine: Engine) -> Engine:
        if probes is not None:
            _guard(engine, classifier, probes)
        return engine

    if kind != "auto" or device != "cpu":
        return admit(build("torch" if kind == "auto" else kind))
    measured_as = (fingerprint, batch, input_kind, threads, precision) if votes >= MEASURE_FROM else None
    return _automatic(build, admit, measured_as, warn)


@dataclass(frozen=True)
class EngineOptions:
    """The choice of an engine that computes votes; fields as in `make_engine`."""

    engine: str = "auto"
    device: str = "auto"
    batch: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        check_amounts(self.batch, self.threads)

    def make(
        self, classifier: Classifier, noise: str, *, votes: int = 0, probes: Probes | None = None, **changes: Any
    ) -> Engine:
        """Return an engine for a classifier whose weights do not change while it is in use."""
        chosen = {"engine": self.engine, "device": self.device, "batch": self.batch, "threads": self.threads} | changes
        return make_engine(
            classifier,
            kind=chosen["engine"],
            batch=chosen["batch"],
            input_kind=input_kind(noise),
            threads=chosen["threads"],
            device=chosen["device"],
            votes=votes,
            probes=probes,
        )


def _guard(engine: Engine, classifier: Classifier, probes: Probes) -> None:
    try:
        guarded(engine, classifier, probes)
    except BaseException:
        engine.close()
        raise


def _kind_for(classifier: Classifier, kind: str) -> str:
    """Return the kind of engine, which is openvino for a file unless another was asked for; refuse one that cannot be."""
    if kind not in ("auto", *ENGINES):
        raise InputError(f"engine must be one of {', '.join(('auto', *ENGINES))}, got {kind!r}")
    if not is_file(classifier):
        return kind
    if kind == "torch":
        raise InputError(f"{classifier.name} is a file for openvino or onnxruntime; PyTorch cannot run it")
    return "openvino" if kind == "auto" else kind


def _check_precision(classifier: Classifier, precision: str) -> None:
    if precision not in PRECISIONS:
        raise InputError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if precision != "float32" and (isinstance(classifier, QuantizedClassifier) or is_quantized_file(classifier)):
        # it would round what lies between the integer kernels, in whatever engine
        raise InputError(f"model {classifier.name!r} is quantized: its integers need no --precision {precision}")


def check_amounts(batch: int | None, threads: int | None) -> None:
    """Refuse a batch without images, or no threads; None leaves the choice to us."""
    if batch is not None and batch < 1:
        raise InputError(f"the batch must hold at least one image, got {batch}")
    if threads is not None and threads < 1:
        raise InputError(f"threads must be at least 1, got {threads}")


def default_batch(input_shape: tuple[int, int, int]) -> int:
    """128 images of 32x32 or smaller, 16 of 224x224: large enough for the kernels, small enough for the caches."""
    return min(max(_PIXELS_PER_BATCH // (input_shape[1] * input_shape[2]), _SMALLEST), _LARGEST)


def resolve_device(device: str, kind: str = "auto") -> str:
    """Return the device that `auto` means; refuses one that the engine cannot use."""
    if device == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return "cpu" if accelerator is None or kind in ("openvino", "onnxruntime") else str(accelerator)
    try:
        name = str(torch.device(device))
    except RuntimeError as error:
        raise InputError(f"device {device!r} is not known to PyTorch; use auto or cpu") from error
    if name != "cpu" and kind in ("openvino", "onnxruntime"):
        raise InputError(f"engine {kind} runs on cpu, not on {name}; use --engine torch or --device cpu")
    try:
        torch.zeros(1, device=name).cpu()
    except Exception as error:  # each kind of device has its own ways to be absent
        raise InputError(f"device {device!r} cannot be used here: {error}; use auto or cpu") from error
    return name


def _automatic(
    build: Callable[[str], Engine],
    admit: Callable[[Engine], Engine],
    key: tuple[object, ...] | None,
    warn: Callable[[str], None],
) -> Engine:
    """OpenVINO where it can run the model; with a key, under which the outcome is remembered, the faster one if floats."""
    try:
        openvino = admit(build("openvino"))
    except InputError as error:
        engine = admit(build("torch"))
        warn(str(error))
        return engine
    if key is None or openvino.describe()["precision"] not in PRECISIONS:
        return openvino
    if key not in _measured:
        compiled = build("torch")
        _measured[key] = "torch" if faster(compiled, openvino) else "openvino"
        compiled.close()
    if _measured[key] == "openvino":
        return openvino
    openvino.close()
    return admit(build("torch"))


@register_engine("torch")
def _torch(
    classifier: Classifier, *, batch: int, input_kind: InputKind, threads: int, device: str, precision: Precision,
    compiled: bool,
) -> Engine:  # fmt: skip
    return TorchEngine(
        classifier, batch=batch, input_kind=input_kind, device=device, threads=threads, precision=precision,
        compiled=compiled,
    )  # fmt: skip


@register_engine("openvino")
def _openvino(
    classifier: Classifier, *, batch: int, input_kind: InputKind, threads: int, precision: Precision, **_: Any
) -> Engine:
    from arquant.engines.openvino import OpenVinoEngine  # here, since OpenVINO is slow to import

    engine = OpenVinoEngine(classifier, batch=batch, input_kind=input_kind, threads=threads, precision=precision)
    return traced_faithfully(engine, classifier, "openvino")


@register_engine("onnxruntime")
def _onnxruntime(
    classifier: Classifier, *, batch: int, input_kind: InputKind, threads: int, precision: Precision, **_: Any
) -> Engine:
    from arquant.engines.onnxruntime import OnnxRuntimeEngine  # here, since it needs an extra

    if precision != "float32":
        raise InputError(f"engine onnxruntime computes in float32 or integers, not in {precision}")
    engine = OnnxRuntimeEngine(classifier, batch=batch, input_kind=input_kind, threads=threads)
    return traced_faithfully(engine, classifier, "onnxruntime")


def faster(engine: Engine, other: Engine) -> bool:
    """Tell whether `engine` computes more images per second than `other`, in alternating rounds."""
    pairs = [(engine.images_per_second(), other.images_per_second()) for _ in range(_ROUNDS)]
    return statistics.median(first / second for first, second in pairs) > 1
