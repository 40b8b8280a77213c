"""Transformers of scikit-learn before an estimator, which leave the task column unchanged."""

import numpy as np
import polars as pl
import pytest
import sklearn
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, SplineTransformer, StandardScaler

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


# A table with text, through a ColumnTransformer as people write it.


@pytest.fixture(scope="module")
def mixed(table):
    X, y = table
    level = np.random.default_rng(1).choice(["lo", "mid", "hi"], len(X))
    return X.assign(level=level), y + 2.0 * (level == "hi")


def columns(kind=None, task=None, **options):
    """Scaled numbers and one-hot text; ``task`` is where the column of tasks is passed through."""
    one_hot = OneHotEncoder(drop="first", sparse_output=kind is None)
    steps = [("num", StandardScaler(), ["age", "price"]), ("cat", one_hot, ["level"])]
    if task is not None:
        steps.append((task, "passthrough", ["shop"]))
    return ColumnTransformer(steps, **options).set_output(transform=kind)


def adaptive(**options):
    return ss.AdaptiveSpanRegressor(slopes="none", rank=0, **options)


def as_kind(X, kind):
    return pl.from_pandas(X) if kind == "polars" else X


def expected_predictions(X, y):
    coded = columns(sparse_threshold=0).fit_transform(X)
    return adaptive().fit(coded, y, task=X["shop"]).predict(coded, X["shop"])


@pytest.mark.parametrize("kind", ["pandas", "polars"])
@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"remainder": "passthrough"}, "remainder__shop"),
        ({"task": "passthrough"}, "passthrough__shop"),
        ({"task": "cat_too"}, "cat_too__shop"),
        ({"remainder": "passthrough", "verbose_feature_names_out": False}, "shop"),
    ],
    ids=str,
)
def test_the_task_column_is_found_under_the_name_that_a_transformer_gives_it(
    mixed, kind, options, name
):
    X, y = mixed
    model = make_pipeline(columns(kind, **options), adaptive(task_column="shop"))
    model.fit(as_kind(X, kind), y)
    assert name in model[-1].feature_names_in_
    assert name not in model[-1].coef_names_
    assert len(model[-1].tasks_) == 25
    assert_allclose(model.predict(as_kind(X, kind)), expected_predictions(X, y))
    varying = [each for each in model[-1].coef_names_ if each.endswith("age")]
    one = make_pipeline(columns(kind, **options), adaptive(task_column="shop", varying=varying))
    assert one.fit(as_kind(X, kind), y)[-1].slope_std_.shape == (4,)


def test_a_prefixed_task_column_is_found_only_if_it_is_the_only_one(mixed):
    X, y = mixed
    twice = X[["age"]].assign(a__shop=X["shop"], b__shop=X["shop"])
    with pytest.raises(ValueError, match=r"'shop', 'a__shop', 'b__shop': give one of"):
        adaptive(task_column="shop").fit(twice, y)
    own = X[["age"]].assign(a__shop=np.arange(1000.0), shop=X["shop"])  # its own name comes first
    assert adaptive(task_column="shop").fit(own, y).coef_names_.tolist() == ["age", "a__shop"]
    with pytest.raises(ValueError, match="no task column 'shop' in X: give one of its columns"):
        adaptive(task_column="shop").fit(X[["age"]].assign(workshop=X["shop"]), y)


def test_names_lost_in_a_transformer_are_asked_for_in_words(mixed):
    X, y = mixed
    for options in ({"sparse_threshold": 0}, {"sparse_threshold": 1}):
        X_number = X.assign(shop=X["shop"].str[-2:].astype(int))
        plain = columns(remainder="passthrough", **options)
        with pytest.raises(ValueError, match=r"'shop' in an array of 5 .*set_output\(transform="):
            make_pipeline(plain, adaptive(task_column="shop")).fit(X_number, y)
        by_number = make_pipeline(plain, adaptive(task_column=4)).fit(X_number, y)
        assert_allclose(by_number.predict(X_number), expected_predictions(X, y))
    objects = make_pipeline(
        columns(remainder="passthrough", sparse_threshold=0), adaptive(task_column=4)
    ).fit(X, y)
    assert objects[:-1].transform(X).dtype == object
    assert_allclose(objects.predict(X), expected_predictions(X, y))


def test_sparse_output_goes_through_fit_predict_search_diagnosis_and_report(mixed, tmp_path):
    X, y = mixed
    task = X["shop"]
    sklearn.set_config(enable_metadata_routing=True)
    try:
        model = make_pipeline(columns(sparse_threshold=1), adaptive())
        assert sparse.issparse(model[:-1].fit_transform(X))
        model.fit(X, y, task=task)
        assert_allclose(model.predict(X, task=task), expected_predictions(X, y))
        scores = cross_val_score(
            model, X, y, cv=GroupKFold(3), error_score="raise",
            params={"task": task, "groups": task},
        )  # fmt: skip
        assert np.isfinite(scores).all()
    finally:
        sklearn.set_config(enable_metadata_routing=False)
    assert ss.diagnose(model, X, y, task).n_features == 4
    page = ss.write_report(model, tmp_path / "page.html", X, y, task).read_text("utf-8")
    assert "from 4 features, in 25 tasks" in page


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_report_takes_a_pipeline(mixed, tmp_path, kind):
    X, y = mixed
    X = as_kind(X, kind)
    model = make_pipeline(
        columns(kind, remainder="passthrough"), adaptive(task_column="shop")
    ).fit(X, y)  # fmt: skip
    page = ss.write_report(model, tmp_path / "page.html", X, y).read_text("utf-8")
    assert "cat__level_lo" in page
    assert "remainder__shop" not in page
    assert "held-out" in page
    alone = ss.write_report(model, tmp_path / "alone.html").read_text("utf-8")
    assert "cat__level_lo" in alone
    coded = model[:-1].transform(X)
    direct = ss.write_report(model[-1], tmp_path / "direct.html", coded, y).read_text("utf-8")
    assert page == direct


def test_a_pipeline_of_the_model_alone_is_reported_and_diagnosed(table, tmp_path):
    X, y = table
    model = make_pipeline(adaptive(task_column="shop")).fit(X, y)
    assert ss.diagnose(model, X, y).noise == ss.diagnose(model[-1], X, y).noise
    assert ss.write_report(model, tmp_path / "page.html", X, y).exists()
