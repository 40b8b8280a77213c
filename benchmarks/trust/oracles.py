"""Comparisons with independent software.

These checks compute the same quantity with this library and with software that shares no code with
it: scikit-learn, statsmodels, the singular value decomposition of NumPy, and mpmath with 60 digits.
The last check uses published values of lme4 and MixedModels.jl. A result is the largest difference
over all cases, relative to the size of the quantity unless the check says otherwise.
"""

import sys
import warnings
from functools import cache
from inspect import signature
from pathlib import Path

import numpy as np
from sklearn.linear_model import LinearRegression, Ridge

import sharedspan as ss
from benchmarks.trust.page import Line

ROOT = Path(__file__).parents[2]
ROUNDED = 0.52  # units of its last digit by which a rounded value may differ


def linear_regression():
    """Least squares of scikit-learn, without the cut at a condition number of 1e6 of 1.9."""
    exact = {"tol": 1e-14} if "tol" in signature(LinearRegression).parameters else {}
    return LinearRegression(**exact)


def apart(ours, theirs):
    """The largest difference relative to the largest entry."""
    ours, theirs = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def rows_of(rng, T=None, n=None, d=None):
    """Rows of T tasks of unequal sizes, with features of several scales and levels."""
    T = int(rng.integers(1, 8)) if T is None else T
    d = int(rng.integers(1, 6)) if d is None else d
    task = np.repeat(np.arange(T), rng.integers(d + 3, d + 40, T) if n is None else n)
    X = rng.standard_normal((len(task), d)) * 10.0 ** rng.uniform(-3, 3, d) + rng.normal(0, 5, d)
    V = rng.standard_normal((T, d)) / X.std(axis=0)
    y = rng.normal() + np.einsum("ij,ij->i", X, V[task]) + 0.5 * rng.standard_normal(len(task))
    return X, y, task


def coefficients(model):
    """Intercepts and slopes of all tasks, (T, 1 + d)."""
    return np.column_stack([model.intercept_, model.coef_])


def peers_of(peer, X, y, task):
    fits = [peer().fit(X[task == t], y[task == t]) for t in np.unique(task)]
    return np.array([np.append(fit.intercept_, fit.coef_) for fit in fits])


# ---- each comparison: one random case, and the largest difference in it --------------------------


def least_squares_of_one_task(rng):
    """The shared span of one task is least squares: scikit-learn's LinearRegression."""
    X, y, _ = rows_of(rng, T=1)
    solver = rng.choice([name for name in ss.SOLVERS if name not in ("nsgd", "altmin_gd")])
    model = ss.SharedSpanRegressor(1, solver=str(solver), tol=1e-11, random_state=0)
    return apart(model.fit(X, y).predict(X), linear_regression().fit(X, y).predict(X))


def full_rank(rng):
    """A span of full rank is least squares in each task."""
    X, y, task = rows_of(rng)
    rank = min(X.shape[1], task[-1] + 1)
    if rank < X.shape[1]:  # fewer tasks than features: V has this rank anyhow
        rank = task[-1] + 1
    model = ss.SharedSpanRegressor(int(rank), tol=1e-11, random_state=0).fit(X, y, task)
    theirs = peers_of(linear_regression, X, y, task)
    design = np.column_stack([np.ones(len(X)), X])
    fitted = np.einsum("ij,ij->i", design, theirs[task])
    return apart(model.predict(X, task), fitted)


def separate_least_squares(rng):
    """PerTaskRegressor and NewTaskRegressor without a penalty, against LinearRegression."""
    X, y, task = rows_of(rng)
    theirs = peers_of(linear_regression, X, y, task)
    models = ss.PerTaskRegressor(alpha=0.0), ss.NewTaskRegressor(method="least_squares")
    return max(apart(coefficients(model.fit(X, y, task)), theirs) for model in models)


def separate_ridge(rng):
    """PerTaskRegressor with a penalty, against Ridge on standardised features."""
    X, y, task = rows_of(rng)
    alpha = 10.0 ** rng.uniform(-3, 3)
    model = ss.PerTaskRegressor(alpha=alpha).fit(X, y, task)
    means = np.array([X[task == t].mean(axis=0) for t in np.unique(task)])
    scale = np.sqrt(np.mean((X - means[task]) ** 2, axis=0))  # pooled within tasks
    gaps = []
    for t in np.unique(task):
        Z = (X[task == t] - means[t]) / scale
        peer = Ridge(alpha, solver="svd").fit(Z, y[task == t])
        gaps.append(apart(model.predict(X[task == t], task[task == t]), peer.predict(Z)))
    return max(gaps)


def pooled_ridge(rng):
    """PooledRegressor with a penalty, against Ridge on rows minus their task's mean."""
    X, y, task = rows_of(rng)
    alpha = 10.0 ** rng.uniform(-3, 3)
    model = ss.PooledRegressor(alpha=alpha).fit(X, y, task)
    means = [np.array([a[task == t].mean(axis=0) for t in np.unique(task)])[task] for a in (X, y)]
    Z, z = X - means[0], y - means[1]
    scale = np.sqrt(np.mean(Z**2, axis=0))
    peer = Ridge(alpha, solver="svd", fit_intercept=False).fit(Z / scale, z)
    return apart(model.coef_[0] * scale, peer.coef_)


