"""The arithmetic of the paper's tables and of the exact convention, to the printed digit."""

import json

import numpy as np
import pytest

from arquant.base.errors import InputError, MismatchError
from arquant.quantization.costs import Bops, FileBytes, LatencyTable, WeightBytes, cost_summary, milliseconds
from arquant.quantization.policy import Bits, Policy
from tests.support.networks import layers_of


@pytest.mark.parametrize(
    ("name", "count", "exact", "paper", "first", "first_paper", "last", "weights"),
    [
        ("resnet20", 22, 40_813_184, 41_058_944, 442_368, 442_368, 640, 270_896),
        ("resnet50", 54, 4_089_184_256, 4_144_829_440, 118_013_952, 119_067_648, 2_048_000, 25_502_912),
        ("mobilenetv2", 53, 300_774_272, 301_016_192, 10_838_016, 10_934_784, 1_280_000, 3_469_760),
        ("vit_tiny", 74, 365_107_584, 365_107_584, 589_824, 589_824, 1_920, 5_319_552),
    ],
)
def test_macs_and_weights(name, count, exact, paper, first, first_paper, last, weights):
    layers = layers_of(name)
    assert (len(layers), layers.macs, layers.macs_paper) == (count, exact, paper)
    assert (layers.first.macs, layers.first.macs_paper, layers.last.macs) == (first, first_paper, last)
    assert layers.weights == weights


def test_vit_parts():
    layers = layers_of("vit_tiny")
    macs = {kind: sum(layer.macs for layer in layers if layer.kind == kind) for kind in ("conv", "linear", "matmul")}
    assert macs == {"conv": 589_824, "linear": 345_047_040 + 1_920, "matmul": 19_468_800}
    assert sum(layer.kind != "matmul" for layer in layers) == 50


@pytest.mark.parametrize(
    ("name", "printed"), [("resnet20", "42.04"), ("resnet50", "4244.3"), ("mobilenetv2", "308.24")]
)
def test_float_cost_as_printed(name, printed):
    digits = len(printed.partition(".")[2])
    assert f"{Bops('paper').float_cost(layers_of(name)) / 1e9:.{digits}f}" == printed


@pytest.mark.parametrize(
    ("name", "bits", "printed"),
    [
        ("resnet20", 8, "2.596"),
        ("resnet20", 3, "0.362"),
        ("resnet50", 4, "63.56"),
        ("mobilenetv2", 4, "4.62"),
        ("mobilenetv2", 5, "7.21"),
        ("vit_tiny", 4, "25.45"),
    ],
)
def test_quantized_cost_as_printed(name, bits, printed):
    layers = layers_of(name)
    digits = len(printed.partition(".")[2])
    assert f"{Bops('paper').cost(Policy.uniform(layers, bits), layers) / 1e9:.{digits}f}" == printed


def test_resnet50_v1_costs_what_hawq_prints():
    layers, bops = layers_of("resnet50_v1"), Bops()
    totals = [bops.float_cost(layers), *(bops.cost(Policy.uniform(layers, bits), layers) for bits in (8, 4))]
    assert [round(total / 1e9) for total in totals] == [3951, 247, 67]


def test_vit_float_cost_as_printed():
    assert f"{Bops('paper').float_cost(layers_of('vit_tiny')) / 1e9:.2f}" == "373.87"


@pytest.mark.parametrize(("name", "full", "four"), [("resnet50", "97.29", "13.14"), ("mobilenetv2", "13.24", "2.27")])
def test_sizes_as_printed(name, full, four):
    layers = layers_of(name)
    size = WeightBytes()
    assert f"{size.float_cost(layers) / 2**20:.2f}" == full
    assert f"{size.cost(Policy.uniform(layers, 4), layers) / 2**20:.2f}" == four


UNIFORM = {
    "resnet20": "0.1590 0.3620 0.6464 1.0119 1.4587 2.5959 | 0.1898 0.3917 0.6743 1.0376 1.4817 2.6120",
    "resnet50": "15.273 35.392 63.558 99.771 144.03 256.70 | 23.560 43.406 71.190 106.912 150.57 261.71",
    "mobilenetv2": "1.1496 2.5937 4.6153 7.2145 10.391 18.478 | 1.9302 3.3735 5.3941 7.9920 11.167 19.250",
}


@pytest.mark.parametrize("name", UNIFORM)
@pytest.mark.parametrize("convention", ["paper", "exact"])
def test_uniform_budgets(name, convention):
    layers = layers_of(name)
    printed = UNIFORM[name].split(" | ")[convention == "exact"].split()
    for bits, text in zip((2, 3, 4, 5, 6, 8), printed, strict=True):
        digits = len(text.partition(".")[2])
        assert f"{Bops(convention).cost(Policy.uniform(layers, bits), layers) / 1e9:.{digits}f}" == text


def test_attention_at_its_true_bits():
    layers = layers_of("vit_tiny")
    assert f"{Bops().cost(Policy.uniform(layers, 4), layers) / 1e9:.3f}" == "5.870"


