"""The fingerprint sees whatever changes a function, names what it cannot see, and is the same in every process."""

import collections
import dataclasses
import enum
import functools
import json
import os
import subprocess
import sys
import textwrap
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from arquant.loading.models import load_model
from arquant.models.architectures.vit import VisionTransformer
from arquant.models.classifier import Classifier
from arquant.models.fingerprint import spelling
from arquant.models.optional import import_timm
from arquant.quantization.artifact import save_artifact
from arquant.quantization.quantized import quantize
from tests.support.command_line import InProcess

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated", "ignore:Sparse CSR")

SHIPPED = {
    "resnet20:sigma=0.25": "c3f68c797c497fb3816aa7956f0bbab3fc20797072f8ee843966152878c2e7c5",
    "resnet20:sigma=0.5": "1b2955a5be01cba797fe44bdfa3b0c83d6154986a099a00629bd2c53323197b2",
    "resnet20:sigma=1.0": "3f40722c60ee2713cf5fc6bdab25de0627832c4b7e1fe7f4b36d4ae7277a1ddf",
}
RESULTS = Path(__file__).parents[3] / "results"
SOURCE = Path(__file__).parent.parent / "src"
SHAPE = (3, 4, 4)


class Net(nn.Module):
    """A network with one attribute that may be anything."""

    def __init__(self, knob: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(48, 4)
        self.knob = knob

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(x.flatten(1))
        return out


def classifier(module: nn.Module) -> Classifier:
    return Classifier(module, num_classes=4, input_shape=SHAPE)


def fingerprint(module: nn.Module) -> str:
    return classifier(module).fingerprint()


@pytest.mark.parametrize(("name", "known"), SHIPPED.items())
def test_published_fingerprints_of_shipped_weights(name: str, known: str) -> None:
    model = load_model(name)
    assert (model.fingerprint(), model.spelling().version) == (known, 1)


@pytest.mark.parametrize("folder", ["resnet20-4bit", "resnet20-3bit-sigma1.0"])
def test_published_fingerprints_of_quantized_models(folder: str) -> None:
    recorded = json.loads((RESULTS / folder / "certificates.json").read_text())["provenance"]["model"]["fingerprint"]
    model = load_model(RESULTS / folder / "model.safetensors")
    assert (model.fingerprint(), model.spelling().version) == (recorded, 1)


def test_fingerprints_of_version_1_with_settings_that_no_text_shows() -> None:
    assert load_model("vit_tiny", weights_required=False).fingerprint() == (
        "5d358dac99235013ac90836ddf68e5252a6d887da48cba10643f0831930b81f0"
    )
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(3, 8, 4, 4, padding_mode="reflect", padding=1), nn.Flatten(2),
        nn.TransformerEncoderLayer(81, 3, batch_first=True, activation="gelu"), nn.Flatten(), nn.Linear(648, 4),
    )  # fmt: skip
    model = Classifier(nn.Sequential(*layers), num_classes=4, input_shape=(3, 32, 32))
    assert model.fingerprint() == "ae3c9ae794dc7e836b579ac8fde09498208d7155672277bfa7cb4e024139a68b"


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntFlag):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Options:
    scale: float = 1.0
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    scale: float = 1.0


