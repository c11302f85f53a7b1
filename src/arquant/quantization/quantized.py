"""From a float Classifier and a policy to a quantized Classifier, whose policy can be changed in place."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import arquant.quantization.dorefa  # noqa: F401 (registers its quantizer)
from arquant.base.errors import InputError
from arquant.base.progress import Report, Status, silent
from arquant.models.classifier import Classifier, copy_of
from arquant.models.tracing.layer import Layer, Layers
from arquant.models.tracing.layers import find_layers, weight_parameters
from arquant.quantization.calibration import Images, NoisyImages, Operand, Samples, collect, estimate_batchnorm_
from arquant.quantization.clipping import ClipRule, clips
from arquant.quantization.costs import FileBytes
from arquant.quantization.policy import Bits, BitsLike, Policy
from arquant.quantization.quantized_layers import LayerQuantizer, ScopeQuantizer, quantize_layers_
from arquant.quantization.quantizers import QUANTIZERS, TINY, ActivationQuantizer, WeightQuantizer, weight_levels
from arquant.quantization.weight_sharing import shared


@dataclass(frozen=True)
class Grid:
    """An activation as integers `low`..`high` times `scale`, from `clamp(x, low * scale, high * scale)`."""

    scale: float
    low: int
    high: int
    signed: bool


@dataclass(frozen=True, eq=False)
class IntegerLayer:
    """Everything an integer engine needs of one layer.

    Attributes:
        bits: its widths, as an engine computes with them: shared weights are integers of 8 bits.
        input: grid of the input, of Q or of the probabilities.
        weight: int8 in the shape of the weight, or None for matmuls.
        weight_scale: float32 (1,), or (output channels,); the quantized weight is `weight * weight_scale`, per channel.
        other: grid of K or of V for matmuls, else None.
        weight_path: the weight's key in the state-dict of the module; "" if the weight is computed or there is none.
    """

    name: str
    kind: str
    bits: Bits
    input: Grid
    weight: NDArray[np.int8] | None
    weight_scale: NDArray[np.float32] | None
    other: Grid | None
    weight_path: str


class QuantizedClassifier(Classifier):
    """A Classifier whose layers compute on integers, by a policy that `set_policy_` changes in place.

    Widths, clips and steps are tensors of the model, so a compiled model need not be compiled again. Activation ranges
    are static: the answer for an image does not depend on the other images of its batch. It trains like any module: its
    parameters are those of the float model, and the clips (or steps) of its quantizers.
    """

    def __init__(
        self,
        classifier: Classifier,
        layers: Layers,
        *,
        clip: ClipRule = "auto",
        per_channel: bool = False,
        learn: str = "pact",
        statistics: Mapping[Operand, Samples] | None = None,
    ) -> None:
        module = copy_of(classifier.module)
        _check_left(module, layers)
        quantizers = quantize_layers_(module, layers, per_channel=per_channel, learn=learn)
        super().__init__(
            module,
            num_classes=classifier.num_classes,
            input_shape=classifier.input_shape,
            mean=classifier.mean.flatten().tolist(),
            std=classifier.std.flatten().tolist(),
            bounds=classifier.bounds,
            name=classifier.name,
            made_from=classifier,
        )
        self.to(classifier.mean.device)
        self.arch, self.class_names, self.fit = classifier.arch, classifier.class_names, classifier.fit
        self.layers = layers
        self.clip: ClipRule = clip
        self.per_channel = per_channel
        self.learn: str = learn
        self.statistics = dict(statistics or {})
        self._quantizers = quantizers
        self._weight_clips: dict[str, tuple[bytes, dict[int, tuple[Tensor | float, Tensor | None]]]] = {}
        self.eval()

    def quantizer(self, name: str) -> LayerQuantizer:
        """Return the quantizers of the layer called `name`."""
        return self._quantizers[self.layers[name].name]

    @property
    def policy(self) -> Policy:
        """The present widths, in order of execution."""
        pairs = ((layer.name, self.quantizer(layer.name)) for layer in self.layers)
        return Policy({name: Bits(pair.w.bits, pair.a.bits) for name, pair in pairs}, self.layers.facts())

    @property
    def shares_weights(self) -> bool:
        """Tell whether the weights of a layer are 2^w values, of which each has the code."""
        return QUANTIZERS[self.learn].shares_weights

    @property
    def file_cost(self) -> FileBytes:
        """The cost that bounds the file of this model, whatever its widths."""
        return FileBytes(self.per_channel, books=self.shares_weights)

    def set_policy_(self, policy: Policy, report: Report = silent) -> None:
        """Change the widths, with clips chosen anew: of weights from their present values, of inputs from calibration.

        Takes milliseconds where the widths were had before, and triggers no compilation.

        Raises:
            MismatchError: the policy is for another network.
            InputError: the model was loaded from an artifact and has no calibration statistics.
        """
        policy.check(self.layers)
        if not self.statistics:
            raise InputError(
                f"model {self.name!r} carries no calibration statistics; quantize the float model by the new policy"
            )
        weights = self.float_weights()
        for number, layer in enumerate(self.layers, 1):
            pair, bits = self.quantizer(layer.name), policy[layer.name]
            self._set_activation(pair.a, bits.a, (layer.name, "a"))
            if isinstance(pair.w, WeightQuantizer):
                clip, codes = self._weight_grid(pair.w, layer.name, weights[layer.name], bits.w)
                pair.w.set_(bits.w, clip)
                if codes is not None:
                    pair.w.share_(codes)
            else:
                self._set_activation(pair.w, bits.w, (layer.name, "w"))
            report(Status("choose clips", number, len(self.layers), "layers"))

    def _set_activation(self, quantizer: ActivationQuantizer, bits: int, operand: Operand) -> None:
        samples = self.statistics[operand]
        clip, low = samples.grid(bits, signed=quantizer.signed, rule=self.clip)
        quantizer.set_(bits, clip, low)

    def _weight_grid(
        self, quantizer: WeightQuantizer, name: str, weight: Tensor, bits: int
    ) -> tuple[Tensor | float, Tensor | None]:
        """Return a weight's clips, and the codes of a shared one; found once for each width while its values are the same."""
        digest = hashlib.sha256(weight.cpu().contiguous().numpy().data).digest()
        known, found = self._weight_clips.get(name, (b"", {}))
        if known != digest:
            found = {}
            self._weight_clips[name] = digest, found
        if bits not in found:
            found[bits] = (self._clips_of(weight, bits), None) if quantizer.codes is None else shared(weight, bits)
        return found[bits]

    def _clips_of(self, weight: Tensor, bits: int) -> Tensor:
        rows = weight.reshape(weight.shape[0] if self.per_channel else 1, -1)
        high = round(weight_levels(bits)[0])
        return rows.abs().mean(1).clamp(min=TINY) if bits == 1 else clips(rows, -high, high, rule=self.clip)

    def float_weights(self) -> dict[str, Tensor]:
        """Return the weights before quantization, by layer name, as the layers compute with them."""
        found: dict[str, Tensor] = {}
        computed = False
        for layer in self.layers:
            quantizer = self.quantizer(layer.name).w
            if isinstance(quantizer, WeightQuantizer) and quantizer.own is not None:
                found[layer.name] = quantizer.own.detach()
            elif layer.weight_path:
                found[layer.name] = self.module.get_parameter(layer.weight_path).detach()
            else:
                computed = computed or bool(layer.weight_shape)
        return {**self._seen_weights(), **found} if computed else found

    @torch.no_grad()
    def _seen_weights(self) -> dict[str, Tensor]:
        seen: dict[str, Tensor] = {}
        scopes = [part for part in self.modules() if isinstance(part, ScopeQuantizer)]
        was_training = self.training
        try:
            for scope in scopes:
                scope.seen = seen
            self.eval()(torch.zeros(1, *self.input_shape, device=self.mean.device))
        finally:
            for scope in scopes:
                scope.seen = None
            self.train(was_training)
        return seen

    @torch.no_grad()
    def integer_state(self) -> dict[str, IntegerLayer]:
        """Return every layer as an integer engine, an exporter or a file needs it, in order of execution."""
        weights = self.float_weights()
        return {layer.name: self._integer_layer(layer, weights.get(layer.name)) for layer in self.layers}

    def _integer_layer(self, layer: Layer, weight: Tensor | None) -> IntegerLayer:
        pair = self.quantizer(layer.name)
        integers = scale = other = None
        if isinstance(pair.w, WeightQuantizer):
            assert weight is not None
            multiples, step = pair.w(weight)
            integers = (multiples / pair.w.unit).to(torch.int8).cpu().numpy()
            scale = (step * pair.w.unit).reshape(-1).cpu().numpy()
        else:
            other = _grid(pair.w)
        shares = isinstance(pair.w, WeightQuantizer) and pair.w.codes is not None
        bits = Bits(8 if shares else pair.w.bits, pair.a.bits)
        path = layer.weight_path
        return IntegerLayer(layer.name, layer.kind, bits, _grid(pair.a), integers, scale, other, path)

    def owned_weights(self) -> dict[str, str]:
        """Layer name -> key in the module's state-dict, of weights that are parameters used by that layer alone."""
        paths = {layer.name: layer.weight_path for layer in self.layers if layer.weight_path}
        users = Counter(id(self.module.get_parameter(path)) for path in paths.values())
        return {name: path for name, path in paths.items() if users[id(self.module.get_parameter(path))] == 1}

    @torch.no_grad()
    def unround_(self, classifier: Classifier) -> bool:
        """Take back the weights from before they were rounded, if `classifier` is what this model was quantized from.

        What the model computes stays the same; fine-tuning then starts where the weights were, not where the grid put them.

        Returns:
            whether the classifier's weights round to those of this model; if one does not, nothing is changed.
        """
        theirs = dict(classifier.module.named_parameters())
        mine = {path: self.module.get_parameter(path) for path in self.owned_weights().values()}
        if any(path not in theirs or theirs[path].shape != weight.shape for path, weight in mine.items()):
            return False
        before, rounded = self.fingerprint(), {path: weight.clone() for path, weight in mine.items()}
        for path, weight in mine.items():
            weight.copy_(theirs[path])
        if self.fingerprint() == before:
            return True
        for path, weight in mine.items():
            weight.copy_(rounded[path])
        return False

    def float_state(self) -> dict[str, Tensor]:
        """Return what no quantizer replaces, by its key in the module's state-dict: biases, normalisation, skipped layers.

        Tensors with several names appear once; counters of training steps are left out.
        """
        parts = self.module.named_modules(remove_duplicate=False)
        own = tuple(f"{path}." for path, part in parts if isinstance(part, LayerQuantizer))
        known = {id(parameter) for parameter in weight_parameters(self.module, self.layers)}
        state: dict[str, Tensor] = {}
        for key, value in self.module.state_dict(keep_vars=True).items():
            if id(value) not in known and not key.startswith(own) and not key.endswith("num_batches_tracked"):
                known.add(id(value))
                state[key] = value.detach()
        return state

    def fingerprint(self) -> str:
        """SHA-256 of the function this model computes: integers, scales, float state, structure, bounds, code."""
        spelling = self.spelling()
        digest = hashlib.sha256(self._opening(spelling))
        for layer in self.integer_state().values():
            digest.update(repr((layer.name, layer.bits, layer.input, layer.other)).encode())
            for array in (layer.weight, layer.weight_scale):
                digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        for key, value in {**self.float_state(), "mean": self.mean, "std": self.std}.items():
            digest.update(f"{key}:{value.dtype}:{tuple(value.shape)}:".encode())
            digest.update(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        for fact in self._closing(spelling):
            digest.update(fact)
        return digest.hexdigest()


def quantize(
    classifier: Classifier,
    policy: Policy | BitsLike,
    calibrate: Images,
    *,
    sigma: float,
    clip: ClipRule = "auto",
    per_channel: bool = False,
    learn: str = "pact",
    estimate_bn: bool = False,
    noise: str = "grid",
    images: int = 512,
    batch: int = 128,
    seed: int = 0,
    layers: Layers | None = None,
    report: Report = silent,
) -> QuantizedClassifier:
    """Return a quantized copy of `classifier`; the original is left alone.

    Args:
        policy: widths per layer, or one width (`4`, "w3a4") for all but the first and last, which have 8.
        calibrate: images that the float model is run on, with noise, to choose activation clips: an ImageSet, or uint8
            levels or unit-range floats of shape (N, C, H, W).
        sigma: standard deviation of that noise in units of the pixel range.
        clip: how clips are chosen, see `arquant.quantization.clipping`.
        per_channel: one clip per output channel of each weight.
        learn: what fine-tuning learns, see `arquant.quantization.quantizers`.
        estimate_bn: replace BatchNorm statistics by those of the quantized model on the same noisy images.
        noise: kind of noise.
        images, batch: how many images are used, at most, and at a time.
        layers: of this classifier, if they are known already.
        report: called with the progress of calibration, then of choosing clips.

    Raises:
        InputError: the classifier is quantized.
        MismatchError: the policy is for another network.
    """
    check_float(classifier)
    layers = find_layers(classifier) if layers is None else layers
    wanted = policy if isinstance(policy, Policy) else Policy.uniform(layers, policy)
    wanted.check(layers)
    batches = NoisyImages(calibrate, classifier, sigma=sigma, noise=noise, seed=seed, count=images, batch=batch)
    quantized = QuantizedClassifier(
        classifier,
        layers,
        clip=clip,
        per_channel=per_channel,
        learn=learn,
        statistics=collect(classifier, layers, batches, report),
    )
    quantized.set_policy_(wanted, report)
    if estimate_bn:
        estimate_batchnorm_(quantized, batches)
    return quantized


def check_float(classifier: Classifier) -> None:
    """Refuse a quantized model where a float one is needed, and floats of another precision than ours."""
    if isinstance(classifier, QuantizedClassifier):
        raise InputError(f"model {classifier.name!r} is quantized already; start from the float model")
    for name, parameter in classifier.module.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise InputError(
                f"model {classifier.name!r}: {name} is {kind}; give the network in float32 (model.float())"
            )


def _check_left(module: nn.Module, layers: Layers) -> None:
    """Refuse a weight that one layer has as integers and another in float: a file has it once."""
    replaced = {id(part) for part in weight_parameters(module, layers)}
    for layer in layers.left:
        if any(id(part) in replaced for part in weight_parameters(module, [layer])):
            raise InputError(
                f"{layer.name} is left in float, and its weight is also that of a layer that is not: leave both so, or none"
            )


def _grid(quantizer: ActivationQuantizer) -> Grid:
    step = float(quantizer.step.detach())
    return Grid(step, int(quantizer.low), int(quantizer.high), quantizer.signed)
