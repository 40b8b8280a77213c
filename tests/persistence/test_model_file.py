"""Models in files: nothing is lost, nothing runs, nothing wrong is read."""

import datetime
import enum
import json
import pickle
import shutil
import tempfile
import zoneinfo
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError

import sharedspan as ss
from sharedspan.estimators import ESTIMATORS
from sharedspan.families import Counts, Gaussian
from sharedspan.inference.rank_selection import RankPath
from sharedspan.inputs.encoders import Encoding, Number
from sharedspan.inputs.table_columns import TableColumns
from sharedspan.persistence.codec import RENAMED
from sharedspan.persistence.model_file import MODEL_FORMAT
from stored_files import GOLDEN, changed, golden_problem, mutated, parts, places, sealed

HOSTILE = [
    "quotes \" and ' and `",
    "<script>alert(1)</script>",
    "a,b;c\td|e",
    "two\nlines\r\nand a third",
    "\N{ROCKET}\N{FAMILY} \N{ZERO WIDTH JOINER}",
    "\u05e9\u05dc\u05d5\u05dd \u202e\u0645\u0631\u062d\u0628\u0627\u202c",
    "=1+1",
    "=cmd|' /C calc'!A0",
    "x" * 10_000,
    "ends with a zero\0",
    "\ud800 alone",
    "<array>",
    " ",
    "",
]


@pytest.fixture(scope="module")
def sim():
    return ss.simulate(n_tasks=30, n_features=17, rank=3, n_samples=25, noise=0.5, random_state=0)


def fitted(name, sim, **options):
    kind = getattr(ss, name)
    if name == "NewTaskRegressor":
        model = ss.SharedSpanRegressor(rank=3, random_state=0).fit(sim.X, sim.y, task=sim.task)
        made = kind.from_model(model).set_params(**options)
    else:
        if "random_state" in kind().get_params():
            options = {"random_state": 0} | options
        made = kind(**options)
    return made.fit(sim.X, target(made, sim), task=sim.task)


def target(model, sim):
    """The responses of the simulation, as the family of the model has them."""
    if is_classifier(model):
        return np.where(sim.y > 0, "yes", "no")
    if model.response_family().name in ("binomial", "probit"):
        return (sim.y > 0).astype(float)
    if isinstance(model.response_family(), Counts):
        return np.floor(np.exp(np.clip(sim.y, None, 3.0)))
    return sim.y


