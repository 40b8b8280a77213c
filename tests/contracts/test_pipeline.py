"""Transformers of scikit-learn before an estimator, which leave the task column unchanged."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer

import sharedspan as ss

pd = pytest.importorskip("pandas")
KNOTS = "columntransformer__splinetransformer__n_knots"


@pytest.fixture(scope="module")
def table():
    """Tasks with a bend at zero, of another size in each task."""
    rng = np.random.default_rng(0)
    shop = np.repeat([f"shop {t:02d}" for t in range(25)], 40)
    age, price = rng.uniform(-1, 1, (2, 1000))
    bend = np.repeat(1 + rng.standard_normal(25), 40)
    y = price + 2 * bend * np.abs(age) + 0.1 * rng.standard_normal(1000)
    return pd.DataFrame({"age": age, "shop": shop, "price": price}), y


def pipeline(columns=("age",), n_knots=3, **options):
    bends = make_column_transformer(
        (SplineTransformer(n_knots=n_knots, degree=1, include_bias=False), list(columns)),
        remainder="passthrough",
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")
    return make_pipeline(bends, ss.AdaptiveSpanRegressor(task_column="shop", **options))


def test_feature_names_survive_the_transformer(table):
    model = pipeline().fit(*table)
    assert model[-1].coef_names_.tolist() == ["age_sp_0", "age_sp_1", "price"]
    assert list(model[-1].tasks_[:2]) == ["shop 00", "shop 01"]


def test_splines_in_a_pipeline_fit_bends_and_predict_on_frames(table):
    X, y = table
    model = pipeline().fit(X, y)
    assert np.std(y - model.predict(X)) < 0.12
    assert np.std(y - pipeline(n_knots=2).fit(X, y).predict(X)) > 0.5
    score, std = model.predict(X[:5], return_std=True)
    assert_allclose(score, model.predict(X[:5]))
    assert (std > 0.09).all()


def test_the_number_of_knots_is_found_by_grid_search(table):
    search = GridSearchCV(
        pipeline(rank=0), {KNOTS: [2, 3]}, cv=KFold(2, shuffle=True, random_state=0)
    ).fit(*table)
    assert search.best_params_ == {KNOTS: 3}
    assert search.best_score_ > 0.9


def test_pipelines_can_be_diagnosed(table):
    X, y = table
    model = pipeline().fit(X, y)
    found = ss.diagnose(model, X, y)
    assert found.n_features == 3
    assert_allclose(found.noise, 0.1, rtol=0.1)
    assert min(found.task_r2.values()) > 0.8


def test_a_hundred_columns_of_splines_are_fitted(table):
    X, y = table
    wide = X.assign(**{f"x{j}": np.random.default_rng(j).uniform(-1, 1, 1000) for j in range(8)})
    columns = ["age", *(f"x{j}" for j in range(8))]
    model = pipeline(columns, n_knots=13, rank=0).fit(wide, y)
    assert model[-1].coef_.shape == (25, 109)
    assert np.isfinite(model.predict(wide)).all()
