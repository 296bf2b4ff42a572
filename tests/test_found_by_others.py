"""Faults that fresh eyes found, each kept as the case that showed it."""

import fcntl
import json
import signal
import sqlite3
import sys
import threading
import time
from contextlib import closing
from datetime import UTC, datetime

import pytest

from memoranda.ledger import log
from memoranda.ledger.authority import ModelSession
from memoranda.ledger.errors import Refusal, Refused, RefusedError, StorageFault
from memoranda.ledger.locks import flocked
from memoranda.ledger.restoring import Asked
from memoranda.ledger.sqlite_files import connect, truncate_wal
from memoranda.ledger.stamps import Stamps
from memoranda.tools.cli_capture import _read
from memoranda.tools.memory import open_memory
from memoranda.tools.restore import restore
from memoranda.tools.settings import load_settings

REF = "personal-message:s-main-1:"


@pytest.mark.parametrize(
    "loss", ["deleted", pytest.param("emptied", marks=pytest.mark.sqlite("a file of no bytes"))]
)
@pytest.mark.parametrize("create", [True, False])
def test_a_lost_log_is_refused_and_no_empty_space_takes_its_place(
    opened, folder, tables, loss, create
):
    memory = opened()
    memory.remember("one")
    memory.close()
    place = folder["data"] / "us_alice"
    put_back = tables.kept()
    keys = (place / "keys.db").read_bytes()
    tables.lose()
    if loss == "emptied":
        (place / "ledger.db").touch()

    with pytest.raises(RefusedError) as refused:
        opened(create=create)

    assert refused.value.refused.refusal is Refusal.SPACE_UNKNOWN
    assert (place / "keys.db").read_bytes() == keys
    put_back()
    again = opened()
    assert [it.record.content for it in again.records()] == ["one"]
    assert again.recovery_code is None


def test_one_file_supports_many_facts_and_claims_nothing(primary):
    file = {"kind": "file", "ref": "notes.md"}

    first = primary.publish("a", "one", sources=[file, f"{REF}42"])
    second = primary.publish("b", "two", sources=[file, f"{REF}88"])

    assert (first.to_revision, second.to_revision) == (1, 1)


@pytest.mark.parametrize("kind", ["file", "user_edit"])
def test_no_other_kind_of_source_takes_the_name_of_a_message(primary, kind):
    named = {"kind": kind, "ref": f"{REF}50"}

    refused = primary.publish("a", "one", sources=[named, f"{REF}88"])

    assert (refused.refusal, refused.field) == (Refusal.SOURCE_REF_INVALID, "sources.0")
    assert primary.publish("b", "two", sources=[f"{REF}50"]).to_revision == 1


def test_an_operation_id_that_reads_like_a_message_claims_and_blocks_none(memory, primary):
    assert memory.remember("x", operation_id=f"{REF}42").refusal is Refusal.SOURCE_REF_INVALID

    assert primary.publish("k", "y", sources=[f"{REF}42"]).to_revision == 1


def test_a_forget_with_sources_takes_only_messages_that_were_cited(memory, primary):
    other = {"session": "private-2", "seq": 1, "role": "user", "text": "never cited"}
    assert hasattr(next(iter(memory.capture([other]))), "position")
    file = {"kind": "file", "ref": "personal-message:private-2:1"}
    assert primary.publish("a", "one", sources=[file, f"{REF}88"]).refusal
    made = primary.publish("a", "one", sources=[f"{REF}88"])

    primary.forget(made.record_id, 1, with_sources=True)

    assert [it.kind for it in memory.remnants("never cited").remnants] == ["message"]
    assert memory.remnants("Chinese replies again").remnants == ()


def test_a_raw_commit_sent_again_for_another_key_is_another_content(primary):
    made = primary.publish("a", "one", sources=[f"{REF}42"], operation_id="o1")
    value = primary.operation("o1").intent["value"]

    again = {"id": "o1", "key": "mem_" + "0" * 64, "expected": None, "value": value}

    assert primary.commit(again).refusal is Refusal.OPERATION_CONFLICT
    assert primary.commit(again | {"key": made.record_id}).replayed