class Holder:
    """An object with whatever attributes."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def scaled(self, x: Tensor) -> Tensor:
        return x

    def negated(self, x: Tensor) -> Tensor:
        return -x


class Numbers(list[int]):
    """A list with an attribute."""


Pair = collections.namedtuple("Pair", "first second")


def helper(x: Any, factor: float = 1.0) -> Any:
    return x * factor


def closure(factor: float) -> Callable[[Any], Any]:
    return lambda x: x * factor


def defaulted(factor: float) -> Callable[[Any], Any]:
    return lambda x, factor=factor: x * factor


def decorated(factor: float) -> Callable[[Any], Any]:
    @torch.no_grad()
    @functools.lru_cache
    def inner(x: Any) -> Any:
        return x * factor

    return inner


def marked(mark: int) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        return x

    function.mark = mark  # type: ignore[attr-defined]
    return function


def with_attribute(mark: int) -> Numbers:
    numbers = Numbers([1, 2])
    numbers.mark = mark  # type: ignore[attr-defined]
    return numbers


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cycle(value: int) -> Holder:
    holder = Holder(value=value)
    holder.self, holder.list = holder, [holder]  # type: ignore[attr-defined]
    holder.list.append(holder.list)  # type: ignore[attr-defined]
    return holder


def linear(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(2, 2)


@torch.jit.script
def script_plus(x: Tensor) -> Tensor:
    return x + 1


@torch.jit.script
def script_minus(x: Tensor) -> Tensor:
    return x - 1


KNOBS: dict[str, tuple[Callable[[], Any], ...]] = {
    "numbers": (lambda: 1, lambda: 2, lambda: 1.0, lambda: True, lambda: 1 + 0j, lambda: -0.0, lambda: 0.0, lambda: "1"),
    "large numbers": (lambda: 10**5000, lambda: 10**5000 + 1),
    "not a number": (lambda: float("nan"), lambda: float("inf")),
    "texts": (lambda: "a", lambda: "b", lambda: b"a", lambda: bytearray(b"a"), lambda: "\ud800"),
    "arrays": (
        lambda: np.zeros(3), lambda: np.ones(3), lambda: np.zeros(3, np.float32), lambda: np.zeros((3, 1)),
        lambda: np.float32(0), lambda: np.float64(0), lambda: np.array(["a", 1], object), lambda: np.array(["b", 1], object),
        lambda: np.ma.masked_array([1.0, 2.0], [0, 1]), lambda: np.ma.masked_array([1.0, 2.0], [1, 0]),
        lambda: np.zeros(2, [("a", "f4"), ("b", "f4")]), lambda: np.zeros(2, [("a", "f4"), ("c", "f4")]),
    ),
    "large arrays": (lambda: np.arange(10**6), lambda: np.r_[np.arange(10**6 - 1), 0]),
    "tensors": (
        lambda: torch.zeros(3), lambda: torch.ones(3), lambda: torch.zeros(3, 1), lambda: torch.zeros(3).bfloat16(),
        lambda: torch.eye(3).to_sparse(), lambda: (2 * torch.eye(3)).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(), lambda: (2 * torch.eye(3)).to_sparse_csr(), lambda: torch.zeros(0, 3),
    ),
    "lists": (lambda: [1, 2], lambda: [2, 1], lambda: (1, 2), lambda: [[1], 2], lambda: [1, [2]], list, lambda: [[]]),
    "long lists": (lambda: list(range(5000)), lambda: [*range(4999), 0], lambda: tuple(range(5000))),
    "dicts": (
        lambda: {"a": 1}, lambda: {"a": 2}, lambda: {"b": 1}, lambda: {"a": 1, "b": 2}, lambda: {"b": 2, "a": 1},
        lambda: {"a": {"a": 1}}, lambda: {1: 1}, lambda: collections.OrderedDict(a=1),
        lambda: collections.defaultdict(int, a=1), lambda: collections.defaultdict(list, a=1),
    ),
    "sets": (lambda: {1, 2}, lambda: {1, 3}, lambda: frozenset((1, 2)), lambda: {"a"}, lambda: {(1, "a")}, lambda: {Colour}),
    "enums": (lambda: Colour.RED, lambda: Colour.BLUE, lambda: Level.LOW, lambda: Level.LOW | Level.HIGH),
    "dataclasses": (
        lambda: Options(), lambda: Options(2.0), lambda: Options(names=("a",)), lambda: Slotted(), lambda: Slotted(2.0),
    ),
    "objects": (
        lambda: Holder(a=1), lambda: Holder(a=2), lambda: Holder(b=1), lambda: Holder(a=Holder(a=1)),
        lambda: Holder(a=Holder(a=2)), lambda: [Holder(a=1)], lambda: types.SimpleNamespace(a=1),
        lambda: types.SimpleNamespace(a=2), lambda: Pair(1, 2), lambda: Pair(1, 3), lambda: with_attribute(1),
        lambda: with_attribute(2), lambda: cycle(1), lambda: cycle(2),
    ),
    "of libraries": (
        lambda: Path("a"), lambda: Path("b"), lambda: collections.deque([1]), lambda: collections.deque([2]),
        lambda: __import__("re").compile("a"), lambda: __import__("re").compile("b"), lambda: slice(1), lambda: slice(2),
        lambda: memoryview(b"a"), lambda: memoryview(b"b"), lambda: {1: 1}.keys(), lambda: {2: 1}.keys(),
        lambda: torch.ones(1).untyped_storage(), lambda: torch.zeros(1).untyped_storage(),
        lambda: torch.finfo(torch.float32), lambda: torch.finfo(torch.float16),
        lambda: __import__("fractions").Fraction(1, 2), lambda: __import__("fractions").Fraction(1, 3),
    ),
    "randomness": (
        lambda: generator(0), lambda: generator(1), lambda: np.random.default_rng(0), lambda: np.random.default_rng(1),
        lambda: __import__("random").Random(0), lambda: __import__("random").Random(1),
    ),
    "functions": (
        lambda: helper, lambda: closure, lambda: lambda x: x + 1, lambda: lambda x: x + 2, lambda: lambda x: x - 1,
        lambda: closure(1.0), lambda: closure(2.0), lambda: defaulted(1.0), lambda: defaulted(2.0), lambda: torch.relu,
        lambda: torch.tanh, lambda: nn.functional.relu, lambda: np.tanh, lambda: marked(1), lambda: marked(2), lambda: len,
        lambda: decorated(1.0), lambda: decorated(2.0), lambda: script_plus, lambda: script_minus,
    ),
    "partials": (
        lambda: functools.partial(helper, factor=1.0), lambda: functools.partial(helper, factor=2.0),
        lambda: functools.partial(torch.add, 1), lambda: functools.partial(torch.sub, 1),
        lambda: functools.partial(closure(1.0), 1), lambda: functools.partial(closure(2.0), 1),
    ),
    "methods": (
        lambda: Holder(a=1).scaled, lambda: Holder(a=2).scaled, lambda: Holder(a=1).negated, lambda: [1].index,
        lambda: [2].index, lambda: torch.ones(1).add, lambda: torch.zeros(1).add,
    ),
    "types": (
        lambda: torch.float32, lambda: torch.float16, lambda: torch.device("cpu"), lambda: torch.device("meta"),
        lambda: np.dtype("f4"), lambda: np.dtype("f8"), lambda: nn.ReLU, lambda: nn.Tanh, lambda: Holder, lambda: Options,
        lambda: torch.channels_last, lambda: torch.strided, lambda: torch.Size([1]),
    ),
    "modules in lists": (
        lambda: [linear(0)], lambda: [linear(1)], lambda: [nn.ReLU()], lambda: [nn.Tanh()],
        lambda: [nn.Sequential(nn.ReLU())], lambda: [nn.Sequential(nn.Tanh())], lambda: {"a": Net(1)}, lambda: {"a": Net(2)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KNOBS)
def test_attributes_of_every_kind_are_seen(kind: str) -> None:
    prints = [fingerprint(Net(make())) for make in KNOBS[kind]]
    assert prints == [fingerprint(Net(make())) for make in KNOBS[kind]]
    assert len(set(prints)) == len(prints)
    assert not any(classifier(Net(make())).spelling().unspelled for make in KNOBS[kind])


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Tripled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * x


class Scaling(nn.Module):
    """A parametrization."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 2, 3, padding=1), nn.AvgPool2d(3, 1, 1), nn.Flatten(), nn.ReLU(), nn.Linear(32, 4)
    )


