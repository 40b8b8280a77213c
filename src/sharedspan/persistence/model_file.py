"""Models in files: ``model.save(path)`` and ``ss.load(path)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.inputs.labels import is_missing
from sharedspan.persistence.codec import (
    FORMAT,
    ModelFileError,
    Record,
    decode,
    encode,
    require_shapes,
    shapes,
)

if TYPE_CHECKING:
    from sharedspan.estimators.base import TaskRegressor
    from sharedspan.persistence.container import Path, Tree

# The format: changing what stands here, or the attributes of these classes, needs a new number in
# ``persist.FORMAT``, a way to read the old ones, and a golden file in the tests.
# Attributes and their axes: T tasks, d features, k directions; other letters as in one record.
SHAPES = shapes(
    "coef_:Td intercept_:T representation_:dk task_weights_:kT noise_variance_:T levels_:T "
    "labels_:T mean_coef_:d slope_std_:d outlier_probability_:T feature_covariance_:dd"
)
RECORDS = {
    "Canonical": Record("sharedspan.statistics.canonical", "P:dp"),
    "Columns": Record("sharedspan.inputs.columns"),
    "CrossSums": Record("sharedspan.inference.standard_errors", "x:d xy:d fx:kd", "n y x xy fx"),
    "DaskEngine": Record("sharedspan.distributed.engine"),
    "Descent": Record(
        "sharedspan.estimators.stream",
        "first:ne centre:e w:e",
        "horizon intercept phase first seen centre unit constant eta0 w",
    ),
    "Feature": Record("sharedspan.inputs.columns"),
    "TaskStatistics": Record("sharedspan.statistics.task_statistics"),
    "GramStatistics": Record(
        "sharedspan.statistics.sums",
        "n:T mean:Td y_mean:T packed:Tp anchor:Td g:Td q:T",
        "centred n mean y_mean packed anchor g q",
    ),
    "Plan": Record("sharedspan.estimators.stream", "B:dk unit:kr mean:k root:kk"),
    "Posterior": Record(
        "sharedspan.mixed_model.posterior", "mean:Tp covariance:Tpp variance:Tp b:p new:pp off:T"
    ),
    "RankPath": Record(
        "sharedspan.inference.rank_selection", "ranks:r loss:r difference:r standard_error:r"
    ),
    "Scaling": Record("sharedspan.mixed_model.likelihood", "centre:p scale:p"),
    "SpanError": Record(
        "sharedspan.inference.standard_errors", "covariance:ss mean:Td cross:Tkd score:Td"
    ),
    "SpanUncertainty": Record(
        "sharedspan.inference.standard_errors",
        "B:pa Q:pq W:Ta variance:T degrees:T n:T mean:Tp inverse:Taa singular:Taa cross:Taq "
        "spare:T shape:qq information:bcc excess:bcc",
    ),
    "Stream": Record("sharedspan.estimators.stream", "x0:d R:ee", "x0 y0 n R descent"),
    "TorchBackend": Record("sharedspan.objective.backends"),
    "Units": Record("sharedspan.statistics.scaling", "origin:d scale:d"),
    "WeightsUncertainty": Record(
        "sharedspan.inference.standard_errors",
        "B:dk W:Tk noise:T degrees:T n:T origin:Td centre:Tk covariance:Tkk inverse:Tkk",
    ),
}
VALUES = {
    "rank_": int,
    "n_iter_": int,
    "converged_": bool,
    "message_": str,
    "trace_": dict,
    "candidates_": list,
    "_streams_": dict,
    "coef_names_": np.ndarray,
    "tasks_": np.ndarray,
}


def save(model: TaskRegressor, path: Path, statistics: bool) -> None:
    """Write a fitted model; see ``TaskRegressor.save``."""
    from sharedspan.estimators import ESTIMATORS

    name = type(model).__name__
    if ESTIMATORS.get(name) != type(model).__module__:
        raise TypeError(f"The model is a {name}: only estimators of sharedspan can be saved.")
    parameters = model.get_params(deep=False)
    state: Any = model.__getstate__()
    fitted = {key: state[key] for key in state if _is_fitted_name(key, type(model))}
    if not statistics and type(fitted.get("_sums_")).__name__ == "TaskStatistics":
        del fitted["_sums_"]
    import sharedspan

    tree = {
        "model": name,
        "version": sharedspan.__version__,
        "parameters": {key: _encoded(state[key], f"parameter {key}") for key in parameters},
        "fitted": {key: _encoded(value, key) for key, value in fitted.items()},
    }
    FORMAT.write(path, tree)


def load(path: Path) -> Any:
    """Read a model that ``save`` has written.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    estimator
        Fitted; its predictions are those of the saved one, bit for bit.

    Raises
    ------
    ModelFileError
        For a file that is no model, is damaged or changed, or was written by a newer version. A
        file cannot make this function run code.
    """
    tree = FORMAT.read(path)
    try:
        return _model(tree)
    except ModelFileError:
        raise
    except Exception as error:  # whatever a changed file leads to, it is its fault
        raise FORMAT.damaged(path) from error


def _is_fitted_name(name: str, kind: type) -> bool:
    """Whether fits give models of this kind an attribute of this name; users may give others."""
    return name.endswith("_") and not name.startswith("__") and not hasattr(kind, name)


def _encoded(value: Any, what: str) -> Tree:
    try:
        return encode(value, RECORDS)
    except TypeError as error:
        what = "task labels" if what == "tasks_" else what
        raise TypeError(f"The model cannot be saved for its {what}. {error}") from None


def _model(tree: Tree) -> TaskRegressor:
    from sharedspan.estimators import estimator_class

    kind = estimator_class(tree["model"])
    arrays = {key: tree["fitted"][key] for key in SHAPES if key in tree["fitted"]}
    sizes = require_shapes(arrays, SHAPES, {})
    fitted = {key: decode(part, RECORDS, sizes) for key, part in tree["fitted"].items()}
    if "_posterior_" in fitted:  # its name in format 1
        fitted["_uncertainty_"] = fitted.pop("_posterior_")
    for key, value in fitted.items():
        if not _is_fitted_name(key, kind) or not isinstance(value, VALUES.get(key, object)):
            raise ValueError(f"{key} is no attribute of a fitted model.")
    trace = fitted.get("trace_", {})
    if len({len(column) for column in trace.values() if isinstance(column, np.ndarray)}) > 1:
        raise ValueError("Columns of a trace that are not of one length.")
    _require_names(fitted["tasks_"], fitted["coef_names_"], sizes)
    made: TaskRegressor = kind(**decode(tree["parameters"], RECORDS, {}))
    made.__dict__.update(fitted)
    made._validate_read()
    return made


def _require_names(tasks: np.ndarray, names: np.ndarray, sizes: dict[str, int]) -> None:
    """Raise unless every task and every feature has a name, and no two tasks the same."""
    labels = tasks.tolist()
    if len(set(labels)) != sizes["T"] or any(map(is_missing, labels)):
        raise ValueError("Two tasks of one name, or of none.")
    if len(names) != sizes["d"] or not all(isinstance(name, str) for name in names.tolist()):
        raise ValueError("A feature without a name.")
