"""The quantities of a fitted model, in one object that every estimator fills.

Diagnosis, report, persistence and ONNX export read a model only through ``model.fitted_span``:
quantities that an estimator does not have are None, so they do not depend on its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, Self

import numpy as np

from sharedspan.kernels.threads import tall_product
from sharedspan.statistics.canonical import Problem
from sharedspan.subspace import ordered_factors


class Uncertainty(Protocol):
    """The basis of standard errors, which an estimator retains from its fit."""

    @property
    def coef_std(self) -> np.ndarray:
        """Standard errors of the coefficients in the user's units, (T, d)."""

    @property
    def degrees(self) -> np.ndarray:
        """Degrees of freedom of each task's noise variance, (T,)."""

    def response_std(self, X: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Standard deviations of new responses at rows X (m, d) of tasks ``codes`` (m,), (m,)."""


@dataclass(frozen=True)
class FittedSpan:
    """Estimates of all tasks in the user's units; None for quantities that are not estimated.

    A field ``name`` is the attribute ``name_`` of a fitted estimator (``_uncertainty_`` for the
    uncertainty), and entries of ``extra`` are the attributes that only one estimator has.
    """

    coef: np.ndarray  # (T, d)
    intercept: np.ndarray  # (T,)
    representation: np.ndarray | None = None  # (d, k)
    task_weights: np.ndarray | None = None  # (k, T)
    rank: int | None = None
    rank_path: Any = None  # RankPath, if the rank was selected
    mean_coef: np.ndarray | None = None  # (d,) of the population of tasks
    mean_intercept: float | None = None
    noise_variance: np.ndarray | None = None  # (T,)
    feature_covariance: np.ndarray | None = None  # (d, d) pooled within tasks
    degrees_of_freedom: float | None = None
    uncertainty: Uncertainty | None = None
    n_iter: int | None = None
    converged: bool | None = None
    message: str | None = None  # why the solver ended
    trace: dict[str, np.ndarray] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    # T tasks, d features, k directions; see ``persistence.codec``.
    stored_axes = (
        "coef:Td intercept:T representation:dk task_weights:kT mean_coef:d noise_variance:T "
        "feature_covariance:dd"
    )

    @classmethod
    def from_factors(
        cls,
        problem: Problem,
        response: np.ndarray,
        B: np.ndarray,
        W: np.ndarray,
        rank: int,
        *,
        off_span: np.ndarray | None = None,
        variance: np.ndarray | None = None,
        rank_path: Any = None,
        extra: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Self:
        """Canonical factors in the user's units.

        Parameters
        ----------
        problem : Problem
        response : ndarray of shape (T,)
            The task scale r_t of the objective that was fitted.
        B, W : ndarray of shape (d', k) and (k, T)
        rank : int
            As requested; larger than k if the features have fewer independent directions.
        off_span : ndarray of shape (d', T), optional
            The coefficients minus BW.
        variance : ndarray of shape (T,), optional
            Noise variances in the units of the statistics.
        rank_path, extra, **fields
            Fields that are already in the user's units.
        """
        canonical, W = problem.canonical, W / response
        intercept, span = problem.statistics.factor_intercepts(B, W), canonical.to_user(B)
        # Not the product of the ordered factors: if features differ in scale by more than the
        # precision of a number, rotating the factors would lose the small coefficients.
        V = tall_product(W, span).T  # (d, T), with the tasks contiguous in memory
        if off_span is None:
            intercept = canonical.intercept_to_user(intercept, span, W)
        else:
            intercept = problem.statistics.intercepts(B @ W + off_span / response)
            V = V + canonical.to_user(off_span / response)
            intercept = canonical.intercept_to_user(intercept, V)
        missing = rank - B.shape[1]
        if missing > 0:
            span = np.column_stack([span, np.eye(len(span))])[:, :rank]
            W = np.vstack([W, np.zeros((missing, W.shape[1]))])
        representation, task_weights = ordered_factors(span, W)
        if variance is not None:
            fields["noise_variance"] = canonical.units.squares_to_user(variance)
        return cls(
            coef=np.ascontiguousarray(V.T),
            intercept=intercept,
            representation=representation,
            task_weights=task_weights,
            rank=int(rank),
            extra={"rank_path": rank_path} | dict(extra or {}),  # None, too, is an attribute
            **fields,
        )

    @classmethod
    def of(cls, model: Any) -> Self:
        """The quantities of a fitted estimator, read from its attributes."""
        held = {
            name[:-1]: value
            for name, value in vars(model).items()
            if name.endswith("_") and not name.startswith("__")
        }
        held["uncertainty"] = held.pop("_uncertainty", None)
        names = [each.name for each in fields(cls) if each.name != "extra"]
        return cls(**{name: held.pop(name) for name in names if name in held}, extra=held)

    def attributes(self) -> dict[str, Any]:
        """The attributes of a fitted estimator with these quantities."""
        held = {f"{each.name}_": getattr(self, each.name) for each in fields(self)[:-1]}
        held["_uncertainty_"] = held.pop("uncertainty_")
        held = {name: value for name, value in held.items() if value is not None}
        return held | {f"{name}_": value for name, value in self.extra.items()}
