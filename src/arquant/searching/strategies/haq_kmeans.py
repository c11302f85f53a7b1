"""Search with HAQ's agent for a size budget: it chooses how many values the weights of each layer share."""

import numpy as np

from arquant.quantization.policy import Policy
from arquant.searching.strategies.ddpg import ArqPaper, Floats
from arquant.searching.strategy import register


@register("haq-kmeans")
class HaqKmeans(ArqPaper):
    """Takes one step per layer, for its weights; inputs have the largest width, since no size budget charges them."""

    def _steps_facts(self) -> Floats:
        return super()._steps_facts()[::2]

    def _policy(self, actions: Floats) -> Policy:
        if self._config.fit:
            wishes = self._wishes(actions)[self._is_searched]
            return self.space.fit(np.stack([wishes, np.full_like(wishes, np.inf)], axis=1))
        weights = self._bits(actions)[self._is_searched]
        inputs = np.full_like(weights, self.space.max_bits)
        return self.space.budget.project_back_to_front(self.space.policy(np.stack([weights, inputs], axis=1)))

    def _executed(self, policy: Policy) -> Floats:
        return super()._executed(policy)[::2]
