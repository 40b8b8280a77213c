"""A throwaway PostgreSQL server, reached through psql over a socket in a temporary folder."""

import io
import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pandas as pd


def find_program(name):
    """The path of a program of PostgreSQL, or None."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(installed[-1]) if installed else None)


def _owner():
    """The user that runs the server, which refuses to run as root; None for this user."""
    if os.getuid():
        return None
    names = {user.pw_name for user in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


class Server:
    """A running server."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, sql, given=None):
        """What psql prints, as CSV."""
        command = [find_program("psql"), "--csv", "-qXU", "postgres", "-h", self.folder, "-f", "-"]
        command += ["-v", "ON_ERROR_STOP=1", "postgres"]
        text = sql if given is None else f"{sql};\n{given}\\.\n"
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def write(self, frame, table, types):
        """Make a table; ``types`` are SQL types of the columns."""
        names = ['"' + name.replace('"', '""') + '"' for name in frame.columns]
        columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, types, strict=True))
        self.run(f"CREATE TABLE {table} ({columns})")
        text = frame.to_csv(index=False, header=False, float_format="%.17g")
        self.run(f"COPY {table} FROM STDIN (FORMAT csv)", text)

    def read(self, sql):
        """The result of a query as a frame, with arrays as text."""
        return pd.read_csv(io.StringIO(self.run(sql)))


@contextmanager
def running_server():
    """A server with an empty database, which is deleted afterwards."""
    owner = _owner()
    as_owner = {} if owner is None else {"user": owner, "group": pwd.getpwnam(owner).pw_gid,
                                         "extra_groups": []}  # fmt: skip
    # A folder that the owner can reach, whatever TMPDIR is.
    folder = tempfile.mkdtemp(prefix="pg", dir=None if owner is None else "/tmp")
    data, control = f"{folder}/data", find_program("pg_ctl")

    def call(*command):
        options = {"capture_output": True, "text": True, "cwd": folder, **as_owner}
        subprocess.run(command, check=True, timeout=120, **options)

    try:
        if owner is not None:
            shutil.chown(folder, owner)
        call(find_program("initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8")
        settings = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"
        call(control, "-D", data, "-l", f"{folder}/log", "-w", "-o", settings, "start")
        try:
            yield Server(folder)
        finally:
            call(control, "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
