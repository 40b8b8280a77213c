"""Two-phase gradient descent, the paper's Algorithm 1, and each half of it alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from sharedspan.objective import Objective
from sharedspan.solvers.gradient import descend
from sharedspan.solvers.initialization import positive, small_random_start
from sharedspan.solvers.initialization import singular_values as estimate_singular_values
from sharedspan.solvers.state import Iterate, Solver

BALANCE = 1 / 8  # weight of |B'B - WW'|_F^2 in Phase II


def tpgd(
    objective: Objective,
    k: int,
    rng: np.random.Generator,
    *,
    max_iter: int,
    tol: float,
    steps: str | tuple[float, float] = "practical",
    singular_values: Sequence[float] | None = None,
    init_scale: float | None = None,
    phases: str = "both",
) -> Solver:
    """TPGD: gradient descent on the plain loss, then on the balanced loss.

    Phase I   B <- B - eta_1 R W',                       W <- W - eta_1 B'R
    Phase II  B <- B - eta_2 [R W' + B (B'B - WW') / 2]  W <- W - eta_2 [B'R - (B'B - WW') W / 2]

    from a small random start; both factors move at once, and the last iterate is the result.

    Parameters
    ----------
    objective : Objective
    k : int
        Rank.
    rng : numpy.random.Generator
        Draws B0, then W0.
    max_iter, tol
        As in ``loop.run``; with tol=0 each phase takes half of the iterations, otherwise Phase I
        takes as long as a direction of size s_k needs to grow, and at most half of them.
    steps : {"practical", "theory"} or pair of float
        "theory" takes the paper's steps, 1.1 / (kappa^5 s_1) and 0.1 / s_1, the first capped at
        0.5 / s_1 (above 1 / s_1 it is unstable, which is so for kappa < 1.02). "practical" takes
        0.5 / s_1 in both phases, with s_1 estimated from the data. A pair is
        (eta_1 s_1, eta_2 s_1).
    singular_values : sequence of float, optional
        The true s_1 >= ... >= s_k of V*, as "theory" needs them.
    init_scale : float, optional
        The paper's alpha-tilde; 0.01 sqrt(s_1) by default.
    phases : {"both", "one", "two"}
        For the ablation: one phase alone, to the end.

    References
    ----------
    Ding, Du and Fang (2026), Algorithm 1 and Theorem 1. The factor 1/2 of the correction is the
    gradient of (1/8) |B'B - WW'|_F^2, which the paper's display leaves out.
    """
    s = estimate_singular_values(objective, k, rng, singular_values)
    eta_1, eta_2 = step_sizes(s, steps, known=singular_values is not None)
    alpha = start_scale(s, init_scale)
    length = phase_one_length(s, eta_1, alpha, objective.n_features)
    length = max_iter // 2 if tol == 0 else min(length, max_iter // 2)
    lengths = {"both": length, "one": math.inf, "two": 0}
    if phases not in lengths:
        raise ValueError(f"phases={phases!r} is unknown: use 'both', 'one' or 'two'.")

    begin = "II" if phases == "two" else "I"
    step = yield Iterate(*small_random_start(objective, k, alpha, rng), phase=begin)
    step = yield from descend(
        step, eta_1, until=lengths[phases], phase="I", may_stop=phases == "one"
    )
    yield from descend(step, eta_2, balance=BALANCE, phase="II")


phase_one = partial(tpgd, phases="one")
phase_two = partial(tpgd, phases="two")


def start_scale(s: np.ndarray, given: float | None) -> float:
    """The size of the random start."""
    return 0.01 * math.sqrt(s[0]) if given is None else positive("init_scale", given)


def step_sizes(s: np.ndarray, steps: str | tuple[float, float], known: bool) -> tuple[float, float]:
    """eta_1 and eta_2; zero if there is no signal at all."""
    if not isinstance(steps, str):
        eta_1, eta_2 = (positive("steps", step) for step in steps)
    elif steps == "practical":
        eta_1, eta_2 = 0.5, 0.5
    elif steps != "theory":
        raise ValueError(f"steps={steps!r} is unknown: use 'practical', 'theory' or two numbers.")
    elif not known:
        raise ValueError(
            "steps='theory' needs the true singular values of the coefficients: give "
            "solver_options={'steps': 'theory', 'singular_values': [...]}."
        )
    else:
        eta_1, eta_2 = min(1.1 / (s[0] / s[-1]) ** 5, 0.5), 0.1
    return (eta_1 / s[0], eta_2 / s[0]) if s[0] else (0.0, 0.0)


def phase_one_length(s: np.ndarray, eta: float, alpha: float, d: int) -> int:
    """K_1 / 2: growth from the random start to the size of s_k, at least 100 iterations."""
    growth = math.log1p(eta * s[-1])
    if growth == 0 or alpha == 0:
        return 100
    return max(100, math.ceil((math.log(10 * math.sqrt(d * s[0]) / alpha) + 3) / growth))
