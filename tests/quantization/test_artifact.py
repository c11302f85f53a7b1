import json
import struct
import sys
from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from arquant.base.errors import FileFormatError, InputError, MismatchError
from arquant.base.seen import Seen, Use
from arquant.loading.models import load_model
from arquant.models.classifier import Classifier
from arquant.models.tracing.layers import find_layers
from arquant.quantization.artifact import (
    ArtifactSize,
    _digest,
    _read,
    counted_bytes,
    load_artifact,
    read_provenance,
    save_artifact,
)
from arquant.quantization.costs import HEADER_BYTES, FileBytes
from arquant.quantization.policy import Bits, Policy
from arquant.quantization.quantized import quantize
from tests.support.damage import FUZZ, mutate

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
PIXELS = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))

FACTORY = """
import torch
from torch import nn

class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, 2, 1)
        self.norm = nn.BatchNorm2d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.tied = nn.Linear(8, 8)
        self.tie = nn.Linear(8, 8)
        self.tie.weight = self.tied.weight
        self.register_buffer("order", torch.arange(8))
        self.register_buffer("wide", torch.tensor([-1, 2**40]))
        self.register_buffer("scale", torch.ones(8, dtype=torch.float64))
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))[:, self.order].flatten(2)[:, :, :16].transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head((self.tie(nn.functional.gelu(4 * self.tied(x))) * self.scale.float()).mean(1))
"""


def logits(model):
    with torch.no_grad():
        return model(PIXELS)


