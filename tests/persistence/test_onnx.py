import datetime
import json
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import NotFittedError

import sharedspan as ss
from sharedspan.estimators.fitted import FittedSpan
from sharedspan.families import Gaussian
from sharedspan.persistence.onnx_export import write_onnx

ESTIMATORS = [
    ss.SharedSpanRegressor(rank=2, random_state=0),
    ss.AdaptiveSpanRegressor(),
    ss.MomentRegressor(rank=2, random_state=0),
    ss.SpectralRegressor(rank=2, random_state=0),
    ss.ARMULRegressor(rank=2, penalty=1.0, random_state=0),
    ss.PenalizedERMRegressor(rank=2, random_state=0),
    ss.CurriculumRegressor(rank=2, random_state=0),
    ss.NewTaskRegressor(),
    ss.PooledRegressor(),
    ss.PerTaskRegressor(),
]
STRANGE = [
    "", " ", "a\nb", 'quote " and \\', "$x_1$", "<script>", "\N{ROCKET}", "שלום", "x" * 10_000,
    "x" * 9_999, "\N{COMBINING ACUTE ACCENT}", "e\N{COMBINING ACUTE ACCENT}", "é", "1", "01",
]  # fmt: skip


@pytest.fixture
def served(tmp_path):
    """A function that exports a model and returns predictions of its file."""
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")

    def serve(model, **options):
        model.export_onnx(tmp_path / "model.onnx", **options)
        assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
        session = onnxruntime.InferenceSession(tmp_path / "model.onnx")

        def predict(X, task):
            return session.run(["prediction"], {"X": X, "task": task})[0]

        predict.session = session
        return predict

    return serve


@pytest.fixture
def fitted(small):
    def fit(labels, **options):
        options = {"rank": 2, "random_state": 0} | options
        return ss.SharedSpanRegressor(**options).fit(small.X, small.y, task=labels)

    return fit


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("kind", [int, str])
def test_the_file_predicts_as_the_model_does_new_tasks_too(estimator, kind, small, served):
    labels = np.array([kind(10 * t) for t in small.task])
    model = estimator.set_params(unseen="mean").fit(small.X, small.y, task=labels)
    rows = small.X[:90]
    asked = np.where(np.arange(90) % 3 == 0, kind(7), labels[:90])
    task = asked.astype(object) if kind is str else asked
    assert_allclose(served(model)(rows, task), model.predict(rows, asked), rtol=1e-12, atol=1e-12)


def test_a_task_that_the_model_refuses_gives_nan(small, fitted, served):
    task = small.task[:3].copy()
    task[1] = -5
    predicted = served(fitted(small.task))(small.X[:3], task)
    assert np.isnan(predicted).tolist() == [False, True, False]


def test_any_text_is_a_label(small, fitted, served):
    labels = np.array([STRANGE[t % len(STRANGE)] for t in small.task], dtype=object)
    model = fitted(labels)
    assert len(model.tasks_) == len(STRANGE)
    assert_allclose(served(model)(small.X, labels), model.predict(small.X, labels), rtol=1e-11)


def test_the_largest_integers_are_labels(small, fitted, served):
    labels = np.array([2**63 - 1, -(2**63), 2**53 + 1, 2**53])[small.task % 4]
    model = fitted(labels)
    assert_allclose(served(model)(small.X, labels), model.predict(small.X, labels), rtol=1e-11)


def test_a_task_column_is_no_column_of_the_file(small, fitted, served):
    frame = pd.DataFrame(small.X, columns=[f"price, in $ {j}" for j in range(8)])
    frame.insert(3, "shop", [f"shop {t}" for t in small.task])
    model = ss.SharedSpanRegressor(rank=2, task_column="shop", random_state=0).fit(frame, small.y)
    predict = served(model)
    predicted = predict(small.X, frame["shop"].to_numpy(dtype=object))
    assert_allclose(predicted, model.predict(frame), rtol=1e-11)
    about = predict.session.get_modelmeta().custom_metadata_map
    assert json.loads(about["features"]) == [f"price, in $ {j}" for j in range(8)]
    assert about["class"] == "SharedSpanRegressor"
    assert about["sharedspan"] == ss.__version__
    assert about["other_tasks"] == "NaN"


