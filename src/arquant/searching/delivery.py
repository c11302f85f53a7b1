"""From policies to models that ship: fully fine-tuned, frozen in a file, read back from it, certified, shown."""

import hashlib
import json
import shutil
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from arquant.base.errors import MismatchError
from arquant.base.files import in_one_move
from arquant.base.own_files import own_file
from arquant.base.progress import Report, Status
from arquant.base.provenance import provenance
from arquant.base.run_folder import CONFIG, MODEL, POLICY, open_run
from arquant.certificates.certificate import CertificateSet
from arquant.certificates.files import read_certificates
from arquant.certification.certifier import Certifier
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier
from arquant.quantization.artifact import architecture_of, load_artifact, save_artifact
from arquant.quantization.policy import Policy
from arquant.searching.candidate_pool import CandidatePool, Done, Request
from arquant.searching.journal_lines import Model, SearchJournal
from arquant.searching.options import SearchOptions
from arquant.searching.release import EXAMINED, MODELS, Releases, is_certified
from arquant.searching.workbench import Network, Workbench
from arquant.training.loop import Diverged
from arquant.training.recipe import Recipe

CHECKPOINT = "final-training.safetensors"
CONTROL_FOLDER = "controls"
_MAKING = "making-"


@dataclass(frozen=True, eq=False)
class Delivery:
    """Makes, certifies and shows the models of a run. A model that is there is not made again.

    Attributes:
        root: the run folder.
        images: those to certify, which the search never saw.
        config: what the `config.yaml` of every model's folder says, so that other commands can work on it.
        facts: what every model file says about its origin.
    """

    root: Path
    workbench: Workbench
    options: SearchOptions
    images: ImageSet
    certifier: Certifier
    journal: SearchJournal
    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    report: Report
    note: Callable[[str], None]
    pool: CandidatePool | None = None
    """workers that fine-tune models side by side"""

    @cached_property
    def releases(self) -> Releases:
        """Return the models that were made."""
        return Releases(self.root, architecture_of(self.workbench.quantized))

    def certified(
        self,
        place: Path,
        policy: Policy,
        what: str,
        *,
        start: Callable[[], Network] | None = None,
        examined: int,
        budget: str | None = None,
    ) -> CertificateSet:
        """Let a folder show the model of a policy, and return its certificates.

        A model that several folders ask for is fine-tuned and certified once.

        Args:
            what: the name of the model in progress reports.
            start: gives the network that fine-tuning starts from; None for the float weights.
            examined: how many candidates the policy was chosen from.
            budget: of the folder, for its configuration.

        Raises:
            Diverged: the full fine-tuning gave NaN or infinite numbers.
            MismatchError: the file of the model is not the one that this run wrote.
        """
        fingerprint = self._made(place, policy) or self._make(place, policy, start, examined)
        model = self.releases.read(fingerprint)
        own = {**self.config, **({} if budget is None else {"budget": [budget]}), "policy": policy.widths()}
        config = None if place == self.root else own
        before = self.releases.publish(place, fingerprint, examined=examined, config=config)
        if before is not None:
            self.note(
                f"{place} shows another model now; the one before, and what was made of it, is in "
                f"{self.releases.folder(before)}"
            )
        release = self.releases.folder(fingerprint)
        if is_certified(release):
            self.certifier.check(release, fingerprint, self.images)  # a user may have certified the model otherwise
        else:
            self.certificates(release, model, what, examined=examined)
        self.releases.publish(place, fingerprint, examined=examined, config=config)
        return read_certificates(place)

    def certificates(self, folder: Path, model: Classifier, what: str, *, examined: int | None) -> CertificateSet:
        """Certify a frozen model on the images that the search never saw, with noise that no candidate was chosen on."""
        own_file(self.root, str(folder.relative_to(self.root))).mkdir(parents=True, exist_ok=True)
        return self.certifier.certify(
            model, self.images, folder, examined=examined, report=self._named(f"certify {what}"), note=self.note
        )

    def finetune_ahead(self, wanted: Sequence[tuple[Policy, Callable[[], Network] | None, Recipe]]) -> None:
        """Fine-tune models that will be asked for next side by side, if there are workers, and leave their places to others.

        Args:
            wanted: policy, start as of `certified`, and recipe of each. One that was begun here goes on here.
        """
        if self.pool is None:
            return
        requests: dict[Hashable, Request] = {}
        for policy, start, recipe in wanted:
            key = (policy, start is not None, recipe)
            if key not in requests and not (self._making(policy, start) / CHECKPOINT).exists():
                requests[key] = ("final", key, (policy, None if start is None else start(), recipe))
        self.pool.work_ahead(
            list(requests.values()),
            lambda done, total: self.report(Status("fine-tune finalists", done, total, "fine-tunings")),
        )
        self.pool.close()

    def is_made(self, place: Path, policy: Policy) -> bool:
        """Tell whether the model that a folder asks for is there."""
        return any(self.releases.has(line.fingerprint) for line in self._lines(place, policy))

    def tidy(self) -> None:
        """Remove what is left of models that were overtaken before they were made."""
        for folder in (self.root / MODELS).glob(f"{_MAKING}*"):
            shutil.rmtree(folder)

    def _made(self, place: Path, policy: Policy) -> str | None:
        """Return the fingerprint of the policy's model, the latest that is there; None if it must be made."""
        self.releases.keep(place)
        name, lines = self._name(place), self._lines(place, policy)
        found = next((line for line in reversed(lines) if self.releases.has(line.fingerprint)), None)
        if found is None:
            return None
        if not any(line.folder == name and line.fingerprint == found.fingerprint for line in lines):
            self.journal.add(Model(folder=name, fingerprint=found.fingerprint, policy=policy))
        return found.fingerprint

    def _lines(self, place: Path, policy: Policy) -> list[Model]:
        """Return the journaled models that a folder asks for, whether they are there or not."""
        name = self._name(place)
        return [line for line in self.journal.lines if isinstance(line, Model) and self._serves(line, name, policy)]

    def _making(self, policy: Policy, start: Callable[[], Network] | None) -> Path:
        """Return where a model is made."""
        return self.root / MODELS / f"{_MAKING}{_digest(policy)}{'' if start is None else '-kept'}"

    def _serves(self, line: Model, name: str, policy: Policy) -> bool:
        """Tell whether a journaled model is what a folder asks for.

        Journals of earlier versions do not say the policy, and hold one model per folder. A control always starts from
        the float weights, a winner perhaps from its candidate's network.
        """
        if line.policy is None:
            return line.folder == name
        alike = self.options.final_start == "float" or _is_control(line.folder) == _is_control(name)
        return alike and line.policy == policy

    def _name(self, place: Path) -> str:
        """Return what the journal calls a folder."""
        return str(place.relative_to(self.root))

    def _make(self, place: Path, policy: Policy, start: Callable[[], Network] | None, examined: int) -> str:
        """Fine-tune a policy in full and release the model; return its fingerprint.

        It is journaled before its file is there: killed in between, the search makes it again, and knows it.
        """
        name, layers = self._name(place), self.workbench.quantized.layers.facts()
        making = self._making(policy, start)
        making.mkdir(parents=True, exist_ok=True)
        policy.save(making / POLICY, model=layers)
        seconds = self._finetuned_(policy, start, making, f"fine-tune {name if name != '.' else 'the winner'}")
        source = provenance()
        origin = {key: source[key] for key in ("versions", "commit", "command")}
        facts = {**self.facts, **origin, "recipe": self.options.final_recipe.facts(), EXAMINED: examined}
        self.workbench.quantized.cpu()
        with in_one_move(making / MODEL) as scratch:
            save_artifact(scratch, self.workbench.quantized, facts)
            fingerprint = load_artifact(scratch, arch=self.releases.arch).fingerprint()
        release = self.releases.folder(fingerprint)
        if not (release / CONFIG).exists():
            # a release belongs to no budget: several may show it
            shared = {name: value for name, value in self.config.items() if name != "budget"}
            open_run(release, {**shared, "policy": policy.widths()})
        policy.save(release / POLICY, model=layers)
        line = Model(folder=name, fingerprint=fingerprint, policy=policy, seconds={"finetune": seconds})
        known = [replace(each, seconds={}) for each in self.journal.lines if isinstance(each, Model)]
        if replace(line, seconds={}) not in known:
            self.journal.add(line)
        (making / MODEL).replace(release / MODEL)
        shutil.rmtree(making)
        return fingerprint

    def _finetuned_(self, policy: Policy, start: Callable[[], Network] | None, making: Path, stage: str) -> float:
        """Fine-tune a policy in full on the workbench, or go on from the checkpoint; return the seconds.

        Raises:
            Diverged: the message says where the policy is.
        """
        bench, checkpoint = self.workbench, making / CHECKPOINT
        recipe = self.options.final_recipe
        done = None if self.pool is None else self.pool.taken("final", (policy, start is not None, recipe))
        network = None if start is None or done is not None else start()
        for _ in range(2):
            bench.set_(policy)
            if network is not None:
                bench.put_(network)
            try:
                if done is not None:
                    return self._put_(done)
                record = bench.finetune_(recipe, checkpoint=checkpoint, report=self._named(stage))
                return float(record["seconds"])
            except MismatchError:
                # the checkpoint does not fit; what it left on the workbench is of no use
                checkpoint.unlink()
            except Diverged as error:
                raise Diverged(
                    f"the full fine-tuning failed: {error}; the policy is in {making / POLICY}, and arquant quantize "
                    "--policy with arquant finetune can try another recipe"
                ) from error
        raise AssertionError("a training without a checkpoint was refused for its checkpoint")

    def _put_(self, done: Done) -> float:
        """Put in what a worker has fine-tuned; return its seconds."""
        if isinstance(done.result, str):
            raise Diverged(done.result)
        network, seconds = done.result
        self.workbench.put_(network)
        return float(seconds)

    def _named(self, stage: str) -> Report:
        def report(status: Status) -> None:
            self.report(replace(status, stage=stage))

        return report


def _digest(policy: Policy) -> str:
    return hashlib.sha256(json.dumps(policy.widths()).encode()).hexdigest()[:12]


def _is_control(folder: str) -> bool:
    return Path(folder).parent.name == CONTROL_FOLDER
