import copy
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from arquant.base.errors import InputError, MismatchError
from arquant.models.architectures.resnet_cifar import CifarResNet
from arquant.models.architectures.vit import Block, VisionTransformer
from arquant.models.classifier import CIFAR10_MEAN, CIFAR10_STD, Classifier
from arquant.models.tracing.layers import find_layers
from arquant.quantization.calibration import NoisyImages, collect, estimate_batchnorm_
from arquant.quantization.policy import Bits, Policy
from arquant.quantization.quantized import QuantizedClassifier, quantize
from arquant.training.loop import Recipe, train

SHAPE = (3, 16, 16)
IMAGES = np.random.default_rng(0).integers(0, 256, (24, *SHAPE), dtype=np.uint8)
PIXELS = torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(1))


def wrap(module, **options):
    return Classifier(module, num_classes=10, input_shape=SHAPE, mean=CIFAR10_MEAN, std=CIFAR10_STD, **options).eval()


@pytest.fixture(scope="module")
def resnet():
    torch.manual_seed(0)
    model = wrap(CifarResNet(8), name="resnet8")
    estimate_batchnorm_(model, NoisyImages(IMAGES, model, sigma=0.25))
    return model


@pytest.fixture
def quantized(resnet):
    return quantize(resnet, 4, IMAGES, sigma=0.25)


def logits(model, pixels=PIXELS):
    with torch.no_grad():
        return model(pixels)


def distance(a, b):
    return float((a - b).norm() / b.norm())


def test_eight_bits_are_close_to_float_and_fewer_bits_are_farther(resnet, quantized):
    errors = []
    for bits in (8, 5, 3, 2):
        quantized.set_policy_(Policy.uniform(quantized.layers, bits))
        errors.append(distance(logits(quantized), logits(resnet)))
    assert errors[0] < 0.03
    assert errors == sorted(errors)


@pytest.mark.parametrize("options", [{"per_channel": True}, {"learn": "lsq"}, {"clip": "kl"}, {"clip": "max"}])
def test_every_option_is_close_at_eight_bits(resnet, options):
    assert distance(logits(quantize(resnet, 8, IMAGES, sigma=0.25, **options)), logits(resnet)) < 0.05


def test_channel_clips_are_better_at_low_widths(resnet):
    errors = [
        distance(logits(quantize(resnet, "w2a8", IMAGES, sigma=0.25, per_channel=p)), logits(resnet))
        for p in (False, True)
    ]
    assert errors[1] < errors[0]


def test_the_original_is_left_alone(resnet):
    before, keys = resnet.fingerprint(), list(resnet.state_dict())
    quantize(resnet, 2, IMAGES, sigma=0.25, estimate_bn=True)
    assert resnet.fingerprint() == before
    assert list(resnet.state_dict()) == keys


def test_parameters_keep_names_and_shapes(resnet, quantized):
    ours = quantized.state_dict()
    for key, value in resnet.state_dict().items():
        assert ours[key].shape == value.shape
    extra = set(ours) - set(resnet.state_dict())
    assert all(".quantizer." in key for key in extra)


def test_signs_follow_the_graph(quantized):
    state = quantized.integer_state()
    assert state["conv1"].input.signed
    assert not state["layer1.0.conv1"].input.signed
    assert not state["fc"].input.signed


def test_policy_is_read_back_and_restored_exactly(quantized):
    first = quantized.policy
    before = logits(quantized)
    mixed = first.with_({"layer1.0.conv1": "w1a1", "layer2.0.conv2": "w2a5"})
    quantized.set_policy_(mixed)
    assert quantized.policy == mixed
    assert quantized.policy["layer1.0.conv1"] == Bits(1, 1)
    assert not torch.equal(logits(quantized), before)
    quantized.set_policy_(first)
    assert torch.equal(logits(quantized), before)


def test_a_new_policy_equals_quantizing_anew(resnet, quantized):
    policy = Policy.uniform(quantized.layers, "w3a2")
    quantized.set_policy_(policy)
    assert torch.equal(logits(quantized), logits(quantize(resnet, policy, IMAGES, sigma=0.25)))
    assert quantized.fingerprint() == quantize(resnet, policy, IMAGES, sigma=0.25).fingerprint()


def test_a_policy_of_another_network_is_refused(resnet, quantized):
    other = Policy({"conv1": 8, "head": 8})
    with pytest.raises(MismatchError):
        quantized.set_policy_(other)
    with pytest.raises(MismatchError):
        quantize(resnet, other, IMAGES, sigma=0.25)


