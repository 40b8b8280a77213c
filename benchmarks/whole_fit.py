"""A whole fit against the bare product that forms all Grams, in one interleaved run.

    python benchmarks/whole_fit.py ratios [--quick]      given rank, shuffled rows, rank="auto"
    python benchmarks/whole_fit.py stages                each stage's share of a fit
    python benchmarks/whole_fit.py memory                peak memory against input and statistics
    python benchmarks/whole_fit.py cores [--most 16]     from one core to all of them
    python benchmarks/whole_fit.py gpu                   whole fits against a pinned copy of rows
    python benchmarks/whole_fit.py predict               predictions against a gather in NumPy
    python benchmarks/whole_fit.py figure FILE.png       cores and stages, from what `--save` wrote

The yardstick is np.matmul over all tasks, with BLAS on one thread and the tasks split over all
cores. Times are medians of five, each method in turn, and CPU seconds are given beside them because
other processes on the machine change wall-clock times. `--save FILE.json` keeps the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import sharedspan as ss

SIZES = [(50_000, 60, 30), (2_000, 500, 100), (500_000, 20, 8)]  # tasks, rows, features
RANK = 3
REPEATS = 5


def make_rows(T: int, n: int, d: int, dtype: Any = float) -> tuple[np.ndarray, ...]:
    """X (T n, d), y (T n,) and labels of tasks in a span of rank three, in blocks of tasks."""
    rng = np.random.default_rng(0)
    B = np.linalg.qr(rng.standard_normal((d, RANK)))[0]
    V = (rng.standard_normal((T, RANK)) @ B.T).astype(dtype)
    X, y = np.empty((T, n, d), dtype), np.empty((T, n), dtype)
    for lo in range(0, T, 10_000):
        part = slice(lo, lo + 10_000)
        X[part] = rng.standard_normal(X[part].shape, dtype=dtype)
        noise = rng.standard_normal(y[part].shape, dtype=dtype)
        y[part] = np.einsum("tnd,td->tn", X[part], V[part]) + noise
    return X.reshape(-1, d), y.ravel(), np.repeat(np.arange(T), n)


def cores() -> int:
    return len(os.sched_getaffinity(0))


def bare_product(X: np.ndarray, n: int) -> np.ndarray:
    """All Grams, (T, d, d)."""
    X = X.reshape(-1, n, X.shape[1])
    T, workers = len(X), cores()
    out = np.empty((T, X.shape[2], X.shape[2]), X.dtype)

    def work(i: int) -> None:
        part = slice(T * i // workers, T * (i + 1) // workers)
        np.matmul(X[part].transpose(0, 2, 1), X[part], out=out[part])

    with threadpool_limits(1), ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    return out


def model(**options: Any) -> ss.SharedSpanRegressor:
    return ss.SharedSpanRegressor(**{"rank": RANK, "random_state": 0, "backend": "numpy"} | options)


def interleaved(methods: dict[str, Callable[[], Any]], repeats: int = REPEATS) -> dict[str, Any]:
    """Median seconds and CPU seconds of each method, after one round that is not counted."""
    wall: dict[str, list[float]] = {name: [] for name in methods}
    busy: dict[str, list[float]] = {name: [] for name in methods}
    for turn in range(repeats + 1):
        for name, method in methods.items():
            start, cpu = time.perf_counter(), time.process_time()
            result = method()
            if turn:
                wall[name].append(time.perf_counter() - start)
                busy[name].append(time.process_time() - cpu)
            del result
    return {
        name: {"seconds": float(np.median(wall[name])), "cpu": float(np.median(busy[name]))}
        for name in methods
    }


def show(title: str, times: dict[str, Any], over: str) -> None:
    print(title)
    base = times[over]
    for name, t in times.items():
        print(
            f"  {name:28s} {t['seconds']:8.3f} s {t['seconds'] / base['seconds']:6.2f} x"
            f"   CPU {t['cpu']:8.3f} s {t['cpu'] / base['cpu']:6.2f} x",
            flush=True,
        )


def ratios(quick: bool) -> dict[str, Any]:
    """Fits against the bare product, for each size."""
    return {f"{T} {n} {d}": fits_over_bare(T // 10 if quick else T, n, d) for T, n, d in SIZES}


def fits_over_bare(T: int, n: int, d: int) -> dict[str, Any]:
    X, y, task = make_rows(T, n, d)
    order = np.random.default_rng(1).permutation(len(X))
    mixed = X[order], y[order], task[order]
    times = interleaved({
        "bare Gram product": lambda: bare_product(X, n),
        "fit, rank given": lambda: model().fit(X, y, task=task),
        "fit, shuffled rows": lambda: model().fit(mixed[0], mixed[1], task=mixed[2]),
        "fit, rank='auto'": lambda: model(rank="auto").fit(X, y, task=task),
    })  # fmt: skip
    show(f"{T:,} tasks x {n} rows x {d} features", times, "bare Gram product")
    return times


def stages() -> dict[str, Any]:
    """Seconds in each stage of a fit, by wrapping the functions of the straight line."""
    from sharedspan.estimators import fitting, shared_span
    from sharedspan.statistics import task_statistics

    spent: dict[str, float] = {}

    def timed(module: Any, name: str, stage: str) -> None:
        inner = getattr(module, name)

        def wrapper(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return inner(*args, **options)
            finally:
                spent[stage] = spent.get(stage, 0.0) + time.perf_counter() - start

        setattr(module, name, wrapper)

    timed(fitting, "open_rows", "validation and labels")
    timed(task_statistics.GramStatistics, "update", "rows to sums")
    timed(task_statistics, "has_safe_values", "check of the values")
    timed(fitting, "canonical", "whitening")
    timed(fitting, "feature_covariance", "feature covariance")
    timed(shared_span, "run", "solver")
    timed(fitting, "store", "fitted attributes")
    saved = {}
    for T, n, d in SIZES:
        X, y, task = make_rows(T, n, d)
        model().fit(X, y, task=task)
        spent.clear()
        start = time.perf_counter()
        for _ in range(REPEATS):
            model().fit(X, y, task=task)
        total = time.perf_counter() - start
        shares = {stage: seconds / total for stage, seconds in spent.items()}
        shares["the rest"] = 1 - sum(shares.values())
        print(f"{T:,} tasks x {n} rows x {d} features: {total / REPEATS:.3f} s")
        for stage, share in shares.items():
            print(f"  {stage:24s} {100 * share:5.1f} %", flush=True)
        saved[f"{T} {n} {d}"] = shares
    return saved


PEAK = """
import resource, sys, threading, time
sys.path.insert(0, "benchmarks")
from whole_fit import make_rows, model
T, n, d = map(int, sys.argv[1:4])
make = dict(rank="auto") if sys.argv[4] == "auto" else {}
small = make_rows(50, n, d)
model(**make).fit(small[0], small[1], task=small[2])
X, y, task = make_rows(T, n, d)
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
before, peak, done = resident(), 0, False
def watch():
    global peak
    while not done:
        peak = max(peak, resident())
        time.sleep(0.002)