def test_sum_of_array_is_cost():
    layers = layers_of("vit_tiny")
    policy = Policy.uniform(layers, "w3a5")
    for cost in (Bops(), Bops("paper"), WeightBytes()):
        shares = cost.costs(layers)
        assert shares.shape == (74, 8, 8)
        total = sum(shares[i, policy[n].w - 1, policy[n].a - 1] for i, n in enumerate(layers.names))
        assert total == cost.cost(policy, layers)


def test_costs_are_monotone():
    for cost in (Bops(), Bops("paper"), WeightBytes()):
        shares = cost.costs(layers_of("mobilenetv2"))
        assert (np.diff(shares, axis=1) >= 0).all()
        assert (np.diff(shares, axis=2) >= 0).all()


def test_summary():
    layers = layers_of("resnet20")
    summary = cost_summary(Policy.uniform(layers, 3), layers)
    assert list(summary) == ["gbops", "percent_of_fp32", "bytes", "weight_bytes", "latency_ms"]
    assert summary["gbops"] == 0.391684096
    assert summary["percent_of_fp32"] == pytest.approx(0.9372, abs=1e-4)
    middle = layers.weights - layers.first.weights - layers.last.weights
    assert summary["weight_bytes"] == middle * 3 // 8 + layers.first.weights + layers.last.weights
    assert summary["latency_ms"] is None
    json.dumps(summary)
    paper = cost_summary(Policy.uniform(layers, 3), layers, convention="paper")
    assert paper["gbops"] == pytest.approx(0.36205, abs=1e-5)
    assert paper["percent_of_fp32"] == pytest.approx(0.86, abs=0.005)


def test_table():
    layers = layers_of("resnet20")
    values = np.arange(22 * 64, dtype=np.float64).reshape(22, 8, 8)
    table = LatencyTable(values, "us", names=layers.names)
    policy = Policy.uniform(layers, "w3a5", keep={"*": "w3a5"})
    assert table.cost(policy, layers) == values[:, 2, 4].sum()
    assert table.float_cost(layers) == values[:, 7, 7].sum()
    assert cost_summary(policy, layers, table)["latency_ms"] == pytest.approx(values[:, 2, 4].sum() / 1000)
    assert table.name == "latency"
    with pytest.raises(MismatchError, match=r"22 rows.*53 layers"):
        table.cost(Policy.uniform(layers_of("mobilenetv2"), 3), layers_of("mobilenetv2"))
    renamed = LatencyTable(values, names=("other", *layers.names[1:]))
    with pytest.raises(MismatchError, match="'conv1' is in one only"):
        renamed.cost(policy, layers)
    with pytest.raises(InputError, match=r"2\.5 bits"):
        table.uniform_cost(2.5, layers, {})


def test_refusals():
    layers = layers_of("resnet20")
    with pytest.raises(InputError, match="convention"):
        Bops("thesis")
    with pytest.raises(MismatchError, match="layers"):
        Bops().cost(Policy({"conv1": Bits(8, 8)}), layers)
    with pytest.raises(InputError, match="ms"):
        milliseconds(1.0, "mJ")
    for bad in (np.zeros((3, 8)), np.zeros((0, 8, 8)), np.full((2, 8, 8), np.nan), -np.ones((2, 8, 8))):
        with pytest.raises(InputError):
            LatencyTable(bad)
    with pytest.raises(InputError, match="names"):
        LatencyTable(np.zeros((2, 8, 8)), names=("a",))


def test_a_table_of_energy_is_not_called_latency() -> None:
    layers = layers_of("resnet20")
    table = LatencyTable(np.ones((len(layers), 8, 8)), unit="mJ", quantity="energy")
    summary = cost_summary(Policy.uniform(layers, 4), layers, table)
    assert (summary["latency_ms"], summary["energy"]) == (None, len(layers))


def test_layers_left_in_float_cost_what_they_cost_there():
    layers = layers_of("vit_tiny")
    matmuls = [layer.name for layer in layers if layer.kind == "matmul"]
    rest = layers.leaving(matmuls)
    policy = Policy.uniform(rest, 4)
    quantized = sum(layer.macs * policy[layer.name].w * policy[layer.name].a for layer in rest)
    assert Bops().cost(policy, rest) == quantized + 32**2 * sum(layers[name].macs for name in matmuls)
    assert round(Bops("paper").cost(policy, rest) / 1e9, 2) == 25.45, "the paper's figure for its ViT"
    for convention in ("exact", "paper"):
        assert Bops(convention).float_cost(rest) == Bops(convention).float_cost(layers)
    head = layers.leaving([*matmuls, "head"])
    assert head.other_params - rest.other_params == layers["head"].weights
    assert FileBytes().float_cost(head) == FileBytes().float_cost(layers)
    with pytest.raises(InputError, match="no layer 'nowhere'"):
        layers.leaving(["nowhere"])
    with pytest.raises(InputError, match="nothing is left to quantize"):
        layers.leaving(layers.names)
    table = LatencyTable(np.ones((len(rest), 8, 8)))
    with pytest.raises(InputError, match="is left in float"):
        table.cost(policy, rest)
