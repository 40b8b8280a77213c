"""Fitted models as ONNX graphs: X (rows, d) and task (rows,) in, prediction (rows,) out.

    code       = LabelEncoder(task)                      position of the task, T for any other
    prediction = sum_j X_j coef[code]_j + intercept[code]

Row T of coefficients and intercepts is the mean task, or NaN where a model refuses new tasks: a
graph cannot raise.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sharedspan.persistence.atomic_write import file_appearing

# Older than what onnxruntime 1.17 reads, which is 9, 20 and 4.
IR_VERSION, OPSET, ML_OPSET = 7, 13, 2
LARGEST = 2**31 - 2**16  # bytes: protobuf ends at 2 GiB, and the graph itself takes a little
LABEL_BYTES = 32  # at most, of one label beside its text: its code, lengths and tags
STRINGS, INTEGERS = "keys_strings", "keys_int64s"
DTYPES = {"float64": np.float64, "float32": np.float32}


def write_onnx(
    path: str | os.PathLike[str],
    *,
    labels: Sequence[Any],
    coef: np.ndarray,
    intercept: np.ndarray,
    mean_task: tuple[np.ndarray, float] | None,
    names: Sequence[str],
    metadata: Mapping[str, str],
    dtype: str = "float64",
) -> None:
    """Write an ONNX file, which appears complete or not at all.

    Parameters
    ----------
    path : path
    labels : sequence of T labels
        All of them integers of 64 bits, or all of them strings.
    coef : ndarray of shape (T, d)
    intercept : ndarray of shape (T,)
    mean_task : (ndarray of shape (d,), float) or None
        Coefficients and intercept for any other task; None predicts NaN.
    names : sequence of d str
        The columns of X.
    metadata : dict of str to str
        More of what the file says about itself.
    dtype : {"float64", "float32"}, default="float64"
        Of X, of the arithmetic and of the prediction.
    """
    onnx = _import_onnx()
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is unknown: use {', '.join(map(repr, DTYPES))}.")
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {str(path.parent)!r}: make it first.")
    attribute, keys = _keys(labels, len(coef))
    _require_size(keys, coef.shape, dtype)
    slopes, level = (np.nan, np.nan) if mean_task is None else mean_task
    with np.errstate(over="ignore"):
        V = np.vstack([coef, np.broadcast_to(slopes, coef.shape[1])]).astype(DTYPES[dtype])
        levels = np.append(intercept, level).astype(DTYPES[dtype])
    if np.isinf(V).any() or np.isinf(levels).any():
        raise ValueError(f"Some coefficients are too large for {dtype}: use dtype='float64'.")
    about = {
        **metadata,
        "features": json.dumps([str(name) for name in names]),
        "other_tasks": "NaN" if mean_task is None else "mean",
    }
    model = _model(onnx, {attribute: keys}, V, levels, about)
    with file_appearing(path) as hidden:
        hidden.write_bytes(model.SerializeToString())


def _model(
    onnx: Any,
    keys: Mapping[str, Sequence[Any]],
    coef: np.ndarray,
    intercept: np.ndarray,
    about: Mapping[str, str],
) -> Any:
    """The graph; ``coef`` (T + 1, d) and ``intercept`` (T + 1,) end with the row of other tasks."""
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    kind = helper.np_dtype_to_tensor_dtype(coef.dtype)
    nodes = [
        helper.make_node(
            "LabelEncoder", ["task"], ["code"], domain="ai.onnx.ml", default_int64=len(coef) - 1,
            values_int64s=range(len(coef) - 1), **keys,
        ),
        helper.make_node("Gather", ["coef", "code"], ["slopes"], axis=0),
        helper.make_node("Mul", ["X", "slopes"], ["terms"]),
        helper.make_node("ReduceSum", ["terms", "last_axis"], ["sums"], keepdims=0),
        helper.make_node("Gather", ["intercept", "code"], ["level"], axis=0),
        helper.make_node("Add", ["sums", "level"], ["prediction"]),
    ]  # fmt: skip
    task_kind = onnx.TensorProto.STRING if STRINGS in keys else onnx.TensorProto.INT64
    graph = helper.make_graph(
        nodes,
        "sharedspan",
        [
            helper.make_tensor_value_info("X", kind, ["rows", coef.shape[1]]),
            helper.make_tensor_value_info("task", task_kind, ["rows"]),
        ],
        [helper.make_tensor_value_info("prediction", kind, ["rows"])],
        [
            numpy_helper.from_array(coef, "coef"),
            numpy_helper.from_array(intercept, "intercept"),
            numpy_helper.from_array(np.array([1], dtype=np.int64), "last_axis"),
        ],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION,
                              producer_name="sharedspan")  # fmt: skip
    helper.set_model_props(model, dict(about))
    return model


def _keys(labels: Sequence[Any], n_tasks: int) -> tuple[str, list[Any]]:
    """The labels as a LabelEncoder has them, after the name of its attribute for them."""
    if len(labels) != n_tasks:
        raise ValueError(f"There are {len(labels)} labels for {n_tasks} tasks: give one for each.")
    text = all(isinstance(label, str) for label in labels)
    name, convert = (STRINGS, _as_utf8) if text else (INTEGERS, _as_int64)
    keys = [convert(label) for label in labels]
    if len(set(keys)) < n_tasks:
        raise ValueError("Some of the labels are equal: give each task its own.")
    return name, keys


def _as_int64(label: Any) -> int:
    if isinstance(label, bool) or not isinstance(label, (int, np.integer)):
        raise TypeError(
            f"The task label {label!r} is a {type(label).__name__}: ONNX knows tasks by integers "
            "or by strings, all of one kind. Give labels=, one per task in the order of tasks_, "
            "such as labels=[str(task) for task in model.tasks_]."
        )
    if not -(2**63) <= label < 2**63:
        raise ValueError(
            f"The task label {label!r} has more than 64 bits: give labels= of smaller integers, or "
            "of strings."
        )
    return int(label)


def _as_utf8(label: str) -> bytes:
    try:
        return label.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"The task label {label!r} is no text that can be written: {error.reason}. Give "
            "labels=, one per task in the order of tasks_."
        ) from None


def _require_size(keys: Sequence[Any], shape: tuple[int, ...], dtype: str) -> None:
    text = sum(len(key) for key in keys if isinstance(key, bytes))
    T, d = shape
    size = (T + 1) * (d + 1) * np.dtype(dtype).itemsize + text + LABEL_BYTES * T
    if size > LARGEST:
        raise ValueError(
            f"{T:,} tasks of {d:,} features take {size / 2**30:.1f} GiB, and an ONNX file holds "
            "less than 2: use dtype='float32', or serve the tasks from several files."
        )


def _import_onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise ImportError(
            "export_onnx needs the package onnx: pip install 'sharedspan[onnx]'."
        ) from error
    return onnx
