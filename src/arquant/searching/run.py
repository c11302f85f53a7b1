"""One search over one run folder: its stages in order, each taken up where it was left."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch

from arquant.base.files import write_json
from arquant.base.identity import differences
from arquant.base.own_files import own_file
from arquant.base.progress import Report, duration, silent
from arquant.base.provenance import provenance
from arquant.base.run_folder import JOURNAL, SUMMARY, change_config, check_own, keep_file, open_run
from arquant.base.threads import available_cores
from arquant.certification.certifier import Certifier
from arquant.certification.vote_cache import VoteCache
from arquant.engines.choice import EngineOptions
from arquant.engines.pool import Cluster
from arquant.images.seen_images import seen_images
from arquant.loading.roles import Roles
from arquant.loading.run_images import record_seen, seen_by
from arquant.models.classifier import Classifier
from arquant.quantization.artifact import architecture_of, load_artifact, save_artifact
from arquant.searching.candidate import Evaluator
from arquant.searching.candidate_pool import CandidatePool
from arquant.searching.candidate_worker import open_candidate_pool
from arquant.searching.context import context_for
from arquant.searching.delivery import Delivery
from arquant.searching.forecast import announce, candidate_seconds, expected_stages, measure, steps_of
from arquant.searching.history import latest_options, trials_of
from arquant.searching.interruption import before_the_loop, save_best
from arquant.searching.journal_lines import Candidate, Choice, Line, Planned, SearchJournal, Setup, Winner, read_line
from arquant.searching.kept_networks import KeptNetworks
from arquant.searching.method import find_method
from arquant.searching.options import SECOND_LOOKS, SearchOptions, reward_of
from arquant.searching.points import Chosen, Places, PointMaker
from arquant.searching.racing import Racing
from arquant.searching.reference import float_votes
from arquant.searching.schedule import Schedule
from arquant.searching.shortlist import winner_of
from arquant.searching.space import Space
from arquant.searching.standings import Track
from arquant.searching.study import Limits, Study
from arquant.searching.summary import summary_of
from arquant.searching.workbench import Workbench
from arquant.searching.workbench_setup import workbench_for
from arquant.training.loop import COMPILE_FROM

REFERENCE, KEPT, STRATEGY = "reference", "kept", "strategy"
Note = Callable[[str], None]
L = TypeVar("L", bound=Line)


class SearchRun:
    """One run over one folder.

    Args:
        out: the folder.
        certifier: scores candidates and certifies what ships.
        config: what the user asked for, for `config.yaml`.
        compiled: compile the training step; None decides by how much there is to train.
        tables: files of costs that the run keeps, by their name there.
        cluster: whose workers evaluate the candidates of a round, and fine-tune the finalists, side by side.
    """

    def __init__(
        self,
        out: Path,
        classifier: Classifier,
        roles: Roles,
        spaces: Sequence[Space],
        options: SearchOptions,
        limits: Limits,
        engines: EngineOptions,
        certifier: Certifier,
        config: dict[str, Any],
        report: Report,
        note: Note,
        compiled: bool | None,
        tables: Mapping[str, Path],
        cluster: Cluster | None = None,
    ) -> None:
        self.out = out
        self.classifier = classifier
        self.roles = roles
        self.spaces = spaces
        self.options = options
        self.limits = limits
        self.engines = engines
        self.certifier = certifier
        self.config = config
        self.report = report
        self.note = note
        self.compiled = compiled
        self.tables = tables
        self.cluster = cluster
        self._pool: CandidatePool | None = None
        method = find_method(options.strategy)
        self.reward = reward_of(options)
        self.racing = Racing() if options.races else None
        self.places = Places(out, len(spaces) > 1)
        self.schedule = Schedule(out, method, spaces, options, limits)
        if self.schedule.outrun:
            note(
                f"strategy {options.strategy} keeps the plan that this search began with, of {self.schedule.known} "
                "candidates: beyond them it explores little; a longer plan needs another --out"
            )
        # built before anything is written, that they may refuse; those that need a measured plan refuse their options then
        self._tracks = None if self.schedule.measured else self.schedule.tracks()
        self._study: Study | None = None
        self._winners: dict[str, Candidate] = {}

    def work(self) -> dict[str, Any]:
        """Go through all stages, each taken up where it was left; return the summary."""
        with self._open() as (journal, bench):
            study, ended, chosen = self._search(journal, bench)
            maker = PointMaker(self.places, study, self._delivery(journal, bench), self.options, self.classifier)
            summary = summary_of(self.out, self.options, self.reward.name, ended, study, maker.points(chosen))
            write_json(self.out / SUMMARY, summary)
            return summary

    @contextmanager
    def chosen(self) -> Iterator[tuple[Study, Mapping[str, Chosen], Delivery]]:
        """Search as `work` does, but make no model: give the study, the winner of every budget, and what makes models."""
        with self._open() as (journal, bench):
            study, _, chosen = self._search(journal, bench)
            yield study, chosen, self._delivery(journal, bench)

    @contextmanager
    def _open(self) -> Iterator[tuple[SearchJournal, Workbench]]:
        """Open the folder, unless it is another search's, and its journal and workbench."""
        torch.set_num_threads(self.engines.threads or available_cores())
        plain = {**self.options.to_json(), "strategy_options": self.schedule.strategy_options()}
        check_own(self.out, JOURNAL)
        open_run(self.out, {**self.config, **plain}, free=SECOND_LOOKS)
        for name, table in self.tables.items():
            keep_file(table, own_file(self.out, name))
        identity = {
            "model": self.classifier.fingerprint(),
            "images": self.roles.fingerprints(),
            "engines": vars(self.engines),
        }
        whole = {**identity, "config": self.config, "options": plain}
        free = [f"options.{name}" for name in SECOND_LOOKS]
        with SearchJournal(self.out / JOURNAL, whole, read_line, free=free) as journal:
            self._note_second_looks(journal)
            write_json(self.out / "provenance.json", {**provenance(), **identity, "limits": asdict(self.limits)})
            record_seen(self.out, origin=self.config["model"], calibrate=self.roles.calibrate, search=self.roles.search)
            bench = self._workbench(self._compiled(journal))
            try:
                yield journal, bench
            finally:
                if self._pool is not None:
                    self._pool.close()
                bench.close()

    def save_best(self) -> str:
        """Write the best policy of each budget so far to its `policy.json`; return a sentence about it."""
        if self._study is None:
            return before_the_loop(self.out)
        return save_best(self._study, self.places, self._winners)

    @property
    def _second_looks(self) -> dict[str, Any]:
        return {name: getattr(self.options, name) for name in SECOND_LOOKS}

    def _note_second_looks(self, journal: SearchJournal) -> None:
        """Say so if the winner is chosen in another way than before: the result may then be another."""
        known = latest_options(journal.identity, journal.lines)
        before = {name: known.get(name) for name in SECOND_LOOKS}
        if changed := differences(before, self._second_looks):
            (self.out / SUMMARY).unlink(missing_ok=True)
            change_config(self.out, self._second_looks)
            journal.add(Choice(**self._second_looks))
            self.note(f"the winner is chosen in another way than before: {changed}")

    def _compiled(self, journal: SearchJournal) -> bool:
        """Tell whether training is compiled: as when the search began, since it changes the last digits."""
        began = _of(Setup, journal)
        if began:
            return began[0].compiled
        candidates = 10_000 if self.limits.trials is None else self.limits.trials
        models = len(self.spaces) * (1 + ("uniform" in self.options.controls))
        short, full = (steps_of(recipe, self.roles) for recipe in (self.options.recipe, self.options.final_recipe))
        pays = candidates * short + models * full >= COMPILE_FROM
        journal.add(Setup(compiled=pays if self.compiled is None else self.compiled))
        return _of(Setup, journal)[0].compiled

    def _workbench(self, compiled: bool) -> Workbench:
        space = self.spaces[0]
        bench = workbench_for(
            self.classifier, space.budget.cheapest(), self.roles.calibrate, self.options, self.engines,
            layers=space.layers, compiled=compiled,
        )  # fmt: skip
        # a model that cannot be saved and read back is to be known now, not after the search
        trial = self.out / "trial.safetensors"
        save_artifact(trial, bench.quantized, {})
        load_artifact(trial, arch=architecture_of(bench.quantized))
        trial.unlink()
        return bench

    def _search(self, journal: SearchJournal, bench: Workbench) -> tuple[Study, str, dict[str, Chosen]]:
        """Run the loop and choose the winner of every budget; return why the loop ended, too."""
        measured = self.schedule.measured
        cache = float_votes(
            self.certifier, self.classifier, self.roles.search, self.out / REFERENCE, journal, report=self.report,
            first=lambda per_second: self._plan(journal, bench, per_second, measured=measured),
        )  # fmt: skip
        tracks = self._tracks or self.schedule.tracks(journal)
        self._prepare(tracks, bench)
        study, evaluator = self._opened(tracks, journal, bench, cache)
        if not study.over:
            self._note_resumed(study)
            (self.out / SUMMARY).unlink(missing_ok=True)  # of a shorter search, which this one continues
        evaluator.report = study.progress.part
        ended = study.run()
        evaluator.report = silent
        # all winners first: a budget without one is to be known before the others' models are made
        chosen: dict[str, Chosen] = {
            track.name: winner_of(track, study, evaluator, self.options, self.places.report_of(track, self.report))
            for track in study.tracks
        }
        self._winners = {name: winner for name, (winner, _) in chosen.items()}
        self._record_winners(journal)
        return study, ended, chosen

    def _plan(
        self, journal: SearchJournal, bench: Workbench, per_second: Callable[[], float], *, measured: bool
    ) -> None:
        """Before the first candidate, say how long everything will take, and journal the plan that follows from it."""
        if trials_of(journal.lines):
            return
        space = self.spaces[0]
        pace = measure(bench, per_second, space.uniform(space.uniform_pairs[0]), self.options)
        announce(expected_stages(pace, self.options, self.roles, self.limits, self.spaces), self.note)
        if measured and not _of(Planned, journal):
            each = candidate_seconds(pace, self.options, self.roles, steps_of(self.options.recipe, self.roles))
            journal.add(Planned(episodes=self.schedule.allowed(each)))

    def _prepare(self, tracks: Sequence[Track], bench: Workbench) -> None:
        """Let the strategies look at the network; each keeps what it computes in a folder of its own."""
        options = self.options
        for track in tracks:
            context = context_for(
                bench, track.space, sigma=options.sigma, seed=options.seed, recipe=options.recipe,
                final_recipe=options.final_recipe, report=self.report,
                folder=self.out / STRATEGY / track.space.budget.slug,
            )  # fmt: skip
            track.strategy.prepare(context)

    def _opened(
        self, tracks: Sequence[Track], journal: SearchJournal, bench: Workbench, cache: VoteCache
    ) -> tuple[Study, Evaluator]:
        """Open the study, which replays its journal, and the evaluator of its candidates."""
        options = self.options
        evaluator = Evaluator(
            bench, self.roles.search, cache, self.certifier, self.reward, n=options.search_n, recipe=options.recipe,
            racing=self.racing,
        )  # fmt: skip
        evaluator.pool = self._pool = self._candidate_pool(evaluator)
        self._study = Study(
            tracks, evaluator, journal, KeptNetworks(self.out / KEPT), limits=self.limits, steps=bench.steps(options.recipe),
            shortlist=options.shortlist, racing=self.racing is not None, round=options.round,
            ahead=None if self._pool is None else evaluator.ahead, report=self.report,
        )  # fmt: skip
        return self._study, evaluator

    def _candidate_pool(self, evaluator: Evaluator) -> CandidatePool | None:
        """Return the workers of the search, which start when they are needed; None without a cluster."""
        if self.cluster is None:
            return None
        cluster, threads = self.cluster, torch.get_num_threads()
        return CandidatePool(lambda: open_candidate_pool(cluster, evaluator, threads, self.note))

    def _note_resumed(self, study: Study) -> None:
        """Say what is there already, and how long the loop should still take."""
        if done := len(study.candidates):
            left = study.progress.seconds_left
            more = "" if left is None else f", about {duration(left)} more of the search"
            self.note(f"goes on after {done} candidates that {study.journal.path} holds{more}")

    def _record_winners(self, journal: SearchJournal) -> None:
        """Journal the winner of every budget and how it was chosen, unless it is known."""
        for budget, winner in self._winners.items():
            known = [line for line in _of(Winner, journal) if line.budget == budget]
            line = Winner(budget=budget, number=winner.number, **self._second_looks)
            if known[-1:] != [line]:
                journal.add(line)

    def _delivery(self, journal: SearchJournal, bench: Workbench) -> Delivery:
        options = self.options
        # only now, since it reads photos on demand that no candidate was trained on
        used = seen_images(calibrate=self.roles.calibrate, search=self.roles.search)
        bench.quantized.seen = seen_by(self.config["model"], self.classifier) | used
        record_seen(self.out, calibrate=self.roles.calibrate, search=self.roles.search)
        named = {name: getattr(options, name) for name in ("sigma", "noise", "seed", "keep", "min_bits")}
        facts = {
            "from": self.config["model"], "data": self.config["data"], "sigma": options.sigma,
            "strategy": options.strategy, "reward": self.reward.name,
        }  # fmt: skip
        return Delivery(
            self.out, bench, options, self.roles.certify, self.certifier, journal, {**self.config, **named}, facts,
            self.report, self.note, self._pool,
        )  # fmt: skip


def _of(kind: type[L], journal: SearchJournal) -> list[L]:
    """Return the lines of one kind."""
    return [line for line in journal.lines if isinstance(line, kind)]
