"""Task labels: any hashable values, in any order, to codes 0..T-1 and back."""

from __future__ import annotations

import numbers
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count, repeat
from typing import Any

import numpy as np

from sharedspan.kernels.grouping import count_runs, find_runs, look_up, mark, number_rows
from sharedspan.kernels.threads import over_tasks

RUN_BLOCK = 1 << 16  # rows in which runs of equal labels are counted together
LONG_TEXT = 200  # characters of a label
NUMERIC = (numbers.Real, np.bool_)
NEVER_MISSING = {int, bool, str, bytes}
HASHED = "biufmMUS"  # kinds of arrays whose labels are compared without Python objects
SORTED = "biufmU"  # of these, the kinds whose labels are sorted
ROOM = 2  # integers per row that a table of all integers between the labels may hold


class IntegerLabels(Sequence[int]):
    """Integers in an array, which become Python objects when they are asked for."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> Any:
        picked = self.values[index].tolist()
        return tuple(picked) if isinstance(picked, list) else picked

    def __iter__(self) -> Iterator[int]:
        return iter(self.values.tolist())


def given_labels(task: Any, column: Any, task_column: Any) -> Any:
    """Labels given as ``task`` or as the column ``task_column`` of X; None without either."""
    if column is not None and isinstance(task, float) and 0 < task < 1:
        raise ValueError(
            f"task={task} was given, but the labels are in the column {task_column!r}: if this is "
            f"the level of intervals, give level={task}."
        )
    if column is not None and task is not None:
        raise ValueError(
            f"Task labels were given twice, as task= and as the column {task_column!r}: give only "
            "one of them."
        )
    return task if column is None else column


def as_numpy(values: Any) -> np.ndarray:
    """A pandas, polars or pyarrow column, or any array-like, as an array."""
    # to_numpy() of a pyarrow array raises for text and missing values.
    of_frame = hasattr(values, "to_numpy") and not type(values).__module__.startswith("pyarrow")
    return np.asarray(values.to_numpy() if of_frame else values)


def ascending_runs(task: Any, n_rows: int) -> tuple[IntegerLabels, np.ndarray] | None:
    """Labels and the first row of each task (and the end), if they are integers in ascending order.

    None for other labels.
    """
    if not isinstance(task, np.ndarray) or task.shape != (n_rows,) or task.dtype != np.int64:
        return None
    labels, blocks = np.ascontiguousarray(task), -(-n_rows // RUN_BLOCK)
    bounds = n_rows * np.arange(blocks + 1) // blocks
    counts = np.empty(blocks, dtype=np.int64)
    over_tasks(partial(count_runs, labels, bounds, counts), blocks, float(n_rows))
    if (counts < 0).any():
        return None
    starts = np.full(int(counts.sum()) + 1, n_rows, dtype=np.int64)
    values = np.empty(len(starts) - 1, dtype=np.int64)
    work = partial(find_runs, labels, bounds, np.cumsum(counts) - counts, starts, values)
    over_tasks(work, blocks, float(n_rows))
    return IntegerLabels(values), starts


def task_codes(
    task: Any, n_rows: int, name: str = "task"
) -> tuple[tuple[Hashable, ...], np.ndarray]:
    """The distinct labels in canonical order, and the place of each row's label among them.

    Python objects are made of the distinct labels only, except for arrays of objects.

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
    labels : tuple of hashable
        See ``canonical_order``.
    codes : ndarray of int of shape (rows,)
    """
    labels, codes = coded_labels(task, n_rows, name)
    return tuple(labels), codes


def coded_labels(task: Any, n_rows: int, name: str) -> tuple[Sequence[Hashable], np.ndarray]:
    """``task_codes`` without Python objects for labels that are integers."""
    labels: Sequence[Hashable]
    factorized = _factorized(task, n_rows)
    if factorized is not None:
        labels, codes = coded_labels(factorized[0], len(factorized[0]), name)
        return labels, codes[factorized[1]]
    values, codes = _number(_as_vector(task, n_rows, name), name)
    if isinstance(values, np.ndarray) and values.dtype.kind in SORTED:
        order = np.argsort(values, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        values = values[order]
        whole = values.dtype == np.int64
        labels = IntegerLabels(values) if whole else tuple(_as_python(values))
    else:
        distinct = _as_python(values)
        labels = tuple(canonical_order(distinct))
        of = {label: code for code, label in enumerate(labels)}
        place = np.array([of[label] for label in distinct], dtype=np.int64)
    if not np.array_equal(place, np.arange(len(place))):
        codes = place[codes]
    return labels, codes


def _factorized(task: Any, n_rows: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Distinct labels and each row's place among them, from a pandas column that has codes.

    None for others: NumPy arrays, and columns in which labels are missing.
    """
    if not hasattr(task, "factorize") or isinstance(task.dtype, np.dtype) or len(task) != n_rows:
        return None
    places, distinct = task.factorize()
    return None if (places < 0).any() else (np.asarray(distinct.to_numpy()), places)


