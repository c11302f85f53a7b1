"""The float model's votes on the search images, with which every score of a run is compared."""

from collections.abc import Callable
from pathlib import Path

from arquant.base.errors import MismatchError
from arquant.base.journal import TypedJournal
from arquant.base.progress import Report
from arquant.certification.certifier import Certifier
from arquant.certification.vote_cache import VoteCache, votes_digest
from arquant.images.imageset import ImageSet
from arquant.models.classifier import Classifier
from arquant.searching.journal_lines import Line, ReferenceVotes


def float_votes(
    certifier: Certifier,
    classifier: Classifier,
    images: ImageSet,
    folder: Path,
    journal: TypedJournal[Line],
    *,
    report: Report,
    first: Callable[[Callable[[], float]], None] = lambda per_second: None,
) -> VoteCache:
    """Return the votes, from `folder` if they are there; `first` is called before any vote, to measure votes per second.

    Raises:
        MismatchError: the votes are of something else, or scores in the journal are against others.
    """
    cache = certifier.reference(classifier, images, folder, report=report, first=first)
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
