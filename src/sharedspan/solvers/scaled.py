"""Scaled gradient descent, plain and with Anderson acceleration.

Steps are preconditioned by the factors, so that the rate does not depend on kappa.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from sharedspan.objective import Objective, Point
from sharedspan.solvers.initialization import spectral_start
from sharedspan.solvers.state import Factors, Iterate, Memory, Solver, any_budget

STEP = 0.5  # with curvature near the identity this solves the part seen by both factors exactly
RIDGE = 1e-12  # of the trace, for a factor with a null direction
MEMORY = 6  # points mixed; each holds two pairs of factors
MIXING_RIDGE = 1e-14  # on the correlations of the remembered steps


@any_budget
def scaled_gd(objective: Objective, k: int, warm_start: Factors | None = None) -> Solver:
    """B <- B - eta R W'(WW')^-1,  W <- W - eta (B'B)^-1 B'R.

    Without a warm start, the rank grows one by one from zero along the leading direction of R.

    References
    ----------
    Tong, Ma and Chi (2021), "Accelerating ill-conditioned low-rank matrix estimation via scaled
    gradient descent".
    """
    step = yield Iterate(*(grown_start(objective, k) if warm_start is None else warm_start))
    while True:
        B, W, RWt, BtR = step.point.B, step.point.W, step.point.grad_B, step.point.grad_W
        eta = STEP * step.damping
        step = yield Iterate(
            B - eta * np.linalg.solve(ridged(step.point.WWt), RWt.T).T,
            W - eta * (np.linalg.inv(ridged(B.T @ B)) @ BtR),
        )


def grown_start(objective: Objective, k: int) -> Factors:
    """Factors of rank k grown from zero, one direction at a time."""
    factors = np.zeros((objective.n_features, 0)), np.zeros((0, objective.n_tasks))
    for _ in range(k):
        factors = grow(objective, *factors)
    return factors


def grow(objective: Objective, B: np.ndarray, W: np.ndarray) -> Factors:
    """Factors of one rank more: V minus the leading singular pair of R(V), balanced."""
    R, _ = objective.residuals((W.T @ B.T).T)
    _, vectors = np.linalg.eigh(R @ R.T)
    u = vectors[:, -1]
    right = R.T @ u
    root = np.sqrt(max(np.linalg.norm(right), np.finfo(float).tiny))
    return np.column_stack([B, root * u]), np.vstack([W, -right / root])


def ridged(A: np.ndarray) -> np.ndarray:
    """A Gram matrix (k, k) that can be inverted."""
    return A + (RIDGE * np.trace(A) + np.finfo(float).tiny) * np.eye(len(A))


@any_budget
def scaled_gd_anderson(objective: Objective, k: int, warm_start: Factors | None = None) -> Solver:
    """ScaledGD's step F(x) from each point x = (B, W), mixed: x <- sum_i a_i (x_i + F(x_i)).

    The weights a_i sum to one and make |sum_i a_i F(x_i)| least, in the metric
    tr(B_1'B_2 WW') + tr(W_1 W_2'B'B), which like ScaledGD does not change with the frame of the
    factors. Frames need no alignment: ScaledGD's steps do not turn them. A mixture that points
    uphill, or made the loss rise, gives way to the plain step, and all is forgotten.

    Without a warm start, B holds the leading directions of the moments.

    References
    ----------
    Tong, Ma and Chi (2021) for ScaledGD; Walker and Ni (2011), "Anderson acceleration for
    fixed-point iterations".
    """
    B, W = spectral_start(objective, k) if warm_start is None else warm_start
    step = yield Iterate(B, W, profiled=True, watched=True)
    past = Mixture() if step.memory is None else Mixture.restored(step.memory, objective)

    def memory() -> Memory:
        return [*past.ends], [*past.steps], past.products

    while True:
        point, here = step.point, step.iteration
        F_B, F_W = scaled_step(point)
        past.add(point, (F_B, F_W))
        B, W = past.mixed(point)
        uphill = np.vdot(B - point.B, point.grad_B) + np.trace((W - point.W) @ point.grad_W.T) >= 0
        if uphill:
            past = Mixture()
            B, W = point.B + F_B, point.W + F_W
        step = yield Iterate(B, W, full_step=True, watched=True, memory=memory)
        while step.iteration == here:
            past = Mixture()
            B, W = point.B + step.damping * F_B, point.W + step.damping * F_W
            step = yield Iterate(B, W, full_step=True, watched=True, memory=memory)


def scaled_step(point: Point) -> Factors:
    """-R W'(WW')^-1 (d, k) and -(B'B)^-1 B'R (k, T), minus half of what both of them do.

    Together they take V to V - P_T(R), which with curvature near the identity is a full step
    along the rank-k matrices; ScaledGD halves all of both instead.
    """
    BtB_inverse = np.linalg.inv(ridged(point.B.T @ point.B))
    F_B = -np.linalg.solve(ridged(point.WWt), point.grad_B.T).T
    both = BtB_inverse @ (point.B.T @ F_B) / 2
    return F_B - point.B @ both, -BtB_inverse @ point.grad_W - both @ point.W


class Mixture:
    """The last points and the steps from them, with the k x k products that the metric weighs."""

    def __init__(self) -> None:
        self.ends: deque[Factors] = deque(maxlen=MEMORY)  # x_i + F(x_i)
        self.steps: deque[Factors] = deque(maxlen=MEMORY)  # F(x_i)
        self.products = np.empty((0, 0))  # F_B'F_B and F_W F_W' of two steps, (m, m, 2, k, k)

    @classmethod
    def restored(cls, memory: Memory, objective: Objective) -> Mixture:
        ends, steps, products = memory
        past = cls()
        past.ends.extend((B, objective.to_device(W)) for B, W in ends)
        past.steps.extend((F_B, objective.to_device(F_W)) for F_B, F_W in steps)
        past.products = products
        return past

    def add(self, point: Point, step: Factors) -> None:
        """Add a point and drop the oldest one."""
        F_B, F_W = step
        self.ends.append((point.B + F_B, point.W + F_W))
        self.steps.append(step)
        new = np.array([[f_B.T @ F_B, f_W @ F_W.T] for f_B, f_W in self.steps])
        m = len(new)
        products = np.empty((m, *new.shape))
        if m > 1:
            products[:-1, :-1] = self.products[1 - m :, 1 - m :]
        products[:, -1] = products[-1] = new
        self.products = products

    def mixed(self, point: Point) -> Factors:
        """sum_i a_i (x_i + F(x_i)) with weights that minimise |sum_i a_i F(x_i)| in point's metric.

        Minimising a'Ka under a'1 = 1 gives a ~ K^-1 1. Steps differ by powers of ten, so K is
        scaled to a matrix of correlations first.
        """
        K = np.einsum("ijaxy,axy->ij", self.products, [point.WWt, point.B.T @ point.B])
        size = np.sqrt(np.diag(K)) + (np.diag(K) == 0)
        correlation = K / np.outer(size, size) + MIXING_RIDGE * np.eye(len(K))
        a = np.linalg.solve(correlation, 1 / size) / size
        weights = (a / a.sum()).tolist()
        B = sum((a_i * end[0] for a_i, end in zip(weights, self.ends, strict=True)), 0.0 * point.B)
        W = sum((a_i * end[1] for a_i, end in zip(weights, self.ends, strict=True)), 0.0 * point.W)
        return B, W
