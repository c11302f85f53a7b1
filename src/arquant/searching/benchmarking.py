"""Methods side by side: each searches in a folder of its own; what it chose is fine-tuned and certified with every seed.

Methods that do not search (`trained_methods`) have one policy and a recipe of their own instead, from the same float network.

All methods share the float network, images, noise, fixed layers, fine-tuning and cost; a winner above the budget is refused.
The float network, fine-tuned alike, stands beside them. The seeds are none that a search has chosen by, and a seed gives every
method the same order of images and the same training noise: differences can be drawn in pairs.
"""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from arquant.base.errors import InputError
from arquant.base.files import write_json
from arquant.base.progress import Report, Status
from arquant.base.run_folder import MODEL, open_run
from arquant.certificates.certificate import CertificateSet
from arquant.certification.vote_cache import VOTES
from arquant.certification.votes import NoAnswer
from arquant.engines.choice import resolve_device
from arquant.images.seen_images import seen_images
from arquant.loading.run_images import seen_by
from arquant.models.factory import names_network
from arquant.models.weights import save_weights
from arquant.quantization.options import QuantizerOptions
from arquant.quantization.policy import Policy
from arquant.searching.delivery import Delivery
from arquant.searching.journal_lines import Model, SearchJournal, SecondLook, read_line, read_search_journal
from arquant.searching.method import find_method
from arquant.searching.options import SearchOptions, part_of
from arquant.searching.run import REFERENCE, SearchRun
from arquant.searching.study import Study
from arquant.searching.trained_methods import TRAINED, certified
from arquant.training.batches import source_of
from arquant.training.loop import Diverged, train
from arquant.training.recipe import Recipe

FLOAT = "float"
FIRST_SEED = 10
"""of the final fine-tunings, above that of the search: candidates and second looks have lower ones"""
CLOCK, MADE = "clock.json", "models.jsonl"
_SAVE_SECONDS = 5.0


@dataclass(frozen=True, eq=False)
class Contender:
    """What became of a method, or of the float network.

    Attributes:
        policy: what it chose; None for the float network.
        quantizer: the options of its quantizer.
        folders: of its models, by seed; of another method that chose the same, if that was first.
        certificates: of its models, by seed.
        examined: the different policies that its search evaluated.
        seconds: of the search over all sittings, without the float network's votes.
        steps: optimizer steps of the search: preparation, candidates (as if none were abandoned) and second looks.
        recipe: of a method with a fine-tuning of its own, its name; else that of all methods.
        failure: why there are no models.
    """

    name: str
    policy: Policy | None
    quantizer: Mapping[str, Any] = field(default_factory=dict)
    folders: Mapping[int, Path] = field(default_factory=dict)
    certificates: Mapping[int, CertificateSet] = field(default_factory=dict)
    examined: int | None = None
    seconds: float | None = None
    steps: int | None = None
    recipe: str | None = None
    failure: str | None = None


def options_for(name: str, options: SearchOptions, *, native: bool) -> SearchOptions:
    """Return the options of a method's search: all as given but for what belongs to the method.

    Args:
        native: give it the quantizer that its paper had, where it states one.

    Raises:
        InputError: the method is nothing but its quantizer, and all are to have the same; or it needs another noise.
    """
    if name in TRAINED:
        return TRAINED[name].options_from(options, native=native)
    method = find_method(name)
    if not native and method.quantizer not in (None, options.learn):
        raise InputError(
            f"method {name} always has the quantizer {method.quantizer}, and the others would have {options.learn}: add "
            "--native, or leave it out"
        )
    own = dict(method.native) if native else {}
    return replace(options, strategy=name, shortlist=method.shortlist, controls=(), **own)


