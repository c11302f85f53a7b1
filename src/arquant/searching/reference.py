"""The float model's votes on the search images, with which every score of a run is compared."""

from collections.abc import Callable
from pathlib import Path

from arquant.base.errors import MismatchError
from arquant.base.journal import TypedJournal
from arquant.base.progress import Report
from arquant.certification.smoothing import Smoothed
from arquant.certification.vote_cache import VoteCache, recorded_engine, reference_votes, votes_digest
from arquant.engines.probes import make_probes
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier
from arquant.noise.source import Noise
from arquant.searching.journal_lines import Line, ReferenceVotes
from arquant.searching.options import SearchOptions
from arquant.searching.workbench import EngineOptions


def float_votes(
    classifier: Classifier,
    images: ImageSet,
    folder: Path,
    options: SearchOptions,
    engines: EngineOptions,
    journal: TypedJournal[Line],
    *,
    report: Report,
    first: Callable[[Smoothed], None] = lambda smoothed: None,
) -> VoteCache:
    """Return the votes, from `folder` if they are there; `first` is called with the smoothed model before any vote.

    Raises:
        MismatchError: the votes are of something else, or scores in the journal are against others.
    """
    votes = len(images) * options.reference_n
    probes = make_probes(images, Noise(options.noise, options.sigma), seed=options.seed)
    engine = engines.make(classifier, options.noise, votes=votes, probes=probes, **(recorded_engine(folder) or {}))
    smoothed = Smoothed(classifier, options.sigma, noise=options.noise, seed=options.seed, engine=engine)
    try:
        first(smoothed)
        cache = reference_votes(smoothed, images, folder, n=options.reference_n, n0=max(options.n0, 1), report=report)
    finally:
        smoothed.close()
    compare_only_with(cache, journal)
    return cache


def compare_only_with(cache: VoteCache, journal: TypedJournal[Line]) -> None:
    """Journal which votes the scores of a run are compared with, so that all of them are compared with the same.

    Raises:
        MismatchError: something was scored against other votes: the cache was deleted since, and came out differently.
    """
    line = ReferenceVotes(votes_sha256=votes_digest(cache.votes))
    known = [each for each in journal.lines if isinstance(each, ReferenceVotes)]
    if known[-1:] == [line]:
        return
    if known and journal.lines[-1] != known[-1]:
        raise MismatchError(
            f"{journal.path} holds scores against other votes of the float model: these were computed again since, and an "
            "engine or library that changed gives others; go on with those that made the scores, or choose another --out"
        )
    journal.add(line)
