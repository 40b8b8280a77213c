"""Variable projection: L-BFGS on the span, the weights of all tasks solved for in each pass."""

from __future__ import annotations

import numpy as np

from sharedspan.objective import Objective
from sharedspan.solvers.initialization import spectral_start
from sharedspan.solvers.quasi_newton import LBFGS
from sharedspan.solvers.scaled import ridged
from sharedspan.solvers.state import Iterate, Memory, Solver


def variable_projection(
    objective: Objective,
    k: int,
    rng: np.random.Generator | None = None,
    *,
    max_iter: int = 0,
    tol: float = 0.0,
    warm_start: tuple[np.ndarray, np.ndarray] | None = None,
) -> Solver:
    """L-BFGS on f(B) = min over W of loss(BW), in columns scaled by chol(WW').

    The gradient of f is R W' at the best W. In a canonical problem its Hessian is near
    WW' (x) I, hence near the identity in Z = BL with LL' = WW', where the gradient is R W'L^-T.
    As f(BM) = f(B), each B is made orthonormal. With the new L this takes Z to ZA, and the moves
    that L-BFGS remembers go along.

    Without a warm start, B holds the leading directions of the moments. Nothing is random here.

    References
    ----------
    Golub and Pereyra (2003), "Separable nonlinear least squares: the variable projection method
    and its applications".
    """
    B, W = spectral_start(objective, k) if warm_start is None else warm_start
    Q, upper = np.linalg.qr(B)
    step = yield Iterate(Q, upper @ W, profiled=True, watched=True)
    pairs, moved, last, upper = step.recall((), None, None, upper)
    search = LBFGS(pairs)

    def memory() -> Memory:
        return [*search.pairs], moved, last, upper

    while True:
        point = step.point
        L = np.linalg.cholesky(ridged(point.WWt))
        gradient = np.linalg.solve(L, point.grad_B.T).T
        if moved is not None:
            A = np.linalg.solve(upper, L)
            search.change_frame(A)
            search.remember(moved @ A, gradient - last @ np.linalg.inv(A).T)
        direction, last = search.direction(gradient), gradient
        here = step.iteration
        while step.iteration == here:
            moved = step.damping * direction
            Q, upper = np.linalg.qr(point.B @ L + moved)
            W = upper @ np.linalg.inv(L) @ point.W
            step = yield Iterate(Q, W, full_step=True, profiled=True, watched=True, memory=memory)
