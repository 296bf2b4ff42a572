"""The log on SQLite: order, durability, refusals that leave no trace, files that are not ours."""

import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from eventsourcing.dcb.api import DCBEvent, DCBQuery, DCBQueryItem
from eventsourcing.dcb.tests import DCBRecorderTestCase

from memoranda.ledger import sqlite_log
from memoranda.ledger.errors import (
    IntegrityFault,
    MemorandaError,
    OutcomeUnknown,
    Refusal,
    Refused,
    RefusedError,
    StorageFault,
)
from memoranda.ledger.locks import SpaceLock
from memoranda.ledger.receipts import Receipt
from memoranda.ledger.recorder import Asked, Snapshot
from memoranda.ledger.sqlite_files import APPLICATION_ID
from memoranda.ledger.sqlite_log import SQLiteRecorder
from memoranda.ledger.stamps import microseconds
from memoranda.tools.memory import Memory, open_memory

SPACE = "us_alice"
NOBODY = 65_534
ENGINE_FILES = ("-wal", "-shm")


@pytest.fixture
def recorder(tmp_path: Path, world) -> Iterator[SQLiteRecorder]:
    lock = SpaceLock(tmp_path / "lock", wait_s=1.0)
    recorder = SQLiteRecorder(tmp_path / "ledger.db", SPACE, lock, world.stamps)
    yield recorder
    recorder.close()


def files_in(*folders: Path) -> dict[str, bytes]:
    """Every file below some folders, and the folders themselves."""
    paths = (path for folder in folders for path in (folder, *folder.rglob("*")))
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in paths}


