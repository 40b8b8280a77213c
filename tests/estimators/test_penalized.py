import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.utils.estimator_checks import check_estimator

import sharedspan as ss
from conftest import statistics_of
from sharedspan.estimators.penalized import PenalizedERMRegressor, sine_penalty
from sharedspan.objective import build_objective
from sharedspan.solvers.initialization import separate_fits, task_curvatures
from sharedspan.solvers.proximal import Span, median_span, proximal_descent

SIZES = {"n_tasks": 40, "n_features": 50, "rank": 3, "n_samples": 200, "condition_number": 1.5}
OPTIONS = {"rank": 3, "fit_intercept": False, "random_state": 0}


def projector(A):
    Q, _ = np.linalg.qr(A)
    return Q @ Q.T


@pytest.fixture
def objective(small):
    return build_objective(statistics_of(small.X, small.y, small.task))


def test_the_sine_is_the_least_penalty_over_all_spans_that_hold_the_task(rng):
    """|P(A) - P(B)|_2 is at least the sine of v against B, and one A reaches it."""
    B, v = rng.standard_normal((9, 3)), rng.standard_normal(9)
    _, _, D = Span().split(B, v[:, None])
    sine, _, _ = sine_penalty(np.ones(1))(v[:, None], D)
    inside = projector(B) @ v
    rest = projector(B) @ (np.eye(9) - np.outer(inside, inside) / (inside @ inside))
    nearest = np.column_stack([v, np.linalg.svd(rest)[0][:, :2]])
    assert_allclose(np.linalg.norm(projector(nearest) - projector(B), 2), sine[0], rtol=1e-12)
    for _ in range(50):
        A = np.column_stack([v, nearest[:, 1:] + 0.3 * rng.standard_normal((9, 2))])
        assert np.linalg.norm(projector(A) - projector(B), 2) >= sine[0] - 1e-12


def test_the_penalty_gradient_matches_finite_differences(rng):
    B, V, weight = rng.standard_normal((7, 2)), rng.standard_normal((7, 5)), rng.random(5)
    penalty, span = sine_penalty(weight), Span()

    def value(B, V):
        return penalty(V, span.split(B, V)[2])[0].sum()

    D = span.split(B, V)[2]
    _, slope, threshold = penalty(V, D)
    in_V = slope + threshold * D / np.linalg.norm(D, axis=0)
    in_B = -(threshold * D / np.linalg.norm(D, axis=0)) @ (np.linalg.pinv(B) @ V).T
    for _ in range(5):
        dB, dV, h = rng.standard_normal(B.shape), rng.standard_normal(V.shape), 1e-5
        change = (value(B + h * dB, V + h * dV) - value(B - h * dB, V - h * dV)) / (2 * h)
        assert_allclose(change, np.sum(in_B * dB) + np.sum(in_V * dV), rtol=1e-7)


def test_the_step_in_the_factors_follows_the_gradient(objective, rng):
    """With deviations fixed, the whole objective has gradients G W' and B'G."""
    penalty, span = sine_penalty(np.full(40, 0.3)), Span()
    B, W, D = span.split(rng.standard_normal((8, 2)), rng.standard_normal((8, 40)))

    def value(B, W):
        V = B @ W + D
        charge = penalty(V, span.split(B, V)[2])[0].sum()
        return charge + objective.residuals(V)[1].sum()

    V = B @ W + D
    G = penalty(V, D)[1] + objective.residuals(V.copy())[0]
    dB, dW, h = rng.standard_normal(B.shape), rng.standard_normal(W.shape), 1e-5
    change = (value(B + h * dB, W + h * dW) - value(B - h * dB, W - h * dW)) / (2 * h)
    assert_allclose(change, np.sum(G @ W.T * dB) + np.sum(B.T @ G * dW), rtol=1e-6)


