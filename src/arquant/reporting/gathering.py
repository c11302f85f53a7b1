"""From run folders to a `Report`: reads whatever is there, and notes what is not."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from arquant.base.errors import ArquantError, InputError, MismatchError
from arquant.base.own_files import own_file
from arquant.base.run_folder import CONFIG, JOURNAL, MODEL, POLICY, read_config
from arquant.certificates.certificate import CertificateSet
from arquant.certificates.files import TSV_NAME, certified_model, read_certificates
from arquant.certificates.metrics import compare
from arquant.certificates.recomputation import check_where_known
from arquant.quantization.policy import Policy
from arquant.reporting.costing import (
    fitting_layers,
    float_costs,
    is_shipped_float,
    layer_table,
    milliseconds_per_vote,
    network_layers,
    policy_costs,
)
from arquant.reporting.model import Costs, Difference, Entry, Report
from arquant.reporting.naming import plainly_named, uniquely_named
from arquant.reporting.pictures import gallery
from arquant.reporting.search_content import Search
from arquant.reporting.search_reading import read_journal, search_of_lines
from arquant.searching.history import trials_of
from arquant.searching.journal_lines import Line
from arquant.searching.sensitivity_table import FILE as SENSITIVITY
from arquant.searching.sensitivity_table import SensitivityTable

_PARTS = (TSV_NAME, CONFIG, POLICY, MODEL)
_CONTROLS = ("float", "uniform")


def gather(runs: Sequence[str | Path]) -> Report:
    """Read run folders (or certificate files) into one report.

    Raises:
        InputError: a run does not exist, or holds nothing that a report could show.
        FileFormatError: a file that was named is not one of certificates.
    """
    if not runs:
        raise InputError("a report needs at least one run folder")
    notes: list[str] = []
    entries: list[Entry] = []
    searches: list[Search] = []
    sensitivity: SensitivityTable | None = None
    for run in dict.fromkeys(Path(run) for run in runs):
        identity, lines = read_journal(run, notes)
        found, table = _entries(run, lines, notes), _sensitivity(run, notes)
        if not found and not lines and table is None:
            raise InputError(
                f"{run} holds nothing to report: no {TSV_NAME}, {POLICY}, {JOURNAL} or {SENSITIVITY}, nor controls/ or "
                "points/ with them"
            )
        if sensitivity is not None and table is not None:
            notes.append(f"{run / SENSITIVITY} is not drawn: the report has room for those of one run")
        sensitivity = sensitivity or table
        search = search_of_lines(str(run), identity, lines) if lines else None
        searches += [search] if search is not None else []
        entries += [replace(entry, search=search) for entry in found]
    unique = plainly_named(entries)
    pictured = next((entry for entry in unique if entry.certificates is not None), None)
    rows, remark = gallery(pictured) if pictured is not None else ((), "There are no certificates yet.")
    differences = _differences(unique)
    notes += [f"{d.second} and {d.first}: {'; '.join(d.notes)}" for d in differences if d.acr is None]
    return Report(unique, differences, tuple(searches), rows, remark, tuple(dict.fromkeys(notes)), sensitivity)


def gather_comparison(runs: Sequence[str | Path]) -> Report:
    """Gather exactly these runs or certificate files, all certified, and the differences of each to the first.

    A search within several budgets stands for its points.

    Raises:
        InputError: fewer than two, or one without certificates.
        FileFormatError: certificates that do not follow from their votes.
        MismatchError: one cannot be compared with the first; the message names every difference.
    """
    paths = list(dict.fromkeys(path for run in runs for path in _with_points(Path(run))))
    if len(paths) < 2:
        raise InputError("a comparison needs at least two different run folders or certificate files")
    notes: list[str] = []
    entries = uniquely_named([_certified_entry(path, notes) for path in paths])
    differences = tuple(_difference(entries[0], other) for other in entries[1:])
    for difference in differences:
        if difference.acr is None:
            raise MismatchError(f"{difference.first} and {difference.second}: {'; '.join(difference.notes)}")
    return Report(entries, differences, notes=tuple(dict.fromkeys(notes)))


def _with_points(run: Path) -> list[Path]:
    """Return a run; of a search within several budgets, the folders of those that are certified."""
    points = [point for point in _subfolders(run / "points") if (point / TSV_NAME).is_file()] if run.is_dir() else []
    return [run] if (run / TSV_NAME).is_file() or not points else points


def _certified_entry(path: Path, notes: list[str]) -> Entry:
    """Return the model of a run folder, or of a certificate file, that must have certificates."""
    file = own_file(path, TSV_NAME) if path.is_dir() else path
    if not file.is_file():
        inside = sorted(str(found.parent) for found in path.rglob(TSV_NAME))[:3] if path.is_dir() else []
        hint = (
            f"; there are some in {', '.join(inside)}"
            if inside
            else f"; make some: arquant certify {path} --out {path}"
        )
        raise InputError(f"{path} has no certificates{hint}")
    certificates = _named_certificates(file, notes)
    folder = path if path.is_dir() else path.parent
    role = folder.name if path.is_dir() and folder.parent.name == "controls" and folder.name in _CONTROLS else "result"
    config = read_config(folder) if path.is_dir() and (folder / CONFIG).exists() else {}
    name = (folder.resolve().name or "run") if path.is_dir() or path.name == TSV_NAME else path.stem
    policy = _policy(folder, notes) if file.name == TSV_NAME else None
    known = {} if policy is None else {folder: policy}
    return _finished(Entry(name, role, str(path), certificates, config=config), {}, folder, known)


def _entries(run: Path, lines: Sequence[Line], notes: list[str]) -> list[Entry]:
    """Return a run's own model, its points and its controls."""
    if not run.exists():
        raise InputError(f"there is no {run}; name a run folder or a certificates.tsv")
    if run.is_file():
        return [_finished(Entry(run.stem, "result", str(run), _named_certificates(run, notes)), {}, run.parent, {})]
    folders = [(run, run.name or "run", "result")]
    points = sorted(
        _subfolders(run / "points"), key=lambda point: [float(x) for x in re.findall(r"\d+\.?\d*", point.name)]
    )
    folders += [(folder, folder.name, "result") for folder in points]
    roles = {name: name for name in _CONTROLS}
    folders += [(folder, folder.name, roles.get(folder.name, "result")) for folder in _subfolders(run / "controls")]
    for point in points:
        folders += [(f, f"{f.name} {point.name}", roles.get(f.name, "result")) for f in _subfolders(point / "controls")]
    journaled = {trial.policy: _numbers(trial.cost) for trial in trials_of(lines)}
    policies = {folder: policy for folder, _, _ in folders if (policy := _policy(folder, notes)) is not None}
    entries = [
        _entry(folder, name, role, journaled, policies, notes)
        for folder, name, role in folders
        if any((folder / part).exists() for part in _PARTS)
    ]
    shown = [entry for entry in entries if entry.certificates is not None or entry.refused or entry.layers]
    return shown or entries[:1]


