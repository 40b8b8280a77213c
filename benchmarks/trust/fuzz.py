"""Hostile files, formulas, names and labels.

Every case must end, within a time limit and with little memory, in a right result or in an error of
ours: a ValueError or a TypeError that sharedspan itself raises, with a message of one sentence. A
file whose checksum is wrong must be refused. A file that is changed together with its checksum may
hold other numbers, but it runs no code, and the model in it either predicts or is refused with such
an error. A case that ended in such an error counts as refused.
"""

import ast
import contextlib
import csv
import io
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
import zipfile
from functools import cache
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import sharedspan as ss
from benchmarks.trust.page import Line
from sharedspan.formula.advice import FormulaError
from sharedspan.formula.design import learn_design
from sharedspan.formula.parse import parse_formula
from sharedspan.inputs.reader import read_matching
from sharedspan.persistence.checkpoint import Checkpoint

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "inputs"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from messy_tables import workbook

from stored_files import GOLDEN, VALUES, changed, golden_problem, mutated, parts, places, sealed

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sharedspan"
SECONDS = 20  # within which a case ends
SHOWN = 5  # failures in a figure


# ---- how a case ends -----------------------------------------------------------------------------


class TooLongError(BaseException):
    """A case took more than its time; no handler of errors catches it."""


class Ends(NamedTuple):
    """How the cases of a group ended."""

    cases: int
    refused: int
    failures: list[str]


@contextlib.contextmanager
def time_limit(seconds=SECONDS):
    """Raise a TooLongError in the main thread after some time."""

    def stop(*_):
        raise TooLongError(f"more than {seconds} seconds")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fault_of(error):
    """What is wrong with an error that a user sees, or None if it is one of ours."""
    kind, message = type(error), str(error)
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    if kind not in (ValueError, TypeError) and not kind.__module__.startswith("sharedspan"):
        return f"a {kind.__name__}"
    if not isinstance(error, (ValueError, TypeError)):
        return f"a {kind.__name__}"
    if not any(package in last for package in ("/sharedspan/", "/sklearn/")):
        return "raised elsewhere"
    if "\n" in message or not message.endswith((".", "?", ")")):
        return "no sentence"
    return None


def run_cases(cases, n):
    """Run n of the cases, pairs of a description and a function that asserts what is right."""
    refused, count, failures = 0, 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for about, work in islice(cases, n):
            count += 1
            try:
                with time_limit():
                    work()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                fault = fault_of(error)
                refused += fault is None
                if fault is not None:
                    place = traceback.extract_tb(error.__traceback__)[-1]
                    where = f"{Path(place.filename).name}:{place.lineno}"
                    failures.append(f"{about[:400]}: {fault}, {where}: {str(error)[:200]!r}")
    return Ends(count, refused, failures)


# ---- hostile text --------------------------------------------------------------------------------

ATOMS = (
    "'", '"', "`", "\\", ";", "--", "/*", "*/", "$$", "''", '""', "\\'", "%s", "{0}", "?", ":a",
    "\0", "\n", "\r\n", "\t", "\x01", "\x1b[2J", "\x7f", "\u202e", "\u2066", "\u200d", "\ufeff",
    "\u2028", "😀", "é", "e\u0301", "ß", "İ", "(", ")", "[", "]", "[/red]",
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "&lt;", "DROP TABLE t",
    " UNION SELECT 1 ", "NULL", "nan", "=1+1", ",", "|", "~", ".", "/", "..", "*", "a", "B", "x",
    "1", "0", " ", "__import__('os')", "$(id)",
    "'); COPY (SELECT 1) TO 'written.csv'; --", '" FROM x; DROP TABLE y; --', "y" * 300,
)  # fmt: skip


def hostile(rng, *, surrogates=False, without=""):
    """A text of some of the atoms, which is not empty."""
    chosen = [ATOMS[i] for i in rng.integers(0, len(ATOMS), rng.integers(1, 6))]
    if surrogates and rng.random() < 0.1:
        chosen.append("\ud800")
    text = "".join(chosen)
    for character in without:
        text = text.replace(character, "")
    return text or "a"


def distinct(rng, n, key=str, **options):
    """Hostile texts that differ, also for a reader that knows only their keys."""
    texts = {}
    while len(texts) < n:
        text = hostile(rng, **options)
        texts.setdefault(key(text), text)
    return list(texts.values())