def test_answers_do_not_depend_on_the_rest_of_the_batch(quantized):
    alone = logits(quantized)[2]
    others = 5 * torch.randn(8, *SHAPE, generator=torch.Generator().manual_seed(3))
    others[6] = PIXELS[2]
    assert torch.equal(logits(quantized, others)[6], alone)


def test_integer_weights_have_their_widths(quantized):
    for bits in range(1, 9):
        quantized.set_policy_(Policy.uniform(quantized.layers, bits))
        layer = quantized.integer_state()["layer2.0.conv1"]
        assert layer.weight.dtype == np.int8
        assert layer.bits == Bits(bits, bits)
        top = 1 if bits == 1 else 2 ** (bits - 1) - 1
        assert np.abs(layer.weight).max() <= top
        assert (layer.weight != 0).all() or bits > 1
        assert (layer.input.low, layer.input.high) == (0, 2**bits - 1)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bits", [1, 3, 8])
def test_integer_state_says_what_a_layer_computes(resnet, bits, per_channel):
    model = quantize(resnet, bits, IMAGES, sigma=0.25, per_channel=per_channel)
    layer = model.integer_state()["layer2.0.conv1"]
    conv = model.module.get_submodule("layer2.0.conv1")
    x = torch.rand(2, 16, 8, 8, generator=torch.Generator().manual_seed(0)) * 3
    scale = torch.tensor(layer.input.scale)
    inputs = torch.round(x.clamp(layer.input.low * scale, layer.input.high * scale) / scale)
    sums = F.conv2d(inputs.double(), torch.from_numpy(layer.weight).double(), stride=conv.stride, padding=conv.padding)
    expected = sums * layer.input.scale * torch.from_numpy(layer.weight_scale).double().reshape(-1, 1, 1)
    assert torch.allclose(logits(conv, x).double(), expected, rtol=1e-6, atol=1e-9)
    assert layer.weight_scale.shape == ((32,) if per_channel else (1,))


def test_sums_are_exact_in_any_order():
    torch.manual_seed(0)
    linear = nn.Linear(512, 7)
    model = Classifier(nn.Sequential(nn.Flatten(), linear), num_classes=7, input_shape=(8, 8, 8)).eval()
    quantized = quantize(model, 8, np.random.default_rng(0).random((8, 8, 8, 8), np.float32), sigma=0.5)
    twin = quantized.module[1]
    order = torch.randperm(512, generator=torch.Generator().manual_seed(0))
    turned = copy.deepcopy(twin)
    with torch.no_grad():
        turned.weight.copy_(twin.weight[:, order])
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(1))
    assert torch.equal(logits(twin, x), logits(turned, x[:, order]))


def test_training_mode_computes_the_same_function(quantized):
    in_eval = logits(quantized)
    for part in quantized.modules():
        if hasattr(part, "quantizer"):
            part.training = True
    assert torch.allclose(logits(quantized), in_eval, atol=1e-4)


def test_plain_torch_operators_reproduce_it(resnet):
    """The lowering for integer engines: clamp to the b-bit range, then an 8-bit fake-quantize with the b-bit step."""
    model = quantize(resnet, "w3a4", IMAGES, sigma=0.25)
    lowered = copy.deepcopy(resnet)
    for name, layer in model.integer_state().items():
        module = lowered.module.get_submodule(name)
        weight = torch.from_numpy(layer.weight).float() * torch.from_numpy(layer.weight_scale)
        module.weight.data.copy_(weight)

        def lower(_, args, grid=layer.input):
            first = -128 if grid.signed else 0
            x = args[0].clamp(grid.low * grid.scale, grid.high * grid.scale)
            return torch.fake_quantize_per_tensor_affine(x, grid.scale, 0, first, first + 255)

        module.register_forward_pre_hook(lower)
    assert torch.allclose(logits(model), logits(lowered), atol=2e-4)


def counting_compiles(run):
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    return torch.compile(run, backend=backend, fullgraph=True), compiled


