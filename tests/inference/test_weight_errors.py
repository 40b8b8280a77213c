"""Standard errors of new tasks in a given span, with or without a covariance."""

import numpy as np
from numpy.testing import assert_allclose
from sklearn.base import clone

import sharedspan as ss
from oracles import ordinary_least_squares


def fit(sim):
    model = ss.SharedSpanRegressor(rank=sim.representation.shape[1], random_state=0, tol=1e-9)
    return model.fit(sim.X, sim.y, task=sim.task)


def test_one_task_is_ordinary_least_squares_with_its_student_intervals(rng):
    from scipy.stats import t as student

    X = rng.standard_normal((15, 2)) * [1.0, 1e3] + 5.0
    y = X @ [1.0, -1e-3] + rng.standard_normal(15)
    span = ss.NewTaskRegressor(method="least_squares").fit(X, y)
    slopes, responses = ordinary_least_squares(X, y, X[:4])
    assert_allclose(span.coef_std_[0], slopes, rtol=1e-8)
    assert_allclose(span.predict(X[:4], return_std=True)[1], responses, rtol=1e-8)
    low, high = span.coef_interval(0.9)
    assert_allclose(high - low, 2 * student.ppf(0.95, 12) * span.coef_std_)


def test_the_span_costs_what_its_covariance_says(small):
    """With many rows of a new task, its error outside the span is D w."""
    model = fit(small)
    B, C = model.representation_, model.representation_covariance_
    assert_allclose(C, C.T)
    assert np.linalg.eigvalsh(C).min() > -1e-12 * C.max()
    exact = ss.NewTaskRegressor(B, noise_variance=0.09, method="least_squares")
    known, rows = small.task == 7, small.task < 9
    plain = clone(exact).fit(small.X[rows], small.y[rows], small.task[rows])
    unsure = clone(exact).set_params(representation_covariance=C)
    unsure.fit(small.X[rows], small.y[rows], small.task[rows])
    assert (unsure.coef_std_ > plain.coef_std_).all()
    x = small.X[known] - small.X[known].mean(axis=0)
    w, G = unsure.task_weights_[:, 7], x.T @ x
    inverse = np.linalg.inv(B.T @ G @ B)
    score = x.T @ (small.y[known] - small.y[known].mean() - x @ B @ w)
    total = 0.09 * B @ inverse @ B.T
    jacobian = np.zeros((8, 2, 8))
    for a in range(2):
        for j in range(8):
            D = np.zeros((8, 2))
            D[j, a] = 1.0
            jacobian[:, a, j] = D @ w + B @ inverse @ (D.T @ score - B.T @ G @ D @ w)
    jacobian = jacobian.reshape(8, 16)
    total = total + jacobian @ C @ jacobian.T
    assert_allclose(unsure.coef_std_[7], np.sqrt(np.diag(total)), rtol=1e-8)
    z = small.X[:5] - small.X[known].mean(axis=0)
    response = 0.09 * (1 + 1 / known.sum()) + np.einsum("ij,jk,ik->i", z, total, z)
    assert_allclose(
        unsure.predict(small.X[:5], 7, return_std=True)[1], np.sqrt(response), rtol=1e-8
    )


def test_the_posterior_is_that_of_the_normal_prior(rng):
    B = np.linalg.qr(rng.standard_normal((5, 2)))[0]
    X, prior = rng.standard_normal((6, 5)), np.array([[0.5, 0.2], [0.2, 0.3]])
    y = X @ B @ [1.0, 0.5] + 0.1 * rng.standard_normal(6)
    model = ss.NewTaskRegressor(B, None, prior, 0.01, fit_intercept=False).fit(X, y)
    F = X @ B
    posterior = np.linalg.inv(F.T @ F / 0.01 + np.linalg.inv(prior))
    covariance = B @ posterior @ B.T
    assert_allclose(model.coef_std_[0], np.sqrt(np.diag(covariance)), rtol=1e-8)
    std = np.sqrt(0.01 + np.einsum("ij,jk,ik->i", X, covariance, X))
    assert_allclose(model.predict(X, return_std=True)[1], std, rtol=1e-8)


def test_rows_in_chunks_give_the_standard_errors_of_all_at_once(small):
    new = ss.NewTaskRegressor.from_model(fit(small))
    at_once = clone(new).fit(small.X, small.y, small.task)
    first = small.task % 2 == 0
    half = np.random.default_rng(0).random(len(small.y)) < 0.5
    for part in (first & half, first & ~half, ~first & half, ~first & ~half):
        new.partial_fit(small.X[part], small.y[part], small.task[part])
        assert new.coef_std_.shape == new.coef_.shape
    assert_allclose(new.coef_std_, at_once.coef_std_, rtol=1e-8)
    for one, other in zip(
        new.predict(small.X, small.task, return_std=True),
        at_once.predict(small.X, small.task, return_std=True),
        strict=True,
    ):
        assert_allclose(one, other, rtol=1e-8)