class Clock:
    """Counts the seconds of a search over its sittings, and the steps of its preparation, in a file of its folder."""

    def __init__(self, folder: Path, report: Report) -> None:
        self.path, self._report = folder / CLOCK, report
        known = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.finished: bool = known.get("finished", False)
        self.steps: int = known.get("prepare_steps", 0)
        self.seconds: float = known.get("seconds", 0.0)
        self._counted = self._saved = time.monotonic()
        self._stage = ""

    def report(self, status: Status) -> None:
        """Take the time since the last report, unless the float network was voting, which all methods share."""
        if not self.finished:
            now = time.monotonic()
            voting = self._stage == status.stage == REFERENCE
            self.seconds += 0.0 if voting else now - self._counted
            self._counted, self._stage = now, status.stage
            if (status.stage, status.unit) == ("prepare", "steps"):
                self.steps = int(status.total)
            if now - self._saved > _SAVE_SECONDS:
                self._save()
        self._report(status)

    def stop(self) -> None:
        """End the search; later sittings do not count."""
        if not self.finished:
            self.seconds = round(self.seconds + time.monotonic() - self._counted, 1)
            self.finished = True
            self._save()

    def _save(self) -> None:
        self._saved = time.monotonic()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        facts = {"seconds": round(self.seconds, 1), "prepare_steps": self.steps, "finished": self.finished}
        write_json(self.path, facts)


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Runs methods one after the other; the same call on the same folder goes on where it was stopped.

    Attributes:
        out: a folder, with one for each method below it.
        runs: the search of every method, within one budget, by name; the same images and certificates for all. That of a
            method that does not search is never run.
        seeds: of the final fine-tunings.
        compiled: compile the training of the float network; None decides by its length.
    """

    out: Path
    runs: Mapping[str, SearchRun]
    seeds: Sequence[int]
    compiled: bool | None = None

    def contenders(self) -> list[Contender]:
        """Return what became of the float network and of every method, in order."""
        found = [self._float(next(iter(self.runs.values())))]
        for name, run in self.runs.items():
            if name in TRAINED:
                found.append(self._trained(name, run))
                continue
            self._share_votes(run)
            found.append(self._contender(name, run, found))
        return found

    def _contender(self, name: str, run: SearchRun, before: Sequence[Contender]) -> Contender:
        clock = Clock(run.out, run.report)
        run.report = clock.report
        try:
            with run.chosen() as (study, chosen, delivery):
                clock.stop()
                (winner, looks), space = next(iter(chosen.values())), run.spaces[0]
                if not space.budget.allows(winner.policy):
                    raise AssertionError(f"{name} chose a policy outside {space.budget.text}: {winner.policy!r}")
                found = Contender(
                    name, winner.policy, part_of(run.options, QuantizerOptions), examined=study.standings.examined,
                    seconds=clock.seconds, steps=clock.steps + _steps(study, looks),
                )  # fmt: skip
                twin = next((each for each in before if _same_model(each, found)), None)
                if twin is not None:
                    return replace(found, folders=twin.folders, certificates=twin.certificates)
                folders = {seed: run.out / f"seed-{seed}" for seed in self.seeds}
                delivery.finetune_ahead(_missing(delivery, winner.policy, folders))
                made = {seed: _certified(delivery, folder, seed, found) for seed, folder in folders.items()}
                return replace(found, folders=folders, certificates=made)
        except (Diverged, NoAnswer) as error:  # the other methods are still worth having
            return Contender(name, None, part_of(run.options, QuantizerOptions), failure=str(error))

    def _trained(self, name: str, run: SearchRun) -> Contender:
        method = TRAINED[name]
        quantizer, policy = part_of(run.options, QuantizerOptions), method.policy(run.spaces[0])
        folders = {seed: run.out / f"seed-{seed}" for seed in self.seeds}
        try:
            made = {seed: certified(method, run, folder, seed, self.compiled) for seed, folder in folders.items()}
        except (Diverged, NoAnswer) as error:  # as of methods that search
            return Contender(name, None, quantizer, failure=str(error))
        return Contender(name, policy, quantizer, folders, made, examined=1, recipe=method.recipe)

    def _float(self, run: SearchRun) -> Contender:
        folders = {seed: self.out / FLOAT / f"seed-{seed}" for seed in self.seeds}
        made = {seed: self._float_certified(run, folder, seed) for seed, folder in folders.items()}
        return Contender(FLOAT, None, folders=folders, certificates=made)

    def _float_certified(self, run: SearchRun, folder: Path, seed: int) -> CertificateSet:
        """Fine-tune the float network by the recipe of the quantized ones, and certify it."""
        recipe = replace(run.options.final_recipe, seed=seed)
        if recipe.consistency == 0:
            recipe = replace(recipe, distill=0.0)  # a network that only follows itself learns nothing
        folder.mkdir(parents=True, exist_ok=True)
        model = run.classifier.snapshot()
        record = train(
            model, *source_of(run.roles.calibrate), recipe,
            teacher=run.classifier.snapshot() if recipe.distill > 0 else None,
            checkpoint=folder / "training.safetensors", origin=run.classifier.fingerprint(), compiled=self.compiled,
            device=resolve_device(run.engines.device), report=_named(run.report, f"fine-tune float, seed {seed}"),
        )  # fmt: skip
        used = seen_images(calibrate=run.roles.calibrate)
        model.cpu().seen = seen_by(run.config["model"], run.classifier) | used
        if names_network(model.arch):
            save_weights(folder / MODEL, model, arch=model.arch, sigma=recipe.sigma, training=record)
        return run.certifier.certify(
            model, run.roles.certify, folder, examined=None, note=run.note,
            report=_named(run.report, f"certify float, seed {seed}"),
        )  # fmt: skip

    def _share_votes(self, run: SearchRun) -> None:
        """Give a search the float network's votes that an earlier one has; it checks them."""
        theirs = [each.out / REFERENCE for each in self.runs.values() if (each.out / REFERENCE / VOTES).exists()]
        if not theirs or (run.out / REFERENCE).exists():
            return
        scratch = self.out / f"{REFERENCE}.part"
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(theirs[0], scratch)
        run.out.mkdir(exist_ok=True)
        scratch.replace(run.out / REFERENCE)


