import re

import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_allclose
from sklearn.base import is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import StandardScaler

import sharedspan as ss

WITH_SPAN = [
    ss.SharedSpanRegressor(rank=2, random_state=0),
    ss.AdaptiveSpanRegressor(rank=2, outliers=False),
    ss.MomentRegressor(rank=2, random_state=0),
    ss.SpectralRegressor(rank=2, random_state=0),
    ss.ARMULRegressor(rank=2, penalty=1.0, random_state=0),
    ss.ARMULRegressor(variant="clustered", n_clusters=3, penalty=1.0, random_state=0),
    ss.ARMULRegressor(variant="vanilla", penalty=1.0, random_state=0),
    ss.PenalizedERMRegressor(rank=2, random_state=0),
    ss.CurriculumRegressor(rank=2, random_state=0),
    ss.NewTaskRegressor(representation=np.eye(8)[:, :3]),
]
ALL = [*WITH_SPAN, ss.PooledRegressor(), ss.PerTaskRegressor()]
HOSTILE = "<script>alert('&')</script>"


def name_of(estimator):
    return type(estimator).__name__ + getattr(estimator, "variant", "")


@pytest.fixture
def frame(small):
    table = pd.DataFrame(small.X, columns=[f"feature {j}" for j in range(8)])
    table.index = [f"row {i}" for i in range(len(table))]
    table.insert(2, "school", [f"school {t}" for t in small.task])
    return table


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.parametrize("estimator", WITH_SPAN, ids=name_of)
def test_transform_gives_the_rows_in_the_span(estimator, small):
    model = estimator.fit(small.X, small.y, task=small.task)
    found = model.transform(small.X)
    assert_allclose(found, small.X @ model.representation_, rtol=1e-12, atol=1e-12)
    names = [f"{type(model).__name__.lower()}{j}" for j in range(found.shape[1])]
    assert model.get_feature_names_out().tolist() == names
    assert is_regressor(model)


def test_predictions_are_shared_features_times_task_weights(small):
    model = ss.SharedSpanRegressor(rank=2, random_state=0)
    features = model.fit_transform(small.X, small.y, task=small.task)
    weights = model.task_weights_.T[small.task]
    prediction = model.intercept_[small.task] + np.sum(features * weights, axis=1)
    assert_allclose(prediction, model.predict(small.X, small.task), rtol=1e-10)


def test_fit_transform_hands_weights_and_task_to_the_fit(small):
    weight = np.arange(len(small.y)) % 3
    model = ss.SharedSpanRegressor(rank=2, random_state=0)
    features = model.fit_transform(small.X, small.y, small.task, sample_weight=weight)
    other = ss.SharedSpanRegressor(rank=2, random_state=0)
    other.fit(small.X, small.y, small.task, sample_weight=weight)
    assert np.array_equal(features, other.transform(small.X))
    assert len(model.tasks_) == 40


def test_a_list_of_tasks_is_transformed_as_one_table(small):
    cuts = np.cumsum(np.bincount(small.task))[:-1]
    X, y = np.split(small.X, cuts), np.split(small.y, cuts)
    model = ss.SharedSpanRegressor(rank=2, random_state=0)
    features = model.fit_transform(X, y)
    assert_allclose(features, small.X @ model.representation_, rtol=1e-12, atol=1e-12)
    assert model.set_output(transform="pandas").transform(X).shape == features.shape


def test_a_model_without_directions_gives_no_features(small):
    model = ss.AdaptiveSpanRegressor(rank=0).fit(small.X, small.y, task=small.task)
    assert model.transform(small.X).shape == (len(small.X), 0)
    assert len(model.get_feature_names_out()) == 0
    assert model.set_output(transform="pandas").transform(small.X).shape == (len(small.X), 0)


def test_frames_come_back_as_frames_without_the_task_column(frame, small):
    model = ss.SharedSpanRegressor(rank=2, task_column="school", random_state=0)
    model.set_output(transform="pandas").fit(frame, small.y)
    found = model.transform(frame)
    assert found.columns.tolist() == ["sharedspanregressor0", "sharedspanregressor1"]
    assert found.index.equals(frame.index)
    assert_allclose(found.to_numpy(), small.X @ model.representation_, rtol=1e-12, atol=1e-12)
    model.set_output(transform="polars")
    assert model.transform(frame).columns == found.columns.tolist()


def test_rows_that_cannot_be_transformed_are_refused(frame, small):
    model = ss.SharedSpanRegressor(rank=2, task_column="school", random_state=0)
    with pytest.raises(NotFittedError):
        model.transform(frame)
    model.fit(frame, small.y)
    with pytest.raises(ValueError, match="no task column 'school'"):
        model.transform(frame.drop(columns="school"))
    with pytest.raises(ValueError, match="feature names should match"):
        model.transform(frame.rename(columns={"feature 1": "other"}))
    with pytest.raises(ValueError, match="0 sample"):
        model.transform(frame.iloc[:0])


