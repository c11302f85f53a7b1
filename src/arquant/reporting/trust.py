"""The trust section of a report: where the certificates of an entry come from, and what was checked."""

from collections.abc import Mapping
from typing import Any

from arquant.reporting.model import Entry

_NAMES = {
    "key_id": "key", "total_variation": "distance of the drawn noise from the ideal one (total variation) at most",
    "float_precision": "floats in", "engine": "",
}  # fmt: skip
"""words for keys of a sidecar"""


def trust(entry: Entry) -> list[tuple[str, str]]:
    """Answer, as names and values, the questions of a reviewer about an entry."""
    found, origin = entry.certificates, entry.provenance
    rows = [("folder", entry.folder)]
    if found is not None and not entry.refused:
        rows.append(
            ("to verify", f"arquant check {entry.folder} (--fresh 20 draws new noise under a key that nobody knew)")
        )
        rows.append(
            ("images", "certify refuses those that the model's file says it was trained, calibrated or searched on")
        )
    if entry.refused:
        rows.append(("recomputed", f"does NOT follow: {entry.refused}"))
    if found is not None:
        follow = f"all {len(found):,} certificates follow from their votes"
        rows.append(("recomputed", "not possible: no settings are recorded" if found.settings is None else follow))
        if found.settings is not None:
            s = found.settings
            rows.append(("α per image", f"{s.effective_alpha:g} (asked: {s.alpha:g})"))
            rows.append(("stopping rule", "fixed n" if s.adaptive is None else "adaptive; every look is paid from α"))
            rows.append(("seed", str(s.seed)))
        examined = origin.get("candidates_examined", None)
        if examined is None and entry.search is not None and entry.role == "result":
            examined = entry.search.facts.get("examined")
        rows.append(("candidates examined", f"{examined:,}" if isinstance(examined, int) else "unknown"))
        rows.append(("images sha256", found.images_sha256 or "unknown"))
        rows.append(("warnings while certifying", _warnings(origin)))
        rows += _parts(origin, len(found))
    rows += _facts(origin)
    if entry.config.get("command"):
        rows.append(("made by", f"arquant {entry.config['command']}"))
    return rows


def warnings(origin: Mapping[str, Any]) -> list[str]:
    """Return the warnings that the parts of a run recorded, each once."""
    recorded = [part.get("warnings") for part in (*_earlier(origin), origin)]
    return list(dict.fromkeys(str(text) for texts in recorded if isinstance(texts, list) for text in texts))


def _warnings(origin: Mapping[str, Any]) -> str:
    known = [isinstance(part.get("warnings"), list) for part in (*_earlier(origin), origin)]
    missing = "not recorded by every part" if any(known) else "not recorded"
    return "; ".join(warnings(origin) + [missing] * (not all(known))) or "none"


def _parts(origin: Mapping[str, Any], total: int) -> list[tuple[str, str]]:
    """Say which rows each part of an interrupted run made, when and how; nothing for a run without interruption."""
    parts = [*_earlier(origin), {**origin, "rows": total}]
    rows, done = [], 0
    for number, part in enumerate(parts, start=1):
        until = part.get("rows")
        if not isinstance(until, int):
            made = "rows unknown"
        else:
            made = f"rows {done + 1:,} to {until:,}" if until > done else "no finished rows"
            done = max(done, until)
        facts = (part.get("written"), part.get("commit") and f"commit {part['commit']}", _engine(part.get("engine")))
        rows.append((f"part {number} of {len(parts)}", ", ".join([made, *(str(fact) for fact in facts if fact)])))
    return rows if len(parts) > 1 else []


def _earlier(origin: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    parts = origin.get("parts")
    return [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []


def _engine(engine: Any) -> str:
    words = [engine.get(name) for name in ("engine", "precision", "version")] if isinstance(engine, Mapping) else []
    return " ".join(str(word) for word in words if word)


def _facts(origin: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return provenance as rows; groups are joined into one line each. A run in parts shows that of its last part."""
    rows = []
    names = {"command": "to reproduce", "written": "begun", "bound": "bound of probabilities"}
    origin = {**origin, "written": (*_earlier(origin), origin)[0].get("written")}
    for key in ("model", "engine", "noise", "bound", "versions", "machine", "commit", "command", "written"):
        value = origin.get(key)
        if value is None:
            continue
        if key == "model" and isinstance(value, Mapping):
            rows.append(("model fingerprint", str(value.get("fingerprint"))))
        elif isinstance(value, Mapping):
            parts = (f"{_NAMES.get(name, name)} {_joined(part)}" for name, part in value.items() if part is not None)
            rows.append((names.get(key, key), ", ".join(parts)))
        else:
            rows.append((names.get(key, key), str(value)))
    return rows


def _joined(value: Any) -> str:
    if isinstance(value, Mapping):
        return " and ".join(f"{_joined(part)} × {name}" for name, part in value.items())
    return f"{value:.1g}" if isinstance(value, float) else str(value)
