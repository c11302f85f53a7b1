"""Bit-widths per layer: `Bits`, `Policy`, its JSON file, and the layers that are kept fixed. No torch.

A policy file may be written or edited by hand:

    {"schema": "arquant.policy", "version": 1, "model": {"name": "resnet20"},
     "layers": {"conv1": {"w": 8, "a": 8}, "layer1.0.conv1": {"w": 4, "a": 3}}}

For a layer, `w` is the width of its weights and `a` of its input. For the matmuls of attention, `a` is the width of Q
(`#qk`) or of the probabilities (`#av`) and `w` that of K or of V.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, cast

from arquant.base.errors import FileFormatError, InputError, MismatchError
from arquant.base.files import envelope, in_one_move, opened
from arquant.base.html_snippet import table_html

if TYPE_CHECKING:
    from arquant.models.tracing.layer import Layers

MIN_BITS, MAX_BITS = 1, 8
FLOAT = "float"
SCHEMA, VERSION = "arquant.policy", 1


@dataclass(frozen=True, order=True)
class Bits:
    """Widths of one layer in bits, each 1 to 8: `w` of the weights, `a` of the input."""

    w: int
    a: int

    def __post_init__(self) -> None:
        for what, value in (("weight", self.w), ("activation", self.a)):
            if isinstance(value, bool) or not isinstance(value, int) or not MIN_BITS <= value <= MAX_BITS:
                raise InputError(f"{what} bits must be an integer from {MIN_BITS} to {MAX_BITS}, got {value!r}")

    @classmethod
    def parse(cls, text: "BitsLike") -> "Bits":
        """`3` and `"3"` mean 3 bits for both, `"w3a4"` 3 for the weights and 4 for the input."""
        if isinstance(text, Bits):
            return text
        match = re.fullmatch(r"\s*(?:w(\d+)a(\d+)|(\d+))\s*", str(text), re.IGNORECASE)
        if match is None:
            raise InputError(f"bits must be written as 3 or w3a4, got {text!r}")
        w, a, both = match.groups()
        return cls(int(both or w), int(both or a))

    def __str__(self) -> str:
        return f"w{self.w}a{self.a}"


BitsLike: TypeAlias = Bits | str | int
END_BITS = Bits(8, 8)


class Named(Protocol):
    """Whatever bears a layer's name, such as `arquant.models.tracing.layers.Layer`."""

    @property
    def name(self) -> str:
        """The layer's path in `named_modules()`."""


LayerNames: TypeAlias = Iterable[str] | Iterable[Named]


