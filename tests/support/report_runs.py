"""Run folders for tests of the report, made without a network."""

import json
from pathlib import Path

from arquant.base.run_folder import open_run
from arquant.certificates.certificate import CertificateSet
from arquant.certificates.files import CertificateWriter, write_sidecar
from arquant.quantization.policy import Policy
from arquant.searching.sensitivity_table import SensitivityTable
from tests.support.some_certificates import SETTINGS, certificate_set

OPTIONS = {
    "search_n": 48, "reference_n": 160, "alpha": 0.001, "shortlist": 3, "shortlist_seeds": 2, "shortlist_n": None,
    "recipe": {"steps": 60, "epochs": 0.0, "batch": 256, "lr": 0.05},
    "final_recipe": {"steps": 0, "epochs": 10.0, "images": 60000},
}  # fmt: skip
HOSTILE = "<script>alert(1)</script>&\"'"


def write_certificates(
    folder: Path, found: CertificateSet, *, model: str = "toy", rows: int | None = None, **more: object
) -> Path:
    """certificates.tsv with its sidecar, as `arquant certify` leaves them; `more` belongs to its provenance."""
    folder.mkdir(parents=True, exist_ok=True)
    with CertificateWriter(folder / "certificates.tsv") as writer:
        for row in found.certificates:
            writer.write(row)
    provenance = {
        "model": {"name": model, "fingerprint": "f" * 64}, "data": {"name": "elsewhere", "images": len(found)},
        "engine": {"engine": "openvino", "precision": "int8"}, "command": f"arquant certify {model}",
        "versions": {"arquant": "0.1.0"}, **more,
    }  # fmt: skip
    write_sidecar(
        folder / "certificates.json", found.settings or SETTINGS, rows=rows or len(found), images_sha256="0" * 64,
        provenance=provenance,
    )  # fmt: skip
    return folder


def candidate(number: int, acr: float | None, **changes: object) -> dict[str, object]:
    """A line of a journal."""
    score = None if acr is None else {"estimate": "acr-cv", "value": acr, "standard_error": 0.01}
    line: dict[str, object] = {
        "kind": "candidate", "number": number, "budget": "bops<=3bit", "policy": {"a": "w8a8", "b": "w3a3", "c": "w8a8"},
        "repeat_of": None, "cost": {"bops": 2e9, "bytes": 1000.0}, "score": score, "acr": score, "failure": None,
        "abandoned": None, "seconds": {"votes": 1.5},
    }  # fmt: skip
    return {**line, **changes}


def sensitivity() -> SensitivityTable:
    """What the layers of the search lose at 2 and 3 bits."""
    values = {name: {"w": {2: 0.2, 3: 0.01, 8: 0.0}, "a": {2: 0.3, 3: -0.02, 8: 0.0}} for name in ("b", "a")}
    errors = {name: {"w": {2: 0.02, 3: 0.01, 8: 0.0}, "a": {2: 0.03, 3: 0.01, 8: 0.0}} for name in ("b", "a")}
    return SensitivityTable(values, errors, {"score": "acr-cv", "base": "w8a8", "base_score": 0.5, "steps": 0})


def write_front(folder: Path) -> Path:
    """A finished search within two budgets: a point and a uniform control each, and uniform pairs among its candidates."""
    facts = {"name": "mine", "macs": {"a": 1000, "b": 9000, "c": 2000, "d": 10}}
    lines: list[dict[str, object]] = [
        {"schema": "arquant.journal", "version": 1, "identity": {"model": "f" * 64, "options": OPTIONS}}
    ]
    for place, (budget, bits) in enumerate((("bops<=2bit", "w2a2"), ("bops<=4bit", "w4a4"))):
        point = folder / "points" / budget.replace("<=", "-")
        write_certificates(point, certificate_set(better=0.1 * place + 0.05))
        write_certificates(point / "controls" / "uniform", certificate_set(better=0.1 * place))
        mixed = {"a": "w8a8", "b": bits, "c": "w3a5", "d": "w8a8"}
        uniform = {**mixed, "c": bits}
        Policy(mixed).save(point / "policy.json", model=facts)
        Policy(uniform).save(point / "controls" / "uniform" / "policy.json", model=facts)
        for number, policy in ((2 * place, uniform), (2 * place + 1, mixed)):
            cost = {"bops": (1 + place) * 1e6 + number}
            lines.append(candidate(number, 0.3 + 0.01 * number, budget=budget, policy=policy, cost=cost))
    lines.append({"kind": "end", "reason": "4 trials"})
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_search(folder: Path) -> Path:
    """A finished search with both controls."""
    open_run(folder, {"command": "search", "model": "toy", "data": "elsewhere", "sigma": 0.5, "budget": ["bops<=3bit"]})
    Policy({"a": "w8a8", "b": "w3a3", "c": "w8a8"}).save(folder / "policy.json")
    write_certificates(folder, certificate_set(better=0.05))
    write_certificates(folder / "controls" / "float", certificate_set(better=0.1))
    write_certificates(folder / "controls" / "uniform", certificate_set())
    Policy({"a": "w8a8", "b": "w2a2", "c": "w8a8"}).save(folder / "controls" / "uniform" / "policy.json")
    sensitivity().save(folder / "sensitivity.json")
    lines = [
        {"schema": "arquant.journal", "version": 1, "identity": {"model": "f" * 64, "options": OPTIONS}},
        candidate(0, 0.3), candidate(1, 0.2, abandoned={"votes": 64}), candidate(2, None, failure="diverged"),
        candidate(3, 0.4), candidate(4, 0.4, repeat_of=3, seconds={}), {"kind": "end", "reason": "5 trials"},
        *(
            {"kind": "shortlist", "budget": "bops<=3bit", "number": number, "seed": 1,
             "score": {"estimate": "acr", "value": value}}
            for number, value in ((0, 0.45), (3, 0.33))
        ),
        {"kind": "winner", "budget": "bops<=3bit", "number": 0},
        {"kind": "model", "folder": ".", "fingerprint": "f" * 64, "seconds": {"finetune": 30.0}},
    ]  # fmt: skip
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
