"""Several processes on one ledger, and processes that are killed: nothing acknowledged is lost."""

import fcntl
import os
import signal
import sqlite3
import threading
import time
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.sites import SPACE, WAIT_S, Site, killed_at, positions_of, together

from memoranda.ledger import sqlite_files
from memoranda.ledger.authority import ModelSession
from memoranda.ledger.errors import Refusal, Refused, RefusedError
from memoranda.ledger.locks import SpaceLock
from memoranda.ledger.log import BUSY_WAIT_S
from memoranda.ledger.receipts import Receipt
from memoranda.ledger.slots import SlotFile
from memoranda.tools.memory import Memory

SESSION = "s-main-1"


# -- many writers ---------------------------------------------------------------------------------


def test_many_processes_write_own_records_and_one_hot_record(site, exhaustive):
    processes, rounds = (8, 60) if exhaustive else (8, 4)
    with site.open() as memory:
        hot = memory.publish("counter", "0").record_id

    def work(memory: Memory, number: int) -> None:
        for n in range(rounds):
            own = memory.publish(f"own {number} {n}", f"fact {number} {n}")
            site.said("own", [own.record_id, own.position, f"fact {number} {n}"])
            while True:
                seen = memory.read(hot).record
                answer = memory.correct(hot, seen.revision, str(int(seen.content) + 1))
                if isinstance(answer, Receipt):
                    break
                assert answer.refusal is Refusal.REVISION_CONFLICT
            site.said("hot", answer.position)

    together(site, processes, work)

    with site.open() as memory:
        own, total = site.heard("own"), processes * rounds
        assert len(own) == len(site.heard("hot")) == total
        assert memory.read(hot).record.content == str(total)
        assert memory.read(hot).record.revision == total + 1
        for record_id, position, content in own:
            read = memory.read(record_id)
            assert (read.position, read.record.content) == (position, content)
        report = memory.audit.verify()
        assert report.findings == ()
        assert report.records == total + 1
    positions = positions_of(site)
    assert positions == list(range(1, len(positions) + 1))
    acknowledged = [position for _, position, _ in own] + site.heard("hot")
    assert len(set(acknowledged)) == len(acknowledged)
    assert set(acknowledged) < set(positions)


def test_race_r2_one_operation_id_from_many_processes_is_one_record_and_one_receipt(site):
    def work(memory: Memory, _: int) -> None:
        for n in range(5):
            answer = memory.publish(f"key {n}", f"fact {n}", operation_id=f"op-{n}")
            site.said(f"op-{n}", [answer.position, answer.record_digest, answer.replayed])

    together(site, 4, work)

    for n in range(5):
        answers = site.heard(f"op-{n}")
        assert len({(position, digest) for position, digest, _ in answers}) == 1
        assert sorted(replayed for *_, replayed in answers) == [False, True, True, True]
    with site.open() as memory:
        assert memory.status().records == {"accepted": 5}
        assert memory.audit.verify().findings == ()


def test_race_r11_one_source_claimed_by_two_processes_belongs_to_one_of_them(site):
    with site.open() as memory:
        memory.host.bind_primary(SESSION)
        for seq in range(1, 6):
            message = {"session": SESSION, "seq": seq, "role": "user", "text": f"said {seq}"}
            assert all(hasattr(answer, "ref") for answer in memory.capture([message]))

    def work(memory: Memory, number: int) -> None:
        primary = memory.acting_as(ModelSession(SESSION, "agent-main"))
        for seq in range(1, 6):
            ref = f"personal-message:{SESSION}:{seq}"
            answer = primary.publish(f"key {number} {seq}", "a fact", sources=[ref])
            site.said(
                f"source {seq}",
                answer.refusal.number if isinstance(answer, Refused) else answer.outcome,
            )

    together(site, 2, work)

    for seq in range(1, 6):
        assert sorted(site.heard(f"source {seq}")) == ["F14", "committed"]
    with site.open() as memory:
        assert memory.audit.verify().findings == ()


def test_a_process_goes_on_across_the_rotations_of_another(site):
    with site.open() as memory:
        first = memory.publish("first", "fact 0")

    def rotate() -> None:
        for turn in range(3):
            site.wait_for("written", turn + 1)
            with site.open() as memory:
                site.said("rotated", memory.rotate_keys())

    rotator = site.start(rotate)
    with site.open() as memory:
        for turn in range(3):
            written = memory.publish(f"key {turn}", f"fact {turn}")
            site.said("written", turn)
            site.wait_for("rotated", turn + 1)

            assert memory.read(first.record_id).record.content == "fact 0"
            assert memory.read(written.record_id).record.content == f"fact {turn}"
            assert memory.correct(written.record_id, 1, f"again {turn}").to_revision == 2
        assert memory.status().key_epoch == 4
        assert memory.audit.verify().findings == ()
    site.all_end_well(rotator)


