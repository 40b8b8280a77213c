"""The paper's algorithms and its closed-form rivals, written once more from the text alone.

Nothing here shares a line or an idea with the package: NumPy, one loop over tasks, rows read
again in every iteration. ``test_independent.py`` holds the package to these functions.

A multi-task problem is a list ``X`` of arrays (N_t, d) and a list ``y`` of arrays (N_t,), one
entry per task; the paper's X_t is the transpose. Coefficients come back as a (d, T) array.
"""

import numpy as np

# ---------------------------------------------------------------- Algorithm 1


def residual_gradients(X, y, V, N=None):
    """Columns X_t' (X_t v_t - y_t) / N, (d, T): the gradient of 1/(2N) sum_t |y_t - X_t v_t|^2.

    The paper gives every task the same N. With ``N=None`` each task is divided by its own number
    of rows; a number divides all tasks alike.
    """
    G = np.zeros_like(V)
    for t in range(len(X)):
        n_rows = len(y[t]) if N is None else N
        residual = X[t] @ V[:, t] - y[t]
        G[:, t] = X[t].T @ residual / n_rows
    return G


def phase_one_step(X, y, B, W, eta_1, N=None):
    """Gradient step on the likelihood, both factors from the old pair."""
    G = residual_gradients(X, y, B @ W, N)
    return B - eta_1 * (G @ W.T), W - eta_1 * (B.T @ G)


def phase_two_step(X, y, B, W, eta_2, N=None):
    """Gradient step on the likelihood plus |B'B - WW'|^2 / 8, whose gradient has the factor 1/2."""
    G = residual_gradients(X, y, B @ W, N)
    imbalance = B.T @ B - W @ W.T
    grad_B = G @ W.T + 0.5 * (B @ imbalance)
    grad_W = B.T @ G - 0.5 * (imbalance @ W)
    return B - eta_2 * grad_B, W - eta_2 * grad_W


def tpgd(X, y, B0, W0, eta_1, eta_2, K1, N=None):
    """Algorithm 1: the pairs (B, W) number 0, 1, ..., K1."""
    iterates = [(B0, W0)]
    tau = 0
    while tau < K1 / 2:
        iterates.append(phase_one_step(X, y, *iterates[-1], eta_1, N))
        tau += 1
    while tau < K1:
        iterates.append(phase_two_step(X, y, *iterates[-1], eta_2, N))
        tau += 1
    return iterates


# ---------------------------------------------------------------- Algorithm 2


def decay_length(K2, h):
    """The paper's K2' = floor((K2 - h) / log(K2 - h)), natural logarithm, at least 1."""
    if K2 - h < 2:
        return 1
    return max(1, int(np.floor((K2 - h) / np.log(K2 - h))))


def sgd_steps(eta_0, K2, h, schedule):
    """The step of update number tau = 0, ..., K2 - 1 in the three schedules that the paper gives.

    "pseudocode": step 2 of Algorithm 2, which halves *before* the update whenever tau + 1 > h and
    K2' divides tau + 1 - h; the first K2' + h - 1 updates have the full step.
    "formula": the displayed eta_tau; tau = K2' + h still has the full step, so that there are
    K2' + h + 1 such updates and K2' - 1 with half of it.
    "proof": K2' + h full steps and then K2' of each size, as the sentence before the formula
    says and as the sums in the proof of the transfer theorem run.
    """
    K = decay_length(K2, h)
    steps = []
    eta = eta_0
    for tau in range(K2):
        if schedule == "pseudocode":
            if tau + 1 > h and (tau + 1 - h) % K == 0:
                eta = eta / 2
            steps.append(eta)
        elif schedule == "formula":
            halvings = 0 if tau <= K + h else (tau - h) // K
            steps.append(eta_0 / 2**halvings)
        elif schedule == "proof":
            halvings = 0 if tau < K + h else (tau - h) // K
            steps.append(eta_0 / 2**halvings)
        else:
            raise ValueError(schedule)
    return steps


