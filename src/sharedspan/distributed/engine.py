"""The connection to a Dask cluster: its workers, waiting for them, and errors when it fails.

``DaskEngine`` is a value of the parameter ``engine``. Every wait for workers ends with workers or
with a ``ClusterError`` that contains a remedy.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

POLL_SECONDS = 0.5  # between two checks that a worker without an answer is still connected
SCHEDULER_SECONDS = 20.0  # within which the scheduler must answer
MAX_LOSSES = 8  # workers lost in a row by the same work before it is given up


class ClusterError(RuntimeError):
    """A cluster cannot do the work; the message contains a remedy."""


@dataclass(frozen=True)
class DaskEngine:
    """A Dask cluster and options for its use, a value of ``engine``.

    Parameters
    ----------
    cluster : Client or str, optional
        A client, or the address of a scheduler; by default the current client.
    shards : int, optional
        Number of parts into which the tasks are divided; by default four per worker. All parts of
        a worker must fit in its memory. A part moves as a whole when a worker is lost.
    checkpoint_every : int, default=50
        Passes over the data between two copies of the task weights to the driver. Lost shards
        repeat at most this many passes.
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
    """A value of the parameter ``engine`` as a ``DaskEngine``; None for "local"."""
    if isinstance(engine, DaskEngine):
        return engine
    if isinstance(engine, str):
        if engine == "local":
            return None
        if engine == "dask":
            return DaskEngine()
        if "://" in engine or engine.rpartition(":")[2].isdigit():
            return DaskEngine(engine)
    elif _is_client(engine):
        return DaskEngine(engine)
    raise ValueError(
        f"engine={engine!r} is unknown: use 'local', 'dask' (the current client), a Dask Client, "
        "the address of a scheduler such as 'tcp://host:8786', or ss.DaskEngine(...)."
    )


def portable(engine: Any) -> Any:
    """The same engine with the address of its scheduler, so that it can be pickled."""
    if isinstance(engine, DaskEngine):
        return replace(engine, cluster=portable(engine.cluster))
    return engine.scheduler.address if _is_client(engine) and engine.scheduler else engine


def without_address(engine: Any) -> Any:
    """The same engine with the current client in place of the address of a scheduler.

    For engines from model files: workers and schedulers run whatever they are sent, and so does a
    client what they return, so an address is used only if the user gives it.
    """
    if isinstance(engine, DaskEngine):
        return engine if engine.cluster is None else replace(engine, cluster=None)
    return engine if engine in ("local", "dask") else "dask"


def _is_client(engine: Any) -> bool:
    """Whether this is a Dask client, without importing Dask."""
    return hasattr(engine, "scheduler_info") and hasattr(engine, "submit")


NO_SCHEDULER = (
    "The scheduler does not answer any more. Start it and its workers again, then fit again; a fit "
    "with checkpoint=PATH can be continued with resume=PATH."
)


def workers_died(when: str) -> ClusterError:
    """The error for workers that die repeatedly."""
    return ClusterError(
        f"Workers died repeatedly while {when}, most likely for lack of memory. Use more workers, "
        "workers with more memory, or more shards, engine=ss.DaskEngine(shards=...)."
    )


