"""Covariance structures: which entries of D vary, and how they compare."""

from dataclasses import replace

import numpy as np
import pytest

import sharedspan as ss
from sharedspan.mixed_model.outliers import OutlierComponent
from sharedspan.mixed_model.search import SelectedModel
from sharedspan.mixed_model.structures import STRUCTURES, Coefficients, variance_groups
from sharedspan.mixed_model.terms import Covariance


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("intercept", [True, False])
def test_groups_of_a_structure_do_not_overlap_and_hold_no_empty_group(structure, intercept):
    groups = variance_groups(structure, Coefficients.plain(5), intercept, flat=False)
    entries = np.concatenate([[], *groups.entries])
    assert len(entries) == len(set(entries)) <= 5
    assert all(len(group) for group in groups.entries)
    assert all(tied < len(groups.entries) for tied in groups.tied)
    assert not len(variance_groups(structure, Coefficients.plain(5), intercept, flat=True).tied)


def test_a_richer_structure_is_at_least_as_likely(small):
    likelihoods = [
        ss.AdaptiveSpanRegressor(rank=0, slopes=structure, method="ml", outliers=False)
        .fit(small.X, small.y, task=small.task)
        .log_likelihood_
        for structure in STRUCTURES
    ]
    assert (np.diff(likelihoods) > -1e-6).all()


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_features_of_a_spline_share_one_variance_and_have_no_directions(structure):
    groups = np.array([-1, -1, 0, 0, -1, 1, 1, 1])
    varying = np.array([1, 1, 1, 1, 0, 0, 0, 0], dtype=bool)
    coefficients = replace(Coefficients.plain(8), varying=varying, groups=groups)
    entries = variance_groups(structure, coefficients, True, flat=False).entries
    varies = structure in ("isotropic", "diagonal", "full")
    assert [[2, 3]] * varies == [list(each) for each in entries if 2 in each or 3 in each]
    assert not any(np.isin(each, [4, 5, 6, 7]).any() for each in entries)
    assert list(np.flatnonzero(coefficients.directed)) == [0, 1]


def test_where_most_tasks_would_be_outliers_none_is_set_apart():
    sim = ss.simulate(n_tasks=30, n_features=3, rank=1, n_samples=10, random_state=0)
    seen = []
    refine = SelectedModel.refined

    def watched(model, tasks, tol=None):
        if not seen and model.outliers is None:
            seen.append(model)
            wide = OutlierComponent(np.full(30, 0.1), 0.3, 100.0, 1.0, np.ones(4))
            none = replace(model.fit, covariance=Covariance(np.full(4, 1e-6), np.zeros((4, 0))))
            model = replace(model, fit=none, outliers=wide)
        return refine(model, tasks, tol)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SelectedModel, "refined", watched)
        model = ss.AdaptiveSpanRegressor(noise="shared").fit(sim.X, sim.y, task=sim.task)
    assert seen
    assert not model.outlier_probability_.any()
    assert np.isfinite(model.coef_).all()
