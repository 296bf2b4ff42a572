"""Audit: a clean log has no findings, and whatever was changed behind its back is one."""

import json
import random  # noqa: TID251  # seeded dice, no entropy
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.sites import FailingCommit
from tests.tables import Folders, Tables

from memoranda.ledger.authority import ModelSession
from memoranda.ledger.backups import BackupReport
from memoranda.ledger.errors import (
    IntegrityFault,
    MemorandaError,
    OutcomeUnknown,
    RefusedError,
    StorageFault,
)
from memoranda.ledger.shapes import SHAPES
from memoranda.ledger.stamps import Stamps
from memoranda.ledger.takeover import MigrationReport
from memoranda.projections.audit import AuditReport
from memoranda.projections.falling import Fall
from memoranda.tools.memory import Memory, open_memory
from memoranda.tools.restore import RestoreReport, restore
from memoranda.tools.settings import load_settings

SPACE = "us_alice"
SESSION = "s-main-1"
SECRETS = (
    "Please answer me in Chinese",
    "I moved to Kyoto",
    "I am allergic to peanuts",
    "I like green tea",
    "I like black tea",
    "a reason that quotes it",
    "preference/language",
    "op-named-by-caller",
    SESSION,
    "task-seven",
)


@dataclass
class Books:
    """A closed ledger that holds every kind of event, to copy; and the tables of its log."""

    place: Folders
    removed_key: tuple[str, int, bytes] = ("", 0, b"")

    @property
    def tables(self) -> Tables:
        return Tables(self.place)

    @property
    def keys(self) -> Path:
        return self.place["data"] / SPACE / "keys.db"

    @property
    def views(self) -> Path:
        return self.keys.with_name("views.db")

    @property
    def slots(self) -> Path:
        return self.place["state"] / SPACE / "slots"

    def open(self, **more: object) -> Memory:
        home = self.place["data"].parent
        return open_memory(SPACE, **self.place, home=home, create=False, **more)

    def audit(self) -> AuditReport:
        with self.open() as memory:
            return memory.audit.verify()

    def ask(self, query: str, *values: object) -> list[tuple]:
        return self.tables.rows(query, *values)

    def one(self, event_type: str) -> int:
        """The position of the first event of a type that has tags and, where it may, a body."""
        return self.ask("SELECT min(position) FROM events WHERE type = ?", event_type)[0][0]

    def naming(self, word: bytes) -> list[int]:
        """The events whose header has a word in it."""
        rows = self.ask("SELECT position, header FROM events ORDER BY position")
        return [position for position, header in rows if word in header]

    def key_at(self, position: int) -> tuple[str, int, bytes]:
        """The row of the key that a body lies under."""
        ((key_id,),) = self.ask("SELECT key_id FROM bodies WHERE position = ?", position)
        with closing(sqlite3.connect(self.keys)) as raw:
            query = "SELECT key_id, key_epoch, wrapped FROM keys WHERE key_id = ?"
            return raw.execute(query, (key_id,)).fetchone()

    def change(self, path: Path, statement: str, *values: object) -> None:
        """Changes a file behind the ledger's back."""
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            assert raw.execute(statement, values).rowcount == 1
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def contents(self) -> object:
        """All that an audit has to leave as it is."""
        return self.tables.everything(), self.keys.read_bytes(), self.slots.read_bytes()


def live(memory: Memory) -> None:
    """A life with every kind of event and every status in it."""
    primary = memory.acting_as(ModelSession(SESSION, "agent-main"))
    memory.host.bind_primary(SESSION)
    said = [
        {"session": SESSION, "seq": seq, "role": "user", "text": text}
        for seq, text in enumerate((*SECRETS[:5], "hide this"), start=1)
    ]
    assert all(
        hasattr(answer, "ref") for answer in memory.capture([*said, said[5] | {"hidden": True}])
    )
    ref = f"personal-message:{SESSION}:"
    memory.host.open_task(item_id="task-seven", captured_ref=ref + "1")
    memory.host.authorize(
        authorization_id="ea-1",
        item_id="task-seven",
        requirement_revision=1,
        executor_session_id="s-bg",
    )
    language = primary.propose(
        "preference/language", SECRETS[0], sources=[ref + "1"], operation_id="op-named-by-caller"
    )
    assert primary.accept(language.record_id, 1).status == "accepted"
    home = primary.publish("home", SECRETS[1], sources=[ref + "2"])
    assert memory.choose_tier(home.record_id, 1, "core").to_revision == 2
    assert memory.retire(home.record_id, 2, SECRETS[5]).status == "retired"
    assert memory.reactivate(home.record_id, 3).status == "accepted"
    allergy = primary.propose("allergy", SECRETS[2], sources=[ref + "3"])
    assert primary.reject(allergy.record_id, 1, SECRETS[5]).status == "rejected"
    tea = primary.propose("tea", SECRETS[3], sources=[ref + "4"])
    conflict = primary.open_conflict(tea.record_id, home.record_id, SECRETS[5])
    assert (
        memory.resolve_conflict(conflict.conflict_id, "keep_both", SECRETS[5]).state == "resolved"
    )
    settle(memory, primary, home.record_id)
    step = primary.recall("language", step="step-1")
    assert primary.note_delivery(step).candidate_ids == (tea.record_id,)
    assert memory.rotate_keys() == 2