@pytest.fixture(scope="module")
def resnet():
    return quantize(load_model("resnet20", weights_required=False), 4, IMAGES, sigma=0.25)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A network of the user's own, in a module of the current folder."""
    (tmp_path / "tiny_network.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield load_model("tiny_network:Tiny", input_shape=(3, 32, 32))
    sys.modules.pop("tiny_network", None)


def test_round_trip_is_bit_identical(resnet, tmp_path):
    path = tmp_path / "model.safetensors"
    save_artifact(path, resnet, {"seed": 3})
    loaded = load_artifact(path)
    assert torch.equal(logits(loaded), logits(resnet))
    assert loaded.fingerprint() == resnet.fingerprint()
    assert loaded.policy == resnet.policy
    assert (loaded.mean == resnet.mean).all()
    assert not loaded.training
    assert read_provenance(path) == {"seed": 3}


def test_class_names_and_the_fit_of_photos_survive(resnet, tmp_path):
    plain, path = save_artifact(tmp_path / "plain.safetensors", resnet, {}), tmp_path / "model.safetensors"
    assert load_artifact(tmp_path / "plain.safetensors").fit is None
    named = deepcopy(resnet)
    named.class_names, named.fit = tuple("abcdefghij"), "squash"
    size = save_artifact(path, named, {})
    loaded = load_artifact(path)
    assert (loaded.class_names, loaded.fit) == (named.class_names, "squash")
    assert loaded.fingerprint() == resnet.fingerprint()
    assert (size.weight_bytes, size.float_bytes) == (plain.weight_bytes, plain.float_bytes)
    named.class_names = ("a", "b")
    save_artifact(path, named, {})
    with pytest.raises(FileFormatError, match="2 class names for 10 classes"):
        load_artifact(path)


def test_skewed_grids_survive_and_others_leave_no_trace(resnet, tiny, tmp_path):
    four, path = quantize(tiny, 4, IMAGES, sigma=0.25), tmp_path / "tiny.safetensors"
    save_artifact(path, four, {})
    read = load_artifact(path, arch="tiny_network:Tiny")
    assert four.quantizer("tie").a.skewed_low is not None
    assert read.integer_state()["tie"].input == four.integer_state()["tie"].input
    assert read.fingerprint() == four.fingerprint()
    metadata, tensors = _read(path)
    tensors["lows"] = tensors["lows"][1:]
    metadata["sha256"] = _digest(metadata, tensors)
    save_file(tensors, path, metadata)
    with pytest.raises(FileFormatError, match="lows"):
        load_artifact(path, arch="tiny_network:Tiny")
    save_artifact(path, resnet, {})
    assert "lows" not in _read(path)[1]


@pytest.mark.parametrize(
    "left", [["attention#qk", "attention#av"], ["tied", "tie"], ["conv", "attention.in_proj", "head"]]
)
def test_layers_left_in_float_are_read_back(tiny, tmp_path, left):
    layers = find_layers(tiny).leaving(left)
    path = tmp_path / "tiny.safetensors"
    saved = quantize(tiny, Policy.uniform(layers, 3), IMAGES, sigma=0.25, layers=layers)
    size = save_artifact(path, saved, {})
    loaded = load_artifact(path, arch="tiny_network:Tiny")
    assert torch.equal(logits(loaded), logits(saved))
    assert loaded.fingerprint() == saved.fingerprint()
    assert loaded.policy.left == tuple(left)
    assert size.counted <= FileBytes().cost(saved.policy, layers)
    whole = quantize(tiny, 8, IMAGES, sigma=0.25)
    assert saved.fingerprint() != whole.fingerprint()
    metadata, tensors = _read(path)
    metadata["left"] = json.dumps(["nowhere"])
    metadata["sha256"] = _digest(metadata, tensors)
    save_file(tensors, path, metadata)
    with pytest.raises(FileFormatError, match="no list of layers"):
        load_artifact(path, arch="tiny_network:Tiny")


def test_a_weight_is_not_left_in_float_by_one_layer_alone(tiny):
    layers = find_layers(tiny).leaving(["tie"])
    with pytest.raises(InputError, match="tie is left in float, and its weight"):
        quantize(tiny, Policy.uniform(layers, 3), IMAGES, sigma=0.25, layers=layers)


@pytest.mark.parametrize("name", ["adapter", "gain", "dynamic", "gram", "tied_and_read", "by_name", "root"])
def test_odd_uses_of_weights_are_read_back_too(name, tmp_path):
    arch = f"tests.support.odd_networks:{name}"
    torch.manual_seed(0)
    classifier = load_model(arch, input_shape=(3, 8, 8))
    saved = quantize(classifier, 3, IMAGES[:, :, :8, :8].copy(), sigma=0.25)
    save_artifact(tmp_path / "m.safetensors", saved, {}, arch=arch)
    loaded = load_artifact(tmp_path / "m.safetensors", arch=arch)
    assert loaded.fingerprint() == saved.fingerprint()
    with torch.no_grad():
        assert torch.equal(loaded(PIXELS[:, :, :8, :8]), saved(PIXELS[:, :, :8, :8]))
        before = saved.fingerprint()
        for parameter in saved.module.parameters():
            if parameter.dim() == 1:
                parameter.mul_(3)
    assert saved.fingerprint() != before, "biases and gains belong to the function"


def test_saving_a_loaded_model_changes_nothing(resnet, tmp_path):
    save_artifact(tmp_path / "a.safetensors", resnet, {})
    save_artifact(tmp_path / "b.safetensors", load_artifact(tmp_path / "a.safetensors"), {})
    digests = {_read(tmp_path / name)[0]["sha256"] for name in ("a.safetensors", "b.safetensors")}
    assert len(digests) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors"]


@pytest.mark.parametrize("options", [{"per_channel": True}, {"learn": "lsq", "clip": "max"}])
def test_every_kind_of_model_survives(tiny, tmp_path, options):
    model = quantize(tiny, "w3a5", IMAGES, sigma=0.25, estimate_bn=True, **options)
    save_artifact(tmp_path / "m.safetensors", model, {})
    loaded = load_artifact(tmp_path / "m.safetensors", arch="tiny_network:Tiny")
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.fingerprint() == model.fingerprint()
    assert (loaded.per_channel, loaded.learn, loaded.clip) == (model.per_channel, model.learn, model.clip)
    assert loaded.module.tie.weight is loaded.module.tied.weight
    tensors = _read(tmp_path / "m.safetensors")[1]
    assert (tensors["state.order"].dtype, tensors["state.wide"].dtype) == (torch.uint8, torch.int64)
    assert (loaded.module.order.dtype, loaded.module.wide.tolist()) == (torch.int64, [-1, 2**40])


UNUSUAL = """
import torch
from torch import nn
from torch.nn import functional as F

class Standardized(nn.Conv2d):
    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)

class Unusual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 8, 8)
        self.computed = Standardized(64, 64, 3, padding=1)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(64, 64, 3, padding=1))
        self.tied = nn.Linear(64, 64)
        self.tie = nn.Linear(64, 64)
        self.tie.weight = self.tied.weight
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = torch.relu(self.normed(torch.relu(self.computed(torch.relu(self.stem(x))))))
        return self.head(self.tie(torch.relu(self.tied(x.mean((2, 3))))))
"""


def overhead(size: ArtifactSize) -> float:
    """The file without its header, relative to weights and floats, minus 1."""
    return (size.file_bytes - size.header_bytes) / (size.weight_bytes + size.float_bytes) - 1


@pytest.mark.parametrize("options", [{}, {"per_channel": True, "learn": "lsq"}])
def test_weights_that_are_computed_or_shared_are_packed_too(tmp_path, monkeypatch, options):
    (tmp_path / "unusual_network.py").write_text(UNUSUAL)
    monkeypatch.chdir(tmp_path)
    name = "unusual_network:Unusual"
    model = quantize(load_model(name, input_shape=(3, 32, 32)), "w2a4", IMAGES, sigma=0.25, **options)
    model.set_policy_(model.policy.with_({"tie": "w5a4", "normed": "w1a4"}))
    size = save_artifact(tmp_path / "m.safetensors", model, {})
    assert abs(overhead(size)) <= 0.05
    loaded = load_artifact(tmp_path / "m.safetensors", arch=name)
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.fingerprint() == model.fingerprint()
    save_artifact(tmp_path / "again.safetensors", loaded, {})
    assert _read(tmp_path / "again.safetensors")[0]["sha256"] == _read(tmp_path / "m.safetensors")[0]["sha256"]

    loaded.train()(PIXELS).square().mean().backward()
    for layer in ("computed", "normed", "tied", "tie"):
        assert loaded.quantizer(layer).w.own.grad.abs().sum() > 0, "its weight can be fine-tuned"
    sys.modules.pop("unusual_network")


def test_the_policy_of_many_layers_is_not_in_the_header(resnet, tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    usual = save_artifact(path, resnet, {}).header_bytes
    monkeypatch.setattr("arquant.quantization.artifact.MOST_POLICY_BYTES", 100)
    assert save_artifact(path, resnet, {}).header_bytes < usual - 400
    loaded = load_artifact(path)
    assert loaded.fingerprint() == resnet.fingerprint()
    assert loaded.policy == resnet.policy
    with pytest.raises(FileFormatError, match="header"):
        load_artifact(rewritten(path, lambda m, t: t.update(policy=t["policy"][:-1])))


def test_code_that_only_a_file_names_is_not_run(tiny, tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    save_artifact(path, quantize(tiny, 4, IMAGES, sigma=0.25), {})
    (tmp_path / "tiny_network.py").write_text("raise SystemExit('this code was run')")
    sys.modules.pop("tiny_network")
    for load in (load_artifact, load_model, lambda place: load_model(place.parent)):
        with pytest.raises(InputError, match="add --arch tiny_network:Tiny"):
            load(path)
        assert "tiny_network" not in sys.modules
    with pytest.raises(MismatchError, match="tiny_network:Tiny, not 'tiny_network:other'"):
        load_artifact(path, arch="tiny_network:other")
    with pytest.raises(MismatchError):
        load_artifact(path, arch="resnet20")


def test_a_factory_may_return_a_classifier(tiny, tmp_path):
    with (tmp_path / "tiny_network.py").open("a") as file:
        file.write("""
from arquant.models.classifier import Classifier

def wrapped():
    return Classifier(
        Tiny(), num_classes=10, input_shape=(3, 32, 32), mean=(10, 20, 30), std=(50,), bounds=(0, 255), name="mine"
    )
""")
    sys.modules.pop("tiny_network")
    model = quantize(load_model("tiny_network:wrapped"), 4, IMAGES, sigma=0.25)
    save_artifact(tmp_path / "m.safetensors", model, {})
    loaded = load_artifact(tmp_path / "m.safetensors", arch="tiny_network:wrapped")
    assert torch.equal(logits(loaded), logits(model))
    assert (loaded.bounds, loaded.name) == ((0.0, 255.0), "mine")
    assert loaded.fingerprint() == model.fingerprint()


def test_the_network_of_a_file_may_be_stated(resnet, tmp_path):
    save_artifact(tmp_path / "m.safetensors", resnet, {})
    assert load_artifact(tmp_path / "m.safetensors", arch="cifar_resnet20").fingerprint() == resnet.fingerprint()
    with pytest.raises(MismatchError, match="holds a resnet20, not 'resnet50'"):
        load_model(tmp_path / "m.safetensors", arch="resnet50")


@pytest.fixture(scope="module")
def small():
    """A quantized network of ours, small enough for many round trips."""
    torch.manual_seed(0)
    return quantize(load_model("resnet20", weights_required=False), 8, IMAGES, sigma=0.25, per_channel=True)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), min_size=22, max_size=22))
