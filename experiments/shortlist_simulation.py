"""Who should win a search: the best score, what the additive model expects most of, or the best second look? Simulated.

    python experiments/shortlist_simulation.py --out results/shortlist

In a made-up world every width of ResNet-20 costs what the first looks at real policies suggest, spread unevenly over the
layers; a policy may also have an effect of its own, which no additive model sees; and every fine-tuning has its luck. The
strategy `additive` examines `--trials` policies within 3 bits; each rule then chooses among them, and what its choice is
truly worth is averaged over worlds and over repeated second looks. Nothing here is measured on images.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import markdown

from arquant.base.provenance import provenance
from arquant.loading.models import load_model
from arquant.models.tracing.layers import find_layers
from arquant.quantization.budget import Budget
from arquant.quantization.policy import Policy
from arquant.searching.space import Space
from arquant.searching.strategies.additive import Additive, AdditiveModel

WEIGHT_LOSS, ACTIVATION_LOSS, BEST = 0.02, 0.06, 0.507
"""ACR lost at 2 bits by all weights, by all activations, and that of no loss: 0.487 at w3a3, 0.472 at w2a3, 0.442 at w3a2"""
SPREAD = 0.7
"""of the losses over layers: standard deviation of their logarithm"""
LUCK = 0.005
"""standard deviation between two fine-tunings of one policy"""
SHORTLIST, LOOKS, REPEATS = 3, 2, 20
RULES = ("best score", "best expected", "best looks", "best of score and looks", "uniform 3 bits", "best examined")


@dataclass(frozen=True, eq=False)
class World:
    """A made-up truth: the worth of every policy."""

    space: Space
    seed: int
    own: float

    def worth(self) -> Callable[[Policy], float]:
        rng = np.random.default_rng((self.seed, 1))
        shares = rng.lognormal(0.0, SPREAD, (2, len(self.space.searched)))
        losses = shares / shares.sum(axis=1, keepdims=True) * [[WEIGHT_LOSS], [ACTIVATION_LOSS]]
        effects: dict[Policy, float] = {}

        def of(policy: Policy) -> float:
            effect = effects.setdefault(policy, self.own * rng.standard_normal())
            return float(BEST - (losses.T * 4.0 ** -(self.space.bits(policy) - 2)).sum() + effect)

        return of


def chosen(world: World, trials: int) -> list[float]:
    """Return the worth of what each rule chooses, averaged over repeated second looks."""
    worth, rng, space = world.worth(), np.random.default_rng((world.seed, 2)), world.space
    strategy = Additive(space, world.seed)
    scores: dict[Policy, float] = {}
    for _ in range(trials):
        policy = strategy.ask()[0].policy
        scores[policy] = worth(policy) + LUCK * rng.standard_normal()
        strategy.tell(policy, scores[policy])
    model = AdditiveModel(space, [(space.bits(policy), score) for policy, score in scores.items()])
    expected = {policy: model.predict(space.bits(policy)) for policy in scores}
    uniform = sorted(filter(space.is_uniform, scores), key=lambda each: -scores[each])
    promising = sorted(scores, key=lambda each: -scores[each] - expected[each])
    members = list(dict.fromkeys([*promising[:SHORTLIST], *uniform[:1]]))
    found = []
    for _ in range(REPEATS):
        looks = {policy: worth(policy) + LUCK / LOOKS**0.5 * rng.standard_normal() for policy in members}
        picks = (
            max(scores, key=lambda each: scores[each]),
            max(expected, key=lambda each: expected[each]),
            max(members, key=lambda each: looks[each]),
            max(members, key=lambda each: scores[each] + LOOKS * looks[each]),
            space.uniform(3),
            max(scores, key=worth),
        )
        found.append([worth(policy) for policy in picks])
    return [float(value) for value in np.mean(found, axis=0)]


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=80)
    parser.add_argument("--worlds", type=int, default=12)
    parser.add_argument(
        "--own", type=float, nargs="+", default=[0.001, 0.002, 0.004], help="effects of single policies"
    )
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    space = Space(Budget.parse("bops<=3bit", find_layers(load_model("resnet20", weights_required=False))))
    cells = []
    for own in arguments.own:
        rows = np.array([chosen(World(space, seed, own), arguments.trials) for seed in range(arguments.worlds)])
        gap = rows[:, 3] - rows[:, 0]
        cells.append([
            f"{own:g}", *(f"{value:.4f}" for value in rows.mean(axis=0)),
            f"{gap.mean():+.4f} ± {gap.std(ddof=1) / len(gap) ** 0.5:.4f}",
        ])  # fmt: skip
    origin = provenance()
    lines = [
        "# Choosing the winner, simulated",
        "",
        f"Mean true worth (a made-up ACR) of what each rule chooses after {arguments.trials} candidates, over "
        f"{arguments.worlds} worlds; luck of a fine-tuning {LUCK:g}, {LOOKS} second looks each. Not measured on images.",
        "",
        f"`{origin['command']}`, commit {origin['commit']}",
        "",
        *markdown(["effect of a policy", *RULES, "score and looks − best score"], cells),
    ]
    print("\n".join(lines))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
