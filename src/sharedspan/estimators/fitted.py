"""What a fitted model is made of, in one object that every estimator fills.

Diagnosis, report, persistence and ONNX export read a model only through ``model.fitted_span``: what
an estimator does not have is None there, so nobody needs to know which class it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np


class Uncertainty(Protocol):
    """What an estimator with standard errors retains from its fit."""

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
    """Estimates of all tasks in the user's units; None for what an estimator does not have.

    A field ``name`` is the attribute ``name_`` of a fitted estimator (``_uncertainty_`` for the
    uncertainty), and entries of ``extra`` are the attributes that only one estimator has.
    """

    coef: np.ndarray  # (T, d)
    intercept: np.ndarray  # (T,)
    representation: np.ndarray | None = None  # (d, k)
    task_weights: np.ndarray | None = None  # (k, T)
    rank: int | None = None
    rank_path: Any = None  # RankPath, where the rank was chosen
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
    def of(cls, model: Any) -> FittedSpan:
        """What a fitted estimator holds, read from its attributes."""
        held = {
            name.removeprefix("_")[:-1]: value
            for name, value in vars(model).items()
            if name.endswith("_") and not name.startswith("__")
        }
        own = {name: held.pop(name) for name in cls._names() if name in held}
        return cls(**own, extra=held)

    def attributes(self) -> dict[str, Any]:
        """The attributes of a fitted estimator that hold this."""
        given = {name: getattr(self, name) for name in self._names()}
        held = {f"{name}_": value for name, value in given.items() if value is not None}
        if self.uncertainty is not None:
            held["_uncertainty_"] = held.pop("uncertainty_")
        return held | {f"{name}_": value for name, value in self.extra.items()}

    @classmethod
    def _names(cls) -> list[str]:
        return [each.name for each in fields(cls) if each.name != "extra"]