def test_round_trip_at_every_width(small, tmp_path_factory, widths):
    policy = Policy({name: Bits(*bits) for name, bits in zip(small.layers.names, widths, strict=True)})
    small.set_policy_(policy)
    path = tmp_path_factory.getbasetemp() / "widths.safetensors"
    size = save_artifact(path, small, {})
    loaded = load_artifact(path)
    assert torch.equal(logits(loaded), logits(small))
    assert loaded.policy == policy
    for name, layer in loaded.integer_state().items():
        np.testing.assert_array_equal(layer.weight, small.integer_state()[name].weight)
    assert size.weight_bytes == round(sum(layer.weights * policy[layer.name].w / 8 for layer in small.layers))


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_the_file_is_as_small_as_promised(resnet, small, tmp_path, bits):
    for model in (resnet, small):
        model.set_policy_(Policy.uniform(model.layers, bits))
        size = save_artifact(tmp_path / "m.safetensors", model, {"note": "x" * 200})
        assert size.file_bytes == (tmp_path / "m.safetensors").stat().st_size
        assert abs(overhead(size)) <= 0.05
        assert size.header_bytes <= 20_000
    resnet.set_policy_(Policy.uniform(resnet.layers, 4))


def test_fine_tuned_models_and_negative_sizes_survive(resnet, tmp_path):
    model = load_copy(resnet)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))))
        model.quantizer("layer1.0.conv1").a.size.neg_()
    save_artifact(tmp_path / "m.safetensors", model, {})
    assert torch.equal(logits(load_artifact(tmp_path / "m.safetensors")), logits(model))


