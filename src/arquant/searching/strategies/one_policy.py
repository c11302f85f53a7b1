"""Propose one policy, found before the search begins."""

from collections.abc import Mapping
from typing import Any, ClassVar

from arquant.base.errors import InputError
from arquant.quantization.policy import MIN_BITS, Policy
from arquant.searching.space import Space
from arquant.searching.strategies.history import Remembering


class OnePolicy(Remembering):
    """Proposes `policy`, which its subclass sets when it is made or in `prepare`; then it is finished."""

    policy: Policy
    fewest_bits: ClassVar[int] = MIN_BITS
    """The smallest width that it can judge; a space with a smaller one is an InputError."""

    def __init__(self, space: Space, seed: int = 0, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(space, seed, options)
        if space.min_bits < self.fewest_bits:
            raise InputError(
                f"strategy {self.name!r} judges widths of {self.fewest_bits} bits and more, got min_bits={space.min_bits}; use "
                f"--min-bits {self.fewest_bits}"
            )

    def _propose(self) -> Policy:
        return self.policy

    @property
    def finished(self) -> bool:
        """True once the policy was told."""
        return self.policy in self._history