def sgd(X, y, B, eta_0, h=0, w0=None, clip=False, schedule="pseudocode", n_updates=None):
    """Algorithm 2: one pass over the rows of the new task, in the order given.

    X is (K2, d), y (K2,), B (d, k); w0 is 0 unless given. As printed the loop makes K2 - 1
    updates, the default; the transfer theorem speaks of w^(K2), ``n_updates=K2``. ``clip`` bounds
    each step by 2 / |f|^2, f = B'x, beyond which an update makes its own row's residual larger; it
    is not in the paper.
    """
    K2 = len(y)
    w = np.zeros(B.shape[1]) if w0 is None else np.array(w0, dtype=float)
    steps = sgd_steps(eta_0, K2, h, schedule)
    for tau in range(K2 - 1 if n_updates is None else n_updates):
        f = B.T @ X[tau]
        eta = steps[tau]
        if clip:
            eta = min(eta, 2 / (f @ f))
        w = w - eta * (f @ w - y[tau]) * f
    return w


def sgd_step_default(B, H=None):
    """eta_0 = 1 / (3 trace(B'HB)), H = E xx': the theorem's order of size with alpha = 3."""
    if H is None:
        H = np.eye(len(B))
    return 1 / (3 * np.trace(B.T @ H @ B))


# ---------------------------------------------------------------- Algorithm 3


def fit_in_span(X, y, B):
    """Least squares of every task in the span of B: W, (k, T)."""
    W = np.zeros((B.shape[1], len(X)))
    for t in range(len(X)):
        W[:, t] = np.linalg.lstsq(X[t] @ B, y[t], rcond=None)[0]
    return W


def curriculum_level(X, y, B1, N_j, K_j, eta_2j, reading, N=None):
    """One level j >= 2 of Algorithm 3: coefficients (d, T_j).

    W starts at least squares in the span of B1 on the first N_j rows of each task; Phase II then
    runs K_j iterations from (B1, W) on the other N - N_j rows. "pair": v = B_j w; "literal": the
    paper's corollary, v = B1 w, although Phase II has moved B.
    """
    first_X = [rows[:N_j] for rows in X]
    first_y = [values[:N_j] for values in y]
    other_X = [rows[N_j:] for rows in X]
    other_y = [values[N_j:] for values in y]
    B, W = B1, fit_in_span(first_X, first_y, B1)
    for _ in range(K_j):
        B, W = phase_two_step(other_X, other_y, B, W, eta_2j, N)
    if reading == "pair":
        return B @ W
    if reading == "literal":
        return B1 @ W
    raise ValueError(reading)