thread = threading.Thread(target=watch)
thread.start()
model(**make).fit(X, y, task=task)
done = True
thread.join()
rows = X.nbytes + y.nbytes + task.nbytes
sums = 8 * T * (d * (d + 1) / 2 + 3 * d + 3)
print((rows + peak - before) / (rows + sums))
"""


def memory() -> dict[str, Any]:
    """Peak memory over input plus statistics, in fresh processes."""
    saved = {}
    for T, n, d in SIZES:
        for rank in ("given", "auto"):
            command = [sys.executable, "-c", PEAK, str(T), str(n), str(d), rank]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            saved[f"{T} {n} {d} {rank}"] = float(done.stdout)
            print(
                f"{T:,} x {n} x {d}, rank {rank}: peak {float(done.stdout):.2f} of input plus "
                "statistics", flush=True,
            )  # fmt: skip
    return saved


def on_cores(most: int) -> dict[str, Any]:
    """The fit and the bare product on 1, 2, 4, ... cores, each in a process of its own."""
    saved = {}
    count = 1
    while count <= most:
        where = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:count])
        command = ["taskset", "-c", where, sys.executable, __file__, "one", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        saved[str(count)] = json.loads(done.stdout.splitlines()[-1])
        bare, fit = (saved[str(count)][name]["seconds"] for name in ("bare", "fit"))
        print(f"{count:3d} cores: bare {bare:.3f} s, fit {fit:.3f} s, ratio {fit / bare:.2f}")
        count *= 2
    for few, many in (("1", str(count // 2)), ("2", str(count // 2))):
        if few in saved:
            gain = {k: saved[few][k]["seconds"] / saved[many][k]["seconds"] for k in saved[few]}
            print(
                f"{many} cores over {few}: the bare product gains {gain['bare']:.2f}, the fit "
                f"{gain['fit']:.2f}, {gain['fit'] / gain['bare']:.2f} of it", flush=True,
            )  # fmt: skip
    return saved


def one(T: int = 200_000) -> dict[str, Any]:
    X, y, task = make_rows(T, 60, 30)
    return interleaved(
        {"bare": lambda: bare_product(X, 60), "fit": lambda: model().fit(X, y, task=task)}, 3
    )


def on_gpu() -> dict[str, Any]:
    """Whole fits of float32 rows against a bare copy of pinned rows to the card."""
    return {str(T): fits_over_copy(T) for T in (200_000, 1_000_000)}


def fits_over_copy(T: int) -> dict[str, Any]:
    import torch

    X, y, task = make_rows(T, 60, 30, np.float32)
    pinned = torch.empty(X.shape, dtype=torch.float32, pin_memory=True)
    pinned.numpy()[...] = X

    def copy() -> None:
        pinned.to("cuda", non_blocking=True)
        torch.cuda.synchronize()

    def fit(**options: Any) -> Any:
        fitted = model(backend="auto", **options).fit(X, y, task=task)
        torch.cuda.synchronize()
        return fitted

    times = interleaved({
        "pinned copy": copy,
        "fit": fit,
        "fit, dtype='float32'": lambda: fit(dtype="float32"),
        "fit, rank='auto'": lambda: fit(rank="auto"),
    })  # fmt: skip
    show(f"{T:,} tasks x 60 rows x 30 features, float32", times, "pinned copy")
    if T <= 200_000:
        there, here = fit(), model().fit(X, y, task=task)
        error = np.abs(there.coef_ - here.coef_).max() / np.abs(here.coef_).max()
        print(f"  coefficients on the GPU and on the CPU differ by {error:.1e}", flush=True)
    return times


def predictions() -> dict[str, Any]:
    """Predictions of a million rows against NumPy's gather, multiply and add."""
    return {str(T): predictions_over_numpy(T) for T in (100, 50_000, 1_000_000)}


