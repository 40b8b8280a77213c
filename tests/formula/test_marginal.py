"""``ss.effects``: mean responses at values of a column, and their differences."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from reference import table
from scipy import stats
from scipy.special import expit

import sharedspan as ss


@pytest.fixture(scope="module")
def sleep():
    return ss.mixed("Reaction ~ Days + (Days | Subject)", table("sleepstudy"))


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(1)
    g, x = np.repeat(np.arange(30), 12), rng.standard_normal(360)
    kind = np.array(["low", "mid", "high"])[rng.integers(0, 3, 360)]
    y = 1 + 0.5 * x + 0.8 * (kind == "high") + 0.6 * rng.standard_normal(30)[g]
    hit = rng.random(360) < expit(y)
    return pd.DataFrame(
        {"g": g, "x": x, "kind": kind, "y": y + 0.3 * rng.standard_normal(360), "hit": hit * 1}
    )


def test_means_of_a_line_are_those_of_lme4(sleep):
    """R: emmeans(sleepstudy's fit, ~ Days) has b0 + b1 Days, with 17 degrees of freedom."""
    effects = ss.effects(sleep, "Days", [0, 5])
    assert_allclose(effects.estimate, 251.4051048 + 10.46728596 * np.array([0, 5]), rtol=1e-6)
    std = np.array([6.824556531, np.nan])
    std[1] = np.sqrt(std[0] ** 2 + 25 * 1.545788897**2 - 10 * 0.1375534352 * std[0] * 1.545788897)
    assert_allclose(effects.std_error, std, rtol=1e-4)
    assert_allclose(effects.degrees, 17, rtol=1e-3)
    reach = stats.t.ppf(0.975, 17) * std
    assert_allclose(effects.high - effects.estimate, reach, rtol=1e-3)
    assert_allclose(effects.estimate - effects.low, reach, rtol=1e-3)


def test_a_difference_is_the_slope_times_the_distance_with_its_test(sleep):
    ((name, estimate, std, low, high, p),) = ss.effects(sleep, "Days", [2, 5]).differences
    assert name == "5 - 2"
    assert_allclose([estimate, std], [3 * 10.46728596, 3 * 1.545788897], rtol=1e-4)
    reach = 3 * 1.545788897 * stats.t.ppf(0.975, 17)
    assert_allclose([low, high], 3 * 10.46728596 + np.array([-reach, reach]), rtol=1e-3)
    assert_allclose(p, 3.263788147e-06, rtol=0.02)


def test_intervals_widen_with_the_level(sleep):
    narrow, wide = (ss.effects(sleep, "Days", [3], level=level) for level in (0.5, 0.99))
    ratio = stats.t.ppf(0.995, 17) / stats.t.ppf(0.75, 17)
    assert_allclose((wide.high - wide.low) / (narrow.high - narrow.low), ratio, rtol=1e-3)


def test_values_are_five_of_a_wide_column_and_all_of_a_narrow_one(sleep, rows):
    assert ss.effects(sleep, "Days").values == (0.0, 2.25, 4.5, 6.75, 9.0)
    few = rows.assign(x=rows.x.round().clip(-1, 1))
    model = ss.mixed("y ~ x + (1 | g)", few)
    assert ss.effects(model, "x").values == (-1.0, 0.0, 1.0)
    assert len(ss.effects(model, "x").differences) == 2


def test_levels_of_a_factor_differ_by_its_coefficients(rows):
    model = ss.mixed("y ~ kind + x + (1 | g)", rows)
    effects = ss.effects(model, "kind")
    fixed = model.summary().fixed
    known = dict(zip(fixed.names, fixed.estimate, strict=True))
    assert sorted(effects.values) == ["high", "low", "mid"]
    assert effects.values[0] == "high"  # the reference, first in the alphabet
    for name, estimate, *_ in effects.differences:
        level = name.partition(" - ")[0]
        (coefficient,) = [value for key, value in known.items() if level in key]
        assert_allclose(estimate, coefficient, rtol=1e-10)
    assert_allclose(
        effects.estimate[0], known["(Intercept)"] + known["x"] * rows.x.mean(), rtol=1e-10
    )


def test_probabilities_are_those_of_the_linear_predictor(rows):
    model = ss.mixed("hit ~ x + (1 | g)", rows, family="binomial")
    link, response = (ss.effects(model, "x", [-1, 1], scale=s) for s in ("link", "response"))
    for name in ("estimate", "low", "high"):
        assert_allclose(getattr(response, name), expit(getattr(link, name)), rtol=1e-12)
    assert np.all(np.isinf(link.degrees))
    assert link.differences == response.differences
    assert_allclose(link.differences[0][1], 2 * model.mean_coef_[0], rtol=1e-12)


def test_frames_and_text_hold_the_means_and_the_differences(sleep):
    effects = ss.effects(sleep, "Days", [0, 1.5])
    means, differences = effects.to_frame(), effects.to_frame("differences")
    assert means.index.tolist() == [0, 1.5]
    assert means.index.name == differences.index.name == "Days"
    assert list(means) == ["estimate", "std_error", "low", "high", "degrees"]
    for name in means:
        assert_allclose(means[name], getattr(effects, name))
    assert differences.index.tolist() == ["1.5 - 0"]
    assert list(differences) == ["estimate", "std_error", "low", "high", "p_value"]
    assert tuple(differences.iloc[0]) == effects.differences[0][1:]
    assert str(effects).splitlines() == [
        "Means by Days (response scale, 95% intervals)",
        "",
        "Days        mean       2.5 %      97.5 %",
        "0         251.41      237.01       265.8",
        "1.5       267.11      252.55      281.66",
        "",
        "difference    estimate   std.error           p",
        "1.5 - 0         15.701      2.3187    3.26e-06",
    ]
    assert repr(effects) == str(effects)
    assert "difference" not in str(ss.effects(sleep, "Days", [0]))


def test_a_model_read_from_a_file_is_given_the_rows_to_average_over(sleep, tmp_path):
    sleep.save(tmp_path / "model.span")
    model = ss.load(tmp_path / "model.span")
    with pytest.raises(ValueError, match="does not hold its rows: give data="):
        ss.effects(model, "Days")
    again = ss.effects(model, "Days", data=table("sleepstudy"))
    assert_allclose(again.estimate, ss.effects(sleep, "Days").estimate, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": "Day"}, "no column 'Day': its columns are 'Days'. Did you mean 'Days'"),
        ({"column": "Days", "scale": "log"}, "scale='log' is unknown: use 'response' or 'link'"),
    ],
)
def test_what_has_no_effects_is_refused_in_a_sentence(sleep, options, message):
    with pytest.raises(ValueError, match=message):
        ss.effects(sleep, **options)


def test_an_unknown_part_of_a_frame_is_refused(sleep):
    with pytest.raises(ValueError, match="part is 'all': give 'means' or 'differences'"):
        ss.effects(sleep, "Days").to_frame("all")
