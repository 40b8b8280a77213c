"""Whole fits against what a user would pick instead: `python benchmarks/peers.py`.

From rows in memory to coefficients; methods take turns within one run, and times are printed as
ratios, beside the parameter error (sum over tasks of the squared distance to the true coefficients)
as a ratio too. Parts, which `--part` picks from:

headline  100,000 tasks x 60 rows x 30 features of rank 3, in float32; each fit in a process of its
          own, with the peak memory of that process, rows and interpreter included
table     1,000 tasks, all methods
growth    one of T, d, n and k at a time; `--figure PATH` draws the curves
mixed     statsmodels MixedLM with random slopes, and GPBoost where `--gpboost PYTHON` names an
          interpreter that has it; extrapolated from the sizes that fit into `--mixedlm-budget`
shared    one design for all tasks: MultiTaskLasso of scikit-learn, and of skglm where installed
first     what the first fit of a process costs, with compiled kernels on disk and without

Peers are favoured where there is a choice: BLAS threads are held to one (more of them slow loops of
small fits down), process pools are warm, tasks go to them in large chunks, random slopes are
independent of each other (a full covariance takes MixedLM far longer), and extrapolation takes the
smaller of linear growth and fitted growth. `--quick` takes two minutes: fewer turns, and loops on
some of the tasks, scaled up.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

NOISE = 0.5
ALPHAS = np.logspace(-2, 3, 11)
WORKERS = 2
SHARE = 0.05  # of the tasks, where a loop of the headline is measured on some of them only
SOME = 200  # tasks, for the same elsewhere


@dataclass(frozen=True)
class Size:
    """T tasks of n rows, d features, rank k."""

    T: int = 1000
    n: int = 60
    d: int = 30
    k: int = 3


HEADLINE = Size(T=100_000)
SWEEPS = {"T": (100, 1000, 10_000), "d": (10, 30, 100), "n": (10, 30, 100, 300), "k": (1, 3, 10)}
# Where mixed models start; with fewer tasks their optimisers often fail, and try again.
FIRST = {"MixedLM": 100, "GPBoost": 50}
PARTS = ("headline", "table", "growth", "mixed", "shared", "first")


@dataclass(frozen=True)
class Rows:
    """Rows in single precision, task by task, and the truth."""

    X: np.ndarray  # (T n, d)
    y: np.ndarray  # (T n,)
    task: np.ndarray  # (T n,)
    coef: np.ndarray  # (T, d)
    size: Size

    def head(self, T):
        """The first T tasks, which are as random as any."""
        m = T * self.size.n
        return Rows(self.X[:m], self.y[:m], self.task[:m], self.coef[:T], replace(self.size, T=T))


def draw(size, seed=0, block=2000):
    """Rows of tasks in one span with intercepts, made block by block."""
    T, n, d, k = size.T, size.n, size.d, size.k
    rng = np.random.default_rng(seed)
    B = np.linalg.qr(rng.standard_normal((d, k)))[0]
    coef = rng.standard_normal((T, k)) @ B.T / np.sqrt(k)
    level = rng.standard_normal((T, 1))
    X, y = np.empty((T * n, d), np.float32), np.empty(T * n, np.float32)
    for lo in range(0, T, block):
        hi = min(lo + block, T)
        x = rng.standard_normal((hi - lo, n, d), dtype=np.float32)
        mean = level[lo:hi] + np.einsum("tnd,td->tn", x, coef[lo:hi])
        X[lo * n : hi * n] = x.reshape(-1, d)
        y[lo * n : hi * n] = (mean + NOISE * rng.standard_normal(mean.shape)).ravel()
    return Rows(X, y, np.repeat(np.arange(T), n), coef, size)


# What is compared: functions of Rows to coefficients (T, d).


def ours(solver, rank=None):
    def fit(rows):
        import sharedspan as ss

        model = ss.SharedSpanRegressor(rank=rank or rows.size.k, solver=solver, random_state=0)
        return model.fit(rows.X, rows.y, task=rows.task).coef_

    return fit


def ridge_loop(X, y, n, cross_validated=False):
    from sklearn.linear_model import Ridge, RidgeCV
    from threadpoolctl import threadpool_limits

    coef = np.empty((len(X) // n, X.shape[1]))
    with threadpool_limits(1, "blas"):
        for t in range(len(coef)):
            own = slice(t * n, (t + 1) * n)
            model = RidgeCV(ALPHAS) if cross_validated else Ridge(1.0)
            coef[t] = model.fit(X[own], y[own]).coef_
    return coef


def loop(cross_validated=False):
    return lambda rows: ridge_loop(rows.X, rows.y, rows.size.n, cross_validated)


def pool(cross_validated=False):
    def fit(rows):
        from joblib import Parallel, delayed

        T, n = rows.size.T, rows.size.n
        bounds = np.linspace(0, T, 4 * WORKERS + 1).astype(int) * n
        parts = Parallel(n_jobs=WORKERS)(
            delayed(ridge_loop)(rows.X[lo:hi], rows.y[lo:hi], n, cross_validated)
            for lo, hi in pairwise(bounds)
            if hi > lo
        )
        return np.concatenate(parts)

    return fit


def mixed_lm(rows):
    """Random intercepts and independent random slopes, as variance components."""
    from statsmodels.regression.mixed_linear_model import MixedLM, VCSpec

    T, n, d = rows.size.T, rows.size.n, rows.size.d
    X, y = rows.X.astype(float), rows.y.astype(float)
    names = [f"x{j}" for j in range(d)]
    columns = X.reshape(T, n, d)
    slopes = VCSpec(
        names, [[[name]] * T for name in names], [list(columns[:, :, [j]]) for j in range(d)]
    )
    ones = np.ones((len(X), 1))
    fit = MixedLM(y, np.hstack([ones, X]), rows.task, exog_re=ones, exog_vc=slopes).fit()
    effects = np.array([np.asarray(fit.random_effects[t]) for t in range(T)])
    return np.asarray(fit.fe_params)[1:] + effects[:, 1:]


def gpboost_slopes(rows):
    """Random intercepts and independent random slopes."""
    import gpboost

    X, n, d = rows.X.astype(float), rows.size.n, rows.size.d
    model = gpboost.GPModel(
        likelihood="gaussian",
        group_data=rows.task.astype(str),
        group_rand_coef_data=X,
        ind_effect_group_rand_coef=[1] * d,
    )
    design = np.column_stack([np.ones(len(X)), X])
    model.fit(y=rows.y.astype(float), X=design, params={"trace": False})
    effects = np.asarray(model.predict_training_data_random_effects())[::n, 1 : d + 1]
    return np.asarray(model.get_coef()).ravel()[1 : d + 1] + effects


METHODS = {
    "shared span, auto": ours("auto"),
    "shared span, tpgd": ours("tpgd"),
    "shared span, scaled_gd_anderson": ours("scaled_gd_anderson"),
    "shared span, rank found": ours("tpgd", "auto"),
    "ridge loop": loop(),
    "ridge loop, CV": loop(True),
    "ridge joblib": pool(),
    "ridge joblib, CV": pool(True),
    "GPBoost": gpboost_slopes,
    "MixedLM": mixed_lm,
}


def our_methods():
    """Ours that this version has; the first one is what claims are made for."""
    known = [name for name in METHODS if name.startswith("shared span") and accepted(name)]
    return sorted(known, key=lambda name: name.endswith("rank found"))


def accepted(name):
    try:
        METHODS[name](draw(Size(T=20, n=20, d=5, k=2)))
    except ValueError as error:
        if "solver=" in str(error):
            return False
        raise
    return True


def timed(name, rows):
    """Seconds and parameter error per task."""
    began = time.perf_counter()
    coef = METHODS[name](rows)
    seconds = time.perf_counter() - began
    return seconds, float(np.sum((coef - rows.coef) ** 2)) / rows.size.T


def in_turns(names, rows, turns, some=None):
    """Seconds and parameter error per task of each method in each turn, (turns, 2) by name.

    With ``some``, ridge loops go over so many tasks and their time is scaled up.
    """
    small = draw(replace(rows.size, T=20))
    for name in names:
        timed(name, small)
    taken = {name: [] for name in names}
    for _ in range(turns):
        for name in names:
            T = min(some or rows.size.T, rows.size.T) if "ridge" in name else rows.size.T
            seconds, error = timed(name, rows.head(T))
            taken[name].append((seconds * rows.size.T / T, error))
    return {name: np.array(pairs) for name, pairs in taken.items()}


def ratios(found, name, other):
    """Time and error of one method over another's, each the median over turns."""
    return np.median(found[name] / found[other], axis=0)