def settle(memory: Memory, primary: Memory, home: str) -> None:
    """One operation that was prepared and committed, one that was aborted."""
    intent = {"name": "correct", "operation_id": "op-prepared", "record_id": home}
    source = f"personal-message:{SESSION}:5"
    intent |= {"expected_revision": 4, "content": SECRETS[1] + "!", "sources": [source]}
    assert primary.prepare(intent).to_revision == 5
    prepared = primary.operation("op-prepared").intent
    assert primary.commit(prepared).to_revision == 5
    lost = {"name": "publish", "operation_id": "op-lost", "key": "lost", "content": SECRETS[4]}
    assert memory.prepare(lost).to_revision == 1
    settled = memory.reconcile("op-lost", writers_stopped=True, reason=SECRETS[5])
    assert settled.outcome == "aborted"


def migrate(memory: Memory, path: Path) -> None:
    """Takes over an earlier store that only blocks a source."""
    ownership = [
        {"package": "memory", "storage": "personal.records", "moves_to": "personal"},
        {"package": "personal", "storage": "personal.records", "moves_from": "memory"},
    ]
    head = {"kind": "store", "format": "personal-records/1", "user_space_id": SPACE}
    lines = [{**head, "ownership": ownership}, {"kind": "forgotten_source", "ref": "notes.md"}]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    report = memory.migrate(path)
    assert isinstance(report, MigrationReport)
    assert report.blocked == 1


def hold(memory: Memory, place: Folders) -> None:
    """What a model forgets is held, once seen beyond its window, and let go of."""
    held = memory.remember(SECRETS[4] + "?")
    primary = memory.acting_as(ModelSession(SESSION, "agent-main"))
    assert primary.forget(held.record_id, 1).erased_at is None
    late = Stamps(now=lambda: Stamps().now() + timedelta(hours=2))
    open_memory(SPACE, **place, home=place["data"].parent, stamps=late).close()
    assert memory.release_held() == ()


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Books:
    """The one ledger of this room, closed; tests work on copies."""
    folder = tmp_path_factory.mktemp("books")
    place = Folders({"data": folder / "data", "state": folder / "state"})
    if request.param == "postgres":
        place["engine"] = request.getfixturevalue("fresh")()
    books = Books(place)
    memory = open_memory(SPACE, **place, home=folder, forget_window_hours=1)
    live(memory)
    migrate(memory, tmp_path_factory.mktemp("earlier") / "old.jsonl")
    gone = memory.publish("secret plan", SECRETS[4])
    assert memory.correct(gone.record_id, 1, SECRETS[4] + "!").to_revision == 2
    books.removed_key = books.key_at(gone.position)
    assert memory.forget(gone.record_id, 2).status == "forgotten"
    assert memory.finish_forgets() == ()
    hold(memory, place)
    hidden = Fall(records=(), messages=(f"personal-message:{SESSION}:6",))
    assert memory.forget_many(hidden, with_sources=True).messages == 1
    assert memory.remember("one more after the forget").to_revision == 1
    assert len(memory.records(include_inactive=True)) > 4
    assert isinstance(memory.search("kyoto"), tuple)
    away = tmp_path_factory.mktemp("away")
    assert isinstance(memory.backup(away), BackupReport)
    memory.close()
    restored = restore(load_settings(space=SPACE, **place, home=folder), Stamps(), away)
    assert isinstance(restored, RestoreReport)
    shutil.rmtree(away)
    return books


