"""The shared features X B of a span, for estimators that also serve as transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from sharedspan.inputs.rows import is_task_list


class SpanFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin):
    """Adds ``transform`` to estimators with a ``representation_`` (d, k)."""

    task_column: Any
    representation_: np.ndarray

    def transform(self, X: Any) -> Any:
        """The features that all tasks share: the rows in the k directions of the span.

        They are the same for all tasks, so labels are not needed; those in ``task_column`` are
        left out. Predictions are these features times ``task_weights_``, where the coefficients
        lie in the span, plus intercepts. A model of rank 0 gives no features.

        Parameters
        ----------
        X : array-like or frame of shape (rows, d)
            With the columns of the fit. Of a list of arrays, all rows, one after the other.

        Returns
        -------
        ndarray of shape (rows, k), or a frame after ``set_output``
            ``X @ representation_``.
        """
        check_is_fitted(self)
        blocks = X if is_task_list(X) else [X]
        features = [self._columns_of(block)[0] for block in blocks]
        return np.concatenate([rows @ self.representation_ for rows in features])

    def fit_transform(
        self, X: Any, y: Any, task: Any = None, sample_weight: Any = None, **options: Any
    ) -> Any:
        """Fit, and give the shared features of the same rows; arguments as in ``fit``."""
        self.fit(X, y, task=task, sample_weight=sample_weight, **options)
        return self.transform(X)

    @property
    def _n_features_out(self) -> int:
        return self.representation_.shape[1]