def curriculum_defaults(s_1, s_k, k, N):
    """(N_j, K_j, eta_2j) for a level whose coefficients have singular values from s_1 to s_k."""
    eta_2j = 0.1 / s_1
    K_j = int(np.ceil(10 / (eta_2j * s_k)))
    N_j = max(10 * k, N // 5)
    return N_j, K_j, eta_2j


# ---------------------------------------------------------------- moments


def top_eigenvectors(M, k):
    values, vectors = np.linalg.eigh((M + M.T) / 2)
    return vectors[:, np.argsort(values)[::-1][:k]]


def mom_tripuraneni_matrix(X, y):
    """sum_ti y_ti^2 x_ti x_ti' over the number of rows."""
    d = X[0].shape[1]
    M = np.zeros((d, d))
    n_rows = 0
    for t in range(len(X)):
        for i in range(len(y[t])):
            M += y[t][i] ** 2 * np.outer(X[t][i], X[t][i])
            n_rows += 1
    return M / n_rows


def mom_niu_matrix(X, y, halves=None):
    """sum_t (N_t / sum N) a_t b_t', a_t and b_t the means of x y over the two halves of a task.

    ``halves`` is a list of pairs of row numbers; first and second half of the rows unless given.
    """
    d = X[0].shape[1]
    total = sum(len(values) for values in y)
    Z = np.zeros((d, d))
    for t in range(len(X)):
        n = len(y[t])
        first, second = (np.arange(n // 2), np.arange(n // 2, n)) if halves is None else halves[t]
        a = sum(X[t][i] * y[t][i] for i in first) / len(first)
        b = sum(X[t][i] * y[t][i] for i in second) / len(second)
        Z += n / total * np.outer(a, b)
    return Z


def mom_duchi_matrix(X, y):
    """Task-weighted average of (x_i y_i)(x_j y_j)' over all pairs of different rows of a task.

    The weight is N_t / sum N, which is 1/T for equal tasks.
    """
    d = X[0].shape[1]
    total = sum(len(values) for values in y)
    A = np.zeros((d, d))
    for t in range(len(X)):
        n = len(y[t])
        pairs = np.zeros((d, d))
        for i in range(n):
            for j in range(n):
                if i != j:
                    pairs += np.outer(X[t][i] * y[t][i], X[t][j] * y[t][j])
        A += n / total * pairs / (n * (n - 1))
    return A


def mom_tripuraneni(X, y, k):
    B = top_eigenvectors(mom_tripuraneni_matrix(X, y), k)
    return B, B @ fit_in_span(X, y, B)


def mom_niu(X, y, k, halves=None, symmetrise=False):
    Z = mom_niu_matrix(X, y, halves)
    B = top_eigenvectors(Z, k) if symmetrise else np.linalg.svd(Z)[0][:, :k]
    return B, B @ fit_in_span(X, y, B)


def mom_duchi(X, y, k):
    B = top_eigenvectors(mom_duchi_matrix(X, y), k)
    return B, B @ fit_in_span(X, y, B)


# ---------------------------------------------------------------- spectral estimator


def ols(X, y):
    """Least squares of every task alone, the one of least norm where N_t < d: (d, T)."""
    return np.column_stack(
        [np.linalg.pinv(rows) @ values for rows, values in zip(X, y, strict=True)]
    )


def winsorise(fits, q):
    """Columns longer than the (1 - q)-quantile of all lengths, shortened to it."""
    norms = np.linalg.norm(fits, axis=0)
    bound = np.quantile(norms, 1 - q)
    return fits * np.minimum(1, bound / norms)


def noise_level(X, y):
    """sigma_hat: the root of the median over tasks of |y_t - X_t o_t|^2 / (N_t - d)."""
    fits = ols(X, y)
    variances = []
    for t in range(len(X)):
        n, d = X[t].shape
        variances.append(np.sum((y[t] - X[t] @ fits[:, t]) ** 2) / (n - d))
    return np.sqrt(np.median(variances))


def spectral_step_one(X, y, k, q=0.0, by_size=False):
    """Span of the top-k left singular vectors of all least squares fits, and the refit in it.

    The authors count every task alike. With ``by_size`` a task counts by the root of its number
    of rows, which gives all columns about the same noise; the package does so.
    """
    fits = ols(X, y)
    if q > 0:
        fits = winsorise(fits, q)
    if by_size:
        fits = fits * np.sqrt([len(values) for values in y])
    A = np.linalg.svd(fits, full_matrices=False)[0][:, :k]
    return A, A @ fit_in_span(X, y, A)


def deviation(S, g, lam):
    """argmin over delta of delta'S delta / 2 + g'delta + lam |delta|, by bisection on |delta|.

    A nonzero minimiser solves (S + (lam / rho) I) delta = -g with rho = |delta|. The length of
    the solution over rho falls in rho, so that the crossing is unique.
    """
    if np.linalg.norm(g) <= lam:
        return np.zeros_like(g)

    def solution(rho):
        return -np.linalg.solve(S + lam / rho * np.eye(len(g)), g)

    low, high = 0.0, 1.0
    while np.linalg.norm(solution(high)) > high:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if np.linalg.norm(solution(middle)) > middle:
            low = middle
        else:
            high = middle
    return solution((low + high) / 2)


def spectral_step_two(X, y, V, gamma):
    """argmin of |y_t - X_t b|^2 / (2 N_t) + gamma / sqrt(N_t) |b - v_t|, task by task."""
    result = np.zeros_like(V)
    for t in range(len(X)):
        n = len(y[t])
        S = X[t].T @ X[t] / n
        g = X[t].T @ (X[t] @ V[:, t] - y[t]) / n
        result[:, t] = V[:, t] + deviation(S, g, gamma / np.sqrt(n))
    return result


def spectral(X, y, k, C2=None, q=0.0, by_size=False):
    """Both steps: (A, coefficients). gamma = C2 sqrt(d + log T), C2 = sigma_hat unless given."""
    A, V = spectral_step_one(X, y, k, q, by_size)
    C2 = noise_level(X, y) if C2 is None else C2
    gamma = C2 * np.sqrt(X[0].shape[1] + np.log(len(X)))
    return A, spectral_step_two(X, y, V, gamma)
