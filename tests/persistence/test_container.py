"""Files of trees: they are read as they were written, or an error describes the damage."""

import errno
import hashlib
import math
import os
import resource
import zipfile

import numpy as np
import pytest
from test_checkpoint import Fit, full

from sharedspan.persistence.checkpoint import CHECKPOINT_FORMAT, Checkpoint, CheckpointError
from stored_files import mutated

TREE = {
    "numbers": [1, -2.5, math.inf, 2**120, None, True, "ä\ud800"],
    "C": np.arange(6.0).reshape(2, 3),
    "F": np.arange(6.0).reshape(2, 3).T,
    "cut": np.arange(24).reshape(4, 6)[::2, ::-2],
    "flags": np.array([True, False]),
    "words": np.array(["I", "II"]),
    "big": np.arange(3, dtype=">f4"),
    "none": np.zeros((0, 3)),
    "point": np.array(2.0),
    "nested": {"<b>": [{}, [], (np.float64(2.5), np.int8(3), np.bool_(True))]},
}


def test_a_tree_comes_back_as_it_was(tmp_path):
    CHECKPOINT_FORMAT.write(tmp_path / "t", TREE | {"later": lambda: [np.ones(2)]})
    back = CHECKPOINT_FORMAT.read(tmp_path / "t")
    assert back["numbers"] == TREE["numbers"]
    for name, array in TREE.items():
        if isinstance(array, np.ndarray):
            assert back[name].dtype == array.dtype.newbyteorder("=")
            assert np.array_equal(back[name], array)
            assert back[name].shape == array.shape
            assert back[name].flags.writeable
    assert back["F"].flags.f_contiguous
    assert back["nested"] == {"<b>": [{}, [], [2.5, 3, True]]}
    assert np.array_equal(back["later"][0], [1.0, 1.0])


@pytest.mark.parametrize("bad", [{1: 2}, {"a": object()}, [np.array([None])], {"a": 1j}, {1, 2}])
def test_a_tree_of_other_things_is_refused_before_anything_is_written(bad, tmp_path):
    with pytest.raises(TypeError):
        CHECKPOINT_FORMAT.write(tmp_path / "t", bad)
    assert not list(tmp_path.iterdir())


def test_damaged_files_raise_checkpoint_errors_and_nothing_else(tmp_path):
    Fit("variable_projection", max_iter=5).run(tmp_path / "c")
    content = (tmp_path / "c").read_bytes()
    rng = np.random.default_rng(0)
    damaged = [content[:i] for i in (*range(60), *rng.integers(0, len(content), 100).tolist())]
    damaged += [content + b"\0", content[1:], content * 2, content[:-1]]
    for i in (*range(60), *rng.integers(0, len(content), 300).tolist()):
        changed = bytearray(content)
        changed[i] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(changed))
    for wrong in damaged:
        (tmp_path / "d").write_bytes(wrong)
        with pytest.raises(CheckpointError) as caught:
            Checkpoint.read(tmp_path / "d")
        assert str(tmp_path / "d") in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_thousand_mutated_files_are_refused(tmp_path):
    Fit("variable_projection", max_iter=5).run(tmp_path / "c")
    content, rng, tried = (tmp_path / "c").read_bytes(), np.random.default_rng(0), 0
    while tried < 1000:
        data = mutated(content, rng)
        if data == content:
            continue
        tried += 1
        (tmp_path / "d").write_bytes(data)
        with pytest.raises(CheckpointError):
            Checkpoint.read(tmp_path / "d")


def signed(head, text, rest=b""):
    content = head + len(text).to_bytes(8, "little") + text + rest
    return content + hashlib.sha256(content).digest()


HEAD = b"sharedspan checkpoint, format 1\n"
FORGED = {
    "no JSON": signed(HEAD, b"{"),
    "no text": signed(HEAD, b"\xff\xfe"),
    "no dict": signed(HEAD, b"[1, 2]"),
    "nothing in it": signed(HEAD, b"{}"),
    "deep": signed(HEAD, b"[" * 100_000),
    "long": signed(HEAD, b"{}", b"more"),
    "short": signed(HEAD, b'{"a": {"<array>": ["<f8", [10], "C"]}}', b"1234"),
    "huge": signed(HEAD, b'{"a": {"<array>": ["<f8", [1000000000000000], "C"]}}'),
    "negative": signed(HEAD, b'{"a": {"<array>": ["<f8", [-1, -1], "C"]}}', b"12345678"),
    "objects": signed(HEAD, b'{"a": {"<array>": ["|O", [1], "C"]}}', b"12345678"),
    "a kind": signed(HEAD, b'{"a": {"<array>": ["__import__", [1], "C"]}}', b"12345678"),
    "half an array": signed(HEAD, b'{"a": {"<array>": 3}}'),
    "no run": signed(HEAD, b'{"fingerprint": {}, "caller": null}'),
}


