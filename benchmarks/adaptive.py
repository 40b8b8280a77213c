"""The adaptive model's speed: `python benchmarks/adaptive.py --old SRC`.

Whole fits, from rows in memory to the fitted model, in interleaved processes; medians of the fits,
each process warmed up by a small one.

large   AdaptiveSpanRegressor against SharedSpanRegressor(rank given) of another version, whose
        source folder `--old` names
slope   one slope in 125,066 groups of four rows, against mixedlm-rs where `--peers PYTHON` names an
        interpreter that has it
growth  seconds against T, with one slope and with five, and against d, with lme4 and glmmTMB
        (`Rscript`), MixedLM, GPBoost and, for one slope, mixedlm-rs, each up to the size that takes
        it longer than `--limit` seconds; methods that are not installed are left out;
        `--figure PATH` draws them
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

LARGE = ((20_000, 30, 20), (50_000, 60, 30))  # T, n, d
GROWTH = {
    "one": (100, 1_000, 10_000, 100_000, 1_000_000),
    "T": (1_000, 10_000, 100_000, 1_000_000),
    "d": (5, 10, 20, 40, 80),
}
TITLES = {
    "one": "groups of 20 rows, one slope",
    "T": "groups of 20 rows, 5 slopes",
    "d": "slopes, 1,000 groups of 4 d rows",
}
FIT = """
import sys, time, json, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {folder!r})
import numpy as np
from adaptive import draw, METHODS
import adaptive
fit = getattr(adaptive, {method!r})
fit(*draw(60, 30, 4))
rows = draw(*{size!r})
begin = time.perf_counter()
result = fit(*rows)
print(json.dumps([time.perf_counter() - begin, result]))
"""


def draw(T, n, d, rank=3, seed=0):
    """Rows of tasks whose slopes vary along a few directions."""
    rng = np.random.default_rng(seed)
    rank = min(rank, d)
    coef = rng.standard_normal((T, rank)) @ rng.standard_normal((rank, d)) / rank**0.5
    X = rng.standard_normal((T * n, d))
    task = np.repeat(np.arange(T), n)
    y = np.einsum("ij,ij->i", X, coef[task]) + rng.standard_normal(T)[task]
    return X, y + rng.standard_normal(T * n), task


def adaptive(X, y, task):
    import sharedspan as ss

    model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    return f"{model.slopes_}+{model.rank_}"


def adaptive_given(X, y, task):
    import sharedspan as ss

    model = ss.AdaptiveSpanRegressor(slopes="full", rank=0, method="ml", outliers=False)
    return -2 * model.fit(X, y, task=task).log_likelihood_


def shared_span(X, y, task):
    import sharedspan as ss

    ss.SharedSpanRegressor(rank=3).fit(X, y, task=task)


def mixedlm_rs(X, y, task):
    from mixedlm_rs import MixedLM

    design = np.column_stack([np.ones(len(X)), X])
    return -2 * MixedLM(y, design, groups=task, exog_re=design).fit(reml=False).llf


def statsmodels_mixedlm(X, y, task):
    import statsmodels.api as sm

    design = np.column_stack([np.ones(len(X)), X])
    sm.MixedLM(y, design, groups=task, exog_re=design).fit()


def gpboost_slopes(X, y, task):
    import gpboost

    design = np.column_stack([np.ones(len(X)), X])
    model = gpboost.GPModel(
        group_data=task, group_rand_coef_data=X, ind_effect_group_rand_coef=[1] * X.shape[1]
    )
    model.fit(y=y, X=design)


def _in_r(X, y, task, call):
    names = [f"x{i}" for i in range(X.shape[1])]
    with tempfile.TemporaryDirectory() as folder:
        table = np.column_stack([y, task, X])
        path = Path(folder) / "table.bin"
        table.T.astype("<f8").tofile(path)
        terms = " + ".join(names)
        script = f"""
        columns <- c("y", "g", {", ".join(map(repr, names))})
        data <- matrix(readBin("{path}", "double", {table.size}), ncol = {table.shape[1]})
        data <- as.data.frame(data); names(data) <- columns; data$g <- factor(data$g)
        begin <- proc.time()[3]
        {call.format(terms=terms)}
        cat(proc.time()[3] - begin)
        """
        run = subprocess.run(["Rscript", "-e", script], capture_output=True, text=True, check=True)
        return float(run.stdout.split()[-1])


def ours_by_formula(X, y, task):
    """The model of lme4, `y ~ x + (1 + x | g)` by REML."""
    import sharedspan as ss

    names = [f"x{i}" for i in range(X.shape[1])]
    terms = " + ".join(names)
    table = {"y": y, "g": task} | dict(zip(names, X.T, strict=True))
    return -2 * ss.mixed(f"y ~ {terms} + (1 + {terms} | g)", table).log_likelihood_


def lme4_full(X, y, task):
    return _in_r(
        X, y, task,
        "library(lme4); m <- lmer(y ~ {terms} + (1 + {terms} | g), data, "
        "control = lmerControl(calc.derivs = FALSE, check.conv.singular = 'ignore'))",
    )  # fmt: skip


def glmmtmb_rank3(X, y, task):
    return _in_r(
        X, y, task,
        "suppressMessages(library(glmmTMB)); m <- glmmTMB(y ~ {terms} + (1 | g) + "
        "rr(0 + {terms} | g, 3), data)",
    )  # fmt: skip


def glmmtmb_full(X, y, task):
    return _in_r(
        X, y, task,
        "suppressMessages(library(glmmTMB)); m <- glmmTMB(y ~ {terms} + (1 + {terms} | g), data, "
        "REML = TRUE)",
    )  # fmt: skip


MANY = {
    "lme4": ("lme4_full", "own"),
    "glmmTMB": ("glmmtmb_rank3", "own"),
    "MixedLM": ("statsmodels_mixedlm", "peers"),
    "GPBoost": ("gpboost_slopes", "peers"),
    "AdaptiveSpanRegressor": ("adaptive", "own"),
}
ONE = MANY | {
    "glmmTMB": ("glmmtmb_full", "own"),
    "mixedlm-rs": ("mixedlm_rs", "peers"),
    "ss.mixed": ("ours_by_formula", "own"),
}
METHODS = {"one": ONE, "T": MANY, "d": MANY}
COLORS = dict(zip(ONE, ("#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#0072B2", "#666666",
                        "#003F66"), strict=True))  # fmt: skip


BEYOND = "beyond the limit"


def timed(method, size, python=sys.executable, source=None, limit=None):
    """Seconds of one fit in a process of its own, and what it returns; None beyond the limit."""
    code = FIT.format(folder=str(Path(__file__).parent), method=method, size=size)
    environment = os.environ | ({"PYTHONPATH": source} if source else {})
    try:
        run = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, env=environment, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return None, BEYOND
    if run.returncode:
        return None, run.stderr.strip().splitlines()[-1]
    seconds, result = json.loads(run.stdout.splitlines()[-1])
    return (result if method.startswith(("lme4", "glmmtmb")) else seconds), result


def large(options):
    for size in LARGE:
        ours, theirs = [], []
        for _ in range(options.turns):
            theirs.append(timed("shared_span", size, source=options.old)[0])
            seconds, chosen = timed("adaptive", size)
            ours.append(seconds)
        ratio = np.median(ours) / np.median(theirs)
        print(
            f"{size}: adaptive {np.median(ours):.2f} s ({chosen}), SharedSpanRegressor of "
            f"{options.old or 'this version'} {np.median(theirs):.2f} s, ratio {ratio:.2f}",
            flush=True,
        )


def slope(options):
    size = (125_066, 4, 1)
    times = {name: [] for name in ("adaptive_given", "adaptive", "mixedlm_rs")}
    for _ in range(options.turns):
        for name in times:
            python = options.peers if name == "mixedlm_rs" else sys.executable
            seconds, result = timed(name, size, python)
            times[name].append(np.nan if seconds is None else seconds)
            print(f"   {name} {seconds} {result}", flush=True)
    medians = {name: np.median(values) for name, values in times.items()}
    for name in ("adaptive_given", "adaptive"):
        ratio = medians[name] / medians["mixedlm_rs"]
        print(f"{name}: {medians[name]:.2f} s, {ratio:.2f} of mixedlm-rs")


def growth(options):
    curves = {}
    for axis in options.axis or GROWTH:
        values = GROWTH[axis]
        for name, (method, where) in METHODS[axis].items():
            python = options.peers if where == "peers" else sys.executable
            points = []
            for value in values:
                sizes = {"one": (value, 20, 1), "T": (value, 20, 5), "d": (1_000, 4 * value, value)}
                seconds, result = timed(method, sizes[axis], python, limit=options.limit + 60)
                print(f"{axis} = {value}: {name} {seconds} {result}", flush=True)
                if seconds is None and result != BEYOND and not points:  # it is not installed
                    break
                ended = seconds is None or seconds > options.limit
                points.append((value, options.limit if ended else seconds))
                if ended:
                    break
            if points:
                curves[axis, name] = points
    if options.figure:
        draw_growth(curves, options.limit, options.figure)


def draw_growth(curves, limit, path):
    """Seconds against T and d; a cross where a method took longer than the limit."""
    import matplotlib.pyplot as plt

    drawn = list(dict.fromkeys(axis for axis, _ in curves))
    size = (max(5 * len(drawn), 7), 4.6)
    figure, axes = plt.subplots(1, len(drawn), figsize=size, layout="constrained", squeeze=False)
    panels, shown = dict(zip(drawn, axes[0], strict=True)), {}
    for (axis, name), points in curves.items():
        panel = panels[axis]
        x, y = zip(*points, strict=True)
        width = 2.5 if name in ("AdaptiveSpanRegressor", "ss.mixed") else 1.5
        style = "--" if name == "ss.mixed" else "-"
        [shown[name]] = panel.loglog(x, y, style, marker="o", lw=width, color=COLORS[name])
        if y[-1] >= limit:
            # Crosses of methods that ended at the same size stand beside each other.
            span = GROWTH[axis][-1] / GROWTH[axis][0]
            shift = span ** (0.02 * (list(ONE).index(name) - 1))
            panel.plot(x[-1] * shift, limit, "x", ms=11, mew=3, color=COLORS[name], zorder=5)
    for axis, panel in panels.items():
        panel.axhline(limit, color="black", lw=1, ls="--")
        values = GROWTH[axis]
        panel.set_xticks(values, [f"{value:,}" for value in values])
        panel.set_xticks([], minor=True)
        panel.set(xlabel=TITLES[axis], ylabel="seconds")
    figure.legend(
        shown.values(), shown, loc="outside lower center", ncols=4 if len(drawn) == 1 else 7,
        frameon=False, title=f"a cross on the dashed line: ended at {limit:g} s",
    )  # fmt: skip
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("large", "slope", "growth"), action="append")
    parser.add_argument("--old", help="source folder of the version to compare with")
    parser.add_argument("--peers", default=sys.executable, help="interpreter that has the peers")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of a peer's fit")
    parser.add_argument("--axis", choices=tuple(GROWTH), action="append", help="of the growth")
    parser.add_argument("--figure", help="path of the PNG of the growth curves")
    options = parser.parse_args()
    parts = options.part or ("large", "slope", "growth")
    for part in parts:
        {"large": large, "slope": slope, "growth": growth}[part](options)


if __name__ == "__main__":
    main()
