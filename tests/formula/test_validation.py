"""The page of published values is what `benchmarks/validation.py` writes."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from ours import fitted, values_of
from published import PUBLISHED, SOURCES
from reference import reference

ROOT = Path(__file__).parents[2]
COMPUTED = {"ours", "ours - R", "ours - printed"}


@pytest.fixture(scope="module")
def validation():
    file = ROOT / "benchmarks" / "validation.py"
    spec = importlib.util.spec_from_file_location("validation", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page():
    return (ROOT / "docs" / "validation.md").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def expected(validation):
    """The page as it would be if all our numbers were R's."""
    fits = {key: as_ours(validation.known_values(*key)) for key in validation.all_fits()}
    return validation.written(fits).splitlines()


def as_ours(known):
    """R's values, with the standard deviations as arrays."""
    parts = [entry | {"sd": np.array(entry["sd"])} for entry in known["variances"]]
    return known | {"variances": parts}


def text(lines):
    """The text without tables, breaks of lines and the largest difference."""
    words = " ".join(" ".join(line for line in lines if not line.startswith("|")).split())
    return re.sub(r"by \S+ at most", "by # at most", words)


def cells(line):
    return [cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")]


def tables(lines):
    """Tables as lists of rows, each {heading: cell}."""
    found, heading = [], None
    for line in lines:
        if not line.startswith("|"):
            heading = None
        elif heading is None:
            heading = cells(line)
            found.append([])
        elif not line.startswith("|---"):
            found[-1].append(dict(zip(heading, cells(line), strict=True)))
    return found


def test_the_page_of_published_values_is_what_the_command_writes(page, expected, validation):
    assert text(page) == text(expected)
    computed = COMPUTED | set(validation.LIMITS)
    for ours, theirs in zip(tables(page), tables(expected), strict=True):
        assert len(ours) == len(theirs)
        for row, other in zip(ours, theirs, strict=True):
            assert row.keys() == other.keys()
            assert all(row[key] == other[key] for key in row if key not in computed)


def test_differences_on_the_page_are_within_the_limits(page, validation):
    rows = [row for table in tables(page) for row in table]
    likelihoods = [row for row in rows if "formula" in row]
    assert len(likelihoods) == len(validation.all_fits())
    for row in likelihoods:
        apart = float(row["ours"]) - float(row["R"])
        assert abs(float(row["ours - R"])) <= validation.DEVIANCE_LIMIT
        assert apart == pytest.approx(float(row["ours - R"]), abs=2e-6)
    numbers = [row for row in rows if "std. errors" in row]
    assert len(numbers) == len(likelihoods)
    for row in numbers:
        shown = [(row[kind], limit) for kind, limit in validation.LIMITS.items()]
        assert all(cell == "-" or float(cell) <= limit for cell, limit in shown)


def test_figures_in_print_are_on_the_page_to_their_last_digit(page):
    rows = [row for table in tables(page) for row in table if "printed" in row]
    by_source = [figure for source in SOURCES for figure in PUBLISHED if figure.source == source]
    assert len(rows) == len(by_source) == len(PUBLISHED)
    for row, figure in zip(rows, by_source, strict=True):
        assert (row["model"], row["printed"]) == (figure.model, figure.printed)
        digits = 0.52 if figure.agrees(float(row["R"])) else 1.5
        assert figure.agrees(float(row["ours"]), digits)


@pytest.mark.parametrize(
    ("model", "fit"),
    [("sleepstudy", "ml"), ("Pastes", "reml"), ("cbpp", "glmmTMB"), ("cbpp", "glmer_quadrature")],
)
def test_fits_agree_with_the_page_now(validation, model, fit):
    known, ours = validation.known_values(model, fit), values_of(fitted(model, fit), model, fit)
    assert ours["deviance"] == pytest.approx(known["deviance"], abs=validation.DEVIANCE_LIMIT)
    for kind, gap in validation.gaps(ours, known).items():
        assert gap is None or gap <= validation.LIMITS[kind], kind
    for figure in PUBLISHED:
        if (figure.model, figure.fit) == (model, fit):
            assert figure.agrees(figure.of(ours), 1.5)


def test_every_source_is_used_and_every_model_is_known(validation):
    assert {figure.source for figure in PUBLISHED} == set(SOURCES)
    assert all((figure.model, figure.fit) in validation.all_fits() for figure in PUBLISHED)
    assert all(reference(figure.model) for figure in PUBLISHED)
