"""Regression of many tasks whose coefficients differ along a few common directions.

    y_t = intercept_t + X_t v_t + noise,   v_t = B w_t,   t = 1..T,   B is d x k and shared

Names are imported when they are first used, so importing the package is light.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # for type checkers; typing itself is imported with what needs it

__version__ = "0.1.0"

_HOMES = {
    "ARMULRegressor": "sharedspan.estimators.armul",
    "AdaptiveSpanClassifier": "sharedspan.estimators.classifiers",
    "AdaptiveSpanRegressor": "sharedspan.estimators.adaptive",
    "CheckpointError": "sharedspan.persistence.checkpoint",
    "Columns": "sharedspan.inputs.columns",
    "ClusterError": "sharedspan.distributed.engine",
    "CurriculumRegressor": "sharedspan.estimators.curriculum",
    "DaskEngine": "sharedspan.distributed.engine",
    "ModelFileError": "sharedspan.persistence.model_file",
    "MomentRegressor": "sharedspan.estimators.moment",
    "NewTaskRegressor": "sharedspan.estimators.transfer",
    "PerTaskRegressor": "sharedspan.estimators.baselines",
    "PenalizedERMRegressor": "sharedspan.estimators.penalized",
    "PooledRegressor": "sharedspan.estimators.baselines",
    "SOLVERS": "sharedspan.solvers",
    "SharedSpanClassifier": "sharedspan.estimators.classifiers",
    "SharedSpanRegressor": "sharedspan.estimators.shared_span",
    "SpectralRegressor": "sharedspan.estimators.spectral",
    "TorchBackend": "sharedspan.objective.backends",
    "anova": "sharedspan.formula.comparison",
    "compare": "sharedspan.diagnosis.comparison",
    "conformal_sets": "sharedspan.diagnosis.conformal",
    "diagnose": "sharedspan.diagnosis.diagnose",
    "effects": "sharedspan.formula.marginal",
    "error_floor": "sharedspan.inference.noise",
    "factor_distance": "sharedspan.subspace",
    "load": "sharedspan.persistence.model_file",
    "mixed": "sharedspan.formula.mixed",
    "parameter_error": "sharedspan.inference.noise",
    "plan": "sharedspan.inference.planning",
    "plot_curve": "sharedspan.report.plots",
    "plot_convergence": "sharedspan.report.plots",
    "plot_loadings": "sharedspan.report.plots",
    "plot_rank_path": "sharedspan.report.plots",
    "plot_spectrum": "sharedspan.report.plots",
    "plot_tasks": "sharedspan.report.plots",
    "principal_angles": "sharedspan.subspace",
    "plot_residuals": "sharedspan.report.residual_plots",
    "simulate": "sharedspan.datasets.simulate",
    "simulated_residuals": "sharedspan.diagnosis.simulated_residuals",
    "statistics_query": "sharedspan.statistics.database",
    "subspace_distance": "sharedspan.subspace",
    "task_scorer": "sharedspan.estimators.scoring",
    "variance_intervals": "sharedspan.formula.intervals",
    "write_report": "sharedspan.report.page",
}

__all__ = ["__version__", "datasets", *_HOMES]

if TYPE_CHECKING:
    from typing import Any

    from sharedspan import datasets
    from sharedspan.datasets.simulate import simulate
    from sharedspan.diagnosis.comparison import compare
    from sharedspan.diagnosis.conformal import conformal_sets
    from sharedspan.diagnosis.diagnose import diagnose
    from sharedspan.diagnosis.simulated_residuals import simulated_residuals
    from sharedspan.distributed.engine import ClusterError, DaskEngine
    from sharedspan.estimators.adaptive import AdaptiveSpanRegressor
    from sharedspan.estimators.armul import ARMULRegressor
    from sharedspan.estimators.baselines import PerTaskRegressor, PooledRegressor
    from sharedspan.estimators.classifiers import AdaptiveSpanClassifier, SharedSpanClassifier
    from sharedspan.estimators.curriculum import CurriculumRegressor
    from sharedspan.estimators.moment import MomentRegressor
    from sharedspan.estimators.penalized import PenalizedERMRegressor
    from sharedspan.estimators.scoring import task_scorer
    from sharedspan.estimators.shared_span import SharedSpanRegressor
    from sharedspan.estimators.spectral import SpectralRegressor
    from sharedspan.estimators.transfer import NewTaskRegressor
    from sharedspan.formula.comparison import anova
    from sharedspan.formula.intervals import variance_intervals
    from sharedspan.formula.marginal import effects
    from sharedspan.formula.mixed import mixed
    from sharedspan.inference.noise import error_floor, parameter_error
    from sharedspan.inference.planning import plan
    from sharedspan.inputs.columns import Columns
    from sharedspan.objective.backends import TorchBackend
    from sharedspan.persistence.checkpoint import CheckpointError
    from sharedspan.persistence.model_file import ModelFileError, load
    from sharedspan.report.page import write_report
    from sharedspan.report.plots import (
        plot_convergence,
        plot_curve,
        plot_loadings,
        plot_rank_path,
        plot_spectrum,
        plot_tasks,
    )
    from sharedspan.report.residual_plots import plot_residuals
    from sharedspan.solvers import SOLVERS
    from sharedspan.statistics.database import statistics_query
    from sharedspan.subspace import factor_distance, principal_angles, subspace_distance


def __getattr__(name: str) -> Any:
    if name == "datasets":
        return importlib.import_module("sharedspan.datasets")
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value  # the next use finds it at once
        return value
    raise AttributeError(f"module 'sharedspan' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
