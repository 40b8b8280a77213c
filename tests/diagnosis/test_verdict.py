"""The verdict on sharing: gains against simpler models, and the sentence."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sharedspan.diagnosis.holdout_errors import HoldoutErrors
from sharedspan.diagnosis.verdict import Gain, holdout_gains, paired_gain, sharing_verdict


def verdict(pooled, separate, **options):
    """The verdict on gains of these shares, each with a standard error of one per cent."""
    shares = {"separate": separate, "pooled": pooled}
    return sharing_verdict((Gain(name, share, 0.01) for name, share in shares.items()), **options)


@pytest.mark.parametrize(
    ("pooled", "separate", "outcome", "sentence"),
    [
        (0.16, 0.026, "gain", "Sharing cuts the error by 16 % against common slopes (with an "
         "intercept for each task) and by 2.6 % against separate models."),
        (0.16, 0.009, "gain", "Sharing cuts the error by 16 % against common slopes (with an "
         "intercept for each task), but makes no clear difference against separate models."),
        (-0.009, 0.026, "gain", "Sharing cuts the error by 2.6 % against separate models, but "
         "makes no clear difference against common slopes (with an intercept for each task)."),
        (0.01, -0.01, "even", "Sharing makes no clear difference against common slopes "
         "(with an intercept for each task) or separate models."),
        (-0.03, 0.5, "loss", "Sharing does not help here. It raises the error by 3.0 % against "
         "common slopes (with an intercept for each task) and cuts the error by 50 % against "
         "separate models."),
        (0.0, -0.03, "loss", "Sharing does not help here. It raises the error by 3.0 % against "
         "separate models and makes no clear difference against common slopes (with an "
         "intercept for each task)."),
    ],
    ids=["both", "not separate", "not pooled", "even", "worse than pooled", "worse than separate"],
)  # fmt: skip
def test_the_verdict_names_what_is_clear_and_nothing_else(pooled, separate, outcome, sentence):
    result = verdict(pooled, separate)
    assert result.outcome == outcome
    assert result.sentence().replace("\u00a0", " ") == sentence
    assert result.sentence("use it") == sentence_with(result, ": use it.")


def sentence_with(result, end):
    return result.sentence()[:-1] + end


def test_the_verdict_takes_other_words():
    words = {"separate": "one model per shop"}
    result = verdict(0.2, 0.1, error="log loss", words=words, task="shop")
    assert "cuts the log loss by 20\u00a0% against common slopes (with an" in result.statement
    assert "with an intercept for each shop)" in result.statement
    assert "by 10\u00a0% against one model per shop" in result.statement


def test_no_gain_is_claimed_that_would_be_shown_as_nothing():
    assert Gain("pooled", 0.0004, 0.0).sign == 0
    assert Gain("pooled", math.nan, math.nan).sign == 0
    assert Gain("pooled", 0.5, math.inf).sign == 0


def test_paired_gains_are_those_by_hand():
    gain = paired_gain("pooled", [1.0, 2.0, 3.0], [1.5, 2.1, 3.3])  # by 0.5, 0.1 and 0.3 of 2.3
    assert_allclose(gain.share, 0.3 / 2.3)
    assert_allclose(gain.standard_error, 0.2 / np.sqrt(3) / 2.3)
    assert paired_gain("pooled", [0.0, 0.0], [0.0, 0.0]).sign == 0


def test_a_gain_is_clear_only_beyond_two_standard_errors():
    assert [Gain("pooled", share, 0.01).sign for share in (0.015, 0.021)] == [0, 1]
    assert [Gain("pooled", share, 0.01).sign for share in (-0.015, -0.021)] == [0, -1]


def test_the_verdict_agrees_with_the_interval_that_is_printed_beside_it():
    # An error cut by 1.0 %, with a 95 % interval of -2.2 % to +0.3 %.
    assert Gain("pooled", 0.010, 0.0063, (-0.003, 0.022)).sign == 0
    assert Gain("pooled", 0.010, 0.0049, (0.0001, 0.022)).sign == 1
    for seed in range(200):
        rng = np.random.default_rng(seed)
        losses = {name: rng.chisquare(5, 8) for name in ("model", "pooled")}
        errors = HoldoutErrors(losses, np.full(8, 5), 1.0, 0, ())
        (gain,) = holdout_gains(errors)
        assert bool(gain.sign) == errors.change("pooled").clear


def test_gains_on_held_out_rows_agree_with_the_ratio_and_its_interval(rng):
    n_tasks = 2000
    losses = {name: rng.chisquare(5, n_tasks) for name in ("model", "separate", "pooled")}
    losses["pooled"] *= 2
    errors = HoldoutErrors(losses, np.full(n_tasks, 5), 1.0, 0, ())
    for gain in holdout_gains(errors):
        change = errors.change(gain.against)
        assert_allclose(gain.share, 1 - change.ratio)
        width = (change.high - change.low) / (2 * 1.96)
        assert_allclose(gain.standard_error, width, rtol=0.01)
    result = sharing_verdict(holdout_gains(errors))
    assert [gain.against for gain in result.gains] == ["pooled", "separate"]
    few = HoldoutErrors({n: v[:4] for n, v in losses.items()}, np.full(4, 5), 1.0, 0, ())
    assert sharing_verdict(holdout_gains(few)).outcome == "even"


def test_few_tasks_have_a_difference_if_all_of_them_have_it():
    other = np.array([1.0, 2.0, 3.0])
    for factors, said in (
        ([0.5, 0.5, 0.5], "cuts the error by 29 % against common slopes (with an intercept "
         "for each task) in all 3 tasks"),
        ([0.5, 0.5, 1.1], "cuts the error by 11 % against common slopes (with an intercept "
         "for each task), but the difference is not clear of chance"),
        ([0.95, 0.98, 1.02], "makes no clear difference against common slopes (with an intercept "
         "for each task)"),
    ):  # fmt: skip
        losses = {"model": other * factors, "pooled": other}
        errors = HoldoutErrors(losses, np.full(3, 5), 1.0, 0, ())
        result = sharing_verdict(holdout_gains(errors)).sentence().replace("\u00a0", " ")
        assert result == f"Sharing {said} (3 tasks are too few for an interval)."


def test_a_difference_of_less_than_a_thousandth_is_none():
    other = np.ones(50)
    losses = {"model": other * 0.999, "pooled": other, "separate": other * 1.003}
    gains = holdout_gains(HoldoutErrors(losses, np.full(50, 5), 1.0, 0, ()))
    assert {gain.against: gain.sign for gain in gains} == {"separate": 1, "pooled": 0}
