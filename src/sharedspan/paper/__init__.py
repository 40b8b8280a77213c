"""The paper, figure by figure and table by table: ``sharedspan reproduce``.

An experiment is a module with a grid of cells (one simulated problem each, with its seed), a
function that runs a cell and yields rows of its table, and a figure drawn from that table alone.
"""

from __future__ import annotations

EXPERIMENTS = (
    "figure1", "figure2", "ablation", "table1", "table2", "transfer", "curriculum", "theory",
)  # fmt: skip
