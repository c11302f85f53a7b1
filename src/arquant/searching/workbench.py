"""One quantized copy of the float model that takes every policy of a search in turn: set, fine-tune, vote.

Widths and clips are tensors of the model, so nothing is compiled again from candidate to candidate. Every candidate
starts from the float weights and sees the same training images, crops and noise in the same order.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arquant.base.errors import InputError
from arquant.base.progress import Report, silent
from arquant.engines.base import Engine, input_kind
from arquant.engines.choice import EngineOptions, default_batch, resolve_device
from arquant.engines.torch import TorchEngine
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier
from arquant.quantization.calibration import NoisyImages, estimate_batchnorm_
from arquant.quantization.policy import Policy
from arquant.quantization.quantized import QuantizedClassifier
from arquant.training.batches import source_of
from arquant.training.loop import Diverged, Look, train
from arquant.training.recipe import Recipe

Network = dict[str, Tensor]
"""the state-dict of a quantized model: weights, statistics, widths and clips"""

MOST_ANSWERS = 2**26
"""numbers of a teacher that are kept, over all recipes: 256 MiB"""

log = logging.getLogger("arquant")


class Workbench:
    """The quantized model and what it is fine-tuned on.

    Args:
        classifier: the float model: where every candidate starts, and the teacher of distillation.
        quantized: its quantized copy, which this object changes.
        calibrate: the images to fine-tune on.
        statistics: noisy images to estimate BatchNorm's statistics on before fine-tuning; None keeps the float model's.
        compiled: compile the training step (once).
        live: makes the engine that votes as the network does while it changes.
    """

    def __init__(
        self,
        classifier: Classifier,
        quantized: QuantizedClassifier,
        calibrate: ImageSet,
        *,
        noise: str = "grid",
        statistics: NoisyImages | None = None,
        engines: EngineOptions | None = None,
        compiled: bool = True,
        live: Callable[..., Engine] = TorchEngine,
    ) -> None:
        self.classifier = classifier
        # the layout of training, from the start: statistics must not depend on how many candidates came before
        self.quantized = quantized.to(memory_format=quantized.memory_format)  # type: ignore[call-overload]
        self.calibrate = calibrate
        self.noise = noise
        self.engines = engines or EngineOptions()
        self._images, self._labels = source_of(calibrate)
        self.statistics = statistics
        self.compiled = compiled
        self._device = resolve_device(self.engines.device)
        self._start = {name: value.detach().clone() for name, value in classifier.module.state_dict().items()}
        self._make_live = live
        self._live: Engine | None = None
        self._answers: dict[Recipe, dict[int, Tensor]] = {}
        self._warned = False

    def set_(self, policy: Policy) -> None:
        """Put the float weights back, quantized by `policy`, with clips chosen anew."""
        self.quantized.cpu()
        unknown = self.quantized.module.load_state_dict(self._start, strict=False).unexpected_keys
        if unknown:
            raise AssertionError(f"the quantized model lacks {unknown[:3]} of the float model")
        self.quantized.set_policy_(policy)
        if self.statistics is not None:
            estimate_batchnorm_(self.quantized, self.statistics)
        self.quantized.eval()

    def put_(self, network: Mapping[str, Tensor]) -> None:
        """Put in a network that `take` gave: its weights, widths and clips."""
        self.quantized.load_state_dict(network)
        self.quantized.eval()

    def take(self) -> Network:
        """Return a copy of the present network."""
        return {name: value.detach().cpu().clone().contiguous() for name, value in self.quantized.state_dict().items()}

    def finetune_(
        self,
        recipe: Recipe,
        *,
        checkpoint: Path | None = None,
        stage: str = "fine-tune",
        report: Report = silent,
        look: Look | None = None,
    ) -> dict[str, Any]:
        """Fine-tune the present network; returns the record of the run. `look` may end it on the way.

        Raises:
            Diverged: the loss, or a weight, became NaN or infinite.
        """
        record = train(
            self.quantized,
            self._images,
            self._labels,
            recipe,
            teacher=self.classifier if recipe.distill > 0 else None,
            answers=self._answers_for(recipe),
            checkpoint=checkpoint,
            compiled=self.compiled,
            device=self._device,
            stage=stage,
            report=report,
            look=look,
        )
        broken = [name for name, value in self.quantized.named_parameters() if not bool(torch.isfinite(value).all())]
        if broken:
            raise Diverged(f"{broken[0]} became NaN or infinite in fine-tuning; use a smaller --lr")
        return record

    def _answers_for(self, recipe: Recipe) -> dict[int, Tensor] | None:
        """Return the store of the teacher's answers for all candidates of this recipe, whose batches are the same."""
        size = self._answers_of(recipe)
        if recipe not in self._answers:
            if size > MOST_ANSWERS:
                return None
            if size + sum(map(self._answers_of, self._answers)) > MOST_ANSWERS:
                self._answers.clear()
            self._answers[recipe] = {}
        return self._answers[recipe]

    def _answers_of(self, recipe: Recipe) -> int:
        return self.steps(recipe) * recipe.batch * self.classifier.num_classes

    def steps(self, recipe: Recipe) -> int:
        """Return how many optimizer steps a recipe has here."""
        return recipe.steps_on(len(self._images))

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """Give an engine that votes as the present network does, until the network changes.

        OpenVINO takes the integers of the present network; where it cannot run it, PyTorch does, with one engine for all
        networks. Which of them does depends on the present network alone, so that a resumed search chooses alike.
        """
        wanted = "openvino" if self.engines.engine == "auto" else self.engines.engine
        if wanted != "torch" and self._device == "cpu":
            try:
                engine = self.engines.make(self.quantized, self.noise, engine=wanted)
            except InputError as error:
                if self.engines.engine != "auto":
                    raise
                if not self._warned:
                    log.warning("%s", error)
                self._warned = True
            else:
                try:
                    yield engine
                finally:
                    engine.close()
                return
        if self._live is None:
            self._live = self._make_live(
                self.quantized,
                batch=self.engines.batch or default_batch(self.quantized.input_shape),
                input_kind=input_kind(self.noise),
                device=self._device,
                compiled=self.compiled,
                frozen=False,
                threads=self.engines.threads,
            )
        self.quantized.to(self._device)  # `set_` works on the CPU
        yield self._live

    def close(self) -> None:
        """Free the engine."""
        if self._live is not None:
            self._live.close()
            self._live = None