class Small(nn.Module):
    """Signed and unsigned inputs, a convolution, a linear layer and attention."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.norm = nn.BatchNorm2d(8)
        self.attention = Block(8, 2, 16).attn
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        tokens = F.relu(self.norm(self.stem(x))).flatten(2).transpose(1, 2)
        return self.head(tokens.mean(1) + self.attention(tokens).mean(1))


@pytest.mark.parametrize(("training", "learn"), [(False, "pact"), (True, "pact"), (True, "lsq")])
def test_changing_the_policy_does_not_recompile(training, learn):
    torch.manual_seed(0)
    model = quantize(wrap(Small()), 4, IMAGES, sigma=0.25, learn=learn).train(training).requires_grad_(training)
    run, compiled = counting_compiles(lambda x: model(x).square().mean())
    for bits in (8, 3, 1, "w2a6"):
        model.set_policy_(Policy.uniform(model.layers, bits))
        value = run(PIXELS)
        if training:
            value.backward()
        assert len(compiled) == 1
        assert float(value.detach()) == pytest.approx(float(model(PIXELS).square().mean().detach()), rel=1e-3)


@pytest.mark.parametrize("learn", ["pact", "lsq"])
def test_the_training_loop_takes_it_as_it_is(resnet, learn):
    model = quantize(resnet, 2, IMAGES, sigma=0.1, learn=learn)
    labels = torch.arange(24) % 10
    sizes = {name: p.detach().clone() for name, p in model.named_parameters() if name.endswith("size")}
    assert sizes
    recipe = Recipe(sigma=0.05, steps=20, batch=24, lr=0.05, augment=False, schedule="constant")
    pixels = torch.from_numpy(IMAGES) / 255
    before = float(F.cross_entropy(logits(model, pixels), labels))
    train(model, torch.from_numpy(IMAGES), labels, recipe, compiled=False)
    assert float(F.cross_entropy(logits(model, pixels), labels)) < 0.7 * before
    moved = [name for name, p in model.named_parameters() if name in sizes and not torch.equal(p, sizes[name])]
    assert len(moved) > len(sizes) // 2
    assert model.policy == Policy.uniform(model.layers, 2)
    assert not model.training


def test_half_precision_training_keeps_widths(quantized):
    with torch.autocast("cpu", torch.bfloat16):
        loss = quantized.train()(PIXELS).float().square().mean()
    loss.backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in quantized.parameters() if p.grad is not None)
    grads = quantized.module.get_submodule("layer1.0.conv1").weight.grad
    assert grads.dtype == torch.float32


def test_calibration_is_reproducible_and_follows_sigma(resnet):
    layers = find_layers(resnet)
    runs = [collect(resnet, layers, NoisyImages(IMAGES, resnet, sigma=s)) for s in (0.25, 0.25, 1.0)]
    first = ("conv1", "a")
    assert torch.equal(runs[0][first].values, runs[1][first].values)
    assert runs[2][first].largest > runs[0][first].largest
    assert runs[0][first].smallest < 0


def test_noisy_images_do_not_depend_on_the_batch(resnet):
    small = torch.cat(list(NoisyImages(IMAGES, resnet, sigma=0.5, batch=5)))
    large = torch.cat(list(NoisyImages(IMAGES, resnet, sigma=0.5, batch=24)))
    assert torch.equal(small, large)
    levels = small * 255
    assert torch.allclose(levels, levels.round(), atol=1e-3)
    assert float((small - torch.from_numpy(IMAGES) / 255).std()) == pytest.approx(0.5, rel=0.02)


def test_noisy_images_follow_bounds_and_may_be_clean():
    wide = Classifier(nn.Flatten(), num_classes=768, input_shape=SHAPE, bounds=(-1, 1))
    clean = torch.cat(list(NoisyImages(IMAGES, wide, sigma=0)))
    assert torch.allclose(clean, 2 * (torch.from_numpy(IMAGES) / 255) - 1, atol=1e-6)
    assert len(torch.cat(list(NoisyImages(IMAGES, wide, sigma=0, count=7)))) == 7


@pytest.mark.parametrize(
    "images", [np.zeros((0, *SHAPE), np.uint8), np.zeros((4, 3, 8, 8), np.uint8), np.zeros((3, 16, 16), np.uint8)]
)
def test_bad_calibration_images_are_refused(resnet, images):
    with pytest.raises(InputError, match="calibration images"):
        quantize(resnet, 4, images, sigma=0.25)


def test_batchnorm_statistics_are_those_of_the_quantized_model(resnet):
    plain = quantize(resnet, 2, IMAGES, sigma=0.25)
    estimated = quantize(resnet, 2, IMAGES, sigma=0.25, estimate_bn=True)
    assert not torch.equal(plain.module.bn1.running_var, estimated.module.bn1.running_var)
    seen = []
    handle = estimated.module.bn1.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    logits(estimated, torch.cat(list(NoisyImages(IMAGES, estimated, sigma=0.25))))
    handle.remove()
    assert torch.allclose(estimated.module.bn1.running_mean, seen[0].mean((0, 2, 3)), atol=1e-4)
    assert estimated.module.bn1.momentum == 0.1
    assert not any(part.training for part in estimated.modules())


def test_fingerprint_is_of_the_function(quantized):
    before = quantized.fingerprint()
    assert copy.deepcopy(quantized).fingerprint() == before
    with torch.no_grad():
        quantized.module.bn1.num_batches_tracked += 1
        quantized.module.conv1.weight += 1e-9
    assert quantized.fingerprint() == before
    with torch.no_grad():
        quantized.module.fc.bias[0] += 1e-3
    assert quantized.fingerprint() != before


def test_copies_are_independent(quantized):
    twin = copy.deepcopy(quantized)
    twin.set_policy_(Policy.uniform(twin.layers, 2))
    assert quantized.policy == Policy.uniform(quantized.layers, 4)
    assert twin.policy == Policy.uniform(quantized.layers, 2)


class Attention(nn.Module):
    """nn.MultiheadAttention, whose projections are computed inside a function of torch."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return self.head((tokens + mixed).mean(1))


