"""The estimators, and the registry that lists each of them once."""

from __future__ import annotations

from importlib import import_module

# Every estimator by the name of its class, with its module: in the order of the documentation.
ESTIMATORS = {
    "AdaptiveSpanRegressor": "sharedspan.estimators.adaptive",
    "AdaptiveSpanClassifier": "sharedspan.estimators.classifiers",
    "SharedSpanRegressor": "sharedspan.estimators.shared_span",
    "SharedSpanClassifier": "sharedspan.estimators.classifiers",
    "CurriculumRegressor": "sharedspan.estimators.curriculum",
    "NewTaskRegressor": "sharedspan.estimators.transfer",
    "MomentRegressor": "sharedspan.estimators.moment",
    "SpectralRegressor": "sharedspan.estimators.spectral",
    "ARMULRegressor": "sharedspan.estimators.armul",
    "PenalizedERMRegressor": "sharedspan.estimators.penalized",
    "PooledRegressor": "sharedspan.estimators.baselines",
    "PerTaskRegressor": "sharedspan.estimators.baselines",
}


def estimator_class(name: str) -> type:
    """The class of an estimator, imported here; KeyError for unknown names."""
    return getattr(import_module(ESTIMATORS[name]), name)
