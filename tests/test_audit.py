"""Audit: a clean log has no findings, and whatever was changed behind its back is one."""

import json
import random  # noqa: TID251  # seeded dice, no entropy
import shutil
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.sites import FailingCommit

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
    """A closed ledger that holds every kind of event, in a folder to copy."""

    folder: Path
    removed_key: tuple[str, int, bytes] = ("", 0, b"")

    @property
    def log(self) -> Path:
        return self.folder / "data" / SPACE / "ledger.db"

    @property
    def keys(self) -> Path:
        return self.log.with_name("keys.db")

    @property
    def views(self) -> Path:
        return self.log.with_name("views.db")

    @property
    def slots(self) -> Path:
        return self.folder / "state" / SPACE / "slots"

    def open(self) -> Memory:
        place = {"data": self.folder / "data", "state": self.folder / "state"}
        return open_memory(SPACE, **place, home=self.folder, create=False)

    def audit(self) -> AuditReport:
        with self.open() as memory:
            return memory.audit.verify()

    def ask(self, query: str, *values: object) -> list[tuple]:
        with closing(sqlite3.connect(f"{self.log.as_uri()}?mode=ro", uri=True)) as raw:
            return raw.execute(query, values).fetchall()

    def one(self, event_type: str) -> int:
        """The position of the first event of a type that has tags and, where it may, a body."""
        return self.ask("SELECT min(position) FROM events WHERE type = ?", event_type)[0][0]

    def change(self, path: Path, statement: str, *values: object) -> None:
        """Changes a file behind the ledger's back."""
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            for (trigger,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
                raw.execute(f"DROP TRIGGER {trigger}")
            assert raw.execute(statement, values).rowcount == 1
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")


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


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Books:
    """The one ledger of this room, closed; tests work on copies."""
    books = Books(tmp_path_factory.mktemp("books"))
    place = {"data": books.folder / "data", "state": books.folder / "state"}
    memory = open_memory(SPACE, **place, home=books.folder, forget_window_hours=1)
    live(memory)
    migrate(memory, tmp_path_factory.mktemp("earlier") / "old.jsonl")
    gone = memory.publish("secret plan", SECRETS[4])
    assert memory.correct(gone.record_id, 1, SECRETS[4] + "!").to_revision == 2
    with closing(sqlite3.connect(books.keys)) as raw:
        ((key_id,),) = books.ask("SELECT key_id FROM bodies WHERE position = ?", gone.position)
        query = "SELECT key_id, key_epoch, wrapped FROM keys WHERE key_id = ?"
        books.removed_key = raw.execute(query, (key_id,)).fetchone()
    assert memory.forget(gone.record_id, 2).status == "forgotten"
    assert memory.finish_forgets() == ()
    held = memory.remember(SECRETS[4] + "?")
    primary = memory.acting_as(ModelSession(SESSION, "agent-main"))
    assert primary.forget(held.record_id, 1).erased_at is None
    assert memory.release_held() == ()
    hidden = Fall(records=(), messages=(f"personal-message:{SESSION}:6",))
    assert memory.forget_many(hidden, with_sources=True).messages == 1
    assert memory.remember("one more after the forget").to_revision == 1
    assert len(memory.records(include_inactive=True)) > 4
    assert isinstance(memory.search("kyoto"), tuple)
    away = tmp_path_factory.mktemp("away")
    assert isinstance(memory.backup(away), BackupReport)
    memory.close()
    restored = restore(load_settings(space=SPACE, **place, home=books.folder), Stamps(), away)
    assert isinstance(restored, RestoreReport)
    shutil.rmtree(away)
    return books


@pytest.fixture
def books(kept: Books, tmp_path: Path) -> Books:
    shutil.copytree(kept.folder, tmp_path / "copy")
    return Books(tmp_path / "copy", kept.removed_key)


def test_a_log_of_every_kind_of_event_has_no_findings(books):
    types = {event_type for (event_type,) in books.ask("SELECT DISTINCT type FROM events")}
    statuses = {
        status
        for status in ("candidate", "accepted", "retired", "rejected", "forgotten")
        if books.ask("SELECT 1 FROM events WHERE instr(header, ?)", f'"{status}"'.encode())
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
    assert (report.position, report.key_epoch, report.records) == (events, 6, 7)


def test_an_audit_changes_no_row_of_the_log(books):
    before = books.log.read_bytes(), books.keys.read_bytes(), books.slots.read_bytes()

    books.audit()

    assert (books.log.read_bytes(), books.keys.read_bytes(), books.slots.read_bytes()) == before


# -- the log changed ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tampering:
    """A change behind the ledger's back: where it happens, and what does it."""

    event_type: str
    statement: str
    kinds: frozenset[str]


def tampering(event_type: str, statement: str, *kinds: str) -> Tampering:
    return Tampering(event_type, statement, frozenset(kinds))


RECORD, MESSAGE, CONFLICT = "record.committed/1", "message.captured/1", "conflict.changed/1"
BINDING, ROTATED, COMPLETED = "binding.changed/1", "keys.rotated/1", "forget.completed/1"
HELD, HERE = "forget.held/1", "WHERE position = ?"


def header(old: str, new: str) -> str:
    changed = f"cast(replace(cast(header AS text), '{old}', '{new}') AS blob)"
    return f"UPDATE events SET header = {changed} {HERE}"


def event(change: str) -> str:
    return f"UPDATE events SET {change} {HERE}"


def tag_row(change: str, kind: str) -> str:
    return f"UPDATE tags SET {change} {HERE} AND tag LIKE '{kind}:%'"


def body(change: str) -> str:
    return f"UPDATE bodies SET {change} {HERE}"


IN_EVENTS = {
    "a header": tampering(RECORD, header("candidate", "accepted"), "chain", "receipt"),
    "a header that is no JSON": tampering(RECORD, event("header = x'7b'"), "chain", "seal"),
    "a header's field": tampering(MESSAGE, header("bucket", "basket"), "chain", "seal"),
    "a rotation's header": tampering(ROTATED, header("2", "9"), "chain"),
    "a completion's header": tampering(COMPLETED, header(":", ":1"), "chain"),
    "a window's end": tampering(HELD, header('"until":', '"until":1'), "chain"),
    "what a release explains": tampering(
        HELD, event("tags = replace(tags, 'held:', 'hold:')"), "chain", "tag", "body"
    ),
    "a commitment": tampering(RECORD, event("commitment = zeroblob(32)"), "chain", "seal"),
    "an empty commitment": tampering(MESSAGE, event("commitment = x''"), "chain", "seal"),
    "a link": tampering(RECORD, event("chain = zeroblob(32)"), "chain"),
    "a type": tampering(RECORD, event("type = 'conflict.changed/1'"), "chain", "tag"),
    "a type without body": tampering(MESSAGE, event("type = 'message.hidden/1'"), "chain", "tag"),
    "an unknown type": tampering(RECORD, event("type = 'record.invented/1'"), "chain", "seal"),
    "a time": tampering(RECORD, event("recorded_at = recorded_at + 1"), "chain"),
    "a time long ago": tampering(RECORD, event("recorded_at = 0"), "chain", "time"),
    "a time that no date can say": tampering(RECORD, event("recorded_at = 1 << 62"), "chain"),
    "a tag": tampering(RECORD, event("tags = replace(tags, 'op:', 'op:x')"), "chain", "tag"),
    "a record's tag": tampering(
        RECORD, event("tags = replace(tags, 'rec:', 'rfc:')"), "chain", "tag", "receipt"
    ),
    "no tags": tampering(RECORD, event("tags = ''"), "chain", "tag", "receipt"),
    "a binding's tags": tampering(BINDING, event("tags = 'binding:x'"), "chain", "tag"),
    "the order": tampering(RECORD, event("position = 1000"), "stray"),
    "an event in the middle": tampering(MESSAGE, f"DELETE FROM events {HERE}", "stray"),
    "a header that is a number": tampering(RECORD, event("header = 7"), "chain", "seal"),
    "tags that are bytes": tampering(RECORD, event("tags = cast(tags AS blob)"), "chain", "tag"),
    "a link that is a number": tampering(RECORD, event("chain = 7"), "chain"),
    "a time that is text": tampering(RECORD, event("recorded_at = 'noon'"), "chain", "time"),
    "a type that is bytes": tampering(RECORD, event("type = x'01'"), "chain", "seal"),
}
IN_TAGS = {
    "a tag row gone": tampering(RECORD, f"DELETE FROM tags {HERE} AND tag LIKE 'op:%'", "tag"),
    "a tag row changed": tampering(RECORD, tag_row("tag = 'op:other'", "op"), "tag"),
    "a tag row that is bytes": tampering(RECORD, tag_row("tag = cast(tag AS blob)", "op"), "tag"),
    "a tag row's type": tampering(RECORD, tag_row("type = 'conflict.changed/1'", "rec"), "tag"),
    "a tag row moved": tampering(MESSAGE, tag_row("position = position + 1", "msg"), "tag"),
    "a tag row lost": tampering(RECORD, tag_row("position = 'nowhere'", "rec"), "tag"),
    "a tag row added": tampering(
        MESSAGE,
        "INSERT INTO tags VALUES ('us_alice', 'rec:forged', 'message.captured/1', ?)",
        "tag",
    ),
}
IN_BODIES = {
    "a sealed body": tampering(RECORD, body("sealed = zeroblob(length(sealed))"), "seal"),
    "a body cut short": tampering(MESSAGE, body("sealed = substr(sealed, 1, 20)"), "seal"),
    "an empty body": tampering(CONFLICT, body("sealed = x''"), "seal"),
    "a body that is text": tampering(RECORD, body("sealed = 'text'"), "seal"),
    "a body's key": tampering(RECORD, body("key_id = 'space'"), "seal"),
    "a body's key that never was": tampering(MESSAGE, body("key_id = 'nowhere'"), "key"),
    "a body under the secret's name": tampering(RECORD, body("key_id = 'secret'"), "seal"),
    "a body moved": tampering(RECORD, body("position = 1000"), "body"),
    "a record's body gone": tampering(RECORD, f"DELETE FROM bodies {HERE}", "body"),
    "a message's body gone": tampering(MESSAGE, f"DELETE FROM bodies {HERE}", "body"),
    "a binding's body gone": tampering(BINDING, f"DELETE FROM bodies {HERE}", "body"),
}
EVERY = {**IN_EVENTS, **IN_TAGS, **IN_BODIES}


def assert_found(report: AuditReport, position: int | None, kinds: frozenset[str]) -> None:
    here = {finding.kind for finding in report.findings if finding.position == position}
    assert here, report.findings
    assert kinds <= here, report.findings
    for secret in SECRETS:
        assert secret not in str(report)


@pytest.mark.parametrize("what", EVERY)
def test_a_change_of_the_log_is_found_at_its_position(books, what):
    change = EVERY[what]
    position = books.one(change.event_type)

    books.change(books.log, change.statement, position)
    report = books.audit()

    assert_found(report, position, change.kinds)
    if what in {"the order", "an event in the middle"}:
        assert_found(report, position + 1, frozenset({"gap", "chain"}))


@pytest.mark.parametrize("what", EVERY)
def test_a_change_of_the_log_is_found_without_the_views(books, what):
    change = EVERY[what]
    books.change(books.log, change.statement, books.one(change.event_type))
    books.views.unlink()

    assert books.audit().findings


def test_a_forget_whose_completion_cannot_be_read_is_not_served(books):
    ((position,),) = books.ask("SELECT max(position) FROM events WHERE type = ?", COMPLETED)

    books.change(books.log, event("header = x'7b'"), position)

    with pytest.raises(IntegrityFault, match=f"position {position}: "):
        books.open()


def test_a_missing_last_event_is_found_at_the_head(books):
    ((head,),) = books.ask("SELECT position FROM heads")

    books.change(books.log, "DELETE FROM events WHERE position = ?", head)
    with pytest.raises(RefusedError, match="the log is"):
        books.audit()
    (books.slots.parent / "anchor").unlink()
    report = books.audit()

    assert_found(report, head, frozenset({"head", "stray"}))


def test_an_event_inserted_at_the_end_is_found(books):
    ((head,),) = books.ask("SELECT position FROM heads")

    books.change(
        books.log,
        "INSERT INTO events SELECT space, position + 1, type, recorded_at + 1, header, tags,"
        " commitment, chain FROM events WHERE position = ?",
        head,
    )

    assert_found(books.audit(), head + 1, frozenset({"chain", "tag"}))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE heads SET position = position - 1",
        "UPDATE heads SET position = position + 1",
        "UPDATE heads SET chain = zeroblob(32)",
        "UPDATE heads SET key_epoch = key_epoch + 1",
        "UPDATE heads SET key_epoch = 1",
        "DELETE FROM heads",
    ],
)
def test_a_changed_head_is_found(books, statement):
    with books.open() as memory:
        books.change(books.log, statement)
        report = memory.audit.verify()

    assert {"head"} <= {finding.kind for finding in report.findings}, report.findings