def load_copy(model):
    copy = quantize(load_model("resnet20", weights_required=False), 4, IMAGES, sigma=0.25)
    copy.load_state_dict(model.state_dict())
    return copy


def test_load_model_reads_it(resnet, tmp_path):
    save_artifact(tmp_path / "model.safetensors", resnet, {})
    assert torch.equal(logits(load_model(tmp_path)), logits(resnet))


def test_a_loaded_model_says_why_its_policy_is_fixed(resnet, tmp_path):
    save_artifact(tmp_path / "m.safetensors", resnet, {})
    loaded = load_artifact(tmp_path / "m.safetensors")
    with pytest.raises(InputError, match="calibration statistics"):
        loaded.set_policy_(Policy.uniform(loaded.layers, 2))


def test_unknown_networks_need_an_architecture(tmp_path):
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    model = quantize(Classifier(module, num_classes=10, input_shape=(3, 32, 32)), 4, IMAGES, sigma=0.25)
    with pytest.raises(InputError, match="pass arch"):
        save_artifact(tmp_path / "m.safetensors", model, {})
    with pytest.raises(InputError, match="pass arch"):
        save_artifact(tmp_path / "m.safetensors", model, {}, arch="weights.pt")
    assert not list(tmp_path.iterdir())


def test_too_much_provenance_is_refused(resnet, tmp_path):
    with pytest.raises(InputError, match="shorten"):
        save_artifact(tmp_path / "m.safetensors", resnet, {"log": "x" * 30_000})
    with pytest.raises(InputError, match="JSON"):
        save_artifact(tmp_path / "m.safetensors", resnet, {"array": np.zeros(3)})
    assert not list(tmp_path.iterdir())


def test_missing_foreign_and_renamed_files_are_refused(resnet, tmp_path):
    with pytest.raises(InputError, match="no file"):
        load_artifact(tmp_path / "none.safetensors")
    foreign = tmp_path / "foreign.safetensors"
    save_file({"x": torch.zeros(3)}, foreign)
    with pytest.raises(FileFormatError, match=r"arquant\.artifact"):
        load_artifact(foreign)
    foreign.write_text("hello")
    with pytest.raises(FileFormatError, match="intact"):
        load_artifact(foreign)


