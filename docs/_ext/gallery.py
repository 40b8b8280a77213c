"""The order of the gallery's pages, and how their figures look."""

from typing import Any

PAGES = (
    "plot_shared_span.py",
    "plot_adaptive.py",
    "plot_new_task.py",
    "plot_pooled.py",
    "plot_per_task.py",
    "plot_curriculum.py",
    "plot_penalized.py",
    "plot_armul.py",
    "plot_spectral.py",
    "plot_moment.py",
    "plot_figures.py",
    "plot_stream.py",
)

# Colours that a colour-blind reader can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#666666", "#CC79A7", "#E69F00")


class Order:
    """A sorting key of file names: what one needs first comes first."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, name: str) -> int:
        return PAGES.index(name)


def set_style(gallery_conf: dict[str, Any], name: str) -> None:
    """Called by sphinx-gallery before each page."""
    import matplotlib.pyplot as plt
    from cycler import cycler

    plt.rcParams.update(
        {
            "axes.prop_cycle": cycler(color=COLOURS),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "figure.constrained_layout.use": True,
            "figure.figsize": (8.0, 3.6),
            "grid.alpha": 0.25,
            "grid.linewidth": 0.6,
            "legend.frameon": False,
            "savefig.dpi": 150,
        }
    )