def vit(seed=0):
    torch.manual_seed(seed)
    return VisionTransformer(10, image_size=16, dim=16, depth=2, heads=2)


@pytest.mark.parametrize("build", [vit, Attention])
def test_attention_is_quantized(build):
    torch.manual_seed(0)
    model = wrap(build())
    eight = quantize(model, 8, IMAGES, sigma=0.25)
    assert distance(logits(eight), logits(model)) < 0.1
    matmuls = [layer for layer in eight.integer_state().values() if layer.kind == "matmul"]
    assert matmuls
    assert all(layer.weight is None and layer.other.signed for layer in matmuls)
    assert {layer.input.signed for layer in matmuls if layer.name.endswith("#av")} == {False}
    coarse = eight.policy.with_(dict.fromkeys([layer.name for layer in matmuls], "w1a1"))
    before = logits(eight)
    eight.set_policy_(coarse)
    assert not torch.allclose(logits(eight), before)
    loss = eight.train()(PIXELS).square().mean()
    loss.backward()
    assert all(eight.quantizer(layer.name).w.size.grad is not None for layer in matmuls)


def test_what_follows_gelu_has_a_skewed_grid_of_the_same_width():
    model = wrap(vit())
    with torch.no_grad():
        for block in model.module.blocks:
            block.mlp.fc1.weight *= 20
    four = quantize(model, 4, IMAGES, sigma=0.25)
    state = four.integer_state()
    skewed = {name for name, layer in state.items() if -layer.input.low < layer.input.high and layer.input.signed}
    assert skewed == {f"blocks.{block}.mlp.fc2" for block in range(2)}
    grid = state["blocks.0.mlp.fc2"].input
    assert grid.high - grid.low == 15
    assert four.policy == Policy.uniform(four.layers, 4)
    assert {quantize(model, 4, IMAGES, sigma=0.25, clip=rule).quantizer("blocks.0.mlp.fc2").a.skewed_low
            for rule in ("kl", "max")} == {None}  # fmt: skip
    four.set_policy_(Policy.uniform(four.layers, 8))
    assert four.integer_state()["blocks.0.mlp.fc2"].input.low == -127


class Standardized(nn.Conv2d):
    """Computes its weight from its parameter."""

    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class Padded(nn.Conv2d):
    """Has a forward of its own."""

    def forward(self, x):
        return F.conv2d(F.pad(x, (1, 1, 1, 1)), self.weight, self.bias)


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = Padded(3, 8, 3)
        self.computed = Standardized(8, 8, 3, padding=1)
        self.shared = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.tied = nn.Conv2d(8, 8, 1, bias=False)
        self.tie = nn.Conv2d(8, 8, 1, bias=False)
        self.tie.weight = self.tied.weight
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = self.shared(self.shared(x)) + self.computed(x)
        x = self.tie(F.relu(self.tied(x)))
        return self.head(x.mean((2, 3)))


def test_unusual_layers_are_quantized():
    torch.manual_seed(0)
    model = wrap(Odd())
    quantized = quantize(model, 8, IMAGES, sigma=0.25)
    assert distance(logits(quantized), logits(model)) < 0.05
    assert len(quantized.layers) == 6
    computed = quantized.integer_state()["computed"]
    weight = model.module.computed.weight
    centred = (weight - weight.mean((1, 2, 3), keepdim=True)).detach()
    scale = torch.from_numpy(computed.weight_scale)
    assert torch.allclose(torch.from_numpy(computed.weight) * scale, centred, atol=float(scale))
    assert "tied" not in quantized.owned_weights()
    assert set(quantized.owned_weights()) == {"stem", "shared", "head"}
    quantized.set_policy_(Policy.uniform(quantized.layers, 1))
    assert bool(torch.isfinite(logits(quantized)).all())


