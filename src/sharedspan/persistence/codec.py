"""Encode values as trees of JSON and arrays, and decode them: reading a model file runs no code.

Numbers, booleans, strings, lists, arrays of numbers and dicts of strings are written unchanged.
Types that JSON lacks become a dict with one key in angle brackets, such as
``{"<date>": "2026-01-31"}``. An object is written as a *record*: the name of its class and its
attributes. Only the classes listed in ``STORED_CLASSES`` can be created, and only with their own
attributes: the fields of a dataclass, and for any other class the names in its ``stored_axes``.

A class declares the shapes of its arrays as ``stored_axes = "n B:dk W:kT"``: a letter for each
axis, and axes with the same letter have the same length. T is the number of tasks, d of features
and k of directions of the model; other letters are local to a record. Names without a colon are not
checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from importlib import import_module
from inspect import get_annotations
from typing import Any

import numpy as np

from sharedspan.inputs.labels import LONG_TEXT, object_array
from sharedspan.persistence.container import KINDS, Tree, as_python_scalar

# The classes whose objects a model file may hold, by name, with their modules.
STORED_CLASSES = {
    "Block": "sharedspan.mixed_model.structures",
    "Call": "sharedspan.inputs.expressions",
    "Canonical": "sharedspan.statistics.canonical",
    "Columns": "sharedspan.inputs.columns",
    "Constant": "sharedspan.inputs.expressions",
    "CrossSums": "sharedspan.inference.weight_errors",
    "DaskEngine": "sharedspan.distributed.engine",
    "Descent": "sharedspan.estimators.stream",
    "DescentOptions": "sharedspan.estimators.stream",
    "Effects": "sharedspan.mixed_model.structures",
    "Encoding": "sharedspan.inputs.encoders",
    "Factor": "sharedspan.inputs.encoders",
    "Feature": "sharedspan.inputs.table_columns",
    "FormulaEncoding": "sharedspan.inputs.formula_encoding",
    "FixedEffects": "sharedspan.inference.fixed_effects",
    "GramStatistics": "sharedspan.statistics.grams",
    "GroupEffects": "sharedspan.inference.mixed_inference",
    "MixedInference": "sharedspan.inference.mixed_inference",
    "Number": "sharedspan.inputs.encoders",
    "Operation": "sharedspan.inputs.expressions",
    "Piece": "sharedspan.inputs.formula_encoding",
    "ParameterInterval": "sharedspan.inference.variance_intervals",
    "Posterior": "sharedspan.mixed_model.posterior",
    "RankPath": "sharedspan.inference.rank_selection",
    "Scaling": "sharedspan.mixed_model.terms",
    "SpanError": "sharedspan.inference.weight_errors",
    "SpanPrior": "sharedspan.estimators.span_prior",
    "SpanUncertainty": "sharedspan.inference.span_errors",
    "SplineBasis": "sharedspan.inputs.splines",
    "Stream": "sharedspan.estimators.stream",
    "TableColumns": "sharedspan.inputs.table_columns",
    "TaskStatistics": "sharedspan.statistics.task_statistics",
    "TextFormat": "sharedspan.inputs.text_format",
    "TorchBackend": "sharedspan.objective.backends",
    "Units": "sharedspan.statistics.task_statistics",
    "Variable": "sharedspan.inputs.expressions",
    "VarianceComponent": "sharedspan.mixed_model.objective",
    "VarianceFunction": "sharedspan.mixed_model.variance_function",
    "WeightsUncertainty": "sharedspan.inference.weight_errors",
}
# Classes, attributes and parameters that have another name in older files: {old: new}, or
# {"Class.old": new} for the attribute of one class. A class whose attributes have changed further
# has a static method ``upgraded(values)``, which makes the present attributes of the older ones.
RENAMED = {
    "Gathered": "TaskStatistics",  # format 1
    "_posterior_": "_uncertainty_",  # format 1
    "_sums_": "_statistics_",  # format 1
    "Plan": "SpanPrior",  # format 1
    "NewTaskRegressor._plan_": "_prior_",  # format 1
    "NewTaskRegressor._sums_": "_cross_sums_",  # format 1
    "ARMULRegressor.structure": "variant",  # format 1
    "CurriculumRegressor.mode": "variant",  # format 1
}
SEQUENCES = ("<tuple>", "<dict>", "<strings>", "<objects>")
LARGEST_INTEGER_BITS = 10_000
LARGEST_FLOAT_BITS = 1023  # of an integer in the place of a float
GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


def encode(value: Any) -> Tree:
    """A value as a tree; raises a TypeError for a value that a model file cannot hold."""
    if isinstance(value, str):
        return str.__str__(value)  # a subclass may print something else
    if isinstance(value, int) and value.bit_length() > LARGEST_INTEGER_BITS:
        raise TypeError("A model file cannot hold an integer with thousands of digits.")
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, datetime):
        _require_exact_text(value)
        return {"<datetime>": value.isoformat()}
    if isinstance(value, date):
        return {"<date>": value.isoformat()}
    name = type(value).__name__
    if STORED_CLASSES.get(name) == type(value).__module__:
        names = _attribute_names(type(value))
        return {"<record>": [name, {key: encode(getattr(value, key)) for key in names}]}
    if isinstance(value, np.datetime64):
        return {"<datetime64>": [str(value), np.datetime_data(value)[0]]}
    if isinstance(value, np.generic):
        return as_python_scalar(value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "OU" and value.ndim == 1:
            short = value.dtype.kind == "U" and value.itemsize <= 4 * LONG_TEXT
            return {"<strings>" if short else "<objects>": encode(value.tolist())}
        if value.dtype.kind in KINDS:
            return value
    if isinstance(value, tuple):
        return {"<tuple>": encode(list(value))}
    if isinstance(value, list):
        return [encode(part) for part in value]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("<") for key in value):
            return {key: encode(part) for key, part in value.items()}
        return {"<dict>": [encode(list(pair)) for pair in value.items()]}
    if isinstance(value, np.random.Generator):
        return {"<generator>": encode(value.bit_generator.state)}
    if isinstance(value, np.random.RandomState):
        return {"<random state>": encode(value.get_state(legacy=False))}
    raise TypeError(
        f"A model file cannot hold {value!r}, a {name}: it takes numbers, booleans, strings, "
        "dates, and tuples, lists, dicts and arrays of them."
    )


def decode(tree: Tree, sizes: Mapping[str, int]) -> Any:
    """The value that ``encode`` turned into a tree; any other tree raises an error.

    ``sizes`` are the known lengths of axes, {letter: length}.
    """
    if isinstance(tree, list):
        return [decode(part, sizes) for part in tree]
    if not isinstance(tree, dict):
        return tree
    tag = next(iter(tree), "")
    if not tag.startswith("<"):
        return {key: decode(part, sizes) for key, part in tree.items()}
    (content,) = tree.values()
    if tag == "<record>":
        name, state = content
        if name == "Columns" and "task" in state:  # formats 1 and 2
            name = "TableColumns"
        return _decode_record(current_name(name), state, sizes)
    content = decode(content, sizes)
    if tag in SEQUENCES and not isinstance(content, list):
        raise TypeError(f"{content!r} is not a list.")
    return DECODERS[tag](content)


def current_name(name: str, owner: str = "") -> str:
    """The current name of a class, or of an attribute of ``owner``, from an older file."""
    return RENAMED.get(f"{owner}.{name}", RENAMED.get(name, name))


def _attribute_names(kind: Any) -> list[str]:
    """The names of the stored attributes of a class."""
    if is_dataclass(kind):
        return [field.name for field in fields(kind) if field.metadata.get("stored", True)]
    return list(axes_of(kind))


def _decode_record(name: str, state: Mapping[str, Tree], sizes: Mapping[str, int]) -> Any:
    kind: type[Any] = getattr(import_module(STORED_CLASSES[name]), name)
    values = {current_name(key, name): decode(part, sizes) for key, part in state.items()}
    values = getattr(kind, "upgraded", dict)(values)
    if set(values) != set(_attribute_names(kind)):
        raise ValueError(f"A {name} does not have the attributes {sorted(values)}.")
    require_annotated_types(values, kind)
    require_shapes(values, axes_of(kind), sizes)
    if is_dataclass(kind):
        return kind(**values)
    made = object.__new__(kind)  # __init__ would create an empty object
    vars(made).update(values)
    return made


def axes_of(kind: type) -> dict[str, str | None]:
    """The attributes in ``stored_axes`` of a class, with letters for the axes of each array."""
    words = (word.partition(":") for word in getattr(kind, "stored_axes", "").split())
    return {name: letters if colon else None for name, colon, letters in words}


def require_shapes(
    values: Mapping[str, Any], axes: Mapping[str, str | None], sizes: Mapping[str, int]
) -> dict[str, int]:
    """Raise unless the values are None or numeric arrays of these shapes; returns all lengths."""
    sizes = dict(sizes)
    for name, letters in axes.items():
        value = values.get(name)
        if value is None or letters is None:
            continue
        is_numeric = isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
        if not is_numeric or value.ndim != len(letters):
            raise ValueError(f"{name} is not a numeric array with {len(letters)} axes.")
        for letter, length in zip(letters, value.shape, strict=True):
            if sizes.setdefault(letter, length) != length:
                raise ValueError(f"{name} has shape {value.shape}.")
    return sizes


def require_annotated_types(values: Mapping[str, Any], kind: type) -> None:
    """Raise unless the values have the types that the class and its bases annotate."""
    for base in kind.__mro__:
        for key, annotation in get_annotations(base).items():
            if key in values and not _is_of_type(values[key], annotation):
                raise ValueError(f"{key} of a {kind.__name__} is not of type {annotation}.")


SCALAR_TYPES = {"float": (float, int), "int": (int,), "str": (str,), "bool": (bool,)}
ABSTRACT_TYPES = {"Sequence": (list, tuple), "Mapping": (dict,)}


def _is_of_type(value: Any, annotation: str) -> bool:
    """Whether a value has a type of the kinds that stored classes annotate."""
    for part in annotation.split(" | "):
        name = part.partition("[")[0].rpartition(".")[2]
        if name == "Any" or (name == "None" and value is None):
            return True
        if name in SCALAR_TYPES:
            is_kind = isinstance(value, SCALAR_TYPES[name])
            if name == "float" and isinstance(value, int):
                is_kind = value.bit_length() <= LARGEST_FLOAT_BITS
            if is_kind and isinstance(value, bool) == (name == "bool"):
                return True
        elif name in ABSTRACT_TYPES:
            if isinstance(value, ABSTRACT_TYPES[name]):
                return True
        elif any(base.__name__ == name for base in type(value).__mro__):
            return True
    return False


def _require_exact_text(value: datetime) -> None:
    """Raise for a time that its ISO text does not determine."""
    if getattr(value, "nanosecond", 0):
        raise TypeError(f"A model file cannot hold the nanoseconds of {value!r}: round it.")
    if value.utcoffset() != value.replace(fold=1 - value.fold).utcoffset():
        raise TypeError(f"{value!r} is ambiguous because of a clock change: give it in UTC.")


def _decode_strings(texts: list[str]) -> np.ndarray:
    if any(len(text) > LONG_TEXT for text in texts):
        raise ValueError(f"Strings in arrays must not exceed {LONG_TEXT} characters.")
    return np.array(texts, dtype=str)


def _bit_generator(state: dict[str, Any]) -> Any:
    if state["bit_generator"] not in GENERATORS:
        raise ValueError(f"The bit generator {state['bit_generator']!r} is unknown.")
    # NumPy does not check positions in its buffers, and would read beyond them.
    positions = (state.get("buffer_pos", 0), 4), (dict(state["state"]).get("pos", 0), 624)
    if not all(isinstance(position, int) and 0 <= position <= last for position, last in positions):
        raise ValueError("The position of the bit generator is outside its buffer.")
    made = getattr(np.random, state["bit_generator"])()
    made.state = state
    return made


DECODERS: dict[str, Callable[[Any], Any]] = {  # for types that JSON lacks, by tag
    "<tuple>": tuple,
    "<dict>": dict,
    "<strings>": _decode_strings,
    "<objects>": object_array,
    "<date>": date.fromisoformat,
    "<datetime>": datetime.fromisoformat,
    "<datetime64>": lambda content: np.datetime64(*content),
    "<generator>": lambda state: np.random.Generator(_bit_generator(state)),
    "<random state>": lambda state: np.random.RandomState(_bit_generator(state)),
}
