"""Racing: a candidate that is clearly worse than the best so far is abandoned before it is fully fine-tuned or sampled.

After a third of the fine-tuning, and again after a quarter and after half of the votes, the candidate is compared with
the best so far, as that was at the same point, on the same images and the same noise, by a one-sided paired t-test over
images. The level is shared by the looks (Bonferroni): a candidate that is no worse, at any of these points and over all images
of this kind, than a rival chosen beforehand is abandoned with probability at most `level`, as far as the t-test holds for the
number of search images. The best so far was chosen on the same images and noise, so its lead is in part luck: after a hundred
candidates that are all equally good, about one in ten is abandoned (a simulation). What the first look cannot know is
whether a candidate would have caught up in the rest of its fine-tuning.
"""

from dataclasses import dataclass

from scipy.special import stdtr

from arquant.base.errors import InputError
from arquant.certificates.bounds import FloatArray
from arquant.searching.journal_lines import LostRace
from arquant.searching.score import standard_error

FEWEST_IMAGES = 10
"""fewer images than this are no basis for a t-test: every candidate then gets all its votes"""
FEWEST_STEPS = 12
"""a shorter fine-tuning is not interrupted: the look would cost more than it saves"""


@dataclass(frozen=True)
class Racing:
    """The rule by which a candidate that is clearly worse than its rival is abandoned.

    Attributes:
        level: the probability of abandoning a candidate that is as good as a rival chosen beforehand, over all looks together.
        looks: shares of the votes after which to look, ascending, each between 0 and 1.
        steps: share of the fine-tuning after which to look, with as many votes as at the first of the looks.
    """

    level: float = 0.01
    looks: tuple[float, ...] = (0.25, 0.5)
    steps: float = 1 / 3

    def __post_init__(self) -> None:
        if not 0 < self.level < 0.5:
            raise InputError(f"the level of racing must lie between 0 and 0.5, got {self.level}")
        if any(not 0 < look < 1 for look in self.looks) or list(self.looks) != sorted(set(self.looks)):
            raise InputError(f"the looks of racing must be ascending shares between 0 and 1, got {self.looks}")
        if not 0 < self.steps < 1:
            raise InputError(f"the steps of racing must be a share between 0 and 1, got {self.steps}")

    def votes_at_looks(self, n: int) -> list[int]:
        """Return how many of n votes are drawn before each look."""
        return sorted({max(1, round(look * n)) for look in self.looks} - {n})

    def abandons(self, race: "Race") -> bool:
        """Tell whether the candidate is clearly worse at this look."""
        return race.p_value < self.level / (1 + len(self.looks))


@dataclass(frozen=True)
class Race:
    """A comparison of a candidate with the best so far, on the same samples.

    Attributes:
        votes: per image, at the time of the comparison.
        difference: candidate minus best, mean over images.
        p_value: of "the candidate is no worse".
        complete: whether the candidate was fully fine-tuned by then.
    """

    votes: int
    difference: float
    p_value: float
    complete: bool = True

    def line(self) -> LostRace:
        """Return what the journal says of it."""
        return LostRace(votes=self.votes, difference=self.difference, p_value=self.p_value, fine_tuned=self.complete)


def race(candidate: FloatArray, best: FloatArray, votes: int) -> Race:
    """Compare the values that a reward gives to the images, after the same `votes` samples each."""
    if candidate.shape != best.shape:
        raise InputError(f"a race is run over the same images, got {candidate.shape} and {best.shape}")
    gap = candidate - best
    mean, error = float(gap.mean()), standard_error(gap)
    if len(gap) < FEWEST_IMAGES:
        return Race(votes, mean, 1.0)
    if error == 0.0:
        return Race(votes, mean, 0.0 if mean < 0 else 1.0)
    return Race(votes, mean, float(stdtr(len(gap) - 1, mean / error)))