def test_a_model_of_one_task_has_the_same_inputs(small, served):
    model = ss.SharedSpanRegressor(rank=1, random_state=0).fit(small.X, small.y)
    predict = served(model)
    assert [(i.name, i.type) for i in predict.session.get_inputs()] == [
        ("X", "tensor(double)"), ("task", "tensor(int64)"),
    ]  # fmt: skip
    predicted = predict(small.X, np.zeros(len(small.X), dtype=np.int64))
    assert_allclose(predicted, model.predict(small.X), rtol=1e-11)


def test_single_precision_is_close(small, fitted, served):
    model = fitted(small.task)
    predicted = served(model, dtype="float32")(small.X.astype(np.float32), small.task)
    assert predicted.dtype == np.float32
    assert_allclose(predicted, model.predict(small.X, small.task), rtol=1e-4, atol=1e-5)


def test_the_file_conforms_to_the_standard(small, fitted, served, tmp_path):
    onnx = pytest.importorskip("onnx")
    served(fitted([f"task {t}" for t in small.task]))
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert {(o.domain, o.version) for o in model.opset_import} == {("", 13), ("ai.onnx.ml", 2)}
    assert model.ir_version == 7  # onnxruntime 1.17 reads 9


@pytest.mark.parametrize(
    "odd",
    [1.5, True, datetime.date(2026, 1, 1), (1, "a")],
    ids=["float", "bool", "date", "tuple"],
)
def test_other_labels_need_names_of_the_users_choice(odd, small, fitted, served):
    labels = np.empty(len(small.task), dtype=object)
    labels[:] = [odd if t % 2 else (False if odd is True else "even") for t in small.task]
    model = fitted(labels)
    with pytest.raises(TypeError, match="Give labels="):
        served(model)
    names = [f"task {task}" for task in model.tasks_]
    place = dict(zip(model.tasks_.tolist(), names, strict=True))
    asked = np.array([place[label] for label in labels], dtype=object)
    predicted = served(model, labels=names)(small.X, asked)
    assert_allclose(predicted, model.predict(small.X, labels), rtol=1e-11)


def test_numbers_and_strings_together_are_refused(small, fitted, tmp_path):
    pytest.importorskip("onnx")
    model = fitted(np.array([1, "1"], dtype=object)[small.task % 2])
    with pytest.raises(TypeError, match="all of one kind"):
        model.export_onnx(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("labels", "message"),
    [([0] * 40, "equal"), (range(39), "39 entries for 40 tasks"), (["\udcff"] * 40, "UTF-8"),
     (range(2**63, 2**63 + 40), "64 bits")],
)  # fmt: skip
def test_labels_that_cannot_be_served_are_refused(labels, message, small, fitted, tmp_path):
    pytest.importorskip("onnx")
    with pytest.raises(ValueError, match=message):
        fitted(small.task).export_onnx(tmp_path / "model.onnx", labels=labels)
    assert not list(tmp_path.iterdir())


def test_other_wishes_that_cannot_be_met_are_refused(small, fitted, tmp_path):
    pytest.importorskip("onnx")
    model = fitted(small.task)
    with pytest.raises(ValueError, match="dtype='float16' is unknown"):
        model.export_onnx(tmp_path / "model.onnx", dtype="float16")
    with pytest.raises(FileNotFoundError, match="no folder"):
        model.export_onnx(tmp_path / "nowhere" / "model.onnx")
    with pytest.raises(NotFittedError):
        ss.SharedSpanRegressor().export_onnx(tmp_path / "model.onnx")
    model.coef_ = model.coef_ * 1e60
    with pytest.raises(ValueError, match="too large for float32"):
        model.export_onnx(tmp_path / "model.onnx", dtype="float32")
    assert not list(tmp_path.iterdir())


def test_a_model_beyond_two_gigabytes_is_refused_before_it_is_built(tmp_path):
    pytest.importorskip("onnx")
    T, d = 100_000, 3_000
    model = SimpleNamespace(
        fitted_span=FittedSpan(np.broadcast_to(0.0, (T, d)), np.zeros(T)),
        tasks_=np.arange(T),
        response_family=Gaussian,
    )
    with pytest.raises(ValueError, match=r"take 2\.2 GiB.*float32"):
        write_onnx(model, tmp_path / "model.onnx")


def test_without_onnx_the_error_says_what_to_install(small, fitted, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'sharedspan\[onnx\]'"):
        fitted(small.task).export_onnx(tmp_path / "model.onnx")