def _number(labels: np.ndarray, name: str) -> tuple[Any, np.ndarray]:
    """Distinct labels, an array or a list, and the number of each row's label among them.

    They are in the order of their appearance, or sorted if they are integers close together.
    """
    _require_no_missing(labels, name)
    if labels.dtype.kind not in HASHED or labels.dtype == np.longdouble:
        return _number_objects(labels, name)
    codes, whole = np.empty(len(labels), dtype=np.int64), _as_whole(labels)
    if whole.dtype.kind in "iu" and len(whole):
        low, high = int(whole.min()), int(whole.max())
        if _is_dense(low, high, len(whole)):
            integers = whole.astype(np.int64, copy=False)
            table = np.zeros(high - low + 1, dtype=np.int32)
            mark(np.ascontiguousarray(integers), low, table)
            values = np.flatnonzero(table) + low
            np.cumsum(table, dtype=np.int32, out=table)
            table -= 1
            _look_up(integers, low, table, codes)
            return values.astype(float) if labels.dtype.kind == "f" else values, codes
    heads, n_distinct = number_rows(_as_keys(labels), codes)
    return labels[heads[:n_distinct]], codes


def _as_whole(labels: np.ndarray) -> np.ndarray:
    """Floats as integers if all are whole numbers; other labels, and zeros with a sign, stay."""
    if labels.dtype.kind != "f" or labels.dtype == np.longdouble:
        return labels
    floats = np.ascontiguousarray(labels, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        whole = floats.astype(np.int64)
    same = np.array_equal(whole.astype(np.float64).view(np.int64), floats.view(np.int64))
    return whole if same else labels


def _is_dense(low: int, high: int, size: int) -> bool:
    """Whether integers are so close together that a table of all between them is small."""
    return high - low < ROOM * size + 1024 and -(2**62) < low <= high < 2**62


def _look_up(values: np.ndarray, low: int, table: np.ndarray, codes: np.ndarray) -> None:
    work = partial(look_up, np.ascontiguousarray(values), low, table, codes)
    over_tasks(work, len(codes), float(len(codes)))


def _as_keys(labels: np.ndarray) -> np.ndarray:
    """Labels as rows of unsigned integers that are equal if and only if the labels are."""
    kind = labels.dtype.kind
    if kind == "f":
        labels = labels.astype(np.float64) + 0.0  # zero has two signs
    elif kind in "biu":
        labels = labels.astype(np.uint64 if labels.dtype == np.uint64 else np.int64, copy=False)
    elif kind == "S":
        labels = labels.astype(f"S{-(-labels.itemsize // 4) * 4}")
    else:
        labels = labels.astype(labels.dtype.newbyteorder("="), copy=False)
    return np.ascontiguousarray(labels).view(np.uint32).reshape(len(labels), labels.itemsize // 4)


def _number_objects(labels: np.ndarray, name: str) -> tuple[list[Any], np.ndarray]:
    """``_number`` for labels that are equal if and only if Python says so."""
    values = labels.tolist() if labels.dtype.kind != "O" else list(labels)
    number: defaultdict[Any, int] = defaultdict(count().__next__)
    try:
        codes = np.fromiter(map(number.__getitem__, values), np.int64, len(values))
    except TypeError:
        raise _bad_label(values, name) from None
    distinct = list(number)
    if not set(map(type, distinct)) <= NEVER_MISSING:
        if any(map(is_missing, distinct)):
            raise _bad_label(values, name)
        distinct = [_without_numpy(label) for label in distinct]
    return distinct, codes


def _without_numpy(label: Any) -> Any:
    """The number of Python that a number of NumPy is equal to; other labels stay."""
    if isinstance(label, np.generic) and label.dtype.kind in "biuf":
        return label.item()
    return label


def _as_python(labels: Any) -> list[Any]:
    """Labels as a list of Python objects, dates and times as those of NumPy."""
    if not isinstance(labels, np.ndarray) or labels.dtype.kind in "OMm":
        return list(labels)
    values: list[Any] = labels.tolist()
    return values


def _require_no_missing(labels: np.ndarray, name: str) -> None:
    if labels.dtype.kind in "fcMm":
        missing = np.flatnonzero(labels != labels)  # NaN and NaT differ from themselves
        if len(missing):
            raise _missing(labels[missing[0]].item(), int(missing[0]), name)


def _bad_label(labels: Sequence[Any], name: str) -> Exception:
    """The error for the first label that is missing or cannot be hashed."""
    for row, label in enumerate(labels):
        if is_missing(label):
            return _missing(label, row, name)
        try:
            hash(label)
        except TypeError:
            return TypeError(
                f"{name} in row {row} is {label!r}, a {type(label).__name__}, which cannot be "
                "hashed: use numbers, strings, dates or tuples of them as labels."
            )
    raise AssertionError("all labels are valid")


def _missing(label: Any, row: int, name: str) -> ValueError:
    return ValueError(
        f"{name} is missing in row {row} (it is {label!r}): "
        "give every row a label or drop such rows."
    )


def _as_vector(task: Any, n_rows: int, name: str) -> np.ndarray:
    """One label per row, (rows,); a single label counts for all rows, and tuples stay labels."""
    if isinstance(task, (str, numbers.Number)):
        return np.repeat(_as_vector([task], 1, name), n_rows)
    if np.ma.isMaskedArray(task):
        task = np.ma.filled(task.astype(object), None)
    if hasattr(task, "to_numpy"):
        labels = as_numpy(task)
    elif isinstance(task, np.ndarray):
        labels = task
    else:
        try:
            values = list(task)
        except TypeError as error:
            raise TypeError(
                f"{name} is {task!r}, a {type(task).__name__}: give one label per row."
            ) from error
        labels = _list_as_array(values)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(
            f"{name} has shape {labels.shape}: expected one label per row, in one dimension."
        )
    if len(labels) != n_rows:
        raise ValueError(
            f"{name} has {len(labels)} labels but X has {n_rows} rows: give one label per row."
        )
    return labels


def _list_as_array(values: list[Any]) -> np.ndarray:
    """Labels of one simple type as an array of that type, others as an array of objects."""
    kinds = set(map(type, values))
    # An array of instances of a subclass of str would hold their printed form.
    simple = kinds <= {str} or kinds <= {int} or kinds <= {float} or kinds <= {bool}
    simple = simple or (len(kinds) == 1 and issubclass(next(iter(kinds)), np.generic))
    if simple and not _has_long_text(values, kinds) and not _ends_in_zeros(values):
        array = np.asarray(values)
        if kinds != {int} or array.dtype.kind != "f":  # some may be too large for integers
            return array
    return object_array(values)


def codes_of(
    task: Any, n_rows: int, known: Any, name: str = "task"
) -> tuple[np.ndarray, list[Hashable]]:
    """Codes of known labels for each row, -1 for others, and the list of the others.

    ``known`` are distinct labels, as a sequence or as the array that ``label_array`` returns.
    """
    factorized = _factorized(task, n_rows)
    if factorized is not None:
        codes, unknown = codes_of(factorized[0], len(factorized[0]), known, name)
        return codes[factorized[1]], unknown
    labels = _as_vector(task, n_rows, name)
    _require_no_missing(labels, name)
    pairs = []
    if isinstance(known, np.ndarray):
        pairs = [(_as_whole(known), _as_whole(labels)), (known, labels)]
    comparable = [pair for pair in pairs if _are_comparable(*pair)]
    if comparable:
        codes = _codes_in_array(*comparable[0])
    elif labels.dtype.kind == "O":
        codes = _codes_in_list(list(labels), known, name)
    else:
        distinct, numbers_of = _number(labels, name)
        codes = _codes_in_list(_as_python(distinct), known, name)[numbers_of]
    others = labels[codes < 0]
    if len(others) and others.dtype.kind in HASHED:
        heads, n_distinct = number_rows(_as_keys(others), np.empty(len(others), dtype=np.int64))
        others = others[heads[:n_distinct]]
    return codes, list(dict.fromkeys(map(_without_numpy, _as_python(others))))


def written_alike(unknown: list[Any], known: np.ndarray) -> tuple[Any, Any] | None:
    """An unknown and a known label that differ in their type alone, such as "007" and 7."""
    if known.dtype.kind != "O" and {type(label) for label in unknown} <= {type(known[0].item())}:
        return None
    written = {_as_digits(label): label for label in _as_python(known)}
    for label in unknown:
        alike = written.get(_as_digits(label))
        if alike is not None and type(alike) is not type(label):
            return label, alike
    return None


def hint_on_labels(unknown: Iterable[Any], known: np.ndarray) -> str:
    """What to do about unknown labels that are known but for zeros, spaces or case; else "".

    It continues a sentence about the unknown labels.
    """
    if known.dtype.kind not in "OUT":
        return ""
    written = {_plainly(label): label for label in _as_python(known) if isinstance(label, str)}
    for label in unknown:
        if isinstance(label, str) and (alike := written.get(_plainly(label))) is not None:
            return f"such as {label!r}, where the fit had {alike!r}: write the labels as in the fit"
    return ""


def _plainly(label: str) -> str:
    """A label without leading zeros, repeated spaces and capitals."""
    return " ".join(label.split()).casefold().lstrip("0") or "0"


def _as_digits(label: Any) -> str:
    """A label as text; whole numbers without a fraction of zero or zeros before them."""
    whole = isinstance(label, float) and label.is_integer()
    text = str(int(label)) if whole else str(label)
    return text.lstrip("0") or "0" if text.isdigit() else text


def _codes_in_array(known: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """``codes_of`` for arrays of comparable types."""
    codes, n_known = np.empty(len(labels), dtype=np.int64), len(known)
    if known.dtype.kind in "iu":
        low, high = int(known.min()), int(known.max())
        if _is_dense(low, high, n_known + len(labels)):
            table = np.full(high - low + 1, -1, dtype=np.int32)
            table[known.astype(np.int64) - low] = np.arange(n_known)
            _look_up(labels.astype(np.int64, copy=False), low, table, codes)
            return codes
    both = np.concatenate([known, labels])  # known labels first: their numbers are their places
    numbered = np.empty(len(both), dtype=np.int64)
    number_rows(_as_keys(both), numbered)
    codes[:] = numbered[n_known:]
    codes[codes >= n_known] = -1
    return codes


def _codes_in_list(labels: list[Any], known: Any, name: str) -> np.ndarray:
    """``codes_of`` for labels that are equal if and only if Python says so."""
    code_of = {label: code for code, label in enumerate(_as_python(known))}
    try:
        codes = np.fromiter(map(code_of.get, labels, repeat(-1)), np.int64, len(labels))
    except TypeError:
        raise _bad_label(labels, name) from None
    if any(is_missing(labels[row]) for row in np.flatnonzero(codes < 0)):
        raise _bad_label(labels, name)
    return codes


def _are_comparable(known: np.ndarray, labels: np.ndarray) -> bool:
    """Whether labels in arrays of these types are equal if and only if their entries are."""
    kinds, types = known.dtype.kind + labels.dtype.kind, (known.dtype, labels.dtype)
    if set(kinds) <= set("iu"):
        return np.uint64 not in types
    return kinds in ("ff", "UU") and np.longdouble not in types


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
    if isinstance(labels, IntegerLabels):
        return labels.values.copy()
    kinds = set(map(type, labels))
    simple = kinds and (kinds <= {int, float} or kinds <= {str} or kinds <= {bool})
    if simple and not _has_long_text(labels, kinds):
        array = np.asarray(labels)
        # Large integers next to floats would be rounded, and text would lose zeros at its end.
        exact = len(kinds) == 1 and array.dtype.kind in "iub"
        if exact or array.tolist() == list(labels):
            return array
    return object_array(labels)


def object_array(values: Sequence[Any]) -> np.ndarray:
    """Values as an array (n,) of objects, in which tuples do not become rows."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _ends_in_zeros(labels: Sequence[Any]) -> bool:
    """Whether the last character of a text is NUL, which an array of text would lose."""
    if not isinstance(labels[0] if labels else None, (str, bytes)):
        return False
    zero = "\0" if isinstance(labels[0], str) else b"\0"
    return any(label.endswith(zero) for label in labels)


def _has_long_text(labels: Sequence[Any], kinds: set[type]) -> bool:
    """Whether a text is so long that an array, whose entries have equal size, would be large."""
    return kinds == {str} and max(map(len, labels)) > LONG_TEXT