class Policy(Mapping[str, Bits]):
    """An ordered, immutable, hashable map from layer name to `Bits`.

    Two policies are equal if they give the same bits to the same layers, whatever their order and their `model`.
    `model` holds facts of the network it was made for (`name`, `shapes`), which `check` compares.
    """

    def __init__(self, layers: Mapping[str, BitsLike], model: Mapping[str, Any] | None = None) -> None:
        self._layers: dict[str, Bits] = {}
        for name, bits in layers.items():
            try:
                self._layers[name] = Bits.parse(bits)
            except InputError as error:
                raise InputError(f"layer {name!r}: {error}") from None
        self._model = dict(model or {})

    @property
    def model(self) -> dict[str, Any]:
        """A copy of the facts about the network this policy was made for."""
        return dict(self._model)

    @property
    def left(self) -> tuple[str, ...]:
        """The layers of that network that are left in float; the policy does not name them."""
        return tuple(self._model.get("left", ()))

    def __getitem__(self, name: str) -> Bits:
        return self._layers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def __hash__(self) -> int:
        return hash(frozenset(self._layers.items()))

    def __eq__(self, other: object) -> bool:
        return self._layers == other._layers if isinstance(other, Policy) else NotImplemented

    def __repr__(self) -> str:
        return "Policy(" + " ".join(f"{name}={bits}" for name, bits in self.items()) + ")"

    def _repr_html_(self) -> str:
        """Return the widths for a notebook; neighbours with the same bits share a row."""
        runs = [(bits, [name for name, _ in group]) for bits, group in groupby(self.items(), key=lambda item: item[1])]
        rows = [
            (
                names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)} layers)",
                str(bits.w),
                str(bits.a),
            )
            for bits, names in runs
        ]
        return table_html(f"Policy of {len(self)} layers", ("layer", "weight bits", "activation bits"), rows)

    @classmethod
    def uniform(cls, layers: LayerNames, bits: BitsLike, *, keep: Mapping[str, BitsLike] | None = None) -> "Policy":
        """Return the same bits everywhere, except the first and last layer (8/8) and what `keep` fixes; see `fixed_bits`."""
        names = layer_names(layers)
        return cls({**dict.fromkeys(names, Bits.parse(bits)), **fixed_bits(names, keep)})

    def with_(self, changes: Mapping[str, BitsLike] | None = None, /, **named: BitsLike) -> "Policy":
        """Return a copy in which the named layers have other bits; a name that the policy does not have is an error."""
        updates = {**(changes or {}), **named}
        for name in updates:
            if name not in self._layers:
                raise InputError(f"the policy has no layer {name!r}{_suggest(name, self._layers)}")
        return Policy({**self._layers, **updates}, self._model)

    def diff(self, other: "Policy") -> dict[str, tuple[Bits | None, Bits | None]]:
        """Return the layers whose bits differ: name -> (here, there); None where a policy lacks the layer."""
        names = [*self, *(name for name in other if name not in self)]
        return {name: (self.get(name), other.get(name)) for name in names if self.get(name) != other.get(name)}

    def check(self, layers: LayerNames) -> None:
        """Raise MismatchError unless this policy names exactly these layers, in the shapes it was made for."""
        listed = list(layers)
        names = layer_names(cast(LayerNames, listed))
        missing = [name for name in names if name not in self]
        extra = [name for name in self if name not in set(names)]
        shapes = self._model.get("shapes") or {}
        wrong = [
            f"{name} {tuple(shapes[name])}, here {tuple(item.weight_shape)}"
            for name, item in zip(names, listed, strict=True)
            if name in shapes and hasattr(item, "weight_shape") and list(item.weight_shape) != list(shapes[name])
        ]
        problems = [("lacks layers", missing), ("names layers the model has not", extra), ("has other shapes", wrong)]
        found = [f"{what}: {_some(which)}" for what, which in problems if which]
        if found:
            made_for = f" made for {self._model['name']!r}" if "name" in self._model else ""
            raise MismatchError(
                f"the policy{made_for} does not fit this model of {len(names)} layers: it " + "; it ".join(found)
            )

    def widths(self) -> dict[str, str]:
        """By layer, the widths as text, such as `w3a4`: the short form of journals and summaries."""
        return {name: str(bits) for name, bits in self.items()}

    def to_dict(self, model: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the JSON object of a policy file; `model` replaces the facts about the network."""
        facts = self._model if model is None else dict(model)
        layers = {name: {"w": bits.w, "a": bits.a} for name, bits in self.items()}
        return envelope(SCHEMA, VERSION, {"model": facts, "layers": layers})

    @classmethod
    def from_dict(cls, data: Any, *, where: str = "policy") -> Self:
        """Read what `to_dict` wrote; `where` names the source in errors."""
        data = opened(data, SCHEMA, VERSION, where)
        layers, model = data.get("layers"), data.get("model", {})
        if not isinstance(layers, dict) or not layers or not isinstance(model, dict):
            raise FileFormatError(f'{where}: "layers" must be a non-empty object and "model" an object')
        _check_shapes(model.get("shapes", {}), where)
        if not isinstance(left := model.get("left", []), list) or not all(isinstance(name, str) for name in left):
            raise FileFormatError(f'{where}: "left" of "model" must be a list of layers, got {left!r}')
        bits: dict[str, Bits] = {}
        for name, entry in layers.items():
            if not isinstance(entry, dict) or set(entry) != {"w", "a"}:
                raise FileFormatError(f'{where}: layer {name!r} must be like {{"w": 4, "a": 3}}, got {entry!r}')
            try:
                bits[name] = Bits(entry["w"], entry["a"])
            except InputError as error:
                raise FileFormatError(f"{where}: layer {name!r}: {error}") from None
        return cls(bits, model)

    def save(self, path: str | Path, *, model: Mapping[str, Any] | None = None) -> None:
        """Write the policy as JSON, one layer per line; an existing file is replaced in one step."""
        data = self.to_dict(model)
        rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(bits)}" for name, bits in data["layers"].items())
        head = ",\n".join(f"  {json.dumps(key)}: {json.dumps(data[key])}" for key in ("schema", "version", "model"))
        with in_one_move(Path(path)) as scratch:
            scratch.write_text(f'{{\n{head},\n  "layers": {{\n{rows}\n  }}\n}}\n', encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a policy file; anything else is a FileFormatError that names the file and the place."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot read policy {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{path}: not a policy: not a text file") from error
        try:
            data = json.loads(text, object_pairs_hook=_no_duplicates)
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"{path}: not a policy: {error}") from error
        return cls.from_dict(data, where=str(path))


def layer_names(layers: LayerNames) -> list[str]:
    """Return the names of layers given as names or as objects with a `name`, in order."""
    return [item if isinstance(item, str) else item.name for item in layers]


def parse_keep(texts: Iterable[str]) -> dict[str, Bits]:
    """`["head.*=8", "conv1=w8a8"]` -> pattern -> Bits; a comma joins several in one string. See `left_in_float`."""
    return {pattern: Bits.parse(bits) for pattern, bits in _kept(texts) if bits != FLOAT}


def left_in_float(layers: LayerNames, keep: Iterable[str]) -> list[str]:
    """Return the layers that `PATTERN=float` in `keep` leaves in floating point; patterns as in `fixed_bits`."""
    names = layer_names(layers)
    return [name for pattern, bits in _kept(keep) if bits == FLOAT for name in _matching(names, pattern)]


def _kept(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    for part in (part.strip() for text in texts for part in text.split(",")):
        pattern, equals, bits = part.rpartition("=")
        if not equals or not pattern.strip():
            raise InputError(
                f"a kept layer must be written as PATTERN=BITS or PATTERN=float, e.g. 'head.*=8', got {part!r}"
            )
        yield pattern.strip(), bits.strip().lower()


def fixed_bits(layers: LayerNames, keep: Mapping[str, BitsLike] | None = None) -> dict[str, Bits]:
    """Return the layers no search may change: the first and the last at 8/8, then every layer that a pattern of `keep` names.

    Patterns are shell patterns on layer names; `head.*` also means `head` itself and its matmuls `head#qk`, `head#av`.
    The last matching pattern wins, over the 8/8 of the ends too. A pattern that matches nothing is an InputError.
    """
    names = layer_names(layers)
    fixed = dict.fromkeys([names[0], names[-1]], END_BITS) if names else {}
    for pattern, bits in (keep or {}).items():
        fixed.update(dict.fromkeys(_matching(names, pattern), Bits.parse(bits)))
    return {name: fixed[name] for name in names if name in fixed}


def check_widths(bits: str | None, policy: object, keep: Iterable[str]) -> None:
    """Refuse widths that are stated in no way or in two."""
    if (bits is None) == (policy is None):
        raise InputError("say which widths: --bits 3 or --policy FILE (one of them)")
    if policy is not None and list(keep):
        raise InputError("--keep belongs to --bits; a policy states every layer")


def chosen_policy(
    layers: "Layers", *, bits: str | None, policy: "str | Path | Policy | None", keep: Iterable[str] = ()
) -> "tuple[Policy, Layers]":
    """Return the policy that `bits` or `policy` means, checked, and the layers that it is for: without those left in float."""
    check_widths(bits, policy, keep)
    if policy is None:
        rest = layers.leaving(left_in_float(layers, keep))
        return Policy.uniform(rest, str(bits), keep=parse_keep(keep)), rest
    loaded = policy if isinstance(policy, Policy) else Policy.load(policy)
    rest = layers.leaving(loaded.left)
    loaded.check(rest)
    return loaded, rest


def _matching(names: list[str], pattern: str) -> list[str]:
    matched = [name for name in names if _matches(name, pattern)]
    if not matched:
        raise InputError(f"keep pattern {pattern!r} matches no layer{_suggest(pattern, names)}")
    return matched


def _matches(name: str, pattern: str) -> bool:
    stem = pattern.removesuffix(".*")
    return fnmatchcase(name, pattern) or (
        stem != pattern and (fnmatchcase(name, stem) or fnmatchcase(name, stem + "#*"))
    )


def _check_shapes(shapes: Any, where: str) -> None:
    for shape in shapes.values() if isinstance(shapes, dict) else [None]:
        if not isinstance(shape, list) or not all(isinstance(side, int) for side in shape):
            raise FileFormatError(
                f'{where}: "shapes" of "model" must be like {{"conv1": [16, 3, 3, 3]}} or left out, got {shapes!r}'
            )


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise ValueError(f"{key!r} appears twice")
        seen[key] = value
    return seen


def _suggest(name: str, names: Iterable[str]) -> str:
    known = list(names)
    close = get_close_matches(name, known, n=3)
    return f"; did you mean {', '.join(close)}?" if close else f"; its layers are {_some(known)}"


def _some(names: list[str], most: int = 8) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