def test_the_loop_ends_at_a_stationary_point_and_never_rises(objective, rng):
    separate, span = separate_fits(objective)[0], Span()
    start = span.split(median_span(separate, 2, 0.1), separate)
    curvature = task_curvatures(objective, rng)
    descent = proximal_descent(
        objective, sine_penalty(np.full(40, 0.05)), span, start, curvature, max_iter=5000, tol=1e-13
    )
    at = descent.place
    assert descent.converged
    assert (np.diff(descent.trace) <= 1e-11 * descent.trace[:-1]).all()
    assert np.abs(at.B.T @ at.G).max() < 1e-5
    assert np.abs(at.G @ at.W.T).max() < 1e-5
    off, length = span.free(at.B, at.G), np.linalg.norm(at.D, axis=0)
    moved = length > 1e-9
    assert moved.any()
    assert (np.linalg.norm(off, axis=0)[~moved] <= at.threshold[~moved]).all()
    assert_allclose(off[:, moved], -(at.threshold * at.D)[:, moved] / length[moved], atol=1e-4)


def test_separate_fits_are_least_squares_for_one_task_and_many(small):
    for rows in (small.task == 1, small.task >= 0):
        X, y, task = small.X[rows], small.y[rows], small.task[rows]
        objective = build_objective(statistics_of(X, y, task, centred=False))
        expected = [
            np.linalg.lstsq(X[task == t], y[task == t], rcond=None)[0] for t in np.unique(task)
        ]
        fits = separate_fits(objective)[0] / objective.response
        assert_allclose(fits.T, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("step_two", [False, True])
def test_error_is_at_the_floor(step_two):
    ratios = []
    for seed in range(2):
        sim = ss.simulate(**SIZES, noise=0.5, random_state=seed)
        model = PenalizedERMRegressor(**OPTIONS, step_two=step_two)
        model.fit(sim.X, sim.y, task=sim.task)
        floor = ss.error_floor(200, 50, 40, 3, 0.5)
        ratios.append(ss.parameter_error(model.coef_, sim.coef) / floor)
        assert model.converged_
        assert_allclose(model.noise_variance_, 0.25, rtol=0.05)
    assert 0.90 <= np.mean(ratios) <= 1.15


def test_outlier_tasks_do_not_turn_the_span():
    for seed in range(2):
        sim = ss.simulate(**SIZES, noise=0.5, outliers=0.1, outlier_norm=3, random_state=seed)
        inlier = ~sim.is_outlier

        def error(model, sim=sim, inlier=inlier):
            coef = model.fit(sim.X, sim.y, task=sim.task).coef_
            return ss.parameter_error(coef[inlier], sim.coef[inlier])

        separate = error(ss.PerTaskRegressor(alpha=0, fit_intercept=False))
        model = PenalizedERMRegressor(**OPTIONS)
        assert error(model) <= 0.3 * separate
        assert error(ss.SharedSpanRegressor(**OPTIONS, solver="scaled_gd")) > separate
        assert ss.subspace_distance(model.representation_, sim.representation) < 0.2


@pytest.mark.parametrize("estimator", [PenalizedERMRegressor()], ids=repr)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:X is a frame, but neither task")
def test_scikit_learn_finds_no_fault(estimator):
    results = check_estimator(estimator, on_skip=None, on_fail=None)
    assert not {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert sum(r["status"] == "passed" for r in results) > 40


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"penalty": -1.0}, "penalty=-1.0 must be a number of at least 0"),
        ({"penalty": "auto"}, "penalty='auto' must be a number"),
        ({"penalty_two": np.inf}, "penalty_two=inf must be"),
        ({"step_two": "yes"}, "step_two='yes' is unknown: use True, False"),
        ({"max_iter": 0}, "max_iter=0 must be an integer of at least 1"),
        ({"rank": 9}, "rank=9 is larger than min"),
    ],
)
def test_bad_options_say_what_to_do(options, words, small):
    with pytest.raises((TypeError, ValueError), match=words):
        PenalizedERMRegressor(**options).fit(small.X, small.y, task=small.task)
