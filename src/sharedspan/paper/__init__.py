"""The paper, figure by figure and table by table: ``sharedspan reproduce``.

An experiment declares a grid of cells (one simulated problem each, with its seed), a function that
runs a cell and yields rows of its table, and a figure drawn from that table alone. The protocol is
``experiment.Experiment``; this registry lists each experiment once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sharedspan.paper.experiment import Experiment

# The experiments by name, with module and class, in the order of the results page.
EXPERIMENTS = {
    "figure1": ("curves", "Figure1"),
    "figure2": ("curves", "Figure2"),
    "ablation": ("curves", "Ablation"),
    "crossover": ("crossover", "Crossover"),
    "table1": ("table1", "Table1"),
    "table2": ("table2", "Table2"),
    "transfer": ("transfer", "Transfer"),
    "curriculum": ("curriculum", "Curriculum"),
    "theory": ("theory", "Theory"),
}
# Findings beyond the paper, in the order of their own page.
FINDINGS = {
    "phase": ("findings.phase", "PhaseDiagram"),
    "speed": ("findings.speed", "Speed"),
    "misspecified": ("findings.misspecified", "Misspecified"),
    "conditioning": ("findings.conditioning", "Conditioning"),
    "covariances": ("findings.covariances", "Covariances"),
}


def experiment_named(name: str) -> Experiment:
    """Import and return the experiment, or the finding, of this name."""
    module, class_name = (EXPERIMENTS | FINDINGS)[name]
    return getattr(import_module(f"sharedspan.paper.{module}"), class_name)()