@pytest.fixture
def copied(request: pytest.FixtureRequest, kept: Books, tmp_path: Path) -> Callable[[], Books]:
    """Makes a copy of the ledger; on a server it lies where the one before it did."""

    def emptied() -> str:
        url, empty = request.getfixturevalue("shared")
        empty()
        return url

    def copy() -> Books:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        place = Tables(kept.place, emptied).copied(tmp_path / "copy")
        return Books(place, kept.removed_key)

    return copy


@pytest.fixture
def books(copied: Callable[[], Books]) -> Books:
    return copied()


def test_a_log_of_every_kind_of_event_has_no_findings(books):
    types = {event_type for (event_type,) in books.ask("SELECT DISTINCT type FROM events")}
    statuses = {
        status
        for status in ("candidate", "accepted", "retired", "rejected", "forgotten")
        if books.naming(f'"{status}"'.encode())
    }

    report = books.audit()

    # The end of a space leaves nothing to audit but its chain.
    assert types == set(SHAPES) - {"space.forgotten/1"}
    assert len(statuses) == 5
    assert report.findings == ()
    assert not report.is_truncated
    ((events,),) = books.ask("SELECT count(*) FROM events")
    ((bodies,),) = books.ask("SELECT count(*) FROM bodies")
    assert (report.events, report.opened, report.erased) == (events, bodies, 6)
    assert (report.position, report.key_epoch, report.records) == (events, 7, 7)


def test_an_audit_changes_no_row_of_the_log(books):
    before = books.contents()

    books.audit()

    assert books.contents() == before


# -- the log changed ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tampering:
    """A change behind the ledger's back: where it happens, and what becomes of a value there."""

    table: str
    event_type: str
    column: str
    changed: Callable[[Any], object] | None
    kinds: frozenset[str]
    tag: str = ""

    def do(self, books: Books, position: int) -> None:
        where = "WHERE position = ?" + (f" AND tag LIKE '{self.tag}:%'" if self.tag else "")
        if self.changed is None:
            books.tables.change(f"DELETE FROM {self.table} {where}", position)
            return
        ((value,),) = books.ask(f"SELECT {self.column} FROM {self.table} {where}", position)
        new = self.changed(value)
        assert new != value
        statement = f"UPDATE {self.table} SET {self.column} = ? {where}"
        books.tables.change(statement, new, position)


RECORD, MESSAGE, CONFLICT = "record.committed/1", "message.captured/1", "conflict.changed/1"
BINDING, ROTATED, COMPLETED = "binding.changed/1", "keys.rotated/1", "forget.completed/1"
HELD = "forget.held/1"


def made(new: object) -> Callable[[Any], object]:
    return lambda _: new


def replaced(old: Any, new: Any) -> Callable[[Any], object]:
    return lambda it: it.replace(old, new)


def gone(table: str, event_type: str, kind: str, tag: str = "") -> Tampering:
    return Tampering(table, event_type, "", None, frozenset({kind}), tag)


def event(event_type: str, column: str, changed: Callable[[Any], object], *kinds: str) -> Tampering:
    return Tampering("events", event_type, column, changed, frozenset(kinds))


def header(event_type: str, old: bytes, new: bytes, *kinds: str) -> Tampering:
    return event(event_type, "header", replaced(old, new), "chain", *kinds)


def tag_row(event_type: str, column: str, changed: Callable[[Any], object], tag: str) -> Tampering:
    return Tampering("tags", event_type, column, changed, frozenset({"tag"}), tag)


def body(event_type: str, column: str, changed: Callable[[Any], object], kind: str) -> Tampering:
    return Tampering("bodies", event_type, column, changed, frozenset({kind}))


