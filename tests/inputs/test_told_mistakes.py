"""Mistakes of a first trial, and what the messages say about them."""

import re

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import sharedspan as ss
from sharedspan.cli import main


@pytest.fixture(scope="module")
def boys():
    rng = np.random.default_rng(0)
    subject, age = np.repeat(np.arange(12), 8), np.tile(np.linspace(-1, 1, 8), 12)
    y = 150 + 8 * rng.standard_normal(12)[subject] + 6 * age + rng.standard_normal(96)
    return pd.DataFrame({"Subject": subject, "age": age.round(4), "height": y})


@pytest.mark.parametrize("formula", [True, False])
def test_new_rows_without_the_column_of_tasks_are_told_what_they_lack(boys, formula):
    if formula:
        model = ss.mixed("height ~ age + (1 | Subject)", boys)
    else:
        model = ss.AdaptiveSpanRegressor(task_column="Subject").fit(
            boys[["Subject", "age"]], boys["height"]
        )
    with pytest.raises(ValueError, match=r"no task column 'Subject' in X, which held the tasks"):
        model.predict(boys[["age"]])
    with pytest.raises(ValueError, match=r"Did you mean 'subject'\?"):
        model.predict(boys[["age", "Subject"]].rename(columns={"Subject": "subject"}))
    assert len(model.predict(boys[["age"]], task=boys["Subject"])) == len(boys)


def test_a_wrong_task_column_is_compared_with_the_columns(boys):
    model = ss.AdaptiveSpanRegressor(task_column="subject")
    with pytest.raises(ValueError, match=r"Did you mean 'Subject'\?"):
        model.fit(boys[["Subject", "age"]], boys["height"])


def test_the_level_of_an_interval_is_not_taken_for_labels(boys):
    X = boys[["Subject", "age"]]
    model = ss.AdaptiveSpanRegressor(task_column="Subject").fit(X, boys["height"])
    with pytest.raises(ValueError, match=r"give level=0\.9"):
        model.predict_interval(X, 0.9)


def test_one_cell_in_another_notation_is_quoted(boys, tmp_path):
    boys = boys.assign(age=boys["age"].astype(str))
    boys.loc[3, "age"] = "12,5"
    boys.to_csv(tmp_path / "t.csv", index=False)
    command = ["fit", str(tmp_path / "t.csv"), "--task", "Subject", "--target", "height"]
    done = CliRunner().invoke(main, [*command, "-o", str(tmp_path / "m.span")])
    assert "'age' ('12,5' in 1 row, besides '-" in done.output


def test_formulas_name_a_missing_tilde_and_a_missing_bar(boys):
    with pytest.raises(ValueError, match=r"has ~ between response and terms, so write height ~"):
        ss.mixed("height = age + (1|Subject)", boys)
    with pytest.raises(ValueError, match=r"write \+ or : there, or \| if `Subject` is the column"):
        ss.mixed("height ~ age + (1 + age Subject)", boys)
    with pytest.raises(ValueError, match=r"write \+ or : there\."):
        ss.mixed("height ~ age Subject", boys)
    with pytest.raises(ValueError, match="arguments have no names"):
        ss.mixed("height ~ s(age, k=8) + (1 | Subject)", boys)


def test_only_similar_names_of_files_are_suggested(boys, tmp_path):
    boys.to_csv(tmp_path / "musc_nona.csv")
    for name, told in (("nosuch.csv", False), ("musc_non.csv", True), ("a.csv", False)):
        with pytest.raises(ValueError, match="There is no file") as error:
            ss.datasets.load_table(tmp_path / name, task="Subject", target="height")
        assert ("Did you mean 'musc_nona.csv'?" in str(error.value)) == told


@pytest.mark.parametrize("kind", [int, float])
def test_labels_that_lost_their_leading_zeros_are_told(boys, kind):
    text = boys["Subject"].map("{:03d}".format)
    model = ss.AdaptiveSpanRegressor().fit(boys[["age"]], boys["height"], task=text)
    with pytest.raises(ValueError, match=r"'00\d' was, a label of another type"):
        model.predict(boys[["age"]], task=boys["Subject"].astype(kind))
    table = boys.assign(Subject=text)
    model = ss.AdaptiveSpanRegressor(task_column="Subject").fit(
        table[["Subject", "age"]], boys["height"]
    )
    with pytest.raises(ValueError, match="label of another type"):
        model.predict(boys.assign(Subject=boys["Subject"].astype(kind))[["Subject", "age"]])


@pytest.mark.parametrize("spelling", ["{}", " shop {:02d}", "Shop {:02d}", "shop  {:02d} "])
def test_labels_that_differ_in_zeros_spaces_or_case_are_told(spelling, tmp_path, boys):
    form = "{:03d}" if spelling == "{}" else "shop {:02d}"
    number = boys["Subject"].astype("category").cat.codes
    fitted, written = number.map(form.format), number.map(spelling.format)
    model = ss.AdaptiveSpanRegressor(unseen="error").fit(boys[["age"]], boys["height"], task=fitted)
    n = written[~written.isin(fitted)].nunique()
    hint = (
        f"{n} task(s) were not in the fit, such as {written[0]!r}, where the fit had "
        f"{fitted[0]!r}: write the labels as in the fit."
    )
    with pytest.raises(ValueError, match=re.escape(hint)):
        model.predict(boys[["age"]], task=written)
    model.set_params(unseen="mean")
    with pytest.warns(UserWarning, match=re.escape(hint)):
        model.predict(boys[["age"]], task=written)
    assert len(model.predict(boys[["age"]][:1], task=["none like it"])) == 1  # no warning
    boys.assign(Subject=fitted).to_csv(tmp_path / "old.csv", index=False)
    boys.assign(Subject=written).to_csv(tmp_path / "new.csv", index=False)
    model = tmp_path / "m.span"
    columns = ["--task", "Subject", "--target", "height", "-o", model]
    done = CliRunner().invoke(main, [*map(str, ["fit", tmp_path / "old.csv", *columns])])
    assert done.exit_code == 0, done.output
    more = ["predict", model, tmp_path / "new.csv", "-o", tmp_path / "p.csv"]
    done = CliRunner().invoke(main, [*map(str, more)])
    assert done.exit_code == 0, done.output
    assert done.output.count("write the labels as in the fit") == 1
    assert hint.split(" such as")[0] in done.stderr
    refused = CliRunner().invoke(main, [*map(str, more), "--unseen", "error"])
    assert refused.exit_code == 2
    assert "write the labels as in the fit" in refused.stderr
