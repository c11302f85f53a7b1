"""A reward and a strategy of one's own in a tiny search.   python examples/custom_reward.py"""

import argparse

import numpy as np
from own_model import SIGMA, trained

import arquant
from arquant import Policy
from arquant.certificates.bounds import FloatArray
from arquant.searching.score import Ballots, register_reward
from arquant.searching.strategy import Strategy, register

ENOUGH = 0.1  # the radius that this application needs


@register_reward("enough")
def enough(ballots: Ballots) -> FloatArray:
    """Return one number per search image; their mean is maximised. Here radii count in full up to ENOUGH."""
    return np.minimum(ballots.radii(), ENOUGH) / ENOUGH


@register("front-heavy")
class FrontHeavy(Strategy):
    """Wishes more bits for early layers, with some chance in it; `fit` makes a policy of wishes that uses the budget up.

    A strategy with a memory also has `_learn(proposal, reward)`; arquant.searching.testing has tests that all must pass.
    """

    def _propose(self) -> Policy:
        wishes = np.linspace(8, 2, len(self.space.searched))[:, None] + self.rng.normal(0, 2, (1, 2))
        return self.space.fit(wishes)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--trials", type=int, default=3, help="candidates to examine")
parser.add_argument("--out", default="runs/custom-reward", help="run folder; the same call resumes")
args = parser.parse_args()

summary = arquant.search(
    trained(), "sample", sigma=SIGMA, budget="bops<=4bit", out=args.out, trials=args.trials,
    strategy="front-heavy", reward="enough", steps=5, final_steps=20, train_batch=64, search_images=20, search_n=100,
    reference_n=100, shortlist=1, calibration_images=64, images="first:5", n=500, controls=("uniform",),
)  # fmt: skip
(point,) = summary["points"]
score, certified = point["estimates"]["score"], point["certified"]
print(f"policy: {point['policy']}")
print(
    f"reward {score['estimate']}: {score['value']:.3f} on {score['images']} search images (an estimate, it proves nothing)"
)
print(f"certified ACR: {certified['acr']:.3f} on {certified['images']} images that the search never saw")
