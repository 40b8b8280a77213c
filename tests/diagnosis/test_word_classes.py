"""Responses of two words: comparisons and summaries say which of them counts as 1."""

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import sharedspan as ss
from sharedspan.cli import main


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    task, x = np.repeat(np.arange(20), 12), rng.standard_normal(240)
    p = 1 / (1 + np.exp(-x - rng.standard_normal(20)[task]))
    ill = rng.random(240) < p
    return pd.DataFrame({"x": x, "task": task, "ill": ill, "word": np.where(ill, "yes", "no")})


def test_a_comparison_takes_classes_of_two_words_and_says_which_counts_as_1(table):
    X = table[["x", "task"]]
    words = ss.compare(X, table["word"], task_column="task", repeats=2)
    numbers = ss.compare(X, table["ill"].astype(float), task_column="task", repeats=2)
    assert [e.method for e in words.entries] == [e.method for e in numbers.entries]
    assert words.entries[0].rmse == numbers.entries[0].rmse
    assert "every response is 'no' or 'yes', and 'yes' counts as 1" in str(words)
    assert "every response is 0 or 1" in str(numbers)


def test_the_commands_name_the_word_that_counts_as_1(table, tmp_path):
    table = table.copy()
    data, model, page = (tmp_path / name for name in ("t.csv", "m.span", "r.html"))
    table["word"] = np.where(table["ill"], "poor", "good")
    table[["x", "task", "word"]].to_csv(data, index=False)
    columns = ["--task", "task", "--target", "word"]
    run = CliRunner().invoke
    done = run(main, ["compare", str(data), *columns, "--repeats", "2"])
    assert "Family: binomial, because word is poor or good, so that" in done.output
    assert done.output.count("poor counts as 1, and good as 0.") == 1
    run(main, ["fit", str(data), *columns, "-o", str(model)])
    done = run(main, ["report", str(model), "--data", str(data), "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert "of the rows are of class poor" in page.read_text("utf-8")


def test_three_words_are_no_classes_of_a_comparison(table):
    words = table["word"].where(table["x"] < 2, "perhaps")
    with pytest.raises(ValueError, match="not numeric"):
        ss.compare(table[["x", "task"]], words, task_column="task")


def test_the_summary_of_a_formula_says_which_word_counts_as_1(table):
    model = ss.mixed("word ~ x + (1 | task)", table, family="binomial")
    assert "yes counts as 1, and no as 0" in " ".join(str(model.summary()).split())
    model = ss.mixed("ill ~ x + (1 | task)", table.assign(ill=table["ill"] * 1), family="binomial")
    assert "counts as 1" not in str(model.summary())