# ---- model files and checkpoints -----------------------------------------------------------------

HARD_VALUES = (
    *VALUES, "a'b", '"', "'); COPY (SELECT 1) TO 'written.csv'; --", "\0", "\ud800", "y" * 5000,
    "(a+)+$", float("nan"), float("inf"), 10**6, -(10**9), "tcp://192.0.2.1:8786",
    {"<record>": ["DaskEngine", {"cluster": "tcp://192.0.2.1:8786", "shards": None,
                                 "checkpoint_every": 50, "patience": 1.0}]},
)  # fmt: skip


@cache
def golden(pattern):
    """Files of released versions: their bytes, tree, places and numbers."""
    files = []
    for path in sorted(GOLDEN.glob(pattern)):
        head, tree, numbers = parts(path.read_bytes())
        every = list(places(tree))
        files.append(
            SimpleNamespace(path=path, content=path.read_bytes(), head=head, tree=tree,
                            numbers=numbers, every=every)
        )  # fmt: skip
    return files


def damaged(file, rng):
    """Bytes that are not those of the file, by one of several accidents."""
    kind = rng.random()
    if kind < 0.7:
        return mutated(file.content, rng)
    if kind < 0.85:
        return file.content[: int(rng.integers(0, len(file.content)))]
    start = file.content[: int(rng.integers(0, 80))] if kind < 0.95 else b""
    return start + rng.bytes(int(rng.integers(0, 2000)))


def resealed(file, rng):
    """A file with another tree or other numbers, and the checksum of these."""
    tree, numbers = file.tree, bytearray(file.numbers)
    if rng.random() < 0.7 or not numbers:
        tree = changed(tree, file.every, rng, HARD_VALUES)
    else:
        for at in rng.integers(0, len(numbers), rng.integers(1, 20)):
            numbers[at] = int(rng.integers(256))
    return sealed(file.head, tree, bytes(numbers))


def damaged_files(pattern, read, rng, folder):
    """Files whose checksum is wrong: refused, unless they are the original."""
    path, files = folder / "damaged", golden(pattern)
    while True:
        file = files[rng.integers(len(files))]
        content = damaged(file, rng)

        def work(content=content, original=file.content):
            path.write_bytes(content)
            read(path)
            assert content == original, "a damaged file was read"

        yield file.path.name, work


def damaged_models(rng, folder):
    """Model files whose checksum is wrong are refused."""
    return damaged_files("*.span", ss.load, rng, folder)


def damaged_checkpoints(rng, folder):
    """Checkpoints whose checksum is wrong are refused."""
    return damaged_files("*.checkpoint", Checkpoint.read, rng, folder)


def resealed_models(rng, folder):
    """Model files changed together with their checksum: every model that can be read predicts."""
    files, table = golden("*.span"), write_golden_table(folder / "golden.csv")
    while True:
        file = files[rng.integers(len(files))]
        content = resealed(file, rng)
        yield file.path.name, lambda content=content: use_model(content, folder, table)


def use_model(content, folder, table):
    """Read a model, and predict, summarise and save with it."""
    path, again = folder / "changed.span", folder / "again.span"
    X = np.random.default_rng(1).normal(size=(6, 4))
    path.write_bytes(content)
    model = ss.load(path)
    assert has_no_address(model.get_params().get("engine"))
    labels = model.tasks_.tolist()
    task = [labels[i % len(labels)] for i in range(len(X))]
    if vars(model).get("columns_") is not None:
        _, y, _ = read_matching(table, model.columns_, needs_target=False).arrays()
        assert len(y) == 120
        model.predict(pd.DataFrame({"x0": X[:, 0], "text": "north "}), task=task)
    elif model.task_column is None and model.n_features_in_ == X.shape[1]:
        assert model.predict(X, task=task).shape == (len(X),)
    assert repr(model)
    str(model.summary())
    model.save(again)
    assert np.array_equal(ss.load(again).coef_, model.coef_, equal_nan=True)
    assert not (folder / "written.csv").exists(), "a file was written"


def has_no_address(engine):
    return engine in ("local", "dask", None) or getattr(engine, "cluster", "") is None


