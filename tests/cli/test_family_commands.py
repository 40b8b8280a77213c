"""Classes and counts on the command line: the family is chosen by the target, and said."""

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose

import sharedspan as ss
from sharedspan.cli import main


def run(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


def good(*arguments):
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def frame():
    sim = ss.simulate(
        n_tasks=12, n_features=3, rank=1, n_samples=30, intercept=0.5, noise=1.0, random_state=0
    )
    table = pd.DataFrame(sim.X, columns=["a", "b", "c"])
    table.insert(0, "shop", [f"shop {t}" for t in sim.task])
    counts = np.floor(np.exp(np.clip(sim.y, None, 3.0)))
    return table.assign(bought=(sim.y > 0).astype(int), units=counts.astype(int), kg=sim.y)


@pytest.fixture
def table(frame, tmp_path):
    def write(target, values=None):
        path = tmp_path / f"{target}.csv"
        columns = frame[["shop", "a", "b", "c", target]]
        if values is not None:
            columns = columns.assign(**{target: values})
        columns.to_csv(path, index=False)
        return [path, "--task", "shop", "--target", target, "-o", tmp_path / f"{target}.span"]

    return write


@pytest.mark.parametrize(
    ("target", "family", "why"),
    [
        ("bought", "binomial", "every value of the target is 0 or 1"),
        ("units", "negative_binomial", "holds counts"),
        ("kg", "gaussian", "neither 0/1 nor counts"),
    ],
)
def test_the_target_chooses_the_family_which_is_said(target, family, why, table, tmp_path):
    out = good("fit", *table(target))
    assert f"Family: {family}, because " in out
    assert why in out
    assert "--family overrides" in out
    model = ss.load(tmp_path / f"{target}.span")
    assert type(model) is ss.AdaptiveSpanRegressor
    assert model.family == family


@pytest.mark.parametrize(
    ("target", "option"),
    [("bought", "Classifier -o"), ("units", "--family negative_binomial"), ("kg", "Regressor -o")],
)
def test_a_comparison_is_of_the_family_that_the_fit_chooses(target, option, table):
    arguments = table(target)
    (said,) = [line for line in good("fit", *arguments).splitlines() if "Family: " in line]
    out = good("compare", *arguments[:-2], "--repeats", 2)
    assert said in out.splitlines()
    (following,) = [line for line in out.splitlines() if line.startswith("Next: ")]
    assert option in following
    given = good("compare", *arguments[:-2], "--repeats", 2, "--family", "gaussian")
    assert "Family: " not in given


def test_rows_that_are_left_out_count_for_the_family_of_a_comparison(frame, table):
    """The only 0 among the counts is in a row that lacks a feature."""
    arguments = table("units", (frame.units + 1).where(frame.index > 0, 0))
    rows = pd.read_csv(arguments[0])
    rows.loc[0, "a"] = np.nan
    rows.to_csv(arguments[0], index=False)
    fitted = good("fit", *arguments, "--missing", "drop")
    out = good("compare", *arguments[:-2], "--missing", "drop", "--repeats", 2)
    for text in (fitted, out):
        assert "Family: negative_binomial, because the target holds counts" in text
    assert "AdaptiveSpanRegressor (family='poisson')" not in out


def test_predictions_are_probabilities_with_their_intervals(frame, table, tmp_path):
    for estimator in ("AdaptiveSpanRegressor", "AdaptiveSpanClassifier"):
        arguments = table("bought")
        good("fit", *arguments, "--estimator", estimator)
        predict = ["predict", arguments[-1], arguments[0], "--interval", 0.9]
        told = json.loads(good(*predict, "--json", "-o", tmp_path / "p.csv"))
        out = pd.read_csv(tmp_path / "p.csv")
        model = ss.AdaptiveSpanClassifier(random_state=0)
        model.fit(frame[["a", "b", "c"]], frame.bought, task=frame.shop)
        share = model.predict_proba(frame[["a", "b", "c"]], task=frame.shop)[:, 1]
        assert_allclose(out.prediction, share, rtol=1e-6)
        assert (out.low < out.prediction).all()
        assert (out.prediction < out.high).all()
        loss = -np.mean(np.log(np.where(frame.bought == 1, share, 1 - share)))
        assert (told["loss_name"], told["rmse"] > 0) == ("Log loss", True)
        assert_allclose(told["loss"], loss, rtol=1e-6)


def test_predictions_of_counts_have_intervals_of_counts(table, tmp_path):
    arguments = table("units")
    good("fit", *arguments, "--family", "poisson")
    out = good("predict", arguments[-1], arguments[0], "--interval", 0.9, "-o", tmp_path / "p.csv")
    assert "Mean Poisson deviance against units" in out
    predicted = pd.read_csv(tmp_path / "p.csv")
    assert (predicted.prediction > 0).all()
    assert (predicted[["low", "high"]] % 1 == 0).all(axis=None)


def test_family_overrules_and_says_nothing(table, tmp_path):
    out = good("fit", *table("bought"), "--family", "gaussian")
    assert "Family" not in out
    assert ss.load(tmp_path / "bought.span").family == "gaussian"


def test_estimators_of_normal_responses_get_one_sentence_of_advice(table):
    out = good("fit", *table("bought"), "--estimator", "PooledRegressor")
    assert out.count("models it as normal") == 1
    assert "--family binomial" in out
    assert "models them as normal" in good("fit", *table("units"), "--estimator", "PooledRegressor")
    assert "as normal" not in good("fit", *table("kg"), "--estimator", "PooledRegressor")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--family", "poisson", "--estimator", "PooledRegressor"], "only supports gaussian"),
        (["--family", "poisson", "--estimator", "SharedSpanClassifier"], "only supports binomial"),
        (["--solver", "tpgd"], "add --estimator SharedSpanRegressor"),
        (["--family", "cauchy"], "not one of"),
        (["--noise-per-task"], "leave it out, or add --family gaussian"),
        (["--noise-per-task", "--family", "binomial"], "is only available for Gaussian responses"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(more, words, table):
    done = run("fit", *table("bought"), *more)
    assert done.exit_code == 2
    assert words in done.stderr


@pytest.mark.parametrize(
    ("zero", "one"),
    [
        ("no", "yes"), ("N", "Y"), ("nein", "ja"), ("died", "survived"), ("false", "true"),
        ("False", "True"), ("f", "t"), ("f", "m"), ("grade 1", "grade 2"),
    ],
)  # fmt: skip
def test_a_target_of_two_words_is_one_of_classes(zero, one, frame, table, tmp_path):
    """One of two words counts as 1, which is said, in every command."""
    good("fit", *(given := table("bought")))
    good("predict", given[-1], given[0], "-o", tmp_path / "expected.csv")
    words = np.where(frame.bought == 1, one, zero)
    given = table("bought", words)
    fitted, compared = good("fit", *given), good("compare", *given[:5])
    for told in (fitted, compared):
        assert "every value of the target is 0 or 1" not in told
        why = f"because bought is {one} or {zero}, so that predictions are probabilities of"
        assert f"Family: binomial, {why} '{one}'; " in told
        assert f"{one} counts as 1, and {zero} as 0." in told
    assert ss.load(given[-1]).columns_.classes == (zero, one)
    good("report", given[-1], "--data", given[0], "-o", tmp_path / "page.html")
    for keep in ([], ["--keep", "bought"]):
        good("predict", given[-1], given[0], *keep, "-o", tmp_path / "p.csv")
        predicted = pd.read_csv(tmp_path / "p.csv", dtype={"bought": str})
        expected = pd.read_csv(tmp_path / "expected.csv")
        assert_allclose(predicted.prediction, expected.prediction)
        assert predicted.bought.tolist() == words.tolist()


def test_booleans_are_classes_in_every_format_and_spelling(frame, tmp_path):
    """True in Parquet is true, yes or True in text; a model of one spelling reads the others."""
    table = frame[["shop", "a"]].assign(bought=frame.bought == 1)
    table.to_parquet(tmp_path / "booleans.parquet")
    for name, words in (("upper", ("False", "True")), ("lower", ("false", "true"))):
        column = np.where(table.bought, words[1], words[0])
        table.assign(bought=column).to_csv(tmp_path / f"{name}.csv", index=False)
    losses = []
    for fitted in ("booleans.parquet", "upper.csv", "lower.csv"):
        given = [tmp_path / fitted, "--task", "shop", "--target", "bought"]
        assert "rue counts as 1" in good("fit", *given, "-o", tmp_path / "m.span")
        for name in ("booleans.parquet", "upper.csv", "lower.csv"):
            predict = ["predict", tmp_path / "m.span", tmp_path / name, "--json"]
            told = good(*predict, "-o", tmp_path / "p.csv")
            losses.append(json.loads(told)["loss"])
    assert_allclose(losses, losses[0])


@pytest.mark.parametrize(("zero", "one"), [("no", "yes"), ("n", "y"), ("healthy", "ill")])
def test_words_that_differ_in_case_alone_are_one(zero, one, frame, table, tmp_path):
    words = np.where(frame.bought == 1, one, zero)
    given = table("bought", np.where(frame.index % 3 == 0, np.char.capitalize(words), words))
    assert f"bought is {one} or {zero}, so that" in good("fit", *given)
    good("predict", given[-1], given[0], "-o", tmp_path / "p.csv")
    predicted = pd.read_csv(tmp_path / "p.csv", dtype={"bought": str})
    assert predicted.bought.tolist() == words.tolist()


def test_classes_in_words_are_read_from_every_format_and_by_classifiers(frame, tmp_path):
    frame = frame.assign(bought=np.where(frame.bought == 1, "Y", "N"))[["shop", "a", "bought"]]
    frame.astype({"bought": "category"}).to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False)
    losses = []
    for name in ("t.csv", "t.parquet"):
        given = [tmp_path / name, "--task", "shop", "--target", "bought"]
        estimator = ["--estimator", "AdaptiveSpanClassifier", "-o", tmp_path / "m.span"]
        assert "Y counts as 1" in good("fit", *given, *estimator)
        told = good("predict", tmp_path / "m.span", given[0], "--json", "-o", tmp_path / "p.csv")
        losses.append(json.loads(told)["loss"])
    assert losses[0] == pytest.approx(losses[1])


def test_another_word_than_the_two_of_the_fit_is_an_error(frame, table, tmp_path):
    words = np.where(frame.bought == 1, "Y", "N").astype(object)
    given = table("bought", words)
    good("fit", *given)
    words[3] = "maybe"
    table("bought", words)
    done = run("predict", given[-1], given[0], "-o", tmp_path / "p.csv")
    assert done.exit_code == 2
    assert "'bought' holds 'maybe', but the model was fitted to 'N' and 'Y'" in done.stderr
    done = run("fit", *given)
    assert done.exit_code == 2
    assert "text may be the target if it has two values" in done.stderr
    assert "maybe" in run("fit", *given, "--na-values", "N", "--missing", "drop").stdout


def test_new_tasks_are_refused_with_what_to_do(table, tmp_path):
    arguments = table("bought")
    good("fit", *arguments)
    done = run("adapt", arguments[-1], arguments[0], "-o", tmp_path / "new.span")
    assert done.exit_code == 2
    assert "--unseen mean" in done.stderr
    assert not (tmp_path / "new.span").exists()


def test_a_family_that_was_typed_is_in_the_next_command_and_nothing_contradicts_it(table):
    arguments = table("units")[:-2]
    out = " ".join(good("compare", *arguments, "--family", "gaussian", "--repeats", 2).split())
    following = out.partition("Next: ")[2]
    assert "--family gaussian" in following
    assert "use AdaptiveSpanRegressor(family=" not in out
    assert "as family='gaussian' asks, though they are counts" in out