def test_a_raw_forget_sent_again_must_expect_the_record_it_forgot(primary):
    made = primary.publish("a", "one", sources=[f"{REF}42"])
    before = primary.read(made.record_id).record.model_dump(mode="json")
    primary.forget(made.record_id, 1, operation_id="f1")
    tombstone = primary.read(made.record_id, include_inactive=True).record.model_dump(mode="json")
    again = {"id": "f1", "key": made.record_id, "expected": before, "value": tombstone}

    assert primary.commit(again).replayed
    for wrong in ({"nonsense": 1}, before | {"revision": 2}, None):
        assert primary.commit(again | {"expected": wrong}).refusal is Refusal.OPERATION_CONFLICT


def test_a_raw_tombstone_lists_its_blocks_in_any_order(primary):
    made = primary.publish("a", "one", sources=[f"{REF}50#0-3", f"{REF}88"])
    before = primary.read(made.record_id).record.model_dump(mode="json")
    tombstone = {
        "id": made.record_id,
        "revision": 2,
        "product_domain": "personal",
        "user_space_id": "us_alice",
        "status": "forgotten",
        "blocked_sources": [f"{REF}88", f"{REF}50#0-3"],
    }
    request = {"id": "f1", "key": made.record_id, "expected": before, "value": tombstone}

    assert primary.commit(request).status == "forgotten"
    assert primary.commit(request).replayed


def test_an_operation_on_a_conflict_is_looked_up_like_any_other(memory, primary):
    one = primary.propose("a", "one", sources=[f"{REF}42"])
    two = primary.publish("b", "two", sources=[f"{REF}88"])
    made = primary.open_conflict(one.record_id, two.record_id, "both?", operation_id="k1")

    told = primary.operation("k1")

    assert told.receipt == made
    assert told.intent["reason"] == "both?"
    memory.forget(one.record_id, 1)
    assert memory.operation("k1").intent is None


def test_a_pair_is_one_whichever_side_is_named_first(primary):
    one = primary.propose("a", "one", sources=[f"{REF}42"])
    two = primary.publish("b", "two", sources=[f"{REF}88"])
    first = primary.open_conflict(one.record_id, two.record_id, "both?")

    again = primary.open_conflict(two.record_id, one.record_id, "the other way round")

    assert again.conflict_id == first.conflict_id


def test_choosing_the_same_tier_again_is_no_step(memory):
    made = memory.remember("one")

    assert memory.choose_tier(made.record_id, 1, "detail").refusal is Refusal.TRANSITION_INVALID
    assert memory.choose_tier(made.record_id, 1, "core").to_revision == 2
    assert memory.choose_tier(made.record_id, 2, "core").refusal is Refusal.TRANSITION_INVALID


@pytest.mark.parametrize(
    ("sources", "refusal"),
    [
        ([f"{REF}9999"], Refusal.SOURCE_MISSING),
        (["bad"], Refusal.SOURCE_REF_INVALID),
        ([f"{REF}50", f"{REF}50#1-2"], Refusal.VALUE_INVALID),
        ([f"{REF}88"], Refusal.REVISION_CONFLICT),
    ],
)
def test_of_a_taken_key_the_faults_of_its_sources_are_told_first(primary, sources, refusal):
    primary.publish("k", "one", sources=[f"{REF}42"])

    assert primary.publish("k", "two", sources=sources).refusal is refusal


def test_after_a_forget_an_item_is_told_nothing_of_an_operation(memory, primary, task_7):
    made = primary.publish("a", "one", sources=[f"{REF}88"], operation_id="o1")
    memory.forget(made.record_id, 1)

    assert task_7.operation("o1").refusal is Refusal.NOT_FOUND
    assert primary.operation("o1").intent is None


def test_an_unknown_name_that_may_be_content_is_not_repeated(memory):
    text = "AKIAIOSFODNN7EXAMPLE my uncle"
    (answer,) = memory.capture([{"session": "s", "seq": 9, "role": "user", "text": "x", text: 1}])

    assert text not in json.dumps(answer.wire())
    assert answer.message == "is not a parameter of this call"


def test_a_secret_in_a_reference_is_refused(primary):
    ref = "ghp_" + "0123456789abcdefghijABCDEFGHIJ012345"

    refused = primary.publish("a", "one", sources=[{"kind": "file", "ref": ref}, f"{REF}42"])

    assert refused.refusal is Refusal.SECRET_DETECTED
    assert ref not in json.dumps(refused.wire())


