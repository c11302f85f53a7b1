import json
import pickle
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arquant.base.errors import FileFormatError, InputError, MismatchError
from arquant.models.tracing.layer import Layers
from arquant.quantization.policy import Bits, Policy, chosen_policy, fixed_bits, left_in_float, parse_keep
from tests.support.networks import layers_of

widths = st.integers(1, 8)
bits = st.builds(Bits, widths, widths)
names = st.text("abc.#01", min_size=1, max_size=6)
policies = st.builds(Policy, st.dictionaries(names, bits, min_size=1))
FIVE = ["conv1", "layer1.0.conv1", "attn", "attn#qk", "head.fc"]


@dataclass(frozen=True)
class Shaped:
    name: str
    weight_shape: tuple[int, ...]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3", Bits(3, 3)), (3, Bits(3, 3)), ("w3a4", Bits(3, 4)), ("W1A8", Bits(1, 8)), (Bits(2, 5), Bits(2, 5))],
)
def test_bits_parse(text, expected):
    assert Bits.parse(text) == expected


@pytest.mark.parametrize("text", ["", "0", "9", "32", "w3", "a3w4", "3.0", "w3a", "w0a4", "w4a9", "-3", 0, 9, True])
def test_bits_refuse(text):
    with pytest.raises(InputError):
        Bits.parse(text)


@pytest.mark.parametrize("value", [True, 3.0, "3", None])
def test_bits_refuse_types(value):
    with pytest.raises(InputError, match="activation bits"):
        Bits(3, value)


@given(bits)
def test_bits_text_round_trip(value):
    assert Bits.parse(str(value)) == value


def test_uniform_keeps_the_ends_at_eight():
    policy = Policy.uniform(FIVE, "w3a4")
    assert list(policy) == FIVE
    assert policy["conv1"] == policy["head.fc"] == Bits(8, 8)
    assert policy["attn#qk"] == policy["layer1.0.conv1"] == Bits(3, 4)


def test_keep_patterns():
    keep = parse_keep(["head.*=6, attn.*=w2a5", "conv1=7"])
    assert keep == {"head.*": Bits(6, 6), "attn.*": Bits(2, 5), "conv1": Bits(7, 7)}
    assert fixed_bits(FIVE, keep) == {
        "conv1": Bits(7, 7),
        "attn": Bits(2, 5),
        "attn#qk": Bits(2, 5),
        "head.fc": Bits(6, 6),
    }
    assert Policy.uniform(FIVE, 3, keep={"*": 3}) == Policy(dict.fromkeys(FIVE, 3))


def test_keep_pattern_that_matches_nothing():
    with pytest.raises(InputError, match=r"'haed.fc' matches no layer; did you mean head.fc"):
        fixed_bits(FIVE, {"haed.fc": 8})


@pytest.mark.parametrize("text", ["head", "=8", "head=", "head=9", ""])
def test_keep_refuses(text):
    with pytest.raises(InputError):
        parse_keep([text])


@given(policies, st.data())
def test_order_does_not_matter_for_equality(policy, data):
    shuffled = Policy({name: policy[name] for name in data.draw(st.permutations(list(policy)))}, {"name": "other"})
    assert shuffled == policy
    assert hash(shuffled) == hash(policy)
    assert policy.diff(shuffled) == {}


def test_with_and_diff():
    policy = Policy.uniform(FIVE, 3)
    changed = policy.with_({"attn#qk": "w5a4"}, attn=2)
    assert policy["attn"] == Bits(3, 3)
    assert changed != policy
    assert policy.diff(changed) == {"attn": (Bits(3, 3), Bits(2, 2)), "attn#qk": (Bits(3, 3), Bits(5, 4))}
    assert Policy({"x": 1}).diff(Policy({"y": 2})) == {"x": (Bits(1, 1), None), "y": (None, Bits(2, 2))}
    with pytest.raises(InputError, match="no layer 'conv2'; did you mean conv1"):
        policy.with_(conv2=3)


@given(policy=policies)
def test_json_and_pickle_round_trip(tmp_path_factory, policy):
    path = tmp_path_factory.mktemp("policy") / "policy.json"
    policy.save(path, model={"name": "resnet20"})
    again = Policy.load(path)
    assert again == policy
    assert list(again) == list(policy)
    assert again.model == {"name": "resnet20"}
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert [p.name for p in path.parent.iterdir()] == ["policy.json"]


