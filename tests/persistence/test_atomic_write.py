"""Atomic writing: complete, on the disk and with the old permissions, or not at all."""

import os

import pytest

from sharedspan.persistence.atomic_write import atomic_path, atomic_table


def test_a_file_has_its_old_content_until_the_new_content_is_complete(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        assert temporary.suffix == ".html"  # which may determine the format
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failed_write_changes_nothing(error, tmp_path):
    (tmp_path / "old").write_text("old")

    def fail(path):
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise error

    for name in ("old", "new"):
        with pytest.raises(error):
            fail(tmp_path / name)
    assert [file.name for file in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_permissions_pass_on_and_nobody_else_reads_a_half_written_file(mode, tmp_path):
    path = tmp_path / "private"
    path.touch()
    path.chmod(mode)
    with atomic_path(path) as temporary:
        assert temporary.stat().st_mode & 0o777 == 0o600
        temporary.write_text("secret")
    assert path.stat().st_mode & 0o777 == mode
    assert path.read_text() == "secret"


def test_a_symbolic_link_stays_one(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    with atomic_path(tmp_path / "link") as temporary:
        temporary.write_text("text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "file").read_text() == "text"


def test_a_missing_folder_is_named(tmp_path):
    path = tmp_path / "nowhere" / "file"
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere"), atomic_path(path):
        pass


@pytest.mark.parametrize("name", ["table.csv", "table.parquet"])
def test_a_table_without_rows_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match="no rows to write"), atomic_table(tmp_path / name):
        pass
    with atomic_table(tmp_path / name) as write:
        write([[1, 2], ["a", "b"]], ["x", "y"])
    assert [file.name for file in tmp_path.iterdir()] == [name]
