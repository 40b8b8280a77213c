"""Coefficients of 45 fits, to be saved before a change of the code and compared after it.

    python benchmarks/reference_fits.py save FILE.npz
    python benchmarks/reference_fits.py compare FILE.npz

They cover every estimator, solver setting and source of rows. A fit passes if its coefficients
equal the saved ones to 1e-12, or to twice the change that a permutation of the rows causes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import sharedspan as ss

SIZES = np.random.default_rng(3).integers(22, 60, 24)
SIM = ss.simulate(
    n_tasks=24, n_features=7, rank=2, n_samples=SIZES, noise=0.4, intercept=1.5, random_state=1
)
WIDE = ss.simulate(n_tasks=20, n_features=30, rank=2, n_samples=10, noise=0.2, random_state=2)
SOLVERS = ("auto", "tpgd", "als", "scaled_gd", "gd", "variable_projection", "scaled_gd_anderson",
           "lbfgs", "altmin_gd")  # fmt: skip


def table(frame_of, permuted: bool):
    """The rows of a simulated table, in order or permuted."""
    order = np.arange(len(frame_of.y))
    if permuted:
        order = np.random.default_rng(7).permutation(order)
    return frame_of.X[order], frame_of.y[order], frame_of.task[order]


def fits() -> Iterator[tuple[str, Callable[[bool], object]]]:
    """Names of fits, and functions that fit rows in order or permuted."""

    def on_arrays(make, data=SIM, **options):
        def fit(permuted):
            X, y, task = table(data, permuted)
            return make().fit(X, y, task=task, **options)

        return fit

    def span(**options):
        options = {"rank": 2, "solver": "auto", "random_state": 0} | options
        return ss.SharedSpanRegressor(**options)

    for solver in SOLVERS:
        if solver in ss.SOLVERS:
            yield f"solver {solver}", on_arrays(lambda s=solver: span(solver=s, max_iter=3000))
    for rank in ("auto", "evidence", "threshold"):
        data = WIDE if rank == "auto" else SIM
        yield f"rank {rank}", on_arrays(lambda r=rank: span(rank=r), data)
    yield "rank auto, many rows", on_arrays(lambda: span(rank="auto"))
    yield "rank auto, tpgd", on_arrays(lambda: span(rank="auto", solver="tpgd"))
    yield "noise per task", on_arrays(lambda: span(noise="per_task"))
    yield "not whitened", on_arrays(lambda: span(whiten=False))
    yield "no intercept", on_arrays(lambda: span(fit_intercept=False))
    yield "rows as statistics", on_arrays(span, WIDE)
    yield "float32", on_arrays(lambda: span(dtype="float32"))
    yield (
        "weighted",
        lambda permuted: span().fit(
            *table(SIM, permuted)[:2],
            task=table(SIM, permuted)[2],
            sample_weight=1.0 + (np.abs(table(SIM, permuted)[0][:, 0]) > 1),
        ),
    )
    for variant in ("duchi", "niu", "tripuraneni"):
        yield (
            f"moment {variant}",
            on_arrays(lambda v=variant: ss.MomentRegressor(rank=2, variant=v, random_state=0)),
        )
    yield "spectral", on_arrays(lambda: ss.SpectralRegressor(rank=2, random_state=0))
    yield (
        "spectral threshold",
        on_arrays(lambda: ss.SpectralRegressor(rank="threshold", outliers=0.1, random_state=0)),
    )
    for structure in ("lowrank", "clustered", "vanilla"):
        yield (
            f"armul {structure}",
            on_arrays(
                lambda s=structure: ss.ARMULRegressor(rank=2, random_state=0, **{VARIANT: s})
            ),
        )
    yield "penalized", on_arrays(lambda: ss.PenalizedERMRegressor(rank=2, random_state=0))
    for mode in ("freeze", "weighted", "pair"):
        yield (
            f"curriculum {mode}",
            on_arrays(lambda m=mode: ss.CurriculumRegressor(rank=2, random_state=0, **{MODE: m})),
        )
    yield "pooled", on_arrays(ss.PooledRegressor)
    yield "per task", on_arrays(ss.PerTaskRegressor)
    yield "per task, least squares", on_arrays(lambda: ss.PerTaskRegressor(alpha=0.0))
    yield "adaptive", on_arrays(ss.AdaptiveSpanRegressor)
    yield (
        "adaptive ml",
        on_arrays(lambda: ss.AdaptiveSpanRegressor(rank=1, slopes="diagonal", method="ml")),
    )
    yield "adaptive whitened", on_arrays(lambda: ss.AdaptiveSpanRegressor(whiten=True))
    known = span().fit(*table(SIM, False))
    for method in ("prior", "least_squares"):
        yield (
            f"new task {method}",
            on_arrays(lambda m=method: ss.NewTaskRegressor.from_model(known, method=m)),
        )
    yield "partial_fit", in_chunks
    yield "merge", merged
    yield "from a file", from_file(lambda: span())
    yield "from a file, rank auto", from_file(lambda: span(rank="auto"))
    yield "from a file, adaptive", from_file(ss.AdaptiveSpanRegressor)
    yield "list of arrays", as_list


VARIANT = "variant" if "variant" in ss.ARMULRegressor().get_params() else "structure"
MODE = "variant" if "variant" in ss.CurriculumRegressor().get_params() else "mode"


def in_chunks(permuted: bool):
    """Rows in three chunks."""
    X, y, task = table(SIM, permuted)
    model = ss.SharedSpanRegressor(rank=2, solver="auto", random_state=0)
    for part in np.array_split(np.arange(len(y)), 3):
        model.partial_fit(X[part], y[part], task=task[part])
    return model


def merged(permuted: bool):
    """Two sites that share statistics."""
    X, y, task = table(SIM, permuted)
    models = [
        ss.SharedSpanRegressor(rank=2, solver="auto", random_state=0).fit(
            X[part], y[part], task=task[part]
        )
        for part in np.array_split(np.arange(len(y)), 2)
    ]
    return models[0].merge(models[1])


def from_file(make):
    """The same rows from a CSV file."""

    def fit(permuted):
        X, y, task = table(SIM, permuted)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "table.csv"
            rows = np.column_stack([task, X, y])
            names = ["task", *(f"x{j}" for j in range(X.shape[1])), "y"]
            np.savetxt(path, rows, delimiter=",", header=",".join(names), comments="", fmt="%.17g")
            return make().fit_file(path, task="task", target="y")

    return fit


def as_list(permuted: bool):
    """One array per task."""
    X, y, task = table(SIM, permuted)
    labels = np.unique(task)
    model = ss.SharedSpanRegressor(rank=2, solver="auto", random_state=0)
    return model.fit([X[task == t] for t in labels], [y[task == t] for t in labels])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("save", "compare"))
    parser.add_argument("file")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    saved = {} if arguments.what == "save" else dict(np.load(arguments.file))
    found, failed = {}, 0
    for name, fit in fits():
        coef = fit(False).coef_
        found[name] = coef
        if arguments.what == "save":
            found[f"{name}, permuted"] = fit(True).coef_
            continue
        scale = np.abs(saved[name]).max()
        moved = np.abs(coef - saved[name]).max() / scale
        allowed = max(1e-12, 2 * np.abs(saved[f"{name}, permuted"] - saved[name]).max() / scale)
        failed += moved > allowed
        print(f"{name:28} {moved:9.1e} of {allowed:.1e} {'' if moved <= allowed else 'CHANGED'}")
    if arguments.what == "save":
        np.savez(arguments.file, **found)
    print(f"{len(found) // (2 if arguments.what == 'save' else 1)} fits, {failed} changed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
