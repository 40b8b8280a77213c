"""``ss.variance_intervals``: by profiles, by curvature and by simulation."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from ours import intervals_of
from reference import reference, table

import sharedspan as ss


@pytest.fixture(scope="module")
def models():
    rows = table("sleepstudy")
    return {
        reml: ss.mixed("Reaction ~ Days + (Days | Subject)", rows, reml=reml)
        for reml in (False, True)
    }


@pytest.mark.parametrize("reml", [False, True])
def test_profiles_are_those_of_lme4_by_maximum_likelihood(models, reml):
    known = reference("sleepstudy")["profile_intervals"]
    ours = intervals_of(models[reml], known)
    for end in ("lower", "upper"):
        assert_allclose([row[end] for row in ours], [row[end] for row in known], rtol=2e-3)


def test_rows_name_the_group_the_effect_and_the_estimate(models):
    frame = ss.variance_intervals(models[True], method="wald")
    assert list(frame) == ["group", "effect", "kind", "estimate", "low", "high"]
    assert frame.effect.tolist()[:3] == ["(Intercept)", "Days", "(Intercept), Days"]
    assert frame.kind.tolist() == ["std", "std", "correlation", "residual"]
    known = reference("sleepstudy")["reml"]
    expected = [*known["variances"][0]["sd"], 0.06555131854, known["residual_sd"]]
    assert_allclose(frame.estimate, expected, rtol=1e-3)


def test_intervals_of_the_curvature_widen_with_the_level(models):
    narrow, wide = (
        ss.variance_intervals(models[True], method="wald", level=level) for level in (0.5, 0.95)
    )
    std = narrow.kind != "correlation"
    reach = [np.log(frame.high[std] / frame.low[std]) for frame in (narrow, wide)]
    assert_allclose(reach[1] / reach[0], 1.959964 / 0.6744898, rtol=1e-6)
    assert (wide.low < narrow.low).all()
    assert (wide.high > narrow.high).all()
    for frame in (narrow, wide):
        assert_allclose((frame.low * frame.high)[std], frame.estimate[std] ** 2, rtol=1e-9)


def test_simulated_intervals_hold_the_estimates_and_depend_on_the_seed_alone(models):
    options = {"method": "bootstrap", "n_simulations": 20}
    frames = [
        ss.variance_intervals(models[True], random_state=seed, **options) for seed in (0, 0, 1)
    ]
    assert frames[0].equals(frames[1])
    assert not frames[0].equals(frames[2])
    for frame in frames:
        assert frame.kind.tolist() == ["std", "std", "correlation", "residual", "fixed", "fixed"]
        assert (frame.low < frame.high).all()
        inside = (frame.low < frame.estimate) & (frame.estimate < frame.high)
        assert inside[frame.kind != "correlation"].all()
        wald = 2 * 1.96 * np.array([6.8246, 1.5458])  # of the fixed effects
        width = (frame.high - frame.low)[frame.kind == "fixed"]
        assert_allclose(width, wald, rtol=0.5)


def test_other_methods_and_families_are_refused_in_a_sentence(models):
    with pytest.raises(ValueError, match="method='exact' is unknown: use 'profile', 'wald'"):
        ss.variance_intervals(models[True], method="exact")
    with pytest.raises(ValueError, match="level=95 is not a probability"):
        ss.variance_intervals(models[True], method="wald", level=95)
    rows = table("sleepstudy").assign(slow=lambda d: (d.Reaction > 300) * 1)
    counts = ss.mixed("slow ~ Days + (1 | Subject)", rows, family="binomial")
    with pytest.raises(ValueError, match=r"for Gaussian responses, .* family='binomial'"):
        ss.variance_intervals(counts)
