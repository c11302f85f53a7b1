"""How many candidates does the model behind `arq` need before the policy that it makes best is a good one?

    python experiments/design_size.py --out results/grouped-model

The truth is a model fitted to published scores of ResNet-20: those of all searches after 60 steps, or the careful ones. Designs
of several sizes are chosen as `arq` chooses them, scored by the truth with noise that is as large as the luck of a fine-tuning,
and fitted; the table says how much ACR their optimum loses against the truth's, within the cost of 3 bits. A simulation: that
the truth has the model's form is assumed. Reads journals, trains nothing.
"""

import numpy as np
from grouped_model import SEARCHES, careful, designed, scored, write_table

from arquant.loading.models import load_model
from arquant.models.tracing.layers import find_layers
from arquant.quantization.budget import Budget
from arquant.quantization.policy import Policy
from arquant.searching.space import Space
from arquant.searching.strategies.grouped_model import GroupedModel, Grouping

SIZES = (5, 6, 7, 8, 9, 12)
NOISE = 0.005
"""standard deviation of a score between fine-tuning seeds (`results/score-ranking`)"""
POOLS, DRAWS = 10, 5
"""pools to choose designs from, and draws of the noise for each"""


def fitted(grouping: Grouping, scores: dict[Policy, float]) -> GroupedModel:
    return GroupedModel(grouping, [(grouping.space.bits(policy), value) for policy, value in scores.items()])


def losses_of_optima(grouping: Grouping, truth: GroupedModel, size: int) -> list[float]:
    """Return how far the optimum of each fitted design lies below the truth's."""
    space = grouping.space

    def value(policy: Policy) -> float:
        return truth.predict(space.bits(policy))

    best, found = value(truth.best_policy()), []
    for pool in range(POOLS):
        design = designed(grouping, grouping.pool(np.random.default_rng(pool)), size)
        for draw in range(DRAWS):
            noise = np.random.default_rng([pool, draw]).normal(0, NOISE, size)
            model = fitted(grouping, {each: value(each) + e for each, e in zip(design, noise, strict=True)})
            found.append(best - value(model.best_policy()))
    return found


def rows() -> list[list[str]]:
    space = Space(Budget.parse("bops<=3bit", find_layers(load_model("resnet20:sigma=0.5"))))
    grouping = Grouping(space, 6)
    every = {policy: value for search in SEARCHES for policy, value in scored(search).items()}
    truths = [fitted(grouping, scores) for scores in (every, careful())]
    found = []
    for size in SIZES:
        lost = [losses_of_optima(grouping, truth, size) for truth in truths]
        found.append([str(size), *(f"{np.mean(each):.4f} ({np.max(each):.4f})" for each in lost)])
    best, pairs = [each.best_policy() for each in truths], [space.uniform(pair) for pair in space.uniform_pairs]
    gaps = [
        [truth.predict(space.bits(top)) - truth.predict(space.bits(pair)) for pair in pairs]
        for truth, top in zip(truths, best, strict=True)
    ]
    return [*found, ["the best uniform pair", *(f"{min(each):.4f}" for each in gaps)]]


def main() -> None:
    columns = ["candidates fitted on", "ACR lost, truth: 60 steps", "truth: careful scores"]
    write_table(__doc__, "design-size.md", columns, rows)


if __name__ == "__main__":
    main()
