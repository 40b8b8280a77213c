"""``ss.anova``: two models of the same rows compared by their likelihoods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from sharedspan.estimators.adaptive import AdaptiveSpanRegressor
from sharedspan.estimators.inference import infer, objective_of, retained_fit
from sharedspan.estimators.mixed import MixedModel
from sharedspan.estimators.parameters import as_generator
from sharedspan.inference.curvature import likelihood_curvature, minimised
from sharedspan.inference.fitted_likelihood import (
    FittedLikelihood,
    fitted_likelihood,
    record_of,
    without_effects,
)
from sharedspan.inference.likelihood_ratio import (
    LikelihoodRatio,
    compare_likelihoods,
    simulated_null,
)
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.mixed_model.family_objective import FamilyObjective


def anova(
    model: AdaptiveSpanRegressor,
    other: AdaptiveSpanRegressor | None = None,
    *more: Any,
    n_simulations: int = 0,
    random_state: Any = None,
) -> LikelihoodRatio:
    """Compare two models of ``ss.mixed`` by the ratio of their likelihoods.

    Models with the same fixed effects that were both fitted by REML are compared by the restricted
    likelihood. All others are compared by maximum likelihood, and refitted by it if they were not
    fitted so; the result says so. If the models differ by one random effect, whose variance is zero
    under the smaller model and so on the boundary of its range, the statistic is compared with a
    mixture of two chi-square distributions in equal shares.

    Parameters
    ----------
    model, other : fitted models of ``ss.mixed``
        In any order. Without ``other``, the model is compared with one without random effects.
    n_simulations : int, default=0
        If above zero, the null distribution is simulated: both models are fitted to this number of
        data sets drawn from the smaller model.
    random_state : int, numpy.random.Generator or None, default=None

    Returns
    -------
    LikelihoodRatio
        ``print`` shows it; ``statistic``, ``degrees`` and ``p_value`` are numbers.

    Examples
    --------
    >>> import sharedspan as ss
    >>> table = ss.datasets.load_parkinsons().to_frame()
    >>> small = ss.mixed("total_updrs ~ test_time + (1 | subject)", table)
    >>> large = ss.mixed("total_updrs ~ test_time + (1 + test_time | subject)", table)
    >>> ss.anova(small, large).p_value < 0.001
    True
    """
    if more:
        raise TypeError(
            f"anova compares two models, but {2 + len(more)} were given: compare them in pairs, as "
            "in anova(a, b) and anova(b, c)."
        )
    for each in (model, model if other is None else other):
        if not isinstance(each, MixedModel):
            raise TypeError(
                f"anova compares models of ss.mixed, but got a {type(each).__name__}: give "
                "two fitted models, as in anova(a, b)."
            )
    with one_blas_thread():
        if other is None:
            return _against_no_effects(model)
        _require_same_rows(model, other)
        records = [likelihood_record(each) for each in (model, other)]
        by_ml = {record.fixed for record in records}
        if len(by_ml) > 1 or not all(record.restricted for record in records):
            records = [
                with_maximum_likelihood(record, each)
                for record, each in zip(records, (model, other), strict=True)
            ]
        simulated = None
        if n_simulations:
            small, large = sorted((model, other), key=lambda each: infer(each).n_parameters)
            statistic = _simulated_statistic(small, large)
            rng = as_generator(random_state)
            simulated = simulated_null(statistic, n=n_simulations, seed=rng)
        return compare_likelihoods(records[0], records[1], simulated=simulated)


def likelihood_record(model: AdaptiveSpanRegressor) -> FittedLikelihood:
    """What a model brings to a comparison."""
    objective, name, fixed = objective_of(model), _name(model), infer(model).fixed.names
    if not isinstance(objective, FamilyObjective):
        return fitted_likelihood(objective, name, fixed)
    return record_of(objective, -2 * model.log_likelihood_, name, fixed)


def with_maximum_likelihood(
    record: FittedLikelihood, model: AdaptiveSpanRegressor
) -> FittedLikelihood:
    """The record with the deviance by maximum likelihood."""
    if record.deviance is not None:
        return record
    objective = objective_of(model)
    if isinstance(objective, FamilyObjective):
        raise ValueError(
            f"The model {record.name} was fitted by restricted likelihood, but models with a "
            "family other than the Gaussian are compared by maximum likelihood: fit it with "
            "reml=False."
        )
    curvature = likelihood_curvature(objective, objective.theta, restricted=False)

    def deviance(theta: np.ndarray) -> tuple[float, np.ndarray]:
        return objective.deviance(theta, restricted=False)

    _, least = minimised(deviance, objective.theta, np.diag(curvature.scale))
    return replace(record, deviance=least)


def _name(model: AdaptiveSpanRegressor) -> str:
    return str(getattr(model.slopes, "formula", "")) or repr(model)


def _against_no_effects(model: AdaptiveSpanRegressor) -> LikelihoodRatio:
    objective, fixed = objective_of(model), infer(model).fixed.names
    if isinstance(objective, FamilyObjective):
        raise ValueError(
            "A comparison with the model without random effects is only available for Gaussian "
            "responses: give anova two models."
        )
    small = without_effects(objective, "the same without random effects", fixed)
    return compare_likelihoods(small, fitted_likelihood(objective, _name(model), fixed))


def _require_same_rows(model: AdaptiveSpanRegressor, other: AdaptiveSpanRegressor) -> None:
    """Raise unless two models have the same family and the same responses."""
    families = [each.response_family().name for each in (model, other)]
    if families[0] != families[1] and "gaussian" in families:
        raise ValueError(
            f"The models have the families {families[0]} and {families[1]}, whose likelihoods "
            "cannot be compared: fit both with the same family."
        )
    one, two = (np.sort(np.asarray(retained_fit(each).rows.y)) for each in (model, other))
    if len(one) == len(two) and not np.array_equal(one, two):
        raise ValueError(
            "The models were fitted to different responses, so their likelihoods cannot be "
            "compared: fit both to the same column of the same table."
        )


def _simulated_statistic(
    small: AdaptiveSpanRegressor, large: AdaptiveSpanRegressor
) -> Callable[[np.random.Generator], float]:
    """Simulate from the smaller model; twice the gain of the larger one's log likelihood."""
    restricted = (
        small.method == large.method == "reml"
        and infer(small).fixed.names == infer(large).fixed.names
    )

    def statistic(rng: np.random.Generator) -> float:
        y = small.simulate(random_state=rng)[:, 0]
        fits = [refitted(each, y, restricted) for each in (small, large)]
        return max(2 * (fits[1].log_likelihood_ - fits[0].log_likelihood_), 0.0)

    return statistic


def refitted(
    model: AdaptiveSpanRegressor, y: np.ndarray, restricted: bool
) -> AdaptiveSpanRegressor:
    """The model fitted to other responses (rows,) of its own rows."""
    rows, method = retained_fit(model).rows, "reml" if restricted else "ml"
    again = AdaptiveSpanRegressor(**model.get_params(deep=False) | {"method": method})
    return again.fit(model._table, y, sample_weight=rows.weight, offset=rows.offset)
