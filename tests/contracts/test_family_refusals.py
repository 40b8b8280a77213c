"""Families of responses and the parts of the package that are for normal responses alone."""

import numpy as np
import pytest

import sharedspan as ss


@pytest.fixture(scope="module")
def sim():
    return ss.simulate(n_tasks=12, n_features=3, rank=1, n_samples=30, noise=2.0, random_state=0)


@pytest.fixture(scope="module")
def binary(sim):
    model = ss.AdaptiveSpanRegressor(family="binomial", rank=0)
    return model.fit(sim.X, sim.y > 0, task=sim.task)


@pytest.fixture(scope="module")
def classifier(sim):
    return ss.SharedSpanClassifier(rank=1).fit(sim.X, sim.y > 0, task=sim.task)


def test_a_graph_holds_no_posterior_distribution(binary, classifier, tmp_path):
    pytest.importorskip("onnx")
    for model in (binary, classifier):
        with pytest.raises(TypeError, match=r"binomial responses .* means over the posterior"):
            model.export_onnx(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_new_tasks_of_other_families_are_not_fitted_by_least_squares(binary, classifier):
    for model in (binary, classifier):
        with pytest.raises(TypeError, match=r"binomial responses, .* together .* unseen='mean'"):
            ss.NewTaskRegressor.from_model(model)


def test_rows_cannot_be_added_to_other_families(binary, classifier, sim):
    for model in (binary, classifier):
        for method in ("partial_fit", "merge", "fit_statistics"):
            assert not hasattr(model, method)
            with pytest.raises(AttributeError, match="statistics of the rows depend on the fit"):
                getattr(model, method)
    with pytest.raises(AttributeError, match=r"needs the rows.* Use fit"):
        ss.MomentRegressor().fit_statistics(None)
    with pytest.raises(AttributeError, match=r"has no standard errors: use Adaptive"):
        ss.PooledRegressor().fit(sim.X, sim.y, task=sim.task).predict_interval(sim.X, sim.task)


def test_workers_of_a_cluster_keep_no_rows_to_weight(sim):
    model = ss.AdaptiveSpanRegressor(family="poisson", engine="tcp://localhost:1")
    with pytest.raises(ValueError, match=r"a pass over the rows in every iteration.* use fit_file"):
        model.fit(sim.X, sim.y > 0, task=sim.task)


def test_a_model_of_several_classes_is_diagnosed_class_by_class(sim, tmp_path):
    y = np.digitize(sim.y, [-0.5, 0.5])
    model = ss.AdaptiveSpanClassifier(rank=0).fit(sim.X, y, task=sim.task)
    for use in (ss.diagnose, ss.plot_spectrum, lambda m: ss.write_report(m, tmp_path / "r.html")):
        with pytest.raises(TypeError, match=r"3 classes .* in estimators_"):
            use(model)
    for one in model.estimators_:
        assert ss.diagnose(one).n_tasks == 12
