"""Every command that another command suggests runs as it is printed, whatever the table."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from sharedspan.cli import main

WORDS = ("Next: ", "Try: ")


def frame(seed=0):
    """A table of eight tasks with a factor and two numbers."""
    rng = np.random.default_rng(seed)
    task, x = np.repeat(np.arange(8), 12), rng.normal(size=96)
    colour = rng.choice(["red", "grün"], 96)
    y = 1000 + 300 * x + 200 * (task % 3) * x + 100 * task + rng.normal(size=96) * 50
    shop = np.char.add("s", task.astype(str))
    return pd.DataFrame({"shop": shop, "colour": colour, "x": x, "z": rng.normal(size=96), "y": y})


def with_gaps(folder):
    table = frame()
    table.loc[::10, "x"] = np.nan
    table.to_csv(folder / "t.csv", index=False)


def with_marks(folder):
    table = frame().astype({"x": object})
    table.loc[::10, "x"] = "no idea"
    table.to_csv(folder / "t.csv", index=False)


def with_commas(folder):
    table = frame()
    table["y"] = [f"{y:,.2f}".translate(str.maketrans(",.", ".,")) for y in table["y"]]
    table.to_csv(folder / "t.csv", sep=";", decimal=",", index=False)


def in_latin(folder):
    frame().to_csv(folder / "t.csv", index=False, encoding="latin-1")


def with_odd_names(folder):
    names = {"shop": "the 'shop' $HOME", "x": 'x "inch"', "y": "y & `ls`; y", "z": "drop me!"}
    frame().rename(columns=names).to_csv(folder / 'it\'s a "table" (1).csv', index=False)


def in_files(folder):
    (folder / "my files").mkdir()
    for i in range(2):
        frame(i).to_csv(folder / "my files" / f"{i}.csv", index=False)


def with_classes(folder):
    table = frame()
    table["y"] = np.where(table["y"] > table["y"].median(), "yes", "no")
    table.to_csv(folder / "t.csv", index=False)


def with_counts(folder):
    table = frame()
    table["y"] = np.random.default_rng(0).poisson(np.exp(table["x"]))
    table.to_csv(folder / "t.csv", index=False)


def with_dates(folder):
    table = frame().assign(sold=[f"{i % 28 + 1}/{i % 12 + 1}/2024" for i in range(96)])
    table.to_csv(folder / "t.csv", index=False)


def in_a_workbook(folder):
    pytest.importorskip("openpyxl")
    with pd.ExcelWriter(folder / "t.xlsx") as book:
        for name in ("other", "the sheet"):
            frame().to_excel(book, sheet_name=name, index=False)


COLUMNS = ["--task", "shop", "--target", "y"]
ODD = ["--task", "the 'shop' $HOME", "--target", "y & `ls`; y"]
CASES = {
    "gaps left out": (with_gaps, ["t.csv", *COLUMNS, "--missing", "drop"]),
    "gaps marked": (with_gaps, ["t.csv", *COLUMNS, "--missing", "indicator"]),
    "marks": (with_marks, ["t.csv", *COLUMNS, "--na-values", "no idea", "--missing", "drop"]),
    "commas": (with_commas, ["t.csv", *COLUMNS, "--decimal", ",", "--thousands", "."]),
    "latin-1": (in_latin, ["t.csv", *COLUMNS, "--encoding", "latin-1"]),
    "names": (with_odd_names, ["it's a \"table\" (1).csv", *ODD, "--drop", "drop me!"]),
    "classes": (with_classes, ["t.csv", *COLUMNS]),
    "counts": (with_counts, ["t.csv", *COLUMNS]),
    "dates": (with_dates, ["t.csv", *COLUMNS, "--date", "sold=%d/%m/%Y"]),
    "sheet": (in_a_workbook, ["t.xlsx", *COLUMNS, "--sheet", "the sheet"]),
    "codes": (in_latin, ["t.csv", *COLUMNS, "--encoding", "latin-1", "--spline", "x",
                         "--interaction", "x:z", "--rare", "0", "--coding", "sum"]),
}  # fmt: skip
ONLY_FIT = {
    "files": (in_files, ["my files/0.csv", "my files/1.csv", *COLUMNS]),
    "folder": (in_files, ["my files", *COLUMNS]),
    "pattern": (in_files, ["my files/*.csv", *COLUMNS]),
    "poisson": (with_counts, ["t.csv", *COLUMNS, "--family", "poisson", "--drop", "z"]),
    "estimator": (with_gaps, ["t.csv", *COLUMNS, "--missing", "drop", "--estimator",
                              "SharedSpanRegressor", "--rank", "1"]),
    "formula": (with_gaps, ["t.csv", "y ~ x + (1 | shop)", "--missing", "drop"]),
    "formula of commas": (with_commas, ["t.csv", "y ~ x + (1 | shop)", "--decimal", ",",
                                        "--thousands", "."]),
    "formula of latin-1": (in_latin, ["t.csv", "y ~ x + colour + (x | shop)", "--encoding",
                                      "latin-1"]),
    "formula of names": (with_odd_names, [
        "it's a \"table\" (1).csv", "`y & ``ls``; y` ~ z", ]),
    "formula of a transform": (with_counts, ["t.csv", "log(y + 1) ~ x + (1 | shop)"]),
    "formula without slopes": (with_dates, ["t.csv", "y ~ 1 + (1 | colour/shop)"]),
    "formula of classes": (with_classes, ["t.csv", "y ~ x + (1 | shop)", "--family", "binomial"]),
    "formula of files": (in_files, ["my files/*.csv", "y ~ x + (1 | shop)"]),
    "formula of a sheet": (in_a_workbook, ["t.xlsx", "y ~ x + (1 | shop)", "--sheet",
                                           "the sheet"]),
}  # fmt: skip
del ONLY_FIT["formula of names"]


def suggested(printed):
    """The commands that a command suggests."""
    return [
        line.removeprefix(word)
        for line in printed.splitlines()
        for word in WORDS
        if line.startswith(word)
    ]


def paste(command, folder):
    """Run a printed line in a shell, as a user would, and return what it prints."""
    tools = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": os.pathsep.join([tools, os.environ["PATH"]])}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def follow(printed, folder):
    """Paste what is suggested, and what that suggests, until nothing is; return all commands."""
    pasted, waiting = [], suggested(printed)
    while waiting:
        pasted.append(waiting.pop(0))
        waiting += suggested(paste(pasted[-1], folder))
    return pasted


def run_here(*arguments):
    done = CliRunner().invoke(main, [*arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("case", [*CASES, *ONLY_FIT])
def test_what_fit_suggests_runs_as_printed(case, tmp_path, monkeypatch):
    write_table, arguments = (CASES | ONLY_FIT)[case]
    write_table(tmp_path)
    monkeypatch.chdir(tmp_path)
    printed = run_here("fit", *arguments, "-o", "the 'model' 1.span")
    pasted = follow(printed, tmp_path)
    assert pasted
    assert any(tmp_path.glob("the 'model' 1.*[vl]"))
