"""Shards on the workers of a cluster, which survive the loss of a worker.

A shard is an object on one worker. The driver sends it commands: functions of the shard and of
arguments. How it was built and the commands since then determine its state, so a shard whose worker
is lost is built again on another worker and the same commands are replayed. Checkpoints, copies of
its matrices on the driver, make the list of commands short.

Results are returned in the order of the shards: a sum over them depends neither on the placement of
shards on workers, nor on the loss of workers.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from sharedspan.distributed.engine import (
    MAX_LOSSES,
    NO_SCHEDULER,
    POLL_SECONDS,
    ClusterError,
    Connection,
    workers_died,
)
from sharedspan.kernels.threads import one_blas_thread, use_threads


class ShardSource(Protocol):
    """A source of shards, at the start and after the loss of a worker."""

    bounds: np.ndarray  # (shards + 1,) the first task of each shard, and the number of tasks

    def shards(self, connection: Connection, ids: Sequence[int]) -> dict[int, Any]:
        """For each shard a future, or a function and arguments that the shard's worker calls."""


class ShardActor:
    """The actor on a worker that holds its shards and runs the driver's commands on them.

    Its methods return True and an answer, or False and an error, because an error that Dask raises
    in a call means a lost worker.
    """

    def __init__(self, driver: int) -> None:
        from distributed import get_worker

        if os.getpid() != driver:  # a worker in the driver's own process shares its threads
            use_threads(get_worker().state.nthreads)
        self.shards: dict[int, Any] = {}
        self.last: dict[int, tuple[int, Any]] = {}  # each shard's last command and its result

    def build(self, i: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Build shard i."""
        try:
            self.shards[i] = function(*arguments)
        except Exception as error:
            return False, error
        self.last.pop(i, None)
        return True, {}

    def run(self, number: int, function: Callable[..., Any], arguments: dict[int, Any]) -> Any:
        """Run command ``number`` on some shards, unless it was their last command."""
        try:
            with one_blas_thread():
                for i, values in arguments.items():
                    if self.last.get(i, (-1, None))[0] != number:
                        self.last[i] = number, function(self.shards[i], *values)
        except Exception as error:
            return False, error
        return True, {i: self.last[i][1] for i in arguments}


def _computed_on_this_worker(key: str) -> Any:
    """The result of a task that this worker has computed."""
    from distributed import get_worker

    return get_worker().data[key]


@dataclass
class Command:
    """A function of a shard, and the arguments for each shard."""

    number: int
    function: Callable[..., Any]
    arguments: Sequence[tuple[Any, ...]]
    always: bool = False  # whether it stays in the log after a checkpoint
    creates: int | None = None


@dataclass
class Shards:
    """Shards on the workers of a cluster, which are built by the first command."""

    connection: Connection
    source: ShardSource
    actors: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # address -> future, actor
    places: dict[int, str] = field(default_factory=dict)  # shard -> address
    log: list[Command] = field(default_factory=list)
    number: int = 0  # the number of the last command

    def run(
        self,
        function: Callable[..., Any],
        *shared: Any,
        per_shard: Sequence[tuple[Any, ...]] | None = None,
        replay: Literal["until_checkpoint", "always"] | None = None,
        creates: int | None = None,
    ) -> list[Any]:
        """The results of ``function(shard, *shared, *per_shard[i])``, by shard.

        Parameters
        ----------
        function : callable
            Importable on the workers.
        per_shard : sequence of tuple, optional
            Further arguments for each shard.
        replay : {"until_checkpoint", "always"}, optional
            Set for a command that changes the shard, by whether checkpoints contain the change.
        creates : int, optional
            The number of the object that the command creates, for ``checkpoint``.
        """
        self.number += 1
        count = len(self.source.bounds) - 1
        arguments = [(*shared, *own) for own in per_shard or [()] * count]
        command = Command(self.number, function, arguments, replay == "always", creates)
        results: dict[int, Any] = {}
        waiting, losses = set(range(count)), 0
        while waiting:
            if losses > MAX_LOSSES:
                raise workers_died(f"they worked on {len(waiting)} of the {count} shards")
            losses += 1
            self._restore(waiting)
            self._attempt(command, waiting, results)
            waiting -= results.keys()
        if replay:
            self.log.append(command)
        return [results[i] for i in range(count)]

    def checkpoint(
        self, restore: Callable[..., Any], saved: Sequence[tuple[Any, ...]], unused: set[int]
    ) -> None:
        """Replay ``restore(shard, *saved[i])`` from now on instead of the commands so far.

        Commands that are always replayed stay in the log, unless their objects are ``unused``.
        """
        self.number += 1
        self.log = [c for c in self.log if c.always and c.creates not in unused]
        self.log.append(Command(self.number, restore, saved))

    def close(self) -> None:
        """Free the workers."""
        for address in list(self.actors):
            self._lose(address)

    def _attempt(self, command: Command, ids: Iterable[int], results: dict[int, Any]) -> None:
        """Run a command on some shards and add to ``results``; lost shards lose their place."""
        there: dict[str, dict[int, Any]] = defaultdict(dict)
        for i in sorted(ids):
            there[self.places[i]][i] = command.arguments[i]
        run = command.number, command.function
        calls = {address: self._call(address, "run", *run, sent) for address, sent in there.items()}
        for address, call in calls.items():
            answer = self._answer(address, call)
            if answer is None:
                self._lose(address)
            else:
                results.update(answer)

    def _call(self, address: str, method: str, *arguments: Any) -> Any:
        """A pending call, or None if the actor is lost."""
        with self.connection.client.as_current():
            try:
                return getattr(self.actors[address][1], method)(*arguments)
            except (RuntimeError, OSError):
                return None

    def _answer(self, address: str, call: Any) -> dict[int, Any] | None:
        """The answer to a call, or None if its worker was lost."""
        while call is not None:
            try:
                succeeded, answer = call.result(timeout=POLL_SECONDS)
            except TimeoutError:
                if self._alive(address):
                    continue
                return None
            except (RuntimeError, OSError):
                return None
            if succeeded:
                return answer
            if isinstance(answer, MemoryError):
                raise ClusterError(
                    f"A worker has too little memory for its shards: {answer}. Use more workers, "
                    "or more shards, engine=ss.DaskEngine(shards=...)."
                ) from answer
            raise answer
        return None

    def _alive(self, address: str) -> bool:
        future, _ = self.actors[address]
        return address in self.connection.workers() and future.status == "finished"

    def _lose(self, address: str) -> None:
        """Remove a worker and the places of its shards."""
        future, actor = self.actors.pop(address, (None, None))
        # Both refer to the actor; a release does not wait for a scheduler, which may be gone.
        for reference in (future, getattr(actor, "_future", None)):
            if reference is not None:
                reference.release()
        self.places = {i: place for i, place in self.places.items() if place != address}

    def _restore(self, ids: set[int]) -> None:
        """Build the shards ``ids`` that have no place, and replay the log on them."""
        losses = 0
        while missing := ids - self.places.keys():
            if losses > MAX_LOSSES:
                raise workers_died("shards were built")
            losses += 1
            self._build(sorted(missing))
            for command in self.log:
                self._attempt(command, missing & self.places.keys(), {})

    def _build(self, ids: Sequence[int]) -> None:
        """Try to build shards; those of a worker that is lost meanwhile have no place."""
        self._start_actors()
        recipes = self.source.shards(self.connection, ids)
        futures = {i: recipe for i, recipe in recipes.items() if not isinstance(recipe, tuple)}
        for i, address in self._holders(futures).items():
            self.places[i] = address
            recipes[i] = _computed_on_this_worker, (futures[i].key,)
        calls = []
        for i, recipe in recipes.items():
            if i not in futures:
                load = Counter(self.places.values())
                self.places[i] = min(self.actors, key=lambda address: load[address])
            if i in self.places:
                calls.append((self.places[i], self._call(self.places[i], "build", i, *recipe)))
        for address, call in calls:
            if address in self.actors and self._answer(address, call) is None:
                self._lose(address)

    def _holders(self, futures: dict[int, Any]) -> dict[int, str]:
        """The address of a worker with each computed shard, for shards that are not lost since."""
        if not futures:
            return {}
        self.connection.wait(list(futures.values()), "shards were built")
        keys = [future.key for future in futures.values()]
        holders = self.connection.ask_scheduler("who_has", keys=keys)
        self._start_actors()
        first = {i: next(iter(holders.get(f.key) or ()), None) for i, f in futures.items()}
        return {i: address for i, address in first.items() if address in self.actors}

    def _start_actors(self) -> None:
        """Start an actor on each worker; raises if there is no worker for too long."""
        client = self.connection.client
        for workers in self.connection.running_workers():
            for address in [address for address in self.actors if not self._alive(address)]:
                self._lose(address)
            with client.as_current():
                started = {
                    address: client.submit(
                        ShardActor, os.getpid(), actor=True, workers=[address],
                        allow_other_workers=False, pure=False,
                    )
                    for address in workers
                    if address not in self.actors
                }  # fmt: skip
                for address, future in started.items():
                    actor = self._started_actor(address, future)
                    if actor is not None:
                        self.actors[address] = future, actor
            if self.actors:
                return
            time.sleep(POLL_SECONDS)

    def _started_actor(self, address: str, future: Any) -> Any:
        """The actor that starts on a worker, or None if the worker was lost."""
        began, patience = time.monotonic(), self.connection.engine.patience
        while True:
            try:
                return future.result(timeout=POLL_SECONDS)
            except CancelledError as error:
                raise ClusterError(NO_SCHEDULER) from error
            except Exception as error:
                if address not in self.connection.workers():
                    return None
                if not isinstance(error, TimeoutError):
                    raise
                if time.monotonic() - began > patience:
                    raise ClusterError(
                        f"The worker {address} has been busy for {patience:g} seconds with other "
                        "tasks: wait for them, or fit on another cluster."
                    ) from error