@dataclass
class Connection:
    """The client of an engine's cluster."""

    engine: DaskEngine
    client: Any

    def ask_scheduler(self, question: str, **arguments: Any) -> Any:
        """The answer of the scheduler; raises after ``SCHEDULER_SECONDS``."""
        if self.client.status != "running":
            raise ClusterError(NO_SCHEDULER)
        try:
            ask = getattr(self.client.scheduler, question)
            return self.client.sync(ask, **arguments, callback_timeout=SCHEDULER_SECONDS)
        except (OSError, TimeoutError) as error:
            raise ClusterError(NO_SCHEDULER) from error

    def workers(self) -> dict[str, Any]:
        """The workers of the scheduler; none while the client has lost the scheduler."""
        if self.client.status == "connecting":
            return {}
        return self.ask_scheduler("identity", n_workers=-1)["workers"]

    def require_package(self) -> None:
        """Raise if a worker lacks this package."""
        specs = self.client.run(importlib.util.find_spec, "sharedspan", on_error="return")
        lacking = [address for address, spec in specs.items() if spec is None]
        if lacking:
            raise ClusterError(
                f"sharedspan is not installed on the worker {lacking[0]}: install the same version "
                "there, for the same version of Python."
            )

    def running_workers(self) -> Iterator[list[str]]:
        """Yield the workers that accept work now; raises if there was none for too long."""
        since, patience = time.monotonic(), self.engine.patience
        seen: set[str] = set()  # addresses, also of workers lost since
        while True:
            known = self.workers()
            running = [address for address, about in known.items() if about["status"] == "running"]
            seen |= known.keys()
            if len(seen) - len(known) > MAX_LOSSES:
                raise workers_died("the fit waited for them")
            if running:
                since = time.monotonic()
            elif time.monotonic() - since > patience:
                if self.client.status != "running":
                    raise ClusterError(NO_SCHEDULER)
                if known:
                    raise ClusterError(
                        f"All {len(known)} workers have been paused for {patience:g} seconds for "
                        "lack of memory: use more workers, workers with more memory, or more "
                        "shards, engine=ss.DaskEngine(shards=...)."
                    )
                raise ClusterError(
                    f"The cluster has had no worker for {patience:g} seconds: start some with "
                    "'dask worker ADDRESS', then fit again; a fit with checkpoint=PATH can be "
                    "continued with resume=PATH."
                )
            yield running

    def wait(self, futures: Sequence[Any], when: str, *, gather: bool = False) -> Any:
        """Wait until all futures are computed, while there are workers; raises their errors.

        With ``gather`` their results are copied to the driver and returned.
        """
        import distributed

        waiting = self.running_workers()
        try:
            while not all(future.done() for future in futures):
                try:
                    distributed.wait(list(futures), timeout=POLL_SECONDS)
                except TimeoutError:
                    next(waiting)
            failed = [future for future in futures if future.status in ("error", "cancelled")]
            return self.client.gather(list(futures) if gather else failed)
        except CancelledError as error:
            raise ClusterError(NO_SCHEDULER) from error
        except distributed.scheduler.KilledWorker as error:
            raise workers_died(when) from error


_clients: dict[str, Any] = {}  # by the address of their scheduler


def connect_engine(engine: DaskEngine) -> Connection:
    """Connect to an engine's cluster; raises if there is none, and inside a task of a cluster."""
    try:
        import distributed
    except ImportError as error:
        raise ImportError(
            "engine='dask' needs Dask, which is not installed: pip install 'sharedspan[dask]', or "
            "use engine='local'."
        ) from error
    with suppress(ValueError):  # which Dask raises outside of its tasks
        distributed.get_worker()
        raise ClusterError(
            "This fit runs inside a task of a cluster and would wait for its own worker: use "
            "engine='local' in tasks, or fit from outside of the cluster."
        )
    if engine.cluster is None:
        try:
            return Connection(engine, distributed.get_client())
        except ValueError as error:
            raise ClusterError(
                "engine='dask' uses the current client, but there is none: create one first with "
                "dask.distributed.Client(), or give a client or the scheduler's address as engine."
            ) from error
    if not isinstance(engine.cluster, str):
        return Connection(engine, engine.cluster)
    client = _clients.get(engine.cluster)
    if client is None or client.status != "running":
        try:
            client = distributed.Client(
                engine.cluster, timeout=max(engine.patience, 1), set_as_default=False
            )
        except OSError as error:
            raise ClusterError(
                f"There is no scheduler at {engine.cluster}: start one with 'dask scheduler' and "
                "workers with 'dask worker ADDRESS', or correct the address."
            ) from error
        _clients[engine.cluster] = client
    return Connection(engine, client)
