"""Limits on what a policy may cost, and the two ways to bring a policy within them.

`Budget.parse("bops<=3bit,bytes<=100k", layers)`. Amounts: `3bit` (the cost of the uniform 3-bit policy; `2.5bit` means
2.5 x 2.5 per multiply-accumulate), `1.5%` (of the float cost; for tables, of 8 bits everywhere), `0.35G`, `100k`,
`17ms`. The left side is `bops`, `bops@paper`, `bytes` (the file that ships), `weight_bytes` (its weights alone), or the
quantity of a table (`latency`, `energy`).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from arquant.base.errors import InputError
from arquant.base.units import PREFIXES
from arquant.models.tracing.layer import Layer, Layers
from arquant.quantization.costs import Bops, Cost, FileBytes, LatencyTable, WeightBytes
from arquant.quantization.policy import MAX_BITS, MIN_BITS, Bits, BitsLike, Policy, fixed_bits
from arquant.quantization.projection import Descent

Damage: TypeAlias = Callable[[Layer, Bits], float]

_SMALL = {"": 1.0, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9, "p": 1e-12}


@dataclass(frozen=True)
class Limit:
    """`cost` must not exceed `amount`; `text` is how it was asked for."""

    cost: Cost
    amount: float
    text: str

    def holds(self, value: float) -> bool:
        """Tell whether a cost is within the limit; sums in another order may differ in the last digit."""
        return value <= self.amount + 1e-12 * abs(self.amount)

    def usage(self, value: float) -> float:
        """Return the share of the limit that a cost uses: above 1 if it exceeds it, also for the paper's negative costs."""
        if self.amount > 0:
            return value / self.amount
        return 1 + (value - self.amount) / max(abs(self.amount), 1.0)


