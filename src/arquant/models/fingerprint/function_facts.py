"""Gather the facts that a fingerprint holds beside text and weights, and decide the fingerprint's version.

Version 1 is for networks of torch's and our own modules that nobody tampered with (`regular_modules`); version 2, for
all others, has everything that `spelling` finds. It is taken when a classifier is made, and compared with the network
as it is whenever the fingerprint is asked for, so that an attribute which somebody changes later counts.

What the network itself changes when it runs (counters, caches, statistics) must not count, else no run could be resumed: a
copy is run once in eval and once in training mode, and an attribute that changes then counts as it was in the beginning; a
variable of a module of the user's, which the next network made in this process finds changed, does not count at all. Whether
such a thing changes answers is not for a fingerprint to say: `certify` tests that a network answers the same before and after.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from arquant.models.fingerprint.regular_modules import is_regular, unprinted_settings
from arquant.models.fingerprint.spelling import Spelling, spell

_unsteady: set[str] = set()
"""variables of modules, classes and functions that running a network has changed in this process"""
_SHARED = ("global ", "class ", "function ")


@dataclass(frozen=True)
class FunctionFacts:
    """The facts found in the beginning.

    Attributes:
        base: what the fingerprint starts from: the network's own spelling, or for a quantized network that of the float one.
        start: the network's own spelling in the beginning; None if it was regular then.
        passing: what the network itself changes when it runs.
        settings: what torch's modules do not print, in the fingerprint; of a quantized network those of the float one.
        own_settings: the same, of the network itself in the beginning.
    """

    base: Spelling = field(default_factory=lambda: Spelling({}))
    start: Spelling | None = None
    passing: frozenset[str] = frozenset()
    settings: tuple[bytes, ...] = ()
    own_settings: tuple[bytes, ...] = ()

    @classmethod
    def of(
        cls, network: nn.Module, copied: Callable[[], nn.Module], image_shape: tuple[int, int, int]
    ) -> "FunctionFacts":
        """Spell a network that was just made; `copied` makes a copy of it to try out."""
        settings = tuple(unprinted_settings(network.get_submodule("module")))
        if is_regular(network):
            return cls(settings=settings, own_settings=settings)
        start = spell(network)
        found, passing = _changed_by_running(copied, image_shape)
        _unsteady.update(name for name in passing if name.startswith(_SHARED))
        later = {name: digest for name, digest in found.items() if name.startswith(_SHARED) and name not in passing}
        start = Spelling({**later, **start.entries}, start.unspelled)
        return cls(start, start, passing, settings, settings)

    def handed_on(self, network: nn.Module, other: nn.Module) -> "FunctionFacts":
        """Return the facts of another network made of the modules of `network`, whose facts these are, or of copies of them."""
        base = self.now(network)
        start = None if not base.entries and is_regular(other) else spell(other)
        own = tuple(unprinted_settings(other.get_submodule("module")))
        return FunctionFacts(base, start, self.passing, self.settings_now(network), own)

    def settings_now(self, network: nn.Module) -> tuple[bytes, ...]:
        """Spell what torch's modules do not print, as it is now."""
        current = tuple(unprinted_settings(network.get_submodule("module")))
        return self.settings if current == self.own_settings else current

    def now(self, network: nn.Module) -> Spelling:
        """Spell a network as it is now; nothing if it is regular, which makes its fingerprint one of version 1."""
        if self.start is None and is_regular(network):
            return Spelling({})
        current = spell(network)
        before: Mapping[str, str] = {} if self.start is None else self.start.entries
        entries = {**self.base.entries, **current.entries} if self.start is None else dict(self.base.entries)
        for name in before.keys() | current.entries.keys():
            if name in self.passing or before.get(name) == current.entries.get(name):
                continue
            if name in current.entries:
                entries[name] = current.entries[name]
            elif not name.startswith(_SHARED):
                entries.pop(name, None)
        steady = {name: digest for name, digest in sorted(entries.items()) if name not in _unsteady}
        return Spelling(steady, tuple(sorted({*self.base.unspelled, *current.unspelled})))


def _changed_by_running(
    copied: Callable[[], nn.Module], image_shape: tuple[int, int, int]
) -> tuple[Mapping[str, str], frozenset[str]]:
    """Run a copy of a network and return its spelling after that, and the names of what has changed."""
    with _randomness_kept():
        try:
            copy = copied()
        except Exception:  # a user's class that cannot be copied; whoever needs a copy says so
            return {}, frozenset()
        before = spell(copy).entries
        for training in (False, True):
            copy.train(training)
            try:
                with torch.no_grad():
                    copy(torch.zeros(2, *image_shape))
            except Exception:  # a network that does not take these images is refused elsewhere
                continue
        after = spell(copy).entries
    return after, frozenset(
        name
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name) and (name in before or not name.startswith(_SHARED))
    )


@contextmanager
def _randomness_kept() -> Iterator[None]:
    """Leave the generators that a network may draw from as they were."""
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - a user's network may draw from it
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002
