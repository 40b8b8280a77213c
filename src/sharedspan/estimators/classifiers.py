"""Classification over many tasks: the mixed model of log odds."""

from __future__ import annotations

import numbers
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import ClassifierMixin, clone
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from sharedspan.estimators import fitting
from sharedspan.estimators.docstrings import complete_docstrings
from sharedspan.estimators.fitted import FittedSpan
from sharedspan.estimators.generalized import (
    linear_predictor,
    log_exposure,
    mean_interval,
    require_offset,
)
from sharedspan.estimators.mixed import MixedModel
from sharedspan.estimators.parameters import (
    estimator,
    number_or_auto,
    one_of,
    parameter_entry,
)
from sharedspan.estimators.prediction import blocks_to_predict, rows_to_predict
from sharedspan.families import Family, family_of
from sharedspan.inputs.frames import is_dask_frame, row_count
from sharedspan.inputs.labels import as_numpy, is_missing
from sharedspan.inputs.rows import is_task_list
from sharedspan.mixed_model.structures import STRUCTURES

LINKS = {"logit": "binomial", "probit": "probit"}


class MixedClassifier(ClassifierMixin, MixedModel):
    """Base of the classifiers: classes become 0 and 1, a model of two classes is one mixed model.

    More than two classes are distinguished by one model of each class against the others, whose
    probabilities are divided by their sum. Each class so has a structure and a rank of its own, and
    costs as much as two classes do; a multinomial model would have one covariance over the
    coefficients of all classes, too large to learn from few rows of each task.
    """

    __metadata_request__decision_function: ClassVar[dict[str, bool]] = {"task": True}
    __metadata_request__predict_proba: ClassVar[dict[str, bool]] = {"task": True}

    link: str
    noise = "shared"
    outliers = False
    classes_: np.ndarray
    estimators_: list[Any]

    def response_family(self) -> Family:
        """See MixedModel."""
        return family_of(LINKS[self.link])

    def _validate_read(self) -> None:
        """Check the classes, besides what every mixed model checks."""
        super()._validate_read()
        if len(self.classes_) != 2:
            raise ValueError(f"A file holds a model of two classes, not {len(self.classes_)}.")

    @property
    def fitted_span(self) -> FittedSpan:
        """The fitted quantities of a model of two classes; see ``TaskEstimator``."""
        if "estimators_" in vars(self):
            raise TypeError(
                f"The {type(self).__name__} has {len(self.classes_)} classes and a model of each "
                "against the others: save, diagnose, draw or report the models in estimators_."
            )
        return super().fitted_span

    def fit(
        self, X: Any, y: Any, task: Any = None, sample_weight: Any = None, offset: Any = None
    ) -> Self:
        """Fit all tasks together.

        Parameters
        ----------
        X : array-like or frame of shape (rows, d), or a list of T arrays (n_t, d)
        y : array-like of shape (rows,), or a list of T arrays
            Classes: labels of any kind.
        {task, sample_weight, offset}

        Returns
        -------
        self
        """
        if is_dask_frame(X):
            raise TypeError(
                f"{type(self).__name__} makes a pass over the rows in every iteration, but the "
                "workers of a cluster keep only their statistics: call compute() on X first."
            )
        classes, codes = encoded_classes(y, is_task_list(X), sample_weight)
        if offset is not None:
            if is_task_list(X):
                raise ValueError(
                    "An offset needs X to be one array or frame, not a list of arrays."
                )
            offset = log_exposure(self.response_family(), offset, None, row_count(X))
        if len(classes) <= 2:  # the check of the rows refuses none
            fitting.fit_arrays(self, X, codes(1), task, sample_weight, offset=offset)
        else:
            fitting.forget(self)
            models = [clone(self) for _ in classes]
            for i, model in enumerate(models):
                fitting.fit_arrays(model, X, codes(i), task, sample_weight, offset=offset)
                model.classes_ = np.array([0, 1])
            self._take_over(models)
        self.classes_ = classes
        return self

    def _take_over(self, models: list[Any]) -> None:
        """Set the attributes of a model of several classes from those of each class."""
        self.estimators_ = models
        for name in ("tasks_", "coef_names_", "n_features_in_", "feature_names_in_"):
            if name in vars(models[0]):
                setattr(self, name, getattr(models[0], name))
        self.coef_ = np.stack([model.coef_ for model in models])
        self.representation_ = np.column_stack([model.representation_ for model in models])
        self.intercept_ = np.stack([model.intercept_ for model in models])
        self.n_iter_ = max(model.n_iter_ for model in models)
        self.converged_ = all(model.converged_ for model in models)

    def fit_file(self, path: Any, **options: Any) -> Self:
        """Fit all tasks of files whose target is 0 or 1; see ``AdaptiveSpanRegressor.fit_file``.

        Parameters
        ----------
        path : str, path, or iterable of them
        **options
            As for regressors: ``task``, ``target``, ``features``, ``drop`` and so on.

        Returns
        -------
        self
        """
        super().fit_file(path, **options)
        self.classes_ = np.array([0, 1])
        return self

    def predict_proba(self, X: Any, task: Any = None, offset: Any = None) -> Any:
        """Probabilities of the classes, the means over the posterior distribution of each task.

        Parameters
        ----------
        X : array-like or frame of shape (rows, d)
            A list with one array per task gives a list of arrays.
        task : array-like of shape (rows,), optional
            As for ``predict``.
        offset : array-like of shape (rows,) or float, optional
            As in ``fit``.

        Returns
        -------
        ndarray of shape (rows, n_classes)
        """
        check_is_fitted(self)
        if is_task_list(X):
            return [self.predict_proba(*pair) for pair in blocks_to_predict(X, task)]
        if len(self.classes_) == 2:
            features, codes, offset = self._rows(X, task, offset)
            eta, variance = linear_predictor(self, features, codes, offset)
            share = self.response_family().expected_mean(eta, variance)
            return np.column_stack([1 - share, share])
        shares = [model.predict_proba(X, task, offset)[:, 1] for model in self.estimators_]
        each = np.column_stack(shares)
        return each / each.sum(axis=1, keepdims=True)

    def decision_function(self, X: Any, task: Any = None, offset: Any = None) -> np.ndarray:
        """Log odds of the second of two classes; for more classes, the probability of each.

        Parameters
        ----------
        X, task, offset
            As for ``predict_proba``; X is one array or frame.

        Returns
        -------
        ndarray of shape (rows,), or (rows, n_classes) for more than two classes
            The log odds from the probabilities of ``predict_proba``. For more than two classes, the
            probability of each class against all others, before these are divided by their sum.
        """
        check_is_fitted(self)
        if len(self.classes_) == 2:
            features, codes, offset = self._rows(X, task, offset)
            family = self.response_family()
            eta, variance = linear_predictor(self, features, codes, offset)
            # Each class separately, so that no digits are lost near one.
            shares = (family.expected_mean(sign * eta, variance) for sign in (1, -1))
            second, first = (np.log(np.maximum(share, np.finfo(float).tiny)) for share in shares)
            return second - first
        each = [model.predict_proba(X, task, offset)[:, 1] for model in self.estimators_]
        return np.column_stack(each)

    def predict(self, X: Any, task: Any = None, offset: Any = None) -> Any:
        """The most probable class of each row.

        Parameters
        ----------
        X, task, offset
            As for ``predict_proba``.

        Returns
        -------
        ndarray of shape (rows,)
        """
        probabilities = self.predict_proba(X, task, offset)
        if is_task_list(X):
            return [self.classes_[each.argmax(axis=1)] for each in probabilities]
        return self.classes_[probabilities.argmax(axis=1)]

    def predict_interval(self, *given: Any, **options: Any) -> Any:
        """Raise AttributeError: a class has no interval; see ``proba_interval``."""
        raise AttributeError("A class has no interval: use proba_interval for its probability.")

    def proba_interval(
        self, X: Any, task: Any = None, level: float = 0.95, offset: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Intervals for the probability of the second of two classes, for each row in its task.

        Parameters
        ----------
        X, task, offset
            As for ``predict_proba``; X is one array or frame.
        level : float, default=0.95
            Share of the intervals that cover the probability, between 0 and 1.

        Returns
        -------
        low, high : ndarray of shape (rows,)
        """
        check_is_fitted(self)
        if len(self.classes_) != 2:
            raise AttributeError(
                f"There are {len(self.classes_)} classes, and intervals are those of two: use "
                "proba_interval of the models in estimators_, each of one class against the others."
            )
        features, codes, offset = self._rows(X, task, offset)
        return mean_interval(self, features, codes, offset, level)

    def score(
        self, X: Any, y: Any, task: Any = None, sample_weight: Any = None, offset: Any = None
    ) -> float:
        """Share of rows whose class is predicted."""
        from sklearn.metrics import accuracy_score

        require_offset(self, offset)
        predicted = self.predict(X, task, offset)
        if is_task_list(X):
            predicted, y = np.concatenate(predicted), np.concatenate(list(y))
        return float(accuracy_score(y, predicted, sample_weight=sample_weight))

    def _rows(
        self, X: Any, task: Any, offset: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Features, task codes and offsets of rows to predict."""
        features, codes = rows_to_predict(self, X, task)
        family = self.response_family()
        return features, codes, log_exposure(family, offset, None, len(features))


complete_docstrings(MixedClassifier, parameter_entry)


def encoded_classes(y: Any, as_list: bool, sample_weight: Any = None) -> tuple[np.ndarray, Any]:
    """The classes, and a function that gives y as ones for one of them and zeros for others.

    Rows of weight zero count as absent, and so do classes that they alone have.
    """
    parts = [as_numpy(part) for part in y] if as_list else [y]
    if not as_list:
        if y is None:
            raise ValueError("This estimator requires y to be passed, but the target y is None.")
        parts = [column_or_1d(as_numpy(y), warn=True)]
    stacked = np.concatenate(parts)
    if stacked.dtype == object:
        lacking = [row for row, label in enumerate(stacked.tolist()) if is_missing(label)]
        if lacking:
            raise ValueError(
                f"y has no label in {len(lacking)} row(s), such as row {lacking[0]}: leave such "
                "rows out. Input y contains NaN."
            )
        kinds = sorted({type(label).__name__ for label in stacked.tolist()})
        if len(kinds) > 1 and "str" in kinds:
            raise TypeError(
                f"y holds labels of several types, {', '.join(kinds)}: give labels of one type."
            )
    assert_all_finite(stacked, input_name="y")
    check_classification_targets(stacked)
    classes = np.unique(stacked[_counted(sample_weight, as_list, len(stacked))])
    if not len(classes):
        raise ValueError(
            "Found array with 0 sample(s): give rows of a positive weight for each class."
        )
    if len(classes) == 1:
        raise ValueError(
            f"y has one class, {classes.tolist()[0]!r}, and a classifier needs samples of at least "
            "2 classes."
        )
    cuts = np.cumsum([len(part) for part in parts])[:-1]

    def indicator(i: int) -> Any:
        values = (stacked == classes[i]).astype(float)
        return np.split(values, cuts) if as_list else values

    return classes, indicator


def _counted(sample_weight: Any, as_list: bool, n_rows: int) -> np.ndarray:
    """Which rows do not have weight zero; weights are checked when the rows are."""
    if sample_weight is not None:
        parts = [as_numpy(part) for part in (sample_weight if as_list else [sample_weight])]
        weight = np.concatenate([np.atleast_1d(part) for part in parts]) if parts else np.empty(0)
        if weight.shape == (n_rows,) and weight.dtype.kind in "fiub" and weight.any():
            return weight != 0
    return np.ones(n_rows, dtype=bool)


@estimator(
    "rank slopes link method fit_intercept whiten unseen task_column random_state verbose varying"
)
class AdaptiveSpanClassifier(MixedClassifier):
    """Mixed logistic or probit regression of many tasks that selects its random effects.

    The log odds of two classes are linear, with coefficients v_t = b + u_t, u_t ~ N(0, D + LL') as
    in ``AdaptiveSpanRegressor``. D, L, its rank and a Gaussian prior on b are found by the marginal
    likelihood in Laplace's approximation, or by quadrature where that is biased. With more than two
    classes, each is fitted against all others; see ``estimators_``.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        k, the columns of L; 0 for none.
    slopes : {"auto", "zero", "none", "isotropic", "diagonal", "full"}, default="auto"
        D, as in ``AdaptiveSpanRegressor``.
    {link}
    method : {"evidence", "ml", "reml"}, default="evidence"
        As in ``AdaptiveSpanRegressor``.
    {fit_intercept, mixed:whiten, class:unseen, task_column, mixed:random_state, mixed:verbose}
    varying : list of str or int, optional
        Names or numbers of the features whose coefficients may differ between tasks; those of the
        others are the same in all. Intercepts vary as ``slopes`` says. None: the evidence decides,
        as in ``AdaptiveSpanRegressor``.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    estimators_ : list
        For more than two classes, the model of each class against all others, in the order of
        ``classes_``. ``coef_``, ``intercept_`` and ``representation_`` are then stacked over these
        models, and the attributes that describe a single model exist only on the models.
    {tasks_, coef_, intercept_}
    mean_coef_ : ndarray of shape (d,)
    mean_intercept_ : float
        b.
    slope_std_ : ndarray of shape (d,)
        Standard deviation of each slope between tasks by D alone, in the user's units.
    intercept_std_ : float
    representation_ : ndarray of shape (d, rank_)
        Orthonormal basis of the slopes of L.
    task_weights_ : ndarray of shape (rank_, T)
    rank_ : int
    slopes_ : str
        The kind of D that was chosen.
    log_likelihood_ : float
    approximation_ : {"laplace", "quadrature"}
    varying_ : ndarray of str
        Names of the features whose coefficients differ between tasks.
    candidates_ : list of dict
        The fits that were compared.
    {n_iter_, converged_}
    degrees_of_freedom_ : float
        Effective number of parameters.
    {coef_names_, n_features_in_, feature_names_in_}

    Examples
    --------
    >>> import sharedspan as ss
    >>> sim = ss.simulate(n_tasks=40, n_features=5, rank=2, n_samples=60, random_state=0)
    >>> model = ss.AdaptiveSpanClassifier().fit(sim.X, sim.y > 0, task=sim.task)
    >>> model.predict_proba(sim.X[:3], task=sim.task[:3]).shape
    (3, 2)
    """

    checks: ClassVar = {
        "rank": partial(number_or_auto, smallest=0, kind=numbers.Integral),
        "slopes": partial(one_of, known=("auto", *STRUCTURES)),
        "link": partial(one_of, known=tuple(LINKS)),
        "method": partial(one_of, known=("evidence", "ml", "reml")),
    }

    slopes: str = "auto"
    link: str = "logit"
    method: str = "evidence"
    whiten: bool = False
    unseen: str = "mean"
    varying: Any = None


@estimator("rank link fit_intercept whiten unseen task_column random_state verbose")
class SharedSpanClassifier(MixedClassifier):
    """Classes of rows in many tasks whose coefficients differ along k common directions only.

    ``AdaptiveSpanClassifier`` with D = 0 for the slopes: v_t = b + B w_t with normal w_t, and
    intercepts that vary. Without a prior the weights of a task would grow without bound if its
    classes are linearly separable; so this is a mixed model, too.

    Parameters
    ----------
    rank : int or "auto", default="auto"
        k, at least 1; "auto" takes the one of the largest marginal likelihood.
    {link, fit_intercept}
    whiten : bool, default=False
        Let the prior of the coefficients refer to whitened instead of standardised features.
    {class:unseen, task_column, mixed:random_state, mixed:verbose}

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    {tasks_, coef_, intercept_, representation_, task_weights_, rank_}
    mean_coef_ : ndarray of shape (d,)
    mean_intercept_ : float
        b.
    log_likelihood_ : float
    approximation_ : {"laplace", "quadrature"}
    {n_iter_, converged_, coef_names_, n_features_in_, feature_names_in_}
    """

    checks: ClassVar = {
        "rank": partial(number_or_auto, smallest=1, kind=numbers.Integral),
        "link": partial(one_of, known=tuple(LINKS)),
    }
    slopes = "none"
    method = "evidence"
    smallest_rank: ClassVar[int] = 1

    link: str = "logit"
    whiten: bool = False
    unseen: str = "mean"
