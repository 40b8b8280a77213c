"""The methods of the paper's figures and tables, with the paper's settings and with good ones.

"Paper's steps" are the steps that the paper states: 1.1 / (kappa^5 s_1) in Phase I and for GD on
Loss 1, and 0.1 / s_1 in Phase II. For Loss 2 and NSGD, for which it refers to the defaults of
others, they are 0.1 / s_1. They need the true singular values. "Well set" steps are the largest
that are safely stable, with s_1 estimated from the data, as a user would run the methods.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PAPER, WELL_SET = SETTINGS = ("paper's steps", "well set")
TPGD, LOSS_1, LOSS_2, NSGD = "TPGD", "GD + Loss 1", "GD + Loss 2", "NSGD"
LFFO, ALTMIN, SVP, ERM = "LF-FO", "AltMinGD", "GD + SVD", "ERM (ALS)"
PHASE_ONE_ONLY, PHASE_TWO_ONLY = "Phase I only", "Phase II only"


@dataclass(frozen=True)
class Method:
    """A solver with its settings; ``oracle`` gives it the true singular values."""

    name: str
    solver: str
    setting: str
    options: dict[str, Any] = field(default_factory=dict)
    oracle: bool = False


def figure_methods(kappa: float) -> tuple[Method, ...]:
    """TPGD and its three rivals of Figures 1 and 2, with the paper's steps and well set."""
    first = min(1.1 / kappa**5, 0.5)  # the cap that TPGD itself applies
    return (
        Method(TPGD, "tpgd", PAPER, {"steps": "theory"}, oracle=True),
        Method(LOSS_1, "gd", PAPER, {"step_size": first}, oracle=True),
        Method(LOSS_2, "gd_balanced", PAPER, {"step_size": 0.1}, oracle=True),
        Method(NSGD, "nsgd", PAPER, {"step_size": 0.1}, oracle=True),
        Method(TPGD, "tpgd", WELL_SET),
        Method(LOSS_1, "gd", WELL_SET, {"step_size": 0.5}),
        Method(LOSS_2, "gd_balanced", WELL_SET, {"step_size": 0.2}),
        Method(NSGD, "nsgd", WELL_SET, {"step_size": 0.2, "injected": 0.0}),
    )


def likelihood_methods(kappa: float) -> tuple[Method, ...]:
    """All solvers of the likelihood that Table 1 lists or the figures show."""
    others = {LFFO: "lf_fo", ALTMIN: "altmin_gd", SVP: "svp", ERM: "als"}
    return figure_methods(kappa) + tuple(Method(n, s, WELL_SET) for n, s in others.items())


def ablation_methods() -> tuple[Method, ...]:
    """TPGD and each of its phases alone, with the paper's steps and with equal ones."""
    solvers = {TPGD: "tpgd", PHASE_ONE_ONLY: "phase_one", PHASE_TWO_ONLY: "phase_two"}
    return (
        *(Method(n, s, PAPER, {"steps": "theory"}, oracle=True) for n, s in solvers.items()),
        *(Method(n, s, WELL_SET) for n, s in solvers.items()),
    )