def in_child(work: Callable[[], object], *, as_nobody: bool = False) -> object:
    """What `work` returns (as JSON) in a forked process, or its exception's text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if as_nobody and os.geteuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            answer = work()
        except BaseException as error:  # noqa: BLE001  # the parent asserts on it
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(child, 0)
    return answer


# -- the recorder ---------------------------------------------------------------------------------


def test_the_recorder_appends_and_reads_as_the_library_demands(recorder):
    DCBRecorderTestCase()._test_append_read(recorder)


def test_the_recorder_can_be_followed_as_the_library_demands(recorder):
    DCBRecorderTestCase()._test_append_subscribe(recorder)


@pytest.mark.sqlite("its pragmas")
def test_every_connection_has_its_pragmas_in_force(memory):
    common = {
        "journal_mode": "wal",
        "secure_delete": 1,
        "temp_store": 2,
        "foreign_keys": 1,
        "trusted_schema": 0,
        "cell_size_check": 1,
        "busy_timeout": 5000,
        "wal_autocheckpoint": 0,
        "application_id": APPLICATION_ID,
    }
    log, views = memory._parts.log, memory._parts.views
    full, normal = 2, 1

    for connection, synchronous in (
        (log._recorder._writer, full),
        (log._recorder._reader, full),
        (log._keyring._connection, full),
        (views._connection, normal),
    ):
        expected = {**common, "synchronous": synchronous}
        found = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in expected}

        assert found == expected


@pytest.mark.sqlite("its connections")
def test_the_reading_connection_cannot_write(memory):
    reader = memory._parts.log._recorder._reader

    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("DELETE FROM bodies")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET header = x'00'",
        "UPDATE OR REPLACE events SET position = 1",
        "DELETE FROM events WHERE position = 2",
        "UPDATE tags SET tag = 'op:other'",
        "DELETE FROM tags",
        "UPDATE bodies SET sealed = x'00'",
    ],
)
@pytest.mark.sqlite("triggers; what a server's policies allow is in tests/test_postgres.py")
def test_triggers_keep_the_log_append_only(memory, statement):
    writer = memory._parts.log._recorder._writer

    with pytest.raises(sqlite3.IntegrityError, match=r"append-only|only ever removed"):
        writer.execute(statement)


def test_positions_have_no_gaps_even_after_decisions_that_failed(recorder):
    event = DCBEvent("thing.happened/1", b"{}", ["t:1"])
    for _ in range(3):
        recorder.append([event, event])
        with suppress(ZeroDivisionError), recorder.deciding() as transaction:
            transaction.append([event])
            raise ZeroDivisionError

    positions = [sequenced.position for sequenced in recorder.read()]

    assert positions == [1, 2, 3, 4, 5, 6]


def test_recorded_time_moves_forward_when_the_clock_jumps_back(recorder, world):
    times = []
    for hours in (0, -1, -1, 3):
        world.move(hours=hours)
        with recorder.deciding() as transaction:
            rows = transaction.append([DCBEvent("thing.happened/1", b"{}", [])] * 2)
            assert transaction.now == rows[0].recorded_at
        times += [row.recorded_at for row in rows]

    start = microseconds(world.moment) - 3_600_000_000
    assert times[:6] == [start + n for n in range(6)]
    assert times[6:] == [microseconds(world.moment), microseconds(world.moment) + 1]


def test_any_number_of_tags_is_asked_for_at_once(recorder):
    tags = [f"t:{n}" for n in range(600)]
    recorder.append([DCBEvent("thing.happened/1", b"{}", [tag]) for tag in tags])

    with recorder.reading() as snapshot:
        found = snapshot.under(
            [Asked(tag, ("thing.happened/1", "thing.changed/1")) for tag in tags]
        )

    assert [[row.position for row in rows] for rows in found] == [[n + 1] for n in range(600)]


def test_a_selector_costs_the_same_however_long_the_log_is(recorder):
    noise = [DCBEvent("thing.happened/1", b"{}", ["t:hot", f"t:{n}"]) for n in range(1000)]
    recorder.append([DCBEvent("thing.happened/1", b"{}", ["t:hot", "t:rare"])])
    connection = recorder._reader

    def steps_of(query: Callable[[Snapshot], object]) -> tuple[int, list[str]]:
        steps, statements = 0, []

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        with recorder.reading() as snapshot:
            connection.set_trace_callback(statements.append)
            connection.set_progress_handler(count, 1)
            query(snapshot)
            connection.set_progress_handler(None, 1)
            connection.set_trace_callback(None)
        return steps, statements

    queries = {
        "newest under a hot tag": lambda log: log.under([Asked("t:hot", ("thing.happened/1",))]),
        "all under a rare tag": lambda log: log.read(
            DCBQuery([DCBQueryItem(["thing.happened/1"], ["t:rare"])])
        ),
        "one position": lambda log: log.read(None, 0, 1),
    }
    before = {name: steps_of(query)[0] for name, query in queries.items()}
    recorder.append(noise)
    after = {name: steps_of(query) for name, query in queries.items()}

    for name, (steps, statements) in after.items():
        assert steps <= before[name] * 1.2, name
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statements[0]}").fetchall()
        details = [detail for *_, detail in plan]
        scans = [detail for detail in details if detail.startswith("SCAN") and detail != "SCAN p"]
        assert not scans, (name, details)
        assert any("USING PRIMARY KEY" in detail for detail in details)
    newest = connection.execute(f"EXPLAIN QUERY PLAN {after['newest under a hot tag'][1][0]}")
    assert any(
        "SEARCH tags USING PRIMARY KEY (space=? AND tag=? AND type=?)" in detail
        for *_, detail in newest
    )


@pytest.mark.sqlite("its write-ahead log")
def test_the_writer_moves_its_log_into_the_file_when_it_has_grown(memory, folder, monkeypatch):
    monkeypatch.setattr(sqlite_log, "CHECKPOINT_BYTES", 1)
    wal = folder["data"] / SPACE / "ledger.db-wal"

    memory.remember("I live in Kyoto")

    assert wal.stat().st_size == 0


@pytest.mark.sqlite("its write-ahead log")
def test_a_reader_holds_back_the_truncation_and_never_the_commit(memory, folder, monkeypatch):
    monkeypatch.setattr(sqlite_log, "CHECKPOINT_BYTES", 1)
    wal = folder["data"] / SPACE / "ledger.db-wal"

    with closing(sqlite3.connect(folder["data"] / SPACE / "ledger.db")) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM events").fetchone()
        answer = memory.remember("I live in Kyoto")
        kept = wal.stat().st_size

    assert isinstance(answer, Receipt)
    assert kept > 0
    memory.remember("I work in Osaka")
    assert wal.stat().st_size == 0


# -- one durable write ----------------------------------------------------------------------------

MARK = 4_000_000
WRITER = f"""
import os, sys
from memoranda import open_memory

def mark():
    try:
        os.fsync({MARK})
    except OSError:
        pass

memory = open_memory("us_alice", data=sys.argv[1], state=sys.argv[1] + "-state", home=sys.argv[1])
memory.remember("the first fact mints a batch of keys")
mark()
for n in range(20):
    assert memory.remember(f"fact {{n}}").outcome == "committed"
