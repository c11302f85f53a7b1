import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from arquant.base.errors import InputError, MismatchError, MissingExtraError
from arquant.loading.models import load_model
from arquant.models.classifier import Classifier
from arquant.models.tracing.layers import Layers, describe_rows, find_layers, skipped_rows, weight_parameters
from arquant.quantization.policy import Policy
from tests.support import odd_networks
from tests.support.networks import layers_of

DIM = 24


def found(module: nn.Module, shape: tuple[int, int, int] = (3, 8, 8), **options: object) -> Layers:
    return find_layers(Classifier(module, num_classes=5, input_shape=shape), **options)  # type: ignore[arg-type]


class Tokens(nn.Module):
    """8x8 images -> 4 tokens -> a body -> logits."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, DIM, 4, 4)
        self.body = body
        self.head = nn.Linear(DIM, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        return self.head(self.body(x).mean(1))


class Attention(nn.Module):
    """One attention in several spellings."""

    def __init__(self, how: str, heads: int = 3) -> None:
        super().__init__()
        self.how, self.heads = how, heads
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(getattr(self, "_" + self.how)(q, k, v).transpose(1, 2).reshape(n, t, c))

    def _fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v)

    def _named(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(query=q, key=k, value=v, scale=0.1)

    def _explicit(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        return functional.dropout(scores.softmax(dim=-1), 0.1, self.training) @ v

    def _turned(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.matmul(k, q.mT)
        return (v.mT @ torch.softmax(scores, -2)).mT

    def _bmm(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        bias = torch.zeros(1, device=q.device)
        scores = torch.baddbmm(bias, q.flatten(0, 1), k.flatten(0, 1).mT)
        return torch.bmm(functional.softmax(scores, dim=-1), v.flatten(0, 1)).unflatten(0, q.shape[:2])

    def _einsum(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("b h i d, b h j d -> b h i j", q, k)
        return torch.einsum("...ij,...jd->...id", scores.softmax(-1), v)

    def _einsum_turned(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("bhjd,bhid->bhij", k, q)
        return torch.einsum("bhjd,bhij->bhid", v, scores.softmax(3))


SPELLINGS = {
    "fused": (0, 0),
    "named": (0, 0),
    "explicit": (0, 0),
    "turned": (1, 1),
    "bmm": (0, 0),
    "einsum": (0, 0),
    "einsum_turned": (1, 1),
}


@pytest.mark.parametrize("how", SPELLINGS)
def test_attention_in_every_spelling(how):
    layers = found(Tokens(Attention(how)))
    assert layers.names == ("stem", "body.qkv", "body#qk", "body#av", "body.proj", "head")
    scores, values = layers["body#qk"], layers["body#av"]
    assert (scores.heads, scores.tokens, scores.dim, scores.macs) == (3, 4, 8, 3 * 4 * 8 * 4)
    assert (values.heads, values.tokens, values.dim, values.macs) == (3, 4, 4, 3 * 4 * 4 * 8)
    assert (scores.signed_input, scores.signed_w) == (True, True)
    assert (values.signed_input, values.signed_w) == (False, True)
    assert scores.weights == values.weights == 0
    assert (scores.call.a, values.call.a) == SPELLINGS[how]
    assert {layer.call.scope for layer in layers if not layer.plain} == {"body"}
    assert layers.skipped == ()


class Mha(nn.Module):
    def __init__(self, *, need_weights: bool) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(DIM, 3, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attn(x, x, x, need_weights=self.need_weights)[0]


@pytest.mark.parametrize("need_weights", [False, True])
def test_multihead_attention(need_weights):
    layers = found(Tokens(Mha(need_weights=need_weights)))
    prefix = "body.attn"
    assert layers.names == ("stem", f"{prefix}.in_proj", f"{prefix}#qk", f"{prefix}#av", f"{prefix}.out_proj", "head")
    assert layers[f"{prefix}.in_proj"].weight_shape == (3 * DIM, DIM)
    assert layers[f"{prefix}.in_proj"].call.weight == "in_proj_weight"
    assert layers[f"{prefix}.out_proj"].call.weight == "out_proj.weight"
    assert not layers[f"{prefix}.in_proj"].plain
    assert layers[f"{prefix}#qk"].macs == 3 * 4 * 8 * 4
    assert layers.skipped == ()


def test_transformer_encoder_despite_its_fast_path():
    block = nn.TransformerEncoderLayer(DIM, 3, dim_feedforward=48, batch_first=True, activation="relu")
    layers = found(Tokens(nn.TransformerEncoder(block, 2, enable_nested_tensor=False)))
    assert len(layers) == 2 + 2 * 6
    assert not layers["body.layers.1.linear2"].signed_input
    assert layers["body.layers.1.linear1"].signed_input


def test_vit_layers():
    layers = layers_of("vit_tiny")
    assert layers.names[:5] == (
        "patch_embed.proj",
        "blocks.0.attn.qkv",
        "blocks.0.attn#qk",
        "blocks.0.attn#av",
        "blocks.0.attn.proj",
    )
    assert (layers["blocks.0.attn#qk"].heads, layers["blocks.0.attn#qk"].tokens) == (3, 65)
    unsigned = [layer.name for layer in layers if not layer.signed_input]
    assert unsigned == [f"blocks.{i}.attn#av" for i in range(12)]


def test_resnet_signs_and_shared_inputs():
    layers = layers_of("resnet20")
    assert [layer.name for layer in layers if layer.signed_input] == ["conv1"]
    groups = [layer.input_group for layer in layers]
    assert [layer.name for layer in layers if groups.count(layer.input_group) > 1] == [
        "layer2.0.downsample.0",
        "layer2.0.conv1",
        "layer3.0.downsample.0",
        "layer3.0.conv1",
    ]
    for stage in ("layer2.0", "layer3.0"):
        assert layers[f"{stage}.downsample.0"].input_group == layers[f"{stage}.conv1"].input_group
    assert (layers.first.name, layers.last.name) == ("conv1", "fc")
    assert all(layer.plain for layer in layers)


def test_mobilenet_signs():
    layers = layers_of("mobilenetv2")
    signed = [layer for layer in layers if layer.signed_input]
    # the input, 16 expansions after linear bottlenecks, and the head convolution
    assert len(signed) == 1 + 16 + 1
    assert all(layer.kernel == (1, 1) for layer in signed[1:])
    assert sum(layer.depthwise for layer in layers) == 17


def test_conv_facts():
    body = nn.Sequential(
        nn.Conv2d(3, 8, (3, 5), stride=(2, 1), padding=(1, 2)),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=4, padding="same", dilation=2),
        nn.Conv2d(8, 16, 3, groups=8, padding=1, padding_mode="circular"),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )
    layers = found(body)
    first, grouped, depthwise = layers[0], layers[1], layers[2]
    assert (first.kernel, first.stride, first.padding, first.input_size) == ((3, 5), (2, 1), (1, 2), (8, 8))
    assert first.macs == 3 * 8 * 15 * (4 * 8)
    assert first.macs_paper == 3 * 8 * 15 * int(4.5 * 8)
    assert (grouped.groups, grouped.depthwise, grouped.weight_shape) == (4, False, (8, 2, 3, 3))
    assert grouped.macs == grouped.macs_paper == 2 * 8 * 9 * 32
    assert (depthwise.depthwise, depthwise.macs) == (True, 1 * 16 * 9 * 32)
    assert (grouped.signed_input, depthwise.signed_input) == (False, True)
    for layer in layers:
        area = layer.kernel[0] * layer.kernel[1]
        assert layer.macs == layer.in_channels // layer.groups * layer.out_channels * area * layer.positions


def test_a_shared_module_is_listed_once_with_all_its_work():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)
            self.head = nn.Linear(3, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(functional.avg_pool2d(self.conv(x).relu(), 2))
            return self.head(x.mean((2, 3)))

    layers = found(Shared())
    assert layers.names == ("conv", "head")
    conv = layers["conv"]
    assert (conv.uses, conv.macs, conv.positions, conv.signed_input) == (2, 81 * (64 + 16), 80, True)


def test_a_shared_attention_is_listed_once_with_all_its_work():
    attention = Attention("fused")
    once, twice = found(Tokens(attention)), found(Tokens(nn.Sequential(attention, attention)))
    assert len(twice) == len(once)
    assert (twice["body.0#qk"].uses, twice["body.0#qk"].macs) == (2, 2 * once["body#qk"].macs)
    assert twice["body.0.qkv"].macs == 2 * once["body.qkv"].macs


def test_functional_use_of_a_modules_weight():
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.head = nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = functional.conv2d(x, self.conv.weight).relu().mean((2, 3))
            return functional.linear(input=x, weight=self.head.weight)

    layers = found(Functional())
    assert layers.names == ("conv", "head")
    assert (layers["head"].call.scope, layers["head"].call.weight) == ("", "head.weight")
    assert not layers["head"].plain
    assert not layers["head"].signed_input


def test_weights_computed_by_a_parametrization():
    conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
    layers = found(nn.Sequential(conv, nn.Flatten(), nn.Linear(144, 5)))
    assert layers.names == ("0", "2")
    assert (layers["0"].plain, layers["0"].call.weight) == (False, "")
    assert layers["0"].weights == 108


class Odd(nn.Module):
    """Everything that cannot be quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)
        self.line = nn.Conv1d(8, 8, 1)
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.table = nn.Embedding(10, 8)
        self.unused = nn.Linear(8, 8)
        self.register_buffer("blur", torch.ones(8, 1, 2, 2) / 4)
        self.tied = nn.Linear(8, 8)
        self.inner = nn.Sequential(self.tied)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.conv2d(self.up(self.conv(x)), self.blur, groups=8)
        x = self.line(x.flatten(2)).transpose(1, 2)[:, :4]
        x = self.rnn(x)[0] + self.table(torch.zeros(1, dtype=torch.long))
        x = x @ x.transpose(1, 2) @ x
        x = functional.linear(self.tied(x), self.tied.weight)
        return self.head(nn.Linear(8, 8)(x).mean(1))


