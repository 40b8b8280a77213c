"""Soak.

Many chunks of rows are added to one model, and many fits are run in one process. Memory is the
resident set of the process after a garbage collection; the size of the statistics is known from
their shapes. A model that got its rows in chunks is compared with one that got them all at once.
All other fits are compared with the same fit at the beginning of the process, when nothing else ran
at the same time.
"""

import gc
import multiprocessing
import random
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import psutil

import sharedspan as ss
from benchmarks.trust.page import Line

FITS = {
    "PooledRegressor": {},
    "PerTaskRegressor": {},
    "SharedSpanRegressor": {"rank": 2, "random_state": 0},
    "AdaptiveSpanRegressor": {},
    "SpectralRegressor": {"rank": 2},
    "MomentRegressor": {"rank": 2},
    "ARMULRegressor": {"rank": 2, "random_state": 0},
    "PenalizedERMRegressor": {"rank": 2, "random_state": 0},
}


def resident():
    """Bytes that this process holds in memory, after a collection of garbage."""
    gc.collect()
    return psutil.Process().memory_info().rss


def open_things():
    """The numbers of open files and threads of this process."""
    process = psutil.Process()
    return process.num_fds(), process.num_threads()


def fitted(name, seed):
    """The coefficients of one estimator for one of four data sets."""
    sizes = ((12, 4, 20), (30, 6, 15), (8, 10, 40), (20, 3, 9))
    n_tasks, d, n = sizes[seed % 4]
    sim = ss.simulate(
        n_tasks=n_tasks, n_features=d, rank=2, n_samples=n, noise=0.3, intercept=1.0,
        random_state=seed % 4,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence; the tests of each solver are about it
        model = getattr(ss, name)(**FITS[name]).fit(sim.X, sim.y, task=sim.task)
    model.predict(sim.X, task=sim.task)
    return model.coef_


def chunks(cases, seed):
    """Chunks of rows, of which each is followed by a fit of all statistics so far."""
    n_chunks, n_refits = max(round(10_000 * cases), 40), max(round(200 * cases), 12)
    rng = np.random.default_rng(seed)
    lines = []
    n_tasks, d = 40, 6
    coef = rng.standard_normal((n_tasks, 2)) @ rng.standard_normal((2, d))

    def rows(n, first):  # in turn, as weights of fewer rows than rank + 1 are not unique
        X, task = rng.standard_normal((n, d)), (first + np.arange(n)) % n_tasks
        return X, np.einsum("ij,ij->i", X, coef[task]) + 0.1 * rng.standard_normal(n), task

    for model, count, what in (
        (ss.PooledRegressor(), n_chunks, "chunks"),
        (ss.SharedSpanRegressor(rank=2, random_state=0), n_refits, "refits"),
        (ss.AdaptiveSpanRegressor(), n_refits, "refits"),
    ):
        parts, begin, files = [], 0, (0, 0)
        for i in range(count):
            part = rows(30, 30 * i)
            parts.append(part)
            model.partial_fit(*part)
            if i == count // 4:  # by now buffers have reached their size
                begin, files = resident(), open_things()
        kept = sum(array.nbytes for part in parts[count // 4 + 1 :] for array in part)
        growth = resident() - begin - kept  # the rows are kept for the comparison only
        X, y, task = (np.concatenate(each) for each in zip(*parts, strict=True))
        whole = type(model)(**model.get_params()).partial_fit(X, y, task=task)
        difference = float(np.abs(whole.coef_ - model.coef_).max())
        statistics = n_tasks * d * (d + 7) // 2 * 8
        name, now = type(model).__name__, open_things()
        lines += [
            Line(
                f"{name}: `partial_fit` of many chunks keeps no rows and no open files",
                f"{count:,} {what} of 30 rows: {growth / 2**20:+.1f} MiB after the first quarter "
                f"(the statistics take {statistics / 2**20:.2f} MiB); {files[0]} open files, then "
                f"{now[0]}",
                growth < 16 * 2**20 and now[0] <= files[0] + 2,
            ),
            Line(
                f"{name}: the coefficients after many chunks are those of one chunk",
                f"largest difference {difference:.1e}",
                difference < 1e-4,
            ),
        ]
    return lines


def _in_process(jobs):
    return [fitted(*job) for job in jobs]


def mixed(cases, seed):
    """Fits one by one, in threads and in processes, all in the same parent process."""
    rng = random.Random(seed)
    total = max(round(1000 * cases), 2 * 8)
    expected = {(name, kind): fitted(name, kind) for name in FITS for kind in range(4)}
    jobs = [(rng.choice(list(FITS)), rng.randrange(4)) for _ in range(total)]
    largest, changed, counts = 0.0, 0, {"one by one": 0, "threads": 0, "processes": 0}
    begin = files = None
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as processes:
        for number, at in enumerate(range(0, total, 20)):
            batch = jobs[at : at + 20]
            how = ("one by one", "threads", "processes")[number % 3]
            if how == "threads":
                with ThreadPoolExecutor(4) as pool:
                    found = list(pool.map(lambda job: fitted(*job), batch))
            elif how == "processes":
                halves = list(processes.map(_in_process, (batch[::2], batch[1::2])))
                found = [halves[i % 2][i // 2] for i in range(len(batch))]
            else:
                found = [fitted(*job) for job in batch]
            counts[how] += len(batch)
            for job, coef in zip(batch, found, strict=True):
                difference = float(np.abs(coef - expected[job]).max())
                largest, changed = max(largest, difference), changed + (difference > 0)
            if number == max(total // 60, 2):
                begin, files = resident(), open_things()
        growth = 0 if begin is None else resident() - begin
        now = open_things()
        files = files or now
    words = ", ".join(f"{count} {how}" for how, count in counts.items())
    return [
        Line(
            "Fits of eight estimators one by one, in threads and in processes are the same",
            f"{total:,} fits ({words}): {changed} differ, largest difference {largest:.1e}",
            largest < 1e-9,
        ),
        Line(
            "These fits leave no memory, open files or threads behind",
            f"{growth / 2**20:+.1f} MiB after the first third; {files[0]} open files, then "
            f"{now[0]}; {files[1]} threads, then {now[1]}",
            growth < 24 * 2**20 and now[0] <= files[0] + 4 and now[1] <= files[1] + 4,
        ),
    ]


def forks(cases, seed):
    """Processes that fork while threads of the package exist, as a grid search may do."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return [Line("Fits in forked processes are the same", "not tried: no fork here")]
    n = max(round(20 * cases), 2)
    names = ("SharedSpanRegressor", "AdaptiveSpanRegressor")
    jobs = [(names[i % 2], i % 4) for i in range(n)]
    expected = [fitted(*job) for job in jobs]
    with warnings.catch_warnings():
        # Python 3.12 and later warn that a fork with threads may end in a deadlock.
        warnings.simplefilter("ignore", DeprecationWarning)
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
            found = list(pool.map(fitted, *zip(*jobs, strict=True), timeout=600))
    pairs = zip(found, expected, strict=True)
    largest = max(float(np.abs(a - b).max()) for a, b in pairs)
    return [
        Line(
            "Fits in forked processes are the same",
            f"{n} fits, with {threading.active_count()} threads in the parent process: largest "
            f"difference {largest:.1e}",
            largest < 1e-9,
        )
    ]


def run(cases, seed):
    """All of it."""
    lines = []
    for part in (chunks, mixed, forks):
        lines += part(cases, seed)
        print(f"   {part.__name__}: {lines[-1].figure}", flush=True)
    return lines
