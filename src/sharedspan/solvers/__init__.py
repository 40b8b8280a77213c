"""Solvers of min over (B, W) of loss(BW), by name.

A solver is called as ``solver(objective, k, rng, max_iter=, tol=, **options)`` and returns a
generator for ``loop.run``. All of them have the same minimiser in V = BW.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sharedspan.solvers.alternating import als, altmin_gd
from sharedspan.solvers.auto import auto
from sharedspan.solvers.gradient import gd, gd_balanced, svp
from sharedspan.solvers.quasi_newton import lf_fo, variable_projection
from sharedspan.solvers.scaled import scaled_gd, scaled_gd_anderson
from sharedspan.solvers.state import Solver
from sharedspan.solvers.stochastic import nsgd
from sharedspan.solvers.tpgd import phase_one, phase_two, tpgd

SOLVERS: dict[str, Callable[..., Solver]] = {
    "tpgd": tpgd,
    "phase_one": phase_one,
    "phase_two": phase_two,
    "gd": gd,
    "gd_balanced": gd_balanced,
    "lf_fo": lf_fo,
    "nsgd": nsgd,
    "altmin_gd": altmin_gd,
    "svp": svp,
    "als": als,
    "scaled_gd": scaled_gd,
    "scaled_gd_anderson": scaled_gd_anderson,
    "variable_projection": variable_projection,
    "auto": auto,
}

# Solvers that use W only in sums over tasks, so that it may be stored on a GPU.
SUM_SOLVERS = (
    "tpgd",
    "phase_one",
    "phase_two",
    "gd",
    "gd_balanced",
    "scaled_gd",
    "scaled_gd_anderson",
    "variable_projection",
    "auto",
)


def needs_rows(solver: str, options: dict[str, Any]) -> bool:
    """Whether a solver draws or splits rows, so that sums per task are not enough for it."""
    return solver == "nsgd" or (solver == "altmin_gd" and options.get("split", "none") != "none")