def write_golden_table(path):
    X, y, task = golden_problem()
    rows = zip(task, X[:, 0], task, y, strict=True)
    lines = ["task,x0,text,y", *(f'"{t} ",{x},"{w} ",{v}' for t, x, w, v in rows)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def resealed_checkpoints(rng, folder):
    """Checkpoints changed together with their checksum: the fit continues, or says why not."""
    path, (file,) = folder / "changed.checkpoint", golden("*.checkpoint")
    X, y, task = golden_problem()
    while True:
        content = resealed(file, rng)

        def work(content=content):
            path.write_bytes(content)
            model = ss.SharedSpanRegressor(solver="scaled_gd_anderson", tol=1e-12, random_state=0)
            model.fit(X, y, task=task, resume=path)
            assert np.isfinite(model.coef_).all()

        yield file.path.name, work


# ---- formulas ------------------------------------------------------------------------------------

WORDS = ("y", "x", "z", "g", "h", ".", "`a b`", "log", "exp", "sqrt", "I", "factor", "s", "offset",
         "cbind", "rr", "poly", "~", "+", "-", "*", "/", ":", "^", "**", "|", "||", "(", ")", ",",
         "0", "1", "2", "1.5", "1e999", "`", "eval", "__import__", "os.system", ";", "'", '"',
         "\0", "\n", "=", "%in%", "[", "]", "{", "}", "\u202e", "\ud800", "lambda: 0")  # fmt: skip
COLUMNS = ("x", "z", "c", "`a b`", "`'); DROP TABLE t; --`")


def arithmetic(rng, depth):
    """A random expression of columns of numbers."""
    kind = rng.integers(6) if depth else 0
    if kind <= 1:
        return str(rng.choice(["x", "z", "x", "2", "0.5"]))
    if kind == 2:
        return f"{rng.choice(['log', 'exp', 'sqrt', 'I'])}({arithmetic(rng, depth - 1)})"
    inner = arithmetic(rng, depth - 1), arithmetic(rng, depth - 1)
    return f"({inner[0]} {rng.choice(['+', '-', '*', '/', '^'])} {inner[1]})"


def term(rng, depth):
    """A random term of the grammar."""
    kind = rng.integers(9) if depth else 0
    if kind <= 1:
        return str(rng.choice([*COLUMNS, "1", "0", "factor(c)"]))
    if kind == 2:
        return f"I({arithmetic(rng, 3)})"
    if kind == 3:
        return f"s({rng.choice(['x', 'z'])})"
    if kind == 4:
        return f"({right_side(rng, depth - 1)})"
    if kind == 5:
        return f"({right_side(rng, 0)} {rng.choice(['|', '||'])} {rng.choice(['g', 'h', 'g/h'])})"
    if kind == 6:
        return f"rr({right_side(rng, 0)} | g, {rng.integers(0, 3)})"
    operator = rng.choice(["+", "-", "*", "/", ":"])
    return f"{term(rng, depth - 1)} {operator} {term(rng, depth - 1)}"


def right_side(rng, depth):
    return " + ".join(term(rng, depth) for _ in range(rng.integers(1, 4)))


def written_formulas(rng, folder):
    """Random formulas are read or refused; one that is written out and read again is the same."""
    while True:
        text = f"{rng.choice(['y', 'log(y)', 'cbind(y, n)', 'y + x'])} ~ {right_side(rng, 3)}"
        yield text, lambda text=text: read_formula(text)


def token_soup(rng, folder):
    """Words and signs in any order are read as a formula or refused."""
    while True:
        words = [WORDS[i] for i in rng.integers(0, len(WORDS), rng.integers(1, 25))]
        text = (" " if rng.random() < 0.5 else "").join(words)
        text = text if rng.random() < 0.3 else f"y ~ {text}"
        yield repr(text), lambda text=text: read_formula(text)


def read_formula(text):
    """Read a formula twice; a refusal is one printable line."""
    try:
        formula = parse_formula(text)
    except FormulaError as error:
        if not str(error).isprintable() or len(str(error)) > 300:
            raise AssertionError(f"a refusal that is no short line: {error!r}") from error
        raise
    assert parse_formula(str(formula)) == formula, f"{str(formula)!r} means something else"


def formulas_of_tables(rng, folder):
    """Random formulas applied to a table give features and responses, or are refused."""
    table = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "y": table.normal(size=60),
            "n": table.integers(1, 9, 60),
            "x": table.normal(size=60) ** 2 + 0.1,
            "z": table.normal(size=60),
            "c": np.tile(["u", "v", "w"], 20),
            "a b": table.normal(size=60),
            "'); DROP TABLE t; --": table.normal(size=60),
            "g": np.repeat(["p", "q", "r"], 20),
            "h": np.tile(np.repeat(["k", "l"], 10), 3),
        }
    )
    while True:
        text = f"y ~ {right_side(rng, 2)} + (1 | g)"

        def work(text=text):
            design = learn_design(parse_formula(text), frame, None, two_levels=True)
            assert len(design.columns.encoding.names) == len(design.columns.encoding.features)
            y, _ = design.response(frame)
            assert np.array_equal(y, frame["y"])

        yield text, work