def _entry(
    folder: Path, name: str, role: str, journaled: Mapping[Policy, Mapping[str, float]], policies: Mapping[Path, Policy],
    notes: list[str],
) -> Entry:  # fmt: skip
    certificates, refused = _certificates(folder, notes) if (folder / TSV_NAME).exists() else (None, "")
    config: dict[str, Any] = {}
    try:
        config = read_config(folder) if (folder / CONFIG).exists() else {}
    except ArquantError as error:
        notes.append(str(error))
    entry = Entry(name, role, str(folder), certificates, refused, config=config)
    return _finished(entry, journaled, folder, policies)


def _finished(
    entry: Entry, journaled: Mapping[Policy, Mapping[str, float]], folder: Path, policies: Mapping[Path, Policy]
) -> Entry:
    """Return the entry with its widths and costs; `policies` are those of its run, by folder."""
    policy = policies.get(folder)
    certificates, model = entry.certificates, entry.model_name
    costs, layers = Costs(), entry.layers
    if policy is not None:
        network = fitting_layers(policy, str(policy.model.get("name", "")), model)
        layers, costs = layer_table(policy, network), policy_costs(policy, network, journaled, folder)
    elif entry.role == "float" or is_shipped_float(
        model, certified_model({} if certificates is None else certificates.provenance)
    ):
        entry = replace(entry, role="float")
        costs = float_costs(network_layers(model), policies.values())
    elif entry.role == "result" and (training := _training(folder)):
        entry = replace(entry, role="tuned", config={"model": training.get("model") or model, **entry.config})
        costs = float_costs(network_layers(entry.model_name), policies.values())
    if certificates is not None:
        costs = replace(costs, ms_per_vote=milliseconds_per_vote(certificates))
    return replace(entry, layers=layers, costs=costs, shape=_image_shape(entry, policy))