def changed(change: Callable[[Any], object]) -> nn.Module:
    module = plain()
    change(module)
    return module


def set_to(part: int, name: str, value: Any) -> nn.Module:
    return changed(lambda net: setattr(net[part], name, value))


def scripted(scale: float) -> nn.Module:
    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = scale

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, :4] * self.scale

    return torch.jit.script(Scripted())  # type: ignore[no-any-return]


def traced(constant: float) -> nn.Module:
    class Traced(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, :4] + constant

    return torch.jit.trace(Traced(), torch.zeros(1, *SHAPE))  # type: ignore[no-any-return]


def graph(constant: float) -> nn.Module:
    return torch.fx.symbolic_trace(nn.Sequential(Scaling(constant), nn.Flatten(), nn.Linear(48, 4)))


def parametrized(scale: float) -> nn.Module:
    return changed(lambda net: parametrize.register_parametrization(net[4], "weight", Scaling(scale)))


def normed(dim: int) -> nn.Module:
    return changed(lambda net: torch.nn.utils.weight_norm(net[4], dim=dim))


VARIANTS: dict[str, Callable[[], nn.Module]] = {
    "as torch makes it": plain,
    "its stride": lambda: set_to(0, "stride", (2, 2)),
    "its padding mode": lambda: set_to(0, "padding_mode", "circular"),
    "a setting that is not printed": lambda: set_to(1, "count_include_pad", False),
    "another such": lambda: set_to(1, "divisor_override", 2),
    "an attribute of the user's": lambda: set_to(0, "gain", 1),
    "another value of it": lambda: set_to(0, "gain", 2),
    "forward of an instance": lambda: set_to(3, "forward", lambda x: x),
    "another forward of it": lambda: set_to(3, "forward", lambda x: -x),
    "forward of a container": lambda: changed(lambda net: setattr(net, "forward", types.MethodType(lambda s, x: s[4](x), net))),
    "a torch function as forward": lambda: set_to(3, "forward", torch.tanh),
    "a hook": lambda: changed(lambda net: net[3].register_forward_hook(lambda m, i, o: 2 * o)),
    "another hook": lambda: changed(lambda net: net[3].register_forward_hook(lambda m, i, o: 3 * o)),
    "a hook elsewhere": lambda: changed(lambda net: net[2].register_forward_hook(lambda m, i, o: 2 * o)),
    "a hook of a closure": lambda: changed(lambda net: net[3].register_forward_hook(functools.partial(helper, factor=2))),
    "a pre-hook": lambda: changed(lambda net: net[3].register_forward_pre_hook(lambda m, i: (2 * i[0],))),
    "a hook with keywords": lambda: changed(
        lambda net: net[3].register_forward_hook(lambda m, i, k, o: 2 * o, with_kwargs=True)
    ),
    "parametrized": lambda: parametrized(1.0),
    "parametrized otherwise": lambda: parametrized(2.0),
    "weight norm": lambda: normed(0),
    "weight norm along another axis": lambda: normed(1),
    "an unsaved buffer": lambda: changed(lambda net: net[0].register_buffer("b", torch.zeros(1), persistent=False)),
    "another unsaved buffer": lambda: changed(lambda net: net[0].register_buffer("b", torch.ones(1), persistent=False)),
    "a layer of the user's": lambda: changed(lambda net: net.insert(0, Doubled())),
    "another layer of the user's": lambda: changed(lambda net: net.insert(0, Tripled())),
    "the class of a layer": lambda: changed(lambda net: setattr(net[3], "__class__", Doubled)),
    "script": lambda: scripted(1.0),
    "script with another attribute": lambda: scripted(2.0),
    "trace": lambda: traced(1.0),
    "trace with another constant": lambda: traced(2.0),
    "graph": lambda: graph(1.0),
    "graph with another constant": lambda: graph(2.0),
}  # fmt: skip


