"""Sizes of memory: what users may write, and how messages print them."""

import pytest

from sharedspan.inputs.resources import as_bytes, in_words


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