# A fit in a process of its own.


def worker(request):
    """Print what came of one request as a line of JSON."""
    warnings.simplefilter("ignore")
    name, size = request["method"], Size(**request["size"])
    if name == "first":
        print(json.dumps(first_calls(size)))
        return
    if name != "GPBoost":
        timed(name, draw(replace(size, T=20)))
    seconds, error = timed(name, draw(size))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak *= 1 if sys.platform == "darwin" else 1024
    print(json.dumps({"seconds": seconds, "error": error, "peak": peak}))


def elsewhere(method, size, python=sys.executable, environment=None):
    """The same from a fresh process."""
    request = json.dumps({"method": method, "size": vars(size)})
    done = subprocess.run(
        [python, __file__, "--worker", request],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | (environment or {}),
    )
    return json.loads(done.stdout.splitlines()[-1])


def first_calls(size):
    began = time.perf_counter()
    import sharedspan as ss

    seconds = {}
    rows = draw(size)
    for step in ("import and first fit", "second fit"):
        ss.SharedSpanRegressor(rank=size.k, random_state=0).fit(rows.X, rows.y, task=rows.task)
        seconds[step] = time.perf_counter() - began
        began = time.perf_counter()
    return seconds


# The parts.


def claim(words, measured, holds):
    print(f"claim: {words}: measured {measured}: {'holds' if holds else 'short'}", flush=True)