def test_what_was_done_to_a_network_of_torchs_modules_is_seen() -> None:
    prints = {name: fingerprint(make()) for name, make in VARIANTS.items()}
    assert prints == {name: fingerprint(make()) for name, make in VARIANTS.items()}
    same = collections.Counter(prints.values())
    assert not [name for name, known in prints.items() if same[known] > 1]


def test_settings_that_torch_does_not_print_are_seen() -> None:
    makers: list[Callable[[], nn.Module]] = [
        lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
        lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
        lambda: nn.RNN(4, 4), lambda: nn.RNN(4, 4, nonlinearity="relu"),
        lambda: nn.TransformerEncoderLayer(4, 2, activation=lambda x: x),
        lambda: nn.TransformerEncoderLayer(4, 2, activation=lambda x: -x),
        lambda: VisionTransformer(4, image_size=4, dim=12, depth=1, hidden=4),
        lambda: VisionTransformer(4, image_size=4, dim=12, depth=1, hidden=4, heads=2),
    ]  # fmt: skip

    def printed(make: Callable[[], nn.Module]) -> str:
        torch.manual_seed(0)
        return fingerprint(nn.Sequential(make()))

    assert len({printed(make) for make in makers}) == len(makers)


def test_the_order_of_children_is_seen() -> None:
    def made(names: str) -> nn.Module:
        return nn.Sequential(collections.OrderedDict({name: {"a": Doubled, "b": nn.ReLU}[name]() for name in names}))

    assert fingerprint(made("ab")) != fingerprint(made("ba"))


