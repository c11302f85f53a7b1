"""Evaluate one policy: quantize, fine-tune, let the certifier look at it, score."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from arquant.base.errors import InputError
from arquant.base.progress import Report, Status, silent
from arquant.certification.certifier import Certifier, Sampler, Samples
from arquant.certification.incremental import disagreement
from arquant.certification.vote_cache import VoteCache
from arquant.certification.votes import NoAnswer
from arquant.images.imageset import ImageSet
from arquant.quantization.policy import Policy
from arquant.searching.candidate_pool import CandidatePool
from arquant.searching.journal_lines import Candidate, Gap
from arquant.searching.kept_networks import Kept
from arquant.searching.racing import FEWEST_STEPS, Race, Racing, race
from arquant.searching.score import Ballots, Reward, Score, difference, find_reward
from arquant.searching.strategy import Proposal
from arquant.searching.workbench import Network, Workbench
from arquant.training.loop import Diverged, Look
from arquant.training.recipe import Recipe


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of an evaluation.

    Attributes:
        score: by the reward of the search; None if the evaluation failed.
        acr: the estimated ACR, and `acr_gap` its difference to the float model's with the standard error, paired.
        failure: why there is no score.
        race: the comparison by which the candidate was abandoned; its score is then that of the best so far plus the
            difference between the two, and there is no estimated ACR if it was not even fully fine-tuned.
        seconds: per stage.
        disagreement: share of votes unlike the float model's.
        engine: what computed the votes.
        votes, network: for whoever keeps the candidate; None if it failed or was abandoned.
        early: votes of the network as it was part of the way through its fine-tuning, for the races of others.
    """

    score: Score | None
    acr: Score | None = None
    acr_gap: tuple[float, float] | None = None
    failure: str | None = None
    race: Race | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    disagreement: float | None = None
    engine: str | None = None
    votes: Samples | None = field(default=None, repr=False)
    network: Network | None = field(default=None, repr=False)
    early: Samples | None = field(default=None, repr=False)

    @property
    def complete(self) -> bool:
        """Tell whether it was scored on all its votes."""
        return self.score is not None and self.race is None

    @property
    def kept(self) -> Kept | None:
        """Return what is worth keeping of a candidate that was scored on all its votes."""
        if self.network is None or self.votes is None or not self.complete:
            return None
        return Kept(self.network, self.votes, self.early)

    def line(self, head: Candidate) -> Candidate:
        """Return the journal's line: `head`, which says what was evaluated, with the outcome."""
        gap = None if self.acr_gap is None else Gap(value=self.acr_gap[0], standard_error=self.acr_gap[1])
        return replace(
            head,
            score=None if self.score is None else self.score.estimate(),
            acr=None if self.acr is None else self.acr.estimate(),
            acr_minus_float=gap,
            failure=self.failure,
            abandoned=None if self.race is None else self.race.line(),
            disagreement=self.disagreement,
            engine=self.engine,
            seconds={stage: round(value, 3) for stage, value in self.seconds.items()},
        )


Evaluate = Callable[[Proposal, Kept | None], Outcome]
"""from a proposal, and the candidate to race against, to its outcome"""


