"""A pool of Ray actors: on this machine, or on the machines of a cluster.

Every actor makes its worker once, from what lies in Ray's object store, and does one unit after the other. Two units at a time
are with each actor, so that none waits for the next; no further unit is made before one is back. An actor that dies, or
does not answer for `patience` seconds, is replaced, and its units are done by others.
"""

import logging
import platform
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
import torch
from ray import cloudpickle, exceptions

from arquant.base.errors import ArquantError, InputError, MismatchError
from arquant.base.identity import differences
from arquant.engines.pool import Cluster, PoolLost, Worker
from arquant.engines.ray_start import connected, last_line, places

PATIENCE = 120.0
"""seconds without an answer to one unit after which a worker is given up; a unit of votes takes about one"""
START_SECONDS = 600.0
"""seconds without a single worker after which the pool is given up; clouds take minutes to bring a machine"""
DEPTH = 2
"""units that are with a worker at a time"""
MOST_LOSSES = 3
"""workers that may be lost over one unit, or at their start, before nobody believes that the next will do better"""
GONE_SECONDS = 15.0
"""seconds of silence from the head of the cluster after which it is gone; Ray ends this process after 60, without a word"""
_POLL_SECONDS, _LOOK_SECONDS = 1.0, 5.0


class _Failed(RuntimeError):
    """An error of a worker that is none of ours; the message is its own."""


class _Actor:
    """The process of a worker."""

    def start(self, make: Callable[[], Worker], threads: int) -> tuple[str, Mapping[str, Any]]:
        """Make the worker; return the name of the machine and the worker's facts."""
        torch.set_num_threads(threads)
        self._worker = make()
        return platform.node(), self._worker.facts()

    def work(self, unit: Any) -> Any:
        """Return the result of a unit."""
        return self._worker.work(unit)

    def end(self) -> None:
        """Let the worker look back."""
        self._worker.end()


@dataclass(eq=False)
class _Unit:
    content: Any
    losses: int = 0


@dataclass(eq=False)
class _Member:
    """An actor and what it is doing."""

    actor: Any
    starting: Any
    """what `start` will return; None once it has"""
    machine: str = ""
    units: deque[tuple[Any, _Unit]] = field(default_factory=deque)
    """those that are with it, the oldest first, and what they will return"""
    since: float = 0.0
    """when it began with the oldest"""

    @property
    def waits_for(self) -> Any:
        """Return the reference of what it is doing; None if nothing."""
        return self.starting if self.starting is not None else self.units[0][0] if self.units else None