class Patchable(nn.ReLU):
    """Its forward is replaced on the class."""


def test_a_forward_patched_on_a_class_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_prints() -> list[str]:
        return [fingerprint(plain()), fingerprint(nn.Sequential(plain(), Patchable()))]

    seen = [all_prints()]
    for class_, forward in (
        (nn.ReLU, lambda self, x: x),
        (nn.ReLU, lambda self, x: -x),
        (nn.ReLU, nn.Tanh.forward),
        (Patchable, lambda self, x: x),
        (nn.Module, lambda self, x: x),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(class_, "forward", forward)
            seen.append(all_prints())
    with monkeypatch.context() as patch:
        patch.setattr(nn.functional, "relu", lambda x, inplace=False: x)
        seen.append(all_prints())
    handle = torch.nn.modules.module.register_module_forward_hook(lambda m, i, o: None)
    seen.append(all_prints())
    handle.remove()
    assert all_prints() == seen[0]
    assert len({prints[1] for prints in seen}) == len(seen)
    assert len({prints[0] for prints in seen}) == len(seen) - 1  # all but that of the class which it does not have


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (Net(1.0), "knob", 2.0),
        (Net(np.zeros(2)), "knob", np.ones(2)),
        (Net(), "gain", 1.0),
        (plain(), "gain", 1),
        (plain(), "forward", lambda x: x),
    ],
)
def test_a_change_after_construction_is_seen(module: nn.Module, name: str, value: Any) -> None:
    made = classifier(module)
    attributes, before = dict(vars(module)), made.fingerprint()
    setattr(module, name, value)
    assert made.fingerprint() == classifier(module).fingerprint() != before
    module.__dict__.clear()
    module.__dict__.update(attributes)
    assert made.fingerprint() == before


def test_an_object_changed_in_place_is_seen() -> None:
    options, array = Options(), np.zeros(2)
    made = classifier(Net([options, array]))
    seen = {made.fingerprint()}
    options.scale = 2.0
    seen.add(made.fingerprint())
    array[0] = 1
    seen.add(made.fingerprint())
    assert len(seen) == 3


def test_a_quantized_network_of_foreign_parts() -> None:
    images = np.random.default_rng(0).integers(0, 256, (8, *SHAPE), dtype=np.uint8)

    def quantized(knob: float) -> Any:
        return quantize(classifier(Net(knob)), 4, images, sigma=0.25)

    first = quantized(1.0)
    assert first.spelling().version == 2
    assert first.fingerprint() == quantized(1.0).fingerprint() != quantized(2.0).fingerprint()
    before = first.fingerprint()
    first.module.knob = 2.0
    assert first.fingerprint() == quantized(2.0).fingerprint()
    first.module.knob = 1.0
    assert first.fingerprint() == before
    regular = quantize(classifier(plain()), 4, images, sigma=0.25)
    known = regular.fingerprint()
    assert regular.spelling().version == 1
    regular.module[3].forward = lambda x: x  # type: ignore[index,union-attr]
    assert regular.fingerprint() != known