def test_file_as_the_documents_state_it(tmp_path):
    path = tmp_path / "p.json"
    Policy({"layer1.0.conv1": "w4a3"}).save(path)
    assert json.loads(path.read_text()) == {
        "schema": "arquant.policy",
        "version": 1,
        "model": {},
        "layers": {"layer1.0.conv1": {"w": 4, "a": 3}},
    }


GOOD = {"schema": "arquant.policy", "version": 1, "model": {}, "layers": {"conv1": {"w": 4, "a": 3}}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a policy"),
        ("[1]", "schema"),
        (json.dumps(GOOD)[:-9], "not a policy"),
        (json.dumps({**GOOD, "schema": "x"}), "schema"),
        (json.dumps({**GOOD, "version": 2}), "version 2"),
        (json.dumps({**GOOD, "layers": {}}), "layers"),
        (json.dumps({**GOOD, "layers": {"conv1": 4}}), "layer 'conv1' must be like"),
        (json.dumps({**GOOD, "layers": {"conv1": {"w": 4}}}), "layer 'conv1' must be like"),
        (json.dumps({**GOOD, "layers": {"conv1": {"w": 4, "a": 32}}}), "layer 'conv1': activation bits"),
        (json.dumps({**GOOD, "layers": {"conv1": {"w": True, "a": 3}}}), "layer 'conv1': weight bits"),
        (json.dumps(GOOD).replace('"w": 4', '"w": 4, "w": 5'), "'w' appears twice"),
        (json.dumps({**GOOD, "model": {"shapes": {"conv1": 16}}}), '"shapes" of "model" must be like .* got .* 16'),
        (json.dumps({**GOOD, "model": {"shapes": [1]}}), r"got \[1\]"),
        ("[" * 100_000, "not a policy"),
    ],
)
def test_load_refuses(tmp_path, text, message):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=message) as error:
        Policy.load(path)
    assert "bad.json" in str(error.value)


def test_load_refuses_missing_and_binary_files(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        Policy.load(tmp_path / "none.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match="not a text file"):
        Policy.load(tmp_path / "binary")


def test_check_names_the_layers():
    policy = Policy({"conv1": 8, "fc": 8}, {"name": "resnet20", "shapes": {"conv1": [16, 3, 3, 3]}})
    policy.check(["conv1", "fc"])
    policy.check([Shaped("conv1", (16, 3, 3, 3)), Shaped("fc", (10, 64))])
    with pytest.raises(MismatchError, match=r"'resnet20'.*lacks layers: conv2; it names layers the model has not: fc"):
        policy.check(["conv1", "conv2"])
    with pytest.raises(MismatchError, match=r"conv1 \(16, 3, 3, 3\), here \(8, 3, 3, 3\)"):
        policy.check([Shaped("conv1", (8, 3, 3, 3)), Shaped("fc", (10, 64))])


def five_layers():
    some = layers_of("vit_tiny").first
    return Layers(tuple(replace(some, name=name) for name in FIVE))


def test_layers_left_in_float_have_no_bits():
    keep = ["attn#*=float", "layer1.*=8"]
    assert left_in_float(FIVE, keep) == ["attn#qk"]
    assert parse_keep(keep) == {"layer1.*": Bits(8, 8)}
    policy, rest = chosen_policy(five_layers(), bits="3", policy=None, keep=keep)
    assert ([layer.name for layer in rest.left], "attn#qk" in policy) == (["attn#qk"], False)
    assert policy["layer1.0.conv1"] == Bits(8, 8)
    with pytest.raises(InputError, match="matches no layer"):
        left_in_float(FIVE, ["nowhere=float"])


def test_a_policy_file_says_what_is_left_in_float(tmp_path):
    path = tmp_path / "policy.json"
    policy, rest = chosen_policy(five_layers(), bits="3", policy=None, keep=["attn#*=float"])
    policy.save(path, model=rest.facts())
    assert chosen_policy(five_layers(), bits=None, policy=path)[0].left == ("attn#qk",)
    with pytest.raises(MismatchError, match="lacks layers: attn#qk"):
        Policy.load(path).check(FIVE)
    data = json.loads(path.read_text())
    for damaged in ("attn#qk", [3], {"attn#qk": 1}):
        data["model"]["left"] = damaged
        path.write_text(json.dumps(data))
        with pytest.raises(FileFormatError, match='"left" of "model"'):
            Policy.load(path)