IN_EVENTS = {
    "a header": header(RECORD, b"candidate", b"accepted", "receipt"),
    "a header that is no JSON": event(RECORD, "header", made(b"{"), "chain", "seal"),
    "a header's field": header(MESSAGE, b"bucket", b"basket", "seal"),
    "a rotation's header": header(ROTATED, b"2", b"9"),
    "a completion's header": header(COMPLETED, b":", b":1"),
    "a window's end": header(HELD, b'"until":', b'"until":1'),
    "what a release explains": event(
        HELD, "tags", replaced("held:", "hold:"), "chain", "tag", "body"
    ),
    "a commitment": event(RECORD, "commitment", made(bytes(32)), "chain", "seal"),
    "an empty commitment": event(MESSAGE, "commitment", made(b""), "chain", "seal"),
    "a link": event(RECORD, "chain", made(bytes(32)), "chain"),
    "a type": event(RECORD, "type", made(CONFLICT), "chain", "tag"),
    "a type without body": event(MESSAGE, "type", made("message.hidden/1"), "chain", "tag"),
    "an unknown type": event(RECORD, "type", made("record.invented/1"), "chain", "seal"),
    "a time": event(RECORD, "recorded_at", lambda it: it + 1, "chain"),
    "a time long ago": event(RECORD, "recorded_at", made(0), "chain", "time"),
    "a time that no date can say": event(RECORD, "recorded_at", made(1 << 62), "chain"),
    "a tag": event(RECORD, "tags", replaced("op:", "op:x"), "chain", "tag"),
    "a record's tag": event(RECORD, "tags", replaced("rec:", "rfc:"), "chain", "tag", "receipt"),
    "no tags": event(RECORD, "tags", made(""), "chain", "tag", "receipt"),
    "a binding's tags": event(BINDING, "tags", made("binding:x"), "chain", "tag"),
    "the order": event(RECORD, "position", made(1000), "stray"),
    "an event in the middle": gone("events", MESSAGE, "stray"),
}
IN_TAGS = {
    "a tag row gone": gone("tags", RECORD, "tag", "op"),
    "a tag row changed": tag_row(RECORD, "tag", made("op:other"), "op"),
    "a tag row's type": tag_row(RECORD, "type", made(CONFLICT), "rec"),
    "a tag row moved": tag_row(MESSAGE, "position", lambda it: it + 1, "msg"),
}
IN_BODIES = {
    "a sealed body": body(RECORD, "sealed", lambda it: bytes(len(it)), "seal"),
    "a body cut short": body(MESSAGE, "sealed", lambda it: it[:20], "seal"),
    "an empty body": body(CONFLICT, "sealed", made(b""), "seal"),
    "a body's key": body(RECORD, "key_id", made("space"), "seal"),
    "a body's key that never was": body(MESSAGE, "key_id", made("nowhere"), "key"),
    "a body under the secret's name": body(RECORD, "key_id", made("secret"), "seal"),
    "a body moved": body(RECORD, "position", made(1000), "body"),
    "a record's body gone": gone("bodies", RECORD, "body"),
    "a message's body gone": gone("bodies", MESSAGE, "body"),
    "a binding's body gone": gone("bodies", BINDING, "body"),
}
OF_ANOTHER_TYPE = {
    "a header that is a number": event(RECORD, "header", made(7), "chain", "seal"),
    "tags that are bytes": event(RECORD, "tags", str.encode, "chain", "tag"),
    "a link that is a number": event(RECORD, "chain", made(7), "chain"),
    "a time that is text": event(RECORD, "recorded_at", made("noon"), "chain", "time"),
    "a type that is bytes": event(RECORD, "type", made(b"\1"), "chain", "seal"),
    "a tag row that is bytes": tag_row(RECORD, "tag", str.encode, "op"),
    "a tag row lost": tag_row(RECORD, "position", made("nowhere"), "rec"),
    "a body that is text": body(RECORD, "sealed", made("text"), "seal"),
}
EVERY = {**IN_EVENTS, **IN_TAGS, **IN_BODIES, **OF_ANOTHER_TYPE}
LOOSE = pytest.mark.sqlite("its columns hold values of any type")
CHANGES = [pytest.param(it, marks=LOOSE if it in OF_ANOTHER_TYPE else ()) for it in EVERY]


def assert_found(report: AuditReport, position: int | None, kinds: frozenset[str]) -> None:
    here = {finding.kind for finding in report.findings if finding.position == position}
    assert here, report.findings
    assert kinds <= here, report.findings
    for secret in SECRETS:
        assert secret not in str(report)


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_the_log_is_found_at_its_position(books, what):
    change = EVERY[what]
    position = books.one(change.event_type)

    change.do(books, position)
    report = books.audit()

    assert_found(report, position, change.kinds)
    if what in {"the order", "an event in the middle"}:
        assert_found(report, position + 1, frozenset({"gap", "chain"}))


def test_a_tag_row_that_was_added_is_found(books):
    position = books.one(MESSAGE)
    books.tables.change(
        f"INSERT INTO tags VALUES ('{SPACE}', 'rec:forged', '{MESSAGE}', ?)", position
    )

    assert_found(books.audit(), position, frozenset({"tag"}))


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_the_log_is_found_without_the_views(books, what):
    change = EVERY[what]
    change.do(books, books.one(change.event_type))
    books.views.unlink()

    assert books.audit().findings