class RayPool:
    """Workers that are Ray actors; arguments as of `open_pool`.

    A Ray that this process is connected to already is used, and left running.

    Args:
        patience: seconds that a worker may take for one unit.
        depth: units that are with a worker at a time; 1 for long ones, so that none waits behind another.
        start_seconds: that the first worker may take to be ready.
    """

    def __init__(
        self,
        cluster: Cluster,
        make: Callable[[], Worker],
        facts: Mapping[str, Any],
        *,
        threads: int,
        gpus: int = 0,
        note: Callable[[str], None],
        patience: float = PATIENCE,
        depth: int = DEPTH,
        start_seconds: float = START_SECONDS,
    ) -> None:
        size = _pickled_bytes(make)
        self._cluster, self._facts, self._threads = cluster, facts, threads
        self._note, self._patience, self._depth, self._start_seconds = note, patience, depth, start_seconds
        self._own = connected(cluster, threads, size, note)
        self._members: list[_Member] = []
        self._lost: deque[_Unit] = deque()
        self._failed_starts = 0
        self._seen = self._looked = self._heard = time.monotonic()
        """when a worker was last ready, when we last looked after them, and when the head of the cluster last answered"""
        try:
            self._head = _head_address()
            self._remote = ray.remote(num_cpus=threads, num_gpus=gpus, max_restarts=0)(_Actor)
            self._make = ray.put(make)  # once, for all workers of a machine
            self._grow()
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> int:
        """Return how many workers are at work or wait for it."""
        return sum(member.starting is None for member in self._members)

    @property
    def wanted(self) -> int:
        """Return how many workers there are, with those that are starting."""
        return len(self._members)

    def run(self, take: Callable[[], Any | None], receive: Callable[[Any, Any], None]) -> None:
        """Do all units that `take` gives, and hand each with its result to `receive`, as `Pool` says.

        Raises:
            MismatchError: a worker differs from this process.
            PoolLost: the cluster is gone, has no place for a worker, or loses every worker over the same unit.
        """
        self._seen = time.monotonic()
        while not (self._hand_out(take) and not any(member.units for member in self._members)):
            self._wait(receive)

    def end(self) -> None:
        """Let every worker look back at its work; one that is lost meanwhile cannot."""
        asked = [(each, each.actor.end.remote()) for each in self._members if each.starting is None]
        for member, reference in asked:
            try:
                _fetched(reference, self._patience)
            except exceptions.RayError as error:
                self._note(f"a worker on {member.machine} was lost at the end of its work: {last_line(error)}")

    def close(self) -> None:
        """End the workers, and Ray if it is ours."""
        for member in self._members:
            _killed(member.actor)
        self._members.clear()
        if self._own:
            ray.shutdown()

    def _hand_out(self, take: Callable[[], Any | None]) -> bool:
        """Give every worker as many units as it may have; True if there are no more of them now."""
        while True:
            free = [each for each in self._members if each.starting is None and len(each.units) < self._depth]
            if not free:
                return False
            member = min(free, key=lambda each: len(each.units))
            if self._lost:
                unit = self._lost.popleft()
            elif (content := take()) is not None:
                unit = _Unit(content)
            else:
                return True
            if not member.units:
                member.since = time.monotonic()
            member.units.append((member.actor.work.remote(unit.content), unit))

    def _wait(self, receive: Callable[[Any, Any], None]) -> None:
        """Wait until something is back, and take in all that is."""
        awaited = {member.waits_for: member for member in self._members if member.waits_for is not None}
        ready, _ = ray.wait(list(awaited), num_returns=1, timeout=_POLL_SECONDS)
        if ready:
            ready, _ = ray.wait(list(awaited), num_returns=len(awaited), timeout=0)
        for reference in ready:
            self._take_in(awaited[reference], reference, receive)
        if time.monotonic() - self._looked >= min(_LOOK_SECONDS, self._patience):
            self._looked = time.monotonic()
            self._look_after()

    def _take_in(self, member: _Member, reference: Any, receive: Callable[[Any, Any], None]) -> None:
        try:
            result = _fetched(reference)
        except exceptions.RayError as error:
            self._lose(member, last_line(error))
            return
        except _Failed as error:
            if member.starting is None:
                raise
            raise PoolLost(f"no worker can start: {error}; {_ON_THE_NODES}") from error
        if member.starting is not None:
            self._admit(member, *result)
            return
        _, unit = member.units.popleft()
        member.since = time.monotonic()
        receive(unit.content, result)

    def _admit(self, member: _Member, machine: str, facts: Mapping[str, Any]) -> None:
        """Let a worker that has started work, if it is like this process."""
        if found := differences(facts, self._facts):
            raise MismatchError(
                f"the worker on {machine} is not like this process, so that its results could be others ({found}); use "
                "machines of one kind with equal packages, and start the command on one of them"
            )
        member.starting, member.machine = None, machine
        self._failed_starts = 0

    def _lose(self, member: _Member, reason: str) -> None:
        """Put another worker in the place of one that is lost, and its units aside for whoever is free."""
        self._members.remove(member)
        _killed(member.actor)
        if member.starting is not None:
            self._failed_starts += 1
            if self._failed_starts >= MOST_LOSSES:
                raise PoolLost(f"no worker can start: {reason}; {_ON_THE_NODES}")
        elif member.units:
            unit = member.units[0][1]
            unit.losses += 1
            if unit.losses >= MOST_LOSSES:
                raise PoolLost(
                    f"{unit.losses} workers were lost over the same work, the last one so: {reason}; {_MEMORY}"
                )
        self._note(f"a worker{f' on {member.machine}' * bool(member.machine)} is replaced: {reason}")
        self._lost.extendleft(unit for _, unit in reversed(member.units))
        self._check_head()
        self._start_one()

    def _look_after(self) -> None:
        """Notice a cluster that is gone, workers that do not answer, and machines that have joined."""
        self._check_head()
        now = time.monotonic()
        for member in [each for each in self._members if each.units and now - each.since > self._patience]:
            self._lose(member, f"no answer for {self._patience:g} seconds")
        if self.workers:
            self._seen = now
        elif now - self._seen > self._start_seconds:
            raise PoolLost(
                f"none of {self.wanted} workers is ready after {self._start_seconds:g} seconds: no machine has {self._threads} "
                "free cores, or a worker takes longer to start; `ray status` shows what is in use"
            )
        self._grow()

    def _grow(self) -> None:
        """Start as many workers as were asked for; else as many as the machines that are there now have cores for."""
        wanted = self._cluster.workers or places(self._threads)
        if not wanted and not self._members:
            raise PoolLost(
                f"no machine of the cluster has {self._threads} cores for a worker; use fewer --threads, or state --workers "
                "and let the cluster grow"
            )
        for _ in range(wanted - len(self._members)):
            self._start_one()

    def _start_one(self) -> None:
        actor = self._remote.options(scheduling_strategy="SPREAD").remote()
        self._members.append(_Member(actor, actor.start.remote(self._make, self._threads)))

    def _check_head(self) -> None:
        """Refuse to go on without the head of the cluster: wait for it for a while first."""
        while self._head is not None:
            if _answers(self._head):
                self._heard = time.monotonic()
                return
            if time.monotonic() - self._heard > GONE_SECONDS:
                self._members.clear()  # nobody is left who could end them
                raise PoolLost(
                    f"the Ray cluster at {':'.join(map(str, self._head))} is gone; what was done is kept: the same command "
                    "goes on, with or without a cluster"
                )
            time.sleep(_POLL_SECONDS)


