import numpy as np
import pytest
from numpy.testing import assert_allclose

import sharedspan as ss
from conftest import statistics_of
from sharedspan.inference import rank_selection
from sharedspan.inference.rank_evidence import _axes_cost, _log_frames, log_evidence
from sharedspan.inference.rank_selection import RANK_METHODS, RankPath, corrected_excess
from sharedspan.inputs.rows import validate_rows
from sharedspan.objective import build_objective
from sharedspan.report.plots import plot_rank_path
from sharedspan.statistics.folds import assign_folds, hash_key


def fold_of_rows(X, y, task, weight=None, seed=0):
    tasks = validate_rows(X, y, task, weight)
    folds = assign_folds(tasks, hash_key(tasks.n_features, np.random.default_rng(seed)), 5)
    rows = np.arange(len(X)) if tasks.order is None else tasks.order
    out = np.empty(len(X), int)
    out[rows] = folds
    return out


def test_folds_are_balanced_within_every_task(small):
    folds = fold_of_rows(small.X, small.y, small.task)
    for t in range(40):
        counts = np.bincount(folds[small.task == t], minlength=5)
        assert counts.max() - counts.min() <= 1


def test_folds_do_not_depend_on_the_order_of_rows(small, rng):
    order = rng.permutation(len(small.y))
    folds = fold_of_rows(small.X, small.y, small.task)
    shuffled = fold_of_rows(small.X[order], small.y[order], small.task[order])
    assert np.array_equal(shuffled, folds[order])


def test_a_repeated_row_shares_its_copy_fold(small):
    twice = np.repeat(np.arange(len(small.y)), 2)
    folds = fold_of_rows(small.X, small.y, small.task)
    doubled = fold_of_rows(small.X[twice], small.y[twice], small.task[twice])
    assert np.array_equal(doubled, folds[twice])


def test_another_seed_gives_other_folds(small):
    a = fold_of_rows(small.X, small.y, small.task, seed=0)
    b = fold_of_rows(small.X, small.y, small.task, seed=1)
    assert 0.6 < np.mean(a != b) < 0.95


def test_the_path_is_reported_and_reads_well(small):
    model = ss.SharedSpanRegressor(random_state=0).fit(small.X, small.y, task=small.task)
    path = model.rank_path_
    assert path.rank == model.rank_ == 2
    assert path.ranks[0] == 1
    best = np.argmin(path.loss)
    assert path.difference[best] == 0
    assert "chosen" in str(path)


def test_held_out_losses_are_those_of_plain_cross_validation(small, monkeypatch):
    """Subtraction of folds in canonical units against refits to the rows."""
    monkeypatch.setattr("sharedspan.inference.rank_selection.PRECISION", 1e-5)
    model = ss.SharedSpanRegressor(random_state=0).fit(small.X, small.y, task=small.task)
    folds = fold_of_rows(small.X, small.y, small.task)
    total = 0.0
    for fold in range(5):
        kept = folds != fold
        refit = ss.SharedSpanRegressor(rank=2, random_state=0, tol=1e-9)
        refit.fit(small.X[kept], small.y[kept], task=small.task[kept])
        prediction = refit.predict(small.X[~kept], small.task[~kept])
        total += np.sum((small.y[~kept] - prediction) ** 2)
    assert_allclose(model.rank_path_.loss[1], total / len(small.y), rtol=1e-5)


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("n_samples", [24, "unequal"])
def test_rank_auto_finds_three(n_samples, whiten):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(20, 401, 120) if n_samples == "unequal" else n_samples
        sim = ss.simulate(
            n_tasks=120, n_features=30, rank=3, n_samples=sizes, noise=0.5, random_state=seed
        )
        model = ss.SharedSpanRegressor(whiten=whiten, random_state=0)
        assert model.fit(sim.X, sim.y, task=sim.task).rank_ == 3


def test_folds_leave_the_final_fit_as_it_is_without_them(small):
    auto = ss.SharedSpanRegressor(random_state=0, tol=1e-10).fit(small.X, small.y, task=small.task)
    given = ss.SharedSpanRegressor(rank=2, random_state=0, tol=1e-10).fit(
        small.X, small.y, task=small.task
    )
    assert_allclose(auto.coef_, given.coef_, rtol=1e-6, atol=1e-8)


def test_one_row_per_task_gives_rank_one():
    sim = ss.simulate(n_tasks=30, n_features=4, rank=2, n_samples=1, random_state=0)
    for fit_intercept in (True, False):
        model = ss.SharedSpanRegressor(fit_intercept=fit_intercept, random_state=0)
        assert model.fit(sim.X, sim.y, task=sim.task).rank_ == 1


