"""The lines of a search's journal, one class per kind, each with the keys that the file has.

A search asks its journal what it has done, never what a dictionary might hold. Fields that earlier versions did not
write have defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from arquant.base.errors import FileFormatError
from arquant.base.journal import Record, TypedJournal, read_typed_journal
from arquant.base.records import TypedRecord, conversion, omitted, read_record
from arquant.quantization.policy import Policy

SCORED, ABANDONED, FAILED, REPEATED = "scored", "abandoned", "failed", "repeated"
_POLICY = conversion(Policy, Policy.widths)


class Line(TypedRecord):
    """A line of a search's journal."""


@dataclass(frozen=True, kw_only=True)
class Estimate(TypedRecord):
    """A score in a file: it ranks candidates and proves nothing.

    Attributes:
        estimate: the reward.
        low, high: an approximate 95 % interval over images.
        images, n: how many images, and votes on each.
    """

    estimate: str = ""
    value: float
    standard_error: float | None = omitted()
    low: float | None = omitted()
    high: float | None = omitted()
    images: int | None = omitted()
    n: int | None = omitted()


@dataclass(frozen=True, kw_only=True)
class Gap(TypedRecord):
    """A difference to the float model, paired by image."""

    value: float
    standard_error: float


@dataclass(frozen=True, kw_only=True)
class LostRace(TypedRecord):
    """The comparison by which a candidate was abandoned; fields as in `racing.Race`."""

    votes: int
    difference: float | None = omitted()
    p_value: float | None = omitted()
    fine_tuned: bool | None = omitted()


@dataclass(frozen=True, kw_only=True)
class Setup(Line):
    """How the search was set up: whether the training step is compiled."""

    tag = "setup"
    compiled: bool


@dataclass(frozen=True, kw_only=True)
class Planned(Line):
    """How many candidates of each budget a strategy plans for, by a measurement."""

    tag = "plan"
    episodes: int


@dataclass(frozen=True, kw_only=True)
class ReferenceVotes(Line):
    """Which votes of the float model the scores are compared with."""

    tag = "reference"
    votes_sha256: str


@dataclass(frozen=True, kw_only=True)
class Candidate(Line):
    """A proposed policy and what its evaluation gave.

    Attributes:
        budget, within: the budget that it was proposed for, and all budgets that it fits.
        usage: the largest share of a limit of `budget` that the policy uses.
        steps: of fine-tuning, where the strategy asked for a number.
        repeat_of: the number of the candidate whose outcome this one shares.
        score: by the reward of the search; None if the evaluation failed.
        acr, acr_minus_float: the estimated ACR, and its difference to the float model's.
        failure: why there is no score.
        abandoned: the race that it lost; its score is then a guess.
        disagreement: the share of votes unlike the float model's.
        seconds: by stage.
    """

    tag = "candidate"
    number: int
    budget: str = ""
    within: tuple[str, ...] | None = omitted()
    policy: Policy = field(metadata=_POLICY)
    usage: float | None = None
    steps: int | None = omitted()
    repeat_of: int | None = None
    cost: Mapping[str, float | None] = field(default_factory=dict)
    score: Estimate | None = None
    acr: Estimate | None = None
    acr_minus_float: Gap | None = None
    failure: str | None = None
    abandoned: LostRace | None = None
    disagreement: float | None = omitted()
    engine: str | None = omitted()
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def budgets(self) -> tuple[str, ...]:
        """The budgets that the policy fits; earlier versions wrote only the one it was proposed for."""
        return (self.budget,) if self.within is None else self.within

    @property
    def value(self) -> float | None:
        """The value of the score."""
        return None if self.score is None else self.score.value

    @property
    def complete(self) -> bool:
        """Tell whether it was scored on all its votes."""
        return self.score is not None and self.abandoned is None

    @property
    def outcome(self) -> str:
        """Return how the evaluation ended, in one word."""
        if self.repeat_of is not None:
            return REPEATED
        if self.failure is not None or self.score is None:
            return FAILED
        return SCORED if self.abandoned is None else ABANDONED


@dataclass(frozen=True, kw_only=True)
class SecondLook(Line):
    """A candidate of the shortlist, fine-tuned anew with another seed.

    Attributes:
        steps, n: of this look, None for those of a candidate; earlier versions wrote n with the score only.
        score: None if fine-tuning failed.
    """

    tag = "shortlist"
    budget: str
    number: int
    seed: int
    steps: int | None = None
    n: int | None = None
    score: Estimate | None

    @property
    def votes(self) -> int | None:
        """Votes per image."""
        return self.n if self.n is not None or self.score is None else self.score.n


@dataclass(frozen=True, kw_only=True)
class SecondLookOptions(Line):
    """The options of second looks, by which a winner is chosen; None for one that an earlier version did not have."""

    shortlist: int | None = omitted()
    shortlist_seeds: int | None = omitted()
    shortlist_steps: int | None = None
    shortlist_n: int | None = None


@dataclass(frozen=True, kw_only=True)
class Choice(SecondLookOptions):
    """From here on winners are chosen with other second looks than before."""

    tag = "choice"


@dataclass(frozen=True, kw_only=True)
class Winner(SecondLookOptions):
    """The candidate that won a budget, and by which second looks."""

    tag = "winner"
    budget: str
    number: int


@dataclass(frozen=True, kw_only=True)
class Model(Line):
    """A model that a folder of the run shows; the first line of a fingerprint says how long it took to make.

    Attributes:
        folder: relative to the run.
        policy: None in journals of earlier versions, which hold one model per folder.
    """

    tag = "model"
    folder: str
    fingerprint: str
    policy: Policy | None = field(default=None, metadata=_POLICY)
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SetAside(Line):
    """A model that an earlier version moved to `FOLDER/earlier/NUMBER`; nothing writes this line any more."""

    tag = "set aside"
    folder: str
    number: int


@dataclass(frozen=True, kw_only=True)
class Certified(Line):
    """A model that the search did not make, such as a fine-tuned one, certified on its images."""

    tag = "certified"
    folder: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class End(Line):
    """The loop ended; it goes on after this line if a later call has larger limits."""

    tag = "end"
    reason: str


KINDS: dict[str, type[Line]] = {
    kind.tag: kind
    for kind in (
        Setup, Planned, ReferenceVotes, Candidate, SecondLook, Choice, Winner, Model, SetAside, Certified, End,
    )
}  # fmt: skip
SearchJournal = TypedJournal[Line]


def read_line(data: Record, where: str) -> Line:
    """Return the typed line.

    Raises:
        FileFormatError: no search writes this; the message names the line and the field.
    """
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise FileFormatError(f"{where}: unknown kind {kind!r}; the line is damaged, or of a later version of arquant")
    try:
        return read_record(KINDS[kind], data, where)
    except FileFormatError as error:
        raise FileFormatError(f"{error}; the line is damaged") from error


def read_search_journal(path: Path | str) -> tuple[Record, list[Line]]:
    """Read identity and lines of a search's journal that another process may be writing."""
    return read_typed_journal(path, read_line)