def title(words, *heads):
    print(f"\n{words}")
    print(f"{'':<40}" + "".join(f"{head:>12}" for head in heads))


def line(name, *cells):
    print(f"{name:<40}" + "".join(f"{cell:>12}" for cell in cells), flush=True)


def headline(options):
    """Seconds of our fit at the headline size, with the claims about it."""
    size, repeats = HEADLINE, 1 if options.quick else 3
    some = int(SHARE * size.T)
    listed = our_methods()
    shares = dict.fromkeys(listed, size.T) | {
        "ridge joblib": some if options.quick else size.T,
        "ridge joblib, CV": some,
        "ridge loop": some,
    }
    if options.quick:
        shares.pop("shared span, rank found")
    taken = {name: [] for name in shares}
    for _ in range(repeats):
        for name, tasks in shares.items():
            found = elsewhere(name, replace(size, T=tasks))
            found["seconds"] *= size.T / tasks
            taken[name].append(found)
    medians = {
        name: {key: float(np.median([run[key] for run in runs])) for key in runs[0]}
        for name, runs in taken.items()
    }
    us = medians[listed[0]]
    rows_gb = (size.T * size.n * (size.d + 1) * 4 + size.T * size.n * 8) / 1e9
    title(
        f"headline: {size.T:,} tasks x {size.n} rows x {size.d} features, rank {size.k}, float32; "
        f"rows, targets and labels take {rows_gb:.2f} GB",
        "time/ours", "error/ours", "peak GB", "tasks run",
    )  # fmt: skip
    for name, found in medians.items():
        peak = f"{found['peak'] / 1e9:.2f}" if shares[name] == size.T else "-"
        pair = (f"{found[key] / us[key]:.2f}" for key in ("seconds", "error"))
        line(name, *pair, peak, f"{shares[name]:,}")
    print("time of fewer tasks is scaled up; the peak is of the whole process, rows included, and")
    print("for joblib of its parent only")
    print(f"ours: {listed[0]}")
    loops = [medians["ridge joblib"], medians["ridge joblib, CV"]]
    fastest = min(found["seconds"] for found in loops)
    sharpest = min(found["error"] for found in loops)
    peak = us["peak"] / 1e9
    seconds = us["seconds"]
    claim("headline fit under 25 s on two cores", f"{seconds:.1f} s", seconds < 25)
    claim("headline fit under 6 GB", f"{peak:.2f} GB", peak < 6)
    claim(
        "faster than a joblib loop of scikit-learn ridge",
        f"{fastest / seconds:.1f} times",
        fastest > seconds,
    )
    claim(
        "at most half the parameter error of that loop, the better of alpha=1 and RidgeCV",
        f"{us['error'] / sharpest:.3f} of it",
        us["error"] <= sharpest / 2,
    )
    return seconds


def table(options):
    names = [*our_methods(), "ridge loop", "ridge loop, CV", "ridge joblib", "ridge joblib, CV"]
    size = Size()
    some = SOME if options.quick else None
    found = in_turns(names, draw(size), 3 if options.quick else 5, some)
    title(f"{size}", "time/ours", "error/ours")
    for name in names:
        line(name, *(f"{ratio:.2f}" for ratio in ratios(found, name, names[0])))
    print(f"ours: {names[0]}")


