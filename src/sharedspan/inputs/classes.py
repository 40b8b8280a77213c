"""Targets of two words, such as Y and N: which of them counts as 1, and their SQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.inputs.files import literal, quoted, shortened
from sharedspan.inputs.labels import is_missing
from sharedspan.inputs.recognition import recognise
from sharedspan.inputs.text_format import TEXTS, TextFormat

if TYPE_CHECKING:
    from sharedspan.inputs.table_columns import OpenTable

AFFIRMATIVE = ("yes", "y", "true", "t", "ja", "j", "oui", "wahr")  # they count as 1


def find_classes(table: OpenTable, name: str, text: TextFormat) -> tuple[str, ...]:
    """The two words that a column of text or booleans holds, the one that counts as 1 last.

    That is the second in their order, unless the first means yes. Words that differ in case alone
    are one word, in small letters, if there are more than two. A column of other values has no
    classes, (). Words such as yes in a CSV file are then read as text.
    """
    kind = table.types.get(name)
    if kind not in (*TEXTS, "boolean"):
        return ()
    kinds = {file.types[name] for file in table.files}
    if "boolean" in kinds and table.files[0].csv is not None:
        table.read_csv_as({name: "varchar"})
    for fold in (False, True):
        words: list[str] = []
        while len(words) < 3:
            # Each search ends at the first other word, so a column of many takes no memory.
            found = another_word(table, name, words, text, fold)
            if found is None:
                break
            words.append(found[0].lower() if fold else found[0])
        if len(words) < 3:
            break
    classes = in_order(words) if are_classes(words, text, name) else ()
    if not classes and kind == "boolean":
        table.read_csv_as({name: kind})
    return classes


def are_classes(words: Collection[str], text: TextFormat, name: str = "y") -> bool:
    """Whether these are two words, rather than numbers or dates, of a target of this name."""
    if len(words) != 2:
        return False
    try:
        kinds, _, findings = recognise({name: dict.fromkeys(words, 1)}, text, target=name)
    except ValueError:  # numbers that are not written alike
        return False
    return kinds[name] == "text" and not findings


def in_order(words: Collection[str]) -> tuple[str, str]:
    """Two words, the one that counts as 1 last."""
    first, second = sorted(words)
    if first.casefold() in AFFIRMATIVE and second.casefold() not in AFFIRMATIVE:
        first, second = second, first
    return first, second


def coded_words(y: Any) -> tuple[Any, tuple[str, ...]]:
    """Responses of two words as 0, 1 and NaN, and the words; others as they are, and ()."""
    values = np.asarray(y)
    if values.dtype.kind not in "OUT" or values.ndim != 1:
        return y, ()
    texts = ["" if is_missing(value) else value for value in values.tolist()]
    if not all(isinstance(text, str) for text in texts):
        return y, ()
    texts = [text.strip() for text in texts]
    words = {text for text in texts if text}
    if not are_classes(words, TextFormat()):
        return y, ()
    classes = in_order(words)
    return np.array([float(text == classes[1]) if text else np.nan for text in texts]), classes


def another_word(
    table: OpenTable, name: str, words: Sequence[str], text: TextFormat, fold: bool = False
) -> tuple[str, str] | None:
    """A value of a column that is neither missing nor one of the words, and its file.

    ``fold`` is whether words that differ in case alone are the same.
    """
    missing = ", ".join(map(literal, ["", *text.na_values]))
    condition = f"trim(value) NOT IN ({missing})"
    if words:
        known = ", ".join(_folded(literal(word), fold) for word in words)
        condition += f" AND {_folded('trim(value)', fold)} NOT IN ({known})"
    found = table.value_where(name, condition)
    return None if found is None else (found[0].strip(" "), found[1])


def require_classes(
    table: OpenTable, name: str, classes: tuple[str, ...], text: TextFormat
) -> None:
    """Raise if the target of an earlier fit holds another word than its classes."""
    odd = another_word(table, name, classes, text, _may_fold(classes))
    if odd is not None:
        first, second = classes
        raise ValueError(
            f"{odd[1]}: the target {name!r} holds {shortened(odd[0])!r}, but the model was fitted "
            f"to {first!r} and {second!r}: write these, or leave such rows out."
        )


def class_sql(name: str, classes: tuple[str, ...]) -> str:
    """SQL of 1 for the second class, 0 for the first and NULL for a missing value."""
    fold = _may_fold(classes)
    word = _folded(f"trim(CAST({quoted(name)} AS VARCHAR))", fold)
    first, second = (_folded(literal(each), fold) for each in classes)
    return f"CASE {word} WHEN {second} THEN 1 WHEN {first} THEN 0 END"


def _may_fold(classes: Sequence[str]) -> bool:
    """Whether two classes differ in more than case, so that the case of a word does not matter."""
    return classes[0].casefold() != classes[1].casefold()


def _folded(sql: str, fold: bool) -> str:
    return f"lower({sql})" if fold else sql


def counted(classes: Sequence[str]) -> list[str]:
    """A sentence that says which class counts as 1; none for a target of numbers."""
    return [f"{classes[1]} counts as 1, and {classes[0]} as 0."] if classes else []
