import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from arquant.base.errors import InputError, MismatchError
from arquant.models.tracing.layers import Layers
from arquant.quantization.budget import Budget, spelled_out
from arquant.quantization.costs import Bops, FileBytes, LatencyTable, WeightBytes
from arquant.quantization.latency import make_table
from arquant.quantization.policy import Bits, Policy, fixed_bits
from tests.support.networks import layers_of

MEDIUM = settings(max_examples=60, deadline=None)


@pytest.fixture(scope="module")
def resnet() -> Layers:
    return layers_of("resnet20")


def amount(text: str, layers: Layers, **options: object) -> float:
    return Budget.parse(text, layers, **options).limits[0].amount  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bops<=3bit", 391_684_096),
        ("bops<=2.5bit", 280_666_112),
        (" bops <= 2.5 bits ", 280_666_112),
        ("bops≤3bit", 391_684_096),
        ("bops<=1.5%", 0.015 * 1024 * 40_813_184),
        ("bops<=0.35G", 0.35e9),
        ("bops<=350M", 0.35e9),
        ("bops<=3.5e8", 0.35e9),
        ("bops<=0.35GBOPs", 0.35e9),
        ("bops@exact<=3bit", 391_684_096),
        ("bops@paper<=3bit", 362_045_440),
        ("bytes<=100k", 100_000),
        ("bytes<=100kB", 100_000),
        ("bytes<=100KiB", 102_400),
        ("weight_bytes<=3bit", 102_256),
        ("weight_bytes<=10%", 0.1 * 4 * 270_896),
        ("bytes<=20%", 0.2 * 4 * (270_896 + 3_146)),
    ],
)
def test_amounts(resnet, text, expected):
    assert amount(text, resnet) == pytest.approx(expected, rel=1e-12)


def test_the_documented_numbers(resnet):
    assert f"{amount('bops<=2.5bit', resnet) / 1e9:.4f}" == "0.2807"
    four = Bops().cost(Policy.uniform(resnet, 4), resnet) / Bops().float_cost(resnet)
    assert f"{100 * four:.2f}" == "1.61"
    assert not Budget.parse("bops<=1.5%", resnet).allows(Policy.uniform(resnet, 4))


def test_uniform_is_exactly_within_its_own_budget(resnet):
    tables = [make_table(resnet)]
    for bits in range(2, 9):
        policy = Policy.uniform(resnet, bits)
        for name in ("bops", "bops@paper", "bytes", "weight_bytes", "latency"):
            budget = Budget.parse(f"{name}<={bits}bit", resnet, tables=tables)
            assert budget.allows(policy)
            assert budget.usage(policy) == pytest.approx(1.0)
            assert budget.project_back_to_front(policy) == budget.project_greedy(policy) == policy


def test_tables(resnet):
    table = make_table(resnet)
    assert amount("latency<=0.7ms", resnet, tables=[table]) == 0.7
    assert amount("latency<=700us", resnet, tables=[table]) == pytest.approx(0.7)
    assert amount("latency<=0.7", resnet, tables=[table]) == 0.7
    assert amount("latency<=50%", resnet, tables=[table]) == pytest.approx(table.float_cost(resnet) / 2)
    energy = LatencyTable(table.values, "mJ", "energy")
    assert amount("energy<=900uJ", resnet, tables=[table, energy]) == pytest.approx(0.9)
    budget = Budget.parse("energy<=0.9,latency<=0.8ms", resnet, tables=[table, energy])
    assert set(budget.cost(Policy.uniform(resnet, 3))) == {"energy", "latency"}
    with pytest.raises(MismatchError, match="22 rows"):
        Budget.parse("latency<=3ms", layers_of("mobilenetv2"), tables=[table])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be written like"),
        ("bops", "must be written like"),
        ("bops<3bit", "must be written like"),
        ("bops<=3bit,", "must be written like"),
        ("bops<=abc", "must be written like"),
        ("bops<=1.2.3G", "not a number"),
        ("bops<=0bit", "must be positive"),
        ("bops<=-1", "must be written like"),
        ("bops<=9bit", "bits must be from 1 to 8"),
        ("flops<=3bit", "unknown cost 'flops'"),
        ("latency<=3ms", "needs a table"),
        ("bops<=3ms", "unknown unit"),
        ("bytes<=3parsec", "unknown unit"),
        ("bops<=0.1G", r"cheapest policy \(2 bits .* costs 0\.1898 G"),
        ("bytes<=50k", r"costs 84,\d+ bytes"),
        ("bops<=3bit,bops@paper<=0.1G", r"costs 0\.159 G"),
    ],
)
def test_refuses(resnet, text, message):
    with pytest.raises(InputError, match=message):
        Budget.parse(text, resnet)


