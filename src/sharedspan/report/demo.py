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
from sharedspan.report.figures import BLUE, GREEN, GREY, ORANGE, new_figure, save

SIZE: dict[str, Any] = {"n_tasks": 200, "n_features": 50, "rank": 3, "n_samples": 80, "noise": 0.5}
TRAIN_SHARE = 0.25  # of each patient's rows: with few rows the tasks need each other most


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    method: str
    error: float
    ratio: float | None  # to the floor, where the truth is known
    seconds: float


@dataclass(frozen=True)
class Demo:
    """What the demonstration found."""

    simulated: list[Row]
    real: list[Row]
    simulated_rank: int
    real_rank: int
    figure: Path


def rivals() -> dict[str, Callable[[], TaskRegressor]]:
    """The three ways to fit many regressions."""
    return {
        "separate ridge per task": PerTaskRegressor,
        "pooled slopes, task intercepts": PooledRegressor,
        "shared span (TPGD)": lambda: SharedSpanRegressor(random_state=0),
    }


def run_demo(figure: Path, seed: int, tick: Callable[[str], None] = lambda text: None) -> Demo:
    """Fit everything, draw the figure, return the tables."""
    sim = simulate(**SIZE, condition_number=2.0, random_state=seed)
    floor = error_floor(SIZE["n_samples"], sim.X.shape[1], len(sim.coef), 3, SIZE["noise"])
    _warm_up()
    models, simulated = {}, []
    for name, make in rivals().items():
        tick(f"simulated tasks: {name}")
        models[name], seconds = _timed(make(), sim.X, sim.y, sim.task)
        error = parameter_error(models[name].coef_, sim.coef)
        simulated.append(Row(name, error, error / floor, seconds))
    tick("drawing")
    _draw(sim, models, floor, {row.method: row.ratio or 0.0 for row in simulated}, figure)
    real, rank = _real_table(seed, tick)
    span: Any = models["shared span (TPGD)"]
    return Demo(simulated, real, span.rank_, rank, figure)


def _real_table(seed: int, tick: Callable[[str], None]) -> tuple[list[Row], int]:
    """Root mean squared error on held-out recordings of the same patients."""
    data = load_parkinsons()
    train = np.random.default_rng(seed).random(len(data.y)) < TRAIN_SHARE
    rows, rank = [], 0
    for name, make in rivals().items():
        tick(f"parkinsons: {name}")
        model, seconds = _timed(make(), data.X[train], data.y[train], data.task[train])
        prediction = model.predict(data.X[~train], data.task[~train])
        error = float(np.sqrt(np.mean((data.y[~train] - prediction) ** 2)))
        rows.append(Row(name, error, None, seconds))
        rank = getattr(model, "rank_", rank)
    return rows, rank


def _timed(model: TaskRegressor, X: Any, y: Any, task: Any) -> tuple[TaskRegressor, float]:
    began = time.perf_counter()
    model.fit(X, y, task=task)
    return model, time.perf_counter() - began


def _warm_up() -> None:
    """Compile the kernels, so that the times in the table are those of the work."""
    sim = simulate(n_tasks=4, n_features=3, rank=1, n_samples=8, random_state=0)
    for make in rivals().values():
        make().fit(sim.X, sim.y, task=sim.task)


def _draw(
    sim: Simulation, models: dict[str, Any], floor: float, ratios: dict[str, float], path: Path
) -> None:
    span = models["shared span (TPGD)"]
    errors: list[float] = []
    two_phases = SharedSpanRegressor(
        rank=span.rank_, fit_intercept=False, whiten=False, random_state=0,
        solver_options={"callback": lambda at: errors.append(
            parameter_error((at["B"] @ at["W"]).T, sim.coef))},
    )  # fmt: skip
    two_phases.fit(sim.X, sim.y, task=sim.task)
    phase_two = int(np.argmax(two_phases.trace_["phase"] == "II"))
    figure, (left, right) = new_figure(2)
    separate, pooled, _ = ratios
    _draw_convergence(
        left, np.array(errors) / floor, phase_two,
        {"separate": ratios[separate], "pooled": ratios[pooled]},
    )  # fmt: skip
    spectra = {
        "truth": sim.coef,
        "separate ridge": models[separate].coef_,
        "shared span": span.coef_,
    }
    _draw_spectra(
        right, {name: np.linalg.svd(coef, compute_uv=False) for name, coef in spectra.items()}
    )
    save(figure, path)


def _draw_convergence(
    panel: Any, ratio: np.ndarray, phase_two: int, rivals: dict[str, float]
) -> None:
    """Error over the floor against iterations, with the start of Phase II and rivals' levels."""
    panel.semilogy(
        np.arange(1, len(ratio) + 1), ratio, color=BLUE, lw=2, label="shared span (TPGD)"
    )
    for (name, level), color in zip(rivals.items(), (ORANGE, GREEN), strict=False):
        panel.axhline(level, color=color, ls="--", lw=1.5, label=f"{name}: {level:.1f}")
    panel.axhline(1.0, color=GREY, lw=1, ls=":", label="floor: 1")
    if phase_two < len(ratio):
        panel.axvline(phase_two, color=GREY, lw=0.8)
        panel.annotate(
            "Phase II", (phase_two, 0.8), xycoords=("data", "axes fraction"), xytext=(-4, 0),
            textcoords="offset points", ha="right", va="top", color=GREY, fontsize=9,
        )  # fmt: skip
    panel.set(xlabel="iteration", ylabel="parameter error / floor", title="Convergence")
    panel.legend(fontsize=9, framealpha=1, edgecolor="none", loc="center right",
                 bbox_to_anchor=(0.86, 0.48))  # fmt: skip


def _draw_spectra(panel: Any, spectra: dict[str, np.ndarray], shown: int = 12) -> None:
    """Singular values of coefficient matrices, the first few of each."""
    styles = zip((GREY, ORANGE, BLUE), ("_", "s", "o"), (14, 5, 6), strict=True)
    for (name, values), (color, marker, size) in zip(spectra.items(), styles, strict=False):
        values = values[:shown]
        panel.plot(
            np.arange(1, len(values) + 1), values, marker=marker, ms=size, ls="none", color=color,
            mew=2 if marker == "_" else 0.5, label=name, clip_on=False, zorder=3,
        )  # fmt: skip
    panel.set(xlabel="direction", ylabel="singular value of the coefficients",
              title="Learned spectrum")  # fmt: skip
    panel.set_ylim(bottom=0)
    panel.set_xticks(np.arange(1, shown + 1))
    panel.legend(frameon=False, fontsize=9)
