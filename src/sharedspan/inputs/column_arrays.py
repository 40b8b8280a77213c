"""Single columns of frames and arrays: their kinds, as floats, and as Arrow arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sharedspan.inputs.columns import level_text
from sharedspan.inputs.frames import package_of
from sharedspan.inputs.labels import is_missing


def column_at(X: Any, place: int) -> Any:
    """A column of a pandas, polars or pyarrow frame, or of an array, given its number."""
    if package_of(X) == "pyarrow":
        return X.column(place)
    if package_of(X) == "polars":
        return X.to_series(place)
    return X.iloc[:, place] if hasattr(X, "iloc") else np.asarray(X)[:, place]


def is_number_type(kind: Any) -> bool:
    """Whether a type of pandas, polars or pyarrow is one of numbers or booleans."""
    if package_of(kind) == "polars" or hasattr(kind, "is_numeric"):
        return bool(kind.is_numeric()) or str(kind) == "Boolean"
    if package_of(kind) == "pyarrow":
        return str(kind).startswith(("int", "uint", "float", "double", "halffloat", "bool"))
    return getattr(kind, "kind", "O") in "biuf" or getattr(kind, "_is_numeric", False)


def type_of(column: Any) -> Any:
    """The type of a column."""
    return column.type if package_of(column) == "pyarrow" else column.dtype


def as_floats(column: Any, marks: Sequence[float] = ()) -> np.ndarray | None:
    """A column of numbers or booleans as floats, (rows,), NaN where a value is missing or a mark.

    None for columns of other types.
    """
    if not is_number_type(type_of(column)):
        return None
    if package_of(column) in ("polars", "pyarrow"):
        values = as_arrow(column).cast("float64", safe=False).to_numpy(zero_copy_only=False)
    elif isinstance(getattr(column, "dtype", None), np.dtype):
        values = np.asarray(column, dtype=float)
    else:  # pandas has types of its own, some with missing values
        values = column.to_numpy(dtype=float, na_value=np.nan)
    if len(marks) and str(type_of(column)).lower() not in ("bool", "boolean"):
        values = np.where(np.isin(values, marks), np.nan, values)
    return values


def categories_of(values: Any) -> list[str] | None:
    """The levels of a categorical column in the order that users gave them; [] if they gave none.

    The categories of polars, unless they are an Enum, and of Arrow are in the order of the rows.
    """
    kind = getattr(values, "dtype", None)
    levels = getattr(kind, "categories", None)
    if package_of(kind) == "polars":
        name = str(kind)
        levels = levels if name.startswith("Enum") else [] if name.startswith("Cat") else None
    elif package_of(values) == "pyarrow":
        levels = [] if str(values.type).startswith("dictionary") else None
    return None if levels is None else [level_text(level) for level in list(levels)]


def as_arrow(values: Any) -> Any:
    """A column of any kind as an Arrow array; a mixture of types as text."""
    import pyarrow

    if hasattr(values, "to_arrow"):
        values = values.to_arrow()
    if isinstance(values, (pyarrow.Array, pyarrow.ChunkedArray)):
        return values.cast(pyarrow.string()) if pyarrow.types.is_null(values.type) else values
    try:
        array = pyarrow.array(values, from_pandas=True)
        return array.cast(pyarrow.string()) if pyarrow.types.is_null(array.type) else array
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):
        texts = [None if is_missing(value) else str(value) for value in np.asarray(values, object)]
        return pyarrow.array(texts, pyarrow.string())