def test_a_line_that_names_a_field_twice_is_refused():
    refused = _read(b'{"role":"assistant","role":"user","text":"x"}')

    assert refused.refusal is Refusal.INVALID_REQUEST


def test_a_short_id_finds_a_forgotten_record_too(memory):
    made = memory.remember("one")
    memory.forget(made.record_id, 1)

    assert memory.ids_beginning(made.record_id[:14]) == (made.record_id,)


def test_one_bad_clock_reading_dates_nothing_that_is_said_later(memory, world):
    right = world.moment
    world.moment = right.replace(year=2086)
    memory.remember("said under a wrong clock")

    world.moment = right
    made = memory.remember("said under the right one")

    record = memory.read(made.record_id).record
    assert record.sources[0].occurred_at == "2026-10-06T12:00:00Z"
    recent = next(it for it in memory.recall("x").zones if it.name == "recent")
    assert [fact.content for fact in recent.facts] == ["said under the right one"]
    message = {"session": "s-main-1", "seq": 7, "role": "user", "text": "x", "at": "2080-01-01"}
    assert hasattr(next(iter(memory.capture([message]))), "position")
    primary = memory.acting_as(ModelSession("s-main-1", "agent-main"))
    assert primary.publish("k", "y", sources=[f"{REF}7"]).refusal is Refusal.SOURCE_IN_FUTURE
    assert memory.audit.verify().findings == ()


def test_a_clock_at_the_end_of_time_is_a_fault_and_writes_go_on_after_it(memory, world):
    right, world.moment = world.moment, datetime.max.replace(tzinfo=UTC)

    with pytest.raises(StorageFault, match="clock"):
        memory.remember("one")

    world.moment = right
    assert memory.remember("one").to_revision == 1


@pytest.mark.parametrize("field", ["cause", "origin_id"])
def test_a_secret_beside_a_message_is_refused_by_its_field(memory, field):
    secret = "ghp_" + "0123456789abcdefghijABCDEFGHIJ012345"
    message = {"session": "s", "seq": 1, "role": "user", "text": "x", field: f"of {secret}"}

    (refused,) = memory.capture([message])

    assert (refused.refusal, refused.field) == (Refusal.SECRET_DETECTED, field)
    assert secret not in json.dumps(refused.wire())


# -- inside a commit, as by a signal handler ------------------------------------------------------


@pytest.mark.sqlite("a server has it wait for itself, and then answers the same")
@pytest.mark.parametrize("step", ["log:commit", "log:committed"])
def test_what_is_asked_inside_a_commit_ends_nothing_of_it(memory, world, step):
    inner = []

    def ask(name: str) -> None:
        if name == step and not inner:
            inner.append(None)
            inner[0] = memory.publish("last words", "inner")

    world.at_step = ask
    outer = memory.publish("first words", "outer")

    assert outer.outcome == "committed"
    assert step == "log:committed" or inner[0].refusal is Refusal.BUSY
    assert memory.publish("more", "later").position > outer.position
    assert memory.audit.verify(with_index=True).findings == ()


@pytest.mark.parametrize("step", ["log:commit", "log:committed"])
def test_who_closes_and_leaves_inside_a_commit_leaves(opened, world, step):
    memory = opened()
    memory.publish("key", "fact")

    def leave(name: str) -> None:
        if name == step:
            memory.close()
            sys.exit(3)

    world.at_step = leave
    with pytest.raises(SystemExit):
        memory.publish("last", "words")
    world.at_step = lambda _: None

    with opened() as again:
        kept = {it.record.content for it in again.records()}
        assert kept == {"fact", "words"} if step == "log:committed" else {"fact"}
        assert again.publish("more", "later").outcome == "committed"
        assert again.audit.verify(with_index=True).findings == ()