def _training(folder: Path) -> dict[str, Any]:
    """Return the record of a float network that was trained on from weights which it had; empty if it was not."""
    try:
        record = json.loads(own_file(folder, "training.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) and (record.get("init") or record.get("history")) else {}


def _image_shape(entry: Entry, policy: Policy | None) -> tuple[int, ...] | None:
    """Return channels, height and width of the images, as the certificates or the policy record them."""
    data = entry.provenance.get("data")
    recorded = data.get("shape") if isinstance(data, Mapping) else None
    shape = recorded or (policy.model.get("input_shape") if policy is not None else None)
    if isinstance(shape, list) and len(shape) == 3 and all(isinstance(side, int) and side > 0 for side in shape):
        return tuple(shape)
    return None


def _certificates(folder: Path, notes: list[str]) -> tuple[CertificateSet | None, str]:
    """Read a run's certificates; return None and the reason if they do not follow from their votes."""
    try:
        found = read_certificates(folder)
    except ArquantError as error:
        notes.append(str(error))
        return None, ""
    notes.extend(found.warnings)
    try:
        check_where_known(found, str(folder / TSV_NAME))
    except ArquantError as error:
        notes.append(str(error))
        return None, str(error)
    return found, ""


def _named_certificates(path: Path, notes: list[str]) -> CertificateSet:
    """Read a certificate file that the user named; refuse one that is not sound."""
    found = read_certificates(path)
    notes.extend(found.warnings)
    check_where_known(found, str(path))
    return found


def _policy(folder: Path, notes: list[str]) -> Policy | None:
    try:
        return Policy.load(own_file(folder, POLICY)) if (folder / POLICY).exists() else None
    except ArquantError as error:
        notes.append(str(error))
        return None


def _sensitivity(run: Path, notes: list[str]) -> SensitivityTable | None:
    try:
        return SensitivityTable.load(own_file(run, SENSITIVITY)) if (run / SENSITIVITY).is_file() else None
    except ArquantError as error:
        notes.append(str(error))
        return None


def _subfolders(folder: Path) -> list[Path]:
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(own_file(folder.parent, folder.name, path.name) for path in found if path.is_dir())


def _numbers(cost: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in cost.items() if value is not None}


def _differences(entries: Sequence[Entry]) -> tuple[Difference, ...]:
    """Compare each result with its controls; one without a control, with the first entry."""
    known = [entry for entry in entries if entry.certificates is not None]
    controls = [entry for entry in known if entry.role != "result"]
    bases = controls if 0 < len(controls) < len(known) else known[:1]
    found = []
    for other in (entry for entry in known if entry not in bases):
        own = [base for base in bases if _belongs(base, other)]
        found += [_difference(base, other) for base in own or known[:1] if base is not other]
    return tuple(found)


def _belongs(control: Entry, entry: Entry) -> bool:
    """Tell whether a control belongs to a result: a uniform one has the budget of the point whose folder it is in."""
    return control.role != "uniform" or Path(control.folder).parent.parent == Path(entry.folder)


def _difference(first: Entry, second: Entry) -> Difference:
    if first.certificates is None or second.certificates is None:
        raise AssertionError("only certified entries are compared")
    try:
        found = compare(first.certificates, second.certificates)
    except MismatchError as error:
        return Difference(first.name, second.name, None, notes=(str(error),))
    notes = (*found.warnings, *found.notes)
    return Difference(first.name, second.name, found.acr, found.images, notes, found.certified_accuracy)