class Counting(Net):
    """Counts and remembers what does not change its answers."""

    total = 0

    def __init__(self, knob: Any = None) -> None:
        super().__init__(knob)
        self.calls, self.steps, self.seen = 0, 0, Holder(shapes=[])

    def forward(self, x: Tensor) -> Tensor:
        global CALLS, LATER
        self.calls += 1
        self.steps += self.training
        self.last = x
        self.seen.shapes.append(x.shape)
        CACHE.setdefault(x.shape, len(CACHE))
        CALLS += 1
        LATER = CALLS
        Counting.total += 1
        count(x)
        count.calls += 1  # type: ignore[attr-defined]
        return super().forward(x)


CACHE: dict[Any, int] = {}
CALLS = 0


def count(x: Any) -> Any:
    return x


count.calls = 0  # type: ignore[attr-defined]


def test_what_a_forward_pass_changes_by_itself_does_not_count() -> None:
    first = classifier(Counting(1.0))
    before = first.fingerprint()
    first(torch.zeros(3, *SHAPE))
    first.train()(torch.zeros(3, *SHAPE))
    first.eval()
    assert first.fingerprint() == before
    second = classifier(Counting(1.0))
    assert second.fingerprint() == before
    second.module.knob = 2.0
    assert second.fingerprint() == classifier(Counting(2.0)).fingerprint() != before


def test_making_a_classifier_leaves_the_network_and_the_generators_alone() -> None:
    class Drawing(Counting):
        def forward(self, x: Tensor) -> Tensor:
            np.random.rand()  # noqa: NPY002
            return super().forward(x) + torch.rand(())

    module = Drawing()
    states = torch.get_rng_state(), np.random.get_state()[1:]  # noqa: NPY002
    classifier(module)
    assert module.calls == 0
    assert torch.equal(torch.get_rng_state(), states[0])
    assert str(np.random.get_state()[1:]) == str(states[1])  # noqa: NPY002


