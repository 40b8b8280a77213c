"""Task labels: any hashable values, in any order, to codes 0..T-1 and back."""

from __future__ import annotations

import numbers
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

LONG_TEXT = 200  # characters of a label
NUMERIC = (numbers.Real, np.bool_)


def given_labels(task: Any, column: Any, task_column: Any) -> Any:
    """Labels given as ``task`` or as the column ``task_column`` of X; None without either."""
    if column is not None and task is not None:
        raise ValueError(
            f"Task labels were given twice, as task= and as the column {task_column!r}: give only "
            "one of them."
        )
    return task if column is None else column


def as_labels(task: Any, n_rows: int, name: str = "task") -> tuple[list[Hashable], np.ndarray]:
    """Labels of runs of equal neighbours, and the row where each run starts.

    Rows of one task are usually adjacent, so later steps use runs, not rows.

    Parameters
    ----------
    task : array-like of shape (rows,), or a single number or string
        Labels of any hashable kind.
    n_rows : int
        Rows of X; a different number of labels is an error.
    name : str
        Name of the labels in error messages.

    Returns
    -------
    heads : list of hashable
        The label of each run.
    starts : ndarray of shape (runs,)
        First row of each run.
    """
    labels = _as_vector(task, n_rows, name)
    if len(labels) != n_rows:
        raise ValueError(
            f"{name} has {len(labels)} labels but X has {n_rows} rows: give one label per row."
        )
    if labels.dtype.kind == "O":
        return _object_runs(labels, name)
    change = labels[1:] != labels[:-1]
    starts = np.concatenate([[0][: len(labels)], np.flatnonzero(change) + 1]).astype(np.int64)
    heads = labels[starts]
    if labels.dtype.kind in "fcMm":
        missing = np.flatnonzero(heads != heads)  # NaN and NaT differ from themselves
        if len(missing):
            raise _missing(heads[missing[0]].item(), int(starts[missing[0]]), name)
    return list(heads) if labels.dtype.kind in "Mm" else heads.tolist(), starts


def _object_runs(labels: np.ndarray, name: str) -> tuple[list[Hashable], np.ndarray]:
    """``as_labels`` for objects, one by one: mixed kinds may not support array comparison."""
    heads: list[Hashable] = []
    starts: list[int] = []
    for row, label in enumerate(labels):
        if starts and label is heads[-1]:
            continue
        if is_missing(label):
            raise _missing(label, row, name)
        try:
            hash(label)
        except TypeError as error:
            raise TypeError(
                f"{name} in row {row} is {label!r}, a {type(label).__name__}, which cannot be "
                "hashed: use numbers, strings, dates or tuples of them as labels."
            ) from error
        if isinstance(label, np.generic) and label.dtype.kind in "biuf":
            label = label.item()
        if not starts or label != heads[-1]:
            heads.append(label)
            starts.append(row)
    return heads, np.asarray(starts, dtype=np.int64)


def _missing(label: Any, row: int, name: str) -> ValueError:
    return ValueError(
        f"{name} is missing in row {row} (it is {label!r}): "
        "give every row a label or drop such rows."
    )


def _as_vector(task: Any, n_rows: int, name: str) -> np.ndarray:
    """One label per row, (rows,); a single label counts for all rows, and tuples stay labels."""
    if isinstance(task, (str, numbers.Number)):
        task = [task] * n_rows
    if np.ma.isMaskedArray(task):
        task = np.ma.filled(task.astype(object), None)
    if hasattr(task, "to_numpy"):
        labels = np.asarray(task.to_numpy())
    elif isinstance(task, np.ndarray):
        labels = task
    else:
        try:
            values = list(task)
        except TypeError as error:
            raise TypeError(
                f"{name} is {task!r}, a {type(task).__name__}: give one label per row."
            ) from error
        kinds = {type(value) for value in values}
        # An array of instances of a subclass of str would hold their printed form.
        simple = kinds <= {str} or kinds <= {int} or kinds <= {float} or kinds <= {bool}
        simple = simple or (len(kinds) == 1 and issubclass(next(iter(kinds)), np.generic))
        labels = object_array(values)
        if simple and not _has_long_text(values):
            array = np.asarray(values)
            rounded = kinds <= {int} and array.dtype.kind == "f"  # if some are very large
            labels = labels if rounded else array
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(
            f"{name} has shape {labels.shape}: expected one label per row, in one dimension."
        )
    return labels


def codes_of(
    task: Any, n_rows: int, known: Sequence[Hashable], name: str = "task"
) -> tuple[np.ndarray, list[Hashable]]:
    """Codes of known labels for each row, -1 for others, and the list of the others."""
    code_of = {label: code for code, label in enumerate(known)}
    heads, starts = as_labels(task, n_rows, name)
    codes = np.array([code_of.get(head, -1) for head in heads], dtype=np.int64)
    unknown = list(dict.fromkeys(head for head in heads if head not in code_of))
    return np.repeat(codes, np.diff(starts, append=n_rows)), unknown


def is_missing(label: Any) -> bool:
    """Whether a label is None, NaN, NaT or pandas' NA, which need not be equal to themselves."""
    if label is None or type(label).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(label, (np.datetime64, np.timedelta64)):
        return bool(np.isnat(label))
    if isinstance(label, tuple):
        return any(map(is_missing, label))
    return isinstance(label, numbers.Real) and label != label


def canonical_order(labels: Sequence[Hashable]) -> list[Hashable]:
    """Distinct labels: numbers sorted, then strings sorted, then others by first appearance."""
    distinct: list[Any] = list(dict.fromkeys(labels))
    if set(map(type, distinct)) in ({int}, {float}, {str}):
        return sorted(distinct)
    numeric = [label for label in distinct if isinstance(label, NUMERIC)]
    text = [label for label in distinct if isinstance(label, str)]
    others = [label for label in distinct if not isinstance(label, (*NUMERIC, str))]
    return [*sorted(numeric), *sorted(text), *others]


def label_array(labels: Sequence[Hashable]) -> np.ndarray:
    """Labels as an array: of numbers or of short strings if all are such, otherwise of objects."""
    kinds = {type(label) for label in labels}
    simple = kinds and (kinds <= {int, float} or kinds <= {str} or kinds <= {bool})
    if simple and not _has_long_text(labels):
        array = np.asarray(labels)
        if array.tolist() == list(labels):  # large integers next to floats would be rounded
            return array
    return object_array(labels)


def object_array(values: Sequence[Any]) -> np.ndarray:
    """Values as an array (n,) of objects, in which tuples do not become rows."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _has_long_text(labels: Sequence[Any]) -> bool:
    """Whether a text is so long that an array, whose entries have equal size, would be large."""
    return max((len(label) for label in labels if isinstance(label, str)), default=0) > LONG_TEXT