_ON_THE_NODES = "every machine needs Python, Ray and arquant in the versions of this one, and what the model is made of"
_MEMORY = "does a worker have enough memory? Fewer --workers or a smaller --batch need less"


def _pickled_bytes(make: Callable[[], Worker]) -> int:
    """Return how large what is sent to the workers is; refuse what cannot be sent."""
    arrays: list[Any] = []
    try:
        rest = cloudpickle.dumps(make, protocol=5, buffer_callback=arrays.append)
    except Exception as error:  # of a user's own classes
        raise InputError(
            f"the model cannot be sent to other processes: {type(error).__name__}: {error}; leave nothing on it that belongs "
            "to this process, such as open files, locks and engines"
        ) from error
    return len(rest) + sum(int(array.raw().nbytes) for array in arrays)


def _head_address() -> tuple[str, int] | None:
    """Return where the head of the cluster answers; None if this process cannot know, as behind a Ray client."""
    try:
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        return host.strip("[]"), int(port)
    except (AttributeError, ValueError, RuntimeError):
        return None


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, _LOOK_SECONDS).close()
    except OSError:
        return False
    return True


def _fetched(reference: Any, timeout: float | None = None) -> Any:
    """Return a result; an error of the work itself is raised as it was there, one of Ray as Ray's."""
    try:
        return ray.get(reference, timeout=timeout)
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, ArquantError):
            raise error.cause from None
        raise _Failed(last_line(error)) from error


def _killed(actor: Any) -> None:
    try:
        ray.kill(actor)
    except Exception as error:  # it is gone, or Ray is
        logging.getLogger(__name__).debug("not killed: %s", error)
