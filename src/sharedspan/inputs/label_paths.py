r"""Labels of groups that several columns make together, such as "north/school 3".

A path joins the texts of the values with "/". A slash within a text becomes "\/" and a backslash
two of them, so a slash that separates is never preceded by an odd number of backslashes, the texts
can be read from the path, and no two groups have the same one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from sharedspan.inputs.column_arrays import as_arrow
from sharedspan.inputs.columns import level_text
from sharedspan.inputs.labels import object_array, task_codes


def label_path(texts: Sequence[str]) -> str:
    """The label of a group that has these values."""
    return "/".join(text.replace("\\", "\\\\").replace("/", "\\/") for text in texts)


def path_texts(label: str) -> tuple[str, ...]:
    """The values of a group with this label."""
    texts = []
    for text, slash in re.findall(r"((?:[^\\/]|\\.)*)(/|\Z)", label, re.DOTALL):
        texts.append(re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL))
        if not slash:
            break
    return tuple(texts)


def outer_label(label: str) -> str:
    """The label of the outer group that a group is in."""
    return label_path(path_texts(label)[:1])


def path_sql(texts: Sequence[str]) -> str:
    """SQL of the label, NULL if a value is missing, from SQL of the texts."""
    escaped = (f"replace(replace({text}, '\\', '\\\\'), '/', '\\/')" for text in texts)
    return " || '/' || ".join(escaped)


def path_labels(columns: Sequence[Any]) -> np.ndarray:
    """The label of each row, None if a value is missing, from columns of a frame, (rows,)."""
    coded = [coded_column(column) for column in columns]
    numbers: Any = 0
    for codes, texts in coded:
        numbers = group_numbers(numbers * len(texts) + codes)
    firsts = np.zeros(numbers.max(initial=-1) + 1, dtype=int)
    firsts[numbers[::-1]] = np.arange(len(numbers))[::-1]
    labels = object_array(
        [
            None if any(codes[row] == 0 for codes, _ in coded)
            else label_path([texts[codes[row]] for codes, texts in coded])
            for row in firsts.tolist()
        ]
    )  # fmt: skip
    return labels[numbers]


def group_numbers(values: np.ndarray) -> np.ndarray:
    """Numbers 0, 1, ... of the distinct integers among values (rows,), in their order, (rows,)."""
    return task_codes(values, len(values))[1]


def coded_column(column: Any) -> tuple[np.ndarray, list[str]]:
    """The place of each value among texts, (rows,), 0 if it is missing, and the texts."""
    import pyarrow

    values = as_arrow(column)
    if isinstance(values, pyarrow.ChunkedArray):
        values = values.cast(_value_type(values.type)).combine_chunks()
    encoded = values.cast(_value_type(values.type)).dictionary_encode()
    lacking = encoded.dictionary.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    place = np.concatenate([[0], np.where(lacking, 0, np.arange(1, len(lacking) + 1))])
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return place[codes + 1], ["", *map(level_text, encoded.dictionary.to_pylist())]


def _value_type(kind: Any) -> Any:
    """The type of the values of a categorical type of Arrow, or the type itself."""
    import pyarrow

    return kind.value_type if pyarrow.types.is_dictionary(kind) else kind