def test_after_a_checkpoint_that_failed_a_connection_waits_as_long_as_before(tmp_path):
    schema = "CREATE TABLE things (name TEXT);"
    with closing(connect(tmp_path / "things.db", schema=schema, schema_number=1)) as raw:
        raw.set_authorizer(
            lambda action, name, *_: (
                sqlite3.SQLITE_DENY
                if (action, name) == (sqlite3.SQLITE_PRAGMA, "wal_checkpoint")
                else sqlite3.SQLITE_OK
            )
        )
        assert not truncate_wal(raw, wait_ms=0)
        raw.set_authorizer(None)

        assert raw.execute("PRAGMA busy_timeout").fetchone() == (5000,)


@pytest.mark.sqlite("its log and its anchor are files")
def test_what_is_committed_inside_a_read_is_acknowledged_however_far_the_anchor_is(
    memory, monkeypatch
):
    monkeypatch.setattr(log, "ANCHOR_EVENTS", 2)
    with memory._parts.log.reading():
        answers = [memory.publish(f"key {n}", "fact") for n in range(6)]

    assert {it.outcome for it in answers} == {"committed"}


def test_who_is_interrupted_as_he_waits_for_a_lock_takes_it_from_nobody(tmp_path):
    path, order = tmp_path / "lock", []

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with flocked(path, fcntl.LOCK_EX, 1.0):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt), flocked(path, fcntl.LOCK_EX, 30.0):
                order.append("held twice")
        time.sleep(0.2)  # who waited in his place has it now, and gives it back
        with flocked(path, fcntl.LOCK_EX, 1.0):
            order.append("free")
    finally:
        signal.signal(signal.SIGALRM, before)

    assert order == ["free"]


def test_who_is_interrupted_as_another_begins_to_wait_for_him_takes_the_lock_from_nobody(
    tmp_path, monkeypatch
):
    path, start = tmp_path / "lock", threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    with flocked(path, fcntl.LOCK_EX, 1.0), monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt), flocked(path, fcntl.LOCK_EX, 30.0):
            pass
    time.sleep(0.2)

    with flocked(path, fcntl.LOCK_EX, 1.0):
        assert path.exists()


@pytest.mark.sqlite("a recorder is hooked")
@pytest.mark.parametrize("is_before", [True, False])
def test_a_thread_that_has_committed_takes_back_nothing_that_another_has_noticed_of_a_restore(
    opened, folder, tmp_path, is_before
):
    with opened() as memory:
        memory.remember("one")
        memory.backup(tmp_path / "away")
    old = opened(host="a")
    old.remember("by a")
    recorder, due = old._parts.log._recorder, [old]

    def look() -> None:
        old.status()

    def restore_beside() -> None:
        settings = load_settings(space="us_alice", **folder)
        assert restore(settings, Stamps(), tmp_path / "away", Asked(force=True)).is_served
        other = threading.Thread(target=look)
        other.start()
        other.join()

    class Hooked(type(recorder)):
        def __setattr__(self, name: str, value: object) -> None:
            is_due = name == "seen" and due and value.position > recorder.seen.position
            if is_due and is_before:
                due.clear()
                restore_beside()
            super().__setattr__(name, value)
            if is_due and due:
                due.clear()
                restore_beside()

    recorder.__class__ = Hooked
    assert old.remember("before the restore").position
    new = opened()

    assert [isinstance(new.remember(f"new {n}"), Refused) for n in range(2)] == [False] * 2
    assert old.remember("after it").refusal is Refusal.EXECUTION_FENCED
    assert not isinstance(new.remember("newer"), Refused)


def test_files_are_looked_at_beside_a_thread_that_opens_and_closes_others(memory, tmp_path):
    ended = threading.Event()

    def open_others() -> None:
        while not ended.is_set():
            place = {it: tmp_path / "others" / it for it in ("data", "state")}
            with open_memory("another", **place):
                pass

    other = threading.Thread(target=open_others)
    other.start()
    try:
        for number in range(15):
            assert memory.remnants("nothing like it").remnants == ()
            assert memory.backup(tmp_path / f"away-{number % 3}").copy_made or number > 2
            assert memory.doctor()
    finally:
        ended.set()
        other.join()


def test_two_who_look_at_one_backup_at_once_both_find_it_whole(memory, tmp_path):
    memory.backup(tmp_path / "away")
    found: set[tuple[str, str]] = set()

    def look() -> None:
        for _ in range(40):
            found.update((it.level, it.message) for it in memory.doctor() if it.name == "backup")

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {level for level, _ in found} == {"fine"}