def growth(options):
    """Ratios to the ridge loop along each of T, d, n and k."""
    names = [name for name in our_methods() if not name.endswith("rank found")][:2]
    curves = {}
    for axis, values in SWEEPS.items():
        title(
            f"growth in {axis}, others at {Size()}: over the ridge loop (error: over the better of "
            "alpha=1 and CV)",
            *(f"{axis}={value:,}" for value in values), "slope",
        )  # fmt: skip
        found = [sweep_point(replace(Size(), **{axis: v}), names, options) for v in values]
        for name in names:
            times = [ratios(point, name, "ridge loop")[0] for point in found]
            errors = [np.median(point[name][:, 1]) / point["best error"] for point in found]
            curves[axis, name] = values, times, errors
            line(f"{name}: time", *(f"{r:.3f}" for r in times), slope(values, found, name))
            line(f"{name}: error", *(f"{r:.3f}" for r in errors), "")
        line("ridge loop", *("1" for _ in values), slope(values, found, "ridge loop"))
    print("slope: of log time, ours and the loop's own, on the log of what grows")
    if options.figure:
        figure(curves, options.figure)


def sweep_point(size, names, options):
    rows = draw(size)
    turns, some = (3, SOME) if options.quick else (5, None)
    found = in_turns([*names, "ridge loop"], rows, turns, some)
    _, error = timed("ridge loop, CV", rows.head(min(size.T, SOME)))
    found["best error"] = min(error, np.median(found["ridge loop"][:, 1]))
    return found


def slope(values, found, name):
    times = [np.median(point[name][:, 0]) for point in found]
    return f"{np.polyfit(np.log(values), np.log(times), 1)[0]:.2f}"


