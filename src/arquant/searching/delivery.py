"""From a chosen policy to what ships: fully fine-tuned, frozen in a file, read back from it, and certified."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from arquant.base.errors import MismatchError
from arquant.base.journal import Journal, Record
from arquant.base.own_files import own_file
from arquant.base.progress import Report, Status
from arquant.base.provenance import in_one_move, provenance
from arquant.base.run_folder import CONFIG, FINETUNING, MODEL, POLICY, QUANTIZED, earlier_place, open_run, read_config
from arquant.certificates.certificate import CertificateSet
from arquant.certificates.files import TSV_NAME, sidecar_path
from arquant.certification.run import PARTIAL_NAME, certify
from arquant.engines.export_record import EXPORTS, known_exports
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier
from arquant.quantization.artifact import architecture_of, load_artifact, read_provenance, save_artifact
from arquant.quantization.policy import Policy
from arquant.quantization.quantized import QuantizedClassifier
from arquant.searching.options import SearchOptions
from arquant.searching.workbench import EngineOptions, Network, Workbench
from arquant.training.loop import Diverged

CHECKPOINT = "final-training.safetensors"
_FILES = (POLICY, PARTIAL_NAME, TSV_NAME, sidecar_path(TSV_NAME).name, MODEL)
"""what a model's folder holds, beside its configuration"""
_EXPORTS = (
    "model.onnx", "model.qonnx.onnx", "model.xml", "model.bin", EXPORTS, "report.html", "report.json", FINETUNING,
)  # fmt: skip
"""what other commands may have made of it"""


