"""Rows that differ from the paper's assumptions, with errors measured by predictions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sharedspan.datasets.simulate import Simulation
from sharedspan.paper.experiment import Cell
from sharedspan.paper.problem import SimulatedProblem


class ChangedProblem(SimulatedProblem):
    """A problem with other rows; its error is the mean over tasks of (v - v*)'S_t(v - v*).

    S_t is the covariance of the features of task t. The floor of this error is that of isotropic
    features for any S_t: least squares over a manifold has sigma^2 / N times its dimension.

    Parameters
    ----------
    cell : Cell
    sim : Simulation
    roots : ndarray of shape (d, d) or (T, d, d)
        R_t with R_t R_t' = S_t.
    """

    def __init__(self, cell: Cell, sim: Simulation, roots: np.ndarray) -> None:
        self.cell, self.sim, self.V = cell, sim, sim.coef.T
        self.roots = np.broadcast_to(roots, (sim.coef.shape[0], *roots.shape[-2:]))

    def error(self, V: np.ndarray) -> float:
        """The mean excess risk of coefficients V (d, T)."""
        return float(np.sum(np.einsum("tij,it->tj", self.roots, V - self.V) ** 2) / V.shape[1])

    def whitened(self) -> ChangedProblem:
        """The same problem in features whitened by their pooled covariance."""
        X = self.sim.X
        eigenvalues, Q = np.linalg.eigh(X.T @ X / len(X))
        root, inverse = Q * np.sqrt(eigenvalues) @ Q.T, Q / np.sqrt(eigenvalues) @ Q.T
        sim = replace(self.sim, X=X @ inverse, coef=self.sim.coef @ root)
        return ChangedProblem(self.cell, sim, inverse @ self.roots)


def with_rows(sim: Simulation, X: np.ndarray, noise: np.ndarray | None = None) -> Simulation:
    """The simulation with other features (rows, d), and other noise (rows,) if given."""
    if noise is None:
        noise = sim.y - np.einsum("ij,ij->i", sim.X, sim.coef[sim.task])
    return replace(sim, X=X, y=np.einsum("ij,ij->i", X, sim.coef[sim.task]) + noise)


def spectrum(d: int, condition: float) -> np.ndarray:
    """Eigenvalues that fall geometrically by a factor, with a mean of one, (d,)."""
    values = np.geomspace(1.0, 1.0 / condition, d)
    return values * d / values.sum()
