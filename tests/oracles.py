"""Reference results, independent of the package, by NumPy from raw rows."""

import numpy as np


def per_task_sums(X, y, task, intercept):
    """Grams (T, d, d) and X'y (T, d) of the rows, centred within tasks on request."""
    G, c = [], []
    for t in np.unique(task):
        x, target = X[task == t], y[task == t]
        if intercept:
            x, target = x - x.mean(axis=0), target - target.mean()
        G.append(x.T @ x)
        c.append(x.T @ target)
    return np.array(G), np.array(c)


def exact_als(X, y, task, k, *, weights=None, intercept=True, start=None, tol=1e-13, sweeps=3000):
    """Exact alternating least squares: coefficients (T, d) of the rank-k minimiser.

    weights (T,) multiply each task's squares; start (T, d) are initial coefficients, by default
    least squares per task.
    """
    G, c = per_task_sums(X, y, task, intercept)
    if weights is not None:
        G, c = G * weights[:, None, None], c * weights[:, None]
    T, d = c.shape
    if start is None:
        start = np.array([np.linalg.lstsq(G[t], c[t], rcond=1e-10)[0] for t in range(T)])
    B = np.linalg.svd(start.T, full_matrices=False)[0][:, :k]
    V = np.zeros((T, d))
    for _ in range(sweeps):
        A = np.einsum("dk,tde,el->tkl", B, G, B, optimize=True)
        W = np.linalg.solve(A, (c @ B)[..., None])[..., 0]
        previous, V = V, W @ B.T
        if np.linalg.norm(V - previous) <= tol * np.linalg.norm(V):
            break
        system = np.einsum("ta,tb,tij->aibj", W, W, G, optimize=True).reshape(k * d, k * d)
        B = np.linalg.solve(system, np.einsum("ta,ti->ai", W, c).ravel()).reshape(k, d).T
        B, _ = np.linalg.qr(B)
    return V


def relative(a, b):
    """|a - b| / |b|."""
    return np.linalg.norm(np.asarray(a) - np.asarray(b)) / np.linalg.norm(b)


def ordinary_least_squares(x, y, new, variance=None):
    """Standard errors of the slopes and of new responses, by textbook formulas."""
    design = np.column_stack([np.ones(len(x)), x])
    beta = np.linalg.lstsq(design, y, rcond=None)[0]
    if variance is None:
        variance = np.sum((y - design @ beta) ** 2) / (len(y) - design.shape[1])
    covariance = variance * np.linalg.inv(design.T @ design)
    rows = np.column_stack([np.ones(len(new)), new])
    response = variance + np.einsum("ij,jk,ik->i", rows, covariance, rows)
    return np.sqrt(np.diag(covariance))[1:], np.sqrt(response)
