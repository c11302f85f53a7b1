"""What was asked of the runs in a report, from whichever file has it, and how long they took."""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from arquant.base.own_files import own_file
from arquant.base.progress import duration
from arquant.reporting.model import Entry, Report
from arquant.reporting.search_content import Search

Rows = list[tuple[str, str]]


def asked(report: Report) -> list[tuple[str, Rows]]:
    """State the question; list entries that differ. Several searches have a title each."""
    rows: dict[str, list[str]] = {}
    stated = [question for entry in report.entries for question in _questions(entry)]
    stated += [("budget", budget) for search in report.searches for budget in search.budgets]
    for name, value in stated:
        if value not in rows.setdefault(name, []):
            rows[name].append(value)
    common = [(name, "; ".join(values)) for name, values in rows.items()]
    searches = [(search.folder, search_settings(search.facts)) for search in report.searches]
    if len(searches) == 1:
        return [("", common + searches[0][1])]
    return [("", common), *((f"Search: {folder}", settings) for folder, settings in searches if settings)]


def search_settings(search: Mapping[str, Any]) -> Rows:
    """Return a search's settings from its journal: presets and defaults differ, so a reader must be told."""
    identity = search.get("identity")
    options = identity.get("options") if isinstance(identity, Mapping) else None
    if not isinstance(options, Mapping):
        return []
    score = search["score"]
    looks, steps = options.get("shortlist_seeds"), options.get("shortlist_steps")
    chosen = f"best of {options.get('shortlist')} " + (
        f"and of the best uniform one after {looks} more fine-tuning{'s' * (looks != 1)} of each"
        f"{'' if steps is None else f', {steps:,} steps long'}"
        if looks
        else "scored again on fresh noise"
    )
    several = f"{search.get('models')} models of this search, one after the other, were certified on the same images"
    return [
        ("search", f"{search['trials']:,} trials, {duration(search['seconds'])}, rewarded by {score.get('estimate')}"),
        ("a candidate's score", f"{score.get('images')} images × {options.get('search_n')} votes, against "
         f"{options.get('reference_n')} of the float model; α = {options.get('alpha')}"),
        ("a candidate's fine-tuning", _recipe(options.get("recipe"))),
        ("winner", "best score" if options.get("shortlist") == 1 else chosen),
        ("full fine-tuning", _recipe(options.get("final_recipe"))),
        *([("attempts", several)] if (search.get("models") or 1) > 1 else []),
    ]  # fmt: skip


def _recipe(recipe: Any) -> str:
    if not isinstance(recipe, Mapping):
        return "unknown"
    length = f"{recipe['steps']} steps" if recipe.get("steps") else f"{recipe.get('epochs')} epochs"
    images = f" of {recipe['images']:,} images" if isinstance(recipe.get("images"), int) and recipe["images"] else ""
    words = {"batch": "batches of", "lr": "learning rate", "distill": "distillation", "consistency": "consistency"}
    known = [f"{word} {recipe[name]}" for name, word in words.items() if recipe.get(name)]
    return "; ".join([f"{length}{images}", ", ".join(known)]) if known else f"{length}{images}"


def _questions(entry: Entry) -> Rows:
    config, found = entry.config, entry.certificates
    data = entry.provenance.get("data")
    rows = [("model", entry.model_name)]
    if isinstance(data, Mapping):
        refused = "certify refuses those that the model is known to have seen"
        rows.append(("data", f"{data.get('name')}, {data.get('images')} images; {refused}"))
    elif "data" in config:
        rows.append(("data", str(config["data"])))
    journaled = entry.search is not None and bool(entry.search.budgets)
    names = ("strategy",) if journaled else ("budget", "strategy")
    rows += [(name, _listed(config[name])) for name in names if config.get(name)]
    if found is not None and found.settings is not None:
        s = found.settings
        rows.append(("noise", f"{s.noise}, σ = {s.sigma:g} ({255 * s.sigma:.0f} of 255 grey levels)"))
        select = f"{s.n0:,} to select the class, {s.n:,} to bound its probability"
        rows.append(("votes", select if s.mode == "select" else f"{s.n:,} to bound the probability of the label"))
        rows.append(("α", f"{s.alpha:g}" + (f" for all {s.family_wise} images" if s.family_wise else " per image")))
        if s.certificate != "one-sided" or s.mode != "select":
            rows.append(
                ("certificate", f"{s.certificate}, {'label-directed' if s.mode == 'label' else 'class selected'}")
            )
    elif "sigma" in config:
        rows.append(
            ("noise", f"σ = {config['sigma']:g}" if isinstance(config["sigma"], float) else str(config["sigma"]))
        )
    return rows


def _listed(value: Any) -> str:
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)


def time_taken(report: Report) -> list[str]:
    """Say how long each search took in all, and which part of it was for what."""
    return [text for search in report.searches if (text := _time_of(report, search))]


def _time_of(report: Report, search: Search) -> str:
    own = [entry for entry in report.certified if entry.search is search and entry.certificates is not None]
    certifying = sum(c.seconds for entry in own if entry.certificates for c in entry.certificates.certificates)
    if not own or not search.facts.get("seconds"):
        return ""
    parts = (
        f"{duration(search.facts['seconds'])} on candidates, {duration(search.facts['finetune_seconds'])} on the final "
        f"fine-tunings, {duration(certifying)} on certifying {len(own)} model{'s' * (len(own) > 1)}"
    )
    total = _wall_clock(Path(search.folder), own)
    if total is None:
        return f"The search took {parts}."
    return (
        f"The search took {duration(total)} from its start to the last certificate: {parts}; the rest went into setting up, "
        "votes of the float network and second looks."
    )


def _wall_clock(folder: Path, own: list[Entry]) -> float | None:
    """Return the seconds from the start of a search to its last certificate, pauses included; None if a file does not say."""
    try:
        started = json.loads(own_file(folder, "provenance.json").read_text(encoding="utf-8"))["written"]
        began = datetime.fromisoformat(started)
        ends = [
            datetime.fromisoformat(entry.provenance["written"]).timestamp() + sum(c.seconds for c in found.certificates)
            for entry in own
            if (found := entry.certificates) is not None
        ]
        return max(max(ends) - began.timestamp(), 0.0)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
