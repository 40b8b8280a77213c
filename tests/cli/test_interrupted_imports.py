"""Ctrl-C while the command line is being imported."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

# Sends Ctrl-C to itself when a module is about to be imported, then runs a program as __main__.
INTERRUPTED = """
import os, runpy, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

program, module, *sys.argv[1:] = sys.argv[1:]
sys.meta_path.insert(0, Interrupting())
if program == "-m":
    runpy.run_module("sharedspan.cli", run_name="__main__", alter_sys=True)
else:
    runpy.run_path(program, run_name="__main__")
"""
PLAN = [
    "plan",
    "--tasks",
    "100",
    "--features",
    "50",
    "--rank",
    "3",
    "--noise",
    "0.5",
    "--error",
    "0.02",
]
MODULES = ["sharedspan.cli.commands", "click", "sharedspan.cli.fit", "sharedspan.cli.simulate",
           "sharedspan.inference.planning", "numpy", "rich.console"]  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("program", ["-m", "sharedspan"])
def test_ctrl_c_during_imports_exits_with_130_and_one_line(program, module, tmp_path):
    if program != "-m":
        program = Path(sysconfig.get_path("scripts")) / program
        if not program.exists():
            pytest.skip("the script is not installed here")
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(program), module, *PLAN],
        cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PYTHONWARNINGS": ""},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "\nStopped.\n"), done.stderr
    assert done.stdout == ""
