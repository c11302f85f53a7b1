"""Plan the length of a search: how many candidates of each budget a strategy should expect.

Some strategies schedule their exploration (they have the option `episodes`). The number comes from the user, else from
the number of trials, else, where hours are given, from a measurement that the journal keeps. A search that goes on keeps
the plan that it began with.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arquant.base.run_folder import CONFIG, read_config
from arquant.searching.journal_lines import Planned, SearchJournal
from arquant.searching.method import Method
from arquant.searching.options import SearchOptions
from arquant.searching.space import Space
from arquant.searching.standings import Track
from arquant.searching.strategy import parse_options
from arquant.searching.study import Limits

EPISODES = "episodes"


@dataclass(frozen=True, eq=False)
class Schedule:
    """How many candidates the strategies plan for.

    Attributes:
        out: the run folder.
    """

    out: Path
    method: Method
    spaces: Sequence[Space]
    options: SearchOptions
    limits: Limits

    @property
    def _given(self) -> dict[str, Any]:
        return {**self.method.strategy_options, **self.options.strategy_options}

    @property
    def _plans(self) -> bool:
        return hasattr(self.method.strategy.defaults, EPISODES)

    @property
    def known(self) -> int | None:
        """Return the planned number of candidates per budget; None if nothing is planned, or a measurement is to tell."""
        if not self._plans:
            return None
        if (self.out / CONFIG).is_file():
            options = read_config(self.out).get("strategy_options")
            return options.get(EPISODES) if isinstance(options, dict) else None
        trials, hours = self.limits.trials, self.limits.hours
        return None if trials is None or hours is not None else max(1, trials // len(self.spaces))

    @property
    def measured(self) -> bool:
        """Tell whether a measurement is to tell the number."""
        return self._plans and EPISODES not in self._given and self.known is None

    @property
    def outrun(self) -> bool:
        """Tell whether the limits allow more candidates than were planned."""
        planned = self.known
        return planned is not None and (self.limits.trials or 0) // len(self.spaces) > planned

    def strategy_options(self) -> dict[str, Any]:
        """Return all options of the strategy, for the configuration; without a number that is yet to be measured."""
        found = asdict(parse_options(self.options.strategy, self.method.strategy.defaults, self._with(self.known)))
        if self.measured:
            del found[EPISODES]
        return found

    def allowed(self, candidate_seconds: float) -> int:
        """Return how many candidates of each budget the limits allow; without limits, the strategy's own default."""
        trials, hours = self.limits.trials, self.limits.hours
        allowed = [] if trials is None else [float(trials)]
        allowed += [] if hours is None else [3600 * hours / candidate_seconds]
        if not allowed:
            return int(self.method.strategy.defaults.episodes)
        return max(1, round(min(allowed) / len(self.spaces)))

    def tracks(self, journal: SearchJournal | None = None) -> list[Track]:
        """Build the strategy of every budget; a number that was measured is in the journal."""
        episodes = self.known
        if self.measured and journal is not None:
            episodes = next(line.episodes for line in journal.lines if isinstance(line, Planned))
        build, seed = self.method.strategy, self.options.seed
        return [Track(space, build(space, seed, self._with(episodes))) for space in self.spaces]

    def _with(self, episodes: int | None) -> dict[str, Any]:
        return {**({} if episodes is None else {EPISODES: episodes}), **self._given}
