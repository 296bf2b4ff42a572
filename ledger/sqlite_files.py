"""SQLite files as the ledger needs them: pragmas set and read back, faults named, one lock."""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from struct import pack
from typing import BinaryIO
from weakref import WeakKeyDictionary

from memoranda.ledger.errors import FORKED, Refusal, Refused, RefusedError, StorageFault
from memoranda.ledger.locks import read_only

APPLICATION_ID = 0x4D656D6F
"""`Memo`: what makes a SQLite file ours."""

BUSY_TIMEOUT_MS = 5000

CHECKPOINT_BYTES = 4 * 1024 * 1024
"""How large a write-ahead log may grow before it is moved into its file."""

UPGRADES: dict[tuple[str, int], str] = {}
"""The script that brings a file, by its name and schema number, to the next number."""

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100

_PRAGMAS: dict[str, str | int] = {
    "secure_delete": 1,
    "temp_store": 2,
    "foreign_keys": 1,
    "trusted_schema": 0,
    "cell_size_check": 1,
    "busy_timeout": BUSY_TIMEOUT_MS,
    # Checkpoints happen under the lock, by hand: overlapping ones can lose pages before 3.51.3.
    "wal_autocheckpoint": 0,
}


_UNFORKED = threading.RLock()
"""No fork comes between what SQLite does under the locks of all its files, to open and close one.

A child would never see them given back, and would hang at its first opening, in the space's lock.
"""


class _Owned(sqlite3.Connection):
    """A connection of this process: none of its locks outlives a fork, and SQLite forgets that."""

    is_at_rest = False
    """Whether it reads a file at rest: it has no lock then, and takes none away."""

    def close(self) -> None:
        with _UNFORKED:
            _OWNED.pop(self, None)
            super().close()
            for identity in _RAW.keys() - _open_here():
                for descriptor in _RAW.pop(identity):
                    os.close(descriptor)


_OWNED: "WeakKeyDictionary[_Owned, Path]" = WeakKeyDictionary()
_RAW: dict[tuple[int, int], list[int]] = {}
"""Descriptors of files that SQLite has open here, through which their bytes were read."""

_INHERITED: set[tuple[int, int]] = set()
_KEPT: list[_Owned] = []


def _inherit() -> None:
    """Notes, in a fork, what its parent has open: there is no safe way to use or close it here.

    SQLite would take it for open here, lock nothing anew, and write on to a log that the parent's
    close has emptied.
    """
    for connection, path in _OWNED.items():
        with suppress(OSError):
            _INHERITED.add(identity_of(path))
        _KEPT.append(connection)
    _OWNED.clear()


os.register_at_fork(after_in_child=_inherit)
os.register_at_fork(
    before=_UNFORKED.acquire, after_in_parent=_UNFORKED.release, after_in_child=_UNFORKED.release
)


