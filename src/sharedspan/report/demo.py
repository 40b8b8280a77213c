"""The demonstration: simulated tasks with a known truth, and one real table."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharedspan.datasets.bundled import load_parkinsons
from sharedspan.datasets.simulate import Simulation, simulate
from sharedspan.estimators.base import TaskRegressor
from sharedspan.estimators.baselines import PerTaskRegressor, PooledRegressor
from sharedspan.estimators.shared_span import SharedSpanRegressor
from sharedspan.inference.noise import error_floor, parameter_error
from sharedspan.report import figures
from sharedspan.report.figures import BLUE, GREEN, GREY, ORANGE

SIZE: dict[str, Any] = {"n_tasks": 200, "n_features": 50, "rank": 3, "n_samples": 80, "noise": 0.5}
TRAIN_SHARE = 0.25  # of each patient's rows; sharing helps most if there are few
SEPARATE, POOLED, SPAN = (
    "separate ridge per task",
    "pooled slopes, task intercepts",
    "shared span (TPGD)",
)
METHODS: dict[str, Callable[[], TaskRegressor]] = {
    SEPARATE: PerTaskRegressor,
    POOLED: PooledRegressor,
    SPAN: lambda: SharedSpanRegressor(solver="tpgd", random_state=0),
}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    method: str
    error: float
    ratio: float | None  # to the floor, if the truth is known
    seconds: float


@dataclass(frozen=True)
class Demo:
    """The tables of the demonstration, and its figure."""

    simulated: list[Row]
    real: list[Row]
    simulated_rank: int
    real_rank: int
    figure: Path


def run_demo(figure: Path, seed: int, progress: Callable[[str], object] = str) -> Demo:
    """Fit all methods, draw the figure, and return the tables."""
    tiny = simulate(n_tasks=4, n_features=3, rank=1, n_samples=8, random_state=0)
    _fit_all(tiny, slice(None), str)  # compiles the kernels before times are measured
    sim = simulate(**SIZE, condition_number=2.0, random_state=seed)
    floor = error_floor(SIZE["n_samples"], sim.X.shape[1], len(sim.coef), 3, SIZE["noise"])
    models, seconds = _fit_all(sim, slice(None), lambda name: progress(f"simulated tasks: {name}"))
    errors = {name: parameter_error(model.coef_, sim.coef) for name, model in models.items()}
    simulated = [Row(name, errors[name], errors[name] / floor, seconds[name]) for name in METHODS]
    progress("drawing")
    _draw(sim, models, errors, floor, figure)
    # Root mean squared error on held-out recordings of the same patients.
    data = load_parkinsons()
    train = np.random.default_rng(seed).random(len(data.y)) < TRAIN_SHARE
    fits, seconds = _fit_all(data, train, lambda name: progress(f"parkinsons: {name}"))
    real = []
    for name, model in fits.items():
        residual = data.y[~train] - model.predict(data.X[~train], data.task[~train])
        real.append(Row(name, float(np.sqrt(np.mean(residual**2))), None, seconds[name]))
    return Demo(simulated, real, models[SPAN].rank_, fits[SPAN].rank_, figure)


def _fit_all(
    data: Any, rows: Any, progress: Callable[[str], object]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Each method's model, fitted to some rows, and its seconds."""
    models, seconds = {}, {}
    for name, make in METHODS.items():
        progress(name)
        began = time.perf_counter()
        models[name] = make().fit(data.X[rows], data.y[rows], task=data.task[rows])
        seconds[name] = time.perf_counter() - began
    return models, seconds


def _draw(
    sim: Simulation, models: dict[str, Any], levels: dict[str, float], floor: float, path: Path
) -> None:
    """The error over iterations against the levels of the other methods, and the spectra."""
    errors: list[float] = []
    two_phases = SharedSpanRegressor(
        rank=models[SPAN].rank_, solver="tpgd", fit_intercept=False, whiten=False, random_state=0,
        callback=lambda at: errors.append(
            parameter_error((at["B"] @ at["W"]).T, sim.coef)),
    )  # fmt: skip
    two_phases.fit(sim.X, sim.y, task=sim.task)
    figure, [[left, right]] = figures.blank_figure(1, 2, (10.4, 4.0))
    left.semilogy(np.arange(1, len(errors) + 1), np.array(errors) / floor, color=BLUE, lw=2,
                  label=SPAN)  # fmt: skip
    for label, name, color in (("separate", SEPARATE, ORANGE), ("pooled", POOLED, GREEN)):
        level = levels[name] / floor
        left.axhline(level, color=color, ls="--", lw=1.5, label=f"{label}: {level:.1f}")
    left.axhline(1.0, color=GREY, lw=1, ls=":", label="floor: 1")
    figures.mark_phases(left, two_phases.trace_, height=0.75)
    left.set(xlabel="iteration", ylabel="parameter error / floor", title="Convergence")
    left.legend(fontsize=9, framealpha=1, edgecolor="none", loc="center right",
                bbox_to_anchor=(0.86, 0.48))  # fmt: skip
    spectra = [np.linalg.svd(coef, compute_uv=False)
               for coef in (models[SPAN].coef_, models[SEPARATE].coef_, sim.coef)]  # fmt: skip
    figures.draw_spectrum(right, spectra[0], models[SPAN].rank_, spectra[1])
    truth = spectra[2][: SIZE["rank"]]
    right.plot(np.arange(1, len(truth) + 1), truth, ls="none", marker="_", ms=14, mew=2, color=GREY,
               label="truth; zero beyond it", zorder=4)  # fmt: skip
    right.set(xlabel="direction", ylabel="singular value of the coefficients",
              title="Learned spectrum")  # fmt: skip
    right.legend(frameon=False, fontsize=9)
    figures.save_figure(figure, path)
