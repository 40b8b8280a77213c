"""What to do about a run that did not converge, from the curvatures of the tasks.

A gradient step with the weights is stable up to the largest curvature of any task, and each task's
error in a direction falls by a factor 1 - step * curvature. So the number of steps is about the
largest curvature over the smallest one, or more. Whitening makes the *mean* curvature the identity.
It leaves the curvature of a task far from it if features move together within the task, or vary
much more in some tasks than in others. No step size helps then, but exact weights do.
"""

from __future__ import annotations

import numpy as np

from sharedspan.kernels.dense import RANK_TOLERANCE
from sharedspan.objective import Objective
from sharedspan.subspace import orthonormal_basis

# Solvers that find the weights of a task by least squares.
EXACT_WEIGHTS = ("als", "altmin_gd", "variable_projection", "auto")
# Isotropic features with three times as many rows as the rank have a spread below it.
LARGE_SPREAD = 200.0


def curvature_spread(objective: Objective, B: np.ndarray) -> float:
    """The largest eigenvalue of any task's B'X_t'X_t B / n_t over the smallest, B orthonormal.

    Eigenvalues that are zero up to rounding do not count: gradients do not see these directions.
    """
    eigenvalues = np.linalg.eigvalsh(objective.normal_matrices(orthonormal_basis(B)))
    positive = eigenvalues > RANK_TOLERANCE * eigenvalues[:, -1:].clip(min=0.0)
    seen = eigenvalues[positive]
    return float(seen.max() / seen.min()) if seen.size else 1.0


def ways_to_converge(solver: str, objective: Objective, B: np.ndarray, W: np.ndarray) -> str:
    """Sentences for the user of a solver that did not converge, and ended at these factors."""
    if solver not in EXACT_WEIGHTS and np.isfinite(B).all():
        spread = curvature_spread(objective, B)
        if spread > LARGE_SPREAD:
            here = objective.evaluate(B, objective.to_device(W)).loss
            gap = here - objective.evaluate_profile(B, objective.to_device(W)).loss
            share = 100 * max(gap, 0.0) / here if here > 0 else 0.0
            return (
                f"The rows determine some directions of some tasks {float(f'{spread:.1g}'):,.0f} "
                "times better than others, because features are nearly collinear within tasks or "
                "vary little in them. Gradient descent needs about as many iterations or more, "
                "whatever its step size. The best weights in this span would lower the loss by "
                f"{share:.2g} %. Use solver='auto', which computes the weights of each task "
                "exactly."
            )
    return "Raise max_iter, or lower the rank: weak directions take long to converge."