def predictions_over_numpy(T: int) -> dict[str, Any]:
    n, d = max(10, 20_000 // T), 30
    X, y, task = make_rows(T, n, d)
    fitted = model().fit(X, y, task=task)
    rng = np.random.default_rng(0)
    rows, codes = rng.standard_normal((1_000_000, d)), rng.integers(0, T, 1_000_000)

    def bare() -> np.ndarray:
        return fitted.intercept_[codes] + np.einsum("ij,ij->i", rows, fitted.coef_[codes])

    fitted.predict(rows[:10], task=codes[:10], return_std=True)  # computes the uncertainty
    times = interleaved({
        "NumPy": bare,
        "predict": lambda: fitted.predict(rows, task=codes),
        "with standard deviations": lambda: fitted.predict(rows, task=codes, return_std=True),
    })  # fmt: skip
    show(f"{T:,} tasks, {d} features, a million rows to predict", times, "NumPy")
    return times


def figure(saved: dict[str, Any], path: str) -> None:
    """Time against cores, and the stages of a fit on two cores."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.6), width_ratios=(1, 1.2))
    fig.subplots_adjust(wspace=0.5)
    by_cores = saved["cores"]
    counts = [int(count) for count in by_cores]
    for name, label, colour in (
        ("fit", "whole fit", "#1b6ca8"),
        ("bare", "all Grams alone", "0.5"),
    ):
        seconds = [by_cores[str(count)][name]["seconds"] for count in counts]
        left.plot(counts, seconds, "o-", label=label, color=colour)
    left.set(xscale="log", yscale="log", xlabel="cores", ylabel="seconds")
    left.set_xticks(counts, [str(count) for count in counts])
    left.set_yticks(ticks := [0.25, 0.5, 1, 2, 4], [f"{tick:g}" for tick in ticks])
    left.minorticks_off()
    left.set_title("200,000 tasks x 60 rows x 30 features", fontsize=10)
    left.legend(frameon=False)
    shares = saved["stages"]
    stages_ = list(dict.fromkeys(stage for each in shares.values() for stage in each))
    bottom = np.zeros(len(shares))
    names = ["{:,} x {} x {}".format(*map(int, size.split())) for size in shares]
    colours = plt.get_cmap("tab20c")(np.linspace(0, 0.95, len(stages_)))
    for stage, colour in zip(stages_, colours, strict=True):
        part = np.array([100 * max(each.get(stage, 0.0), 0.0) for each in shares.values()])
        right.barh(names, part, left=bottom, label=stage, color=colour)
        bottom += part
    right.set(xlabel="share of a fit, percent", xlim=(0, 100))
    right.invert_yaxis()
    right.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.4, -0.2), ncols=4)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    fig.savefig(path, dpi=160, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["ratios", "stages", "memory", "cores", "gpu", "predict",
                                         "figure", "one"])  # fmt: skip
    parser.add_argument("file", nargs="?", help="of the figure")
    parser.add_argument("--quick", action="store_true", help="a tenth of the tasks")
    parser.add_argument("--most", type=int, default=cores(), help="cores")
    parser.add_argument("--save", type=Path, help="a JSON file to add the figures to")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    saved = {}
    if given.save is not None and given.save.exists():
        saved = json.loads(given.save.read_text())
    if given.what == "figure":
        figure(saved, given.file)
        return
    if not given.json:
        load = os.getloadavg()[0]
        print(f"{cores()} cores, load {load:.1f}, medians of {REPEATS}", flush=True)
    functions: dict[str, Callable[[], dict[str, Any]]] = {
        "ratios": lambda: ratios(given.quick), "stages": stages, "memory": memory, "gpu": on_gpu,
        "cores": lambda: on_cores(given.most), "predict": predictions, "one": one,
    }  # fmt: skip
    figures = functions[given.what]()
    if given.json:
        print(json.dumps(figures))
    if given.save is not None:
        given.save.write_text(json.dumps(saved | {given.what: figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