def test_a_forget_whose_completion_cannot_be_read_is_not_served(books):
    ((position,),) = books.ask("SELECT max(position) FROM events WHERE type = ?", COMPLETED)

    event(COMPLETED, "header", made(b"{")).do(books, position)

    with pytest.raises(IntegrityFault, match=f"position {position}: "):
        books.open()


def test_a_missing_last_event_is_found_at_the_head(books):
    ((head,),) = books.ask("SELECT position FROM heads")

    books.tables.change("DELETE FROM events WHERE position = ?", head)
    with pytest.raises(RefusedError, match="the log is"):
        books.audit()
    (books.slots.parent / "anchor").unlink()
    report = books.audit()

    assert_found(report, head, frozenset({"head", "stray"}))


def test_an_event_inserted_at_the_end_is_found(books):
    ((head,),) = books.ask("SELECT position FROM heads")

    books.tables.change(
        "INSERT INTO events SELECT space, position + 1, type, recorded_at + 1, header, tags,"
        " commitment, chain FROM events WHERE position = ?",
        head,
    )

    assert_found(books.audit(), head + 1, frozenset({"chain", "tag"}))


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        ("UPDATE heads SET position = position - 1", ()),
        ("UPDATE heads SET position = position + 1", ()),
        ("UPDATE heads SET chain = ?", (bytes(32),)),
        ("UPDATE heads SET key_epoch = key_epoch + 1", ()),
        ("UPDATE heads SET key_epoch = 1", ()),
    ],
)
def test_a_changed_head_is_found(books, statement, values):
    with books.open() as memory:
        books.tables.change(statement, *values)
        report = memory.audit.verify()

    assert {"head"} <= {finding.kind for finding in report.findings}, report.findings


def test_a_log_without_its_head_is_refused_by_who_has_it_open(books):
    with books.open() as memory:
        books.tables.change("DELETE FROM heads")

        with pytest.raises(RefusedError, match="older copy"):
            memory.audit.verify()


@pytest.mark.parametrize(
    "statement", ["UPDATE heads SET key_epoch = 8", "UPDATE heads SET key_epoch = 1"]
)
def test_a_head_that_lies_about_the_key_epoch_leaves_a_trace_in_the_log(books, statement):
    books.tables.change(statement)

    report = books.audit()

    assert report.findings
    assert report.key_epoch == 7


# -- keys and views changed -----------------------------------------------------------------------


def test_a_missing_key_is_found_at_every_body_under_it(books):
    position = books.one(RECORD)
    ((key_id,),) = books.ask("SELECT key_id FROM bodies WHERE position = ?", position)
    under = {p for (p,) in books.ask("SELECT position FROM bodies WHERE key_id = ?", key_id)}

    books.change(books.keys, "DELETE FROM keys WHERE key_id = ?", key_id)
    report = books.audit()

    assert {f.position for f in report.findings if f.kind == "key"} == under
    assert_found(report, position, frozenset({"key"}))


def test_a_missing_key_is_found_by_a_process_that_had_it_open(books):
    position = books.one(RECORD)
    ((key_id,),) = books.ask("SELECT key_id FROM bodies WHERE position = ?", position)
    with books.open() as memory:
        assert memory.audit.verify().findings == ()

        books.change(books.keys, "DELETE FROM keys WHERE key_id = ?", key_id)
        report = memory.audit.verify()

    assert_found(report, position, frozenset({"key"}))


def test_a_forgotten_key_put_back_is_found_at_its_tombstone(books):
    tombstone, *_ = books.naming(b"forgotten")

    books.change(books.keys, "INSERT INTO keys VALUES (?, ?, ?)", *books.removed_key)

    assert_found(books.audit(), tombstone, frozenset({"key"}))


@pytest.mark.parametrize("column", ["wrapped = zeroblob(60)", "wrapped = x''", "key_epoch = 8"])
def test_a_damaged_key_is_found_at_its_bodies(books, column):
    position = books.one(RECORD)
    ((key_id,),) = books.ask("SELECT key_id FROM bodies WHERE position = ?", position)

    books.change(books.keys, f"UPDATE keys SET {column} WHERE key_id = ?", key_id)

    assert_found(books.audit(), position, frozenset({"seal"}))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE records SET status = 'accepted' WHERE record = (SELECT min(record) FROM records)",
        "UPDATE records SET position = 1 WHERE record = (SELECT max(record) FROM records)",
        "DELETE FROM records WHERE record = (SELECT min(record) FROM records)",
        "INSERT INTO records (record, position, opened, status) VALUES ('rec:forged', 3, 3, 'x')",
    ],
)
def test_a_changed_view_is_found(books, statement):
    books.change(books.views, "UPDATE records SET status = 'rejected' WHERE status = 'candidate'")
    books.change(books.views, statement)

    report = books.audit()

    assert [finding.kind for finding in report.findings] == ["view"]
    assert "records" in report.findings[0].message


