"""Sets of classes with known coverage: split conformal prediction, within each task where possible.

The score of a row is one minus the probability that the model gives to its class. A threshold is
the score of rank ceil((n + 1) level) among n calibration rows, and the set of a new row has every
class whose score is at most the threshold. If the new row and the calibration rows are
exchangeable, the rank of its score among theirs is uniform, so the set has its class with
probability level to level + 1 / (n + 1) (the upper bound holds without ties), however wrong the
model is.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedspan.diagnosis.text import count, listed, percent
from sharedspan.estimators.parameters import at_least
from sharedspan.estimators.prediction import blocks_to_predict
from sharedspan.inference.planning import ROUNDING_SHARE
from sharedspan.inputs.frame_table import row_labels
from sharedspan.inputs.frames import as_table, task_column_of
from sharedspan.inputs.labels import as_numpy, codes_of, given_labels, label_array, task_codes
from sharedspan.inputs.rows import is_task_list

SHOWN = 5  # classes that a message names


@dataclass(frozen=True)
class ConformalSets:
    """The result of ``conformal_sets``; print it for its sizes.

    Attributes
    ----------
    sets : ndarray of bool of shape (rows, n_classes)
        Whether each class is in the set of each row.
    classes : ndarray of shape (n_classes,)
        The classes of the model, in the order of the columns of ``sets``.
    level : float
    own_threshold : ndarray of bool of shape (rows,)
        Whether the threshold of the row is that of its own task.
    thresholds : dict of label to float
        Of the tasks that have a threshold of their own.
    shared_threshold : float
        For the other tasks, from the calibration rows of those without a threshold of their own,
        or from all if these have too few; infinite if all are too few.
    n_tasks : int
        Tasks of the calibration rows.
    """

    sets: np.ndarray
    classes: np.ndarray
    level: float
    own_threshold: np.ndarray
    thresholds: dict[Hashable, float]
    shared_threshold: float
    n_tasks: int

    def labels(self) -> list[np.ndarray]:
        """The classes in the set of each row, as one array per row."""
        return [self.classes[inside] for inside in self.sets]

    def __str__(self) -> str:
        sizes = self.sets.sum(axis=1)
        one, several, none = (percent(np.mean(such)) for such in (sizes == 1, sizes > 1, sizes < 1))
        return (
            f"Prediction sets of level {self.level:g}: {one} of {count(len(sizes), 'row')} have "
            f"one class, {several} several and {none} none. {len(self.thresholds):,} of "
            f"{count(self.n_tasks, 'task')} of the calibration rows have a threshold of their own"
            f"{self._on_other_tasks()}."
        )

    def _on_other_tasks(self) -> str:
        """What the rows of tasks without a threshold have, if there are any, as half a sentence."""
        if self.own_threshold.all():
            return ""
        have = "share a threshold, which holds on average over such tasks"
        if np.isinf(self.shared_threshold):
            have = "have all classes, because there are too few calibration rows"
        share = percent(np.mean(~self.own_threshold))
        return f"; {share} of the rows are of other tasks and {have}"


def conformal_sets(
    model: Any,
    X: Any,
    y: Any,
    X_new: Any,
    *,
    task: Any = None,
    task_new: Any = None,
    level: float = 0.9,
) -> ConformalSets:
    """Sets of classes that contain the class of a new row with probability ``level``.

    In a task with enough calibration rows (9 for a level of 0.9, 19 for 0.95), the probability is
    at least ``level`` for new rows that are drawn as the task's calibration rows are, however wrong
    the model is. It refers to all such rows together, not to rows of given features. Tasks with
    few calibration rows or none share a threshold from the calibration rows of all such tasks (or
    of all tasks, if these are too few): it covers on average over the rows of a mixture of tasks
    like theirs, but may cover more or less in a single task. A set may be empty if the model gives
    no class of the row a large enough probability.

    Parameters
    ----------
    model : fitted classifier
        Anything with ``classes_`` and ``predict_proba(X, task)``, also at the end of a Pipeline.
    X : array-like or frame of shape (rows, d), or a list of T arrays (n_t, d)
        Calibration rows. They must NOT have been in the fit: a model knows the classes of the rows
        that it was fitted to, and sets that are calibrated by those are too small.
    y : array-like of shape (rows,), or a list of T arrays
        Their classes.
    X_new : array-like or frame of shape (new rows, d), or a list of arrays
        Rows to predict.
    task, task_new : array-like of shape (rows,) and (new rows,), optional
        Task labels, as for ``predict_proba``. Without labels and a column ``task_column`` of the
        model, all rows are of one task.
    level : float, default=0.9
        Share of the sets that contain the class of their row, between 0 and 1.

    Returns
    -------
    ConformalSets
        ``sets``, of shape (new rows, n_classes), ``labels()`` and the thresholds. Print it for its
        sizes.

    References
    ----------
    Vovk, Gammerman and Shafer (2005), "Algorithmic learning in a random world", for thresholds
    within groups of rows (Mondrian conformal prediction); Angelopoulos and Bates (2023), "Conformal
    prediction: a gentle introduction".

    Examples
    --------
    >>> import numpy as np
    >>> import sharedspan as ss
    >>> sim = ss.simulate(n_tasks=20, n_features=5, rank=1, n_samples=60, random_state=0)
    >>> y, held = sim.y > 0, np.arange(len(sim.y)) % 2 == 1
    >>> model = ss.SharedSpanClassifier().fit(sim.X[~held], y[~held], task=sim.task[~held])
    >>> rows = sim.X[held], y[held]
    >>> found = ss.conformal_sets(model, *rows, sim.X[:3], task=sim.task[held], task_new=[0] * 3)
    >>> found.sets.shape
    (3, 2)
    """
    _require_classifier(model)
    _require_share(level)
    scores, tasks, codes = _scores(model, X, y, task)
    own = _thresholds(scores, codes, len(tasks), level)
    without = ~np.isfinite(own)[codes]
    [shared] = _thresholds(scores[without], codes[without] * 0, 1, level).tolist()
    if np.isinf(shared):
        [shared] = _thresholds(scores, codes * 0, 1, level).tolist()
    probability, labels = _predicted(model, X_new, task_new)
    codes, _ = codes_of(labels, len(probability), label_array(tasks), name="task_new")
    threshold = np.append(own, np.inf)[codes]  # code -1, of a task without calibration rows
    has_own = np.isfinite(threshold)
    return ConformalSets(
        sets=1 - probability <= np.where(has_own, threshold, shared)[:, None],
        classes=np.asarray(model.classes_),
        level=level,
        own_threshold=has_own,
        thresholds={t: q for t, q in zip(tasks, own.tolist(), strict=True) if np.isfinite(q)},
        shared_threshold=shared,
        n_tasks=len(tasks),
    )


def _require_classifier(model: Any) -> None:
    """Raise unless the model has probabilities of classes that X alone determines."""
    if not hasattr(model, "predict_proba"):
        raise TypeError(
            f"The model is a {type(model).__name__}, which has no probabilities of classes: use "
            "predict_interval of a regressor, or fit a classifier, such as AdaptiveSpanClassifier."
        )
    last = model[-1] if getattr(model, "steps", None) else model
    if any(getattr(m, "uses_offset_", False) for m in (last, *getattr(last, "estimators_", ()))):
        raise ValueError(
            "The model was fitted with an offset, which X does not contain: fit it without one, or "
            "with the offset as a feature."
        )


def _require_share(level: Any) -> None:
    at_least("level", level, 0.0)
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} must be between 0 and 1, such as 0.9.")


def _scores(
    model: Any, X: Any, y: Any, task: Any
) -> tuple[np.ndarray, tuple[Hashable, ...], np.ndarray]:
    """One minus the probability of each row's class (rows,), the tasks, and the rows' codes."""
    probability, labels = _predicted(model, X, task)
    tasks, codes = task_codes(labels, len(probability))
    y = np.concatenate([as_numpy(part) for part in y]) if is_task_list(X) else y
    classes = np.asarray(model.classes_)
    places, unknown = codes_of(y, len(probability), classes, name="y")
    if unknown:
        raise ValueError(
            f"y has classes that the model was not fitted to, {listed(map(repr, unknown), SHOWN)}; "
            f"its classes are {classes.tolist()}: fit it to rows of all classes."
        )
    return 1 - probability[np.arange(len(places)), places], tasks, codes


def _predicted(model: Any, X: Any, task: Any) -> tuple[np.ndarray, Any]:
    """Probabilities (rows, n_classes), and task labels, or one label if there are none."""
    if is_task_list(X):
        parts = [_predicted(model, *pair) for pair in blocks_to_predict(X, task)]
        labels = [label for _, each in parts for label in each]
        return np.concatenate([probability for probability, _ in parts]), labels
    if getattr(model, "steps", None):
        X = model[:-1].transform(X) if len(model.steps) > 1 else X
        return _predicted(model[-1], X, task)
    X = as_table(X)
    probability = model.predict_proba(X) if task is None else model.predict_proba(X, task=task)
    task_column = task_column_of(X, getattr(model, "task_column", None), task)
    labels = given_labels(task, row_labels(X, task_column), task_column)
    return probability, 0 if labels is None else labels


def _thresholds(scores: np.ndarray, codes: np.ndarray, n_groups: int, level: float) -> np.ndarray:
    """The score of rank ceil((n + 1) level) in each group of n rows, (groups,).

    Infinite for a group that has fewer rows than that.
    """
    n = np.bincount(codes, minlength=n_groups)
    rank = np.ceil((n + 1) * level * (1 - ROUNDING_SHARE)).astype(np.int64)
    enough, before = rank <= n, np.cumsum(n) - n
    ordered = scores[np.lexsort((scores, codes))]
    thresholds = np.full(n_groups, np.inf)
    thresholds[enough] = ordered[(before + rank - 1)[enough]]
    return thresholds