@dataclass(frozen=True, eq=False)
class Budget:
    """Limits that hold together, for the layers of one network.

    `fixed` are the layers no projection changes (first, last and kept ones); the others may go down to `min_bits`.
    Every budget can be met: one below the cost of `min_bits` everywhere is refused when it is made.
    """

    limits: tuple[Limit, ...]
    layers: Layers
    fixed: Mapping[str, Bits] = field(default_factory=dict)
    min_bits: int = 2

    def __post_init__(self) -> None:
        if not self.limits:
            raise InputError("a budget needs at least one limit, such as bops<=3bit")
        if not MIN_BITS <= self.min_bits <= MAX_BITS:
            raise InputError(f"min_bits must be from {MIN_BITS} to {MAX_BITS}, got {self.min_bits}")
        cheapest = self.cheapest()
        for limit in self.limits:
            least = limit.cost.cost(cheapest, self.layers)
            if not limit.holds(least):
                raise InputError(self._impossible(limit, least))

    def _impossible(self, limit: Limit, least: float) -> str:
        """Return why a limit is refused; `least` is what `min_bits` everywhere cost."""
        percent = 100 * least / limit.cost.float_cost(self.layers)
        costs = f"({self.min_bits} bits in all layers that are not fixed) costs {_shown(least, limit.cost)} ({percent:.3g} %)"
        refused = f"budget {limit.text!r} cannot be met: it allows {_shown(limit.amount, limit.cost)}, but the"
        shares = limit.cost.costs(self.layers)[:, self.min_bits - 1 :, self.min_bits - 1 :]
        free = [name not in self.fixed for name in self.layers.names]
        saved = float((shares[free, 0, 0] - shares[free].min(axis=(1, 2))).sum())
        if saved <= 0:
            return f"{refused} cheapest policy {costs}"
        return (
            f"{refused} policy with the fewest bits {costs}; this table charges more for fewer bits: the cheapest widths of "
            f"each layer cost {_shown(least - saved, limit.cost)}, so try a larger --min-bits"
        )

    @classmethod
    def parse(
        cls,
        text: str,
        layers: Layers,
        *,
        keep: Mapping[str, BitsLike] | None = None,
        tables: Iterable[LatencyTable] = (),
        min_bits: int = 2,
        per_channel: bool = False,
        books: bool = False,
    ) -> "Budget":
        """Read a budget; a comma joins limits. `keep` fixes further layers; `tables` bound `latency` or `energy`.

        `per_channel` says that each channel of a weight will have its own clip, which takes bytes of the file; `books` that
        weights are shared (`weight_sharing`), which takes bytes too and changes nothing but the file: no other cost is known.
        """
        fixed = fixed_bits(layers, keep)
        counted: tuple[Cost, ...] = () if books else (Bops(), Bops("paper"))
        costs: dict[str, Cost] = {cost.name: cost for cost in (*counted, FileBytes(per_channel, books), WeightBytes())}
        if not books:
            costs["bops@exact"] = costs["bops"]
        for table in () if books else tables:
            if table.name in costs:
                raise InputError(f"there are two tables of {table.name}; give one of them")
            costs[table.name] = table
        limits = tuple(_parse_limit(part, layers, fixed, costs) for part in text.split(","))
        return cls(limits, layers, fixed, min_bits)

    @property
    def text(self) -> str:
        """The budget as it was asked for."""
        return ",".join(limit.text for limit in self.limits)

    @property
    def slug(self) -> str:
        """The budget as a folder name: `bops<=1.5%` is `bops-1.5pct`."""
        return re.sub(r"[^\w.@,-]+", "-", self.text.replace("%", "pct").replace("<=", "-"))

    def cost(self, policy: Policy) -> dict[str, float]:
        """Return what the policy costs in each of the limited quantities, by name, in their units."""
        return {limit.cost.name: limit.cost.cost(policy, self.layers) for limit in self.limits}

    def usage(self, policy: Policy) -> float:
        """Return the largest share of a limit that the policy uses; at most 1 (up to rounding) if it is allowed."""
        return max(limit.usage(limit.cost.cost(policy, self.layers)) for limit in self.limits)

    def allows(self, policy: Policy) -> bool:
        """Tell whether the policy is within every limit."""
        return all(limit.holds(limit.cost.cost(policy, self.layers)) for limit in self.limits)

    def cheapest(self) -> Policy:
        """Return the policy with `min_bits` in every layer that is not fixed."""
        return Policy(
            {layer.name: self.fixed.get(layer.name, Bits(self.min_bits, self.min_bits)) for layer in self.layers}
        )

    def fix(self, policy: Policy) -> Policy:
        """Return the policy with the fixed layers at their bits."""
        policy.check(self.layers)
        return policy.with_(self.fixed)

    @cached_property
    def costs(self) -> NDArray[np.float64]:
        """All shares as an array [limit, layer, w - 1, a - 1], for solvers."""
        return np.stack([limit.cost.costs(self.layers) for limit in self.limits])

    @cached_property
    def amounts(self) -> NDArray[np.float64]:
        """The limits, in the order of `costs`."""
        return np.array([limit.amount for limit in self.limits])

    def project_back_to_front(self, policy: Policy) -> Policy:
        """Lower bits by the paper's rule: from the last layer to the first, an input bit, then a weight bit, until they fit.

        Passes repeat while needed. Fixed layers get their bits first and keep them; no other bit grows. A step that
        lowers none of the exceeded costs is passed over, unless no step of a whole pass lowers any.
        """
        descent = self._descent(policy)
        descent.back_to_front()
        return self._policy(descent, policy)

    def project_greedy(self, policy: Policy, damage: Damage | None = None) -> Policy:
        """Lower bits by the least damage per unit of excess until the policy fits, then give back what still fits.

        `damage(layer, bits)` says how bad it is for a layer to have these bits, in any unit; by default the noise power
        4^-w + 4^-a. Fixed layers get their bits first and keep them; no other bit ends above where it began.
        """
        harm = damage or _noise_power
        widths = range(MIN_BITS, MAX_BITS + 1)
        table = np.array([[[harm(layer, Bits(w, a)) for a in widths] for w in widths] for layer in self.layers])
        if not np.isfinite(table).all():
            raise InputError("damage must be a finite number for every layer and width")
        descent = self._descent(policy)
        descent.least_damage(table)
        descent.give_back(table)
        return self._policy(descent, policy)

    def _descent(self, policy: Policy) -> Descent:
        fixed = self.fix(policy)
        bits = np.array([(fixed[name].w, fixed[name].a) for name in self.layers.names])
        free = np.array([name not in self.fixed for name in self.layers.names])
        return Descent(self.costs, self.amounts, bits, free, self.min_bits)

    def _policy(self, descent: Descent, policy: Policy) -> Policy:
        pairs = zip(self.layers.names, descent.bits.tolist(), strict=True)
        projected = Policy({name: Bits(w, a) for name, (w, a) in pairs}, policy.model)
        if not self.allows(projected):
            raise InputError(
                f"lowering bits to {self.min_bits} does not bring the policy within {self.text!r}: the table charges "
                f"more for fewer bits, and the policy starts below {self.min_bits} bits"
            )
        return projected