# ---- SQL -----------------------------------------------------------------------------------------


def queries(rng, folder):
    """Queries with hostile names are one SELECT that names these columns and nothing else."""
    dialects = {"duckdb": "duckdb", "postgresql": "postgres", "bigquery": "bigquery"}
    while True:
        dialect = list(dialects)[rng.integers(3)]
        names = distinct(rng, 4, surrogates=True)
        table = [hostile(rng) for _ in range(rng.integers(1, 4))]
        folds = bool(rng.random() < 0.3)

        def work(dialect=dialect, names=names, table=table, folds=folds):
            task, target, *features = names
            options = {"task": task, "target": target, "table": table}
            sql = ss.statistics_query(features, dialect=dialect, folds=folds, **options)
            plain = {"task": "q", "target": "y", "table": ["t"] * len(table)}
            other = ss.statistics_query(["f", "h"], dialect=dialect, folds=folds, **plain)
            words, expected = sql_words(sql, dialects[dialect]), sql_words(other, dialects[dialect])
            assert len(words) == len(expected), "names change the words of the query"
            given = {"q": task, "y": target, "f": features[0], "h": features[1], "t": None}
            at = 0
            for (kind, text), (kind_of_plain, plain_text) in zip(words, expected, strict=True):
                assert kind == kind_of_plain, f"a {kind} in place of a {kind_of_plain}"
                if kind == "NAME" and plain_text in given:
                    assert text == (given[plain_text] or table[at]), f"{text!r} is not the name"
                    at += plain_text == "t"
                elif kind not in ("NAME", "TEXT"):
                    assert text == plain_text, "names change the query"

        yield f"{dialect} {names!r} {table!r}", work


QUOTES = {"duckdb": ('"', "'", ""), "postgres": ('"', "'", "E"), "bigquery": ("`", "'", "")}


def sql_words(sql, dialect):
    """The words of a query as a database reads them: quoted names, texts, and all else.

    Written from the manuals of the databases: in DuckDB and for names of PostgreSQL a quote is
    doubled, in BigQuery and in texts of PostgreSQL that begin with E a backslash stands before it.
    """
    name_quote, text_quote, prefix = QUOTES[dialect]
    words, at = [], 0
    while at < len(sql):
        quote = sql[at]
        if quote in (name_quote, text_quote):
            is_name = quote == name_quote
            escapes = dialect == "bigquery" or (not is_name and words and words[-1][1] == prefix)
            at, inside = at + 1, ""
            while True:
                assert at < len(sql), "a quote is not closed"
                if escapes and sql[at] == "\\":
                    inside += {"n": "\n", "r": "\r"}.get(sql[at + 1], sql[at + 1])
                    at += 2
                elif sql[at] == quote and sql[at + 1 : at + 2] == quote and dialect != "bigquery":
                    inside, at = inside + quote, at + 2
                elif sql[at] == quote:
                    at += 1
                    break
                else:
                    assert dialect != "bigquery" or sql[at] not in "\r\n", "a line ends in a quote"
                    inside, at = inside + sql[at], at + 1
            words.append(("NAME" if is_name else "TEXT", inside))
        else:
            match = re.compile(r"\w+|\s+|.", re.DOTALL).match(sql, at)
            at = match.end()
            if not match[0].isspace():
                words.append(("SIGN", match[0]))
    return words


