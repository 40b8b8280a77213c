"""Solvers of min over (B, W) of loss(BW), by name.

A solver is called as ``solver(objective, k, rng, max_iter=, tol=, **options)`` and returns a
generator for ``loop.run``. All of them have the same minimiser in V = BW.
"""

from __future__ import annotations

from collections.abc import Callable

from sharedspan.solvers.gradient import gd, gd_balanced
from sharedspan.solvers.loop import Solver
from sharedspan.solvers.scaled import scaled_gd
from sharedspan.solvers.tpgd import phase_one, phase_two, tpgd

SOLVERS: dict[str, Callable[..., Solver]] = {
    "tpgd": tpgd,
    "phase_one": phase_one,
    "phase_two": phase_two,
    "gd": gd,
    "gd_balanced": gd_balanced,
    "scaled_gd": scaled_gd,
}
