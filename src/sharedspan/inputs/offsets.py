"""Offsets that a formula names, from the columns of any rows: of a fit or of a prediction."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharedspan.inputs.column_arrays import as_floats, column_at
from sharedspan.inputs.expressions import evaluate
from sharedspan.inputs.files import joined
from sharedspan.inputs.frame_table import raw_names
from sharedspan.inputs.frames import as_table, column_names
from sharedspan.inputs.table_columns import TableColumns


def formula_offset(X: Any, columns: Any) -> np.ndarray | None:
    """The sum of the offsets of a formula in all rows, (rows,), zero where a value is missing.

    None if there are none.
    """
    if not isinstance(columns, TableColumns) or not columns.encoding.offset:
        return None
    X, offsets = as_table(X), columns.encoding.offset
    known = [] if column_names(X) is None else raw_names(X)
    names = list(dict.fromkeys(name for offset in offsets for name in offset.names))
    if lacking := [name for name in names if name not in known]:
        raise ValueError(
            f"The formula has offset({offsets[0]}), but the rows have no column "
            f"{joined([repr(name) for name in lacking])}: give a pandas, polars or pyarrow table "
            "with it."
        )
    values = {}
    for name in names:
        numbers = as_floats(column_at(X, known.index(name)), columns.encoding.text.missing_numbers)
        if numbers is None:
            raise ValueError(f"The column {name!r} of the offset holds no numbers: correct it.")
        values[name] = numbers
    total = sum(evaluate(offset, values, first_row=0) for offset in offsets)
    return np.nan_to_num(np.asarray(total), posinf=np.inf, neginf=-np.inf)