def rewritten(path, change):
    """The file with its header changed, and its digest made to fit again."""
    metadata, tensors = _read(path)
    change(metadata, tensors)
    metadata["sha256"] = _digest(metadata, tensors)
    save_file(tensors, path, metadata)
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda m, t: m.update(version="2"),
        lambda m, t: m.pop("policy"),
        lambda m, t: m.update(policy="[1, 2"),
        lambda m, t: m.update(policy='{"conv1": "w9a9"}'),
        lambda m, t: m.update(clip="soft"),
        lambda m, t: m.update(arch="m.safetensors"),
        lambda m, t: m.update(bounds="[1]"),
        lambda m, t: m.update(mean='"a"'),
        lambda m, t: t.update(weights=t["weights"][:-1]),
        lambda m, t: t.update(weights=t["weights"].float()),
        lambda m, t: t.update(floats=torch.cat([t["floats"], torch.zeros(1)])),
        lambda m, t: t.update(sizes=t["sizes"] * float("nan")),
        lambda m, t: t.update(extra=torch.zeros(2)),
        lambda m, t: t.pop("floats"),
    ],
)
def test_forged_files_are_refused(resnet, tmp_path, change):
    path = tmp_path / "m.safetensors"
    save_artifact(path, resnet, {})
    with pytest.raises(FileFormatError):
        load_artifact(rewritten(path, change))


def test_a_file_of_another_network_is_refused(resnet, tmp_path):
    path = tmp_path / "m.safetensors"
    save_artifact(path, resnet, {})
    with pytest.raises(MismatchError):
        load_artifact(rewritten(path, lambda m, t: m.update(arch="resnet32")))


@pytest.fixture(scope="module")
def saved(resnet, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "m.safetensors"
    save_artifact(path, resnet, {"seed": 0})
    return path.read_bytes(), resnet.fingerprint()


@FUZZ
@given(st.data())
def test_fuzz_no_damage_goes_unnoticed(saved, tmp_path_factory, data):
    content, fingerprint = saved
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(mutate(content, data))
    try:
        loaded = load_artifact(path)
    except FileFormatError:
        return
    assert loaded.fingerprint() == fingerprint


@pytest.mark.parametrize("place", ["first weight", "last byte", "end"])
def test_one_changed_bit_of_the_data_is_noticed(saved, tmp_path, place):
    content = bytearray(saved[0])
    header = 8 + struct.unpack("<Q", content[:8])[0]
    if place == "end":
        content += b"x"
    else:
        content[header if place == "first weight" else -1] ^= 1
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(FileFormatError):
        load_artifact(tmp_path / "m.safetensors")


def test_the_header_is_plain_json(saved):
    content, _ = saved
    length = struct.unpack("<Q", content[:8])[0]
    metadata = json.loads(content[8 : 8 + length])["__metadata__"]
    assert metadata["schema"] == "arquant.artifact"
    assert metadata["arch"] == "resnet20"
    assert json.loads(metadata["policy"])["conv1"] == "w8a8"


@pytest.mark.parametrize("per_channel", [False, True])
def test_the_cost_bytes_bounds_the_file_without_its_records_of_images(tiny, tmp_path, per_channel):
    for number, bits in enumerate((1, 3, 8)):
        quantized = quantize(tiny, bits, IMAGES, sigma=0.25, per_channel=per_channel)
        quantized.class_names = tuple(f"a class with the number {place}" for place in range(10))
        quantized.seen = Seen({"train": Use(digests=np.arange(1000, dtype=np.uint64))})
        path, most = tmp_path / f"{number}.safetensors", FileBytes(per_channel).cost(quantized.policy, quantized.layers)
        size = save_artifact(path, quantized, {"sigma": 0.25, "command": "arquant quantize"})
        assert most - HEADER_BYTES < size.counted <= most
        assert counted_bytes(path) == size.counted < size.file_bytes - 10_000
        long = save_artifact(
            path, quantized, {"sigma": 0.25, "command": "arquant search --out " + 'a "long" word ' * 400}
        )
        assert long.counted <= most
        assert read_provenance(path)["command"].startswith("arquant search")
        assert load_artifact(path, arch="tiny_network:Tiny").fingerprint() == quantized.fingerprint()