def test_an_audit_beside_a_process_that_writes_and_forgets_finds_nothing(ram_site):
    def write() -> None:
        with ram_site.open() as memory:
            n = 0
            while not ram_site.heard("stop"):
                made = memory.publish(f"key {n}", f"fact {n}")
                memory.forget(made.record_id, 1)
                ram_site.said("forgotten", n)
                n += 1

    ram_site.open().close()
    writer = ram_site.start(write)
    with ram_site.open() as memory:
        for turn in range(10):
            ram_site.wait_for("forgotten", 5 * turn)
            assert memory.audit.verify(with_index=True).findings == ()
        ram_site.said("stop", "writer")
        ram_site.all_end_well(writer)
        assert memory.audit.verify(with_index=True).findings == ()


LOOKS = {
    "at their bytes": lambda memory, _: memory.remnants("nothing like it"),
    "by a second opening": lambda _, site: site.open(),
    "by one that is closed again": lambda _, site: site.open().close(),
    "not at all": lambda _, __: None,
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_no_look_at_its_files_gives_the_locks_of_a_process_away(ram_site, look):
    """To close any descriptor of a file ends all locks of the process on it."""

    def stay() -> None:
        with ram_site.open() as memory:
            memory.publish("first", "fact")
            kept = look(memory, ram_site)
            for number in range(3):
                ram_site.said("written", number)
                ram_site.wait_for("closed", number + 1)
                assert memory.publish(f"ours {number}", "fact").to_revision == 1
            del kept

    def write(number: int) -> None:
        with ram_site.open() as other:
            assert other.publish(f"theirs {number}", "fact").to_revision == 1

    ram_site.open().close()
    staying = ram_site.start(stay)
    for number in range(3):
        ram_site.wait_for("written", number + 1)
        ram_site.all_end_well(ram_site.start(lambda n=number: write(n)))
        ram_site.said("closed", number)
    ram_site.all_end_well(staying)
    with ram_site.open() as memory:
        assert len(memory.records()) == 7
        assert memory.audit.verify(with_index=True).findings == ()


# -- the lock -------------------------------------------------------------------------------------


def hold(site: Site, path: Path) -> int:
    """A process that takes the lock and keeps it until it is killed."""

    def work() -> None:
        with SpaceLock(path, wait_s=WAIT_S).held():
            site.said("held", "lock")
            time.sleep(WAIT_S)

    holder = site.start(work)
    site.wait_for("held")
    return holder


def test_a_lock_that_another_process_holds_is_busy_after_the_wait(site, tmp_path):
    hold(site, tmp_path / "lock")
    lock = SpaceLock(tmp_path / "lock", wait_s=0.05)

    with pytest.raises(RefusedError) as refused, lock.held():
        pytest.fail("it is held elsewhere")

    assert refused.value.refused.refusal is Refusal.BUSY


def test_a_lock_that_another_thread_holds_is_busy_after_the_wait(tmp_path):
    lock = SpaceLock(tmp_path / "lock", wait_s=0.05)
    answers = []

    def other() -> None:
        try:
            with lock.held():
                answers.append("held")
        except RefusedError as error:
            answers.append(error.refused.refusal)

    with lock.held():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    assert answers == [Refusal.BUSY]


@pytest.mark.parametrize("is_shared", [True, False], ids=["with the gate", "without it"])
def test_who_must_be_alone_is_not_overtaken_by_those_who_share_the_lock(tmp_path, is_shared):
    path, entered, ended = tmp_path / "lock", threading.Event(), threading.Event()

    def share() -> None:
        """Holds it without a gap, by one lock after another, unless the next is not let in."""
        current = ExitStack()
        while not ended.is_set():
            following = ExitStack()
            with suppress(RefusedError):
                lock = SpaceLock(path, wait_s=0.5, is_shared=is_shared)
                following.enter_context(lock.held(kind=fcntl.LOCK_SH))
            current.close()
            current = following
            entered.set()
            time.sleep(0.01)
        current.close()

    sharer = threading.Thread(target=share)
    sharer.start()
    entered.wait()
    alone = SpaceLock(path, wait_s=WAIT_S if is_shared else 1.0, is_shared=is_shared)
    try:
        with nullcontext() if is_shared else pytest.raises(RefusedError), alone.held():
            pass
    finally:
        ended.set()
        sharer.join()


def test_the_lock_is_reentrant_in_its_thread_and_free_after_the_outermost(tmp_path):
    lock, other = (SpaceLock(tmp_path / "lock", wait_s=0.05) for _ in range(2))

    with lock.held():
        with lock.held(), lock.held():
            pass
        with pytest.raises(RefusedError), other.held():
            pytest.fail("the inner exits gave it back")

    with other.held():
        pass


def test_a_close_waits_for_nobody_to_finish_what_a_forget_owes(site, monkeypatch):
    monkeypatch.setattr("memoranda.ledger.log.CLOSE_WAIT_S", 0.05)
    memory = site.open()
    for made in [memory.remember(f"fact {n}") for n in range(2)]:
        memory.forget(made.record_id, 1)
    assert memory._parts.forgetting.is_owed
    hold(site, site.folder / "data" / SPACE / "lock")
    started = time.monotonic()

    memory.close()

    assert time.monotonic() - started < BUSY_WAIT_S / 2


@pytest.mark.sqlite("the write-ahead log")
def test_an_opening_a_commit_and_a_close_wait_for_no_reader(site, monkeypatch):
    ten_minutes_ms = 600_000
    monkeypatch.setitem(sqlite_files._PRAGMAS, "busy_timeout", ten_minutes_ms)
    monkeypatch.setattr(sqlite_files, "BUSY_TIMEOUT_MS", ten_minutes_ms)
    with site.open() as memory, memory._parts.log.reading():
        memory.remember("The reader does not see this")

        def come_and_go() -> None:
            with site.open() as other:
                assert other.remember("Said in between").to_revision == 1

        thread = threading.Thread(target=come_and_go, daemon=True)
        thread.start()
        thread.join(WAIT_S)

        assert not thread.is_alive()


def test_a_killed_process_releases_the_lock(site, tmp_path):
    holder = hold(site, tmp_path / "lock")
    os.kill(holder, signal.SIGKILL)

    with SpaceLock(tmp_path / "lock", wait_s=WAIT_S).held():
        assert site.end_of(holder) == -signal.SIGKILL


def test_whoever_came_too_late_for_the_lock_gives_it_back(site, tmp_path):
    holder = hold(site, tmp_path / "lock")
    late = SpaceLock(tmp_path / "lock", wait_s=0.02)
    for _ in range(3):
        with pytest.raises(RefusedError), late.held():
            pytest.fail("it is held elsewhere")
    os.kill(holder, signal.SIGKILL)
    site.end_of(holder)

    for _ in range(3):
        fresh = SpaceLock(tmp_path / "lock", wait_s=WAIT_S)
        with fresh.held(), pytest.raises(RefusedError), late.held():
            pytest.fail("it is held elsewhere")
    with SpaceLock(tmp_path / "lock", wait_s=WAIT_S).held():
        pass


def left_by_a_fork(site: Site, lock: SpaceLock, *, wait_s: float) -> int:
    """A process that was forked inside the lock, lives on, and then leaves the block on its own."""
    with lock.held(wait_s):
        child = os.fork()
        if child:
            site._children.add(child)
            return child
        site.wait_for("leave")
    site.said("left", "the block")
    site.wait_for("end")
    os._exit(0)


@pytest.mark.sqlite
def test_a_lock_ends_with_its_block_whatever_was_forked_inside_it(site, tmp_path):
    lock, other = (SpaceLock(tmp_path / "lock", wait_s=0.05) for _ in range(2))
    child = left_by_a_fork(site, lock, wait_s=0.05)

    with other.held():
        site.said("leave", "now")
        site.wait_for("left")
        with pytest.raises(RefusedError), SpaceLock(tmp_path / "lock", wait_s=0.05).held():
            pytest.fail("a fork that leaves its parent's block gives no lock of others back")

    site.said("end", "now")
    site.all_end_well(child)


@pytest.mark.sqlite
def test_a_fork_that_leaves_its_parents_block_leaves_the_parent_its_lock(site, tmp_path):
    lock = SpaceLock(tmp_path / "lock", wait_s=0.05)
    with lock.held():
        child = left_by_a_fork(site, lock, wait_s=0.05)
        site.said("leave", "now")
        site.wait_for("left")

        with pytest.raises(RefusedError), SpaceLock(tmp_path / "lock", wait_s=0.05).held():
            pytest.fail("the parent holds it")

    site.said("end", "now")
    site.all_end_well(child)


def test_a_fork_neither_uses_nor_opens_nor_closes_what_its_parent_has_open(site):
    parent = site.open()
    kept = parent.remember("before the fork")

    def child() -> None:
        # A key of its parent's pool would be used twice: forgetting one fact took the other along.
        assert parent.remember("under a key of the parent's").refusal is Refusal.SERVICE_UNAVAILABLE
        assert parent.read(kept.record_id).refusal is Refusal.SERVICE_UNAVAILABLE
        assert parent.records().refusal is Refusal.SERVICE_UNAVAILABLE
        parent.close()
        # What it wrote was lost as soon as the parent closed.
        with pytest.raises(RefusedError, match="forked from"):
            site.open()
        site.said("refused", "all of it")

    child_of_open = site.start(child)
    site.all_end_well(child_of_open)

    assert parent.remember("after the fork").to_revision == 1
    parent.close()

    def later() -> None:
        with site.open() as memory:
            assert memory.remember("by a fork of one that has closed it").to_revision == 1

    site.all_end_well(site.start(later))
    with site.open() as memory:
        assert len(memory.records()) == 3
        assert memory.audit.verify().findings == ()


@pytest.mark.parametrize("call", ["open", "close"])
@pytest.mark.sqlite("SQLite's own locks")
def test_no_fork_comes_between_while_sqlite_opens_or_closes_a_file(
    site, tmp_path, monkeypatch, call
):
    # Planted, as the true moment is short: one fork in a hundred beside a thread that does no more.
    inside, connected = threading.Event(), sqlite3.connect
    opened = partial(sqlite_files.connect, schema="CREATE TABLE t (x);", schema_number=1)

    def linger() -> None:
        inside.set()
        time.sleep(0.3)
        inside.clear()

    class Function:
        """What a connection lets go of while it closes."""

        def __call__(self) -> None: ...

        def __del__(self) -> None:
            linger()

    def slowly(*arguments: Any, **more: Any) -> sqlite3.Connection:
        connection = connected(*arguments, **more)
        if call == "open":
            linger()
        else:
            connection.create_function("f", 0, Function())
        return connection

    def come_and_go() -> None:
        with monkeypatch.context() as planted:
            planted.setattr(sqlite3, "connect", slowly)
            opened(tmp_path / "a file").close()

    def child() -> None:
        assert not inside.is_set()
        connected(tmp_path / "another").close()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    assert inside.wait(WAIT_S)

    site.all_end_well(site.start(child))

    thread.join()


def test_a_command_on_a_busy_ledger_is_refused_and_succeeds_later_under_its_id(site, monkeypatch):
    monkeypatch.setattr("memoranda.ledger.log.BUSY_WAIT_S", 0.05)
    with site.open() as memory:
        holder = hold(site, site.folder / "data" / SPACE / "lock")

        refused = memory.publish("home", "I live in Kyoto", operation_id="op-1")
        os.kill(holder, signal.SIGKILL)
        site.end_of(holder)
        receipt = memory.publish("home", "I live in Kyoto", operation_id="op-1")

    assert refused.refusal is Refusal.BUSY
    assert (receipt.outcome, receipt.replayed) == ("committed", False)


# -- killed at every step of a rotation -----------------------------------------------------------

ROTATION = (
    "rotate:slot-written",
    "rotate:rewrapped",
    "rotate:truncated",
    "rotate:slot-destroyed",
    "log:commit",
    "log:committed",
)


@pytest.mark.parametrize("step", ROTATION)
def test_a_rotation_killed_at_any_step_loses_nothing_while_another_process_writes(site, step):
    with site.open() as memory:
        memory.publish("before", "fact before")
        before = memory.status().key_epoch

    def write() -> None:
        with site.open() as memory:
            n = 0
            while not site.heard("stop"):
                receipt = memory.publish(f"key {n}", f"fact {n}")
                site.said("written", [receipt.record_id, f"fact {n}"])
                n += 1

    def rotate() -> None:
        site.open(killed_at(step)).rotate_keys()

    writer = site.start(write)
    site.wait_for("written", 3)
    rotator = site.start(rotate)
    assert site.end_of(rotator) == -signal.SIGKILL
    site.wait_for("written", len(site.heard("written")) + 3)
    with site.open() as beside:
        assert beside.read(site.heard("written")[0][0]).record.content == "fact 0"
    site.wait_for("written", len(site.heard("written")) + 3)
    site.said("stop", "writer")
    site.all_end_well(writer)

    with site.open() as memory:
        for record_id, content in site.heard("written"):
            assert memory.read(record_id).record.content == content
        assert memory.audit.verify().findings == ()
        (key_epoch,) = SlotFile(site.folder / "state" / SPACE / "slots").read()
        assert memory.status().key_epoch == key_epoch == before + 1
        assert memory.rotate_keys() == key_epoch + 1
        assert memory.audit.verify().findings == ()


@pytest.mark.parametrize("step", ["keys:minted", "log:commit", "log:committed"])
def test_a_space_whose_making_was_killed_is_made_or_opened_by_the_next(tmp_path, step):
    site = Site(tmp_path)
    maker = site.start(lambda: site.open(killed_at(step)).publish("home", "I live in Kyoto"))

    assert site.end_of(maker) == -signal.SIGKILL

    with site.open() as memory:
        assert memory.publish("work", "I work in Osaka").outcome == "committed"
        assert memory.audit.verify().findings == ()
