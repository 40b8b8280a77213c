"""Models in files: ``model.save(path)`` and ``ss.load(path)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.inputs.labels import is_missing
from sharedspan.persistence.codec import (
    axes_of,
    current_name,
    decode,
    encode,
    require_annotated_types,
    require_shapes,
)
from sharedspan.persistence.container import Path, Tree, TreeFormat
from sharedspan.statistics.task_statistics import TaskStatistics

if TYPE_CHECKING:
    from sharedspan.estimators.base import TaskEstimator


class ModelFileError(ValueError):
    """A file that is not a model, is damaged, or was written by a newer version."""


# A change of the names or attributes of stored classes changes the format: after a release it needs
# a new number, an entry in ``codec.RENAMED`` and new golden files in the tests.
MODEL_FORMAT = TreeFormat("model file", 2, ModelFileError, "copy it or save the model again")


def save_model(model: TaskEstimator, path: Path, statistics: bool) -> None:
    """Write a fitted model; see ``TaskEstimator.save``."""
    import sharedspan
    from sharedspan.estimators import ESTIMATORS
    from sharedspan.estimators.directions import loading_reach
    from sharedspan.mixed_model.retained import RetainedFit

    name = type(model).__name__
    if ESTIMATORS.get(name) != type(model).__module__:
        raise TypeError(f"The model is a {name}: only sharedspan estimators can be saved.")
    model.complete()  # computes what was deferred, so that it is saved
    state: Any = dict(model.__getstate__())
    if (reach := loading_reach(model)) is not None:
        state["_loading_reach_"] = reach
    tree = {
        "model": name,
        "version": sharedspan.__version__,
        "parameters": {
            key: _encode_part(state[key], f"parameter {key}")
            for key in model.get_params(deep=False)
        },
        "fitted": {
            key: _encode_part(value, "task labels" if key == "tasks_" else key)
            for key, value in state.items()
            if _is_fitted_name(key, type(model))
            and not isinstance(value, RetainedFit)
            and (statistics or not isinstance(value, TaskStatistics))
        },
    }
    MODEL_FORMAT.write(path, tree)


def load(path: Path) -> Any:
    """Read a model that ``save`` has written.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    estimator
        Fitted; it predicts exactly what the saved model predicts. If it was fitted on a cluster
        that was given by its address, its ``engine`` is the current Dask client: a file connects
        to no address.

    Raises
    ------
    ModelFileError
        For a file that is not a model, is damaged or changed, or was written by a newer version. A
        file cannot make this function run code.
    """
    tree = MODEL_FORMAT.read(path)
    with MODEL_FORMAT.interpreting(path):
        return _decode_model(tree)


def _is_fitted_name(name: str, kind: type) -> bool:
    """Whether a fit sets an attribute of this name; users may set others."""
    return name.endswith("_") and not name.startswith("__") and not hasattr(kind, name)


def _encode_part(value: Any, what: str) -> Tree:
    try:
        return encode(value)
    except TypeError as error:
        raise TypeError(f"The model cannot be saved because of its {what}. {error}") from None


def _decode_model(tree: Tree) -> TaskEstimator:
    from sharedspan.distributed.engine import without_address
    from sharedspan.estimators import estimator_class
    from sharedspan.estimators.fitted import FittedSpan

    name = current_name(tree["model"])
    kind = estimator_class(name)
    parts = {current_name(key, name): part for key, part in tree["fitted"].items()}
    axes = {f"{name}_": letters for name, letters in axes_of(FittedSpan).items()} | axes_of(kind)
    sizes = require_shapes(parts, axes, {})
    fitted = {key: decode(part, sizes) for key, part in parts.items()}
    if not all(_is_fitted_name(key, kind) for key in fitted):
        raise ValueError(f"Some of {sorted(fitted)} are not attributes of a fitted model.")
    require_annotated_types(fitted, kind)
    require_annotated_types({key[:-1]: value for key, value in fitted.items()}, FittedSpan)
    columns = fitted.get("trace_", {}).values()
    if len({len(column) for column in columns if isinstance(column, np.ndarray)}) > 1:
        raise ValueError("The columns of the trace differ in length.")
    _require_names(fitted["tasks_"], fitted["coef_names_"], sizes)
    parameters = decode(tree["parameters"], {})
    if "engine" in parameters:
        parameters["engine"] = without_address(parameters["engine"])
    model: TaskEstimator = kind(**{current_name(key, name): parameters[key] for key in parameters})
    model.__dict__.update(fitted)
    model._validate_read()
    return model


def _require_names(tasks: np.ndarray, names: np.ndarray, sizes: dict[str, int]) -> None:
    """Raise unless every task has a unique label and every feature a name."""
    labels = tasks.tolist()
    if len(set(labels)) != sizes["T"] or any(map(is_missing, labels)):
        raise ValueError("Not every task has a unique label.")
    if len(names) != sizes["d"] or not all(isinstance(name, str) for name in names.tolist()):
        raise ValueError("Not every feature has a name.")
