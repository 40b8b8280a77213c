"""Arrays in temporary files behave like arrays in memory; sizes as users write and read them."""

import os
import threading

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from sharedspan.inputs.resources import DiskRows, as_bytes, in_words

pytestmark = pytest.mark.usefixtures("temporary")


@pytest.mark.parametrize("system", ["reads by position", "has a file pointer only"])
def test_rows_on_disk_are_read_like_an_array_by_many_threads(system, rng, monkeypatch):
    if system == "has a file pointer only":
        monkeypatch.delattr(os, "preadv", raising=False)
        monkeypatch.delattr(os, "pwrite", raising=False)
    values = rng.standard_normal((5000, 3))
    rows = DiskRows(5000, (3,), "float64")
    for lo in range(0, 5000, 700):
        rows.write(lo, values[lo : lo + 700])
        rows.update_extremes(values[lo : lo + 700])
    assert rows.shape == (5000, 3)
    assert_array_equal((rows.low, rows.high), (values.min(axis=0), values.max(axis=0)))
    assert_array_equal(rows[10:10], values[10:10])
    assert_array_equal(rows[:], values)
    picks = [np.sort(rng.permutation(5000)[:n]) for n in (0, 1, 7, 500, 5000)] * 20
    wrong = []

    def compare(picks):
        wrong.extend(len(p) for p in picks if not np.array_equal(rows[p], values[p]))
        wrong.extend(int(p[0]) for p in picks if len(p) and (rows[p[0] :] != values[p[0] :]).any())

    threads = [threading.Thread(target=compare, args=(picks[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    rows.file.close()


@pytest.mark.parametrize(
    ("given", "size"),
    [(3_000_000_000, 3e9), ("2GB", 2e9), ("500 mb", 5e8), ("1.5 GiB", 1.5 * 2**30), ("7e9", 7e9),
     ("2G", 2e9), (2.5e9, 2.5e9)],
    ids=str,
)  # fmt: skip
def test_memory_is_given_in_bytes_or_in_words(given, size):
    assert as_bytes(given) == size


@pytest.mark.parametrize("bad", ["2 apples", "", "-1GB", "0", 0, -5, "nan", "1..5GB"])
def test_other_sizes_are_refused(bad):
    with pytest.raises(ValueError, match="is not understood"):
        as_bytes(bad)
    with pytest.raises(TypeError, match="is not understood"):
        as_bytes([bad])


def test_sizes_are_said_in_few_digits():
    words = [in_words(size) for size in (2e9, 1.84e9, 123_456_789, 999.6e6, 5e12, 17)]
    assert words == ["2GB", "1.8GB", "123MB", "1GB", "5TB", "17 bytes"]
