"""The demonstration: one real table, then simulated tasks with a known truth."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharedspan.datasets.bundled import load_parkinsons
from sharedspan.datasets.simulate import Simulation, simulate
from sharedspan.diagnosis.verdict import paired_gain, sharing_verdict
from sharedspan.estimators.adaptive import AdaptiveSpanRegressor
from sharedspan.estimators.base import TaskEstimator
from sharedspan.estimators.baselines import PerTaskRegressor, PooledRegressor
from sharedspan.estimators.shared_span import SharedSpanRegressor
from sharedspan.inference.noise import error_floor, parameter_error
from sharedspan.report import figures
from sharedspan.report.figures import BLUE, GREEN, GREY, ORANGE

ALL, EACH, SHARED = "the same slopes for all patients", "one model per patient", "sharedspan"
ON_PATIENTS: dict[str, Callable[[], TaskEstimator]] = {
    ALL: PooledRegressor,
    EACH: PerTaskRegressor,
    SHARED: AdaptiveSpanRegressor,
}
COLORS = {ALL: GREEN, EACH: ORANGE, SHARED: BLUE}
ROWS = (8, 16, 32, 64)  # of each patient that are fitted
MOST_ROWS = 96  # that are ever fitted: the others are held out
DRAWS = 3  # of these rows
SIZE: dict[str, Any] = {"n_tasks": 200, "n_features": 50, "rank": 3, "n_samples": 80, "noise": 0.5}
SEPARATE, POOLED, SPAN = (
    "separate ridge per task",
    "the same slopes, task intercepts",
    "shared span (TPGD)",
)
METHODS: dict[str, Callable[[], TaskEstimator]] = {
    SEPARATE: PerTaskRegressor,
    POOLED: PooledRegressor,
    SPAN: lambda: SharedSpanRegressor(solver="tpgd", random_state=0),
}


@dataclass(frozen=True)
class Row:
    """A method on the simulated tasks."""

    method: str
    error: float
    ratio: float  # to the floor
    seconds: float


@dataclass(frozen=True)
class Demo:
    """The tables of the demonstration, and its figure."""

    rows_per_patient: tuple[int, ...]
    real: dict[str, list[float]]  # errors of each method, one for each number of rows
    verdict: str  # on the fewest rows
    real_seconds: float
    simulated: list[Row]
    simulated_rank: int
    figure: Path


def run_demo(figure: Path, seed: int, progress: Callable[[str], object] = str) -> Demo:
    """Fit all methods, draw the figure, and return the tables."""
    tiny = simulate(n_tasks=4, n_features=3, rank=1, n_samples=8, random_state=0)
    for make in (AdaptiveSpanRegressor, *METHODS.values()):
        progress("compiling")
        make().fit(tiny.X, tiny.y, task=tiny.task)  # before times are measured
    began = time.perf_counter()
    by_rows = errors_by_rows(ROWS, DRAWS, seed, progress)
    real_seconds = time.perf_counter() - began
    least = {name: each[0] for name, each in by_rows.items()}
    gains = [
        paired_gain("pooled", least[SHARED], least[ALL]),
        paired_gain("separate", least[SHARED], least[EACH]),
    ]
    words = {"pooled": ALL, "separate": EACH}
    verdict = sharing_verdict(gains, words=words, task="patient").sentence().replace("\u00a0", " ")
    sim = simulate(**SIZE, random_state=seed)
    floor = error_floor(SIZE["n_samples"], sim.X.shape[1], len(sim.coef), 3, SIZE["noise"])
    models, seconds = _fit_all(sim, progress)
    errors = {name: parameter_error(model.coef_, sim.coef) for name, model in models.items()}
    progress("drawing")
    canvas, [[left, middle, right]] = figures.blank_figure(1, 3, (15.0, 4.0))
    draw_errors_by_rows(left, ROWS, {name: each.mean(axis=1) for name, each in by_rows.items()})
    left.set_title("A real table: 42 patients")
    _draw_convergence(middle, sim, models[SPAN].rank_, errors, floor)
    _draw_spectra(right, sim, models)
    figures.save_figure(canvas, figure)
    return Demo(
        rows_per_patient=ROWS,
        real={name: each.mean(axis=1).tolist() for name, each in by_rows.items()},
        verdict=verdict,
        real_seconds=real_seconds,
        simulated=[
            Row(name, errors[name], errors[name] / floor, seconds[name]) for name in METHODS
        ],
        simulated_rank=models[SPAN].rank_,
        figure=figure,
    )


def errors_by_rows(
    rows: Sequence[int], draws: int, seed: int = 0, progress: Callable[[str], object] = str
) -> dict[str, np.ndarray]:
    """Root mean squared errors on held-out recordings of the patients, (sizes, draws) each.

    ``rows`` are numbers of rows of each patient that are fitted, drawn at random ``draws`` times.
    The same rows are held out for all of these numbers.
    """
    data = load_parkinsons()
    X, y = np.asarray(data.X, float), np.asarray(data.y, float)
    _, task = np.unique(data.task, return_inverse=True)
    counts = np.bincount(task)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    errors = {name: np.empty((len(rows), draws)) for name in ON_PATIENTS}
    for draw in range(draws):
        order = np.lexsort((np.random.default_rng([seed, draw]).random(len(y)), task))
        place = np.empty(len(y), dtype=int)  # of each row among those of its patient
        place[order] = np.arange(len(y)) - first
        held = place >= MOST_ROWS
        for i, n in enumerate(rows):
            train = place < n
            for name, make in ON_PATIENTS.items():
                progress(f"patients, {n} rows of each: {name}")
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # few rows: features are nearly collinear
                    model = make().fit(X[train], y[train], task=task[train])
                gap = model.predict(X[held], task=task[held]) - y[held]
                errors[name][i, draw] = np.sqrt(np.mean(gap**2))
    return errors


def draw_errors_by_rows(panel: Any, rows: Sequence[int], errors: dict[str, np.ndarray]) -> None:
    """Errors of the methods on the patients, (sizes,) each, against the rows that are fitted."""
    for name, values in errors.items():
        width = 2.5 if name == SHARED else 1.8
        panel.plot(rows, values, marker="o", ms=4, lw=width, color=COLORS[name], label=name)
    panel.set_xscale("log", base=2)
    panel.set_xticks(rows, [str(n) for n in rows])
    panel.minorticks_off()
    panel.set(xlabel="rows per patient in the fit", ylabel="error on held-out rows (RMSE)")
    panel.set_ylim(0, None)
    panel.legend(frameon=False, fontsize=9)


def _fit_all(
    sim: Simulation, progress: Callable[[str], object]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Each method's model of the simulated tasks, and its seconds."""
    models, seconds = {}, {}
    for name, make in METHODS.items():
        progress(f"simulated tasks: {name}")
        began = time.perf_counter()
        models[name] = make().fit(sim.X, sim.y, task=sim.task)
        seconds[name] = time.perf_counter() - began
    return models, seconds


