"""Coefficients near a structure: the loop for penalised deviations.

    minimise  sum_t  loss_t(v_t) + penalty_t,     v_t = B w_t + delta_t

by turns: a proximal gradient step in the deviations delta_t, then a step in (B, W) with the
deviations fixed. A step that makes the objective rise is taken back and halved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sharedspan.objective import Objective
from sharedspan.progress import progress_bar

FACTOR_STEP = 0.5  # of the preconditioned step in (B, W), as in solvers/scaled.py
REGROWTH = 1.2  # of a halved step after a success: far from the minimiser it may have been unlucky
REWEIGHTINGS = 30
ROUNDING = 1e-12  # an objective may rise by this share of itself,
ROUNDING_OF_ZERO = 1e-15  # and by this share of the loss at V = 0
PATIENCE = 3  # iterations in a row that must change the objective by less than tol
TINY = np.finfo(float).tiny ** 0.25

# Of V and the deviations D: the penalty of each task (T,), the gradient in V of its smooth part
# (d, T), and the weight of |delta_t|, the part with a kink (T,).
Penalty = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
Parts = tuple[np.ndarray, np.ndarray, np.ndarray]  # B (d, k), W (k, T), D (d, T)


@dataclass(frozen=True)
class Place:
    """The current point of the loop: v_t = B w_t + delta_t, with its objective and gradients."""

    B: np.ndarray  # (d, k)
    W: np.ndarray  # (k, T)
    D: np.ndarray  # (d, T) deviations
    values: np.ndarray  # (T,) loss plus penalty of each task
    G: np.ndarray  # (d, T) gradient, without the part of the penalty that the threshold handles
    threshold: np.ndarray  # (T,) weight of |delta_t| in the penalty

    @property
    def parts(self) -> Parts:
        return self.B, self.W, self.D


@dataclass(frozen=True)
class ProximalFit:
    """The last place and how the loop went."""

    place: Place
    trace: np.ndarray  # (n_iter + 1,) objective
    converged: bool


class CentreStructure(Protocol):
    """The constraint on the centres B w_t of the tasks."""

    def free(self, B: np.ndarray, D: np.ndarray) -> np.ndarray:
        """The part of D (d, T) that deviations may have."""

    def step(self, at: Place, damping: float) -> Parts:
        """B, W and deviations after a step in (B, W)."""


class Span:
    """Any B: deviations are orthogonal to it, as every minimiser has them."""

    def split(self, B: np.ndarray, V: np.ndarray) -> Parts:
        """Orthonormal B, and W and the deviations of V (d, T)."""
        B, _ = np.linalg.qr(B)
        W = B.T @ V
        return B, W, V - B @ W

    def free(self, B: np.ndarray, D: np.ndarray) -> np.ndarray:
        """See CentreStructure."""
        return D - B @ (B.T @ D)

    def step(self, at: Place, damping: float) -> Parts:
        """B <- B - eta G W'(WW')^-1, W <- W - eta B'G, and the split of the new V."""
        eta = FACTOR_STEP * damping
        W = at.W - eta * at.B.T @ at.G
        B = at.B - eta * np.linalg.lstsq(at.W @ at.W.T, at.W @ at.G.T, rcond=1e-12)[0].T
        return self.split(B, B @ W + at.D)


def proximal_descent(
    objective: Objective,
    penalty: Penalty,
    structure: CentreStructure,
    start: Parts,
    curvature: np.ndarray,
    *,
    max_iter: int,
    tol: float,
    verbose: int = 0,
) -> ProximalFit:
    """Minimise sum_t loss_t(B w_t + delta_t) + penalty_t; the objective never rises."""

    def evaluate(B: np.ndarray, W: np.ndarray, D: np.ndarray) -> Place:
        V = B @ W + D
        charge, slope, threshold = penalty(V, D)
        R, losses = objective.residuals(V)
        return Place(B, W, D, losses + charge, R + slope, threshold)

    at, slack = evaluate(*start), ROUNDING_OF_ZERO * objective.residuals(0 * start[2])[1].sum()
    eta = np.divide(1.0, curvature, out=np.zeros_like(curvature), where=curvature > 0)
    damping, quiet, trace = 1.0, 0, [at.values.sum()]
    with progress_bar(show=verbose > 0, transient=verbose < 2) as progress:
        while len(trace) <= max_iter and quiet < PATIENCE:
            D = _shrink(structure.free(at.B, at.D - eta * at.G), eta * at.threshold)
            at, fell = _better_tasks(at, evaluate(at.B, at.W, D), slack)
            eta = np.where(fell, eta, eta / 2)
            new = evaluate(*structure.step(at, damping))
            rose = not new.values.sum() <= at.values.sum() * (1 + ROUNDING) + slack
            at, damping = (at, damping / 2) if rose else (new, min(REGROWTH * damping, 1.0))
            trace.append(at.values.sum())
            still = trace[-2] - trace[-1] <= tol * trace[-1] + slack
            quiet = quiet + 1 if still and fell.all() and not rose else 0
            progress("fitting", len(trace) - 1, max_iter)
    return ProximalFit(at, np.array(trace), quiet >= PATIENCE)


def _shrink(D: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Each column shortened by ``by`` (T,), to zero if it is shorter."""
    length = np.linalg.norm(D, axis=0)
    return D * np.divide(np.maximum(length - by, 0.0), length, out=0 * length, where=length > 0)


def _better_tasks(old: Place, new: Place, slack: float) -> tuple[Place, np.ndarray]:
    """The new deviations of the tasks whose objective did not rise, and which these are."""
    fell = new.values <= old.values * (1 + ROUNDING) + slack
    D, values, G, threshold = (
        np.where(fell, getattr(new, name), getattr(old, name))
        for name in ("D", "values", "G", "threshold")
    )
    return Place(old.B, old.W, D, values, G, threshold), fell


def median_span(V: np.ndarray, k: int, floor: float) -> np.ndarray:
    """Orthonormal B (d, k) near the least sum_t |v_t - P(B) v_t|, by reweighting.

    Unlike the singular vectors of V, it does not follow a few long columns outside the span. The
    first weights are 1 / |v_t|, the later ones 1 / max(|v_t - P(B) v_t|, floor).
    """
    distance = np.linalg.norm(V, axis=0)
    for _ in range(REWEIGHTINGS):
        weight = 1 / np.maximum(distance, max(floor, TINY))
        _, axes = np.linalg.eigh(V * weight @ V.T)
        B = axes[:, ::-1][:, :k]
        distance = np.linalg.norm(V - B @ (B.T @ V), axis=0)
    return B


def near_median_span(objective: Objective, V: np.ndarray, k: int, noise: float) -> Parts:
    """B, W and deviations that add up to V (d, T), with B the median span for a noise level."""
    floor = noise * np.sqrt(objective.n_features / objective.n.mean())
    return Span().split(median_span(V, k, floor), V)
