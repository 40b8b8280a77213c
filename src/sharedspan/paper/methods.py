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
STEPS = {PAPER: PAPER, WELL_SET: "well-set steps"}  # settings in sentences
ETA_1 = "eta_1"  # as a step size: that of Phase I, min(1.1 / kappa^5, 0.5), which needs the truth


@dataclass(frozen=True)
class Method:
    """A solver with its settings; ``oracle`` gives it the true singular values."""

    name: str
    solver: str
    setting: str
    options: dict[str, Any] = field(default_factory=dict)
    oracle: bool = False


FIGURE_METHODS = (  # TPGD and its three rivals of Figures 1 and 2
    Method(TPGD, "tpgd", PAPER, {"steps": "theory"}, oracle=True),
    Method(LOSS_1, "gd", PAPER, {"step_size": ETA_1}, oracle=True),
    Method(LOSS_2, "gd_balanced", PAPER, {"step_size": 0.1}, oracle=True),
    Method(NSGD, "nsgd", PAPER, {"step_size": 0.1}, oracle=True),
    Method(TPGD, "tpgd", WELL_SET),
    Method(LOSS_1, "gd", WELL_SET, {"step_size": 0.5}),
    Method(LOSS_2, "gd_balanced", WELL_SET, {"step_size": 0.2}),
    Method(NSGD, "nsgd", WELL_SET, {"step_size": 0.2, "injected": 0.0}),
)
LIKELIHOOD_METHODS = (  # all solvers of the likelihood that Table 1 lists or the figures show
    *FIGURE_METHODS,
    Method(LFFO, "lf_fo", WELL_SET),
    Method(ALTMIN, "altmin_gd", WELL_SET),
    Method(SVP, "svp", WELL_SET),
    Method(ERM, "als", WELL_SET),
)
ABLATION_METHODS = tuple(  # TPGD and each of its phases alone
    Method(name, solver, setting, options, oracle=setting == PAPER)
    for setting, options in ((PAPER, {"steps": "theory"}), (WELL_SET, {}))
    for name, solver in
    ((TPGD, "tpgd"), (PHASE_ONE_ONLY, "phase_one"), (PHASE_TWO_ONLY, "phase_two"))
)  # fmt: skip


def with_steps(setting: str) -> str:
    """A setting as a part of a sentence: "with the paper's steps"."""
    return f"with {'the ' if setting == PAPER else ''}{STEPS.get(setting, setting)}"


def named(methods: tuple[Method, ...], name: str, setting: str) -> Method:
    """The method of this name and setting."""
    return next(m for m in methods if (m.name, m.setting) == (name, setting))
