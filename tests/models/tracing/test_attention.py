"""The tap sees the layers that find_layers found, changes nothing by itself, and survives copying and compiling."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from arquant.models.classifier import Classifier
from arquant.models.tracing.attention import Call, attention_probabilities, tap
from arquant.models.tracing.layer import Layer
from arquant.models.tracing.layers import find_layers
from arquant.quantization.quantized_layers import intercepted

DIM, SHAPE = 8, (3, 4, 4)


class Grid(nn.Module):
    """Rounds every operand to a step held in a buffer, and remembers what it saw."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self.register_buffer("step", torch.tensor(step))
        self.seen: list[tuple[str, str]] = []

    def forward(self, name: str, role: str, tensor: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            self.seen.append((name, role))
        return torch.round(tensor / self.step) * self.step


class Explicit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-2, -1)
        return self.proj(scores.softmax(-1) @ v)


class Fused(Explicit):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, -1)
        return self.proj(functional.scaled_dot_product_attention(q, k, v, None, 0.0, False, scale=0.3).squeeze(1))


class Mha(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(DIM, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attn(x, x, x, need_weights=False)[0]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, DIM, 2, 2))
        self.blocks = nn.Sequential(Explicit(), Fused(), Mha())
        self.head = nn.Linear(DIM, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x).flatten(2).transpose(1, 2))
        return self.head(x.mean(1))


def tapped(step: float) -> tuple[Classifier, dict[str, list[Layer]], dict[str, Grid]]:
    torch.manual_seed(0)
    classifier = Classifier(Network(), num_classes=5, input_shape=SHAPE).eval()
    scopes = dict(intercepted(classifier.module, find_layers(classifier)))
    grids = {scope: Grid(step) for scope in scopes}
    for scope, members in scopes.items():
        tap(classifier.module.get_submodule(scope), {layer.name: layer.call for layer in members}, grids[scope])
    return classifier, scopes, grids


def reference() -> Classifier:
    torch.manual_seed(0)
    return Classifier(Network(), num_classes=5, input_shape=SHAPE).eval()


@pytest.fixture
def images() -> Tensor:
    return torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_every_operand_is_seen_once_and_in_order(images):
    classifier, scopes, grids = tapped(0.1)
    classifier(images)
    assert list(grids) == ["stem", "blocks.0", "blocks.1", "blocks.2.attn"]
    for scope, grid in grids.items():
        names = [layer.name for layer in scopes[scope]]
        assert grid.seen == [(name, role) for name in names for role in ("a", "w")]
    assert [name for name, _ in grids["blocks.2.attn"].seen[::2]] == [
        "blocks.2.attn.in_proj",
        "blocks.2.attn#qk",
        "blocks.2.attn#av",
        "blocks.2.attn.out_proj",
    ]


@torch.no_grad()
def test_a_fine_grid_changes_nothing_and_a_coarse_one_does(images):
    expected = reference()(images)
    torch.testing.assert_close(tapped(2.0**-20)[0](images), expected, rtol=0, atol=1e-4)
    assert (tapped(0.5)[0](images) - expected).abs().max() > 1e-3


@torch.no_grad()
def test_roles_are_queries_probabilities_and_their_partners(images):
    module = Explicit().eval()
    seen: dict[tuple[str, str], Tensor] = {}

    def keep(name: str, role: str, tensor: Tensor) -> Tensor:
        seen[name, role] = tensor
        return tensor

    tap(module, {"qk": Call("", "matmul", 0), "av": Call("", "matmul", 1)}, keep)
    x = torch.randn(2, 5, DIM)
    module(x)
    q, k, v = module.qkv(x).chunk(3, -1)
    torch.testing.assert_close(seen["qk", "a"], q)
    torch.testing.assert_close(seen["qk", "w"], k.mT)
    torch.testing.assert_close(seen["av", "a"], (q @ k.mT).softmax(-1))
    torch.testing.assert_close(seen["av", "w"], v)


@torch.no_grad()
def test_paths_stay_and_copies_work(images):
    classifier, _, grids = tapped(0.25)
    plain = set(reference().state_dict())
    added = set(classifier.state_dict()) - plain
    assert added == {f"module.{scope}.tapped_quantize.step" for scope in grids}
    assert plain <= set(classifier.state_dict())
    twin = copy.deepcopy(classifier)
    assert torch.equal(twin(images), classifier(images))
    grids["blocks.0"].step.fill_(2.0)
    assert not torch.equal(twin(images), classifier(images))
    with pytest.raises(ValueError, match="tapped already"):
        tap(classifier.module.blocks[0], {}, grids["blocks.0"])


@torch.no_grad()
def test_one_compiled_graph_serves_other_steps(images):
    classifier, _, grids = tapped(0.25)
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(classifier, fullgraph=True, backend=count)
    for step in (0.25, 0.5, 0.125):
        for grid in grids.values():
            grid.step.fill_(step)
        torch.testing.assert_close(compiled(images), classifier(images))
    assert len(graphs) == 1


def test_gradients_reach_weights_through_the_tap(images):
    classifier, _, grids = tapped(0.25)
    for grid in grids.values():
        grid.forward = lambda name, role, tensor: tensor * 1.0  # type: ignore[method-assign]
    classifier(images).sum().backward()
    assert classifier.module.blocks[2].attn.in_proj_weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 0.7},
        {"is_causal": True},
        {"attn_mask": torch.tensor([[True, False, True], [True, True, True]])},
        {"attn_mask": torch.tensor([[0.5, -1.0, 0.0], [0.0, 2.0, -3.0]])},
    ],
)
def test_probabilities_equal_torchs(options):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, rows, 6, generator=generator) for rows in (2, 3, 3))
    expected = functional.scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(attention_probabilities(q, k, **options) @ v, expected)


@torch.no_grad()
def test_grouped_queries():
    class Grouped(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 3, 6, generator=generator) for heads in (4, 2, 2))
    module = Grouped()
    expected = module(q, k, v)
    calls = {"qk": Call("", "matmul", fused="qk"), "av": Call("", "matmul", fused="av")}
    tap(module, calls, lambda name, role, tensor: tensor)
    torch.testing.assert_close(module(q, k, v), expected)


def test_dropout_of_probabilities_is_kept():
    q = torch.randn(1, 1, 50, 4)
    dropped = attention_probabilities(q, q, dropout_p=0.5)
    assert 0.3 < (dropped == 0).float().mean() < 0.7