@pytest.mark.parametrize(
    "statement", ["UPDATE heads SET key_epoch = 7", "UPDATE heads SET key_epoch = 1"]
)
def test_a_head_that_lies_about_the_key_epoch_leaves_a_trace_in_the_log(books, statement):
    books.change(books.log, statement)

    report = books.audit()

    assert report.findings
    assert report.key_epoch == 6


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
    ((tombstone,),) = books.ask("SELECT min(position) FROM events WHERE instr(header, 'forgotten')")

    books.change(books.keys, "INSERT INTO keys VALUES (?, ?, ?)", *books.removed_key)

    assert_found(books.audit(), tombstone, frozenset({"key"}))


@pytest.mark.parametrize("column", ["wrapped = zeroblob(60)", "wrapped = x''", "key_epoch = 7"])
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
    with closing(sqlite3.connect(books.log, isolation_level=None)) as raw:
        raw.executemany(
            "INSERT INTO tags VALUES ('us_alice', ?, 'message.captured/1', 5)",
            [(f"rec:{n}",) for n in range(150)],
        )

    report = books.audit()

    assert events > 5
    assert (len(report.findings), report.is_truncated) == (100, True)


# -- damaged pages --------------------------------------------------------------------------------


def contents(memory: Memory) -> list[str]:
    """What a person can read, in words."""
    reads = memory.records(include_inactive=True)
    return sorted(str(getattr(read.record, "content", read.record)) for read in reads)


def damage(path: Path, dice: random.Random) -> str:
    content = bytearray(path.read_bytes())
    at, bit = dice.randrange(len(content)), dice.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"{path.name}: bit {bit} of byte {at}"


@pytest.mark.parametrize("name", ["log", "keys", "views", "slots"])
def test_a_flipped_bit_never_crashes_and_never_changes_what_is_read(
    kept, tmp_path, name, exhaustive
):
    flips = {"log": 40, "keys": 15, "views": 15, "slots": 5}[name] * (50 if exhaustive else 1)
    dice = random.Random(f"{name} 1")
    folder = tmp_path / "copy"
    shutil.copytree(kept.folder, folder)
    books = Books(folder)
    with books.open() as memory:
        expected = contents(memory)
    originals = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for _ in range(flips):
        for path, content in originals.items():
            path.write_bytes(content)
        where = damage(getattr(books, name), dice)
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


def test_an_opening_whose_write_failed_is_told_so_and_not_that_the_log_is_damaged(opened):
    memory = opened()
    FailingCommit(memory)
    with pytest.raises(OutcomeUnknown):
        memory.remember("Kyoto")

    with pytest.raises(StorageFault, match="open it again"):
        memory.audit.verify()

    assert opened().audit.verify().findings == ()
