"""Choose the winner: look again at the best candidates, with seeds and noise that none of them was chosen on.

The best of many scores owes part of its lead to luck, and more to the luck of its fine-tuning than to that of its votes:
two fine-tunings of one policy differ as much as good policies do. So every candidate of the shortlist is fine-tuned anew
from the float network, with other seeds, and votes on fresh noise. The best mean of its score and of these looks wins.
`experiments/shortlist_simulation.py` compares this with simpler rules.

What a policy gains in a short fine-tuning may be gone after a long one. Looks may therefore be longer than the
fine-tuning of a candidate; its score is then of another kind, and the looks alone decide.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from arquant.base.errors import InputError
from arquant.base.progress import Report, Status
from arquant.searching.candidate import Evaluator
from arquant.searching.journal_lines import Candidate, SecondLook
from arquant.searching.options import SearchOptions
from arquant.searching.standings import Standings, Track
from arquant.searching.strategies.additive import AdditiveModel
from arquant.searching.study import Study


def shortlisted(track: Track, standings: Standings, count: int) -> list[Candidate]:
    """Return the candidates of a budget that deserve a second look, best score first.

    They are the `count` best by the sum of their score and of what the additive model expects: it has learned from all
    candidates, so one lucky score moves it little. The best uniform policy that was examined joins them: it is what a
    search must beat.
    """
    ranked, space = standings.ranking(track), track.space
    # scores after fine-tunings of different length do not compare: only those of the longest look are rivals
    ranked = [each for each in ranked if standings.steps(each.steps) == standings.steps(ranked[0].steps)]
    if count == 1 or not ranked:
        return ranked[:1]
    model = AdditiveModel(space, standings.results(track))

    def promise(candidate: Candidate) -> float:
        return round((candidate.value or 0.0) + model.predict(space.bits(candidate.policy)), 9)

    uniform = [each for each in ranked if space.is_uniform(each.policy)]
    chosen = [*sorted(ranked, key=promise, reverse=True)[:count], *uniform[:1]]
    return [each for each in ranked if each in chosen]


def winner_of(
    track: Track, study: Study, evaluator: Evaluator, options: SearchOptions, report: Report
) -> tuple[Candidate, list[SecondLook]]:
    """Return the candidate that wins a budget, and all second looks.

    Every look is journaled when it is done. The winner's own network, which may not have been among those kept, is kept.

    Raises:
        InputError: no candidate could be scored; it says why the last one failed.
    """
    members = shortlisted(track, study.standings, options.shortlist)
    if not members:
        tried = [each for each in study.candidates if each.failure and track.space.contains(each.policy)]
        why = f": the last of {len(tried)} failed because {tried[-1].failure}" if tried else ""
        raise InputError(f"no candidate within {track.name} could be scored{why}; see {study.journal.path}")
    if len(members) == 1:
        return members[0], []
    looks = _second_looks(members, track, study, evaluator, options, report)

    def worth(candidate: Candidate) -> float:
        scores = [look.score for look in looks if look.number == candidate.number]
        if options.shortlist_steps is None:
            scores.append(candidate.score)
        known = [score.value for score in scores if score is not None]
        return float(np.mean(known)) if len(known) == len(scores) else -math.inf

    winner = max(members, key=worth)
    study.network(winner)
    return winner, looks


def _second_looks(
    members: Sequence[Candidate],
    track: Track,
    study: Study,
    evaluator: Evaluator,
    options: SearchOptions,
    report: Report,
) -> list[SecondLook]:
    """Return a journal line per candidate and seed.

    A look depends on the policy alone, not on the budget: one that was made for another budget is not made again.
    """
    steps, votes = options.shortlist_steps, options.second_look_votes
    seeds = range(options.recipe.seed + 1, options.recipe.seed + 1 + options.shortlist_seeds)
    wanted = [(seed, candidate) for seed in seeds for candidate in members]
    lines = [line for line in study.journal.lines if isinstance(line, SecondLook)]
    done = {(line.seed, line.number): line for line in lines if (line.steps, line.votes) == (steps, votes)}
    recipes = {seed: replace(options.second_look_recipe, seed=seed) for seed in seeds}
    missing = [(seed, each) for seed, each in wanted if (seed, each.number) not in done]
    if missing:
        evaluator.looks_ahead([(each.policy, recipes[seed], votes) for seed, each in missing], report)
    for place, (seed, candidate) in enumerate(wanted):
        report(Status("shortlist", place, len(wanted), "fine-tunings"))
        if (seed, candidate.number) not in done:
            score = evaluator.look_again(candidate.policy, recipes[seed], votes, _part_of(report, place, len(wanted)))
            found = None if score is None else score.estimate()
            line = SecondLook(budget=track.name, number=candidate.number, seed=seed, steps=steps, n=votes, score=found)
            study.journal.add(line)
            done[seed, candidate.number] = line
    report(Status("shortlist", len(wanted), len(wanted), "fine-tunings"))
    return [done[seed, candidate.number] for seed, candidate in wanted]


def _part_of(report: Report, place: int, total: int) -> Report:
    """Return a report of one fine-tuning, as a part of all of them."""

    def part(status: Status) -> None:
        report(Status("shortlist", place + status.done / status.total, total, "fine-tunings", status.details))

    return part
