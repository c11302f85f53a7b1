"""Verify what a run folder claims, and the requirements that it has to meet."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from arquant.base.errors import ArquantError, InputError
from arquant.base.own_files import own_file
from arquant.base.run_folder import CONFIG, JOURNAL, MODEL, POINTS, POLICY, find_above, read_config
from arquant.certificates.certificate import CertificateSet
from arquant.certificates.files import TSV_NAME
from arquant.certification.evidence import Evidence
from arquant.certification.parity import USUAL_SIGMA, engine_name, parity, parity_engines, parity_images
from arquant.engines.export_record import EXPORTS, known_exports, read_exports
from arquant.engines.files import file_digest, load_file_classifier
from arquant.images.imageset import ImageSet
from arquant.loading.models import load_model, load_with_data
from arquant.loading.run_images import known_sigma, run_of
from arquant.models.classifier import Classifier
from arquant.models.factory import ConsentError
from arquant.quantization.artifact import counted_bytes
from arquant.quantization.budget import Budget
from arquant.quantization.costs import LatencyTable
from arquant.quantization.latency import read_table
from arquant.quantization.policy import Policy, parse_keep
from arquant.quantization.quantized import QuantizedClassifier

SHOWS = "that the files agree with each other and with what the model answers, not who made them"


@dataclass(frozen=True)
class Finding:
    """One thing that was checked."""

    check: str
    passed: bool
    detail: str
    unverified: tuple[str, ...] = ()
    """what of it could not be verified, and a requirement must therefore not rest on"""


@dataclass(frozen=True)
class _Options:
    """What all folders of a run are checked with."""

    arch: str | None
    model: str | Path | Classifier | None
    data: str | ImageSet | None
    replay: int
    fresh: int


def check_run(
    run: str | Path, *, min_acr: float | None = None, max_bytes: int | None = None, min_certified: Sequence[str] = (),
    arch: str | None = None, model: str | Path | Classifier | None = None, data: str | ImageSet | None = None,
    replay: int = 0, fresh: int = 0,
) -> list[Finding]:  # fmt: skip
    """Verify a run folder, and the folder of each budget of a search.

    Verified are file hashes, policy against weights, cost within budget, certificates recomputed from votes, their key and
    model, images and labels, some votes drawn again, exported files against the model; and the requirements that are asked for.

    All of it shows that the files agree with each other and with what the model answers, not who made them. What cannot be
    verified, for want of the model or the images, is named, and a requirement that rests on it fails.

    Args:
        min_acr: smallest ACR that is enough.
        max_bytes: largest size of `model.safetensors`, counted as the budget `bytes` does.
        min_certified: like "0.4@0.5": at least 40 % certified at radius 0.5.
        arch: the network, where it is built by a `package.module:factory`, whose code is then run.
        model, data: what was certified, where the folder does not hold it.
        replay: draw all votes of so many random rows again; by default a chunk of some rows and a few whole ones.
        fresh: certify so many random images under a key of the operating system.

    Raises:
        ConsentError: the network is built by code that only the folder names, and `arch` does not.
    """
    for name, count in (("--replay", replay), ("--fresh", fresh)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InputError(f"{name} is a number of rows that is not negative, got {count!r}")
    options = _Options(arch, model, data, replay, fresh)
    for name, value in (("--min-acr", min_acr), ("--max-bytes", max_bytes)):
        if value is not None and not 0 <= value < math.inf:
            raise InputError(f"{name} must be a number that is not negative, got {value}")
    wishes = [_wish(text) for text in min_certified]
    folder = Path(run)
    points = sorted(own_file(folder, POINTS, point.name) for point in (folder / POINTS).glob("*") if point.is_dir())
    if not points:
        return [*_Check(folder, options).findings(min_acr, max_bytes, wishes), *_of_controls(folder, options)]
    wanted = len(read_config(folder).get("budget") or ())
    found = [Finding("points", len(points) >= wanted, f"{len(points)} of {wanted} budgets have a model")]
    for point in points:
        of_point = [*_Check(point, options).findings(min_acr, max_bytes, wishes), *_of_controls(point, options)]
        found += _named(point.name, of_point)
    return [*found, *_of_controls(folder, options)]


def _of_controls(folder: Path, options: _Options) -> list[Finding]:
    """Verify what a search compares its result with; no requirement is made of it."""
    alone = replace(options, model=None, replay=0, fresh=0)
    found = (folder / "controls").glob(f"*/{TSV_NAME}")
    controls = sorted(own_file(folder, "controls", path.parent.name) for path in found)
    return [finding for control in controls for finding in _named(control.name, _Check(control, alone).evidence())]


def _named(name: str, findings: Iterable[Finding]) -> list[Finding]:
    return [replace(finding, check=f"{name}: {finding.check}") for finding in findings]


def _wish(text: str) -> tuple[float, float]:
    """Return share and radius of SHARE@RADIUS."""
    share, _, radius = text.partition("@")
    try:
        wish = float(share), float(radius)
    except ValueError:
        wish = (-1.0, -1.0)
    if not (0 <= wish[0] <= 1 and 0 <= wish[1] < math.inf):
        raise InputError(f"--min-certified takes SHARE@RADIUS like 0.4@0.5, a share from 0 to 1, got {text!r}")
    return wish


class _Check:
    def __init__(self, folder: Path, options: _Options) -> None:
        if not folder.is_dir():
            raise InputError(f"there is no run folder {folder}")
        self.folder = folder
        self.options = options
        self.config = read_config(folder) if (folder / CONFIG).exists() else {}
        self.searched = (folder / JOURNAL).exists() or folder.parent.name == POINTS
        self.model: Classifier | None = None
        self.certified: Evidence | None = None
        self.certificates: CertificateSet | None = None

    def findings(
        self, min_acr: float | None, max_bytes: int | None, min_certified: Sequence[tuple[float, float]]
    ) -> Iterator[Finding]:
        parts: list[tuple[str, str, Callable[[], str]]] = [
            (MODEL, "model", self._model),
            (POLICY, "policy", self._policy),
            (CONFIG, "budget", self._budget),
            (TSV_NAME, "certificates", self._certificates),
            (EXPORTS, "exported files", self._exports),
            *((name, f"{name} parity", partial(self._parity, name)) for name in self._exported()),
            *(
                (name, f"{name} parity, ONNX Runtime", partial(self._parity, name, "onnxruntime"))
                for name in self._exported()
                if name.endswith(".onnx")
            ),
        ]
        found = [part for part in parts if (self.folder / part[0]).exists()]
        wanted = (MODEL, POLICY, CONFIG, TSV_NAME) if self.searched else ()
        missing = [file for file in wanted if not (self.folder / file).exists()]
        if all(file == CONFIG for file, _, _ in found):
            raise InputError(f"{self.folder} has nothing to check: no {MODEL}, {POLICY} or {TSV_NAME}")
        if missing:
            yield Finding("complete", False, f"a finished search has {', '.join(missing)}, which {self.folder} has not")
        try:
            for _, name, verify in found:
                yield self._finding(name, verify)
            for name, count in (("replay", self.options.replay), ("fresh", self.options.fresh)):
                if count:
                    yield _attempt(name, partial(self._drawn, name, count))
        finally:
            self._close()
        if min_acr is not None:
            yield _attempt("min-acr", lambda: self._require_acr(min_acr))
        if max_bytes is not None:
            yield _attempt("max-bytes", lambda: self._require_bytes(max_bytes))
        for wish in min_certified:
            yield _attempt("min-certified", lambda wish=wish: self._require_certified(*wish))  # type: ignore[misc]

    def evidence(self) -> Iterator[Finding]:
        """Verify the certificates, and the model that they are of, if it is there."""
        try:
            for file, name, verify in ((MODEL, "model", self._model), (TSV_NAME, "certificates", self._certificates)):
                if (self.folder / file).exists():
                    yield self._finding(name, verify)
        finally:
            self._close()

    def _finding(self, name: str, verify: Callable[[], str]) -> Finding:
        finding = _attempt(name, verify)
        if name != "certificates" or self.certified is None:
            return finding
        return replace(finding, unverified=tuple(self.certified.unverified))

    def _drawn(self, name: str, count: int) -> str:
        if self.certified is None or self.certificates is None:
            raise InputError(f"{self.folder} has no valid {TSV_NAME}")
        return self.certified.replay(count) if name == "replay" else self.certified.fresh(count)

    def _close(self) -> None:
        if self.certified is not None:
            self.certified.close()

    def _model(self) -> str:
        self.model = load_model(own_file(self.folder, MODEL), arch=self.options.arch)
        return f"{MODEL} is intact, fingerprint {self.model.fingerprint()[:12]}"

    def _policy(self) -> str:
        policy = Policy.load(own_file(self.folder, POLICY))
        if self.model is None:
            raise InputError(f"there is no valid {MODEL} with this policy")
        if not isinstance(self.model, QuantizedClassifier):
            return f"{len(policy)} layers; the model is not quantized, nothing to compare"
        differences = self.model.policy.diff(policy)
        if differences:
            raise InputError(f"{POLICY} differs from the model in {', '.join(map(str, differences))}")
        return f"{len(policy)} layers, as in the model"

    def _budget(self) -> str:
        texts = self.config.get("budget")
        if not texts:
            return "no budget was set"
        if not isinstance(self.model, QuantizedClassifier):
            raise InputError(f"there is no valid {MODEL} of quantized layers to compare with {texts}")
        keep, least = parse_keep(self.config.get("keep") or ()), self.config.get("min_bits", Budget.min_bits)
        tables = [self._table(name) for name in self.config.get("tables") or ()]
        texts = texts if isinstance(texts, list) else [texts]
        for text in map(str, texts):
            budget = Budget.parse(
                text, self.model.layers, keep=keep, tables=tables, min_bits=least, per_channel=self.model.per_channel,
                books=self.model.shares_weights,
            )  # fmt: skip
            if not budget.allows(self.model.policy):
                raise InputError(f"the policy uses {budget.usage(self.model.policy):.1%} of the budget {text}")
        return f"within {', '.join(map(str, texts))}"

    def _table(self, name: str) -> LatencyTable:
        path = find_above(self.folder, name)
        if path is None:
            raise InputError(f"the run's table {name} is gone")
        return read_table(path)

    def _certificates(self) -> str:
        self.certified = Evidence(
            self.folder, self._models(), must_fit=self.model is not None, data=self.options.data, searched=self.searched
        )
        found, detail = self.certified.verify()
        self._check_sigma(found)
        self.certificates = found
        return detail

    def _models(self) -> Iterator[Classifier]:
        """Yield the model and the files that it was exported to: any of them may be what ships and was certified."""
        if self.model is not None:
            yield self.model
            for name in self._exported():
                yield load_file_classifier(own_file(self.folder, name))
        if self.options.model is not None:
            yield load_with_data(self.options.model, self.options.data, "certify", arch=self.options.arch)[0]

    def _exported(self) -> list[str]:
        """Return the exported files that can be run: those of the usual names, and what the record lists."""
        recorded = [name for name, entry in known_exports(self.folder).items() if entry.format != "qonnx"]
        names = dict.fromkeys(["model.onnx", "model.xml", *recorded])
        return [name for name in names if (self.folder / name).exists()]

    def _check_sigma(self, found: CertificateSet) -> None:
        """Refuse certificates for another sigma than the run's; a float network may be certified for any."""
        if self.model is not None and not isinstance(self.model, QuantizedClassifier):
            return
        wanted = known_sigma(self.folder, self.model)
        sigma = None if found.settings is None else found.settings.sigma
        if wanted is not None and wanted != sigma:
            raise InputError(f"the certificates are for sigma {sigma:g}, the run is for {wanted}")

    def _exports(self) -> str:
        """Verify that the exported files are as they were written, and of this model."""
        record = read_exports(self.folder)
        if self.model is None:
            raise InputError(f"there is no {MODEL} that {', '.join(record)} could be of")
        gone = [name for name in record if not (self.folder / name).exists()]
        there = {name: entry for name, entry in record.items() if name not in gone}
        for name, entry in there.items():
            if file_digest(own_file(self.folder, name)) != entry.sha256:
                raise InputError(f"{name} is not the file that was exported; export it again")
            if entry.fingerprint != self.model.fingerprint():
                raise InputError(f"{name} was exported from another model than {MODEL}; export it again")
        intact = f"{', '.join(there)} as exported from {MODEL}" if there else "no file is left"
        return f"{intact}; gone: {', '.join(gone)}" if gone else intact

    def _parity(self, name: str, engine: str = "auto") -> str:
        if self.model is None:
            raise InputError(f"there is no {MODEL} to compare {name} with")
        images = parity_images(self.model, run_of(self.folder))
        other = load_file_classifier(own_file(self.folder, name))
        if other.facts is not None and other.facts.fingerprint != self.model.fingerprint():
            raise InputError(f"{name} was exported from another model than {MODEL}; export it again")
        if engine not in parity_engines(self.folder / name):
            return f"not compared: {engine_name(engine)} is not installed"
        sigma = known_sigma(self.folder, self.model) or USUAL_SIGMA
        found = parity(self.model, other, images, sigma, engines=(engine,))[engine]
        if not found.close:
            raise InputError(found.problem(name, engine))
        return str(found)

    def _require_acr(self, least: float) -> str:
        found = self._evidence().acr
        if found < least:
            raise InputError(f"ACR {found:.4f} is below {least:g}")
        return f"ACR {found:.4f} >= {least:g}"

    def _require_bytes(self, most: int) -> str:
        path = own_file(self.folder, MODEL)
        size, counted = path.stat().st_size, counted_bytes(path)
        beside = f" (and {size - counted:,} of records about images)" if size > counted else ""
        if counted > most:
            raise InputError(f"{MODEL} has {counted:,} bytes{beside}, more than {most:,}")
        return f"{counted:,} bytes{beside} <= {most:,}"

    def _require_certified(self, share: float, radius: float) -> str:
        found = self._evidence().certified_accuracy(radius)
        if found < share:
            raise InputError(f"{found:.1%} certified at radius {radius:g}, less than {share:.1%}")
        return f"{found:.1%} certified at radius {radius:g} >= {share:.1%}"

    def _evidence(self) -> CertificateSet:
        """Return certificates that a requirement may rest on."""
        if self.certificates is None or self.certified is None:
            raise InputError(f"{self.folder} has no valid {TSV_NAME}")
        if unverified := self.certified.unverified:
            raise InputError(f"it would rest on what could not be verified: {'; '.join(unverified)}")
        return self.certificates


def _attempt(name: str, verify: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, verify())
    except ConsentError:  # nothing is wrong with the folder: the command lacks --arch
        raise
    except (ArquantError, OSError) as error:
        return Finding(name, False, str(error))
    except (TypeError, ValueError, AttributeError, KeyError) as error:  # a value of another kind in the folder's files
        return Finding(name, False, f"a file of the folder holds what arquant does not write there ({error!r})")


def findings_json(findings: list[Finding]) -> dict[str, Any]:
    """Return the outcome as plain data."""
    return {
        "passed": all(f.passed for f in findings),
        "findings": [asdict(f) for f in findings],
        "unverified": [f"{f.check}: {text}" for f in findings for text in f.unverified],
        "shows": SHOWS,
    }
