"""Two-phase gradient descent, the paper's Algorithm 1, and each half of it alone."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from functools import partial

import numpy as np

from sharedspan.objective import Objective
from sharedspan.solvers.gradient import descend
from sharedspan.solvers.initialization import positive, small_random_start
from sharedspan.solvers.initialization import singular_values as estimate_singular_values
from sharedspan.solvers.state import Iterate, Solver

BALANCE = 1 / 8  # weight of |B'B - WW'|_F^2 in Phase II
RISK = 1e-5  # the probability of a start that needs more than phase_one_length; delta-tilde
NEEDS_TRUTH = (
    "{}='theory' needs the true singular values of the coefficients: give "
    "solver_options={{'steps': 'theory', 'singular_values': [...]}}."
)


def tpgd(
    objective: Objective,
    k: int,
    rng: np.random.Generator,
    *,
    max_iter: int,
    tol: float,
    steps: str | tuple[float, float] = "practical",
    singular_values: Sequence[float] | None = None,
    init_scale: float | str | None = None,
    phase_length: int | str | None = None,
    phases: str = "both",
) -> Solver:
    """TPGD: gradient descent on the plain loss, then on the balanced loss.

    Phase I   B <- B - eta_1 R W',                       W <- W - eta_1 B'R
    Phase II  B <- B - eta_2 [R W' + B (B'B - WW') / 2]  W <- W - eta_2 [B'R - (B'B - WW') W / 2]

    from a small random start; both factors move at once, and the last iterate is the result. Like
    those of all solvers, steps under which the loss rises are halved by ``loop.run``, which the
    paper does not do; with these step sizes that hardly ever happens if tasks are well conditioned,
    as the paper assumes. Otherwise no step size makes it converge soon: see ``slow_directions``.

    Parameters
    ----------
    objective : Objective
    k : int
        Rank.
    rng : numpy.random.Generator
        Draws B0, then W0.
    max_iter, tol
        As in ``loop.run``; with tol=0 each phase takes half of the iterations, otherwise Phase I
        takes ``phase_one_length``, as long as a direction of size s_k needs to grow, and at most
        half of them.
    steps : {"practical", "theory"} or pair of float
        "theory" takes the paper's steps, 1.1 / (kappa^5 s_1) and 0.1 / s_1, the first capped at
        0.5 / s_1 (above 1 / s_1 it is unstable, which is so for kappa < 1.02). "practical" takes
        0.5 / s_1 in both phases, with s_1 estimated from the data. A pair is
        (eta_1 s_1, eta_2 s_1).
    singular_values : sequence of float, optional
        The true s_1 >= ... >= s_k of V*, as "theory" needs them.
    init_scale : float or "theory", optional
        The paper's alpha-tilde; 0.01 sqrt(s_1) by default, Theorem 5.1's with "theory": see
        ``theory_scale``.
    phase_length : int or "theory", optional
        K_1 / 2, the iterations of Phase I, whatever max_iter and tol are; Theorem 5.1's with
        "theory": see ``theory_length``. Phase II takes the other iterations.
    phases : {"both", "one", "two"}
        For the ablation: one phase alone, to the end.

    References
    ----------
    Ding, Du and Fang (2026), Algorithm 1 and Theorem 5.1. The factor 1/2 of the correction is the
    gradient of (1/8) |B'B - WW'|_F^2, which the paper's display leaves out.
    """
    s = estimate_singular_values(objective, k, rng, singular_values)
    for name, option in (("init_scale", init_scale), ("phase_length", phase_length)):
        if option == "theory" and singular_values is None:
            raise ValueError(NEEDS_TRUTH.format(name))
    d, T = objective.n_features, objective.n_tasks
    eta_1, eta_2 = step_sizes(s, steps, known=singular_values is not None)
    alpha = theory_scale(s, d, T) if init_scale == "theory" else start_scale(s, init_scale)
    if phase_length is None:
        length = max_iter // 2
        length = length if tol == 0 else min(length, phase_one_length(s, eta_1, alpha, d))
    else:
        length = given_length(phase_length, s, eta_1, alpha)
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


def start_scale(s: np.ndarray, given: float | str | None) -> float:
    """The size of the random start."""
    if isinstance(given, str):
        raise ValueError(f"init_scale={given!r} must be a number above zero, or 'theory'.")
    return 0.01 * math.sqrt(s[0]) if given is None else positive("init_scale", given)


def theory_scale(s: np.ndarray, d: int, T: int) -> float:
    """Theorem 5.1's alpha-tilde, the size of its random start.

    sqrt(s_1) / [k^5 (d + T)^(2 + kappa / 2)] (delta-tilde / kappa^2)^kappa. The theorem prints s_1
    where the appendix has its root; only the root has the units of B. The constants that both leave
    open, C_1 and the factor, are 1 here, and the failure probability delta-tilde is 1e-5.
    """
    k, kappa = len(s), s[0] / s[-1]
    shrink = kappa * math.log(RISK / kappa**2) - (2 + kappa / 2) * math.log(d + T)
    alpha = math.sqrt(s[0]) / k**5 * math.exp(shrink)
    if alpha < 1e-300:
        raise ValueError(
            "init_scale='theory' is below the smallest float at a condition number of "
            f"{kappa:.3g}: give a number."
        )
    return alpha


def theory_length(s: np.ndarray, eta: float, alpha: float) -> int:
    """Theorem 5.1's K_1 / 2 = 2 kappa log(sqrt(s_1) / alpha-tilde) / log(1 + eta_1 s_k).

    The theorem has K_1 of the order 1 / (eta_1 s_k) and the appendix, which we follow, kappa times
    that; both leave out the logarithm that growth from a small start needs. The factor 2 also
    covers a start whose smallest direction is 1e-5 / sqrt(d k) of alpha-tilde, if alpha-tilde is
    the theorem's: that is smaller still.
    """
    growth = math.log1p(eta * s[-1])
    return max(1, math.ceil(2 * s[0] / s[-1] * math.log(math.sqrt(s[0]) / alpha) / growth))


def given_length(value: int | str, s: np.ndarray, eta: float, alpha: float) -> int:
    """The length of Phase I that the option ``phase_length`` gives."""
    if isinstance(value, str) and value == "theory":
        return theory_length(s, eta, alpha)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"phase_length={value!r} must be an integer of at least 1, or 'theory'.")
    return int(value)


def step_sizes(s: np.ndarray, steps: str | tuple[float, float], known: bool) -> tuple[float, float]:
    """eta_1 and eta_2; zero if there is no signal at all."""
    if not isinstance(steps, str):
        eta_1, eta_2 = (positive("steps", step) for step in steps)
    elif steps == "practical":
        eta_1, eta_2 = 0.5, 0.5
    elif steps != "theory":
        raise ValueError(f"steps={steps!r} is unknown: use 'practical', 'theory' or two numbers.")
    elif not known:
        raise ValueError(NEEDS_TRUTH.format("steps"))
    else:
        eta_1, eta_2 = min(1.1 / (s[0] / s[-1]) ** 5, 0.5), 0.1
    return (eta_1 / s[0], eta_2 / s[0]) if s[0] else (0.0, 0.0)


def phase_one_length(s: np.ndarray, eta: float, alpha: float, d: int) -> int:
    """K_1 / 2: growth from the random start to the size of s_k, at least 100 iterations.

    In the singular directions of V*, the mean of B and W' grows by 1 + eta s_i an iteration until
    it has the size sqrt(s_i). It starts as a Gaussian k x k matrix of deviation above
    alpha / (2 sqrt(d)), whose smallest singular value is below p / sqrt(k) deviations with
    probability at most p (Edelman 1988). We take p = 1e-5, so the growth is by
    2 sqrt(d k s_k) / (p alpha); e^3 more bring the factors near the truth.
    """
    growth = math.log1p(eta * s[-1])
    if growth == 0 or alpha == 0:
        return 100
    needed = math.log(2 * math.sqrt(d * len(s) * s[-1]) / (RISK * alpha)) + 3
    return max(100, math.ceil(needed / growth))