mark()
"""


def flushes_of(script: str, folder: Path, shim: Path | None) -> list[str]:
    """Every flush of a Python program, in order: through a preloaded shim, or under strace."""
    log = folder / "flushes"
    command = [sys.executable, "-c", script, str(folder / "data")]
    environment = {"FLUSH_LOG": str(log)}
    if shim:
        environment["LD_PRELOAD"] = str(shim)
    elif tracer := shutil.which("strace"):
        command = [tracer, "-f", "-qq", "-o", str(log), "-e", "trace=fsync,fdatasync", *command]
    else:
        pytest.fail("counting flushes needs a C compiler or strace on this machine")
    subprocess.run(command, env=environment, check=True)
    return log.read_text().splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="flushes are counted by Linux means")
def test_a_commit_between_checkpoints_is_one_flush(tmp_path, shim):
    flushes = flushes_of(WRITER, tmp_path, shim)

    first, second = (at for at, line in enumerate(flushes) if f"fsync({MARK})" in line)

    assert first > 0, "the flushes before the mark show that they are seen"
    assert second - first - 1 == 20


# -- refusals and faults --------------------------------------------------------------------------


def wal_bytes(folder: dict[str, Path]) -> int:
    """How much the log of SQLite has written; a server writes in passing too."""
    path = folder["data"] / SPACE / "ledger.db-wal"
    return path.stat().st_size if path.exists() else 0


def test_a_refused_command_leaves_every_row_as_it_was(memory, folder, tables):
    receipt = memory.publish("home", "I live in Kyoto")
    before, written = tables.everything(), wal_bytes(folder)

    answers = [
        memory.correct(receipt.record_id, 7, "I live in Nara"),
        memory.publish("home", "I live in Nara"),
        memory.reactivate(receipt.record_id, 1),
        memory.retire("mem_" + "0" * 64, 1, "gone"),
        memory.publish("", "no key"),
    ]

    assert all(isinstance(answer, Refused) for answer in answers)
    assert tables.everything() == before
    assert wal_bytes(folder) == written


def limited(folder: dict[str, Path], home: Path) -> list[str]:
    """Writes until the file may not grow; then what each further call answers."""
    memory = open_memory(SPACE, **folder, home=home)
    memory.publish("home", "I live in Kyoto", operation_id="op-before")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    room = (folder["data"] / SPACE / "ledger.db-wal").stat().st_size + 4096
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    said = []
    for call in (
        lambda: memory.publish("work", "I work in Osaka", operation_id="op-during"),
        lambda: memory.publish("pet", "I have a cat", operation_id="op-after"),
        lambda: memory.operation("op-before"),
        memory.close,
    ):
        try:
            said.append(type(call()).__name__)
        except MemorandaError as error:
            said.append(type(error).__name__)
    return said


@pytest.mark.sqlite("a file that may not grow; servers die in tests/test_postgres.py")
def test_scenario_41_a_fault_at_the_durable_write_is_an_unknown_outcome_until_reopened(
    folder, tmp_path
):
    said = in_child(lambda: limited(folder, tmp_path))

    assert said == [
        OutcomeUnknown.__name__,
        StorageFault.__name__,
        StorageFault.__name__,
        "NoneType",
    ]
    with open_memory(SPACE, **folder, home=tmp_path) as memory:
        known = memory.operation("op-during")
        again = memory.publish("work", "I work in Osaka", operation_id="op-during")
        assert again.replayed is not isinstance(known, Refused)
        assert memory.operation("op-before").receipt.outcome == "committed"
        assert isinstance(memory.operation("op-after"), Refused)
        assert memory.audit.verify().findings == ()


@pytest.mark.sqlite("a file that may not grow")
def test_a_full_file_is_a_fault_that_wrote_nothing(memory, tables):
    writer = memory._parts.log._recorder._writer
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    before = tables.everything()
    writer.execute(f"PRAGMA max_page_count={pages}")

    fault = None
    for n in range(50):
        before = tables.everything()
        try:
            memory.remember(f"{n} " + os.urandom(2000).hex())
        except StorageFault as error:
            fault = error
            break

    assert "nothing was written" in str(fault)
    assert tables.everything() == before
    writer.execute("PRAGMA max_page_count=1000000")
    assert isinstance(memory.remember("there is room again"), Receipt)


# -- folders and files that cannot be opened ------------------------------------------------------


@pytest.fixture
def closed(folder: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """The folders of a ledger that nobody has open."""
    with open_memory(SPACE, **folder, home=tmp_path) as memory:
        memory.publish("home", "I live in Kyoto")
    return folder


def opening(folder: dict[str, Path], home: Path, **more: object) -> Refused | str:
    """Why a ledger does not open: the refusal, or the fault's text."""
    try:
        memory: Memory = open_memory(SPACE, **folder, home=home, **more)
    except RefusedError as error:
        return error.refused
    except MemorandaError as error:
        return str(error)
    memory.close()
    return "opened"


