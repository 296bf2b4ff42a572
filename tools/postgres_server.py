"""A PostgreSQL server of one's own, from Debian's packages: for tests and for trying it out.

`python -m memoranda.tools.postgres_server FOLDER` runs one until it is interrupted.
"""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

VERSION = 15
USER = "memoranda"
DATABASE = "memoranda"
START_WAIT_S = 30.0
_UNPRIVILEGED = "postgres"
"""PostgreSQL refuses to run as root; Debian's package makes this user."""


class PostgresServer:
    """A server with its data in a folder of its own, reached through a socket there, and only so.

    Raises FileNotFoundError where PostgreSQL is not installed.
    """

    def __init__(self, folder: Path, port: int = 5432) -> None:
        self.folder = folder
        self.data = folder / "cluster"
        self.port = port
        self._programs = _programs()
        self._schemas = count(1)
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextmanager
    def passing(cls, within: Path | None = None) -> Iterator["PostgresServer"]:
        """A running server, gone afterwards with all its data; every user may get at its folder."""
        with TemporaryDirectory(prefix="memoranda-postgres-", dir=within) as name:
            Path(name).chmod(0o711)
            server = cls(Path(name) / "server")
            server.start()
            try:
                yield server
            finally:
                server.stop(signal.SIGQUIT)

    @property
    def url(self) -> str:
        """Where clients find it, as the setting `engine` takes it."""
        return f"postgresql:///{DATABASE}?host={self.folder}&port={self.port}&user={USER}"

    @property
    def owner_url(self) -> str:
        """The same for the server's owner, whom no policy binds."""
        return as_owner(self.url)

    def start(self) -> None:
        """Starts it, on the data of before if there is some; returns once it answers."""
        is_new = not self.data.exists()
        if is_new:
            self.folder.mkdir(parents=True, exist_ok=True)
            if os.geteuid() == 0:
                shutil.chown(self.folder, _UNPRIVILEGED)
            self._run("initdb", "--auth=trust", "--encoding=UTF8", "--locale=C", "-D", self.data)
        options = {
            "unix_socket_directories": self.folder,
            "listen_addresses": "",
            "port": self.port,
            "max_connections": 200,
            "log_min_messages": "panic",
        }
        command = [str(self._programs / "postgres"), "-D", str(self.data)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        self._start_until_it_answers(command)
        if is_new:
            self._run("createuser", *self._address(), USER)
            self._run("createdb", *self._address(), "--owner", USER, DATABASE)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Ends it by its own process id: SIGINT in order, SIGQUIT at once, SIGKILL as a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    @contextmanager
    def schema(self) -> Iterator[str]:
        """Tables apart from all others, gone afterwards; the URL that leads to them."""
        name = f"apart_{next(self._schemas)}"
        with psycopg.connect(self.url, autocommit=True) as raw:
            raw.execute(f"CREATE SCHEMA {name}")
            try:
                yield f"{self.url}&options=-csearch_path%3D{name}"
            finally:
                raw.execute(f"DROP SCHEMA {name} CASCADE")

    def _start_until_it_answers(self, command: list[str]) -> None:
        """Tries again where it ends: what outlived a killed server holds its data for a moment."""
        deadline = time.monotonic() + START_WAIT_S
        while not self._answers():
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    command,
                    **_as_owner(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            if time.monotonic() > deadline:
                self.stop(signal.SIGQUIT)
                raise TimeoutError("the server did not start")
            time.sleep(0.02)

    def _answers(self) -> bool:
        command = [str(self._programs / "pg_isready"), "-q", *self._address()]
        return subprocess.run(command, check=False).returncode == 0

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The server itself, for who wants to end it his own way."""
        assert self._process is not None, "it was started"
        return self._process

    def _address(self) -> tuple[str, ...]:
        return "-h", str(self.folder), "-p", str(self.port)

    def _run(self, program: str, *words: object) -> None:
        command = [str(self._programs / program), *map(str, words)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **_as_owner())


def _programs() -> Path:
    """Where Debian puts them, or the first `postgres` on the path."""
    debian = Path(f"/usr/lib/postgresql/{VERSION}/bin")
    if debian.is_dir():
        return debian
    found = shutil.which("postgres")
    if found is None:
        raise FileNotFoundError(
            f"PostgreSQL is not installed: apt-get install postgresql-{VERSION}"
        )
    return Path(found).resolve().parent


def as_owner(url: str) -> str:
    """The same tables for the server's owner, whom no policy binds."""
    return url.replace(f"user={USER}", f"user={_owner()}")


def _owner() -> str:
    return _UNPRIVILEGED if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name


def _as_owner() -> dict[str, Any]:
    """Who runs it: never root, and from a folder that this user may enter."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam(_UNPRIVILEGED)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": "/"}


def main(folder: str) -> None:
    """Runs a server until it is interrupted."""
    server = PostgresServer(Path(folder).resolve())
    server.start()
    sys.stdout.write(f"{server.url}\n")
    sys.stdout.flush()
    try:
        server.process.wait()
    except KeyboardInterrupt:
        server.stop()


if __name__ == "__main__":
    main(sys.argv[1])