def executed_queries(rng, folder):
    """Sums that DuckDB computes from columns with hostile names are those of the rows."""
    random = np.random.default_rng(0)
    X, y, task = random.normal(size=(30, 2)), random.normal(size=30), np.repeat([1, 2, 3], 10)
    expected = ss.PerTaskRegressor(alpha=0.1).fit(X, y, task=task).coef_
    while True:
        names = distinct(rng, 4, str.lower, without="\0")  # DuckDB does not tell capitals apart
        table = hostile(rng, without="\0")

        def work(names=names, table=table):
            columns = dict(zip(names, (task, y, X[:, 0], X[:, 1]), strict=True))
            with duckdb.connect() as connection:
                connection.register("rows_", pa.table(columns))
                name = '"' + table.replace('"', '""') + '"'
                connection.execute(f"CREATE TABLE {name} AS FROM rows_")
                sql = ss.statistics_query(names[2:], task=names[0], target=names[1], table=[table])
                sums = connection.sql(sql).df()
            model = ss.PerTaskRegressor(alpha=0.1).fit_statistics(sums)
            assert np.allclose(model.coef_, expected, rtol=1e-9)
            assert model.coef_names_.tolist() == names[2:]

        yield f"{names!r} {table!r}", work


# ---- tables --------------------------------------------------------------------------------------

NUMBER = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,18})?(e-?[0-9]{1,2})?")
WORD = re.compile(r"[b-mo-z]{1,8}")  # neither a mark of a missing value nor a number


def example_frame():
    random = np.random.default_rng(0)
    X = random.normal(size=(36, 2))
    frame = pd.DataFrame(X, columns=["x", "z"])
    frame.insert(0, "g", np.repeat(["bo", "du", "so"], 12))
    return frame.assign(y=X @ [1.0, -2.0] + random.normal(size=36))