class Evaluator:
    """Evaluates policies on a workbench; equal policies get equal outcomes, except for the seconds.

    Args:
        workbench: the quantized model and its training images.
        images: the search images.
        cache: the float model's votes on them.
        certifier: what candidates are looked at by.
        reward: what the search maximises.
        n: votes per image, at most as many as the cache holds.
        recipe: of the short fine-tuning; None to leave it out.
        racing: when to abandon a candidate; None never does.
    """

    def __init__(
        self,
        workbench: Workbench,
        images: ImageSet,
        cache: VoteCache,
        certifier: Certifier,
        reward: Reward,
        *,
        n: int,
        recipe: Recipe | None,
        racing: Racing | None = None,
        report: Report = silent,
    ) -> None:
        self.workbench = workbench
        self.images = images
        self.cache = cache
        self.certifier = certifier
        self.reward = reward
        self.n = n
        self.recipe = recipe
        self.racing = racing
        self.report = report
        self.pool: CandidatePool | None = None
        """workers that evaluate candidates side by side; their outcomes are those of this object"""

    def ahead(self, proposals: Sequence[tuple[Proposal, Kept | None]]) -> None:
        """Evaluate proposals that will be asked for next, each with its rival, by the workers, if there are any."""
        if self.pool is not None:
            requests = [("candidate", proposal, (proposal, rival)) for proposal, rival in proposals]
            self.pool.work_ahead(requests, lambda done, total: self.report(Status("round", done, total, "candidates")))

    def looks_ahead(self, looks: Sequence[tuple[Policy, Recipe, int]], report: Report) -> None:
        """Take second looks that will be asked for next by the workers, if there are any."""
        if self.pool is not None:
            self.pool.work_ahead(
                [("look", look, look) for look in looks],
                lambda done, total: report(Status("shortlist", done, total, "fine-tunings")),
            )

    def __call__(self, proposal: Proposal, rival: Kept | None = None) -> Outcome:
        """Quantize, fine-tune (by as many steps as the proposal states), vote, score. `rival` is there for racing."""
        if self.pool is not None and (done := self.pool.taken("candidate", proposal)) is not None:
            found: Outcome = done.result
            return found
        clock = _Clock()
        try:
            return self._evaluated(proposal.policy, self.recipe_of(proposal), rival, clock)
        except (Diverged, NoAnswer) as error:
            return Outcome(None, failure=str(error), seconds=clock.seconds)

    def recipe_of(self, proposal: Proposal) -> Recipe | None:
        """Return how a proposal is fine-tuned; None for not at all."""
        if proposal.steps is None:
            return self.recipe
        if self.recipe is None:
            raise InputError(
                f"a proposal asks for {proposal.steps} steps of fine-tuning, and there is no recipe for them"
            )
        return replace(self.recipe, steps=proposal.steps)

    def _evaluated(self, policy: Policy, recipe: Recipe | None, rival: Kept | None, clock: "_Clock") -> Outcome:
        early = _Early(self, rival)
        with clock.stage("quantize"):
            self.workbench.set_(policy)
        if recipe is not None:
            with clock.stage("finetune"):
                self.workbench.finetune_(recipe, report=self.report, look=early.look(recipe))
        if early.lost is not None and rival is not None and early.votes is not None:
            score = self._on_scale(early.votes, rival, early.lost, rival.early)
            return Outcome(score, race=early.lost, seconds=clock.seconds)
        with ExitStack() as stack:
            with clock.stage("compile"):
                sampler = stack.enter_context(self._sampler())
            with clock.stage("votes"):
                votes, lost = self._vote(sampler, None if rival is None else rival.votes)
            kind = sampler.kind
        outcome = self._outcome(votes, rival, lost, clock.seconds)
        return replace(outcome, disagreement=disagreement(self.cache, votes), engine=kind, early=early.votes)

    def look_again(self, policy: Policy, recipe: Recipe, n: int, report: Report = silent) -> Score | None:
        """Score a policy fine-tuned by `recipe` on n votes of noise that no candidate saw; None if it failed.

        Without the float model's votes on the same noise, `acr` takes the place of a reward that replays them.
        """
        if self.pool is not None and (done := self.pool.taken("look", (policy, recipe, n))) is not None:
            found: Score | None = done.result
            return found
        self.workbench.set_(policy)
        try:
            self.workbench.finetune_(recipe, report=report)
            votes = self.vote("shortlist", n)
        except (Diverged, NoAnswer):
            return None
        return self.reward.on_fresh_noise.score(Ballots(votes, self.cache, self.certifier, replayed=False))

    def vote(self, purpose: str, n: int) -> Samples:
        """Return samples 0 .. n - 1 of each search image by the network on the workbench."""
        with self._sampler() as sampler:
            return self._sample(sampler, purpose, 0, n)

    def _sampler(self) -> AbstractContextManager[Sampler]:
        return self.certifier.sampler(self.workbench.quantized, self.workbench.engine)

    def _vote(self, sampler: Sampler, rival: Samples | None) -> tuple[Samples, Race | None]:
        """Return all votes; or those up to the look at which the candidate was clearly worse, and the race it lost."""
        racing = self.racing if rival is not None else None
        looks = racing.votes_at_looks(self.n) if racing is not None else []
        votes: Samples = np.empty((len(self.images), 0), self.cache.votes.dtype)
        for first, last in pairwise([0, *looks, self.n]):
            votes = np.concatenate([votes, self._sample(sampler, "search", first, last)], axis=1)
            if racing is None or rival is None or last == self.n:
                continue
            result = self.compare(votes, rival[:, :last])
            if racing.abandons(result):
                return votes, result
        return votes, None

    def compare(self, votes: Samples, best: Samples) -> Race:
        """Race two networks on the same samples."""
        now, then = (self.reward.score(self._ballots(each)) for each in (votes, best))
        return race(now.per_image, then.per_image, votes.shape[1])

    def _on_scale(self, votes: Samples, rival: Kept, lost: Race, then: Samples | None) -> Score:
        """Guess the score from the race: that of the best, plus the difference to what the best was `then`."""
        best, now = (self.reward.score(self._ballots(part)).per_image for part in (rival.votes, votes))
        before = self.reward.score(self._ballots(rival.votes[:, : lost.votes] if then is None else then)).per_image
        return Score.of(self.reward.name, best + now - before, lost.votes)

    def _sample(self, sampler: Sampler, purpose: str, first: int, last: int) -> Samples:
        done, total = first * len(self.images), self.n * len(self.images)

        def count(votes: int) -> None:
            nonlocal done
            done += votes
            self.report(Status("votes", done, max(total, done), "votes"))

        return sampler.sample(self.images, purpose, first, last, count)

    def _ballots(self, votes: Samples) -> Ballots:
        return Ballots(votes, self.cache, self.certifier)

    def _outcome(self, votes: Samples, rival: Kept | None, lost: Race | None, seconds: dict[str, float]) -> Outcome:
        ballots = self._ballots(votes)
        acr = find_reward(self.certifier.estimate).score(ballots)
        reference = Score.of(acr.reward, ballots.reference_radii(), ballots.n)
        score = self.reward.score(ballots)
        if lost is not None and rival is not None:
            score = self._on_scale(votes, rival, lost, None)
        return Outcome(
            score,
            acr,
            difference(reference, acr),
            race=lost,
            seconds=seconds,
            votes=votes if lost is None else None,
            network=self.workbench.take() if lost is None else None,
        )