def _draw_convergence(
    panel: Any, sim: Simulation, rank: int, levels: dict[str, float], floor: float
) -> None:
    """Plot the error over TPGD's iterations, with the levels of the other methods."""
    errors: list[float] = []
    two_phases = SharedSpanRegressor(
        rank=rank, solver="tpgd", fit_intercept=False, whiten=False, random_state=0,
        callback=lambda at: errors.append(
            parameter_error((at["B"] @ at["W"]).T, sim.coef)),
    )  # fmt: skip
    two_phases.fit(sim.X, sim.y, task=sim.task)
    panel.semilogy(np.arange(1, len(errors) + 1), np.array(errors) / floor, color=BLUE, lw=2,
                   label=SPAN)  # fmt: skip
    for label, name, color in (("separate", SEPARATE, ORANGE), ("pooled", POOLED, GREEN)):
        level = levels[name] / floor
        panel.axhline(level, color=color, ls="--", lw=1.5, label=f"{label}: {level:.1f}")
    panel.axhline(1.0, color=GREY, lw=1, ls=":", label="floor: 1")
    figures.mark_phases(panel, two_phases.trace_, height=0.75)
    panel.set(xlabel="iteration", ylabel="parameter error / floor",
              title="Simulated tasks: convergence of TPGD")  # fmt: skip
    panel.legend(fontsize=9, framealpha=1, edgecolor="none", loc="center right",
                 bbox_to_anchor=(0.86, 0.48))  # fmt: skip


def _draw_spectra(panel: Any, sim: Simulation, models: dict[str, Any]) -> None:
    """Singular values of the coefficients: learned, of separate fits, and the truth."""
    spectra = [np.linalg.svd(coef, compute_uv=False)
               for coef in (models[SPAN].coef_, models[SEPARATE].coef_, sim.coef)]  # fmt: skip
    figures.draw_spectrum(panel, spectra[0], models[SPAN].rank_, spectra[1])
    truth = spectra[2][: SIZE["rank"]]
    panel.plot(np.arange(1, len(truth) + 1), truth, ls="none", marker="_", ms=14, mew=2,
               color=GREY, label="truth; zero beyond it", zorder=4)  # fmt: skip
    panel.set(xlabel="direction", ylabel="singular value of the coefficients",
              title="Simulated tasks: learned directions")  # fmt: skip
    panel.legend(frameon=False, fontsize=9)