VARIANTS = [
    *((name, {}) for name in ESTIMATORS),
    ("SharedSpanRegressor", {"rank": 3, "noise": "per_task", "fit_intercept": False}),
    ("SharedSpanRegressor", {"rank": 3, "dtype": "float32", "whiten": False}),
    (
        "SharedSpanRegressor",
        {"rank": "evidence", "solver": "tpgd", "solver_options": {"steps": "practical"}},
    ),
    ("AdaptiveSpanRegressor", {"fit_intercept": False}),
    ("AdaptiveSpanRegressor", {"family": "binomial"}),
    ("AdaptiveSpanRegressor", {"family": "probit", "fit_intercept": False}),
    ("AdaptiveSpanRegressor", {"family": "poisson", "unseen": "mean"}),
    ("AdaptiveSpanRegressor", {"family": "negative_binomial", "rank": 0}),
    ("AdaptiveSpanClassifier", {"link": "probit"}),
    ("ARMULRegressor", {"variant": "clustered", "penalty": 1.0}),
    ("ARMULRegressor", {"variant": "vanilla", "penalty": 1.0}),
    ("CurriculumRegressor", {"levels": {t: 1 + t % 2 for t in range(30)}}),
    ("NewTaskRegressor", {"method": "sgd"}),
    ("NewTaskRegressor", {"method": "least_squares"}),
    ("PooledRegressor", {"unseen": "mean"}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_round_trip_changes_no_bit(name, options, sim, tmp_path):
    model = fitted(name, sim, **options)
    with_std = hasattr(model, "coef_interval") and options.get("method") != "sgd"
    model.save(tmp_path / "m.span")
    same = ss.load(tmp_path / "m.span")
    assert type(same) is type(model)
    assert np.array_equal(same.predict(sim.X, task=sim.task), model.predict(sim.X, task=sim.task))
    for method in ("predict_proba", "decision_function", "mean_interval", "proba_interval"):
        if hasattr(model, method) and not isinstance(model.response_family(), Gaussian):
            one, other = (getattr(m, method)(sim.X, task=sim.task) for m in (same, model))
            np.testing.assert_array_equal(one, other)
    if with_std and not is_classifier(model):
        for one, other in zip(
            same.predict(sim.X, task=sim.task, return_std=True),
            model.predict(sim.X, task=sim.task, return_std=True),
            strict=True,
        ):
            assert np.array_equal(one, other)
        assert np.array_equal(same.coef_std_, model.coef_std_)
    assert str(same.get_params()) == str(model.get_params())
    names = {key for key in vars(model) if key.endswith("_") and not key.startswith("_")}
    assert names <= set(vars(same))
    for key in names:
        one, other = getattr(same, key), getattr(model, key)
        if isinstance(other, RankPath):
            one, other = vars(one), vars(other)
        np.testing.assert_equal(one, other)
    assert str(ss.diagnose(same)) == str(ss.diagnose(model))


def test_classes_keep_their_type(sim, tmp_path):
    for labels in (["no", "yes"], [False, True], [3, 7], [1.0, 2.0]):
        y = np.array(labels)[(sim.y > 0).astype(int)]
        ss.AdaptiveSpanClassifier(rank=0).fit(sim.X, y, task=sim.task).save(tmp_path / "m.span")
        classes = ss.load(tmp_path / "m.span").classes_
        assert classes.dtype == y.dtype
        assert classes.tolist() == labels


def test_more_than_two_classes_are_saved_one_by_one(sim, tmp_path):
    y = np.digitize(sim.y, [-1.0, 1.0])
    model = ss.AdaptiveSpanClassifier(rank=0).fit(sim.X, y, task=sim.task)
    with pytest.raises(TypeError, match=r"3 classes .* the models in estimators_"):
        model.save(tmp_path / "m.span")
    each = []
    for one in model.estimators_:
        one.save(tmp_path / "m.span")
        each.append(ss.load(tmp_path / "m.span").predict_proba(sim.X, task=sim.task)[:, 1])
    shares = np.column_stack(each)
    expected = model.predict_proba(sim.X, task=sim.task)
    assert np.array_equal(shares / shares.sum(axis=1, keepdims=True), expected)


def test_a_model_saved_with_its_statistics_can_be_updated_like_the_original(sim, tmp_path):
    first, later = sim.task < 20, sim.task >= 20
    model = ss.SharedSpanRegressor(rank=3, solver="auto", random_state=0)
    model.fit(sim.X[first], sim.y[first], task=sim.task[first])
    model.save(tmp_path / "with.span", statistics=True)
    model.save(tmp_path / "without.span")
    same, bare = ss.load(tmp_path / "with.span"), ss.load(tmp_path / "without.span")
    for one in (same, model):
        one.partial_fit(sim.X[later], sim.y[later], task=sim.task[later])
    assert np.array_equal(same.coef_, model.coef_)
    with pytest.raises(ValueError, match="keep_statistics"):
        bare.partial_fit(sim.X[later], sim.y[later], task=sim.task[later])


def test_new_tasks_go_on_streaming_after_a_round_trip(sim, tmp_path):
    model = fitted("SharedSpanRegressor", sim, rank=3)
    half = np.arange(len(sim.y)) % 25 < 12
    new = ss.NewTaskRegressor.from_model(model).fit(sim.X[half], sim.y[half], task=sim.task[half])
    new.save(tmp_path / "new.span")
    same = ss.load(tmp_path / "new.span")
    for one in (new, same):
        one.partial_fit(sim.X[~half], sim.y[~half], task=sim.task[~half])
    assert np.array_equal(new.coef_, same.coef_)
    assert np.array_equal(new.coef_std_, same.coef_std_)


LABELS = {
    "hostile": HOSTILE,
    "numbers": [1, -2, 3.5, 10**30, float("inf")],
    "mixed": [1, "1", 2.5, "two", (1, "a", (2.5, True)), datetime.date(2026, 1, 31)],
    "flags": [True, False],
    "dates": [datetime.date(2020, 2, 29), datetime.date(1, 1, 1)],
    "times": [
        datetime.datetime(2020, 2, 29, 12, 30, 1, 5),
        datetime.datetime(2020, 2, 29, tzinfo=datetime.UTC),
    ],
    "datetime64": list(np.array(["2020-01-01", "2021-06-05"], dtype="M8[D]")),
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_labels_come_back_as_they_were(labels, tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(8 * len(labels), 2)), rng.normal(size=8 * len(labels))
    task = [label for label in labels for _ in range(8)]
    model = ss.PerTaskRegressor().fit(X, y, task=task)
    model.save(tmp_path / "m.span")
    same = ss.load(tmp_path / "m.span")
    assert same.tasks_.tolist() == model.tasks_.tolist()
    assert list(map(type, same.tasks_.tolist())) == list(map(type, model.tasks_.tolist()))
    assert same.tasks_.dtype == model.tasks_.dtype
    assert np.array_equal(same.predict(X, task=task), model.predict(X, task=task))


def test_hostile_names_of_columns_come_back_as_they_were(tmp_path):
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    names = [name for name in HOSTILE if "\ud800" not in name]
    frame = pd.DataFrame(rng.normal(size=(60, len(names))), columns=names)
    frame["<task>"] = np.repeat(["a", "b", "c"], 20)
    model = ss.PooledRegressor(task_column="<task>").fit(frame, rng.normal(size=60))
    model.save(tmp_path / "m.span")
    same = ss.load(tmp_path / "m.span")
    assert same.coef_names_.tolist() == model.coef_names_.tolist()
    assert np.array_equal(same.predict(frame), model.predict(frame))


@pytest.mark.parametrize(
    "label",
    [complex(1, 2), frozenset({1}), datetime.timedelta(1), b"bytes", object()],
    ids=lambda label: type(label).__name__,
)
def test_labels_of_other_kinds_are_refused(label, tmp_path):
    rng = np.random.default_rng(0)
    model = ss.PooledRegressor().fit(rng.normal(size=(9, 2)), rng.normal(size=9), [label] * 9)
    with pytest.raises(TypeError, match="task labels"):
        model.save(tmp_path / "m.span")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_saved_is_refused(sim, tmp_path):
    with pytest.raises(NotFittedError):
        ss.PooledRegressor().save(tmp_path / "m.span")
    model = fitted("SharedSpanRegressor", sim, rank=2, callback=print)
    with pytest.raises(TypeError, match="parameter callback"):
        model.save(tmp_path / "m.span")

    class Mine(ss.PooledRegressor):
        pass

    with pytest.raises(TypeError, match="only sharedspan estimators"):
        Mine().fit(sim.X, sim.y, sim.task).save(tmp_path / "m.span")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("state", [None, 7, np.random.default_rng(1), np.random.RandomState(2)])
def test_random_states_come_back(state, sim, tmp_path):
    model = fitted("SharedSpanRegressor", sim, rank=2, random_state=state)
    model.save(tmp_path / "m.span")
    same = ss.load(tmp_path / "m.span")
    if state is None or isinstance(state, int):
        assert same.random_state == state
    else:
        draw = "random" if isinstance(state, np.random.Generator) else "random_sample"
        assert getattr(same.random_state, draw)() == getattr(model.random_state, draw)()


# Damaged files


@pytest.fixture(scope="module")
def content(sim, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.span"
    fitted("SharedSpanRegressor", sim).save(path)
    return path.read_bytes()


def test_a_thousand_mutated_files_are_refused(content, tmp_path):
    rng, path, tried = np.random.default_rng(0), tmp_path / "m.span", 0
    while tried < 1000:
        data = mutated(content, rng)
        if data == content:
            continue
        tried += 1
        path.write_bytes(data)
        with pytest.raises(ss.ModelFileError):
            ss.load(path)


def test_members_changed_under_a_right_checksum_never_raise_another_error(content, sim, tmp_path):
    """Numbers can be changed together with the checksum, but any file that loads also predicts."""
    rng, path, refused = np.random.default_rng(1), tmp_path / "m.span", 0
    head, original, numbers = parts(content)
    assert sealed(head, original, numbers) == content
    every = list(places(original))
    for _ in range(1000):
        path.write_bytes(sealed(head, changed(original, every, rng), numbers))
        try:
            model = ss.load(path)
        except ss.ModelFileError:
            refused += 1
            continue
        if model.task_column is None:
            assert model.predict(sim.X[:2], task=sim.task[:2]).shape == (2,)
    assert refused > 500


def test_foreign_newer_and_missing_files_are_told_apart(content, tmp_path, sim):
    path = tmp_path / "m.span"
    path.write_bytes(b"PK\3\4 something else")
    with pytest.raises(ss.ModelFileError, match="is not a sharedspan model file"):
        ss.load(path)
    path.write_bytes(b"")
    with pytest.raises(ss.ModelFileError, match="is not a sharedspan model file"):
        ss.load(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ss.ModelFileError, match="is not a sharedspan model file"):
        ss.load(path)
    path.write_bytes(content.replace(b"format 2\n", b"format 3\n", 1))
    with pytest.raises(ss.ModelFileError, match=r"newer sharedspan.*update"):
        ss.load(path)
    path.write_bytes(content[:-40])
    with pytest.raises(ss.ModelFileError, match="damaged, cut short or changed"):
        ss.load(path)
    with pytest.raises(ss.ModelFileError, match="is not a file"):
        ss.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        ss.load(tmp_path / "none.span")
    checkpoint = tmp_path / "c"
    model = ss.SharedSpanRegressor(rank=2, random_state=0)
    model.fit(sim.X, sim.y, task=sim.task, checkpoint=checkpoint)
    with pytest.raises(ss.ModelFileError, match="is not a sharedspan model file"):
        ss.load(checkpoint)


def test_a_file_that_is_no_model_is_never_overwritten(sim, tmp_path):
    path = tmp_path / "thesis.txt"
    path.write_text("years of work")
    model = fitted("PooledRegressor", sim)
    with pytest.raises(ss.ModelFileError, match="exists and is not a model file"):
        model.save(path)
    assert path.read_text() == "years of work"
    model.save(tmp_path / "m.span")
    model.save(tmp_path / "m.span")  # an older model may be replaced
    assert {file.name for file in tmp_path.iterdir()} == {"thesis.txt", "m.span"}


def test_only_classes_of_the_format_are_made(content, tmp_path):
    """A record of another class, even a harmless one of the package, is refused."""
    head, tree, numbers = parts(content)
    for name in ("Popen", "Tasks", "system", "__builtins__"):
        tree["fitted"]["message_"] = {"<record>": [name, {"args": "true"}]}
        (tmp_path / "m.span").write_bytes(sealed(head, tree, numbers))
        with pytest.raises(ss.ModelFileError):
            ss.load(tmp_path / "m.span")


def test_a_file_cannot_bring_its_own_sql(sim, tmp_path):
    """Names and types of columns become part of queries."""
    columns = TableColumns("g", "y", Encoding(tuple(map(Number, sim.X.shape[1] * ["x"]))), "BIGINT")
    evil = "BIGINT) FROM x; COPY (SELECT 1) TO 'pwned.csv'; SELECT CAST(1 AS BIGINT"
    with pytest.raises(ValueError, match="not columns of a table"):
        replace(columns, label=evil)
    model = fitted("PooledRegressor", sim)
    model.columns_ = columns
    model.save(tmp_path / "m.span")
    assert ss.load(tmp_path / "m.span").columns_ == columns
    head, tree, numbers = parts((tmp_path / "m.span").read_bytes())
    for key, value in (("label", evil), ("task", 7), ("encoding", {"<tuple>": ["x"]})):
        changed = json.loads(json.dumps(tree))
        changed["fitted"]["columns_"]["<record>"][1][key] = value
        (tmp_path / "evil.span").write_bytes(sealed(head, changed, numbers))
        with pytest.raises(ss.ModelFileError):
            ss.load(tmp_path / "evil.span")


@pytest.mark.parametrize(
    "state",
    [
        {"bit_generator": "MT19937", "state": {"key": [0] * 624, "pos": 10**9}},
        {"bit_generator": "MT19937", "state": {"key": [0] * 624, "pos": -5}},
        {"bit_generator": "Philox", "state": {"counter": [0] * 4, "key": [0] * 2},
         "buffer": [0] * 4, "buffer_pos": 10**6, "has_uint32": 0, "uinteger": 0},
        {"bit_generator": "os", "state": {}},
    ],
    ids=["after the end", "before the start", "after the buffer", "no generator"],
)  # fmt: skip
def test_generators_that_would_read_beyond_their_memory_are_refused(state, content, tmp_path):
    head, tree, numbers = parts(content)
    for tag in ("<generator>", "<random state>"):
        tree["parameters"]["random_state"] = {tag: state}
        (tmp_path / "m.span").write_bytes(sealed(head, tree, numbers))
        with pytest.raises(ss.ModelFileError):
            ss.load(tmp_path / "m.span")


def test_a_small_file_does_not_take_much_memory(content, tmp_path):
    head, tree, numbers = parts(content)
    tree["fitted"]["notes_"] = {"<strings>": ["x" * 10**5] + [""] * 20_000}  # 8 GB as an array
    (tmp_path / "m.span").write_bytes(sealed(head, tree, numbers))
    with pytest.raises(ss.ModelFileError):
        ss.load(tmp_path / "m.span")


class Colour(str, enum.Enum):  # noqa: UP042, prints as Colour.RED
    RED = "red"
    GREEN = "green"


class Plan(NamedTuple):
    """A class with the name of a stored class."""

    method: str
    rank: int


@pytest.mark.parametrize(
    "labels", [list(Colour), [Plan("a", 1), Plan("b", 2)]], ids=["enum", "named"]
)
def test_labels_of_other_classes_are_saved_as_what_they_are(labels, tmp_path):
    rng = np.random.default_rng(0)
    X, y, task = (
        rng.normal(size=(20, 2)),
        rng.normal(size=20),
        [t for t in labels for _ in range(10)],
    )
    for given in (task, np.fromiter(task, dtype=object)):
        model = ss.PerTaskRegressor().fit(X, y, task=given)
        assert len(model.tasks_) == 2
        model.save(tmp_path / "m.span")
        assert np.array_equal(ss.load(tmp_path / "m.span").predict(X, task=given),
                              model.predict(X, task=given))  # fmt: skip


def test_attributes_of_the_users_own_do_not_spoil_the_file(sim, tmp_path):
    model = fitted("PooledRegressor", sim)
    model.note = "trained on a Monday"
    model.save(tmp_path / "m.span")
    assert not hasattr(ss.load(tmp_path / "m.span"), "note")


def test_times_that_their_text_does_not_tell_are_refused(tmp_path):
    zone = zoneinfo.ZoneInfo("America/New_York")
    for when in (datetime.datetime(2020, 11, 1, 1, 30, tzinfo=zone), 10**4400, np.longdouble(1.5)):
        model = ss.PooledRegressor()
        model.fit(np.arange(9.0)[:, None], np.arange(9.0), np.array([when] * 9, dtype=object))
        with pytest.raises(TypeError, match="task labels"):
            model.save(tmp_path / "m.span")


def test_a_replaced_file_passes_on_its_permissions(sim, tmp_path):
    path = tmp_path / "m.span"
    model = fitted("PooledRegressor", sim)
    model.save(path)
    path.chmod(0o600)
    model.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        model.save(tmp_path / "no" / "m.span")


def test_standard_errors_are_bitwise_equal_where_features_outnumber_rows(tmp_path):
    for seed in range(10):
        sim = ss.simulate(n_tasks=5, n_features=60, rank=1, n_samples=40, random_state=seed)
        model = ss.SharedSpanRegressor(rank=1, random_state=0).fit(sim.X, sim.y, task=sim.task)
        model.save(tmp_path / "m.span")
        assert np.isfinite(model.coef_std_).all()
        assert np.array_equal(ss.load(tmp_path / "m.span").coef_std_, model.coef_std_)


# Files of released versions

GOLDEN_NAMES = [
    *ESTIMATORS,
    "SharedSpanRegressor-labels",
    "PooledRegressor-files",
    "NewTaskRegressor-sgd",
    "AdaptiveSpanRegressor-negative_binomial",
]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.span")), ids=lambda p: p.stem)
def test_files_of_released_versions_are_still_read(path, tmp_path):
    X, _, task = golden_problem()
    shutil.copy(path, tmp_path / "m.span")
    model = ss.load(tmp_path / "m.span")
    expected = json.loads(path.with_suffix(".json").read_text())
    assert type(model).__name__ == expected["model"]
    assert len(model.tasks_) == expected["n_tasks"]
    assert model.coef_.tolist() == expected["coef"]
    if "prediction" in expected:
        prediction = prediction_of(model)(X[::7], task=task[::7])
        np.testing.assert_allclose(prediction, expected["prediction"], rtol=1e-12)
    if "std" in expected:
        std = model.predict(X[::7], task=task[::7], return_std=True)[1]
        np.testing.assert_allclose(std, expected["std"], rtol=1e-9)


def prediction_of(model):
    """The method whose numbers golden files hold."""
    return model.decision_function if is_classifier(model) else model.predict


def test_names_of_older_files_are_read_by_one_table(content, tmp_path, monkeypatch):
    """A class, an attribute of any model, and an attribute and a parameter of one class."""
    head, tree, numbers = parts(content)
    text = json.dumps(tree).replace('["Units", {"origin":', '["Scales", {"zero":')
    tree = json.loads(text.replace('"tasks_":', '"groups_":').replace('"max_iter":', '"steps":'))
    (tmp_path / "m.span").write_bytes(sealed(head, tree, numbers))
    assert tree["model"] == "SharedSpanRegressor"
    names = {"Scales": "Units", "Units.zero": "origin", "groups_": "tasks_",
             "SharedSpanRegressor.steps": "max_iter"}  # fmt: skip
    for old, new in names.items():
        with pytest.raises(ss.ModelFileError):
            ss.load(tmp_path / "m.span")
        monkeypatch.setitem(RENAMED, old, new)
    assert len(ss.load(tmp_path / "m.span").tasks_) == 30


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_kind_of_model_has_a_golden_file_of_this_format_with_the_same_members(name, tmp_path):
    """If this fails, the format has changed: it needs a new number and a reader of the old one."""
    save_golden(name, tmp_path / "m.span", tmp_path)
    _, new, _ = parts((tmp_path / "m.span").read_bytes())
    _, old, _ = parts((GOLDEN / f"{name}-{MODEL_FORMAT.version}.span").read_bytes())
    assert members(new) == members(old)


def members(tree):
    """Names of parameters, attributes and records; a value may be None in one of two files."""
    names = {("parameter", name) for name in tree["parameters"]}
    names |= {("fitted", name) for name in tree["fitted"]}
    stack = [tree["fitted"]]
    while stack:
        node = stack.pop()
        inside = list(node.values()) if isinstance(node, dict) else node
        if isinstance(node, dict) and "<record>" in node:
            name, state = node["<record>"]
            names |= {(name, attribute) for attribute in state}
        stack += [part for part in inside if isinstance(part, (dict, list))]
    return names


def save_golden(name, path, folder):
    """Fit one of the golden models and save it."""
    X, y, task = golden_problem()
    kind, _, variant = name.partition("-")
    model, statistics = getattr(ss, kind)(), False
    if variant == "labels":
        kinds = ["north", 5, 2.5, (1, "a"), datetime.date(2020, 2, 29),
                 datetime.datetime(2020, 2, 29, 12)]  # fmt: skip
        task = np.repeat(np.fromiter(kinds, dtype=object), 20)
        model.set_params(random_state=np.random.RandomState(0))
    elif "random_state" in model.get_params():
        model.set_params(random_state=0)
    if kind == "NewTaskRegressor":
        base = ss.SharedSpanRegressor(rank=2, random_state=0).fit(X, y, task=task)
        model = ss.NewTaskRegressor.from_model(base, method=variant or "prior")
    if variant == "files":
        statistics, rows = True, zip(task, X[:, 0], task, y, strict=True)
        lines = ["task,x0,text,y", *(f'"{t} ",{x},"{w} ",{v}' for t, x, w, v in rows)]
        (folder / "golden.csv").write_text("\n".join(lines), encoding="utf-8")
        model.fit_file(folder / "golden.csv", task="task", target="y")
    else:
        if variant == "negative_binomial":
            model.set_params(family=variant)
            y = np.floor(np.exp(y / 2))
        model.fit(X, np.where(y > 0, "yes", "no") if is_classifier(model) else y, task=task)
    if name == "NewTaskRegressor":
        assert model.coef_std_.shape == (6, 4)  # computed, and saved with the model
    model.save(path, statistics=statistics)
    return model, task


def write_golden(names=GOLDEN_NAMES):
    """Files of this version: `python -c "import test_model_file as t; t.write_golden()"`."""
    X, _, _ = golden_problem()
    for name in names:
        path = GOLDEN / f"{name}-{MODEL_FORMAT.version}.span"
        with tempfile.TemporaryDirectory() as folder:
            model, task = save_golden(name, path, Path(folder))
        about = {"model": type(model).__name__, "n_tasks": len(model.tasks_)}
        if "files" not in name and "labels" not in name:
            about["prediction"] = prediction_of(model)(X[::7], task=task[::7]).tolist()
            has_std = hasattr(model, "coef_interval") and not is_classifier(model)
            if has_std and model.get_params().get("method") != "sgd":
                about["std"] = model.predict(X[::7], task=task[::7], return_std=True)[1].tolist()
        about["coef"] = model.coef_.tolist()
        path.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