def test_what_cannot_be_spelled_is_named(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        meta = torch.zeros(1, device="meta")
        knob = {"lock": threading.Lock(), "file": [file], "iterator": (x for x in "a"), "plain": 1, "meta": meta}
        found = classifier(Net(Holder(a=knob))).spelling()
    assert found.unspelled == (
        "module.knob.a[file][0] (_io.TextIOWrapper)",
        "module.knob.a[iterator] (generator)",
        "module.knob.a[lock] (_thread.lock)",
        "module.knob.a[meta] (torch.Tensor)",
    )
    nested: list[Any] = []
    for _ in range(100):
        nested = [nested]
    assert classifier(Net(nested)).spelling().unspelled[0].startswith("module.knob[0]")


class Marked(Net):
    """Reads an attribute of its own parameter."""

    def __init__(self, mark: int) -> None:
        super().__init__(0)
        self.weight = nn.Parameter(torch.ones(1))
        self.weight.mark = mark  # type: ignore[attr-defined]


class Dynamic(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(globals().get("nothing", 1))


def test_attributes_of_tensors_are_seen_and_computed_names_are_named() -> None:
    assert fingerprint(Marked(1)) == fingerprint(Marked(1)) != fingerprint(Marked(2))
    network = Classifier(Dynamic(0), num_classes=4, input_shape=SHAPE)
    assert [text for text in network.spelling().unspelled if text.endswith("Dynamic.forward (uses globals)")]


def test_what_is_too_much_is_named_and_hides_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spelling, "MOST_OBJECTS", 10)
    monkeypatch.setattr(spelling, "MOST_VALUES", 1000)
    many, objects = {number: [number] for number in range(1000)}, [Holder(a=number) for number in range(11)]
    first, second, third = (classifier(net) for net in (Net(many), Net([many, 1]), Net(objects)))
    assert first.spelling().unspelled == ("module.knob (more than 1,000 values)",)
    assert first.fingerprint() != second.fingerprint()
    assert third.spelling().unspelled == (f"module.knob[10] ({Holder.__module__}.Holder)",)


class Shy:
    """An object that does not like to be looked at."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_a_quantized_network_that_counts_is_the_same_when_it_is_loaded(cli: InProcess) -> None:
    counting = (
        "        self.calls = getattr(self, 'calls', 0) + 1\n        CALLS.append(x.shape)\n        x = self.function("
    )
    spec = write(Path(), "        x = self.function(", counting)
    with Path(f"{STEM}.py").open("a") as file:
        file.write("\nCALLS = []\n")
    images = np.random.default_rng(0).integers(0, 256, (8, *SHAPE), dtype=np.uint8)
    quantized = quantize(load_model(spec, input_shape=SHAPE), 4, images, sigma=0.25)
    quantized.train()(torch.rand(4, *SHAPE))
    quantized.eval()
    save_artifact("counting.safetensors", quantized, {})
    loaded = load_model("counting.safetensors", arch=spec)
    assert (loaded.fingerprint(), loaded.spelling().version) == (quantized.fingerprint(), 2)


def test_an_object_that_cannot_be_looked_at_is_named() -> None:
    made = classifier(Net([Shy(), 1]))
    assert made.spelling().unspelled == (f"module.knob[0] ({Shy.__module__}.Shy)",)
    assert made.fingerprint() != fingerprint(Net([Shy(), 2]))


def test_compiling_changes_nothing() -> None:
    compiled = [fingerprint(torch.compile(plain())) for _ in range(2)]  # type: ignore[arg-type]
    assert compiled[0] == compiled[1]
    module = Net(1.0)
    module.compile()
    assert fingerprint(module) == fingerprint(Net(1.0))


def test_a_classifier_of_the_users_own() -> None:
    class Mine(Classifier):
        def __init__(self, gain: float) -> None:
            super().__init__(plain(), num_classes=4, input_shape=SHAPE)
            self.gain = gain

        def forward(self, x: Tensor) -> Tensor:
            return self.gain * super().forward(x)

    made = classifier(plain())
    prints = [made.fingerprint(), Mine(1.0).fingerprint(), Mine(2.0).fingerprint()]
    with made.register_forward_hook(lambda module, images, logits: -logits):
        prints.append(made.fingerprint())
    made.from_unit = lambda unit: 1 - unit  # type: ignore[method-assign]
    prints.append(made.fingerprint())
    assert len(set(prints)) == len(prints)
    assert Mine(1.0).fingerprint() == prints[1]


def test_what_a_lock_hangs_on_is_still_seen() -> None:
    def of(scale: float) -> str:
        return fingerprint(Net(Holder(lock=threading.Lock(), scale=scale)))

    assert of(1.0) == of(1.0) != of(2.0)


def test_a_network_of_timm_by_its_version_and_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    from arquant.models.fingerprint import code_origin

    timm = import_timm()

    def made() -> Classifier:
        torch.manual_seed(0)
        module = timm.create_model("resnet10t", num_classes=4)
        return Classifier(module, num_classes=4, input_shape=(3, 32, 32))

    first, edited = made(), made()
    assert (first.spelling().version, first.spelling().unspelled) == (2, ())
    edited.module.drop_rate = 0.5
    known = first.fingerprint()
    assert made().fingerprint() == known != edited.fingerprint()
    monkeypatch.setattr(code_origin, "_version", lambda package: "0")
    assert made().fingerprint() != known


USERS = """
import enum
import functools
import numpy as np
import torch
from torch import nn
import {helpers} as helpers
from {helpers} import shifted

SCALE = 1.0
TABLE = {{"a": [1, 2], "b": {{"c"}}}}

class Kind(enum.Enum):
    SOFT = "soft"
    HARD = "hard"

class Config:
    words = frozenset(("alpha", "beta", "gamma", "delta"))
    def __init__(self):
        self.kinds = {{Kind.SOFT, Kind.HARD}}
        self.names = {{"one", "two", "three", "four", "five"}}
        self.functions = {{shifted, helpers.bent, abs}}
        self.me = self

def global_scale(x):
    return x * SCALE

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = np.linspace(0.5, 1.5, 3)
        self.function = lambda x: x * 1.0
        self.config = Config()
        self.random = np.random.default_rng(3)
    def extra_repr(self):
        return str(self.config.names)
    def forward(self, x):
        x = self.function(helpers.bent(shifted(global_scale(x))))
        return x * torch.from_numpy(self.weights).float()

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 3), Block())
"""
HELPERS = """
GAIN = 1.0
def bent(x):
    return x * deeper(GAIN)