def truncated_svd(rng):
    """X_t = I: the shared span of rank k is the truncated SVD of the responses (d, T)."""
    d, T = (int(rng.integers(3, 12)) for _ in range(2))
    k = int(rng.integers(1, min(d, T)))
    Y = rng.standard_normal((d, T))
    U, s, Vt = np.linalg.svd(Y)
    s[k:] *= 0.3  # a gap, as without one the subspace is not determined
    Y = (U[:, : len(s)] * s) @ Vt[: len(s)]
    X, y, task = np.tile(np.eye(d), (T, 1)), Y.T.ravel(), np.repeat(np.arange(T), d)
    solver = str(rng.choice(("auto", "variable_projection", "als", "scaled_gd_anderson", "tpgd")))
    model = ss.SharedSpanRegressor(k, solver=solver, tol=1e-11, fit_intercept=False, random_state=0)
    model.fit(X, y, task)
    best = (U[:, :k] * s[:k]) @ Vt[:k]
    angle = np.linalg.norm(model.representation_ - U[:, :k] @ (U[:, :k].T @ model.representation_))
    return max(apart(model.coef_.T, best), float(angle))


def sixty_digits(rng):
    """Ill-conditioned least squares, conditions 1e2 to 1e10, against mpmath with 60 digits.

    The difference of fitted values relative to eps times the condition number.
    """
    exponent = rng.uniform(2, 10)
    n, d = 12, 4
    Q, P = (
        np.linalg.qr(rng.standard_normal((n, d)))[0],
        np.linalg.qr(rng.standard_normal((d, d)))[0],
    )
    X = Q * np.geomspace(1.0, 10.0**-exponent, d) @ P
    y = X @ rng.standard_normal(d) + 0.1 * rng.standard_normal(n)
    exact = _exact_fitted(X, y)
    gaps = [
        apart(ss.NewTaskRegressor(method="least_squares", fit_intercept=False).fit(X, y).predict(X),
              exact) / (np.finfo(float).eps * 10.0**exponent)
    ]  # fmt: skip
    if exponent < 4:  # sums of squares lose twice the digits, so the others promise less
        squared = np.finfo(float).eps * 10.0 ** (2 * exponent)
        for model in (
            ss.SharedSpanRegressor(1, tol=1e-12, fit_intercept=False),
            ss.PerTaskRegressor(alpha=0.0, fit_intercept=False),
        ):
            gaps.append(apart(model.fit(X, y).predict(X), exact) / squared)
    return max(gaps)


def _exact_fitted(X, y):
    import mpmath

    with mpmath.workdps(60):
        A, b = mpmath.matrix(X.tolist()), mpmath.matrix(y.tolist())
        solution = mpmath.lu_solve(A.T * A, A.T * b)
        return np.array([float(value) for value in A * solution])


def mixed_lm(rng):
    """Random intercepts and slopes by REML or ML, against MixedLM of statsmodels.

    The fixed effects in units of their standard errors, and the log likelihood.
    """
    import statsmodels.api as sm

    T = 40
    task = np.repeat(np.arange(T), 12)
    x = rng.standard_normal((len(task), 1))
    effects = rng.multivariate_normal([0, 0], [[1.0, 0.2], [0.2, 0.5]], T)
    design = np.column_stack([np.ones(len(task)), x])
    y = design @ [1.0, 2.0] + np.einsum("ij,ij->i", design, effects[task])
    y += 0.7 * rng.standard_normal(len(task))
    reml = bool(rng.integers(2))
    model = ss.AdaptiveSpanRegressor(
        slopes="full", rank=0, method="reml" if reml else "ml", outliers=False, noise="shared"
    )
    model.fit(x, y, task)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = sm.MixedLM(y, design, groups=task, exog_re=design).fit(reml=reml, gtol=1e-10)
    fixed = (model.mean_coef_[0] - peer.fe_params[1]) / peer.bse_fe[1]
    level = abs(model.log_likelihood_ - peer.llf) / abs(peer.llf) if not reml else 0.0
    return max(abs(float(fixed)), float(level))


def one_glm(rng):
    """One task of classes or counts without variances is the GLM of statsmodels."""
    import statsmodels.api as sm

    X = rng.standard_normal((300, 2))
    eta = 0.3 + X @ [0.8, -0.5]
    if rng.integers(2):
        family, y, peer = (
            "binomial",
            rng.random(300) < 1 / (1 + np.exp(-eta)),
            sm.families.Binomial(),
        )
    else:
        family, y, peer = "poisson", rng.poisson(np.exp(eta)), sm.families.Poisson()
    model = ss.AdaptiveSpanRegressor(family=family, slopes="zero", rank=0, method="ml")
    model.fit(X, y.astype(float))
    theirs = sm.GLM(y.astype(float), sm.add_constant(X), family=peer).fit(tol=1e-12)
    return apart(coefficients(model)[0], theirs.params)