FRONT = (2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
"""widths that a range of budgets such as `bops<=2bit..8bit` stands for"""


def spelled_out(text: str) -> list[str]:
    """Return the budgets that a text stands for: `bops<=2bit..4bit` is one at 2, 2.5, 3 and 4 bits; others are themselves."""
    match = re.fullmatch(r"\s*([\w@]+)\s*(?:<=|≤)\s*([0-9.]+)\s*bit\s*\.\.\s*([0-9.]+)\s*bit\s*", text)
    if match is None:
        return [text]
    low, high = (float(width) for width in match.groups()[1:])
    found = [width for width in FRONT if low <= width <= high]
    if not found:
        known = ", ".join(f"{width:g}" for width in FRONT)
        raise InputError(f"the range {text!r} holds none of the widths {known}; begin with the smaller one")
    return [f"{match[1]}<={width:g}bit" for width in found]


def _noise_power(_: Layer, bits: Bits) -> float:
    return float(4.0**-bits.w + 4.0**-bits.a)


def _parse_limit(text: str, layers: Layers, fixed: Mapping[str, Bits], costs: Mapping[str, Cost]) -> Limit:
    match = re.fullmatch(r"\s*([\w@]+)\s*(?:<=|≤)\s*([0-9.]+(?:[eE][+-]?\d+)?)\s*([\w%µ]*)\s*", text)
    if match is None:
        raise InputError(
            f"a limit must be written like bops<=3bit, bops<=1.5%, bops<=0.35G or bytes<=100k, got {text!r}"
        )
    name, digits, unit = match.groups()
    if name not in costs:
        hint = "; it needs a table" if name in ("latency", "energy") else ""
        hint = hint if "bops" in costs else ": shared weights make the file smaller, and nothing else"
        raise InputError(f"unknown cost {name!r} in {text!r}{hint}; known: {', '.join(costs)}")
    try:
        number = float(digits)
    except ValueError:
        raise InputError(f"not a number in {text!r}: {digits}") from None
    if not 0 < number < float("inf"):
        raise InputError(f"a limit must be positive, got {text!r}")
    cost = costs[name]
    if isinstance(cost, LatencyTable):
        cost.check(layers)
    return Limit(
        cost, _limit_amount(number, unit, cost, layers, fixed, text), re.sub(r"\s+", "", text).replace("≤", "<=")
    )


def _limit_amount(number: float, unit: str, cost: Cost, layers: Layers, fixed: Mapping[str, Bits], text: str) -> float:
    if unit in ("bit", "bits"):
        if not MIN_BITS <= number <= MAX_BITS:
            raise InputError(f"bits must be from {MIN_BITS} to {MAX_BITS} in {text!r}")
        return cost.uniform_cost(number, layers, fixed)
    if unit == "%":
        return number / 100 * cost.float_cost(layers)
    if isinstance(cost, LatencyTable):
        return number * _table_scale(unit, cost.unit, text)
    for suffix in ("BOPs", "bops") if isinstance(cost, Bops) else ("B", "bytes"):
        unit = unit.removesuffix(suffix)
    if unit not in PREFIXES:
        raise InputError(f"unknown unit in {text!r}; use bit, %, or one of {', '.join(key for key in PREFIXES if key)}")
    return number * PREFIXES[unit]


def _table_scale(unit: str, table_unit: str, text: str) -> float:
    """Return how many of the table's units one `unit` is; no unit means the table's."""
    if unit in ("", table_unit):
        return 1.0
    if unit[-1] != table_unit[-1:] or unit[:-1] not in _SMALL or table_unit[:-1] not in _SMALL:
        raise InputError(f"the unit in {text!r} must be that of the table, {table_unit!r}, or a multiple of it")
    return _SMALL[unit[:-1]] / _SMALL[table_unit[:-1]]


def _shown(value: float, cost: Cost) -> str:
    if isinstance(cost, Bops):
        return f"{value / 1e9:.4g} G"
    return f"{value:,.0f} bytes" if isinstance(cost, FileBytes | WeightBytes) else f"{value:.4g} {cost.unit}"
