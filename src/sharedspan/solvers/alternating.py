"""Alternating solvers: one factor by least squares, the other by least squares or a gradient."""

from __future__ import annotations

import math

import numpy as np

from sharedspan.objective import Objective, RowObjective
from sharedspan.solvers.initialization import positive, random_halves, small_random_start
from sharedspan.solvers.scaled import grown_start
from sharedspan.solvers.state import Iterate, Solver, any_budget
from sharedspan.subspace import orthonormal_basis

CG_TOLERANCE = 1e-13
CG_ITERATIONS = 500
SPLIT_ITERATIONS = 200


@any_budget
def als(objective: Objective, k: int) -> Solver:
    """Exact alternating least squares, the reference for empirical risk minimisation.

    W = argmin loss(BW) for fixed B, then B = argmin loss(BW) for fixed W, by conjugate gradients
    to full precision: the system is k d x k d, and a product with it is one pass over the data.

    References
    ----------
    Du, Hu, Kakade, Lee and Lei (2021), "Few-shot learning via learning the representation,
    provably", whose estimator this computes.
    """
    B, W = grown_start(objective, k)
    step = yield Iterate(B, W)
    while True:
        B = orthonormal_basis(solve_B(objective, step.point.B, step.point.W))
        W = objective.solve_W(B, B.T @ step.point.B @ step.point.W)
        step = yield Iterate(B, W)


def solve_B(
    objective: Objective, B: np.ndarray, W: np.ndarray, D: np.ndarray | float = 0.0
) -> np.ndarray:
    """The B (d, k) that minimises loss(BW + D), by conjugate gradients from B.

    The Hessian is near WW' (x) I in a canonical problem, so (WW')^-1 makes a good preconditioner.
    """
    at_zero = objective.residuals(0 * B @ W + D)[0]
    inverse = np.linalg.pinv(W @ W.T, hermitian=True)
    residual = -objective.residuals(B @ W + D)[0] @ W.T
    first = float(np.linalg.norm(residual))
    Z = residual @ inverse
    direction, rho = Z, float(np.sum(residual * Z))
    for _ in range(CG_ITERATIONS):
        curved = (objective.residuals(direction @ W + D)[0] - at_zero) @ W.T
        bend = float(np.sum(direction * curved))
        if np.linalg.norm(residual) <= CG_TOLERANCE * first or rho <= 0 or bend <= 0:
            break
        length = rho / bend
        B = B + length * direction
        residual = residual - length * curved
        Z = residual @ inverse
        rho, last = float(np.sum(residual * Z)), rho
        direction = Z + rho / last * direction
    return B


def altmin_gd(
    objective: Objective,
    k: int,
    rng: np.random.Generator,
    *,
    max_iter: int,
    tol: float,
    split: str = "none",
    start: str | None = None,
    step_size: float = 0.5,
) -> Solver:
    """AltMinGD: the exact W, one gradient step in B, QR.

    W = argmin loss(BW) on one half of the rows, B <- Q of QR(B - eta R W') on the other half, with
    eta = step_size / lmax(WW'). With a split the last W is by least squares on all rows.

    Parameters
    ----------
    split : {"none", "half", "theory"}
        "none" uses all rows in both steps; "half" two fixed halves, for 200 iterations; "theory"
        two halves and, in each iteration, a fresh part of the tasks for the step in B, until all
        tasks are used.
    start : {"random", "moment"}, optional
        Q of a Gaussian matrix, or the leading directions of the moments [X_t'y_t / n_t]. "theory"
        has too few iterations for a random start and takes "moment" by default, others "random".
    step_size : float

    References
    ----------
    Thekumparampil, Jain, Netrapalli and Oh (2021), "Statistically and computationally efficient
    linear meta-representation learning", Algorithm 1.
    """
    if split not in ("none", "half", "theory"):
        raise ValueError(f"split={split!r} is unknown: use 'none', 'half' or 'theory'.")
    positive("step_size", step_size)
    T = objective.n_tasks
    start = start or ("moment" if split == "theory" else "random")
    if start not in ("random", "moment"):
        raise ValueError(f"start={start!r} is unknown: use 'random' or 'moment'.")
    if start == "random":
        B = orthonormal_basis(small_random_start(objective, k, 1.0, rng)[0])
    else:
        moments, _ = objective.residuals(np.zeros((objective.n_features, T)))
        B = np.linalg.eigh(moments @ moments.T)[1][:, ::-1][:, :k]
    for_W = for_B = objective
    batches: list[np.ndarray | slice] = [slice(None)]
    length = math.inf if split == "none" else min(max_iter, SPLIT_ITERATIONS)
    if split != "none":
        assert isinstance(objective, RowObjective)
        half = random_halves(objective, rng)
        for_W, for_B = objective.reweighted(half), objective.reweighted(1.0 - half)
    if split == "theory":
        length = min(max_iter, math.ceil(math.log(T)) + 1, T)
        batches = list(np.array_split(rng.permutation(T), length))
    step = yield Iterate(B, for_W.solve_W(B), monotone=split == "none")
    while step.iteration < length:
        batch = batches[step.iteration % len(batches)]
        B, W = step.point.B, step.point.W[:, batch]
        seen = for_B.evaluate(B, step.point.W)
        RWt = seen.grad_B if split != "theory" else seen.R[:, batch] @ W.T
        eta = step_size * step.damping / max(np.linalg.norm(W, 2) ** 2, np.finfo(float).tiny)
        B = orthonormal_basis(B - eta * RWt)
        W = (objective if step.iteration + 1 == length else for_W).solve_W(B)
        step = yield Iterate(B, W, monotone=split == "none")