def _missing(delivery: Delivery, policy: Policy, folders: Mapping[int, Path]) -> list[tuple[Policy, None, Recipe]]:
    """Return the fine-tunings of the seeds whose models are not there."""
    seeds = [seed for seed, folder in folders.items() if not (folder / MODEL).exists()]
    return [(policy, None, replace(delivery.options, seed=seed).final_recipe) for seed in seeds]


def _certified(delivery: Delivery, folder: Path, seed: int, found: Contender) -> CertificateSet:
    """Make and certify the model of a contender with one seed; what an earlier call began goes on."""
    assert found.policy is not None
    # none of a search's own folders, to which other commands would ascend
    config = {**delivery.config, "command": "benchmark", "policy": found.policy.widths()}
    open_run(folder, config)
    options = replace(delivery.options, seed=seed)
    stage = f"{found.name}, seed {seed}"
    with SearchJournal(folder / MADE, {"policy": found.policy.widths(), "seed": seed}, read_line) as journal:
        mine = replace(
            delivery,
            root=folder,
            options=options,
            journal=journal,
            config=config,
            report=_added(delivery.report, stage),
        )
        return mine.certified(folder, found.policy, found.name, examined=found.examined or 1)


def final_seconds(one: Contender) -> float | None:
    """Return what the final fine-tuning and the certificates of a model took, on average over seeds; None if unknown."""
    known = [folder for folder in one.folders.values() if (folder / MADE).exists()]
    if not known:
        return None
    lines = [line for folder in known for line in read_search_journal(folder / MADE)[1] if isinstance(line, Model)]
    certifying = sum(each.seconds for found in one.certificates.values() for each in found.certificates)
    return (sum(sum(line.seconds.values()) for line in lines) + certifying) / len(known)


def _same_model(one: Contender, other: Contender) -> bool:
    """Tell whether two methods ask for the same models."""
    if one.failure is not None:
        return False
    return (one.policy, one.quantizer, one.recipe) == (other.policy, other.quantizer, other.recipe)


def _steps(study: Study, looks: Sequence[SecondLook]) -> int:
    fresh = [candidate for candidate in study.candidates if candidate.repeat_of is None]
    asked = [*(each.steps for each in fresh), *(look.steps for look in looks)]
    return sum(map(study.standings.steps, asked))


def _named(report: Report, stage: str) -> Report:
    return lambda status: report(replace(status, stage=stage))


def _added(report: Report, what: str) -> Report:
    return lambda status: report(replace(status, stage=f"{status.stage} ({what})"))