def test_scripted_parts_stay_float_and_learn():
    torch.manual_seed(0)
    scripted = torch.jit.script(nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU()))
    model = wrap(nn.Sequential(nn.Conv2d(3, 4, 3, 2), scripted, nn.Flatten(), nn.Linear(100, 10)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, on copying TorchScript
        quantized = quantize(model, 8, IMAGES, sigma=0.25)
    assert distance(logits(quantized), logits(model)) < 0.05
    before = {name: value.clone() for name, value in quantized.module.named_parameters()}
    recipe = Recipe(sigma=0.1, steps=2, batch=4, lr=0.1)
    train(quantized, torch.from_numpy(IMAGES), torch.arange(len(IMAGES)) % 10, recipe, compiled=False)
    assert all(not torch.equal(value, before[name]) for name, value in quantized.module.named_parameters())


def test_a_model_without_statistics_keeps_its_policy(resnet):
    bare = QuantizedClassifier(resnet, find_layers(resnet))
    with pytest.raises(InputError, match="calibration statistics"):
        bare.set_policy_(bare.policy)


def test_nan_images_are_refused(resnet):
    images = np.full((2, *SHAPE), np.nan, np.float32)
    with pytest.raises(InputError):
        quantize(resnet, 4, images, sigma=0.25)


class Encoder(nn.Module):
    """Four patches as tokens of torch's own encoder, whose fast path in eval mode reads the weights directly."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(24, 3, dim_feedforward=48, batch_first=True, activation="relu")
        self.stem = nn.Conv2d(3, 24, 4, 4)
        self.body = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(24, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(self.body(self.stem(x).flatten(2).transpose(1, 2)).mean(1)))


def test_torchs_own_encoder_computes_with_its_quantized_weights() -> None:
    torch.manual_seed(0)
    classifier = Classifier(Encoder(), num_classes=4, input_shape=(3, 8, 8)).eval()
    images = np.random.default_rng(0).integers(0, 256, (16, 3, 8, 8)).astype(np.uint8)
    model = quantize(classifier, 2, images, sigma=0.1)
    pixels = torch.from_numpy(images).float() / 255
    with torch.no_grad():
        fast = model(pixels)
    slow = model(pixels).detach()
    torch.testing.assert_close(fast, slow)
    assert (classifier(pixels).detach() - fast).abs().max() > 0.05, "2 bits must be seen"


@pytest.mark.parametrize("options", [{}, {"per_channel": True}, {"learn": "lsq"}, {"estimate_bn": True}])
def test_weights_are_unrounded_where_they_came_from(resnet, options):
    rounded = quantize(resnet, 3, IMAGES, sigma=0.25, **options)
    with torch.no_grad():
        for layer in rounded.integer_state().values():  # as a file holds them
            weight = rounded.module.get_parameter(layer.weight_path)
            scale = torch.from_numpy(layer.weight_scale).reshape(-1, *[1] * (weight.dim() - 1))
            weight.copy_(torch.from_numpy(layer.weight).float() * scale)
    before, name = (rounded.fingerprint(), logits(rounded)), rounded.layers.names[3]
    grid = rounded.float_weights()[name].clone()
    assert rounded.unround_(resnet)
    assert rounded.fingerprint() == before[0]
    assert (logits(rounded) == before[1]).all()
    assert not torch.equal(rounded.float_weights()[name], grid)
    assert torch.equal(rounded.float_weights()[name], resnet.module.get_parameter(f"{name}.weight"))


def test_weights_of_another_network_are_left_alone(resnet, quantized):
    other = copy.deepcopy(resnet)
    with torch.no_grad():
        other.module.get_parameter(f"{quantized.layers.names[2]}.weight").mul_(1.5)
    before = {name: weight.clone() for name, weight in quantized.float_weights().items()}
    assert not quantized.unround_(other)
    assert not quantized.unround_(wrap(CifarResNet(14)))
    assert all(torch.equal(weight, before[name]) for name, weight in quantized.float_weights().items())


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_floats_of_another_precision_are_refused(kind):
    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(12, 3).to(kind)

        def forward(self, x):
            return self.head(x.flatten(1).to(kind)).float()

    classifier = Classifier(Cast(), num_classes=3, input_shape=(3, 2, 2))
    with pytest.raises(InputError, match=r"head\.weight is \w+; give the network in float32"):
        quantize(classifier, 4, np.zeros((4, 3, 2, 2), np.uint8), sigma=0.5)
