"""Residue: after a forget no file holds the words, a key of theirs or a token, and no carver."""

import base64
import logging
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import World
from tests.residue import Carver, Traces, files, hits, in_clear
from tests.tables import Tables

from memoranda.ledger import sqlite_files
from memoranda.ledger.errors import Refused, StorageFault
from memoranda.ledger.log import Log
from memoranda.ledger.receipts import ForgetReceipt
from memoranda.ledger.sealing import derive, token_of
from memoranda.tools.memory import Memory

SPACE = "us_alice"
REF = "personal-message:s-main-1:"
CANARY = "quixotry under moonflowers"
PLAIN = "Something of no interest."


@dataclass
class Cast:
    """Who lives in the ledger while the canary is told."""

    memory: Memory
    primary: Memory
    task_7: Memory
    world: World
    tables: Tables

    def told(self, text: str = PLAIN, **more: object) -> str:
        return self.primary.publish("home", text, sources=[f"{REF}88"], **more).record_id


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who opens a ledger now waits for no reader."""
    monkeypatch.setitem(sqlite_files._PRAGMAS, "busy_timeout", 50)


@pytest.fixture
def cast(memory, primary, task_7, world, tables) -> Cast:
    return Cast(memory, primary, task_7, world, tables)


# -- where the canary is told ---------------------------------------------------------------------


def in_content(cast: Cast) -> str:
    return cast.told(CANARY)


def in_key(cast: Cast) -> str:
    return cast.primary.publish(CANARY, PLAIN, sources=[f"{REF}88"]).record_id


def in_a_captured_message(cast: Cast) -> str:
    said = {"session": "s-main-1", "seq": 99, "role": "user", "text": f"I said: {CANARY}"}
    assert [it.ref for it in cast.memory.capture([said])] == [f"{REF}99"]
    return cast.primary.publish("home", PLAIN, sources=[f"{REF}99"]).record_id


def in_a_candidate(cast: Cast) -> str:
    return cast.task_7.propose("home", CANARY, sources=[f"{REF}42"]).record_id


def in_a_reason_of_rejection(cast: Cast) -> str:
    made = cast.task_7.propose("home", PLAIN, sources=[f"{REF}42"])
    return cast.primary.reject(made.record_id, 1, CANARY).record_id


def in_an_earlier_revision(cast: Cast) -> str:
    record_id = cast.told(CANARY)
    cast.primary.correct(record_id, 1, PLAIN, sources=[f"{REF}42"])
    return cast.memory.retire(record_id, 2, "over").record_id


def in_a_reason_of_retiring(cast: Cast) -> str:
    return cast.memory.retire(cast.told(), 1, CANARY).record_id


def in_a_prepared_operation(cast: Cast) -> str:
    request = {"name": "publish", "operation_id": "op-1", "key": "home", "content": CANARY}
    cast.memory.prepare(request)
    return cast.memory.commit(cast.memory.operation("op-1").intent).record_id


def in_an_intent_that_ended_nothing(cast: Cast) -> str:
    record_id = cast.told()
    request = {"name": "correct", "record_id": record_id, "expected_revision": 1}
    cast.memory.prepare({**request, "operation_id": "op-1", "content": CANARY})
    ended = cast.memory.reconcile("op-1", writers_stopped=True, reason=CANARY)
    assert not isinstance(ended, Refused)
    return record_id


def in_a_batch(cast: Cast) -> str:
    request = {"name": "publish", "operation_id": "op-1", "key": "home", "content": CANARY}
    return cast.memory.commit_many([request])[0].record_id


def in_a_conflict(cast: Cast) -> str:
    candidate = cast.task_7.propose("home", PLAIN, sources=[f"{REF}42"])
    other = cast.memory.remember("Another thing.")
    opened = cast.primary.open_conflict(candidate.record_id, other.record_id, CANARY)
    cast.primary.resolve_conflict(opened.conflict_id, "keep_both", f"no: {CANARY}")
    return candidate.record_id


def in_an_error(cast: Cast) -> str:
    """Refusals and a fault that all had the canary in hand."""
    record_id = cast.told(CANARY)
    errors: list[object] = [
        cast.primary.publish("home", CANARY, sources=[f"{REF}88"]),
        cast.primary.publish(CANARY, CANARY, sources=[f"{REF}88"]),
        cast.primary.publish("x", CANARY, sources=[CANARY]),
        cast.memory.correct(record_id, 7, CANARY),
        cast.memory.commit({"id": "op-1", "key": record_id, "expected": None, "value": CANARY}),
        cast.memory.read(CANARY),
        cast.memory.operation(CANARY),
    ]
    assert all(isinstance(it, Refused) for it in errors)

    def fail(_: str) -> None:
        raise cast.tables.fault("disk I/O error")

    cast.world.at_step = fail
    try:
        errors.append(cast.memory.remember(CANARY))
    except StorageFault as fault:
        errors.append(fault)
    cast.world.at_step = lambda _: None
    assert CANARY not in repr(errors)
    assert CANARY not in " ".join(map(str, errors))
    return record_id


PLACES = [
    in_content, in_key, in_a_captured_message, in_a_candidate, in_a_reason_of_rejection,
    in_an_earlier_revision, in_a_reason_of_retiring, in_a_prepared_operation,
    in_an_intent_that_ended_nothing, in_a_batch, in_a_conflict, in_an_error,
]  # fmt: skip


def used(memory: Memory, primary: Memory, record_id: str, file: Path) -> None:
    """Everything is done with it that could make a copy: shown, found, prepared, listed."""
    recalled = primary.recall(CANARY, step="step-1")
    recalled.render(max_bytes=2000)
    primary.note_delivery(recalled)
    for words in (CANARY, CANARY.split(maxsplit=1)[0]):
        memory.search(words)
        memory.query(text=words, include_inactive=True)
    memory.explain(record_id)
    primary.evidence(record_id)
    memory.export(file)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where SQLite and Python would put what does not fit into memory."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    for name in ("SQLITE_TMPDIR", "TMPDIR"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def revision_of(memory: Memory, record_id: str) -> int:
    return memory.revisions(record_id)[-1].revision


# -- the matrix -----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_threat_16_no_file_holds_anything_of_what_was_forgotten(
    cast, folder, temporary, tmp_path, world, caplog, place
):
    memory, everywhere = cast.memory, (*folder.values(), cast.tables, temporary)
    caplog.set_level(logging.DEBUG)
    record_id = place(cast)
    used(memory, cast.primary, record_id, tmp_path / "export.jsonl")
    traces = Traces().add(memory, CANARY)
    assert hits(traces.wrapped, *everywhere)
    assert hits(traces.sealed, *everywhere)
    assert bool(hits(traces.tokens, *everywhere)) == bool(memory.search(CANARY))
    memory.rotate_keys()
    traces.add(memory, CANARY)
    world.move(seconds=3)

    receipt = memory.forget(
        record_id, revision_of(memory, record_id), with_sources=place is in_a_captured_message
    )

    assert receipt.erased_at
    assert [str(tmp_path / "export.jsonl") in it for it in receipt.copies if "export" in it] == [
        True
    ]
    assert memory.remnants(CANARY).remnants == ()
    for _ in ("open", "closed"):
        assert hits(traces.all | in_clear(CANARY), *everywhere) == set()
        memory.close()
    assert CANARY not in caplog.text
    assert "forget" in caplog.text


def test_without_its_sources_the_receipt_names_the_message_that_still_says_it(cast, folder):
    record_id = in_a_captured_message(cast)

    receipt = cast.memory.forget(record_id, 1)

    assert receipt.copies == (f"the captured message {REF}99", *cast.tables.leftover)
    assert [it.names for it in cast.memory.remnants(CANARY).remnants] == [f"{REF}99"]
    assert hits(in_clear(CANARY), *folder.values(), cast.tables) == set()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "file",
    [
        pytest.param("ledger.db", marks=pytest.mark.sqlite("a server removes rows all the same")),
        "keys.db",
        "views.db",
    ],
)
def test_a_reader_with_a_snapshot_of_any_file_holds_the_erasure_up_and_it_is_whole_afterwards(
    cast, folder, file
):
    memory, record_id = cast.memory, in_content(cast)
    assert memory.search(CANARY)
    traces = Traces().add(memory, CANARY)
    path = folder["data"] / SPACE / file
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchone()

        receipt = memory.forget(record_id, 1)

        assert receipt.erased_at is None
        assert receipt.pending
        assert memory.read(record_id).refusal.number == "F35"
        assert memory.search(CANARY) == ()
        # The control: what the reader may still see is what the search finds.
        assert hits(traces.all, *folder.values(), cast.tables)
    assert memory.finish_forgets() == ()
    assert hits(traces.all | in_clear(CANARY), *folder.values(), cast.tables) == set()
    assert memory.audit.verify(with_index=True).findings == ()


# -- attackers ------------------------------------------------------------------------------------


@dataclass
class Loot:
    """What somebody may have copied, before the forget and after it."""

    forgotten: set[str]
    kept: set[str]
    receipt: ForgetReceipt
    code: str
    data: dict[str, bytes]
    state: dict[str, bytes]
    backup: dict[str, bytes]

    def carver(self, *, key: bool, backup: bool = False, code: bool = False) -> Carver:
        held = self.data | (self.state if key else {}) | (self.backup if backup else {})
        slots = self.state if key else {}
        return Carver(held, slots, self.forgotten | self.kept, self.code if code else None)


@pytest.fixture
def robbed(cast, folder, tmp_path, world) -> Callable[[], Loot]:
    """A ledger that was backed up, then forgot; the backup folder was away meanwhile."""

    def live() -> Loot:
        memory, code = cast.memory, cast.memory.recovery_code
        record_id = told_everywhere(cast)
        memory.publish("tea", KEPT)
        wanted = Traces().add(memory, CANARY).key_ids
        others = Traces().add(memory, KEPT).key_ids
        memory.backup(tmp_path / "away")
        (tmp_path / "away").rename(tmp_path / "drawer")
        world.move(seconds=3)
        receipt = memory.forget(record_id, revision_of(memory, record_id), with_sources=True)
        memory.close()
        data = files(folder["data"], cast.tables)
        held = (data, files(folder["state"]), files(tmp_path / "drawer"))
        return Loot(wanted, others, receipt, code, *held)

    return live


def told_everywhere(cast: Cast) -> str:
    """One record with the canary in whatever lies under a key of its own."""
    said = {"session": "s-main-1", "seq": 99, "role": "user", "text": f"I said: {CANARY}"}
    assert [it.ref for it in cast.memory.capture([said])] == [f"{REF}99"]
    other = cast.memory.remember("Another thing.")
    made = cast.primary.propose("home", CANARY, sources=[f"{REF}99"])
    opened = cast.primary.open_conflict(made.record_id, other.record_id, f"conflict {CANARY}")
    cast.primary.resolve_conflict(opened.conflict_id, "keep_both", f"resolved {CANARY}")
    cast.primary.accept(made.record_id, 1)
    request = {"name": "correct", "record_id": made.record_id, "expected_revision": 2}
    cast.memory.prepare({**request, "operation_id": "op-1", "content": f"intent {CANARY}"})
    cast.memory.reconcile("op-1", writers_stopped=True, reason=f"reconciled {CANARY}")
    cast.memory.retire(made.record_id, 2, f"retired {CANARY}")
    return made.record_id


SPOKEN = ("I said: ", "conflict ", "resolved ", "reconciled ", "retired ")


KEPT = "Green tea is liked."


@pytest.mark.parametrize(
    "held", [{"key": False}, {"key": True}, {"key": True, "backup": True}],
    ids=["files", "files and key", "old backup and key"],
)  # fmt: skip
def test_who_holds_the_files_the_key_and_an_old_backup_reads_nothing_that_was_forgotten(
    robbed, held
):
    loot = robbed()
    assert loot.receipt.erased_at
    carver = loot.carver(**held)

    read = carver.texts()

    # What was not forgotten is the control: with the key, the carver finds and reads it.
    assert (KEPT in read) == held["key"]
    assert CANARY not in read
    assert carver.opened.keys().isdisjoint(loot.forgotten)


def test_without_the_rotation_an_old_backup_and_the_key_read_everything(robbed, monkeypatch):
    """The twin: a forget that only deletes."""
    monkeypatch.setattr(Log, "rotate_keys", lambda _: 0)

    loot = robbed()

    assert CANARY not in loot.carver(key=True).texts()
    read = loot.carver(key=True, backup=True).texts()
    assert [it for it in SPOKEN if f"{it}{CANARY}" not in read] == []


def test_a_kept_key_that_opens_recovery_copies_would_read_it_without_the_code(cast, robbed):
    """The twin of what `Keyring` keeps of the code: no more than seals."""
    raw = base64.b32decode(cast.memory.recovery_code.replace("-", "")[:-4])
    keyring = cast.memory._parts.log._keyring
    with keyring._writing():
        keyring._insert([("recovery", derive(raw, "recovery/v1"))])

    assert CANARY in robbed().carver(key=True, backup=True).texts()


def test_the_code_and_an_old_backup_read_it_and_the_receipt_says_so(cast, robbed):
    loot = robbed()

    read = loot.carver(key=True, backup=True, code=True).texts()

    assert [it for it in SPOKEN if f"{it}{CANARY}" not in read] == []
    named, *others = loot.receipt.copies
    assert tuple(others) == cast.tables.leftover
    assert "its key bundle with the recovery code still reads it" in named
    assert "away" in named


def test_an_old_file_of_views_and_the_keys_of_today_tell_a_guessed_word_and_no_more(cast, folder):
    """The honest limit: the index keeps its token key, so views belong in no backup."""
    record_id = in_content(cast)
    traces = Traces().add(cast.memory, CANARY)
    cast.memory._parts.views.truncate()
    old = (folder["data"] / SPACE / "views.db").read_bytes()

    cast.memory.forget(record_id, 1)

    with cast.memory._parts.views.held() as connection:
        (key_id,) = connection.execute("SELECT key_id FROM index_key").fetchone()
    _, index_key = cast.memory._parts.log.index_key(key_id)
    told = {word: token_of(index_key, word) in old for word in ("quixotry", "windmills")}
    assert told == {"quixotry": True, "windmills": False}
    assert traces.tokens
    assert not [it for it in in_clear(CANARY) | traces.keys if it in old]