def test_an_unknown_space_is_refused_and_nothing_is_made(folder, tmp_path):
    refused = opening(folder, tmp_path, create=False)

    assert refused.refusal is Refusal.SPACE_UNKNOWN
    assert not any(path.exists() for path in folder.values())


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that another user may reach, whoever runs the tests."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def below(folder: Path) -> list[Path]:
    return [folder, *folder.rglob("*")]


def given_to_nobody(slots: Path) -> None:
    """The slot file opens for its owner alone."""
    if os.geteuid() == 0:
        os.chown(slots, NOBODY, NOBODY)
    slots.chmod(slots.stat().st_mode & 0o700)


READ_ONLY = {
    "everything": bool,
    "all but the state": lambda path: "state" not in path.parts,
    "all but the lock": lambda path: path.name != "lock",
    "the folder of the data": lambda path: path.name == SPACE and "data" in path.parts,
}


@pytest.mark.parametrize("kind", READ_ONLY)
def test_what_may_not_be_written_is_refused_by_name(public, kind):
    place = {"data": public / "data", "state": public / "state"}
    with open_memory(SPACE, **place, home=public) as memory:
        memory.publish("home", "I live in Kyoto")
    for path in below(public / "data") + below(public / "state"):
        writable = 0 if READ_ONLY[kind](path) else 0o222
        path.chmod((0o555 if path.is_dir() else 0o444) | writable)
    given_to_nobody(public / "state" / SPACE / "slots")
    before = files_in(*place.values())

    answer = in_child(lambda: name_of(opening(place, public)), as_nobody=True)

    assert answer == Refusal.READ_ONLY.name
    assert files_in(*place.values()) == before
    for path in below(public):
        path.chmod(0o755)


@pytest.mark.parametrize(
    ("name", "said"), [("ledger.db", "READ_ONLY"), ("keys.db", "the key file could not be written")]
)
def test_a_file_that_may_not_be_written_is_read_and_a_write_is_refused(public, name, said):
    place = {"data": public / "data", "state": public / "state"}
    with open_memory(SPACE, **place, home=public) as memory:
        memory.publish("home", "I live in Kyoto")
    for path in below(public / "data") + below(public / "state"):
        path.chmod(0o444 if path.name == name else 0o777)
    given_to_nobody(public / "state" / SPACE / "slots")

    def written() -> list[str]:
        memory = open_memory(SPACE, **place, home=public)
        read = [record.record.content for record in memory.records()]
        try:
            return [*read, name_of(memory.publish("work", "I work in Osaka"))]
        except StorageFault as fault:
            return [*read, str(fault)]

    answer = in_child(written, as_nobody=True)

    assert answer == ["I live in Kyoto", said]


@pytest.mark.usefixtures("closed")  # imports what the child may no longer read
def test_a_new_space_where_nothing_may_be_made_is_refused_by_name(public):
    place = {"data": public / "closed" / "data", "state": public / "closed" / "state"}
    (public / "closed").mkdir(mode=0o555)

    answer = in_child(lambda: name_of(opening(place, public)), as_nobody=True)

    assert answer == Refusal.READ_ONLY.name
    assert list((public / "closed").iterdir()) == []


def name_of(answer: Refused | str) -> str:
    return answer.refusal.name if isinstance(answer, Refused) else answer


def other_database(path: Path, *, application_id: int = 0, mode: str = "delete") -> None:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute(f"PRAGMA journal_mode={mode}")
        raw.execute(f"PRAGMA application_id={application_id}")
        raw.execute("CREATE TABLE theirs (note TEXT)")
        raw.execute("INSERT INTO theirs VALUES ('mine, not yours')")


