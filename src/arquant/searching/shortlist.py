"""Choosing the winner: a second look at the best candidates, through seeds and noise that none of them was chosen on.

The best of many scores owes a part of it to luck, and more to that of its fine-tuning than to that of its votes: two
fine-tunings of one policy differ as much as good policies do. So every candidate of the shortlist is fine-tuned anew from
the float network, with other seeds, and votes on fresh noise. The best mean of its score and of these looks wins.
`experiments/shortlist_simulation.py` compares this with simpler rules.

What a policy gains in a short fine-tuning may be gone after a long one. Looks may therefore be longer than the fine-tuning of a
candidate; its score is then of another kind, and the looks alone decide.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from arquant.base.errors import InputError
from arquant.base.journal import Record
from arquant.base.progress import Report, Status
from arquant.searching.candidate import Evaluator
from arquant.searching.options import SearchOptions
from arquant.searching.strategies.additive import AdditiveModel
from arquant.searching.study import Study, Track, policy_of


def shortlisted(track: Track, study: Study, count: int) -> list[Record]:
    """The candidates of a budget that deserve a second look, best score first.

    They are the `count` best by the sum of their score and of what the additive model expects: it has learned from all
    candidates, so one lucky score moves it little. The best uniform policy that was examined joins them: it is what a
    search must beat.
    """
    ranked, space = study.ranking(track), track.space
    if count == 1 or not ranked:
        return ranked[:1]
    model = AdditiveModel(space, study.results(track))

    def promise(record: Record) -> float:
        return round(float(record["score"]["value"]) + model.predict(space.bits(policy_of(record))), 9)

    uniform = [each for each in ranked if space.is_uniform(policy_of(each))]
    chosen = [*sorted(ranked, key=promise, reverse=True)[:count], *uniform[:1]]
    return [each for each in ranked if each in chosen]


def winner_of(
    track: Track, study: Study, evaluator: Evaluator, options: SearchOptions, report: Report
) -> tuple[Record, list[Record]]:
    """The journal's line on the candidate that wins a budget, and its lines on all second looks.

    Every look is journaled when it is done. The winner's own network, which may not have been among those kept, is kept.

    Raises:
        InputError: no candidate could be scored; it says why the last one failed.
    """
    members = shortlisted(track, study, options.shortlist)
    if not members:
        tried = [each for each in study.candidates if each["failure"] and track.space.contains(policy_of(each))]
        why = f": the last of {len(tried)} failed because {tried[-1]['failure']}" if tried else ""
        raise InputError(f"no candidate within {track.name} could be scored{why}; see {study.journal.path}")
    if len(members) == 1:
        return members[0], []
    looks = _second_looks(members, track, study, evaluator, options, report)

    def worth(record: Record) -> float:
        scores = [look["score"] for look in looks if look["number"] == record["number"]]
        if options.shortlist_steps is None:
            scores.append(record["score"])
        return -math.inf if None in scores else float(np.mean([score["value"] for score in scores]))

    winner = max(members, key=worth)
    study.network(winner)
    return winner, looks


def _second_looks(
    members: Sequence[Record],
    track: Track,
    study: Study,
    evaluator: Evaluator,
    options: SearchOptions,
    report: Report,
) -> list[Record]:
    """A journal line per candidate and seed; its score is None if fine-tuning diverged.

    A look depends on the policy alone, not on the budget: one that was made for another budget is not made again.
    """
    how = {"steps": options.shortlist_steps, "n": options.second_look_votes}
    seeds = range(options.recipe.seed + 1, options.recipe.seed + 1 + options.shortlist_seeds)
    wanted = [(seed, record) for seed in seeds for record in members]
    lines = [line for line in study.journal.records if line["kind"] == "shortlist"]
    done = {(line["seed"], line["number"]): line for line in lines if _how(line) == how}
    for place, (seed, record) in enumerate(wanted):
        report(Status("shortlist", place, len(wanted), "fine-tunings"))
        if (seed, record["number"]) not in done:
            recipe = replace(options.second_look_recipe, seed=seed)
            score = evaluator.look_again(
                policy_of(record), recipe, options.second_look_votes, _part_of(report, place, len(wanted))
            )
            line = {"kind": "shortlist", "budget": track.name, "number": record["number"], "seed": seed, **how}
            study.journal.append({**line, "score": None if score is None else score.to_json()})
            done[seed, record["number"]] = study.journal.records[-1]
    report(Status("shortlist", len(wanted), len(wanted), "fine-tunings"))
    return [done[seed, record["number"]] for seed, record in wanted]


def _part_of(report: Report, place: int, total: int) -> Report:
    """A report of one fine-tuning, as a part of all of them."""

    def part(status: Status) -> None:
        report(Status("shortlist", place + status.done / status.total, total, "fine-tunings", status.details))

    return part


def _how(line: Record) -> dict[str, Any]:
    """Steps and votes of a second look; earlier versions wrote only the votes, with the score."""
    return {"steps": line.get("steps"), "n": line.get("n", (line["score"] or {}).get("n"))}
