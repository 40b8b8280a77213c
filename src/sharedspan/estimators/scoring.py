"""Scorers that pass the task labels to ``predict``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sklearn.metrics import get_scorer, r2_score


class TaskScorer:
    """A scorer that passes ``task`` to ``predict``; see ``task_scorer``."""

    def __init__(self, metric: Callable[..., float], sign: int) -> None:
        self.metric = metric
        self.sign = sign

    def __call__(
        self, estimator: Any, X: Any, y: Any, task: Any = None, sample_weight: Any = None
    ) -> float:
        prediction = estimator.predict(X, task=task) if task is not None else estimator.predict(X)
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        return self.sign * float(self.metric(y, prediction, **weights))

    def get_metadata_routing(self) -> Any:
        """Request ``task``, for metadata routing."""
        from sklearn.utils.metadata_routing import MetadataRequest

        request = MetadataRequest(owner=self)
        request.score.add_request(param="task", alias=True)
        return request


def task_scorer(
    metric: str | Callable[..., float] = r2_score, greater_is_better: bool = True
) -> TaskScorer:
    """Make a scorer for ``GridSearchCV`` and ``cross_validate`` on arrays with ``task=``.

    scikit-learn's own scorers do not pass ``task`` to ``predict``; this one does, with metadata
    routing enabled. On a frame with ``task_column`` any scorer works and this is not needed.

    Parameters
    ----------
    metric : callable of (y_true, y_pred), or a name of a scikit-learn scorer
    greater_is_better : bool, default=True
        False for a loss, whose sign is then changed. Ignored for a name, which determines it.
    """
    if isinstance(metric, str):
        scorer = get_scorer(metric)
        return TaskScorer(scorer._score_func, scorer._sign)
    return TaskScorer(metric, 1 if greater_is_better else -1)
