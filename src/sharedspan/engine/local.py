"""Work on this machine: a few threads over tasks, BLAS held to one thread each.

Kernels release the interpreter lock and write to their own range of tasks, so plain threads are
enough. Numba's own parallel loops are not used: their default threading layer ends the process
when two Python threads enter it at once, which a threaded grid search does.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

# Below this many floating-point operations a second thread costs more than it saves.
SERIAL_WORK = 200_000


def n_threads() -> int:
    """Threads to use: ``NUMBA_NUM_THREADS`` (joblib workers set it), else the cores we may use."""
    configured = os.environ.get("NUMBA_NUM_THREADS", "")
    if configured.isdigit() and int(configured) > 0:
        return int(configured)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.lru_cache(maxsize=4)
def _pool(workers: int, process_id: int) -> ThreadPoolExecutor:
    # The process id is part of the key: threads do not survive a fork.
    return ThreadPoolExecutor(workers, thread_name_prefix="sharedspan")


def over_tasks(work: Callable[[int, int], object], n_tasks: int, cost: float) -> None:
    """Call ``work(first, last)`` over contiguous ranges that cover all tasks.

    Each task is handled whole by one thread, so results do not depend on the number of threads.

    Parameters
    ----------
    work : callable of (first, last)
        Handles the tasks ``first <= t < last`` and releases the interpreter lock.
    n_tasks : int
    cost : float
        Rough number of floating-point operations in all, to decide whether threads pay.
    """
    workers = min(n_threads(), n_tasks)
    if workers < 2 or cost < SERIAL_WORK:
        work(0, n_tasks)
        return
    bounds = [n_tasks * i // workers for i in range(workers + 1)]
    pool = _pool(workers - 1, os.getpid())
    others = [pool.submit(work, bounds[i], bounds[i + 1]) for i in range(1, workers)]
    try:
        work(bounds[0], bounds[1])
    finally:
        for other in others:
            other.result()


@functools.cache
def _blas_controller() -> object:
    import scipy.linalg  # noqa: F401  (loads SciPy's own BLAS, which compiled kernels call)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[object]:
    """Hold BLAS to one thread: on small matrices its threads cost more than they do."""
    return _blas_controller().limit(limits=1, user_api="blas")  # type: ignore[attr-defined]
