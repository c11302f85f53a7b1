"""Keep things by a name that a user may add to: losses, quantizers, engines."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def registering(table: dict[str, T], name: str) -> Callable[[T], T]:
    """Return a decorator that keeps what it decorates in a table under a name; the last one registered counts."""

    def register(thing: T) -> T:
        table[name] = thing
        return thing

    return register
