"""Name what a search can be asked for with `--strategy`: a strategy with the reward and quantizer that go with it.

To add a method of arquant, write its strategy in `strategies/`, one file each, and add it to `BUILT_IN` below. A strategy
of your own that you `register` is a method of its name by itself; `register_method` is for one that needs more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from arquant.base.errors import InputError
from arquant.base.options import meant
from arquant.quantization.options import QuantizerOptions
from arquant.quantization.weight_sharing import KMEANS
from arquant.searching.strategies.additive import Additive
from arquant.searching.strategies.arq import Arq
from arquant.searching.strategies.ddpg import ArqDdpg, ArqPaper
from arquant.searching.strategies.evolve import Evolve
from arquant.searching.strategies.haq_kmeans import HaqKmeans
from arquant.searching.strategies.hawq import Hawq
from arquant.searching.strategies.ilp import Ilp
from arquant.searching.strategies.limpq import Limpq
from arquant.searching.strategies.nipq import Nipq
from arquant.searching.strategies.random_search import RandomSearch
from arquant.searching.strategies.uniform import Pact, Uniform
from arquant.searching.strategy import Strategy, place_of, registered


@dataclass(frozen=True)
class Method:
    """A strategy, and what a search does with it unless the user says otherwise."""

    name: str
    strategy: type[Strategy]
    summary: str
    """What it does, in a line."""
    source: str
    """Where it comes from: a paper, or us."""
    reward: str = "acr-cv"
    """What it maximises."""
    racing: bool = True
    """True if candidates that are clearly worse than the best may be abandoned."""
    shortlist: int = 3
    """How many of the best candidates get a second look; with 1 the best score wins."""
    quantizer: str | None = None
    """What fine-tuning learns, where that belongs to the method, whatever `learn` says; None leaves it to the search."""
    native: Mapping[str, Any] = field(default_factory=dict)
    """Options of the quantizer that its paper had, for `arquant benchmark --native`; a search takes the user's."""
    strategy_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the strategy; the user's override them."""

    def __post_init__(self) -> None:
        known = [item.name for item in fields(QuantizerOptions)]
        for name in self.native:
            if name not in known:
                raise InputError(f"method {self.name!r}: a quantizer has no option {name!r}{meant(name, known)}")
        if self.shortlist < 1:
            raise InputError(f"method {self.name!r}: shortlist must be at least 1, got {self.shortlist}")


ARQ = "ARQ (the paper)"
OURS = "ours"
BUILT_IN = (
    Method(
        "arq",
        Arq,
        "short fine-tunings by design, a model of them, long looks at its best",
        OURS,
        racing=False,
        shortlist=1,
    ),
    Method("arq-ddpg", ArqDdpg, "the paper's agent beside the additive model, from the uniform policies on", OURS),
    Method("additive", Additive, "the additive model alone", OURS),
    Method("ilp", Ilp, "the policy that a table of sensitivities makes best", "HAWQ-V3, LIMPQ"),
    Method("evolve", Evolve, "breeds from the latest policies", "regularised evolution (Real et al., 2019)"),
    Method(
        "arq-paper",
        ArqPaper,
        "the paper's agent to the letter",
        ARQ,
        "irs",
        racing=False,
        shortlist=1,
        native={"clip": "kl"},
    ),
    Method(
        "haq",
        ArqPaper,
        "the same agent, rewarded by accuracy on noisy images",
        "HAQ",
        "val",
        racing=False,
        shortlist=1,
        native={"clip": "kl"},
    ),
    Method(
        "haq-kmeans",
        HaqKmeans,
        "the same agent for a size budget: weights share values",
        "HAQ",
        "val",
        racing=False,
        shortlist=1,
        quantizer=KMEANS,
    ),
    Method(
        "limpq",
        Limpq,
        "the policy that jointly learned steps make best",
        "LIMPQ (Tang et al., 2022)",
        shortlist=1,
        native={"learn": "lsq"},
    ),
    Method(
        "hawq",
        Hawq,
        "the policy that traces of the Hessian make best",
        "HAWQ-V3 (Yao et al., 2021)",
        shortlist=1,
        native={"per_channel": True},
    ),
    Method(
        "nipq",
        Nipq,
        "the policy that gradients of the widths lead to",
        "NIPQ (Shin et al., 2023)",
        shortlist=1,
        native={"learn": "pact"},
    ),
    Method("pact", Pact, "one width, the largest that fits, with learned clips", "PACT", quantizer="pact"),
    Method(
        "pact-dorefa",
        Pact,
        "the same width with weights squashed as DoReFa does",
        "PACT, DoReFa",
        quantizer="pact-dorefa",
    ),
    Method(
        "uniform",
        Uniform,
        "every uniform pair worth trying, fine-tuned as long as arq's finalists",
        "a control",
        racing=False,
        shortlist=1,
    ),
    Method("random", RandomSearch, "random policies that use the budget up", "a control"),
)
_methods: dict[str, Method] = {method.name: method for method in BUILT_IN}


def register_method(method: Method) -> None:
    """Make a method known under its name; a name that a method of another strategy has is an InputError."""
    known = methods().get(method.name)
    if known is not None and place_of(known.strategy) != place_of(method.strategy):
        raise InputError(f"method {method.name!r} is already there, with strategy {place_of(known.strategy)}")
    _methods[method.name] = method


def methods() -> dict[str, Method]:
    """Return all methods by name: those of arquant, those registered since, and every registered strategy as one."""
    found = dict(_methods)
    for name, strategy in registered().items():
        known = found.setdefault(name, _plain(name, strategy))
        if place_of(known.strategy) != place_of(strategy):
            raise InputError(
                f"strategy {place_of(strategy)} has the name of the method {name!r}; register another name"
            )
    return found


def find_method(name: str) -> Method:
    """Return the method of this name; an unknown one is an InputError that says which is near."""
    known = methods()
    if name not in known:
        hint = meant(name, known) or f"; known are {', '.join(sorted(known))}"
        raise InputError(f"unknown strategy {name!r}{hint}")
    return known[name]


def _plain(name: str, strategy: type[Strategy]) -> Method:
    return Method(name, strategy, (strategy.__doc__ or "").strip().partition("\n")[0], strategy.__module__)
