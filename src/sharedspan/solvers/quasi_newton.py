"""Quasi-Newton solvers: L-BFGS on both factors, and on the span alone.

On the span alone (variable projection) the weights of all tasks are solved for in each pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from sharedspan.objective import Objective
from sharedspan.solvers.initialization import spectral_start
from sharedspan.solvers.scaled import ridged
from sharedspan.solvers.state import Factors, Iterate, Memory, Solver, any_budget

MEMORY = 10


class LBFGS:
    """Limited-memory BFGS directions (Nocedal and Wright 2006, Algorithm 7.4).

    For vectors, or for matrices with the product tr(X'Y).
    """

    def __init__(self, pairs: Iterable[tuple[np.ndarray, np.ndarray]] = ()) -> None:
        self.pairs = deque(pairs, maxlen=MEMORY)

    def remember(self, moved: np.ndarray, changed: np.ndarray) -> None:
        """Keep a move and the change of the gradient that it made, if curvature is positive."""
        if np.vdot(moved, changed) > 1e-12 * np.linalg.norm(moved) * np.linalg.norm(changed):
            self.pairs.append((moved, changed))

    def change_frame(self, A: np.ndarray) -> None:
        """Express moves of Z (d, k) as moves of ZA; gradients transform by A^-T, so s'y stays."""
        inverse = np.linalg.inv(A).T
        self.pairs = deque(((s @ A, y @ inverse) for s, y in self.pairs), maxlen=MEMORY)

    def direction(self, gradient: np.ndarray) -> np.ndarray:
        """Minus the approximate inverse Hessian times the gradient."""
        q, shares = -gradient, []
        for s, y in reversed(self.pairs):
            share = np.vdot(s, q) / np.vdot(s, y)
            shares.append(share)
            q = q - share * y
        if self.pairs:
            s, y = self.pairs[-1]
            q = q * np.vdot(s, y) / np.vdot(y, y)
        for (s, y), share in zip(self.pairs, reversed(shares), strict=True):
            q = q + (share - np.vdot(y, q) / np.vdot(s, y)) * s
        return q


def lf_fo(
    objective: Objective, k: int, rng: np.random.Generator, *, max_iter: int, tol: float
) -> Solver:
    """LF-FO: L-BFGS on loss / T + |B'B - WW'|_F^2 / 8 from entries N(0, 1).

    References
    ----------
    Tripuraneni, Jin and Jordan (2021), "Provable meta-learning of linear representations", the
    likelihood method of their experiments.
    """
    d, T = objective.n_features, objective.n_tasks
    step = yield Iterate(rng.standard_normal((d, k)), rng.standard_normal((k, T)), T / 8)
    pairs, place, gradient, accepted = step.recall((), None, None, -1)
    search = LBFGS(pairs)

    def memory() -> Memory:
        return [*search.pairs], place, gradient, accepted

    while True:
        B, W = step.point.B, step.point.W
        if step.iteration > accepted:  # a new place, not a shorter step from the old one
            D = T / 2 * step.point.imbalance
            new = _flat(step.point.grad_B + B @ D, step.point.grad_W - D @ W)
            if accepted >= 0:
                search.remember(_flat(B, W) - place, new - gradient)
            place, gradient, accepted = _flat(B, W), new, step.iteration
            direction = search.direction(gradient)
            if direction @ gradient >= 0 or not search.pairs:
                length = np.linalg.norm(gradient)
                direction = -gradient / max(length, np.finfo(float).tiny)
        moved = place + step.damping * direction
        step = yield Iterate(
            moved[: d * k].reshape(d, k),
            moved[d * k :].reshape(k, T),
            T / 8,
            full_step=True,
            memory=memory,
        )


def _flat(B: np.ndarray, W: np.ndarray) -> np.ndarray:
    return np.concatenate([B.ravel(), W.ravel()])


@any_budget
def variable_projection(objective: Objective, k: int, warm_start: Factors | None = None) -> Solver:
    """L-BFGS on f(B) = min over W of loss(BW), in columns scaled by chol(WW').

    The gradient of f is R W' at the best W. In a canonical problem its Hessian is near
    WW' (x) I, hence near the identity in Z = BL with LL' = WW', where the gradient is R W'L^-T.
    As f(BM) = f(B), each B is made orthonormal. With the new L this takes Z to ZA, and the moves
    that L-BFGS remembers go along.

    Without a warm start, B holds the leading directions of the moments.

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
