"""The methods of the paper's figures and tables, with the paper's settings and with good ones.

"Paper's steps" are what the paper states: 1.1 / (kappa^5 s_1) in Phase I and for GD on Loss 1,
0.1 / s_1 in Phase II; where it points to the defaults of others, 0.1 / s_1 for Loss 2 and NSGD.
They need the true singular values. "Well set" steps are the largest that are safely stable, with
s_1 estimated from the data, as a user would run them.
"""

from __future__ import annotations

from sharedspan.paper.problem import PAPER, WELL_SET, Method

TPGD, LOSS_1, LOSS_2, NSGD = "TPGD", "GD + Loss 1", "GD + Loss 2", "NSGD"
LFFO, ALTMIN, SVP, ERM = "LF-FO", "AltMinGD", "GD + SVD", "ERM (ALS)"


def figure_methods(kappa: float) -> tuple[Method, ...]:
    """TPGD and its three rivals of Figures 1 and 2, twice."""
    first = min(1.1 / kappa**5, 0.5)  # capped as TPGD's own
    return (
        Method(TPGD, "tpgd", PAPER, oracle=True)(steps="theory"),
        Method(LOSS_1, "gd", PAPER, oracle=True)(step_size=first),
        Method(LOSS_2, "gd_balanced", PAPER, oracle=True)(step_size=0.1),
        Method(NSGD, "nsgd", PAPER, oracle=True)(step_size=0.1),
        Method(TPGD, "tpgd", WELL_SET),
        Method(LOSS_1, "gd", WELL_SET)(step_size=0.5),
        Method(LOSS_2, "gd_balanced", WELL_SET)(step_size=0.2),
        Method(NSGD, "nsgd", WELL_SET)(step_size=0.2, injected=0.0),
    )


def likelihood_methods(kappa: float) -> tuple[Method, ...]:
    """All solvers of the likelihood that Table 1 lists or the figures show."""
    return (
        *figure_methods(kappa),
        Method(LFFO, "lf_fo", WELL_SET),
        Method(ALTMIN, "altmin_gd", WELL_SET),
        Method(SVP, "svp", WELL_SET),
        Method(ERM, "als", WELL_SET),
    )


def ablation_methods() -> tuple[Method, ...]:
    """TPGD and each of its phases alone, with the paper's steps and with equal ones."""
    solvers = {TPGD: "tpgd", "Phase I only": "phase_one", "Phase II only": "phase_two"}
    return (
        *(Method(n, s, PAPER, oracle=True)(steps="theory") for n, s in solvers.items()),
        *(Method(n, s, WELL_SET) for n, s in solvers.items()),
    )