def many_rows(seed=0, n_samples=60, **options):
    """Tasks with enough rows for all three methods."""
    given = {"n_tasks": 40, "n_features": 8, "rank": 2, "noise": 0.5} | options
    return ss.simulate(**given, n_samples=n_samples, random_state=seed)


def found(rank, X, y, task, estimator=ss.SharedSpanRegressor):
    return estimator(rank=rank, random_state=0).fit(X, y, task=task).rank_path_


@pytest.mark.parametrize("method", RANK_METHODS)
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_each_method_finds_the_rank(method, rank):
    for seed in range(3):
        sim = many_rows(seed, rank=rank)
        assert found(method, sim.X, sim.y, sim.task).rank == rank


@pytest.mark.parametrize(
    "estimator",
    [
        ss.ARMULRegressor, ss.CurriculumRegressor, ss.MomentRegressor, ss.PenalizedERMRegressor,
        ss.SpectralRegressor,
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["evidence", "threshold"])
def test_every_estimator_with_a_span_has_the_methods(estimator, method):
    sim = many_rows()
    path = found(method, sim.X, sim.y, sim.task, estimator)
    assert (path.rank, path.method) == (2, method)


def test_evidence_works_with_fewer_rows_than_features_and_unequal_sizes():
    for seed, sizes in enumerate((12, np.random.default_rng(0).integers(6, 100, 80))):
        sim = many_rows(seed, sizes, n_tasks=80, n_features=20, rank=3)
        assert found("evidence", sim.X, sim.y, sim.task).rank == 3


@pytest.mark.parametrize("method", RANK_METHODS)
def test_noise_free_tasks_have_their_rank_and_no_more(method):
    sim = many_rows(noise=0.0, n_tasks=12, n_features=5)
    assert found(method, sim.X, sim.y, sim.task).rank == 2


def test_auto_finds_a_direction_that_the_old_rule_of_one_standard_error_missed():
    """The last direction is at 1.2 times the noise edge, and weaker in a fold with fewer rows."""
    edge = 0.5 * (np.sqrt(30) + np.sqrt(60)) / np.sqrt(60)
    kappa = 3.3
    ranks = []
    for seed in range(5):
        signal = 1.2 * edge * np.sqrt((1 + kappa + kappa**2) / 60)
        sim = ss.simulate(
            n_tasks=60, n_features=30, rank=3, n_samples=60, noise=0.5, condition_number=kappa,
            signal=signal, random_state=seed,
        )  # fmt: skip
        assert 0.8 < sim.singular_values[-1] / edge < 1.4
        ranks.append(found("auto", sim.X, sim.y, sim.task).rank)
    assert ranks.count(3) >= 4


def test_the_excess_and_its_error_are_those_of_a_hand_computation():
    pairs = np.array([[4.0, 4.0, 4.0, 4.0], [1.0, 3.0, 2.0, 4.0], [2.0, 2.0, 2.0, 3.0]])
    excess, error = corrected_excess(pairs, np.zeros(3))
    # Totals are 16, 10 and 9; differences from the last are 2, 2, 2, 1 and -1, 1, 0, 1.
    assert_allclose(excess, [7, 1, 0])
    assert_allclose(error, [2 * np.sqrt(3 / 16), 2 * np.sqrt(11 / 16), 0])
    # Corrections are 0, 0 and 0.5; then 3 for the second rank, which makes it the best.
    assert_allclose(corrected_excess(pairs, np.array([0, 0, 0.5]))[0], [7.5, 1.5, 0])
    excess, error = corrected_excess(pairs, np.array([0.0, 3.0, 0.0]))
    assert_allclose(excess, [9, 0, 2])
    assert_allclose(error, [2 * np.sqrt(1.25), 0, 2 * np.sqrt(11 / 16)])


def test_axes_have_the_volume_of_half_spheres():
    assert_allclose(np.exp(_log_frames(2, 1)), np.pi)
    assert_allclose(np.exp(_log_frames(3, 1)), 2 * np.pi)
    assert_allclose(np.exp(_log_frames(3, 2)), 2 * np.pi * np.pi)


def test_axes_cost_nothing_where_nothing_is_known_and_more_where_more_is():
    costs = [_axes_cost(np.array([mu, mu / 2]), 10, 50) for mu in (0.0, 10.0, 100.0, 1000.0)]
    assert costs[0] == 0
    assert np.all(np.diff(costs) > 0)
    assert _axes_cost(np.array([5.0]), 1, 50) == 0


def test_the_likelihood_in_the_evidence_is_that_of_the_normal_distribution():
    """One feature has one span: the evidence is the likelihood minus half a log of T for C."""
    from scipy.optimize import minimize
    from scipy.stats import multivariate_normal

    sim = ss.simulate(n_tasks=15, n_features=1, rank=1, n_samples=6, noise=0.7, random_state=0)
    objective = build_objective(statistics_of(sim.X, sim.y, sim.task, centred=False))
    B = np.ones((1, 1))
    value = log_evidence(objective, B, objective.solve_W(B), np.ones(15), False)

    def minus_log(logs):
        C, variance = np.exp(logs)
        return -sum(
            multivariate_normal.logpdf(
                sim.y[sim.task == t],
                cov=variance * np.eye(6) + C * np.outer(x := sim.X[sim.task == t, 0], x),
            )
            for t in range(15)
        )

    best = minimize(minus_log, [0.0, 0.0], method="Nelder-Mead").fun
    assert_allclose(value, -best - 0.5 * np.log(15), atol=0.05)


@pytest.mark.parametrize("method", RANK_METHODS)
def test_the_path_does_not_depend_on_the_order_of_rows(method, rng):
    sim = many_rows()
    order = rng.permutation(len(sim.y))
    one = found(method, sim.X, sim.y, sim.task)
    other = found(method, sim.X[order], sim.y[order], sim.task[order])
    assert one.rank == other.rank
    assert_allclose(one.loss, other.loss, rtol=1e-6, atol=1e-12)
    assert_allclose(one.difference, other.difference, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", RANK_METHODS)
def test_the_rank_does_not_depend_on_units(method):
    sim = many_rows()
    scale = np.geomspace(1e-3, 1e3, 8)
    one = found(method, sim.X, sim.y, sim.task)
    other = found(method, sim.X * scale + 5, sim.y * 1e4 - 7, sim.task)
    assert one.rank == other.rank == 2
    # Losses have the units of y squared, singular values of y, and densities of one over y.
    expected = {
        "auto": (1e8 * one.loss, 1e8 * one.difference),
        "evidence": (one.loss + np.log(1e4), one.difference),
        "threshold": (1e4 * one.loss, 1e4 * one.difference),
    }[method]
    if method != "auto":  # folds depend on the values of rows
        assert_allclose(other.loss, expected[0], rtol=1e-5)
        assert_allclose(other.difference, expected[1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", RANK_METHODS)
def test_the_table_names_its_columns_and_marks_the_choice(method):
    sim = many_rows()
    path = found(method, sim.X, sim.y, sim.task)
    lines = str(path).splitlines()
    assert len(lines) == 1 + len(path.ranks)
    assert all(name in lines[0] for name in path.columns)
    assert [line.endswith("<- chosen") for line in lines[1:]] == list(path.ranks == path.rank)
    assert len({len(line.removesuffix("  <- chosen")) for line in lines}) == 1


def test_the_threshold_leaves_the_rank_out_that_exceeds_it():
    sim = many_rows()
    path = found("threshold", sim.X, sim.y, sim.task)
    assert path.difference[path.rank - 1] <= 0 < path.difference[path.rank - 2]
    assert np.ptp(path.loss - path.difference) < 1e-12


def test_the_threshold_warns_and_gives_one_where_there_is_nothing():
    sim = many_rows()
    noise = np.random.default_rng(0).standard_normal(len(sim.y))
    with pytest.warns(UserWarning, match="no common span"):
        path = found("threshold", sim.X, noise, sim.task)
    assert path.rank == 1


def test_the_threshold_refuses_tasks_with_few_rows():
    sim = many_rows(n_samples=np.r_[np.full(39, 60), 20])
    with pytest.raises(ValueError, match=r"20 rows for 8 features.*rank='auto'"):
        found("threshold", sim.X, sim.y, sim.task)


@pytest.mark.parametrize("bad", ["cv", "Auto", 0, 2.5, None])
@pytest.mark.parametrize("estimator", [ss.SharedSpanRegressor, ss.SpectralRegressor])
def test_a_bad_rank_is_answered_with_the_allowed_ones(estimator, bad):
    sim = many_rows()
    with pytest.raises((TypeError, ValueError), match="'auto', 'evidence' or 'threshold'"):
        estimator(rank=bad).fit(sim.X, sim.y, task=sim.task)


@pytest.mark.parametrize("method", RANK_METHODS)
def test_the_plot_of_the_path_marks_the_rank(method):
    sim = many_rows()
    model = ss.SharedSpanRegressor(rank=method, random_state=0).fit(sim.X, sim.y, task=sim.task)
    ax = plot_rank_path(model)
    assert "chosen: rank 2" in [text.get_text() for text in ax.get_legend().get_texts()]
    marks = [line for line in ax.lines if line.get_label().startswith("chosen")]
    assert_allclose(marks[0].get_xydata(), [[2, model.rank_path_.loss[1]]])
    words = {"auto": "held-out rows", "evidence": "evidence per row", "threshold": "singular value"}
    assert words[method] in ax.get_ylabel()
    ax.figure.canvas.draw()


def test_the_plot_takes_a_path_and_axes_and_refuses_neither():
    from matplotlib.figure import Figure

    numbers = np.array([3.0, 1.0, 1.5])
    path = RankPath(np.arange(1, 4), numbers, numbers - 1, np.array([0.2, 0.0, 0.1]), 2)
    ax = Figure().subplots()
    assert plot_rank_path(path, ax) is ax
    assert ax.containers[0].has_yerr
    with pytest.raises(ValueError, match="no path of ranks"):
        plot_rank_path(None)


def crowd(rank=2, seed=0, **options):
    """Enough tasks for a sample of them."""
    given = {"n_tasks": 2500, "n_features": 6, "n_samples": 12, "noise": 0.5} | options
    return ss.simulate(**given, rank=rank, random_state=seed)


def paths_of(sim, monkeypatch):
    """The path of ranks, and the numbers of tasks and folds of each attempt."""
    tried = []
    path = rank_selection.Folded.path

    def watched(self, progress):
        result = path(self, progress)
        tried.append((self.problem.statistics.n_tasks, len(self.held_out)))
        return result

    monkeypatch.setattr(rank_selection.Folded, "path", watched)
    return found("auto", sim.X, sim.y, sim.task), tried


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_a_sample_of_tasks_and_one_fold_suffice_for_a_clear_rank(rank, monkeypatch):
    path, tried = paths_of(crowd(rank), monkeypatch)
    assert path.rank == rank
    assert tried == [(1000, 1)]


def test_without_a_clear_rank_all_tasks_and_folds_are_used(monkeypatch):
    sim = crowd(2)
    strength = sim.singular_values[1] / np.sqrt(2500)
    # The second direction is 1.3 times as strong as the noise of a task's weight: it hardly pays.
    shrunk = sim.task_weights * np.array([[1.0], [1.3 * 0.5 / np.sqrt(12) / strength]])
    sim.y[:] += np.einsum("ij,ij->i", sim.X, ((sim.representation @ shrunk).T - sim.coef)[sim.task])
    _, tried = paths_of(sim, monkeypatch)
    assert tried == [(1000, 5), (2500, 5)]


def test_a_sample_selects_the_rank_of_all_tasks(monkeypatch):
    for seed in range(5):
        sim = crowd(3, seed, noise=0.8)
        sampled = found("auto", sim.X, sim.y, sim.task).rank
        with monkeypatch.context() as patched:
            patched.setattr(rank_selection, "SAMPLE", 10**9)
            patched.setattr(rank_selection, "DECISIVE", 1e9)
            assert found("auto", sim.X, sim.y, sim.task).rank == sampled == 3


def test_errors_on_rows_left_out_do_not_leak_if_rows_are_scarce():
    sim = ss.simulate(n_tasks=20, n_features=30, rank=2, n_samples=10, noise=0.2, random_state=2)
    assert (found("auto", sim.X, sim.y, sim.task).loss > 1.0).all()


def test_a_direction_of_a_few_tasks_is_found_though_the_sample_may_miss_it():
    sim = crowd(2, n_tasks=6000, n_features=6, n_samples=15)
    V = sim.coef.copy()
    rare = np.linalg.qr(np.column_stack([sim.representation, np.eye(6)]))[0][:, 2]
    odd = np.random.default_rng(1).choice(6000, 8, replace=False)
    V[odd] += 20.0 * rare
    y = sim.y + np.einsum("ij,ij->i", sim.X, (V - sim.coef)[sim.task])
    for seed in range(4):
        model = ss.SharedSpanRegressor(rank="auto", random_state=seed)
        assert model.fit(sim.X, y, task=sim.task).rank_ == 3


def test_tasks_of_very_different_noise_do_not_add_ranks():
    for seed in range(3):
        rng = np.random.default_rng(seed)
        sim = ss.simulate(n_tasks=700, n_features=20, rank=1, n_samples=25, noise=0.0,
                          random_state=seed)  # fmt: skip
        noise = np.exp(1.5 * rng.standard_normal(700))[sim.task]
        y = sim.y + noise * rng.standard_normal(len(sim.y))
        assert found("auto", sim.X, y, sim.task).rank == 1