def one_rlm(rng):
    """One task by Huber's loss is RLM of statsmodels, with Huber's proposal 2 for the scale."""
    import statsmodels.api as sm

    from sharedspan.families import Huber

    X = rng.standard_normal((200, 2))
    y = 1 + X @ [1.0, -1.0] + rng.standard_t(3, 200)
    scale, square = [1.0], Huber().normal_square

    def proposal_2(_, residuals):
        for _ in range(300):
            bound = 1.345 * scale[0]
            scale[0] = np.sqrt(np.mean(np.clip(residuals, -bound, bound) ** 2) / square)
        return scale[0]

    peer = sm.RLM(y, sm.add_constant(X), M=sm.robust.norms.HuberT(1.345))
    theirs = peer.fit(scale_est=proposal_2, tol=1e-12, maxiter=500)
    model = ss.AdaptiveSpanRegressor(family="huber", slopes="zero", rank=0, method="ml")
    return apart(coefficients(model.fit(X, y))[0], theirs.params)


COMPARISONS = {  # the claim: comparison, cases at --cases 1, and the largest difference allowed
    "One task, every solver except nsgd and altmin_gd: predictions are those of LinearRegression "
    "in scikit-learn": (least_squares_of_one_task, 300, 1e-7),
    "Full rank: predictions are those of LinearRegression in each task": (full_rank, 300, 1e-7),
    "PerTaskRegressor and NewTaskRegressor without a penalty: coefficients are those of "
    "LinearRegression in each task": (separate_least_squares, 300, 1e-8),
    "PerTaskRegressor with a penalty: predictions are those of Ridge in scikit-learn": (
        separate_ridge, 300, 1e-9,
    ),
    "PooledRegressor with a penalty: coefficients are those of Ridge in scikit-learn": (
        pooled_ridge, 300, 1e-9,
    ),
    "The identity matrix as features of every task: coefficients and span are those of the "
    "truncated singular value decomposition of the responses in NumPy": (truncated_svd, 200, 1e-7),
    "Least squares with condition numbers from 1e2 to 1e10: fitted values are those of mpmath with "
    "60 digits (differences are divided by eps times the condition number, or, for fits from sums "
    "of squares, by eps times its square)": (sixty_digits, 200, 100.0),
    "Random intercepts and slopes: fixed effects (in units of their standard errors) and the log "
    "likelihood are those of MixedLM in statsmodels": (mixed_lm, 10, 1e-3),
    "One task of classes or counts: coefficients are those of GLM in statsmodels": (
        one_glm, 40, 1e-5,
    ),
    "One task with Huber's loss: coefficients are those of RLM in statsmodels": (
        one_rlm, 40, 1e-5,
    ),
}  # fmt: skip


def differences(claim, share, seed):
    """The largest difference of each case, at least two of them."""
    comparison, cases, _ = COMPARISONS[claim]
    rng = np.random.default_rng(seed)
    return np.array([comparison(rng) for _ in range(max(2, round(share * cases)))])


@cache
def validation():
    """The module that compares our fits with the values of lme4 and MixedModels.jl."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import validation as module

    return module


def published_line():
    """The figures of lme4 and MixedModels.jl, in units of their last printed digit."""
    module = validation()
    from ours import fitted, values_of
    from published import PUBLISHED

    wanted = [f for f in PUBLISHED if f.source.startswith(("MixedModels", "lme4"))]
    fits = dict.fromkeys((f.model, f.fit) for f in wanted)
    values = {key: values_of(fitted(*key), *key) for key in fits}
    gaps = {f: in_last_digits(f, f.of(values[f.model, f.fit])) for f in wanted}
    stopped = module.early({key: module.known_values(*key) for key in module.all_fits()})
    early = [gap for f, gap in gaps.items() if f in stopped]
    exact = [gap for f, gap in gaps.items() if f not in stopped]
    figure = f"{len(exact)} values, at most {max(exact):.2f} units"
    if early:
        figure += (
            f"; {len(early)} more from optimisers that stopped a little early, at most "
            f"{max(early):.2f} units"
        )
    claim = (
        f"Published values of lme4 and MixedModels.jl ({len(wanted)} of the {len(PUBLISHED)} on "
        f"the page [validation](validation.md)): ours differ by at most {ROUNDED} units of the "
        "last printed digit"
    )
    return Line(claim, figure, max(exact) <= ROUNDED)


def in_last_digits(figure, value):
    """The difference from a printed figure in units of its last digit."""
    mantissa, _, exponent = figure.printed.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return abs(value - float(figure.printed)) / unit


def run(cases, seed):
    lines = []
    for claim, (_, _, allowed) in COMPARISONS.items():
        found = differences(claim, cases, seed)
        figure = f"{len(found)} cases, at most {found.max():.1e}"
        lines.append(Line(claim, figure, bool(found.max() <= allowed)))
    return [*lines, published_line()]