@pytest.mark.parametrize("baseline", [ss.PooledRegressor(), ss.PerTaskRegressor()], ids=name_of)
def test_estimators_without_a_span_do_not_transform(baseline):
    assert not hasattr(baseline, "transform")
    assert not hasattr(baseline, "get_feature_names_out")


def test_a_pipeline_goes_on_with_the_shared_features_of_a_frame(frame, small):
    span = ss.SharedSpanRegressor(rank=2, task_column="school", random_state=0)
    pipeline = make_pipeline(span, Ridge(alpha=1e-9)).fit(frame, small.y)
    ridge = Ridge(alpha=1e-9).fit(span.transform(frame), small.y)
    assert np.array_equal(pipeline.predict(frame), ridge.predict(span.transform(frame)))
    assert pipeline[:-1].get_feature_names_out().tolist() == list(span.get_feature_names_out())


@pytest.mark.usefixtures("routing")
def test_a_pipeline_routes_the_task_to_a_span_in_its_middle(small):
    span = ss.SharedSpanRegressor(rank=2, random_state=0)
    union = make_union(span, ss.MomentRegressor(rank=1, random_state=0))
    pipeline = make_pipeline(StandardScaler(), union, Ridge())
    pipeline.fit(small.X, small.y, task=small.task)
    assert pipeline.predict(small.X).shape == small.y.shape
    assert len(pipeline[1].transformer_list[0][1].tasks_) == 40
    assert pipeline[:-1].get_feature_names_out().tolist() == [
        "sharedspanregressor__sharedspanregressor0", "sharedspanregressor__sharedspanregressor1",
        "momentregressor__momentregressor0",
    ]  # fmt: skip


@pytest.mark.usefixtures("routing")
def test_a_pipeline_routes_the_task_to_spans_in_its_middle_and_at_its_end(small):
    pipeline = make_pipeline(
        ss.SharedSpanRegressor(rank=2, random_state=0), ss.PerTaskRegressor()
    ).fit(small.X, small.y, task=small.task)
    assert pipeline.score(small.X, small.y, task=small.task) > 0.9


def test_without_routing_a_pipeline_takes_the_task_by_the_name_of_the_step(small):
    span = ss.SharedSpanRegressor(rank=2, random_state=0)
    make_pipeline(span, Ridge()).fit(small.X, small.y, sharedspanregressor__task=small.task)
    assert len(span.tasks_) == 40


@pytest.mark.parametrize("estimator", ALL, ids=name_of)
def test_every_estimator_is_shown_as_html_before_and_after_its_fit(estimator, small):
    model = sklearn.clone(estimator)
    for fitted in (False, True):
        page = model._repr_html_()
        assert type(model).__name__ in page
        assert "href" not in body(page)  # there is no page to link to
        assert len(page) < 200_000
        assert make_pipeline(StandardScaler(), model)._repr_html_()
        if not fitted:
            model.fit(small.X, small.y, task=small.task)


def body(page):
    """Without style sheets and scripts."""
    return re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)


def test_hostile_text_is_only_text_in_html(small):
    frame = pd.DataFrame(small.X, columns=[f"{HOSTILE}{j}" for j in range(8)])
    frame[HOSTILE] = [f"{HOSTILE}{t}" for t in small.task]
    model = ss.SharedSpanRegressor(rank=2, task_column=HOSTILE, engine="local", random_state=0)
    unfitted = model._repr_html_()
    fitted = model.fit(frame, small.y)._repr_html_()
    piped = make_pipeline(model, Ridge()).fit(frame, small.y)._repr_html_()
    for page in (unfitted, fitted, piped):
        assert "<script>alert" not in page
        assert "&lt;script&gt;" in page


def test_large_arrays_are_shown_short(rng):
    representation = np.linalg.qr(rng.standard_normal((400, 5)))[0]
    model = ss.NewTaskRegressor(representation, np.ones(5), np.eye(5), 1.0, np.eye(2000))
    for text in (repr(model), body(model._repr_html_())):
        assert len(re.findall(r"\d\.\d", text)) < 300
        assert len(text) < 20_000


def test_showing_a_model_computes_nothing(small, monkeypatch):
    """Standard errors cost more than a fit: a notebook must not ask for them to show a model."""
    models = [
        ss.SharedSpanRegressor(rank=2, random_state=0).fit(small.X, small.y, small.task),
        ss.AdaptiveSpanRegressor(rank=2).fit(small.X, small.y, small.task),
        ss.NewTaskRegressor(method="sgd").fit(small.X, small.y, small.task),
    ]
    asked = []
    for model in models:
        for name in ("coef_std_", "coef_covariance_", "representation_covariance_"):
            if hasattr(type(model), name):
                monkeypatch.setattr(type(model), name, property(lambda self: asked.append(self)))
        page = model._repr_html_()
        assert "property object" not in page
    assert not asked
