"""Objects that live on the workers of a Dask cluster and outlive the loss of a worker.

A shard is an object on one worker that is told what to do by commands: plain functions of the shard
and of what the driver sends along. Its state follows from how it was built and from the commands
since, so a shard whose worker is lost is built again elsewhere and is given the same commands
again. What it holds in matrices is copied to the driver at times, which makes that list short.

Results come back one per shard, in the order of the shards: sums of them do not depend on which
worker holds what, nor on who was lost.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sharedspan.kernels.threads import one_blas_thread, use_threads

POLL = 0.5  # seconds between two looks whether a worker that does not answer is still there
ANSWER = 20.0  # seconds that the scheduler may take to answer
MOST_LOSSES = 8  # workers that may be lost in a row over the same work, before it is to blame


class ClusterError(RuntimeError):
    """What a cluster cannot do as it is, and how to go on."""


@dataclass(frozen=True)
class DaskEngine:
    """A Dask cluster, and how it is used: a value of ``engine``.

    Parameters
    ----------
    cluster : Client or str, optional
        A client, or the address of a scheduler; by default the current client.
    shards : int, optional
        Into how many parts the tasks are cut; by default four per worker. A part must fit beside
        the others of its worker, and moves as a whole when a worker is lost.
    checkpoint_every : int, default=50
        Passes over the data between two copies of the task weights to the driver. After a loss
        the lost shards repeat at most so many passes.
    patience : float, default=60
        Seconds to wait for a worker when there is none.

    Examples
    --------
    >>> import sharedspan as ss
    >>> ss.DaskEngine("tcp://scheduler:8786", checkpoint_every=20)
    DaskEngine(cluster='tcp://scheduler:8786', shards=None, checkpoint_every=20, patience=60.0)
    """

    cluster: Any = None
    shards: int | None = None
    checkpoint_every: int = 50
    patience: float = 60.0

    def __post_init__(self) -> None:
        for name, least in (("shards", 1), ("checkpoint_every", 1), ("patience", 0)):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (name == "shards" and value is None) and not (number and value >= least):
                raise ValueError(f"{name}={value!r} must be a number of at least {least}.")


def as_engine(engine: Any) -> DaskEngine | None:
    """What ``engine`` means: None is this machine."""
    if isinstance(engine, DaskEngine):
        return engine
    if isinstance(engine, str):
        if engine == "local":
            return None
        if engine == "dask":
            return DaskEngine()
        if "://" in engine or engine.rpartition(":")[2].isdigit():
            return DaskEngine(engine)
    elif hasattr(engine, "scheduler_info") and hasattr(engine, "submit"):
        return DaskEngine(engine)
    raise ValueError(
        f"engine={engine!r} is unknown: use 'local', 'dask' (the current client), a Dask Client, "
        "the address of a scheduler such as 'tcp://host:8786', or ss.DaskEngine(...)."
    )


def portable(engine: Any) -> Any:
    """The same engine with its scheduler by address, so that it can be pickled."""
    if isinstance(engine, DaskEngine):
        return replace(engine, cluster=portable(engine.cluster))
    known = hasattr(engine, "scheduler_info") and hasattr(engine, "scheduler")
    return engine.scheduler.address if known and engine.scheduler else engine


_clients: dict[str, Any] = {}  # of schedulers known by their address


def connect(engine: DaskEngine) -> Any:
    """The client of an engine."""
    try:
        import distributed
    except ImportError as error:
        raise ImportError(
            "engine='dask' needs Dask, which is not installed: pip install 'sharedspan[dask]', or "
            "use engine='local'."
        ) from error
    if _inside_a_task(distributed):
        raise ClusterError(
            "This fit runs inside a task of a cluster, whose worker it would wait for: use "
            "engine='local' here, or fit from outside of the cluster."
        )
    if engine.cluster is None:
        try:
            return distributed.get_client()
        except ValueError as error:
            raise ClusterError(
                "engine='dask' uses the current client, and there is none: make one first with "
                "dask.distributed.Client(), or give a client or the scheduler's address as engine."
            ) from error
    if not isinstance(engine.cluster, str):
        return engine.cluster
    client = _clients.get(engine.cluster)
    if client is not None and client.status == "running":
        return client
    try:
        client = distributed.Client(
            engine.cluster, timeout=max(engine.patience, 1), set_as_default=False
        )
        return _clients.setdefault(engine.cluster, client)
    except OSError as error:
        raise ClusterError(
            f"There is no scheduler at {engine.cluster}: start one with 'dask scheduler' and "
            "workers with 'dask worker ADDRESS', or correct the address."
        ) from error


def out_of_memory(when: str) -> ClusterError:
    """The error for workers that die again and again."""
    return ClusterError(
        f"Workers died again and again while {when}, most likely for want of memory. Use more "
        "workers, workers with more memory, or more shards (engine=ss.DaskEngine(shards=...))."
    )


def _inside_a_task(distributed: Any) -> bool:
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True


def require_package(client: Any) -> None:
    """Raise where a worker lacks this package."""
    found = client.run(importlib.util.find_spec, "sharedspan", on_error="return")
    lacking = [address for address, spec in found.items() if spec is None]
    if lacking:
        raise ClusterError(
            f"The worker {lacking[0]} has no sharedspan: install it there, in the same version and "
            "with the same Python."
        )


NO_SCHEDULER = (
    "The scheduler does not answer any more. Start it and its workers again, then fit again; with "
    "checkpoint=PATH the fit goes on from there with resume=PATH."
)


def workers_of(client: Any) -> dict[str, Any]:
    """The workers that the scheduler knows; none while the client has lost the scheduler."""
    if client.status == "connecting":
        return {}
    return _asked(client, "identity", n_workers=-1)["workers"]


def _asked(client: Any, question: str, **arguments: Any) -> Any:
    """The scheduler's answer, in time."""
    if client.status != "running":
        raise ClusterError(NO_SCHEDULER)
    try:
        ask = getattr(client.scheduler, question)
        return client.sync(ask, **arguments, callback_timeout=ANSWER)
    except (OSError, TimeoutError) as error:
        raise ClusterError(NO_SCHEDULER) from error