def test_what_is_skipped_and_why():
    layers = found(Odd())
    assert layers.names == ("conv", "head")
    reasons = {item.name: item.reason for item in layers.skipped}
    assert set(reasons) == {"up", "line", "rnn", "table", "unused", "#conv", "#matmul", "#linear", "tied"}
    assert "not executed" in reasons["unused"]
    assert "outside softmax attention" in reasons["#matmul"]
    assert "not a parameter" in reasons["#conv"]
    assert "several modules" in reasons["tied"]
    assert all("only Conv2d" in reasons[name] for name in ("up", "line", "rnn", "table"))
    assert {row["name"] for row in skipped_rows(layers)} == set(reasons)
    total = sum(p.numel() for p in Odd().parameters()) + 32
    assert layers.other_params == total - layers.weights


class Products(nn.Module):
    """Matrix products that no layer does, each in a module of its own."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.table = nn.Parameter(torch.ones(DIM, DIM))

    def forward(self, x: Tensor) -> Tensor:
        return {
            "tensordot": lambda: torch.tensordot(x, self.table, dims=1),
            "einsum": lambda: torch.einsum("btc,cd,de->bte", x, self.table, self.table),
            "listed": lambda: torch.einsum("btc,cd->btd", [x, self.table]),
            "inner": lambda: torch.inner(x, self.table),
            "addmm": lambda: torch.addmm(self.table[0], x[0], self.table)[None],
            "trace": lambda: x + torch.einsum("ii", self.table),
        }[self.how]()


@pytest.mark.parametrize(
    ("how", "kind"), [("listed", "einsum"), *((n, n) for n in ("tensordot", "einsum", "inner", "addmm"))]
)
def test_other_products_are_listed_as_skipped(how, kind):
    assert [(item.name, item.kind) for item in found(Tokens(Products(how))).skipped] == [("body", kind)]


def test_a_sum_written_as_einsum_is_no_product():
    assert found(Tokens(Products("trace"))).skipped == ()


def test_scripted_parts_are_skipped_and_the_rest_is_found():
    scripted = torch.jit.script(nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU()))
    layers = found(nn.Sequential(nn.Conv2d(3, 4, 3), scripted, nn.Flatten(), nn.Linear(64, 5)))
    assert layers.names == ("0", "3")
    assert [(item.name, item.kind) for item in layers.skipped] == [("1", "TorchScript")]


def test_weights_that_layers_share_are_stored_once():
    tied = nn.Sequential(nn.Flatten(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 192), nn.Linear(192, 5))
    tied[3].weight = tied[1].weight
    layers = found(tied)
    assert layers.weights == 2 * 192 * 192 + 192 * 5
    assert layers.other_params == 192 + 192 + 5


def test_attention_that_contains_attention_is_skipped():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Attention("explicit")

        def forward(self, x: Tensor) -> Tensor:
            x = self.inner(x)
            return (x @ x.mT).softmax(-1) @ x

    layers = found(Tokens(Outer()))
    assert [layer.name for layer in layers if layer.kind == "matmul"] == ["body.inner#qk", "body.inner#av"]
    assert [item.name for item in layers.skipped] == ["body#matmul"]


def test_several_attentions_in_one_module_are_numbered():
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(2):
                x = functional.scaled_dot_product_attention(x, x, x)
            return x

    layers = found(Tokens(Twice()))
    assert layers.names == ("stem", "body#qk", "body#av", "body#qk2", "body#av2", "head")
    assert [layers[name].call.index for name in layers.names[1:5]] == [0, 0, 1, 1]


def test_relative_positions_are_not_taken_for_scores():
    class Relative(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(DIM, 1))

        def forward(self, x: Tensor) -> Tensor:
            scores = x @ x.mT
            return (scores + x @ self.table).softmax(-1) @ x

    layers = found(Tokens(Relative()))
    assert layers["body#qk"].call.index == 0
    assert layers["body#av"].call.index == 2
    assert [item.name for item in layers.skipped] == ["body#matmul"]


def test_the_model_is_left_as_it_was():
    classifier = load_model("resnet20", weights_required=False)
    classifier.train()
    classifier.module.bn1.eval()
    before = {name: tensor.clone() for name, tensor in classifier.state_dict().items()}
    find_layers(classifier)
    assert classifier.training
    assert not classifier.module.bn1.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in classifier.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in classifier.modules())


def test_images_do_not_change_the_facts():
    classifier = load_model("vit_tiny", weights_required=False)
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)
    assert find_layers(classifier, images) == find_layers(classifier)
    assert find_layers(classifier, torch.rand(2, 3, 32, 32)) == find_layers(classifier)
    with pytest.raises(InputError, match="images must have shape"):
        find_layers(classifier, images[:, :1])


def test_a_value_made_negative_through_a_view_counts_as_signed():
    class Sneaky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(192, 5)

        def forward(self, x: Tensor) -> Tensor:
            y = x.flatten(1).relu()
            y.view(-1).sub_(1)
            return self.head(y)

    assert found(Sneaky())["head"].signed_input


def test_compiled_models_are_looked_into():
    module = torch.compile(nn.Sequential(nn.Conv2d(3, 4, 8), nn.Flatten(), nn.Linear(4, 5)))
    assert [layer.kind for layer in found(module)] == ["conv", "linear"]


class Wrong(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise TypeError("no such thing")


def test_errors():
    with pytest.raises(InputError, match="nothing to quantize"):
        found(nn.Flatten())
    with pytest.raises(InputError, match=r"fails on images of shape \(3, 8, 8\)"):
        found(nn.Sequential(nn.Flatten(), nn.Linear(7, 5)))
    with pytest.raises(InputError, match=r"fails on images of shape \(3, 8, 8\): TypeError: no such thing"):
        found(Wrong())
    with pytest.raises(InputError, match="no layer 'x'"):
        layers_of("resnet20")["x"]


def test_rows_and_facts():
    layers = layers_of("resnet20")
    rows = describe_rows(layers)
    assert rows[0]["name"] == "conv1"
    assert rows[-1]["macs"] == 640
    policy = Policy(Policy.uniform(layers, 4), layers.facts())
    policy.check(layers)
    assert policy.model["shapes"]["fc"] == [10, 64]
    assert sum(layers.facts()["macs"].values()) == layers.macs
    wider = {**layers.facts(), "shapes": {**layers.facts()["shapes"], "fc": [100, 64]}}
    with pytest.raises(MismatchError, match="fc"):
        Policy(policy, wider).check(layers)
    with pytest.raises(MismatchError, match="lacks layers"):
        policy.check(layers_of("mobilenetv2"))


@pytest.mark.parametrize(
    ("name", "count", "matmuls", "unsigned"),
    [
        ("torchvision:shufflenet_v2_x0_5", 57, 0, 37),
        ("timm:botnet26t_256", 38, 6, 34),
        pytest.param("timm:cait_xxs24_224", 210, 52, 26, marks=pytest.mark.slow),
        pytest.param("torchvision:swin_t", 77, 24, 12, marks=pytest.mark.slow),
        pytest.param("torchvision:vit_b_16", 74, 24, 12, marks=pytest.mark.slow),
    ],
)
def test_models_of_others(name, count, matmuls, unsigned):
    try:
        layers = layers_of(name)
    except MissingExtraError as error:
        pytest.skip(str(error))
    assert len(layers) == count
    assert sum(layer.kind == "matmul" for layer in layers) == matmuls
    assert sum(not layer.signed_input for layer in layers) == unsigned


class Twice(nn.Conv2d):
    """Computes another weight for each of its uses."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight * 2, self.bias) + self._conv_forward(x, self.weight.flip(2), None)