def newer(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("PRAGMA user_version=99")


FILES = [pytest.param("ledger.db", marks=pytest.mark.sqlite("the log's own file")), "keys.db"]
FOREIGN: dict[str, Callable[[Path], object]] = {
    "a text file": lambda path: path.write_text("shopping: milk, bread\n" * 40),
    "a short text file": lambda path: path.write_text("milk"),
    "another database": other_database,
    "another database in WAL mode": lambda path: other_database(path, mode="wal"),
    "another application's": lambda path: other_database(path, application_id=0x12345678),
    "random bytes": lambda path: path.write_bytes(os.urandom(9000)),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_that_is_not_ours_is_refused_untouched(closed, tmp_path, kind, name):
    FOREIGN[kind](closed["data"] / SPACE / name)
    before = files_in(*closed.values())

    refused = opening(closed, tmp_path)

    assert refused.refusal is Refusal.SPACE_UNKNOWN
    assert name in refused.message
    assert files_in(*closed.values()) == before


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.sqlite("the log's own file")
def test_a_folder_that_is_not_ours_stays_as_it_was(folder, tmp_path, kind):
    (folder["data"] / SPACE).mkdir(parents=True)
    FOREIGN[kind](folder["data"] / SPACE / "ledger.db")
    before = files_in(folder["data"])

    refused = opening(folder, tmp_path)

    assert refused.refusal is Refusal.SPACE_UNKNOWN
    assert files_in(folder["data"]) == before
    assert not folder["state"].exists()


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_newer_version_is_refused_untouched(closed, tmp_path, name):
    newer(closed["data"] / SPACE / name)
    before = files_in(*closed.values())

    refused = opening(closed, tmp_path)

    assert (refused.refusal, refused.field) == (Refusal.SCHEMA_NEWER, name)
    assert files_in(*closed.values()) == before


def test_a_missing_key_file_is_refused_and_not_made_anew(closed, tmp_path):
    (closed["data"] / SPACE / "keys.db").unlink()
    before = files_in(*closed.values())

    refused = opening(closed, tmp_path)

    assert (refused.refusal, refused.field) == (Refusal.SPACE_UNKNOWN, "data")
    assert files_in(*closed.values()) == before


def foreign_slots(path: Path, *, key_epoch: int) -> None:
    place = path.parent.parent / f"foreign-{key_epoch}"
    other = {"data": place / "data", "state": place / "state"}
    with open_memory(SPACE, **other, home=place) as memory:
        for _ in range(key_epoch - 1):
            memory.rotate_keys()
    shutil.copy(other["state"] / SPACE / "slots", path)
    shutil.rmtree(place)


SLOTS: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "short": lambda path: path.write_bytes(path.read_bytes()[:5000]),
    "noise": lambda path: path.write_bytes(os.urandom(8192)),
    "one bit": lambda path: path.write_bytes(
        path.read_bytes()[:4096] + bytes([path.read_bytes()[4096] ^ 1]) + path.read_bytes()[4097:]
    ),
    "another ledger's": lambda path: foreign_slots(path, key_epoch=1),
    "another ledger's, of a later key epoch": lambda path: foreign_slots(path, key_epoch=2),
}


@pytest.mark.parametrize("kind", SLOTS)
def test_slots_that_do_not_fit_are_refused_and_nothing_is_written(closed, tmp_path, kind):
    SLOTS[kind](closed["state"] / SPACE / "slots")
    before = files_in(*closed.values())

    answer = opening(closed, tmp_path)

    if isinstance(answer, Refused):
        assert (answer.refusal, answer.field) == (Refusal.SPACE_UNKNOWN, "state")
    else:
        assert "key" in answer
    assert files_in(*closed.values()) == before


def test_keys_of_another_space_are_a_fault_and_nothing_is_written(closed, tmp_path):
    other = {name: tmp_path / f"other-{name}" for name in ("data", "state")}
    open_memory("us_bob", **other, home=tmp_path).close()
    shutil.copy(other["data"] / "us_bob" / "keys.db", closed["data"] / SPACE / "keys.db")
    shutil.copy(other["state"] / "us_bob" / "slots", closed["state"] / SPACE / "slots")
    before = files_in(*closed.values())

    with pytest.raises(IntegrityFault, match="does not unwrap"):
        open_memory(SPACE, **closed, home=tmp_path)

    assert files_in(*closed.values()) == before


def half_made(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        for statement in statements:
            raw.execute(statement)


CUT_SHORT: dict[str, Callable[[Path], object]] = {
    "an empty file": lambda place: (place / "ledger.db").touch(),
    "a file without tables": lambda place: half_made(
        place / "ledger.db", "PRAGMA journal_mode=WAL"
    ),
    "an empty key file": lambda place: (place / "keys.db").touch(),
}


@pytest.mark.parametrize("kind", CUT_SHORT)
def test_a_space_whose_making_was_cut_short_is_made_by_the_next_opening(folder, tmp_path, kind):
    (folder["data"] / SPACE).mkdir(parents=True)
    CUT_SHORT[kind](folder["data"] / SPACE)

    with open_memory(SPACE, **folder, home=tmp_path) as memory:
        receipt = memory.publish("home", "I live in Kyoto")

        assert receipt.to_revision == 1
        assert memory.recovery_code is not None
        assert memory.audit.verify().findings == ()
