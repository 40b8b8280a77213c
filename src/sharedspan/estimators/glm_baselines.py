"""Ridge-penalised logistic and Poisson regression by scikit-learn: baselines of classes and counts.

They are fitted by ``ss.compare`` and the report beside the mixed models, and have no name of their
own in the package: scikit-learn's estimators are what a user would take. So has one regression that
ignores the tasks.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from sharedspan.families import Binomial, Family
from sharedspan.kernels.threads import one_blas_thread

# By the default tolerance of 1e-4, means of counts of 1,000 tasks were still 14 % from their limit.
TOLERANCE, MAX_ITER = 1e-6, 10_000


class GLMBaseline:
    """One regression of all tasks with an intercept for each, or one regression of each task.

    Coefficients of standardised features have a standard normal prior, and so do the intercepts of
    tasks about the common one.
    """

    def __init__(self, family: Family, per_task: bool) -> None:
        self.family, self.per_task = family, per_task

    def fit(self, X: np.ndarray, y: np.ndarray, task: np.ndarray) -> Self:
        """Fit rows X (rows, d) with responses y (rows,) of tasks ``task`` (rows,)."""
        self.scaler = StandardScaler().fit(X)
        self.level = float(y.mean())
        self.tasks, codes = np.unique(task, return_inverse=True)
        Z = self.scaler.transform(X)
        # Threads wait for each other in every iteration: on cores that others use, too, a fit of
        # 300 rows took 250 times as long as by one thread.
        with one_blas_thread(), threadpool_limits(1, user_api="openmp"):
            if self.per_task:
                places = [np.flatnonzero(codes == t) for t in range(len(self.tasks))]
                self.models = [self._fitted(Z[rows], y[rows]) for rows in places]
            else:
                self.models = [self._fitted(self._with_tasks(Z, codes), y)]
        return self

    def predict(self, X: np.ndarray, task: np.ndarray) -> np.ndarray:
        """Mean responses (rows,) of tasks that were fitted."""
        Z, codes = self.scaler.transform(X), np.searchsorted(self.tasks, task)
        if not self.per_task:
            return self._means(self.models[0], self._with_tasks(Z, codes))
        means = np.empty(len(Z))
        for t in np.unique(codes):
            rows = np.flatnonzero(codes == t)
            means[rows] = self._means(self.models[t], Z[rows])
        return means

    def _with_tasks(self, Z: np.ndarray, codes: np.ndarray) -> Any:
        """The features with an indicator of each task, sparse (rows, d + T)."""
        from scipy.sparse import csr_matrix, hstack

        ones = csr_matrix(
            (np.ones(len(Z)), (np.arange(len(Z)), codes)), shape=(len(Z), len(self.tasks))
        )
        return hstack([csr_matrix(Z), ones], format="csr")

    def _fitted(self, Z: Any, y: np.ndarray) -> Any:
        """A fitted regression, or a mean close to that of rows whose responses are all equal."""
        if np.ptp(y) == 0:
            return float((y.sum() + self.level) / (len(y) + 1))
        if isinstance(self.family, Binomial):
            # A share is a part of a row of each class.
            rows = np.concatenate([np.flatnonzero(y < 1), np.flatnonzero(y > 0)])
            ones = np.repeat([0, 1], [np.sum(y < 1), np.sum(y > 0)])
            weight = np.where(ones == 1, y[rows], 1 - y[rows])
            glm = LogisticRegression(tol=TOLERANCE, max_iter=MAX_ITER)
            return glm.fit(Z[rows], ones, weight)
        return PoissonRegressor(alpha=1 / len(y), tol=TOLERANCE, max_iter=MAX_ITER).fit(Z, y)

    def _means(self, model: Any, Z: Any) -> np.ndarray:
        if isinstance(model, float):
            return np.full(Z.shape[0], model)
        if isinstance(self.family, Binomial):
            return model.predict_proba(Z)[:, 1]
        return model.predict(Z)


class IgnoringTasks:
    """One regression of all rows, whatever their task, by a model of separate regressions."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, X: np.ndarray, y: np.ndarray, task: np.ndarray) -> Self:
        """Fit rows X (rows, d) with responses y (rows,) as those of a single task."""
        self.model.fit(X, y, task=np.zeros(len(task), dtype=np.int64))
        return self

    def predict(self, X: np.ndarray, task: np.ndarray) -> np.ndarray:
        """Mean responses (rows,)."""
        return self.model.predict(X, task=np.zeros(len(task), dtype=np.int64))
