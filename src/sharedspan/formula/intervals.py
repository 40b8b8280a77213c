"""``ss.variance_intervals``: intervals for standard deviations and correlations."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharedspan.estimators.adaptive import AdaptiveSpanRegressor
from sharedspan.estimators.inference import infer, objective_of
from sharedspan.estimators.parameters import as_generator
from sharedspan.formula.comparison import refitted
from sharedspan.inference.profile import profile_intervals
from sharedspan.inference.variance_intervals import (
    ParameterInterval,
    bootstrap_intervals,
    wald_intervals,
)
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.mixed_model.family_objective import FamilyObjective

METHODS = ("profile", "wald", "bootstrap")


def variance_intervals(
    model: AdaptiveSpanRegressor,
    *,
    method: str = "profile",
    level: float = 0.95,
    n_simulations: int = 500,
    random_state: Any = None,
) -> Any:
    """Intervals for standard deviations, correlations and fixed effects of a Gaussian model.

    Parameters
    ----------
    model : fitted model of ``ss.mixed``
    method : {"profile", "wald", "bootstrap"}, default="profile"
        "profile" moves one parameter at a time and fits the others again, by maximum likelihood
        also for REML fits, as ``confint`` in lme4 does. "wald" takes the curvature of the
        likelihood at the fit, as the summary does. "bootstrap" fits the model to simulated
        responses.
    level : float, default=0.95
    n_simulations : int, default=500
        Of the bootstrap.
    random_state : int, numpy.random.Generator or None, default=None

    Returns
    -------
    pandas.DataFrame
        A row per parameter: group, effect, kind, estimate, low and high.

    Examples
    --------
    >>> import sharedspan as ss
    >>> table = ss.datasets.load_parkinsons().to_frame()
    >>> model = ss.mixed("total_updrs ~ test_time + (1 | subject)", table)
    >>> ss.variance_intervals(model).shape
    (4, 6)
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r} is unknown: use {', '.join(map(repr, METHODS))}.")
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("variance_intervals needs pandas: pip install pandas") from error
    objective, names = objective_of(model), infer(model).fixed.names
    if isinstance(objective, FamilyObjective):
        raise ValueError(
            "Intervals for variances are only available for Gaussian responses, but the model has "
            f"family={model.family!r}: compare models without an effect by ss.anova instead."
        )
    with one_blas_thread():
        if method == "profile":
            intervals = profile_intervals(objective, names, level=level)
        elif method == "wald":
            intervals = wald_intervals(objective, level=level)
        else:
            rng = as_generator(random_state)

            def again(stream: np.random.Generator) -> Any:
                y = model.simulate(random_state=stream)[:, 0]
                return objective_of(refitted(model, y, model.method == "reml"))

            intervals = bootstrap_intervals(
                objective, again, fixed_names=names, n=n_simulations, seed=rng, level=level
            )
    columns = ["group", "effect", "kind", "estimate", "low", "high"]
    return pd.DataFrame(list(map(_row, intervals)), columns=columns)


def _row(interval: ParameterInterval) -> tuple[Any, ...]:
    effect = ", ".join(interval.names)
    numbers = interval.estimate, interval.lower, interval.upper
    return interval.group, effect, interval.kind, *numbers
