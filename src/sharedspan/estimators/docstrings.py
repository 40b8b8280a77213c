"""Entries that the docstrings of several estimators share: written once, filled in everywhere.

A line ``{coef_, intercept_}`` in the docstring of an estimator becomes the entries of these
attributes, and ``{X, y}`` in the docstring of a method the entries of these arguments, so that
every page is complete. Shared parameters of constructors have their texts in ``parameters.py``.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from functools import partial

Entry = tuple[str, str]  # types and text


def entries(text: str) -> dict[str, Entry]:
    """Types and texts by name, from entries written as in a docstring."""
    parts = re.split(r"(?m)^(\S+) : (.+)$", text)[1:]
    return {
        name: (kind, " ".join(body.split()))
        for name, kind, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


ATTRIBUTES = entries(
    """
tasks_ : ndarray of shape (T,)
    Labels: numbers sorted, strings sorted, others by first appearance.
coef_ : ndarray of shape (T, d)
    Coefficients of each task.
intercept_ : ndarray of shape (T,)
    Intercept of each task.
representation_ : ndarray of shape (d, k)
    Orthonormal basis of the span, in descending order of singular values; the largest loading of
    each column is positive.
task_weights_ : ndarray of shape (k, T)
    Coordinates of the tasks in the span: ``representation_ @ task_weights_`` is the part of
    ``coef_.T`` in it.
rank_ : int
    k.
rank_path_ : RankPath
    Losses along the ranks if the rank was selected, otherwise None.
noise_variance_ : ndarray of shape (T,)
    Noise variance of each task.
feature_covariance_ : ndarray of shape (d, d)
    S, the pooled covariance of the features within tasks (second moments about zero if there are
    no intercepts): the variance that coefficients v explain within tasks is v'Sv. Stored for up to
    500 features, unless its entries overflow or underflow.
n_iter_ : int
    Number of iterations.
converged_ : bool
    Whether the stopping criterion ``tol`` was met.
coef_names_ : ndarray of shape (d,)
    Names of the features: of the columns of X, or of the features made from them. ``columns_``
    then holds what was learned about the columns.
n_features_in_ : int
    Number of columns of X as passed, the task column included.
feature_names_in_ : ndarray of shape (n_features_in_,)
    Names of the columns of X as passed, if it had names.
"""
)
# Of constructors and methods; text before a colon is not part of the name.
ARGUMENTS = entries(
    """
mixed:whiten : bool, default=False
    Let D refer to whitened instead of standardised features.
mixed:random_state : int, numpy.random.Generator or None, default=None
    If there are very many tasks, structures are compared on a random sample of them, which this
    seed determines. None always gives the same sample.
mixed:verbose : int, default=0
    1 prints each fit that was compared.
class:unseen : {"error", "mean"}, default="mean"
    "mean" predicts a task that was not in the fit by the mean probabilities over the population of
    tasks. "error" raises an error.
link : {"logit", "probit"}, default="logit"
    What is linear: log odds, or normal quantiles of probabilities.
X : array-like or frame of shape (rows, d), or a list of T arrays (n_t, d)
    Frames of pandas, polars or pyarrow, too. Sparse matrices become dense, unless they would then
    take more than half of the machine's memory. With ``engine="dask"`` also a Dask DataFrame; y and
    task are then names of its columns, or Dask Series, and its rows are never copied to this
    machine.
y : array-like of shape (rows,), or a list of T arrays
    Responses.
task : array-like of shape (rows,), optional
    The task of each row, labels of any hashable type, or one label for all rows. Without it, and
    without ``task_column``, all rows are one task (each array of a list is one), with a warning if
    X is a frame.
predict:X : array-like or frame of shape (rows, d)
    A list with one array per task gives a list of predictions.
predict:task : array-like of shape (rows,), optional
    The task of each row, or one label for all rows; may be left out if ``task_column`` names it or
    if the model has a single task. For a list, one label per array.
rows:X : array-like or frame of shape (rows, d)
    One array or frame.
rows:task : array-like of shape (rows,), optional
    As for ``predict``.
sample_weight : array-like of shape (rows,), optional
    Weights count as repetitions: weight 2 is the row written twice, weight 0 the row left out. So
    the scale of the weights matters wherever the number of rows does.
offset : array-like of shape (rows,) or float, optional
    A known part of the linear predictor, added to it with coefficient one.
exposure : array-like of shape (rows,), optional
    The time or size that counts refer to: its logarithm is added to the offset.
checkpoint : path, optional
    A file in which the solver saves its state, so that a fit that is killed can be resumed.
resume : path, optional
    A checkpoint to continue from, with the same data and settings; further checkpoints are written
    to it too, unless ``checkpoint`` names another file. The result is the same as without the
    interruption. Other data raise ``ss.CheckpointError``.
checkpoint_seconds : float, default=60
    Time between two checkpoints.
path : str, path, or iterable of them
    A file, a pattern such as ``"logs/*.parquet"``, a folder (its CSV or Parquet files; names that
    begin with "." or "_" do not count), or several of them.
file:task : str
    Column with the task of each row, whose labels become ``int``, ``float`` or ``str``.
target : str
    Column to predict.
features : str or iterable of str, optional
    Columns of X, in this order. None takes all that are neither task, target nor dropped.
drop : str or iterable of str, optional
    Columns that are not features.
memory_limit : int or str, optional
    The most memory that the whole process may take, in bytes or as "2GB" or "1.5 GiB". Of this,
    Python takes about 0.5 GB. While files are read, DuckDB gets half of the rest. After that, the
    rest must hold two copies of the statistics, each of about 4 T d (d + 7) bytes for T tasks of d
    features. None reads within 2 GB and lets the fit take what the machine has.
missing : str, optional
    Deprecated: use ``columns=ss.Columns(missing=...)``.
text : str, optional
    Deprecated: text is a factor, see ``Columns``.
file:columns : optional
    Deprecated: give the ``columns_`` of a fitted model to the constructor.
encoding : str, optional
    The encoding of text files, such as "latin-1". None is UTF-8, or what the byte order mark of a
    file says.
sheet : str, optional
    The sheet of a workbook; not needed if there is one.
progress : callable of (stage, done, total), optional
    Called repeatedly with the stage and its progress; a total of 0 means unknown. None shows a bar
    in notebooks.
tick : callable, optional
    Deprecated: the old name of ``progress``.
"""
)


def complete_docstrings(cls: type, parameter: Callable[[type, str], Entry | None]) -> None:
    """Replace lines such as ``{coef_, intercept_}`` in the docstrings of a class by entries.

    Parameters
    ----------
    cls : type
    parameter : callable of (class, name)
        The entry of a shared parameter of the constructor; None for other names.
    """
    fill = partial(_entries, cls, parameter)
    for part in (cls, *(value for value in vars(cls).values() if inspect.isfunction(value))):
        if part.__doc__:
            part.__doc__ = re.sub(r"(?m)^( +)\{([\w:, ]+)\}$", fill, part.__doc__)


def _entries(
    cls: type, parameter: Callable[[type, str], Entry | None], match: re.Match[str]
) -> str:
    """The entries of the names in a line, indented like it."""
    entries = []
    for name in match[2].split(", "):
        kind, text = parameter(cls, name) or ATTRIBUTES.get(name) or ARGUMENTS[name]
        body = textwrap.indent(textwrap.fill(" ".join(text.split()), 90), "    ")
        entries.append(f"{name.split(':')[-1]} : {kind}\n{body}")
    return textwrap.indent("\n".join(entries), match[1])
