"""One search over one run folder: its stages in order, each taken up where it was left."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from arquant.base.errors import InputError
from arquant.base.journal import Journal, Record, read_journal
from arquant.base.own_files import own_file
from arquant.base.progress import Report, duration, silent
from arquant.base.provenance import provenance, write_json
from arquant.base.run_folder import (
    CONFIG,
    JOURNAL,
    MODEL,
    POINTS,
    POLICY,
    SUMMARY,
    change_config,
    check_own,
    differences,
    keep_file,
    open_run,
    read_config,
)
from arquant.base.threads import available_cores
from arquant.certificates.certificate import CertificateSet
from arquant.certification.smoothing import Smoothed
from arquant.certification.vote_cache import VoteCache, compare_only_with, recorded_engine, reference_votes
from arquant.certification.votes import NoAnswer
from arquant.engines.probes import make_probes
from arquant.images.seen_images import seen_images
from arquant.loading.roles import Roles
from arquant.loading.run_images import record_seen, seen_by
from arquant.models.classifier import Classifier
from arquant.noise.source import Noise
from arquant.quantization.artifact import architecture_of, load_artifact, save_artifact
from arquant.quantization.policy import Policy
from arquant.searching.candidate import Evaluator
from arquant.searching.delivery import Delivery
from arquant.searching.forecast import Pace, candidate_seconds, expected_stages, measure, steps_of
from arquant.searching.history import CHOICE, WINNER, latest_options, models_made, trials_of
from arquant.searching.kept_networks import KeptNetworks
from arquant.searching.method import find_method
from arquant.searching.options import SECOND_LOOKS, SearchOptions, reward_of
from arquant.searching.racing import Racing
from arquant.searching.shortlist import winner_of
from arquant.searching.space import Space
from arquant.searching.strategy import Strategy
from arquant.searching.study import Limits, Study, Track, policy_of
from arquant.searching.summary import Point
from arquant.searching.workbench import EngineOptions, Network, Workbench
from arquant.searching.workbench_setup import workbench_for
from arquant.training.loop import COMPILE_FROM, Diverged

REFERENCE, KEPT = "reference", "kept"
Note = Callable[[str], None]


class SearchRun:
    """One run over one folder."""

    def __init__(
        self,
        out: Path,
        classifier: Classifier,
        roles: Roles,
        spaces: Sequence[Space],
        options: SearchOptions,
        limits: Limits,
        engines: EngineOptions,
        config: dict[str, Any],
        report: Report,
        note: Note,
        compiled: bool | None,
        tables: Mapping[str, Path],
    ) -> None:
        self.out = out
        self.classifier = classifier
        self.roles = roles
        self.options = options
        self.limits = limits
        self.engines = engines
        self.config = config
        self.report = report
        self.note = note
        self.compiled = compiled
        self.tables = tables
        self.scoring = options.scoring
        strategy = find_method(options.strategy)
        self.reward = reward_of(options)
        self.racing = Racing() if (strategy.racing if options.racing is None else options.racing) else None
        self._kind = strategy.strategy
        episodes = self._planned(len(spaces))
        if episodes is not None and (limits.trials or 0) // len(spaces) > episodes:
            note(
                f"strategy {options.strategy} keeps the plan that this search began with, of {episodes} candidates: beyond "
                "them it explores little; a longer plan needs another --out"
            )
        self.tracks = [Track(space, self._strategy(space, episodes)) for space in spaces]
        self.study: Study | None = None
        self._winners: dict[str, Record] = {}
        self._delivered: dict[tuple[Policy, bool], Path] = {}

    def _strategy(self, space: Space, episodes: int | None) -> Strategy:
        """The strategy of one budget; one that plans its length is told how many candidates to expect."""
        options = dict(self.options.strategy_options)
        if episodes is not None:
            options.setdefault("episodes", episodes)
        return self._kind(space, self.options.seed, options)

    def _planned(self, budgets: int) -> int | None:
        """Candidates of each budget that the strategy plans for; None if it does not plan, or if a measurement is to tell.

        A search that goes on keeps the plan that it began with.
        """
        if not hasattr(self._kind.defaults, "episodes"):
            return None
        if (self.out / CONFIG).is_file():
            options = read_config(self.out).get("strategy_options")
            return options.get("episodes") if isinstance(options, dict) else None
        limits = self.limits
        return None if limits.trials is None or limits.hours is not None else max(1, limits.trials // budgets)

    @property
    def _plans_later(self) -> bool:
        plans = hasattr(self._kind.defaults, "episodes") and "episodes" not in self.options.strategy_options
        return plans and self._planned(len(self.tracks)) is None

    def work(self) -> dict[str, Any]:
        """All stages, each taken up where it was left."""
        torch.set_num_threads(self.engines.threads or available_cores())
        strategy_options = dict(self.tracks[0].strategy.describe()["options"])
        planned_later = self._plans_later
        if planned_later:
            del strategy_options["episodes"]
        plain = {**self.options.to_json(), "strategy_options": strategy_options}
        check_own(self.out, JOURNAL)
        open_run(self.out, {**self.config, **plain}, free=SECOND_LOOKS)
        for name, table in self.tables.items():
            keep_file(table, own_file(self.out, name))
        identity = {
            "model": self.classifier.fingerprint(),
            "images": self.roles.fingerprints(),
            "engines": vars(self.engines),
        }
        free = [f"options.{name}" for name in SECOND_LOOKS]
        with Journal(self.out / JOURNAL, {**identity, "config": self.config, "options": plain}, free=free) as journal:
            self._note_second_looks(journal)
            write_json(self.out / "provenance.json", {**provenance(), **identity, "limits": asdict(self.limits)})
            record_seen(self.out, origin=self.config["model"], calibrate=self.roles.calibrate, search=self.roles.search)
            bench = self._workbench(self._compiled(journal))
            used = seen_images(calibrate=self.roles.calibrate, search=self.roles.search)
            bench.quantized.seen = seen_by(self.config["model"], self.classifier) | used
            try:
                return self._stages(journal, bench, planned_later=planned_later)
            finally:
                bench.close()

    @property
    def _second_looks(self) -> dict[str, Any]:
        return {name: getattr(self.options, name) for name in SECOND_LOOKS}

    def _note_second_looks(self, journal: Journal) -> None:
        """Say so if the winner is chosen in another way than before: the result may then be another."""
        known = latest_options(journal.identity, journal.records)
        before = {name: known.get(name) for name in SECOND_LOOKS}
        if changed := differences(before, self._second_looks):
            (self.out / SUMMARY).unlink(missing_ok=True)
            change_config(self.out, self._second_looks)
            journal.append({"kind": CHOICE, **self._second_looks})
            self.note(f"the winner is chosen in another way than before: {changed}")

    def _compiled(self, journal: Journal) -> bool:
        """Whether training is compiled: as when the search began, since it changes the last digits."""
        began = [record for record in journal.records if record["kind"] == "setup"]
        if not began:
            candidates = 10_000 if self.limits.trials is None else self.limits.trials
            models = len(self.tracks) * (1 + ("uniform" in self.options.controls))
            short, full = (steps_of(recipe, self.roles) for recipe in (self.options.recipe, self.options.final_recipe))
            pays = candidates * short + models * full >= COMPILE_FROM
            journal.append({"kind": "setup", "compiled": pays if self.compiled is None else self.compiled})
            began = journal.records[-1:]
        return bool(began[0]["compiled"])

    def _workbench(self, compiled: bool) -> Workbench:
        options = self.options
        space = self.tracks[0].space
        bench = workbench_for(
            self.classifier, space.budget.cheapest(), self.roles.calibrate, options, self.engines, layers=space.layers,
            compiled=compiled,
        )  # fmt: skip
        # a model that cannot be saved and read back is to be known now, not after the search
        trial = self.out / "trial.safetensors"
        save_artifact(trial, bench.quantized, {})
        load_artifact(trial, arch=architecture_of(bench.quantized))
        trial.unlink()
        return bench

    def _stages(self, journal: Journal, bench: Workbench, *, planned_later: bool) -> dict[str, Any]:
        cache = self._reference(journal, bench, planned_later=planned_later)
        if planned_later:
            episodes = next(record["episodes"] for record in journal.records if record["kind"] == "plan")
            self.tracks = [Track(track.space, self._strategy(track.space, episodes)) for track in self.tracks]
        evaluator = Evaluator(
            bench, self.roles.search, cache, self.scoring, self.reward, n=self.options.search_n, recipe=self.options.recipe,
            seed=self.options.seed, racing=self.racing,
        )  # fmt: skip
        study = self.study = Study(
            self.tracks, evaluator, journal, KeptNetworks(self.out / KEPT), limits=self.limits,
            shortlist=self.options.shortlist, racing=self.racing is not None, report=self.report,
        )  # fmt: skip
        evaluator.report = study.progress
        if not study.over:
            self._note_resumed(study)
            (self.out / SUMMARY).unlink(missing_ok=True)  # of a shorter search, which this one continues
        ended = study.run()
        evaluator.report = silent
        delivery = Delivery(
            self.out, bench, self.options, self.roles.certify, self.engines, journal,
            {**self.config, **{name: getattr(self.options, name) for name in ("sigma", "noise", "seed", "keep", "min_bits")}},
            self._facts(), self.report, self.note,
        )  # fmt: skip
        # all winners first: a budget without one is to be known before the others' models are made
        found = [winner_of(track, study, evaluator, self.options, self._report_of(track)) for track in self.tracks]
        self._winners = {track.name: winner for track, (winner, _) in zip(self.tracks, found, strict=True)}
        for track in self.tracks:
            self._record_winner(journal, track)
        summary = self._summary(study, ended, self._points(study, delivery, found))
        write_json(self.out / SUMMARY, summary)
        return summary

    def _note_resumed(self, study: Study) -> None:
        """Say what is there already, and how long the loop should still take."""
        if done := len(study.candidates):
            more = "" if study.outlook is None else f", about {duration(study.outlook)} more of the search"
            self.note(f"goes on after {done} candidates that {study.journal.path} holds{more}")

    def _record_winner(self, journal: Journal, track: Track) -> None:
        """Journal the winner of a budget and how it was chosen, unless it is known."""
        known = [line for line in journal.records if line["kind"] == WINNER and line["budget"] == track.name]
        number = self._winners[track.name]["number"]
        line = {"kind": WINNER, "budget": track.name, "number": number, **self._second_looks}
        if not known or known[-1] != line:
            journal.append(line)

    def _reference(self, journal: Journal, bench: Workbench, *, planned_later: bool) -> VoteCache:
        """The float model's votes; before the first of them, how long everything will take.

        If a strategy's plan is to come from this measurement, the journal then says how many candidates the limits allow.
        """
        options, folder = self.options, self.out / REFERENCE
        votes = len(self.roles.search) * options.reference_n
        probes = make_probes(self.roles.search, Noise(options.noise, options.sigma), seed=options.seed)
        engine = self.engines.make(
            self.classifier, options.noise, votes=votes, probes=probes, **(recorded_engine(folder) or {})
        )
        smoothed = Smoothed(self.classifier, options.sigma, noise=options.noise, seed=options.seed, engine=engine)
        try:
            if not any(record["kind"] == "candidate" for record in journal.records):
                pace = self._announce(bench, smoothed)
                if planned_later and not any(record["kind"] == "plan" for record in journal.records):
                    each = candidate_seconds(pace, options, self.roles)
                    journal.append({"kind": "plan", "episodes": self._episodes(each)})
            cache = reference_votes(
                smoothed, self.roles.search, folder, n=options.reference_n, n0=max(options.n0, 1), report=self.report
            )
        finally:
            smoothed.close()
        compare_only_with(cache, journal)
        return cache

    def _episodes(self, candidate_seconds: float) -> int:
        """How many candidates of each budget the limits allow; without limits, what the strategy would plan itself."""
        trials, hours = self.limits.trials, self.limits.hours
        allowed = [] if trials is None else [float(trials)]
        allowed += [] if hours is None else [3600 * hours / candidate_seconds]
        if not allowed:
            return int(self._kind.defaults.episodes)
        return max(1, round(min(allowed) / len(self.tracks)))

    def _announce(self, bench: Workbench, smoothed: Smoothed) -> Pace:
        space = self.tracks[0].space
        pace = measure(bench, smoothed.engine, space.uniform(space.uniform_pairs[0]), self.options)
        stages = expected_stages(pace, self.options, self.roles, self.limits, len(self.tracks))
        for stage in stages:
            self.note(f"{stage.name:14}{stage.work}: about {duration(stage.seconds)}")
        self.note(f"{'all':14}about {duration(sum(stage.seconds for stage in stages))}")
        return pace

    def _facts(self) -> dict[str, Any]:
        return {
            "from": self.config["model"],
            "data": self.config["data"],
            "sigma": self.options.sigma,
            "strategy": self.options.strategy,
            "reward": self.reward.name,
        }

    def _points(
        self, study: Study, delivery: Delivery, found: Sequence[tuple[Record, Sequence[Record]]]
    ) -> list[Point]:
        """The result within every budget. One that cannot be had is an error only after all others are certified: the same
        command, given again, would fail at the same place.
        """
        points: list[Point] = []
        failures: list[InputError] = []
        for track, (winner, scored) in zip(self.tracks, found, strict=True):
            try:
                points.append(self._point(track, study, delivery, winner, scored))
            except (Diverged, NoAnswer) as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return points

    def _point(self, track: Track, study: Study, delivery: Delivery, winner: Record, scored: Sequence[Record]) -> Point:
        """The winner of a budget, delivered and certified beside its controls."""
        folder = self._folder(track)
        config = {**delivery.config, "budget": [track.name]}
        delivery = replace(delivery, config=config, report=self._report_of(track))
        policy, uniform = policy_of(winner), track.space.uniform(track.space.uniform_pairs[0])
        kept = study.network(winner).network if self.options.final_start == "kept" else None
        certified = self._certified(delivery, folder, policy, "the winner", start=kept, examined=study.examined)
        controls, missing = {}, {}
        if "float" in self.options.controls:
            place = self.out / "controls" / "float"
            controls["float"] = delivery.certificates(place, self.classifier, "float", examined=None)
        if "uniform" in self.options.controls:
            place = folder / "controls" / "uniform"
            try:
                controls["uniform"] = self._certified(delivery, place, uniform, "uniform", start=None, examined=1)
            except (Diverged, NoAnswer) as error:  # the winner is certified, and stands without its control
                missing["uniform"] = str(error)
        is_uniform = track.space.is_uniform(policy)
        return Point(
            track.name, policy, str(folder), winner, scored, certified, uniform, is_uniform, controls, missing
        )  # fmt: skip

    def _certified(
        self, delivery: Delivery, folder: Path, policy: Policy, what: str, *, start: Network | None, examined: int
    ) -> CertificateSet:
        """Deliver a model and certify it: once, whether one budget or several, winner or control, ask for it."""
        asked = (policy, start is not None)  # a policy has one network to start from, beside the float one
        twin = self._delivered.get(asked)
        found = delivery.certified(folder, policy, what, start=start, examined=examined, twin=twin)
        self._delivered.setdefault(asked, folder)
        return found

    def _report_of(self, track: Track) -> Report:
        """Progress of a stage that every budget has: where there are several, it is named."""
        if len(self.tracks) == 1:
            return self.report
        return lambda status: self.report(replace(status, stage=f"{status.stage}, {track.name}"))

    def _folder(self, track: Track) -> Path:
        """Where the model of a budget goes: the run folder, or one per budget."""
        return self.out if len(self.tracks) == 1 else own_file(self.out, POINTS, track.space.budget.slug)

    def _summary(self, study: Study, ended: str, points: Sequence[Point]) -> dict[str, Any]:
        shown = [point.to_json() for point in points]
        fresh = [record for record in study.candidates if record["repeat_of"] is None]
        return {
            "run": str(self.out),
            "strategy": self.options.strategy,
            "reward": self.reward.name,
            "ended": ended,
            "trials": len(study.candidates),
            "candidates_examined": study.examined,
            "models_certified": models_made(study.journal.records),
            "failed": sum(record["failure"] is not None for record in fresh),
            "abandoned": sum(record["abandoned"] is not None for record in fresh),
            "search_seconds": study.seconds,
            "strategies": [track.strategy.describe() for track in self.tracks],
            "options": self.options.to_json(),
            **{name: shown[0][name] for name in ("policy", "cost", "estimates", "certified")},
            "points": shown,
        }

    def save_best(self) -> str:
        """Write the best policy of each budget so far to its `policy.json`, unless a model lies beside it, whose policy that
        is; returns a sentence about it.
        """
        if self.study is None:
            journal = self.out / JOURNAL
            count = len(trials_of(read_journal(journal)[1])) if journal.exists() else 0
            return f"the {count} candidates of {journal} are kept" if count else "no candidate was under way"
        places = []
        for track in self.tracks:
            ranked = self.study.ranking(track)
            if ranked:
                best = self._winners.get(track.name, ranked[0])
                places.append(f"{track.name}: the best so far {self._saved(best, track, self.study.journal.path)}")
        if not places:
            return "no candidate is scored yet"
        return f"{self.study.examined} candidates are examined; {'; '.join(places)}"

    def _saved(self, best: Record, track: Track, journal: Path) -> str:
        folder, score = self._folder(track), best["score"]
        about = f"has the score {score['estimate']} {score['value']:.4f}"
        if (folder / MODEL).exists():
            return f"{about}, it is candidate {best['number']} of {journal}"
        folder.mkdir(parents=True, exist_ok=True)
        policy: Policy = policy_of(best)
        policy.save(folder / POLICY, model=track.space.layers.facts())
        return f"{about}, its policy is in {folder / POLICY}"