@dataclass(frozen=True, eq=False)
class Delivery:
    """Makes and certifies the models of a run. What is in the journal is not made again.

    Attributes:
        root: the run folder.
        config: what the `config.yaml` of every model's folder says, so that other commands can work on it.
        facts: what every model file says about its origin.
    """

    root: Path
    workbench: Workbench
    options: SearchOptions
    images: ImageSet
    engines: EngineOptions
    journal: Journal
    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    report: Report
    note: Callable[[str], None]

    def certified(
        self, folder: Path, policy: Policy, what: str, *, start: Network | None = None, examined: int,
        twin: Path | None = None,
    ) -> CertificateSet:  # fmt: skip
        """The certificates of a policy's model, which is made if it is not there; arguments as of `model`."""
        frozen = self.model(folder, policy, start, examined=examined, twin=twin)
        if twin is not None and not (folder / TSV_NAME).exists():
            for file in (sidecar_path(TSV_NAME).name, TSV_NAME):
                _copy(twin / file, folder / file)
        return self.certificates(folder, frozen, what, examined=examined)

    def model(
        self, folder: Path, policy: Policy, start: Network | None = None, *, examined: int, twin: Path | None = None
    ) -> QuantizedClassifier:
        """The model of a policy, fully fine-tuned, as read from `folder/model.safetensors`.

        Args:
            examined: how many candidates the policy was chosen from.
            start: the network that fine-tuning starts from; None for the float weights.
            twin: another folder of this run that holds this policy's finished model: it is copied, not made again.

        Raises:
            Diverged: the full fine-tuning gave NaN or infinite numbers.
            MismatchError: the file is not the one that this run wrote.
        """
        name = self._name(folder)
        own_file(self.root, name)
        made = self._made(name)
        if made:
            self._put_back(folder, made[-1])
        if made and not _is_of(made[-1], policy):
            self._set_aside(folder, name, made)
        elif made and (folder / MODEL).exists():
            if twin is None or self._holds(twin / MODEL, made[-1]):
                return self._found(folder, policy, made[-1], examined)
            # the twin was made again since, and came out differently
            _move(folder, earlier_place(folder, made[-1]["fingerprint"]))
        if twin is not None:
            return self._copied(twin, folder, policy, examined)
        if self._taken_back(folder, policy, made):
            return self._found(folder, policy, self._made(name)[-1], examined)
        return self._make(folder, name, policy, start, examined)

    def _name(self, folder: Path) -> str:
        """A model's folder in the journal."""
        return str(folder.relative_to(self.root))

    def _found(self, folder: Path, policy: Policy, made: Record, examined: int) -> QuantizedClassifier:
        """The model that was made before; a search that went on has examined more candidates since."""
        policy.save(folder / POLICY, model=self.workbench.quantized.layers.facts())
        frozen = self._read(folder / MODEL)
        self._check(folder, frozen, made)
        facts = read_provenance(folder / MODEL)
        if facts.get("candidates_examined") != examined:
            save_artifact(folder / MODEL, frozen, {**facts, "candidates_examined": examined})
        return frozen

    def _made(self, name: str) -> list[Record]:
        """The journal's lines on the models of a folder."""
        return [r for r in self.journal.records if r["kind"] == "model" and r["folder"] == name]

    def _set_aside(self, folder: Path, name: str, made: Sequence[Record]) -> None:
        """Move the model that the search ended with before, and its certificates, to `folder/earlier/<number>`.

        One that was set aside may have been made again since, for a search between that one and this.
        """
        line = {"kind": "set aside", "folder": name, "number": len(made)}
        if line in self.journal.records and not self._holds(folder / MODEL, made[-1]):
            return
        to = own_file(folder, "earlier", str(len(made)))
        _move(folder, to, *self._beside(folder))
        self.journal.append(line)
        self.note(f"another candidate wins now: the earlier winner's model and certificates are in {to}")

    def _taken_back(self, folder: Path, policy: Policy, made: Sequence[Record]) -> bool:
        """Whether the policy's model had been set aside; it, and what was made of it, is then in `folder` again.

        Training again may give another model: on a GPU, or with another version of PyTorch.
        """
        for number, line in reversed([*enumerate(made, 1)]):
            place = own_file(folder, "earlier", str(number))
            if not _is_of(line, policy) or not self._holds(place / MODEL, line):
                continue
            if made[-1]["fingerprint"] != line["fingerprint"]:
                # before the move: killed on the way, the search still knows whose model it is
                self.journal.append({**line, "seconds": {}})
            _move(place, folder, *self._beside(folder))
            (folder / CHECKPOINT).unlink(missing_ok=True)  # of a winner that was overtaken before it was made
            self.note(f"an earlier winner wins again: its model and certificates are back from {place}")
            return True
        return False

    def _beside(self, folder: Path) -> list[str]:
        """What moves with a model, beside what every move takes."""
        return [QUANTIZED, *([CONFIG] if folder != self.root else [])]

    def _put_back(self, folder: Path, made: Record) -> None:
        """Undo `arquant finetune`, which kept the model that the search made; its own goes to `earlier/<fingerprint>`."""
        kept = folder / QUANTIZED
        if not kept.exists() or self._holds(folder / MODEL, made) or not self._holds(kept, made):
            return
        if (folder / MODEL).exists():
            to = earlier_place(folder, self._read(folder / MODEL).fingerprint())
            _move(folder, to)
            self.note(
                f"the search's own model is in {folder} again; the fine-tuned one and its certificates are in {to}"
            )
        for name in (TSV_NAME, sidecar_path(TSV_NAME).name):
            file = earlier_place(folder, made["fingerprint"]) / name
            if file.exists() and not (folder / name).exists():
                file.replace(folder / name)
        kept.replace(folder / MODEL)

    def _holds(self, file: Path, made: Record) -> bool:
        return file.exists() and bool(self._read(file).fingerprint() == made["fingerprint"])

    def _read(self, file: Path) -> QuantizedClassifier:
        return load_artifact(own_file(file.parent, file.name), arch=architecture_of(self.workbench.quantized))

    def certificates(self, folder: Path, model: Classifier, what: str, *, examined: int | None) -> CertificateSet:
        """Certify a frozen model on the images that the search never saw, with noise that no candidate was chosen on."""
        own_file(self.root, self._name(folder)).mkdir(parents=True, exist_ok=True)
        run = certify(
            model,
            self.images,
            out=folder,
            **self.options.certificate_options(),
            **asdict(self.engines),
            candidates_examined=examined,
            report=self._named(f"certify {what}"),
            note=self.note,
        )
        return run.certificates

    def _copied(self, twin: Path, folder: Path, policy: Policy, examined: int) -> QuantizedClassifier:
        name, made = self._name(folder), self._made(self._name(twin))[-1]
        self._prepare(folder, policy)
        if not any(line["fingerprint"] == made["fingerprint"] for line in self._made(name)[-1:]):
            self.journal.append({**made, "folder": name, "seconds": {}})
        _copy(twin / MODEL, folder / MODEL)
        (folder / CHECKPOINT).unlink(missing_ok=True)  # of a winner that was overtaken before it was made
        return self._found(folder, policy, made, examined)

    def _prepare(self, folder: Path, policy: Policy) -> None:
        """A folder with the policy, and a configuration by which other commands know the model."""
        folder.mkdir(parents=True, exist_ok=True)
        if folder != self.root:
            if (folder / CONFIG).exists() and read_config(folder).get("policy") != policy.widths():
                (folder / CONFIG).unlink()  # of a winner that was overtaken before it was made
            # folders of earlier versions do not state their noise
            open_run(folder, {**self.config, "policy": policy.widths()}, free=["noise"])
        policy.save(folder / POLICY, model=self.workbench.quantized.layers.facts())

    def _make(
        self, folder: Path, name: str, policy: Policy, start: Network | None, examined: int
    ) -> QuantizedClassifier:
        bench = self.workbench
        self._prepare(folder, policy)
        report = self._named(f"fine-tune {name if name != '.' else 'the winner'}")
        try:
            record = self._finetuned(policy, start, folder / CHECKPOINT, report)
        except MismatchError:  # the checkpoint is of a winner that was overtaken before it was made
            (folder / CHECKPOINT).unlink()
            record = self._finetuned(policy, start, folder / CHECKPOINT, report)
        source = provenance()
        origin = {key: source[key] for key in ("versions", "commit", "command")}
        recipe = asdict(self.options.final_recipe)
        facts = {**self.facts, **origin, "recipe": recipe, "candidates_examined": examined}
        bench.quantized.cpu()
        with in_one_move(folder / MODEL) as scratch:
            save_artifact(scratch, bench.quantized, facts)
            frozen = self._read(scratch)
            line = {"kind": "model", "folder": name, "fingerprint": frozen.fingerprint(), "policy": policy.widths()}
            made = self._made(name)
            if not made or made[-1]["fingerprint"] != line["fingerprint"]:
                if made and _is_of(made[-1], policy):
                    self._leave(folder, policy, made[-1])
                self.journal.append({**line, "seconds": {"finetune": record["seconds"]}})
        (folder / CHECKPOINT).unlink(missing_ok=True)
        return frozen

    def _finetuned(self, policy: Policy, start: Network | None, checkpoint: Path, report: Report) -> dict[str, Any]:
        """Fine-tune a policy in full on the workbench, or go on from the checkpoint; returns the record of the training.

        Raises:
            Diverged: the message says where the policy is.
            MismatchError: the checkpoint is of another training; what lies on the workbench then is of no use.
        """
        bench = self.workbench
        bench.set_(policy)
        if start is not None:
            bench.put_(start)
        try:
            return bench.finetune_(self.options.final_recipe, checkpoint=checkpoint, report=report)
        except Diverged as error:
            raise Diverged(
                f"the full fine-tuning failed: {error}; the policy is in {checkpoint.with_name(POLICY)}, and arquant "
                "quantize --policy with arquant finetune can try another recipe"
            ) from error

    def _leave(self, folder: Path, policy: Policy, made: Record) -> None:
        """Move what was of a model whose file is gone: made again, the model came out differently."""
        to = earlier_place(folder, made["fingerprint"])
        _move(folder, to)
        policy.save(folder / POLICY, model=self.workbench.quantized.layers.facts())
        self.note(
            f"{folder / MODEL} was gone and came out differently when made again, so it is certified anew; what else there "
            f"was of it is in {to}"
        )

    def _check(self, folder: Path, frozen: QuantizedClassifier, made: Record) -> None:
        if frozen.fingerprint() != made["fingerprint"]:
            raise MismatchError(
                f"{folder / MODEL} is not the model that this search made: something changed it since; move it away to "
                "have it made again, or choose another --out"
            )

    def _named(self, stage: str) -> Report:
        def report(status: Status) -> None:
            self.report(replace(status, stage=stage))

        return report


def _copy(file: Path, to: Path) -> None:
    with in_one_move(to) as scratch:
        shutil.copyfile(file, scratch)


def _move(folder: Path, to: Path, *more: str) -> None:
    """Move a model and all that was made of it, the model last: while it is there, there is something to move."""
    to.mkdir(parents=True, exist_ok=True)
    exported = [file for name in known_exports(folder) for file in (name, str(Path(name).with_suffix(".bin")))]
    for file in dict.fromkeys([*exported, *_EXPORTS, *more, *_FILES]):
        if (folder / file).exists():
            (folder / file).replace(to / file)


def _is_of(made: Record, policy: Policy) -> bool:
    """Whether a journaled model has this policy; journals of earlier versions do not say, and hold one model per folder."""
    return bool(made.get("policy", policy.widths()) == policy.widths())