@contextmanager
def raw(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file that SQLite may have open here; raises OSError.

    To close any descriptor of a file ends all locks that a process has on it: SQLite's too, so that
    another process takes the log from under us. What is open here is closed after SQLite.
    """
    with _UNFORKED:
        kept = _RAW.get(identity_of(path))
        descriptor = kept.pop() if kept else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            file.seek(0)
            yield file
    finally:
        with _UNFORKED:
            status = os.fstat(descriptor)
            if (identity := (status.st_dev, status.st_ino)) in _open_here():
                _RAW.setdefault(identity, []).append(descriptor)
            else:
                os.close(descriptor)


def _open_here() -> set[tuple[int, int]]:
    """The files of all connections of this process that lock, with those beside them."""
    paths = [path for connection, path in _OWNED.items() if not connection.is_at_rest]
    files = (path.with_name(path.name + it) for path in paths for it in ("", "-wal", "-shm"))
    found = set()
    for file in files:
        with suppress(OSError):
            found.add(identity_of(file))
    return found


def identity_of(path: Path) -> tuple[int, int]:
    """What a file still is when another has taken its name."""
    status = path.stat()
    return status.st_dev, status.st_ino


def watch(path: Path) -> Callable[[], bool]:
    """Tells, from now on, whether the file is gone, or another has taken its name."""
    identity = identity_of(path)

    def has_moved() -> bool:
        try:
            return identity_of(path) != identity
        except FileNotFoundError:
            return True
        except OSError as error:
            raise StorageFault("a file of the ledger cannot be looked at") from error

    return has_moved


@contextmanager
def _connected(path: Path, how: str = "", *, is_at_rest: bool = False) -> Iterator[_Owned]:
    """A new connection, for a block that makes it ready; when that fails it is closed."""
    name = f"{path.absolute().as_uri()}?{how}" if how else str(path)
    with _opening(path), ExitStack() as failing:
        if path.exists() and identity_of(path) in _INHERITED:
            raise RefusedError(FORKED)
        with _UNFORKED:
            connection = sqlite3.connect(
                name, uri=bool(how), isolation_level=None, check_same_thread=False, factory=_Owned
            )
            failing.callback(connection.close)
            connection.is_at_rest = is_at_rest
            _OWNED[connection] = path
            connection.execute("PRAGMA schema_version")  # only now the files beside it are opened
        yield connection
        failing.pop_all()


def connect(
    path: Path, *, schema: str, schema_number: int, is_disposable: bool = False
) -> sqlite3.Connection:
    """The one writing connection of a file; creates the file and its tables when it is new.

    An older schema is upgraded, once the file was copied beside itself as it was.

    A disposable file is flushed at checkpoints only: a power cut may take its last writes.
    Raises RefusedError when the file is another program's, a newer version's or not writable.
    """
    with _connected(path) as connection:
        if connection.execute("PRAGMA schema_version").fetchone()[0] == 0:
            _create(connection, path, schema, schema_number)
        _check_identity(connection, path, schema_number)
        _upgrade(connection, path, schema_number)
        connection.execute("PRAGMA journal_mode=WAL")  # which a copy at rest has left
        _set_pragmas(connection, synchronous=1 if is_disposable else 2)
    return connection


def connect_reader(path: Path, *, schema_number: int) -> sqlite3.Connection:
    """A connection that cannot write, with the same pragmas."""
    with _connected(path, "mode=ro") as connection:
        _check_identity(connection, path, schema_number)
        _set_pragmas(connection)
    return connection


def connect_copy(path: Path, *, schema_number: int) -> sqlite3.Connection:
    """Reads a file at rest, with nothing put beside it; refusals as in `connect`.

    What is open here is not at rest: to close it again would end the locks on it.
    """
    with _UNFORKED:
        if path.exists() and identity_of(path) in _open_here():
            raise RefusedError(Refused(Refusal.BUSY))
    with _connected(path, "mode=ro&immutable=1", is_at_rest=True) as connection:
        connection.execute("PRAGMA trusted_schema=OFF")
        _check_identity(connection, path, schema_number)
    return connection


def refuse_foreign(path: Path) -> None:
    """Raises RefusedError for a file of another program, before anything is put beside it."""
    _refuse_irregular(path)
    try:
        with raw(path) as file:
            header = file.read(_HEADER_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RefusedError(read_only(path)) from error
    is_database = header.startswith(_MAGIC) and len(header) == _HEADER_BYTES
    # Our tables and our application id reach the file together, with its first checkpoint.
    has_tables, is_ours = any(header[40:44]), header[68:72] == pack(">I", APPLICATION_ID)
    if header and not (is_database and (is_ours or not has_tables)):
        raise RefusedError(_not_ours(path))


def usable(path: Path, schema: str, schema_number: int) -> Path:
    """The file, once it can be opened: one that is damaged is taken away."""
    try:
        connect(path, schema=schema, schema_number=schema_number).close()
    except (StorageFault, RefusedError) as error:
        if isinstance(error, RefusedError) and error.refused.refusal is not Refusal.SPACE_UNKNOWN:
            raise
        take_away(path)
    return path


def take_away(path: Path) -> None:
    """Removes a database, and what SQLite has put beside it."""
    for name in ("-wal", "-shm", ""):
        path.with_name(path.name + name).unlink(missing_ok=True)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """One transaction that holds the write lock from its first statement."""
    refuse_inner(connection)
    try:
        # A deferred BEGIN that reads first would fail as soon as another process has written.
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    finally:
        if is_begun(connection):
            connection.execute("ROLLBACK")


def refuse_inner(connection: sqlite3.Connection) -> None:
    """Raises RefusedError (busy) inside a transaction of the same thread, as by a signal handler:
    whoever has begun goes on, and nobody else ends it."""
    if is_begun(connection):
        raise RefusedError(Refused(Refusal.BUSY))


def is_begun(connection: sqlite3.Connection) -> bool:
    """Whether a transaction is open; none is once the connection was closed under it."""
    try:
        return connection.in_transaction
    except sqlite3.ProgrammingError:
        return False


def truncate_wal(connection: sqlite3.Connection, wait_ms: int = BUSY_TIMEOUT_MS) -> bool:
    """Moves the write-ahead log into the file and empties it; False when it stays as it is.

    A reader may hold it, or the disk may fail: nothing is lost by that, and it is tried again.
    """
    try:
        connection.execute(f"PRAGMA busy_timeout={wait_ms}")
        try:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    except sqlite3.Error:
        return False
    return not busy


@contextmanager
def _opening(path: Path) -> Iterator[None]:
    try:
        _refuse_irregular(path)
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        # SQLite quotes a damaged schema in its message, which then is no text.
        raise _named(error, path) from error
    except OSError as error:
        raise RefusedError(read_only(path)) from error


def _refuse_irregular(path: Path) -> None:
    # Opening a pipe would wait for its other end.
    if path.exists() and not path.is_file():
        raise RefusedError(_not_ours(path))


def _named(error: Exception, path: Path) -> Exception:
    match getattr(error, "sqlite_errorname", "").split("_")[1:2]:
        case ["NOTADB"]:
            return RefusedError(_not_ours(path))
        case ["CANTOPEN" | "READONLY" | "PERM"]:
            return RefusedError(read_only(path))
        case _:
            return StorageFault(f"{path.name} could not be opened")


def _create(connection: sqlite3.Connection, path: Path, schema: str, schema_number: int) -> None:
    # Before the first write: SQLite gives the files beside it the mode it finds here.
    path.chmod(0o600)
    # WAL and secure_delete hold from the first page on: turned on late, they leave residue.
    connection.execute("PRAGMA secure_delete=ON")
    if connection.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
        # SQLite only answers the mode it kept; tables made in that one could never be opened.
        raise StorageFault("this SQLite or disk does not take journal_mode=WAL")
    connection.executescript(
        f"BEGIN IMMEDIATE; PRAGMA application_id={APPLICATION_ID};"
        f" PRAGMA user_version={schema_number}; {schema} COMMIT;"
    )


def _upgrade(connection: sqlite3.Connection, path: Path, schema_number: int) -> None:
    """Step by step in one transaction; the copy from before stays until the person removes it."""
    old = connection.execute("PRAGMA user_version").fetchone()[0]
    if old == schema_number:
        return
    steps = [UPGRADES.get((path.name, number)) for number in range(old, schema_number)]
    if None in steps:
        raise StorageFault(f"{path.name} has an older schema that this version cannot upgrade")
    connection.execute("PRAGMA secure_delete=ON")
    copy = path.with_name(f"{path.name}.schema-{old}")
    # One that is there already was cut short by a crash: the file itself is still as it was.
    copy.unlink(missing_ok=True)
    os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    connection.execute("VACUUM INTO ?", (str(copy),))
    with copy.open("rb") as file:
        os.fsync(file.fileno())
    connection.executescript(
        f"BEGIN IMMEDIATE; {' '.join(map(str, steps))} PRAGMA user_version={schema_number}; COMMIT;"
    )


def _check_identity(connection: sqlite3.Connection, path: Path, schema_number: int) -> None:
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise RefusedError(_not_ours(path))
    if connection.execute("PRAGMA user_version").fetchone()[0] > schema_number:
        raise RefusedError(Refused(Refusal.SCHEMA_NEWER, field=path.name))


def _set_pragmas(connection: sqlite3.Connection, synchronous: int = 2) -> None:
    for pragma, value in {**_PRAGMAS, "synchronous": synchronous}.items():
        connection.execute(f"PRAGMA {pragma}={value}")
        if connection.execute(f"PRAGMA {pragma}").fetchone()[0] != value:
            raise StorageFault(f"this SQLite does not take {pragma}={value}")
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        raise StorageFault("this SQLite or file system does not take journal_mode=WAL")


def _not_ours(path: Path) -> Refused:
    return Refused(
        Refusal.SPACE_UNKNOWN, field="data", message=f"{path.name} is not a Memoranda file"
    )
