"""The tables of a log behind its ledger's back, on either engine: read, changed, kept, lost."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from memoranda.ledger.postgres_log import PostgresSpace
from memoranda.tools.postgres_server import as_owner

SPACE = "us_alice"
TABLES = ("heads", "events", "tags", "bodies")
Execute = Callable[..., Any]


class Folders(dict[str, Path | str]):
    """Where a ledger is, as arguments of `open_memory`: its values are the folders alone."""

    def values(self) -> Any:
        return [it for it in super().values() if isinstance(it, Path)]

    @property
    def engine(self) -> dict[str, str]:
        """Where its log is kept, when that is no file in them."""
        return {name: it for name, it in self.items() if isinstance(it, str)}


class Tables:
    """What somebody can do who holds the file of a log, or owns the server that keeps it."""

    def __init__(
        self,
        folder: Mapping[str, Path | str],
        fresh: Callable[[], str] | None = None,
        space: str = SPACE,
    ) -> None:
        self._file = Path(folder["data"]) / space / "ledger.db"
        self._folder = Folders(folder)
        self._fresh = fresh

    @property
    def leftover(self) -> tuple[str, ...]:
        """What the receipt of every forget names on this engine, behind all else."""
        return (PostgresSpace.leftover,) if self._folder.engine else ()

    @property
    def fault(self) -> type[Exception]:
        """What the driver of this engine raises when its storage fails."""
        return psycopg.OperationalError if self._folder.engine else sqlite3.OperationalError

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What a query finds; values stand as `?`."""
        with self._opened() as execute:
            return list(execute(query, values).fetchall())

    def change(self, statement: str, *values: object) -> None:
        """Changes some rows, whatever the tables say against it."""
        with self._opened() as execute:
            if not self._folder.engine:
                for (name,) in execute(
                    "SELECT name FROM sqlite_master WHERE type = 'trigger'"
                ).fetchall():
                    execute(f"DROP TRIGGER {name}")
            assert execute(statement, values).rowcount > 0

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table."""
        return {table: sorted(self.rows(f"SELECT * FROM {table}")) for table in TABLES}

    def files(self) -> dict[str, bytes]:
        """The tables of a server as the bytes of a SQLite file; a file is among the folder's."""
        if not self._folder.engine:
            return {}
        with self._opened() as execute, closing(sqlite3.connect(":memory:")) as copy:
            copy.execute("PRAGMA page_size=65536")  # so that no value is cut into pieces
            for table in TABLES:
                found = execute(f"SELECT * FROM {table}")
                names = ", ".join(it[0] for it in found.description)
                copy.execute(f"CREATE TABLE {table} ({names})")
                marks = ", ".join("?" * len(found.description))
                copy.executemany(f"INSERT INTO {table} VALUES ({marks})", found.fetchall())
            copy.commit()
            return {"the server's tables": copy.serialize()}

    def kept(self) -> Callable[[], None]:
        """The log of a closed ledger as it is now: what puts it back."""
        if self._folder.engine:
            rows = self.everything()
            return lambda: self._put(self._folder.engine["engine"], rows)
        content = self._file.read_bytes()

        def put_back() -> None:
            self.lose()
            self._file.write_bytes(content)

        return put_back

    def lose(self) -> None:
        """Removes the log."""
        if self._folder.engine:
            self._put(self._folder.engine["engine"], {})
        for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
            self._file.with_name(name).unlink(missing_ok=True)

    def copied(self, to: Path) -> Folders:
        """A second ledger that is a copy of this one, in a folder and, on a server, in tables."""
        other = Folders()
        for name, path in self._folder.items():
            if isinstance(path, Path):
                other[name] = shutil.copytree(path, to / name)
        if self._folder.engine:
            assert self._fresh, "copies on a server need tables of their own"
            other["engine"] = url = self._fresh()
            PostgresSpace(url, SPACE).exists()  # makes the tables
            self._put(url, self.everything())
        return other

    @contextmanager
    def _opened(self) -> Iterator[Execute]:
        if self._folder.engine:
            with _owning(self._folder.engine["engine"]) as execute:
                yield execute
            return
        with closing(sqlite3.connect(self._file, isolation_level=None)) as raw:
            yield raw.execute

    @staticmethod
    def _put(url: str, rows: Mapping[str, Sequence[tuple[Any, ...]]]) -> None:
        with _owning(url) as execute:
            for table in TABLES:
                execute(f"DELETE FROM {table}")
                for row in rows.get(table, ()):
                    execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


@contextmanager
def _owning(url: str) -> Iterator[Execute]:
    """A connection of the server's owner, whom no policy binds, in one transaction."""
    with psycopg.connect(as_owner(url)) as raw:

        def execute(sql: str, values: Sequence[object] = ()) -> Any:
            return raw.execute(sql.replace("%", "%%").replace("?", "%s"), values)

        yield execute