@pytest.mark.parametrize("content", FORGED.values(), ids=FORGED)
def test_forged_files_raise_checkpoint_errors(content, tmp_path):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        Checkpoint.read(tmp_path / "f")


def test_foreign_and_newer_files_say_what_to_do(tmp_path):
    with zipfile.ZipFile(tmp_path / "zip", "w") as file:
        file.writestr("x.npy", b"123")
    np.savez(tmp_path / "z.npz", a=np.array([{}], dtype=object))
    (tmp_path / "empty").write_bytes(b"")
    for name in ("zip", "z.npz", "empty"):
        with pytest.raises(CheckpointError, match="is not a sharedspan checkpoint"):
            Checkpoint.read(tmp_path / name)
    (tmp_path / "new").write_bytes(b"sharedspan checkpoint, format 12\nwhatever")
    with pytest.raises(CheckpointError, match=r"newer sharedspan, in format 12.*update sharedspan"):
        Checkpoint.read(tmp_path / "new")
    with pytest.raises(CheckpointError, match="not a file"):
        Checkpoint.read(tmp_path)
    with pytest.raises(FileNotFoundError):
        Checkpoint.read(tmp_path / "missing")


def test_what_is_no_checkpoint_is_not_overwritten(tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    for check in (lambda p: Fit("gd").run(p), CHECKPOINT_FORMAT.require_writable):
        with pytest.raises(CheckpointError, match=r"table.csv' exists and is not a checkpoint"):
            check(tmp_path / "table.csv")
        with pytest.raises(CheckpointError, match="not a file"):
            check(tmp_path)
    assert (tmp_path / "table.csv").read_text() == "a,b\n1,2\n"
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    Fit("gd", max_iter=3).run(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert Checkpoint.read(tmp_path / "empty").run["iteration"] == 3


def test_a_file_that_cannot_be_written_stops_the_fit_before_it_starts(tmp_path):
    path, seen = tmp_path / "no" / "folder" / "c", []
    for check in (
        lambda p: Fit("gd").run(p, callback=seen.append),
        CHECKPOINT_FORMAT.require_writable,
    ):
        with pytest.raises(FileNotFoundError, match=r"Cannot write the checkpoint .*none yet") as e:
            check(path)
        assert str(path) in str(e.value)
        assert "\n" not in str(e.value)
    assert not seen
    CHECKPOINT_FORMAT.require_writable(tmp_path / "c")
    assert not list(tmp_path.iterdir())


def interrupted(*args):
    raise KeyboardInterrupt


@pytest.mark.parametrize("function", ["replace", "fsync"])
@pytest.mark.parametrize(
    ("failure", "error"),
    [(full, OSError), (interrupted, KeyboardInterrupt)],
    ids=["full", "Ctrl-C"],
)
def test_a_failed_write_leaves_the_old_file_and_no_other(
    function, failure, error, tmp_path, monkeypatch
):
    CHECKPOINT_FORMAT.write(tmp_path / "c", {"old": np.ones(3)})
    monkeypatch.setattr(os, function, failure)
    with pytest.raises(error) as caught:
        CHECKPOINT_FORMAT.write(tmp_path / "c", {"new": np.ones(3)})
    if error is OSError:
        assert caught.value.errno == errno.ENOSPC
        assert "the old checkpoint is unchanged: No space left" in str(caught.value)
    monkeypatch.undo()
    assert CHECKPOINT_FORMAT.read(tmp_path / "c").keys() == {"old"}
    assert [f.name for f in tmp_path.iterdir()] == ["c"]


def test_a_write_that_really_fails_halfway_leaves_the_old_file(tmp_path):
    CHECKPOINT_FORMAT.write(tmp_path / "c", {"old": np.ones(3)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**14, hard))
    try:
        with pytest.raises(OSError, match="old checkpoint is unchanged: File too large"):
            CHECKPOINT_FORMAT.write(tmp_path / "c", {"new": np.ones(2**16)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert CHECKPOINT_FORMAT.read(tmp_path / "c").keys() == {"old"}
    assert [f.name for f in tmp_path.iterdir()] == ["c"]


def test_new_files_have_the_usual_permissions(tmp_path):
    (tmp_path / "plain").touch()
    CHECKPOINT_FORMAT.write(tmp_path / "c", {})
    assert (tmp_path / "c").stat().st_mode == (tmp_path / "plain").stat().st_mode