def test_what_one_audit_finds_is_limited_and_says_so(books):
    ((events,),) = books.ask("SELECT count(*) FROM events")
    row = f"('{SPACE}', ?, '{MESSAGE}', 5)"
    books.tables.change(
        f"INSERT INTO tags VALUES {', '.join([row] * 150)}", *(f"rec:{n}" for n in range(150))
    )

    report = books.audit()

    assert events > 5
    assert (len(report.findings), report.is_truncated) == (100, True)


# -- damaged pages --------------------------------------------------------------------------------


def contents(memory: Memory) -> list[str]:
    """What a person can read, in words."""
    reads = memory.records(include_inactive=True)
    return sorted(str(getattr(read.record, "content", read.record)) for read in reads)


def flipped(content: bytes, dice: random.Random) -> tuple[bytes, str]:
    at, bit = dice.randrange(len(content)), dice.randrange(8)
    one = bytes([content[at] ^ 1 << bit])
    return content[:at] + one + content[at + 1 :], f"bit {bit} of byte {at}"


def damage(books: Books, name: str, dice: random.Random) -> str:
    """Flips a bit of a file or, of a log on a server, of a value in its tables."""
    if name == "log" and "engine" in books.place:
        table, column = dice.choice(IN_TABLES)
        rows = books.ask(f"SELECT position, {column} FROM {table} ORDER BY position")
        position, content = dice.choice([row for row in rows if row[1]])
        new, where = flipped(content, dice)
        books.tables.change(f"UPDATE {table} SET {column} = ? WHERE position = ?", new, position)
        return f"{table}.{column} at {position}: {where}"
    path = books.keys.with_name("ledger.db") if name == "log" else getattr(books, name)
    content, where = flipped(path.read_bytes(), dice)
    path.write_bytes(content)
    return f"{path.name}: {where}"


IN_TABLES = (
    ("events", "header"), ("events", "commitment"), ("events", "chain"), ("bodies", "sealed"),
    ("heads", "chain"),
)  # fmt: skip


@pytest.mark.parametrize("name", ["log", "keys", "views", "slots"])
def test_a_flipped_bit_never_crashes_and_never_changes_what_is_read(copied, name, exhaustive):
    flips = {"log": 40, "keys": 15, "views": 15, "slots": 5}[name] * (50 if exhaustive else 1)
    dice = random.Random(f"{name} 1")
    books = copied()
    with books.open() as memory:
        expected = contents(memory)
    originals = {path: path.read_bytes() for it in books.place.values() for path in it.rglob("*")
                 if path.is_file()}  # fmt: skip
    put_back = books.tables.kept()
    for _ in range(flips):
        put_back()
        for path, content in originals.items():
            path.write_bytes(content)
        where = damage(books, name, dice)
        try:
            report, found = audited_and_read(books)
        except Exception as error:
            raise AssertionError(where) from error
        assert report is None or report.findings or found == expected, where
        assert not any(secret in str(report) for secret in SECRETS), where


def audited_and_read(books: Books) -> tuple[AuditReport | None, list[str] | None]:
    """What an audit reports and what is read after it; None where a fault of ours stops it."""
    try:
        memory = books.open()
    except MemorandaError:
        return None, None
    with memory:
        report = memory.audit.verify()
        # A damaged view is told once and computed anew.
        for _ in range(2):
            with suppress(MemorandaError):
                return report, contents(memory)
    return report, None


@pytest.mark.sqlite("after such a write a server's log goes on")
def test_an_opening_whose_write_failed_is_told_so_and_not_that_the_log_is_damaged(opened):
    memory = opened()
    FailingCommit(memory)
    with pytest.raises(OutcomeUnknown):
        memory.remember("Kyoto")

    with pytest.raises(StorageFault, match="open it again"):
        memory.audit.verify()

    assert opened().audit.verify().findings == ()
