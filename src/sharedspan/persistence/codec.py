"""Values as trees of JSON and arrays, and back: what a model file holds is data and never runs.

Numbers, flags, strings, lists, arrays of numbers and dicts of strings stand for themselves. What
JSON does not know is a dict of one key in angle brackets, such as ``{"<date>": "2026-01-31"}``. An
object is written as a *record*, its class by name and its attributes by theirs; only classes that
the reader was given can be made, and only with the attributes that they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime
from importlib import import_module
from typing import Any

import numpy as np

from sharedspan.inputs.labels import LONG_TEXT
from sharedspan.persistence.container import KINDS, Tree, TreeFormat, plain


class ModelFileError(ValueError):
    """A file that is no model, is damaged, or was written by a newer version."""


FORMAT = TreeFormat("model file", 1, ModelFileError, "copy it or save the model again")

MOST_BITS = 10_000  # of an integer
GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


@dataclass(frozen=True)
class Record:
    """A class whose objects a file may hold.

    Parameters
    ----------
    module : str
        Where it lives; imported when one is read.
    axes : str
        Its arrays, as in ``shapes``.
    names : str
        Attributes of a class that is neither a dataclass nor a named tuple.
    """

    module: str
    axes: str = ""
    names: str = ""

    def attributes(self, kind: Any) -> tuple[str, ...]:
        """Names of everything that an object is made of."""
        if is_dataclass(kind):
            return tuple(f.name for f in fields(kind) if f.init)
        return tuple(self.names.split()) or kind._fields

    def make(self, kind: Any, values: dict[str, Any]) -> Any:
        """An object of these attributes."""
        if not self.names:
            return kind(**values)
        made = kind.__new__(kind)  # its __init__ would begin anew
        made.__dict__.update(values)
        return made


Records = Mapping[str, Record]


def encode(value: Any, records: Records) -> Tree:
    """A value as a tree; a TypeError for one that a file cannot hold."""

    def each(values: Any) -> list[Tree]:
        return [encode(part, records) for part in values]

    if isinstance(value, str):
        return str.__str__(value)  # a class of its own may print something else
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise TypeError("A model file cannot hold a number of thousands of digits.")
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, datetime):
        _require_plain_time(value)
        return {"<datetime>": value.isoformat()}
    if isinstance(value, date):
        return {"<date>": value.isoformat()}
    name = type(value).__name__
    if name in records and records[name].module == type(value).__module__:
        attributes = records[name].attributes(type(value))
        state = {key: encode(getattr(value, key), records) for key in attributes}
        return {"<record>": [name, state]}
    if isinstance(value, np.datetime64):
        return {"<datetime64>": [str(value), np.datetime_data(value)[0]]}
    if isinstance(value, np.generic):
        return plain(value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "OU" and value.ndim == 1:
            short = value.dtype.kind == "U" and value.itemsize <= 4 * LONG_TEXT
            return {"<strings>" if short else "<objects>": each(value.tolist())}
        if value.dtype.kind in KINDS:
            return value
    if isinstance(value, tuple):
        return {"<tuple>": each(value)}
    if isinstance(value, list):
        return each(value)
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("<") for key in value):
            return {key: encode(part, records) for key, part in value.items()}
        return {"<dict>": [each(pair) for pair in value.items()]}
    if isinstance(value, np.random.Generator):
        return {"<generator>": encode(dict(value.bit_generator.state), records)}
    if isinstance(value, np.random.RandomState):
        return {"<random state>": encode(value.get_state(legacy=False), records)}
    raise TypeError(
        f"A model file cannot hold {value!r}, a {name}: it takes numbers, flags, strings, dates, "
        "and tuples, lists, dicts and arrays of them."
    )


RENAMED = {"Gathered": "TaskStatistics"}  # classes that had another name in format 1


def decode(tree: Tree, records: Records, sizes: Mapping[str, int]) -> Any:
    """The value of a tree.

    Parameters
    ----------
    tree : tree
        As ``encode`` made it. Anything else raises a ValueError, a TypeError or their like.
    records : dict of {name: Record}
    sizes : dict of {letter: length}
        Lengths of axes that are known.
    """

    def each(values: Any) -> list[Any]:
        if not isinstance(values, list):
            raise TypeError(f"{values!r} is no list.")
        return [decode(part, records, sizes) for part in values]

    if isinstance(tree, list):
        return each(tree)
    if not isinstance(tree, dict):
        return tree
    tag = next(iter(tree), "")
    if not tag.startswith("<"):
        return {key: decode(part, records, sizes) for key, part in tree.items()}
    (content,) = tree.values()
    match tag:
        case "<tuple>":
            return tuple(each(content))
        case "<dict>":
            return {key: part for key, part in map(each, content)}  # noqa: C416, pairs only
        case "<strings>":
            strings = each(content)
            if any(len(text) > LONG_TEXT for text in strings):
                raise ValueError("Text so long that an array of it would be large.")
            return np.array(strings, dtype=str)
        case "<objects>":
            found = each(content)
            objects = np.empty(len(found), dtype=object)
            objects[:] = found
            return objects
        case "<date>":
            return date.fromisoformat(content)
        case "<datetime>":
            return datetime.fromisoformat(content)
        case "<datetime64>":
            return np.datetime64(*content)
        case "<generator>":
            return np.random.Generator(_bit_generator(decode(content, records, sizes)))
        case "<random state>":
            return np.random.RandomState(_bit_generator(decode(content, records, sizes)))
        case "<record>":
            name, state = content
            name = RENAMED.get(name, name)
            return _record(name, state, records, sizes)
    raise ValueError(f"The tag {tag!r} is unknown.")


def _record(name: str, state: Tree, records: Records, sizes: Mapping[str, int]) -> Any:
    record = records[name]
    kind = getattr(import_module(record.module), name)
    values = {key: decode(part, records, sizes) for key, part in state.items()}
    if set(values) != set(record.attributes(kind)):
        raise ValueError(f"A {name} does not have the attributes {sorted(values)}.")
    for key, annotation in getattr(kind, "__annotations__", {}).items():
        words = getattr(annotation, "__forward_arg__", annotation)  # as a named tuple has them
        if key in values and not _fits(values[key], words):
            raise ValueError(f"{key} of a {name} is no {annotation}.")
    require_shapes(values, shapes(record.axes), sizes)
    return record.make(kind, values)


def shapes(axes: str) -> dict[str, str]:
    """Of "B:dk W:kT": a letter for each axis of each array; the same letter is the same length."""
    return dict(pair.split(":") for pair in axes.split())


def require_shapes(
    values: Mapping[str, Any], wanted: Mapping[str, str], sizes: Mapping[str, int]
) -> dict[str, int]:
    """Raise unless these are arrays of numbers of their shapes, or None; returns all lengths."""
    found = dict(sizes)
    for name, letters in wanted.items():
        value = values.get(name)
        if value is None:
            continue
        numbers = isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
        if not numbers or value.ndim != len(letters):
            raise ValueError(f"{name} is no array of numbers of {len(letters)} axes.")
        for letter, length in zip(letters, value.shape, strict=True):
            if found.setdefault(letter, length) != length:
                raise ValueError(f"{name} has shape {value.shape}.")
    return found


PLAIN = {"float": (float, int), "int": (int,), "str": (str,), "bool": (bool,)}


def _fits(value: Any, annotation: str) -> bool:
    """Whether a value is of an annotated kind, as far as annotations of records go."""
    for part in annotation.split(" | "):
        kind = part.partition("[")[0].rpartition(".")[2]
        if kind == "Any" or (kind == "None" and value is None):
            return True
        if kind in PLAIN:
            number = not isinstance(value, bool) or kind == "bool"
            if number and isinstance(value, PLAIN[kind]):
                return True
        elif any(base.__name__ == kind for base in type(value).__mro__):
            return True
    return False


def _require_plain_time(value: datetime) -> None:
    """Raise for a time that its text does not tell."""
    if getattr(value, "nanosecond", 0):
        raise TypeError(f"A model file cannot hold the nanoseconds of {value!r}: round it.")
    if value.utcoffset() != value.replace(fold=1 - value.fold).utcoffset():
        raise TypeError(f"{value!r} may be either of two times: give it in UTC.")


def _bit_generator(state: dict[str, Any]) -> Any:
    if state["bit_generator"] not in GENERATORS:
        raise ValueError(f"No generator {state['bit_generator']!r}.")
    # NumPy takes any place in its buffers, and would read beyond them.
    places = (state.get("buffer_pos", 0), 4), (dict(state["state"]).get("pos", 0), 624)
    if not all(isinstance(place, int) and 0 <= place <= last for place, last in places):
        raise ValueError("A generator that stands nowhere.")
    made = getattr(np.random, state["bit_generator"])()
    made.state = state
    return made