class Patience:
    """A wait for workers that comes to an end."""

    def __init__(self, engine: DaskEngine, client: Any) -> None:
        self.client, self.seconds = client, engine.patience
        self.since = time.monotonic()
        self.seen: set[str] = set()  # and lost since

    def workers(self) -> list[str]:
        """The workers that take work; raises where there has been none for too long."""
        known = workers_of(self.client)
        workers = [address for address, about in known.items() if about["status"] == "running"]
        self.seen |= known.keys()
        if len(self.seen) - len(known) > MOST_LOSSES:
            raise out_of_memory("they were waited for")
        if workers:
            self.since = time.monotonic()
        elif time.monotonic() - self.since > self.seconds:
            if self.client.status != "running":
                raise ClusterError(NO_SCHEDULER)
            if known:
                raise ClusterError(
                    f"All {len(known)} workers have been paused for {self.seconds:g} seconds for "
                    "want of memory: use more workers, workers with more memory, or more shards "
                    "(engine=ss.DaskEngine(shards=...))."
                )
            raise ClusterError(
                f"The cluster has no worker, after {self.seconds:g} seconds: start some with "
                "'dask worker ADDRESS', then fit again; with checkpoint=PATH the fit goes on from "
                "there with resume=PATH."
            )
        return workers


def results(engine: DaskEngine, client: Any, futures: Sequence[Any], when: str) -> list[Any]:
    """Results of futures, while there are workers to compute them."""
    from distributed.scheduler import KilledWorker

    wait_for(engine, client, futures)
    try:
        return client.gather(list(futures))
    except CancelledError as error:
        raise ClusterError(NO_SCHEDULER) from error
    except KilledWorker as error:
        raise out_of_memory(when) from error


def wait_for(engine: DaskEngine, client: Any, futures: Sequence[Any]) -> None:
    """Wait until all futures have ended somehow, while there are workers."""
    from distributed import wait

    patience = Patience(engine, client)
    while True:
        try:
            wait(list(futures), timeout=POLL)
            return
        except TimeoutError:
            patience.workers()
        except CancelledError as error:
            raise ClusterError(NO_SCHEDULER) from error


class Source(Protocol):
    """Where shards come from, at the start and after a loss."""

    def shards(self, client: Any, ids: Sequence[int]) -> dict[int, Any]:
        """For each shard a future that the cluster computes, or a function and its arguments.

        The function is called on the worker that is to hold the shard.
        """