def strictly_read(content):
    """The columns of CSV that is beyond doubt, by Python's own reader; None for any other."""
    try:
        rows = list(csv.reader(io.StringIO(content.decode("ascii"), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None
    plain = b'"' not in content and b"\0" not in content and b"\r" not in content
    if not plain or len(rows) < 8 or rows[0] != ["g", "x", "z", "y"]:
        return None
    if any(len(row) != 4 or not WORD.fullmatch(row[0]) for row in rows[1:]):
        return None
    if not all(NUMBER.fullmatch(value) for row in rows[1:] for value in row[1:]):
        return None
    numbers = np.array([[float(value) for value in row[1:]] for row in rows[1:]])
    return [row[0] for row in rows[1:]], numbers


def fit_table(path, **options):
    return ss.PerTaskRegressor(alpha=0.1).fit_file(path, task="g", target="y", **options)


def mutated_csv(rng, folder):
    """CSV files with changed bytes: if their content is unambiguous, the fit is that of it."""
    content, path = example_frame().to_csv(index=False).encode(), folder / "table.csv"
    while True:
        data = mutated(content, rng)
        if rng.random() < 0.3:  # a change of one character is most often read
            at = int(rng.integers(0, len(content)))
            new = str(rng.choice([*"0123456789.,;-eE \n\"'\0", "é", "nan", "inf"]))
            data = content[:at] + new.encode() + content[at + 1 :]
        elif rng.random() < 0.1:
            data = rng.bytes(int(rng.integers(0, 3000)))

        def work(data=data):
            path.write_bytes(data)
            known = strictly_read(data)
            model = fit_table(path)
            assert np.isfinite(model.coef_).all()
            if known is not None:
                numbers = known[1]
                same = ss.PerTaskRegressor(alpha=0.1)
                same.fit(numbers[:, :2], numbers[:, 2], task=known[0])
                assert model.tasks_.tolist() == same.tasks_.tolist()
                scale = np.abs(same.coef_).max() + 1e-300
                assert np.abs(model.coef_ - same.coef_).max() <= 1e-6 * scale, "another model"

        yield f"CSV {data[:60]!r}", work


def mutated_parquet(rng, folder):
    """Parquet files with changed bytes are fitted or refused."""
    path = folder / "table.parquet"
    written = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(example_frame(), preserve_index=False), written)
    content = written.getvalue()
    while True:
        data = mutated(content, rng)
        if rng.random() < 0.5:  # in the description of the file, which is at its end
            at = int(rng.integers(len(content) - 1500, len(content)))
            data = content[:at] + rng.bytes(int(rng.integers(1, 4))) + content[at + 1 :]
        elif rng.random() < 0.1:
            data = b"PAR1" + rng.bytes(int(rng.integers(0, 3000))) + b"PAR1"

        def work(data=data):
            path.write_bytes(data)
            assert np.isfinite(fit_table(path).coef_).all()

        yield "Parquet", work


def mutated_workbooks(rng, folder):
    """Workbooks with changed bytes, in the archive or in a part of it, are fitted or refused."""
    path, frame = folder / "table.xlsx", example_frame()
    rows = "".join(
        f'<row><c t="inlineStr"><is><t>{first}</t></is></c>'
        + "".join(f'<c t="str"><v>{value}</v></c>' for value in rest)
        + "</row>"
        for first, *rest in [list(frame.columns), *frame.to_numpy().tolist()]
    )
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    sheet = f'<worksheet xmlns="{main}"><sheetData>{rows}</sheetData></worksheet>'
    content = workbook(Sheet1=sheet)
    with zipfile.ZipFile(io.BytesIO(content)) as book:
        members = {name: book.read(name) for name in book.namelist()}
    while True:
        data = mutated(content, rng)
        if rng.random() < 0.6:
            changed_name, written = list(members)[rng.integers(len(members))], io.BytesIO()
            with zipfile.ZipFile(written, "w") as book:
                for name, text in members.items():
                    book.writestr(name, mutated(text, rng) if name == changed_name else text)
            data = written.getvalue()

        def work(data=data):
            path.write_bytes(data)
            assert np.isfinite(fit_table(path).coef_).all()

        yield "workbook", work


def hostile_tables(rng, folder):
    """Tables and folders with hostile names and labels: the fit is that of the same arrays."""
    frame = example_frame()
    X, y, codes = frame[["x", "z"]].to_numpy(), frame["y"].to_numpy(), np.repeat([0, 1, 2], 12)
    while True:
        names = distinct(rng, 4, lambda text: text.strip().lower(), without="\0\r\n")
        names = [f"{name.strip()}{i}" for i, name in enumerate(names)]
        labels = [f"b{text}o" for text in distinct(rng, 3, without="\0\r\n")]
        ending = str(rng.choice([".csv", ".parquet"]))
        parents = [hostile(rng, without="\0/\r\n")[:60] for _ in range(2)]
        parents = [part for part in parents if part.strip(". ")] or ["a"]

        def work(names=names, labels=labels, ending=ending, parents=parents):
            home = folder / "tables"
            path = home.joinpath(*parents) / f"table{ending}"
            path.parent.mkdir(parents=True)
            try:
                g, x, z, target = names
                table = pa.table({g: [labels[i] for i in codes], x: X[:, 0], z: X[:, 1], target: y})
                if ending == ".csv":
                    with open(path, "w", newline="", encoding="utf-8") as file:
                        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
                        writer.writerow(names)
                        writer.writerows(zip(*table.to_pydict().values(), strict=True))
                else:
                    with open(path, "wb") as file:
                        pq.write_table(table, file)
                model = ss.PerTaskRegressor(alpha=0.1)
                model.fit_file(path, task=g, target=target, features=[x, z])
                same = ss.PerTaskRegressor(alpha=0.1).fit(X, y, task=[labels[i] for i in codes])
                assert model.tasks_.tolist() == same.tasks_.tolist(), "other labels"
                assert model.coef_names_.tolist() == [x, z]
                assert np.allclose(model.coef_, same.coef_, rtol=1e-9)
                read = read_matching(path, model.columns_).arrays()
                assert np.array_equal(np.sort(read[1]), np.sort(y))
            finally:
                shutil.rmtree(home)

        yield f"{ending} {names!r} {labels!r} {parents!r}", work


def hostile_labels(rng, folder):
    """Labels of any text: each remains a task of its own in a fit, a prediction and a file."""
    random, path = np.random.default_rng(0), folder / "labels.span"
    while True:
        labels = distinct(rng, int(rng.integers(2, 6)), surrogates=True)
        T, kind = len(labels), int(rng.integers(4))
        X, y = random.normal(size=(8 * T, 2)), random.normal(size=8 * T)
        codes = random.permutation(np.repeat(np.arange(T), 8))

        def work(labels=labels, kind=kind, X=X, y=y, codes=codes):
            task = [labels[i] for i in codes]
            if kind == 1:
                task = np.array(task, dtype=object)
            elif kind == 2 and "\ud800" not in "".join(labels):
                task = pd.Series(task, dtype=object)
            elif kind == 3 and "\ud800" not in "".join(labels):
                task = pd.Categorical(task)
            model = ss.PerTaskRegressor(alpha=0.1).fit(X, y, task=task)
            same = ss.PerTaskRegressor(alpha=0.1).fit(X, y, task=codes)
            order = [labels.index(label) for label in model.tasks_.tolist()]
            assert sorted(order) == list(range(len(labels))), "labels were merged"
            assert np.allclose(model.coef_, same.coef_[order], rtol=1e-10)
            model.save(path)
            back = ss.load(path)
            assert back.tasks_.tolist() == model.tasks_.tolist()
            assert np.array_equal(back.predict(X, task=task), model.predict(X, task=task))

        yield repr(labels), work


# ---- addresses -----------------------------------------------------------------------------------

ADDRESSES = ("tcp://192.0.2.1:8786", "192.0.2.1:8786", "tls://host:1", "ws://host:80", "inproc://x",
             "dask", "local", "x", "", 7, None, ["tcp://192.0.2.1:8786"])  # fmt: skip


def addresses(rng, folder):
    """A client connects only to an address that the user gave, never to one in a model file."""
    from sharedspan.distributed.engine import as_engine, connect_engine

    path, file = folder / "address.span", golden("PooledRegressor-2.span")[0]
    for address in ADDRESSES:
        fields = {"cluster": address, "shards": None, "checkpoint_every": 50, "patience": 0.1}
        for engine in (address, {"<record>": ["DaskEngine", fields]}):
            tree = file.tree | {"parameters": file.tree["parameters"] | {"engine": engine}}

            content = sealed(file.head, tree, file.numbers)

            def work(content=content):
                path.write_bytes(content)
                model = ss.load(path)
                assert has_no_address(model.engine), f"engine={model.engine!r}"
                X, y, task = golden_problem()
                refused = mock.patch("distributed.Client", side_effect=AssertionError("connected"))
                with refused, contextlib.suppress(RuntimeError):  # there is no current client
                    model.fit(X, y, task=task)

            yield f"a file with engine={engine!r}", work
    for address in ADDRESSES[:5]:

        def connect(address=address):
            with mock.patch("distributed.Client") as client:
                connect_engine(as_engine(address))
                connect_engine(ss.DaskEngine(address))
            assert {call.args for call in client.call_args_list} == {(address,)}

        yield f"engine={address!r}", connect


# ---- the source ----------------------------------------------------------------------------------

RUNNING = {"eval", "exec", "compile", "__import__", "breakpoint"}  # functions that run text
MODULES = {
    "pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib",
    "subprocess", "multiprocessing", "yaml", "ctypes", "runpy", "code", "pty", "socket", "urllib",
    "http", "ftplib", "requests", "webbrowser",
}  # fmt: skip
METHODS = re.compile(
    r"os\.(system|popen|exec\w*|spawn\w*|posix_spawn\w*)|builtins\..*|.*\.(eval|read_pickle|to_pickle"
    r"|import_module|from_string)|(np|numpy|torch|joblib|yaml|pickle|marshal)\.(load|loads|fromfile)"
)
ARGUMENTS = {"shell", "allow_pickle"}
ALLOWED = {  # what could run code, and why it does not run what a file or a table says
    ("__init__.py", "importlib.import_module"): "modules of the public names, from a table",
    ("estimators/__init__.py", "import_module"): "a module of ESTIMATORS, a table of ours",
    ("persistence/codec.py", "import_module"): "a module of STORED_CLASSES, a table of ours",
    ("paper/__init__.py", "import_module"): "a module of the experiments, from a table",
    ("progress.py", "import_module"): "IPython.display, a constant, in a notebook",
    ("cli/interrupt.py", "exec"): "an empty text, a constant",
    ("report/page.py", "environment.from_string"): "a template of the package, escaping all values",
    ("paper/runner.py", "multiprocessing"): "processes of `sharedspan reproduce`, without input",
    ("objective/backends.py", "ctypes.util"): "looks for a library of CUDA, a constant",
    ("statistics/grams.py", "ctypes"): "asks Linux for large pages of memory",
}


def code_that_runs_text(folder=SOURCE):
    """What in the source could run code that is not its own: (file, name) and its lines."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for name in _running_names(node):
                key = (path.relative_to(folder).as_posix(), name)
                found.setdefault(key, []).append(getattr(node, "lineno", 0))
    return found


def _running_names(node):
    if isinstance(node, ast.Import):
        yield from (a.name for a in node.names if a.name.split(".")[0] in MODULES)
    elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
        yield node.module
    elif isinstance(node, ast.Name) and node.id in {*RUNNING, "import_module"}:
        yield node.id
    elif isinstance(node, ast.Attribute) and METHODS.fullmatch(ast.unparse(node)):
        yield ast.unparse(node)
    elif isinstance(node, ast.keyword) and node.arg in ARGUMENTS:
        yield node.arg


# ---- the run -------------------------------------------------------------------------------------

GROUPS = {  # cases of an extended run, and of a test
    damaged_models: (32_000, 300),
    damaged_checkpoints: (10_000, 100),
    resealed_models: (4_000, 60),
    resealed_checkpoints: (1_000, 30),
    written_formulas: (15_000, 300),
    token_soup: (32_000, 600),
    formulas_of_tables: (2_000, 40),
    queries: (6_000, 150),
    executed_queries: (300, 8),
    mutated_csv: (600, 15),
    mutated_parquet: (800, 20),
    mutated_workbooks: (400, 10),
    hostile_tables: (200, 6),
    hostile_labels: (1_500, 30),
    addresses: (29, 29),
}
MOST_MEMORY = 2_000  # MB, of the whole process
BROWSER = "tests/report/test_report_browser.py"


def run(cases, seed):
    """One line for each group of cases, and for the source, the memory and the report."""
    lines, total = [], 0
    for group, (n, _) in GROUPS.items():
        ends = run_group(group, max(round(cases * n), 1), seed)
        total += ends.cases
        figure = f"{ends.cases:,} case{'s' * (ends.cases != 1)}, {ends.refused:,} refused, "
        figure += f"{len(ends.failures)} failed"
        figure += "".join(f"; {failure}" for failure in ends.failures[:SHOWN])
        claim = " ".join(group.__doc__.split()).rstrip(".")
        lines.append(Line(claim, as_cell(figure), not ends.failures))
    full = sum(n for n, _ in GROUPS.values())
    lines.append(Line("All cases together", f"{total:,} cases, of {full:,} in the full run"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
    claim = "The process that runs all these cases needs little memory"
    lines.append(Line(claim, f"at most {peak:,} MB", peak < MOST_MEMORY))
    found = code_that_runs_text()
    others = sorted(f"{path}: {name}" for path, name in found.keys() - ALLOWED.keys())
    claim = (
        "Code that could run text, load pickles or start processes occurs only in the places that "
        "`benchmarks/trust/fuzz.py` names, each with a reason why it is safe"
    )
    figure = f"{len(found) - len(others)} named places, {len(others)} others"
    figure += "".join(f"; {other}" for other in others)
    lines.append(Line(claim, figure, not others))
    command = [sys.executable, "-m", "pytest", "-n", "0", BROWSER]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = (done.stdout.strip().splitlines() or ["no output"])[-1].partition(" in ")[0]
    claim = "Reports with hostile labels, names and titles show them as text (tested in Chromium)"
    lines.append(Line(claim, f"{last} in `{BROWSER}`", done.returncode == 0 and "passed" in last))
    return lines


def run_group(group, n, seed):
    """Run n cases of a group in an empty folder, which is also the current one."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return run_cases(group(np.random.default_rng(seed), Path(folder)), n)
        finally:
            os.chdir(before)


def as_cell(text):
    """Text in a cell of a table in Markdown."""
    return (
        text.replace("|", "\\|").replace("<", "&lt;").encode("ascii", "backslashreplace").decode()
    )
