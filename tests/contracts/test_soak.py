"""A short soak: many chunks and fits in one process; benchmarks/trust/soak.py has the long one."""

import os

import pytest

if os.name == "nt":
    pytest.skip("counts of open files of POSIX", allow_module_level=True)

from benchmarks.trust import soak


def holds(lines):
    for line in lines:
        assert line.holds, f"{line.claim}: {line.figure}"


def test_many_chunks_take_no_more_memory_than_the_statistics():
    holds(soak.chunks(0.02, 0))


def test_fits_alone_in_threads_and_in_processes_are_the_same():
    holds(soak.mixed(0.12, 0))


def test_fits_in_forked_processes_are_the_same():
    holds(soak.forks(0.2, 0))