def test_refuses_table_units_and_fractions(resnet):
    table = make_table(resnet)
    for text in ("latency<=3mJ", "latency<=3k", "latency<=2.5bit"):
        with pytest.raises(InputError):
            Budget.parse(text, resnet, tables=[table])


def test_refuses_tables_it_would_mistake(resnet):
    table = make_table(resnet)
    with pytest.raises(InputError, match="two tables of latency"):
        Budget.parse("latency<=0.7ms", resnet, tables=[table, LatencyTable(2 * table.values)])
    for quantity in ("bops", "bytes", "weight_bytes", "energy per image", ""):
        with pytest.raises(InputError, match="word of its own"):
            LatencyTable(table.values, "mJ", quantity)
    bare = LatencyTable(table.values, "", "energy")
    assert amount("energy<=0.7", resnet, tables=[bare]) == 0.7
    with pytest.raises(InputError, match="that of the table"):
        Budget.parse("energy<=0.7mJ", resnet, tables=[bare])


def test_a_table_that_charges_less_for_more_bits_is_not_called_impossible(resnet):
    values = np.ones((22, 8, 8))
    values[:, 3:, 3:] = 0.25
    table = LatencyTable(values, "mJ", "energy")
    with pytest.raises(InputError, match=r"fewest bits .* costs 20\.5 mJ.*cost 5\.5 mJ.*--min-bits"):
        Budget.parse("energy<=6mJ", resnet, tables=[table])
    assert Budget.parse("energy<=6mJ", resnet, tables=[table], min_bits=4).allows(Policy.uniform(resnet, 4))


def test_impossible_only_because_of_min_bits(resnet):
    assert Budget.parse("bops<=0.1G", resnet, min_bits=1).min_bits == 1
    with pytest.raises(InputError, match="cannot be met"):
        Budget.parse("bops<=3bit", resnet, min_bits=4)


def test_keep_makes_budgets_count_the_kept_layers(resnet):
    keep = {"layer1.*": 8}
    budget = Budget.parse("bops<=3bit", resnet, keep=keep)
    assert budget.limits[0].amount == Bops().cost(Policy.uniform(resnet, 3, keep=keep), resnet)
    projected = budget.project_back_to_front(Policy.uniform(resnet, 8))
    assert projected["layer1.0.conv1"] == Bits(8, 8)
    assert budget.allows(projected)


def test_names(resnet):
    budget = Budget.parse("bops <= 1.5%,bytes<=100k", resnet)
    assert budget.text == "bops<=1.5%,bytes<=100k"
    assert budget.slug == "bops-1.5pct,bytes-100k"
    assert list(budget.cost(Policy.uniform(resnet, 3))) == ["bops", "bytes"]


def test_back_to_front_takes_the_input_bit_of_the_last_layer_first(resnet):
    start = Policy.uniform(resnet, 4)
    cost = Bops().cost(start, resnet)
    last = resnet[-2]
    step = Budget.parse(f"bops<={cost - last.macs * 4}", resnet).project_back_to_front(start)
    assert start.diff(step) == {last.name: (Bits(4, 4), Bits(4, 3))}
    step = Budget.parse(f"bops<={cost - last.macs * 7}", resnet).project_back_to_front(start)
    assert start.diff(step) == {last.name: (Bits(4, 4), Bits(3, 3))}
    step = Budget.parse(f"bops<={cost - last.macs * 7 - 1}", resnet).project_back_to_front(start)
    assert list(start.diff(step)) == [resnet[-3].name, last.name]
    assert step[resnet[-3].name] == Bits(4, 3)


def test_back_to_front_leaves_inputs_alone_if_only_bytes_are_exceeded(resnet):
    projected = Budget.parse("bytes<=95k", resnet).project_back_to_front(Policy.uniform(resnet, 6))
    assert {projected[name].a for name in resnet.names[1:-1]} == {6}


def test_greedy_spares_what_hurts(resnet):
    dear = "layer3.1.conv1"

    def damage(layer, bits):
        return (1000.0 if layer.name == dear else 1.0) * (4.0**-bits.w + 4.0**-bits.a)

    projected = Budget.parse("bops<=3bit", resnet).project_greedy(Policy.uniform(resnet, 8), damage)
    others = [projected[name].w + projected[name].a for name in resnet.names[1:-1] if name != dear]
    assert projected[dear].w + projected[dear].a > max(others)
    with pytest.raises(InputError, match="finite"):
        Budget.parse("bops<=3bit", resnet).project_greedy(projected, lambda layer, bits: float("nan"))