class CentralDifference(nn.Module):
    """Reads the weight of its convolution beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) - functional.conv2d(x, self.conv.weight.sum((2, 3), keepdim=True))


def replaced_forward() -> nn.Module:
    conv = nn.Conv2d(8, 8, 3, padding=1)
    conv.forward = lambda x: functional.conv2d(x, conv.weight, conv.bias, padding=1) * 2
    return conv


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda: Twice(8, 8, 3, padding=1), "computes a weight for each of its uses"),
        (CentralDifference, "its weight is read elsewhere too"),
        (replaced_forward, "a forward of its own instance"),
    ],
)
def test_layers_that_a_file_could_not_say_truly_are_left_in_float(body, reason):
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), body(), nn.Flatten(), nn.Linear(512, 5))
    layers = found(network)
    assert list(layers.names) == ["0", "3"]
    assert reason in next(row["reason"] for row in skipped_rows(layers) if row["name"].startswith("1"))


@pytest.mark.parametrize(
    ("build", "names", "reason"),
    [
        (
            odd_networks.adapter,
            ["conv", "odd.down", "odd.up", "head"],
            "it computes its weight, and contains other layers",
        ),
        (odd_networks.dynamic, ["conv", "head"], "its weight depends on the images"),
        (odd_networks.gram, ["conv", "head"], "its weight is read elsewhere too"),
        (odd_networks.tied_and_read, ["conv", "head"], "its weight is read elsewhere too"),
        (odd_networks.gain, ["conv", "odd", "head"], None),
        (odd_networks.by_name, ["conv", "odd", "head"], None),
        (odd_networks.root, ["conv", "", "values", "head"], None),
    ],
)
def test_odd_uses_of_weights(build, names, reason):
    layers = found(build())
    assert list(layers.names) == names
    assert [row["reason"] for row in skipped_rows(layers) if row["name"] == "odd"] == [reason] * (reason is not None)


def test_a_computed_weight_replaces_only_what_nothing_else_uses():
    network = odd_networks.gain()
    assert [layer.weight_parts for layer in found(network)] == [(), ("odd.weight",), ()]
    assert all(part is not network.odd.gain for part in weight_parameters(network, found(network)))


def test_products_of_the_linear_algebra_package_are_found():
    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.matmul(torch.linalg.matmul(x, x.mT).softmax(-1), x)

    layers = found(Tokens(Attention()))
    assert [name for name in layers.names if "#" in name] == ["body#qk", "body#av"]


def test_a_weight_that_is_cast_to_the_type_that_it_has_is_not_read():
    class Cast(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return functional.linear(x, self.weight.to(x.dtype), self.bias)

    layers = found(nn.Sequential(nn.Flatten(), nn.Linear(192, 8), Cast(8, 5)))
    assert list(layers.names) == ["1", "2"]


def test_a_bias_is_no_part_of_a_computed_weight():
    depthwise = nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 1, groups=8))
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), depthwise, nn.Flatten(), nn.Linear(512, 5))
    parts = weight_parameters(network, found(network))
    assert all(part is not depthwise.bias for part in parts)
    assert len(parts) == 4, "magnitude and direction beside two weights"
