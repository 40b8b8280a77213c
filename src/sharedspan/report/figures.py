"""Figures, drawn off-screen, in colours that a colour-blind reader can tell apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"


def new_figure(n_panels: int) -> tuple[Any, list[Any]]:
    """A figure of panels side by side."""
    figure, panels = blank_figure(1, n_panels, (5.2 * n_panels, 4.0))
    return figure, panels[0]


def blank_figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, list[list[Any]]]:
    """A figure of rows of panels, without touching matplotlib's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel in panels.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25, linewidth=0.6)
    return figure, panels.tolist()


def plot_convergence(
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


def plot_spectrum(panel: Any, spectra: dict[str, np.ndarray], shown: int = 12) -> None:
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


def plot_rank_path(path: Any, ax: Any = None) -> Any:
    """The loss along the ranks, with error bars where there are any, and the rank chosen.

    Parameters
    ----------
    path : RankPath or fitted estimator
        An estimator gives its ``rank_path_``.
    ax : matplotlib axes, optional
        Where to draw; by default on a new figure, off-screen: ``ax.figure.savefig(...)``.

    Returns
    -------
    matplotlib axes
    """
    path = getattr(path, "rank_path_", path)
    if path is None:
        raise ValueError(
            "There is no path of ranks: the rank was given, or there was nothing to choose. Fit "
            "with rank='auto', 'evidence' or 'threshold'."
        )
    panel = new_figure(1)[1][0] if ax is None else ax
    bars = path.standard_error if path.standard_error.any() else None
    panel.errorbar(
        path.ranks, path.loss, yerr=bars, color=BLUE, marker="o", ms=5, lw=1.5, capsize=3,
        label=path.columns[0] if bars is None else f"{path.columns[0]}, error of excess over best",
    )  # fmt: skip
    chosen = path.loss[path.ranks == path.rank]
    panel.plot([path.rank], chosen, marker="o", ms=12, mew=2, mfc="none", ls="none", color=ORANGE,
               zorder=4, label=f"chosen: rank {path.rank}")  # fmt: skip
    panel.axvline(path.rank, color=ORANGE, lw=1, ls=":", zorder=1)
    if path.method == "threshold":
        panel.axhline(path.loss[0] - path.difference[0], color=GREY, lw=1, ls="--",
                      label="threshold")  # fmt: skip
    panel.set(xlabel="rank", ylabel=path.columns[0], title="Choice of the rank")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.legend(frameon=False, fontsize=9)
    return panel


def save(figure: Any, path: Path) -> None:
    """Write the figure; the ending of the path decides the format."""
    figure.savefig(path)