class Host:
    """The actor on a worker that holds its shards."""

    def __init__(self, driver: int) -> None:
        from distributed import get_worker

        if os.getpid() != driver:  # a worker in the driver's own process shares its threads
            use_threads(get_worker().state.nthreads)
        self.shards: dict[int, Any] = {}
        self.done: dict[int, tuple[int, Any]] = {}

    def build(self, i: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Take in a shard that the driver sends."""
        return self._answer(lambda: self._hold(i, function(*arguments)))

    def adopt(self, i: int, key: str) -> Any:
        """Take in a shard that this worker has computed."""
        from distributed import get_worker

        return self._answer(lambda: self._hold(i, get_worker().data[key]))

    def _hold(self, i: int, shard: Any) -> None:
        self.shards[i] = shard
        self.done.pop(i, None)

    def run(
        self, number: int, function: Callable[..., Any], sent: dict[int, tuple[Any, ...]]
    ) -> Any:
        """Command ``number`` on some shards; one that was done already is not done again."""

        def work() -> dict[int, Any]:
            with one_blas_thread():
                for i, arguments in sent.items():
                    if self.done.get(i, (-1, None))[0] != number:
                        self.done[i] = number, function(self.shards[i], *arguments)
            return {i: self.done[i][1] for i in sent}

        return self._answer(work)

    @staticmethod
    def _answer(work: Callable[[], Any]) -> tuple[bool, Any]:
        """Errors of a command travel as results: what is raised in a call is a loss."""
        try:
            return True, work()
        except Exception as error:
            return False, error


@dataclass
class Command:
    """A function of a shard and its arguments; kept until a checkpoint makes it unnecessary."""

    number: int
    function: Callable[..., Any]
    shared: tuple[Any, ...]
    each: Sequence[tuple[Any, ...]] | None
    lasting: bool
    makes: int | None = None

    def arguments(self, i: int) -> tuple[Any, ...]:
        return self.shared if self.each is None else (*self.shared, *self.each[i])


@dataclass
class Shards:
    """Shards on the workers of a cluster; see the head of this file.

    Parameters
    ----------
    engine : DaskEngine
    client : Client
    source : Source
    count : int
    """

    engine: DaskEngine
    client: Any
    source: Source
    count: int
    hosts: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # address -> future, actor
    place: dict[int, str] = field(default_factory=dict)  # shard -> address
    log: list[Command] = field(default_factory=list)
    number: int = 0

    def start(self) -> None:
        """Build all shards."""
        self._settle(range(self.count))

    def run(
        self,
        function: Callable[..., Any],
        *shared: Any,
        each: Sequence[tuple[Any, ...]] | None = None,
        changes: bool = False,
        lasting: bool = False,
        makes: int | None = None,
    ) -> list[Any]:
        """The results of ``function(shard, *shared, *each[i])``, by shard.

        Parameters
        ----------
        function : callable
            Known to the workers by its name.
        *shared
            Sent to all shards.
        each : sequence of tuple, optional
            Sent to one shard each.
        changes : bool
            Whether it changes the shard, so that a shard built again needs it too.
        lasting : bool
            The same, where a checkpoint does not hold what it changes.
        makes : int, optional
            The number of what it makes, which may be out of use one day.
        """
        self.number += 1
        command = Command(self.number, function, shared, each, lasting, makes)
        results = self._finish(command, range(self.count))
        if changes or lasting:
            self.log.append(command)
        return [results[i] for i in range(self.count)]

    def checkpoint(
        self, save: Callable[..., Any], restore: Callable[..., Any], unused: set[int]
    ) -> None:
        """Keep what ``save(shard)`` returns: commands before this are not repeated any more.

        ``restore(shard, saved)`` puts it back. Commands that last are repeated all the same, but
        for those that made what is ``unused`` by now.
        """
        saved = self.run(save)
        self.log = [c for c in self.log if c.lasting and c.makes not in unused]
        self.number += 1
        again = Command(self.number, restore, (), [(part,) for part in saved], lasting=False)
        self.log.append(again)

    def close(self) -> None:
        """Let the workers go."""
        for address in list(self.hosts):
            self._lose(address)

    def _finish(self, command: Command, ids: Iterable[int]) -> dict[int, Any]:
        """The results of a command on some shards, whoever is lost on the way."""
        results: dict[int, Any] = {}
        waiting, losses = set(ids), 0
        while waiting:
            lost = self._attempt(command, waiting, results)
            waiting -= results.keys()
            if not lost:
                continue
            losses += 1
            if losses > MOST_LOSSES:
                raise out_of_memory(f"they worked on {len(lost)} of the {self.count} shards")
            self._settle(lost)
        return results

    def _attempt(self, command: Command, ids: set[int], results: dict[int, Any]) -> set[int]:
        """Give a command to those who hold the shards; which of these were lost."""
        calls, lost = {}, {i for i in ids if i not in self.place}
        for address in dict.fromkeys(self.place[i] for i in sorted(ids - lost)):
            sent = {i: command.arguments(i) for i in sorted(ids - lost) if self.place[i] == address}
            calls[address] = self._call(address, "run", command.number, command.function, sent)
        for address, call in calls.items():
            answer = self._answer(address, call)
            if answer is None:
                lost |= self._lose(address)
            else:
                results.update(answer)
        return lost & ids

    def _call(self, address: str, method: str, *arguments: Any) -> Any:
        """A call under way, or None where the actor is known to be lost."""
        with self.client.as_current():
            try:
                return getattr(self.hosts[address][1], method)(*arguments)
            except (RuntimeError, OSError):
                return None

    def _answer(self, address: str, call: Any) -> Any:
        """The answer to a call, None if its worker was lost."""
        if call is None:
            return None
        while True:
            try:
                fine, answer = call.result(timeout=POLL)
            except TimeoutError:
                if self._alive(address):
                    continue
                return None
            except (RuntimeError, OSError):
                return None
            if fine:
                return {} if answer is None else answer
            if isinstance(answer, MemoryError):
                raise ClusterError(
                    f"A worker has too little memory for its shards: {answer}. Use more workers, "
                    "or more shards (engine=ss.DaskEngine(shards=...))."
                ) from answer
            raise answer

    def _alive(self, address: str) -> bool:
        known = workers_of(self.client)
        return address in known and self.hosts[address][0].status == "finished"

    def _lose(self, address: str) -> set[int]:
        """Forget a worker, and say which shards went with it."""
        future, actor = self.hosts.pop(address, (None, None))
        # Both hold on to the actor; neither waits for a scheduler that may be gone.
        for held in (future, getattr(actor, "_future", None)):
            if held is not None:
                held.release()
        gone = {i for i, place in self.place.items() if place == address}
        for i in gone:
            del self.place[i]
        return gone

    def _settle(self, ids: Iterable[int]) -> None:
        """Build shards on the workers there are and repeat to them what has been done."""
        waiting, losses = set(ids), 0
        while waiting:
            if losses > MOST_LOSSES:
                raise out_of_memory("shards were built")
            losses += 1
            self._build(sorted(waiting))
            built = {i for i in waiting if i in self.place}
            for command in self.log:
                built -= self._attempt(command, built, {})
            waiting -= built

    def _build(self, ids: Sequence[int]) -> None:
        """One attempt to build shards; what a lost worker was to hold is missing afterwards."""
        self._find_hosts()
        made = self.source.shards(self.client, ids)
        futures = {i: shard for i, shard in made.items() if not isinstance(shard, tuple)}
        computed = self._computed(futures) if futures else {}
        calls = []
        for i, shard in made.items():
            if i in computed:
                self.place[i] = computed[i]
                calls.append((computed[i], self._call(computed[i], "adopt", i, shard.key)))
            elif i not in futures:
                held = Counter(self.place.values())
                self.place[i] = address = min(self.hosts, key=lambda host: held[host])
                calls.append((address, self._call(address, "build", i, *shard)))
        for address, call in calls:
            if address in self.hosts and self._answer(address, call) is None:
                self._lose(address)

    def _computed(self, futures: dict[int, Any]) -> dict[int, str]:
        """Where the cluster has computed the shards; those lost right after are left out."""
        from distributed.scheduler import KilledWorker

        wait_for(self.engine, self.client, list(futures.values()))
        for future in futures.values():
            if future.status in ("cancelled", "lost"):
                raise ClusterError(NO_SCHEDULER)
            if future.status == "error":
                error = future.exception()
                if isinstance(error, KilledWorker):
                    raise out_of_memory("shards were built") from error
                raise error
        keys = [future.key for future in futures.values()]
        holders = _asked(self.client, "who_has", keys=keys)
        self._find_hosts()
        found = {i: holders.get(future.key) or () for i, future in futures.items()}
        return {i: places[0] for i, places in found.items() if places and places[0] in self.hosts}

    def _actor(self, address: str, future: Any) -> Any:
        """The actor that a worker was asked for, None if the worker is gone."""
        began = time.monotonic()
        while True:
            try:
                return future.result(timeout=POLL)
            except TimeoutError as error:
                if address not in workers_of(self.client):
                    return None
                if time.monotonic() - began > self.engine.patience:
                    raise ClusterError(
                        f"The worker {address} has been busy for {self.engine.patience:g} seconds "
                        "with other tasks: wait for them, or fit on another cluster."
                    ) from error
            except CancelledError as error:
                raise ClusterError(NO_SCHEDULER) from error
            except Exception:
                if address in workers_of(self.client):
                    raise
                return None  # lost while it was made

    def _find_hosts(self) -> None:
        """An actor on each worker; raises where there is no worker for too long."""
        patience = Patience(self.engine, self.client)
        while True:
            workers = patience.workers()
            for address in [address for address in self.hosts if not self._alive(address)]:
                self._lose(address)
            with self.client.as_current():
                made = {
                    address: self.client.submit(
                        Host, os.getpid(), actor=True, workers=[address],
                        allow_other_workers=False, pure=False,
                    )
                    for address in workers
                    if address not in self.hosts
                }  # fmt: skip
                for address, future in made.items():
                    actor = self._actor(address, future)
                    if actor is not None:
                        self.hosts[address] = future, actor
            if self.hosts:
                return
            time.sleep(POLL)
