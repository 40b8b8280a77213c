"""Threads over tasks on this machine, with BLAS limited to one thread.

Kernels release the interpreter lock and write to their own range of tasks, so plain threads are
enough. Numba's own parallel loops are not used: their default threading layer ends the process
when two Python threads enter it at once, which a threaded grid search does.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

# Below this many floating-point operations a second thread costs more than it saves.
SERIAL_WORK = 1_000_000
# Large work is cut into pieces of this many operations, so that one slow thread does not delay all.
PIECE = 20_000_000

BLOCK = 1 << 18  # numbers that are reduced together
QR_TASKS = 1 << 14  # whose QR decomposition one thread makes

_chosen: int | None = None


def use_threads(count: int) -> None:
    """Use ``count`` threads from now on, for a worker that shares its machine with others."""
    global _chosen
    _chosen = count


def n_threads() -> int:
    """The number in ``NUMBA_NUM_THREADS`` (joblib workers set it), else of the usable cores."""
    if _chosen is not None:
        return _chosen
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
        Approximate number of floating-point operations, which decides on the use of threads.
    """
    workers = min(n_threads(), n_tasks)
    if workers < 2 or cost < SERIAL_WORK:
        work(0, n_tasks)
        return
    pieces = min(n_tasks, max(workers, int(cost / PIECE)))
    bounds = [n_tasks * i // pieces for i in range(pieces + 1)]
    waiting = deque(range(pieces))  # an idle thread takes the next piece

    def worker() -> None:
        while waiting:
            try:
                i = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            work(bounds[i], bounds[i + 1])

    pool, others = _pool(workers - 1, os.getpid()), []
    try:
        # If there is no memory for another thread, those that there are do the work.
        with suppress(RuntimeError):
            for _ in range(workers - 1):
                others.append(pool.submit(worker))
        worker()
    finally:
        for other in others:
            other.result()


def computed_ahead(
    work: Callable[[int], object], count: int, ahead: int, most: int
) -> Iterator[int]:
    """Yield the numbers below ``count`` in order, each when ``work`` of it is done.

    At most ``most`` threads do the work, of up to ``ahead`` numbers that were not yet yielded. The
    work of i + ahead begins only when the number after i is asked for.
    """
    pool = _pool(min(n_threads(), most), os.getpid())
    waiting = deque(pool.submit(work, i) for i in range(min(ahead, count)))
    try:
        for i in range(count):
            waiting.popleft().result()
            yield i
            if i + ahead < count:
                waiting.append(pool.submit(work, i + ahead))
    finally:
        for other in waiting:
            other.cancel()
        wait(waiting)


def extremes(values: np.ndarray) -> tuple[float, float]:
    """The least and the largest of some numbers (m,); NaN if one of them is NaN."""
    count = max(len(values) // BLOCK, 1)
    bounds = len(values) * np.arange(count + 1) // count
    ends = np.empty((count, 2))

    def work(first: int, last: int) -> None:
        for i in range(first, last):
            part = values[bounds[i] : bounds[i + 1]]
            ends[i] = part.min(), part.max()

    over_tasks(work, count, float(len(values)))
    return float(ends[:, 0].min()), float(ends[:, 1].max())


def tall_product(W: np.ndarray, B: np.ndarray) -> np.ndarray:
    """(BW)' for B (d, k) and W (k, T) with many tasks, (T, d)."""
    T, d = W.shape[1], len(B)
    out = np.empty((T, d))

    def work(first: int, last: int) -> None:
        np.matmul(W[:, first:last].T, B.T, out=out[first:last])

    over_tasks(work, T, 20.0 * T * d)
    return out


def wide_product(A: np.ndarray, W: np.ndarray) -> np.ndarray:
    """AW for A (k', k) and W (k, T) with many tasks, (k', T)."""
    T = W.shape[1]
    out = np.empty((len(A), T))

    def work(first: int, last: int) -> None:
        np.matmul(A, W[:, first:last], out=out[:, first:last])

    over_tasks(work, T, 20.0 * out.size)
    return out


def tall_triangle(W: np.ndarray) -> np.ndarray:
    """L (k, r), lower triangular, with LL' = WW' for W (k, T) with many tasks, by QR."""
    k, T = W.shape
    bounds = np.linspace(0, T, max(T // QR_TASKS, 1) + 1).astype(int)
    parts: list[Any] = [None] * (len(bounds) - 1)

    def work(first: int, last: int) -> None:
        for i in range(first, last):
            # Not by SciPy's LAPACK: it waits forever for memory if there is none.
            parts[i] = np.linalg.qr(W[:, bounds[i] : bounds[i + 1]].T, mode="r")

    over_tasks(work, len(parts), 20.0 * T * k)
    triangle: np.ndarray = np.linalg.qr(np.concatenate(parts), mode="r")  # type: ignore[assignment]
    return triangle.T


@functools.cache
def _blas_controller() -> Any:
    import scipy.linalg  # noqa: F401  (loads SciPy's own BLAS, which compiled kernels call)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


_blas_lock = threading.Lock()
_blas_holders = 0  # the limit is global: the first to enter sets it, the last removes it
_blas_limit: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread: on small matrices more threads cost more than they gain."""
    global _blas_holders, _blas_limit
    with _blas_lock:
        if _blas_holders == 0:
            _blas_limit = _blas_controller().limit(limits=1, user_api="blas")
        _blas_holders += 1
    try:
        yield
    finally:
        with _blas_lock:
            _blas_holders -= 1
            if _blas_holders == 0:
                _blas_limit.restore_original_limits()