def test_greedy_damages_less_than_back_to_front(resnet):
    budget = Budget.parse("bops<=3.3bit", resnet)
    start = Policy.uniform(resnet, 8)

    def noise(policy: Policy) -> float:
        return sum(4.0**-bits.w + 4.0**-bits.a for bits in policy.values())

    assert noise(budget.project_greedy(start)) < noise(budget.project_back_to_front(start))


LIMITS = st.lists(
    st.one_of(
        st.floats(2.0, 8.0).map(lambda bits: f"bops<={bits:.3f}bit"),
        st.floats(2.0, 8.0).map(lambda bits: f"bops@paper<={bits:.3f}bit"),
        st.floats(2.0, 8.0).map(lambda bits: f"bytes<={bits:.3f}bit"),
        st.integers(2, 8).map(lambda bits: f"latency<={bits}bit"),
        st.floats(0.46, 10.0).map(lambda percent: f"bops<={percent:.3f}%"),
    ),
    min_size=1,
    max_size=3,
)
WIDTHS = st.builds(Bits, st.integers(2, 8), st.integers(2, 8))
KEEP = st.dictionaries(st.sampled_from(["layer1.*", "*.downsample.*", "layer3.2.conv2", "conv1", "fc"]), WIDTHS)


@MEDIUM
@given(limits=LIMITS, keep=KEEP, data=st.data())
def test_every_projected_policy_is_within_budget(resnet, limits, keep, data):
    try:
        budget = Budget.parse(",".join(limits), resnet, keep=keep, tables=[make_table(resnet)])
    except InputError as error:
        if "cannot be met" not in str(error):
            raise
        reject()
    policy = Policy({name: data.draw(WIDTHS) for name in resnet.names})
    weight = {name: data.draw(st.floats(0.0, 10.0)) for name in resnet.names[::5]}
    fixed = fixed_bits(resnet, keep)

    def damage(layer, bits):
        return weight.get(layer.name, 1.0) * (4.0**-bits.w + 4.0**-bits.a)

    for projected in (budget.project_back_to_front(policy), budget.project_greedy(policy, damage)):
        assert budget.allows(projected)
        for limit in budget.limits:
            assert limit.cost.cost(projected, resnet) <= limit.amount * (1 + 1e-12)
        for name in resnet.names:
            if name in fixed:
                assert projected[name] == fixed[name]
            else:
                assert 2 <= projected[name].w <= policy[name].w
                assert 2 <= projected[name].a <= policy[name].a


@MEDIUM
@given(seed=st.integers(0, 2**32 - 1), bits=st.integers(2, 7))
def test_holds_for_tables_that_are_not_monotone(resnet, seed, bits):
    values = np.random.default_rng(seed).random((22, 8, 8))
    table = LatencyTable(values, "mJ", "energy")
    try:
        budget = Budget.parse(f"energy<={bits}bit", resnet, tables=[table])
    except InputError as error:
        if "cannot be met" not in str(error):
            raise
        reject()
    for projected in (
        budget.project_back_to_front(Policy.uniform(resnet, 8)),
        budget.project_greedy(Policy.uniform(resnet, 8)),
    ):
        assert budget.allows(projected)


def test_arrays_for_solvers(resnet):
    budget = Budget.parse("bops<=3bit,bytes<=100k", resnet)
    assert budget.costs.shape == (2, 22, 8, 8)
    assert (budget.costs[1] == FileBytes().costs(resnet)).all()
    weights = Budget.parse("weight_bytes<=100k", resnet, min_bits=2)
    assert (weights.costs[0] == WeightBytes().costs(resnet)).all()
    assert budget.amounts.tolist() == [391_684_096, 100_000]


def test_policy_of_another_network_is_refused(resnet):
    with pytest.raises(MismatchError):
        Budget.parse("bops<=3bit", resnet).project_greedy(Policy.uniform(["a", "b"], 3))


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("bops<=2bit..8bit", ["bops<=2bit", "bops<=2.5bit", "bops<=3bit", "bops<=4bit", "bops<=6bit", "bops<=8bit"]),
        (" bytes <= 2.5bit .. 3.5bit ", ["bytes<=2.5bit", "bytes<=3bit"]),
        ("bops@paper≤4bit..4bit", ["bops@paper<=4bit"]),
        ("bops<=3bit,bytes<=100k", ["bops<=3bit,bytes<=100k"]),
    ],
)
def test_a_range_stands_for_several_budgets(text, points):
    assert spelled_out(text) == points


@pytest.mark.parametrize("text", ["bops<=8bit..2bit", "bops<=9bit..12bit"])
def test_a_range_without_a_width_is_refused(text):
    with pytest.raises(InputError, match=r"none of the widths 2, 2\.5, 3, 4, 6, 8"):
        spelled_out(text)