def figure(curves, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    words = {"T": "tasks T", "d": "features d", "n": "rows per task n", "k": "rank k"}
    axes_names = list(dict.fromkeys(axis for axis, _ in curves))
    drawing, panels = plt.subplots(
        2, len(axes_names), figsize=(11, 5), sharex="col", sharey="row", layout="constrained"
    )
    for (axis, name), (values, times, errors) in curves.items():
        column = axes_names.index(axis)
        style = "o-" if name == next(iter(curves))[1] else "s--"
        for panel, heights in zip(panels[:, column], (times, errors), strict=True):
            panel.plot(values, heights, style, label=name)
            panel.set(xscale="log", yscale="log")
            panel.axhline(1.0, color="0.6", linewidth=1)
        panels[1, column].set_xticks(values, [f"{value:,}" for value in values])
        panels[1, column].minorticks_off()
        panels[1, column].set_xlabel(words[axis])
    panels[0, 0].set_ylabel("fit time / ridge loop")
    panels[1, 0].set_ylabel("parameter error / ridge loop")
    panels[0, 0].legend(frameon=False, fontsize=8)
    drawing.savefig(path, dpi=150)
    print(f"figure: {path}")


def mixed(options, seconds):
    """Mixed models with random slopes, as far as the budget goes, and from there by growth."""
    import statsmodels.api  # noqa: F401  (switches its warnings on when imported)

    warnings.simplefilter("ignore")
    us = our_methods()[0]
    peers = {"MixedLM": None} | ({"GPBoost": options.gpboost} if options.gpboost else {})
    for name, python in peers.items():
        title(
            f"{name}, independent random slopes, {HEADLINE.n} rows x {HEADLINE.d} features",
            "T", "time/ours", "error/ours",
        )  # fmt: skip
        sizes, times = climb(name, python, us, options.budget)
        exponent = np.polyfit(np.log(sizes[-3:]), np.log(times[-3:]), 1)[0]
        linear = times[-1] * HEADLINE.T / sizes[-1]
        grown = times[-1] * (HEADLINE.T / sizes[-1]) ** exponent
        print(
            f"growth exponent {exponent:.2f} from the last three sizes; extrapolated from "
            f"T={sizes[-1]:,} to T={HEADLINE.T:,}: {grown / seconds:,.0f} times our headline fit "
            f"by that exponent, {linear / seconds:,.0f} times by linear growth"
        )
        gain = min(grown, linear) / seconds
        words = f"at least 50 times faster than {name} at the headline size, extrapolated"
        if name == "MixedLM":
            claim(words, f"{gain:,.0f} times", gain >= 50)
        else:
            print(f"{gain:,.0f} times faster than {name}, extrapolated")


def climb(name, python, us, budget):
    """Sizes that double while the next one should still end within the budget, and seconds."""
    sizes, times, spent = [], [], 0.0
    T = FIRST[name]
    while len(sizes) < 3 or spent + 2.5 * times[-1] < budget:
        size = replace(HEADLINE, T=T)
        rows = draw(size)
        own = np.median(in_turns([us], rows, 3)[us], axis=0)
        if python:
            found = elsewhere(name, size, python=python)
            pair = found["seconds"], found["error"]
        else:
            pair = timed(name, rows)
        line("", f"{T:,}", *(f"{value / o:.2f}" for value, o in zip(pair, own, strict=True)))
        sizes.append(T)
        times.append(pair[0])
        spent += pair[0]
        T *= 2
    return sizes, times


def shared(options):
    """One design for all tasks, responses as columns of Y."""
    from sklearn.linear_model import MultiTaskLasso, Ridge, RidgeCV

    import sharedspan as ss

    size = Size()
    rng = np.random.default_rng(0)
    X = rng.standard_normal((size.n, size.d))
    coef = draw(replace(size, n=1)).coef
    Y = X @ coef.T + NOISE * rng.standard_normal((size.n, size.T))

    def span():
        model = ss.SharedSpanRegressor(rank=size.k, random_state=0)
        task = np.repeat(np.arange(size.T), size.n)
        return model.fit(np.tile(X, (size.T, 1)), Y.T.ravel(), task=task).coef_

    def best_lasso(kind):
        def error(alpha):
            return np.sum((kind(alpha=alpha).fit(X, Y).coef_ - coef) ** 2)

        top = np.linalg.norm(X.T @ (Y - Y.mean(axis=0)), axis=1).max() / size.n
        alpha = min(top * np.logspace(-3, -0.1, 10), key=error)
        return lambda: kind(alpha=alpha).fit(X, Y).coef_

    methods = {
        "shared span": span,
        "Ridge, all targets at once": lambda: Ridge(1.0).fit(X, Y).coef_,
        "RidgeCV, all targets at once": lambda: RidgeCV(ALPHAS).fit(X, Y).coef_,
        "MultiTaskLasso, best alpha": best_lasso(MultiTaskLasso),
    }
    try:
        import skglm
    except ImportError:
        print("\nskglm is not installed: left out")
    else:
        methods["skglm MultiTaskLasso, best alpha"] = best_lasso(skglm.MultiTaskLasso)
    taken = {name: [] for name in methods}
    for _ in range(4 if options.quick else 6):
        for name, method in methods.items():
            began = time.perf_counter()
            found = method()
            taken[name].append((time.perf_counter() - began, np.sum((found - coef) ** 2)))
    found = {name: np.array(pairs[1:]) for name, pairs in taken.items()}  # the first warms up
    title(f"one design for all tasks, {size}", "time/ours", "error/ours")
    for name in methods:
        line(name, *(f"{ratio:.3f}" for ratio in ratios(found, name, "shared span")))


def first(options):
    title("first fit of a process, in seconds", "first", "second")
    size = Size(T=100)
    with tempfile.TemporaryDirectory() as folder:
        environment = {} if options.quick else {"NUMBA_CACHE_DIR": folder}
        for name in ("nothing compiled yet", "kernels on disk")[options.quick :]:
            found = elsewhere("first", size, environment=environment)
            line(name, *(f"{seconds:.2f}" for seconds in found.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--part", action="append", choices=PARTS, help="only these parts")
    parser.add_argument("--figure", metavar="PATH", help="draw the growth curves to a PNG")
    parser.add_argument("--gpboost", metavar="PYTHON", help="an interpreter that has GPBoost")
    parser.add_argument("--mixedlm-budget", dest="budget", type=float, metavar="SECONDS")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(json.loads(options.worker))
        return
    warnings.simplefilter("ignore")
    options.budget = options.budget or (30.0 if options.quick else 300.0)
    parts = options.part or PARTS
    seconds = headline(options) if "headline" in parts else None
    for part in (table, growth):
        if part.__name__ in parts:
            part(options)
    if "mixed" in parts:
        seconds = seconds or elsewhere(our_methods()[0], HEADLINE)["seconds"]
        mixed(options, seconds)
    for part in (shared, first):
        if part.__name__ in parts:
            part(options)


if __name__ == "__main__":
    main()
