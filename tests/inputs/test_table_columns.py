"""Later tables hold what the fit saw, or the message says what to write."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose

import sharedspan as ss
from sharedspan.cli import main

DAYS = pd.date_range("2024-01-01", periods=100)
ISO, GERMAN = DAYS.strftime("%Y-%m-%d"), DAYS.strftime("%d.%m.%Y")
Y = np.arange(100.0)


def frame(day):
    return pd.DataFrame({"g": ["a", "b"] * 50, "day": day})


def fitted(day, **options):
    model = ss.PooledRegressor(task_column="g", columns=ss.Columns(**options))
    return model.fit(frame(day), Y)


@pytest.mark.parametrize("missing", ["error", "drop", "indicator"])
@pytest.mark.parametrize(
    ("day", "shown"),
    [
        (GERMAN, "'01.01.2024'"),
        ("20240101", "'20240101'"),
        (20240101, "20240101"),
        (20240101.0, r"20240101\.0"),
        (True, "true"),
        ("31-01-02", "'31-01-02'"),
    ],
)
def test_dates_in_another_form_than_in_the_fit_are_refused(day, shown, missing):
    model = fitted(ISO, missing=missing)
    words = rf"X: the column 'day' holds {shown}, .* dates in ISO form, such as '2024-12-31'"
    for table in (frame(day), pl.from_pandas(frame(day))):
        with pytest.raises(ValueError, match=words):
            model.predict(table)
    new = ss.NewTaskRegressor.from_model(ss.AdaptiveSpanRegressor(
        task_column="g", columns=ss.Columns(missing=missing)).fit(frame(ISO), Y))  # fmt: skip
    with pytest.raises(ValueError, match=words):
        new.fit(frame(day), Y)


def test_dates_of_a_form_are_refused_in_another_but_iso():
    model = fitted(GERMAN, dates={"day": "%d.%m.%Y"})
    expected = model.predict(frame(GERMAN))
    assert_allclose(model.predict(frame(ISO)), expected)
    assert_allclose(model.predict(frame(DAYS)), expected)
    words = r"of the form '%d.%m.%Y', such as '31.12.2024': .*, or in ISO form"
    for day in (DAYS.strftime("%m/%d/%Y"), DAYS.strftime("%d.%m.%y"), 20240101):
        with pytest.raises(ValueError, match=words):
            model.predict(frame(day))


def test_whole_numbers_are_dates_only_if_they_were_in_the_fit():
    numbers = DAYS.strftime("%Y%m%d")
    model = fitted(numbers.astype(int), dates={"day": "%Y%m%d"})
    expected = model.predict(frame(numbers.astype(int)))
    assert_allclose(model.predict(frame(numbers)), expected)
    assert_allclose(model.predict(frame(ISO)), expected)
    with pytest.raises(ValueError, match=r"holds 19723, .* of the form '%Y%m%d'"):
        model.predict(frame(19723))


@pytest.mark.parametrize("day", [None, np.nan, pd.NaT, "unknown"])
def test_missing_dates_are_still_filled_in(day):
    model = fitted(ISO, missing="indicator", na_values=["unknown"])
    assert_allclose(model.predict(frame(day)), Y.mean())


@pytest.mark.parametrize("missing", ["error", "drop", "indicator"])
@pytest.mark.parametrize(
    ("day", "shown"), [(GERMAN, "'01.01.2024'"), (DAYS.strftime("%Y%m%d"), "20240101")]
)
def test_commands_refuse_dates_in_another_form_too(day, shown, missing, tmp_path):
    for name, values in (("fit", ISO), ("later", day)):
        frame(values).assign(y=Y + 0.5).to_csv(tmp_path / f"{name}.csv", index=False)
    model, later = tmp_path / "m.span", tmp_path / "later.csv"
    parts = ["--task", "g", "--target", "y", "--estimator", "AdaptiveSpanRegressor"]
    fit = ["fit", tmp_path / "fit.csv", *parts, "--missing", missing, "-o", model]
    for arguments in (
        fit,
        ["predict", model, later, "-o", tmp_path / "p.csv"],
        ["adapt", model, later, "-o", tmp_path / "n.span"],
    ):
        done = CliRunner().invoke(main, list(map(str, arguments)))
        if arguments is fit:
            assert done.exit_code == 0, done.output
            continue
        assert done.exit_code == 2, done.output
        assert f"later.csv: the column 'day' holds {shown}, but the model" in done.stderr
        assert "--drop" not in done.stderr


def test_unknown_columns_are_told_with_all_names_of_a_table_that_is_not_wide(tmp_path):
    table = pd.DataFrame({f"c{i}": np.arange(9.0) for i in range(20)})
    table.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(ValueError, match="a table of " + ", ".join(map(repr, table.columns))):
        ss.PooledRegressor().fit_file(tmp_path / "t.csv", task="c0", target="sales")


def test_no_column_is_proposed_that_is_used_already(tmp_path):
    table = frame(ISO).rename(columns={"day": "date"}).assign(age=Y % 7, y=Y + 0.5)
    X = table[["g", "date", "age"]]
    model = ss.PooledRegressor(task_column="g").fit(X, Y)
    with pytest.raises(ValueError, match="no column 'age'") as caught:
        model.predict(X.drop(columns="age"))
    assert "Did you mean" not in str(caught.value)
    with pytest.raises(ValueError, match=r"no column 'age'.* Did you mean 'Age'\?"):
        model.predict(X.rename(columns={"age": "Age"}))
    table.to_csv(tmp_path / "t.csv", index=False)
    X.drop(columns="age").to_csv(tmp_path / "later.csv", index=False)
    model.fit_file(tmp_path / "t.csv", task="g", target="y").save(tmp_path / "m.span")
    given = ["predict", tmp_path / "m.span", tmp_path / "later.csv", "-o", tmp_path / "p.csv"]
    done = CliRunner().invoke(main, list(map(str, given)))
    assert "no column 'age' (feature)" in done.stderr
    assert "Did you mean" not in done.stderr


@pytest.mark.parametrize("words", ["yes no", "TRUE FALSE", "true false"])
def test_words_of_booleans_are_read_in_frames_as_in_files(words, tmp_path):
    yes, no = words.split()
    rows = pd.DataFrame({"g": ["a", "b"] * 50, "new": np.where(Y % 3 == 0, yes, no)})
    rows.assign(y=Y + 0.5).to_csv(tmp_path / "t.csv", index=False)
    model = ss.PooledRegressor(task_column="g").fit_file(tmp_path / "t.csv", task="g", target="y")
    assert model.coef_names_.tolist() == ["new"]
    expected = model.predict(rows.assign(new=Y % 3 == 0))
    assert_allclose(model.predict(rows), expected)
    assert_allclose(model.predict(pl.from_pandas(rows)), expected)
    with pytest.raises(ValueError, match=r"'new' .* does not hold numbers"):
        model.predict(rows.assign(new=[*rows.new[1:], "maybe"]))


def test_an_open_end_among_dates_is_warned_of_and_the_advice_holds(tmp_path):
    days = [*ISO[:95], *["9999-12-31"] * 5]
    words = r"'day' holds 9999-12-31 in 5 rows, .*--na-values 9999-12-31 --missing drop"
    for day in (days, np.array(days, "datetime64[us]")):
        with pytest.warns(UserWarning, match=words):
            fitted(day)
        model = fitted(day, na_values=["9999-12-31"], missing="drop")
        assert model.n_rows_dropped_ == 5
