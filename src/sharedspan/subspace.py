"""Spans: bases, principal angles and distances between factors."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharedspan.kernels.threads import tall_triangle, wide_product


def orthonormal_basis(A: np.ndarray) -> np.ndarray:
    """Orthonormal basis of the columns of A (d, k), (d, k)."""
    Q, _ = np.linalg.qr(A)
    return Q


def principal_angles(A: Any, B: Any) -> np.ndarray:
    """Principal angles between the column spans of A and B, in radians, largest first.

    Small angles come from sines and large ones from cosines, so all keep their digits.

    Parameters
    ----------
    A, B : array-like of shape (d, k_A) and (d, k_B)

    Returns
    -------
    ndarray of shape (min(k_A, k_B),)
    """
    from scipy.linalg import subspace_angles

    A, B = np.asarray(A, dtype=float), np.asarray(B, dtype=float)
    if A.ndim != 2 or B.ndim != 2 or len(A) != len(B):
        raise ValueError(
            "A and B must be matrices with the same number of rows, but their shapes are "
            f"{A.shape} and {B.shape}."
        )
    return subspace_angles(A, B)


def subspace_distance(A: Any, B: Any) -> float:
    """Sine of the largest principal angle between two spans: 0 is equal, 1 is orthogonal."""
    return float(np.sin(principal_angles(A, B)[0]))


def balanced_factors(V: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """F = U S^(1/2) (d, k) and G = S^(1/2) Q' (k, T) of the best rank-k V = U S Q'."""
    U, s, Qt = np.linalg.svd(V, full_matrices=False)
    root = np.sqrt(s[:k])
    return U[:, :k] * root, root[:, None] * Qt[:k]


def factor_distance(B: Any, W: Any, true_B: Any, true_W: Any) -> float:
    """Theorem 5.1's distance: |(B; W') - (F; G') Q|_F after the best rotation Q.

    (F, G) are the balanced factors of true_B true_W, so the answer does not depend on how the
    truth was factored.

    Parameters
    ----------
    B, true_B : array-like of shape (d, k)
    W, true_W : array-like of shape (k, T)
    """
    B, W = np.asarray(B, dtype=float), np.asarray(W, dtype=float)
    F, G = balanced_factors(np.asarray(true_B) @ np.asarray(true_W), B.shape[1])
    Z = np.vstack([B, W.T])
    J = np.vstack([F, G.T])
    U, _, Qt = np.linalg.svd(J.T @ Z)
    return float(np.linalg.norm(Z - J @ (U @ Qt)))


def ordered_factors(B: np.ndarray, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Refactor BW with B orthonormal, columns by singular value, largest loadings positive.

    Parameters
    ----------
    B : ndarray of shape (d, k)
    W : ndarray of shape (k, T)
        With k at most T.
    """
    Q, upper = np.linalg.qr(B)
    # The left singular vectors of W are those of its k x k triangle.
    U, _, _ = np.linalg.svd(upper @ tall_triangle(W))
    basis = Q @ U
    largest = np.abs(basis).argmax(axis=0)
    U = U * np.where(basis[largest, np.arange(basis.shape[1])] < 0, -1.0, 1.0)
    return Q @ U, wide_product(U.T @ upper, W)
