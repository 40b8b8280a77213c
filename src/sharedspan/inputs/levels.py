"""The different texts of columns, and factors: levels with their numbers of rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sharedspan.inputs.columns import NO_LEVEL, OTHER, Columns
from sharedspan.inputs.encoders import Factor
from sharedspan.inputs.files import (
    fetch,
    joined,
    nearest,
    shortened,
)
from sharedspan.inputs.recognition import look_of, shell
from sharedspan.inputs.table_columns import OpenTable
from sharedspan.inputs.text_format import TextFormat

MOST_LEVELS = 1000  # of a factor
MANY_LEVELS = 50  # of a factor, with a warning
MOST_TEXTS = 100_000  # different texts of a column, beyond which its levels are not counted


@dataclass(frozen=True)
class Texts:
    """The different texts of a column, with numbers of rows; None if there are too many."""

    counts: Mapping[str, int] | None
    n_missing: int


def count_texts(table: OpenTable, names: Sequence[str], text: TextFormat) -> dict[str, Texts]:
    """The texts of columns, in two passes over the columns: how many they are, and their counts."""
    if not names:
        return {}
    parts = {name: text.text(name, table.types[name]) for name in names}
    totals = np.zeros((len(names), 3))  # estimated numbers of texts, rows with one, all rows
    for file in table.files:
        listed = ", ".join(
            f"approx_count_distinct({parts[n]}), count({parts[n]}), count(*)" for n in names
        )
        ((*found,),) = fetch(table.connection, f"SELECT {listed} FROM {file.scan()}", file.path)
        totals += np.reshape(found, (-1, 3))
    few = [
        name for name, (n_texts, _, _) in zip(names, totals, strict=True) if n_texts <= MOST_TEXTS
    ]
    counts: dict[str, dict[str, int]] = {name: {} for name in few}
    for file in table.files if few else []:
        inner = ", ".join(f"{parts[name]} AS t{i}" for i, name in enumerate(few))
        sets = ", ".join(f"(t{i})" for i in range(len(few)))
        keys = ", ".join(f"t{i}" for i in range(len(few)))
        sql = f"SELECT {keys}, count(*) FROM (SELECT {inner} FROM {file.scan()}) " \
              f"GROUP BY GROUPING SETS ({sets})"  # fmt: skip
        for *values, n in fetch(table.connection, sql, file.path):
            for name, value in zip(few, values, strict=True):
                if value is not None:
                    counts[name][value] = counts[name].get(value, 0) + n
    return {
        name: Texts(counts.get(name), int(n_rows - n_texts))
        for name, (_, n_texts, n_rows) in zip(names, totals, strict=True)
    }


def without_spaces(
    table: OpenTable, texts: dict[str, Texts], text: TextFormat
) -> tuple[dict[str, Texts], TextFormat]:
    """The texts without spaces around them, if some differ only in these."""
    stripped = dict[str, Texts]()
    for name, found in texts.items():
        counts = dict[str, int]()
        for value, n in (found.counts or {}).items() if table.types[name] == "varchar" else ():
            counts[value.strip(" ")] = counts.get(value.strip(" "), 0) + n
        stripped[name] = replace(found, counts=counts) if counts else found
    if all(len(stripped[name].counts or ()) == len(texts[name].counts or ()) for name in texts):
        return texts, text
    return stripped, replace(text, strip=True)


def warn_of_codes(texts: Mapping[str, Texts]) -> None:
    """Warn of numbers that are written with zeros before them, as codes are."""
    for name, found in texts.items():
        code = next((v for v in found.counts or () if v.isdigit() and v[0] == "0" != v), None)
        if code is not None:
            warnings.warn(
                f"The column {name!r} holds codes such as {code!r}, which are taken for numbers: "
                f"add --categorical {shell(name)}, in Python "
                f"columns=ss.Columns(categorical=[{name!r}]), unless they are numbers.",
                UserWarning,
                stacklevel=2,
            )


def factor(
    name: str,
    texts: Texts,
    options: Columns,
    order: Sequence[str] | None,
    *,
    chosen: bool = False,
) -> Factor:
    """A factor: rare levels are pooled, and one level is the reference.

    There is a warning of very many levels, unless users have chosen the column by its name.
    """
    counts = texts.counts
    ordinal = options.ordinal.get(name)
    advice = "leave it out (--drop, or drop= in Python), or make it the task column"
    if counts is None:
        raise ValueError(f"The column {name!r} has more than {MOST_TEXTS:,} levels: {advice}.")
    if ordinal is not None:
        if odd := [level for level in counts if level not in ordinal]:
            raise ValueError(
                f"The column {name!r} holds {shortened(odd[0])!r}, which is not among its ordered "
                f"levels {joined([repr(level) for level in ordinal])}: give all of them."
            )
        ordered = tuple(map(str, ordinal))
        found = tuple(counts.get(level, 0) for level in ordered)
        return Factor(name, ordered, found, "ordinal", ordered[0], options.unseen)
    # Levels of these names are what the names say.
    n_missing = texts.n_missing + counts.get(NO_LEVEL, 0)
    levels = [
        v for v in (order or level_order(counts)) if counts.get(v) and v not in (NO_LEVEL, OTHER)
    ]
    n_levels, numbers = len(levels), dict(counts)
    frequent = [level for level in levels if counts[level] >= options.rare]
    if frequent and len(levels) - len(frequent) > 1:
        reference = options.reference.get(name)
        kept = {*frequent, reference} if reference in levels else {*frequent}
        numbers[OTHER] = sum(n for level, n in counts.items() if level not in {*kept, NO_LEVEL})
        levels = [level for level in levels if level in kept]
    if OTHER in numbers:
        levels = [*levels, OTHER]
    if len(levels) > MOST_LEVELS:
        likeness = look_of(counts)
        which = f"such as {shortened(levels[0])!r}" if likeness is None else f"which {likeness}, or"
        raise ValueError(
            f"The column {name!r} has {len(levels):,} levels, {which}"
            f"{':' if likeness is None else ''} {advice}."
        )
    if NO_LEVEL in counts or (n_missing and options.missing == "indicator"):
        numbers[NO_LEVEL] = n_missing
        levels = [*levels, NO_LEVEL]
    reference = options.reference.get(name, levels[0] if levels else "")
    if name in options.reference and reference not in levels:
        raise ValueError(
            f"The column {name!r} has no level {reference!r} (reference of Columns), only "
            f"{joined([repr(level) for level in levels])}.{nearest(reference, levels)}"
        )
    if n_levels > MANY_LEVELS and not chosen:
        pooled = f", of which {n_levels - len(frequent)} are pooled" if OTHER in levels else ""
        likeness, drop = look_of(counts), f"(--drop {shell(name)}, or drop={name!r} in Python)"
        advice = f": leave it out {drop} if it only names rows"
        if likeness is not None:
            advice = f", which {likeness}, or leave the column out {drop}"
        warnings.warn(
            f"The column {name!r} has {n_levels} levels{pooled}{advice}.",
            UserWarning,
            stacklevel=2,
        )
    return Factor(
        name, tuple(levels), tuple(numbers[level] for level in levels), options.coding, reference,
        options.unseen,
    )  # fmt: skip


def level_order(levels: Iterable[str]) -> list[str]:
    """Levels in numerical order if all are numbers, otherwise in alphabetical order."""
    listed = list(levels)
    if all(TextFormat().reads(level) for level in listed):
        return sorted(listed, key=lambda level: (float(level), level))
    return sorted(listed)
