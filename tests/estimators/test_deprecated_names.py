"""Old names of parameters: they work for one release, and say what to write instead."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import sharedspan as ss


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            ss.ARMULRegressor(structure="clustered", penalty=1.0, random_state=0),
            ss.ARMULRegressor(variant="clustered", penalty=1.0, random_state=0),
        ),
        (
            ss.CurriculumRegressor(rank=2, mode="weighted", random_state=0),
            ss.CurriculumRegressor(rank=2, variant="weighted", random_state=0),
        ),
        (
            ss.SharedSpanRegressor(
                rank=2, solver="tpgd", tol=0, max_iter=40, random_state=0,
                solver_options={"tail_average": True},
            ),
            ss.SharedSpanRegressor(
                rank=2, solver="tpgd", tol=0, max_iter=40, random_state=0, tail_average=True
            ),
        ),
    ],
    ids=["structure", "mode", "tail_average"],
)  # fmt: skip
def test_an_old_name_fits_the_same_model_and_warns(small, old, new):
    with pytest.warns(FutureWarning, match="deprecated: use"):
        old.fit(small.X, small.y, task=small.task)
    new.fit(small.X, small.y, task=small.task)
    assert_array_equal(old.coef_, new.coef_)


def test_the_old_callback_option_still_stops_a_fit(small):
    calls = []
    model = ss.SharedSpanRegressor(
        rank=2, solver="tpgd", random_state=0,
        solver_options={"callback": lambda at: calls.append(1) or at["iteration"] == 5},
    )  # fmt: skip
    with pytest.warns(FutureWarning, match=r"SharedSpanRegressor\(callback="):
        model.fit(small.X, small.y, task=small.task)
    assert len(calls) == 5


def test_the_old_name_of_progress_is_called_and_warned_of(small, tmp_path):
    path = tmp_path / "table.csv"
    rows = np.column_stack([small.task, small.X, small.y])
    names = ["task", *(f"x{j}" for j in range(small.X.shape[1])), "y"]
    np.savetxt(path, rows, delimiter=",", header=",".join(names), comments="")
    stages = set()
    with pytest.warns(FutureWarning, match="use progress="):
        ss.PooledRegressor().fit_file(
            path, task="task", target="y", tick=lambda stage, done, total: stages.add(stage)
        )
    assert "reading" in stages


def test_the_default_solver_is_auto_and_reaches_the_minimum_of_the_paper_algorithm(small):
    fits = [
        ss.SharedSpanRegressor(rank=2, tol=1e-10, random_state=0, **options)
        for options in ({}, {"solver": "auto"}, {"solver": "tpgd"})
    ]
    default, auto, tpgd = (fit.fit(small.X, small.y, task=small.task).coef_ for fit in fits)
    assert_array_equal(default, auto)
    assert np.abs(default - tpgd).max() < 1e-6


def test_warnings_point_to_the_line_of_the_user(small):
    models = {
        "did not converge": ss.SharedSpanRegressor(
            rank=2, solver="tpgd", max_iter=3, random_state=0
        ),
        "did not converge in": ss.ARMULRegressor(rank=2, penalty=1.0, max_iter=2, random_state=0),
        "use variant": ss.ARMULRegressor(structure="vanilla", penalty=1.0, random_state=0),
        "use the parameter": ss.SharedSpanRegressor(
            rank=2, solver="tpgd", random_state=0, solver_options={"tail_average": False}
        ),
    }
    for words, model in models.items():
        with pytest.warns(Warning, match=words) as caught:
            model.fit(small.X, small.y, task=small.task)
        assert {warning.filename for warning in caught} == {__file__}