def deeper(x):
    return x + 0.0
def shifted(x, by=0.0):
    return x + by
"""
EDITS = {
    "an array": ("np.linspace(0.5, 1.5, 3)", "np.linspace(-1.5, -0.5, 3)"),
    "a constant of a lambda": ("lambda x: x * 1.0", "lambda x: x * -1.0"),
    "a global": ("SCALE = 1.0", "SCALE = -1.0"),
    "a function": ("return x * SCALE", "return -x * SCALE"),
    "a method": ("return x * torch", "return -x * torch"),
    "a global of another module": ("GAIN = 1.0", "GAIN = -1.0"),
    "a function that a function calls": ("return x + 0.0", "return x + 1.0"),
    "a default": ("by=0.0", "by=1.0"),
}


CERTIFY = (
    "npz:data.npz", "--input", "3,4,4", "--sigma", "0.25", "--n0", "8", "--n", "32", "--engine", "openvino", "--out",
)  # fmt: skip
STEM = "users_of_test_spelling"


def write(folder: Path, old: str = "", new: str = "") -> str:
    """Write the user's modules, edited, and return the spelling of the factory; nothing of them is loaded after that."""
    for name, text in ((STEM, USERS.format(helpers=f"{STEM}_helpers")), (f"{STEM}_helpers", HELPERS)):
        assert old in USERS.format(helpers="") + HELPERS
        (folder / f"{name}.py").write_text(text.replace(old, new) if old else text)
        sys.modules.pop(name, None)
    return f"{STEM}:make"


PRINT = textwrap.dedent("""
    import sys
    from arquant.loading.models import load_model
    first, second = (load_model(sys.argv[1], input_shape=(3, 4, 4)) for _ in range(2))
    assert first.fingerprint() == second.fingerprint()
    assert first.fingerprint() == load_model(sys.argv[1], input_shape=(3, 4, 4), num_classes=3).fingerprint()
    print(first.fingerprint(), first.spelling().unspelled)
""")


def test_processes_agree_and_comments_do_not_matter(tmp_path: Path) -> None:
    said = []
    for seed, comment in (("0", ""), ("1", "# the scale\n\n")):
        spec = write(tmp_path, "SCALE = 1.0", f"{comment}SCALE = 1.0")
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONHASHSEED": seed}
        command = [sys.executable, "-B", "-c", PRINT, spec]
        run = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False)
        assert (run.returncode, run.stderr) == (0, "")
        said.append(run.stdout)
    assert said[0] == said[1]
    assert said[0].endswith(" ()\n")


def test_another_function_is_not_resumed(cli: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two edits within a second would look alike
    for _ in range(2):
        answer = cli("certify", write(Path()), *CERTIFY, "run")
        assert answer.code == 0, answer.err
    recorded = json.loads(Path("run/certificates.json").read_text())["provenance"]["model"]
    assert recorded["fingerprint_version"] == 2
    assert "unspelled" not in recorded
    for what, (old, new) in EDITS.items():
        refused = cli("certify", write(Path(), old, new), *CERTIFY, "run")
        assert (refused.code, "another model" in refused.err) == (2, True), what


def test_the_sidecar_names_what_the_fingerprint_cannot_see(cli: InProcess) -> None:
    lock = "return x * SCALE if LOCK else x\n\nLOCK = __import__('threading').Lock()"
    spec = write(Path(), "return x * SCALE", lock)
    answer = cli("certify", spec, *CERTIFY, "locked")
    assert answer.code == 0, answer.err
    recorded = json.loads(Path("locked/certificates.json").read_text())["provenance"]["model"]
    assert recorded["unspelled"] == [f"global {STEM}.LOCK (_thread.lock)"]