class _Early:
    """A look at a candidate part of the way through its fine-tuning: its votes, and the race if it lost one."""

    def __init__(self, evaluator: Evaluator, rival: Kept | None) -> None:
        self._evaluator = evaluator
        self._rival = None if rival is None else rival.early
        self.votes: Samples | None = None
        self.lost: Race | None = None

    def look(self, recipe: Recipe) -> Look | None:
        """Return the look for training; None where there are no races, or little to save."""
        evaluator = self._evaluator
        if evaluator.racing is None or evaluator.workbench.steps(recipe) < FEWEST_STEPS:
            return None
        return Look(evaluator.racing.steps, self._goes_on)

    def _goes_on(self) -> bool:
        evaluator = self._evaluator
        racing, report = evaluator.racing, evaluator.report
        if racing is None:
            return True
        evaluator.report = silent  # to whoever watches, this is a part of fine-tuning
        try:
            self.votes = evaluator.vote("search", min([*racing.votes_at_looks(evaluator.n), evaluator.n]))
        finally:
            evaluator.report = report
        if self._rival is None or self._rival.shape != self.votes.shape:
            return True
        result = replace(evaluator.compare(self.votes, self._rival), complete=False)
        self.lost = result if racing.abandons(result) else None
        return self.lost is None


class _Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - began
