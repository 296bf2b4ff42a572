"""Backup and restore: verified copies, one key bundle, and nothing forgotten comes back."""

import json
import multiprocessing
import os
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.sites import renewed

from memoranda.ledger import restoring, vaults
from memoranda.ledger.authority import ModelSession
from memoranda.ledger.backups import BackupReport, verify_copy
from memoranda.ledger.bundles import FILE_NAME, read_bundle
from memoranda.ledger.errors import CLOSED, IntegrityFault, Refusal, Refused, RefusedError
from memoranda.ledger.events import MessageForgotten, Value
from memoranda.ledger.receipts import Receipt
from memoranda.ledger.restoring import Asked
from memoranda.ledger.slots import FILE_BYTES_MAX
from memoranda.tools.cli_backup import _restore_page
from memoranda.tools.memory import Memory, open_memory
from memoranda.tools.restore import RestoreReport, restore
from memoranda.tools.settings import load_settings

SPACE = "us_alice"
REF = "personal-message:s-main-1:"
FACT = "Peanuts make Alice ill."
OTHER = "Alice drinks green tea."
REWRITES = 60


class Stopped(Exception):  # noqa: N818
    """A crash between two steps."""


@pytest.fixture
def away(tmp_path: Path) -> Path:
    return tmp_path / "away"


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, Path]:
    """The folders of an empty machine."""
    return {"data": tmp_path / "new" / "data", "state": tmp_path / "new" / "state"}


@pytest.fixture
def restored(world) -> Callable[..., RestoreReport | Refused]:
    def run(where: dict[str, Path], source: Path, **more: object) -> RestoreReport | Refused:
        return restore(load_settings(space=SPACE, **where), world.stamps, source, Asked(**more))

    return run


def log_of(away: Path) -> Path:
    return sorted((away / SPACE).glob("log-*.db"))[-1]


def facts(memory: Memory) -> list[str]:
    return sorted(read.record.content for read in memory.records())


def contents(*folders: Path) -> bytes:
    paths = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return b"".join(path.name.encode() + path.read_bytes() for path in paths)


# -- backups --------------------------------------------------------------------------------------


def test_a_backup_is_a_whole_log_with_a_manifest_and_the_present_key_bundle(memory, away):
    memory.remember(FACT)

    made = memory.backup(away)

    assert isinstance(made, BackupReport)
    head = memory._parts.log.head()
    assert verify_copy(log_of(away), SPACE)[:2] == head[:2]
    manifest = json.loads((away / SPACE / "manifest.json").read_text())
    assert [it["position"] for it in manifest["copies"]] == [head.position]
    assert read_bundle(away / SPACE).key_epoch == head.key_epoch
    assert made.pending == ()


def test_a_backup_says_nothing_personal_and_is_the_owners_alone(memory, away):
    memory.remember(FACT, key="health/peanuts")

    memory.backup(away)

    everything = contents(away)
    assert b"eanuts" not in everything
    for path in (away / SPACE, *(away / SPACE).iterdir()):
        assert path.stat().st_mode & 0o077 == 0, path.name


def test_a_destination_keeps_as_many_logs_as_it_was_told_and_one_bundle(memory, away):
    for n in range(5):
        memory.remember(f"fact {n}")
        made = memory.backup(away, keep=3 if n == 0 else None)

    assert (made.kept, made.removed) == (3, 1)
    names = sorted(path.name for path in (away / SPACE).iterdir())
    assert len([name for name in names if name.startswith("log-")]) == 3
    assert set(names) - set(log_names(away)) == {FILE_NAME, "manifest.json"}
    manifest = json.loads((away / SPACE / "manifest.json").read_text())
    assert sorted(it["file"] for it in manifest["copies"]) == log_names(away)


def test_how_many_logs_a_destination_keeps_outlives_the_machine_that_was_told(
    opened, away, elsewhere, restored, world
):
    memory = opened()
    for n in range(9):
        memory.remember(f"fact {n}")
        memory.backup(away, keep=30 if n == 0 else None)
    code = memory.recovery_code
    memory.close()
    assert restored(elsewhere, away, code=code).is_served
    with open_memory(SPACE, **elsewhere, stamps=world.stamps) as new:
        new.remember(OTHER)

        made = new.backup(away)

        assert (made.kept, made.removed) == (10, 0)
        fewer = new.backup(away, keep=2)
        assert (fewer.kept, fewer.removed) == (2, 8)


def log_names(away: Path) -> list[str]:
    return sorted(path.name for path in (away / SPACE).glob("log*"))


def test_a_backup_of_an_unchanged_log_is_the_same_copy(memory, away):
    memory.remember(FACT)

    first, second = memory.backup(away), memory.backup(away)

    assert first == second
    assert len(log_names(away)) == 1


@pytest.mark.parametrize("step", ["backup:listed", "backup:copied", "backup:bundled"])
def test_two_backups_at_once_to_one_folder_leave_both_copies(memory, folder, world, away, step):
    answers, waiting = [], threading.Event()
    memory.remember(FACT)

    def back_up_too() -> None:
        with open_memory(SPACE, **folder) as other:
            other.remember(OTHER)
            waiting.set()
            answers.append(other.backup(away))

    thread = threading.Thread(target=back_up_too)

    def start(name: str) -> None:
        if name == step:
            world.at_step = lambda _: None
            thread.start()
            assert waiting.wait(60)
            thread.join(0.5)

    world.at_step = start
    answers.append(memory.backup(away))
    thread.join(60)

    assert [type(it) for it in answers] == [BackupReport] * 2
    made = sorted({it.copy_made.file for it in answers})
    manifest = json.loads((away / SPACE / "manifest.json").read_text())
    assert log_names(away) == [it["file"] for it in manifest["copies"]] == made
    assert len(made) == (1 if step == "backup:listed" else 2)
    assert {it.name for it in memory.doctor() if it.level == "finding"} == set()


@pytest.mark.parametrize("keep", [0, -1, 10_001])
def test_how_many_logs_to_keep_is_a_number_in_bounds(memory, away, keep):
    assert memory.backup(away, keep=keep).field == "keep"
    assert not away.exists()


@pytest.mark.parametrize("root", ["data", "state"])
def test_a_backup_into_the_ledgers_own_folders_is_refused(memory, folder, root):
    for target in (folder[root], folder[root] / SPACE / "backup"):
        assert memory.backup(target).field == "destination"


def test_a_backup_over_another_ledgers_is_refused(memory, elsewhere, world, away):
    memory.backup(away)
    kept = contents(away)

    with open_memory(SPACE, **elsewhere, stamps=world.stamps) as other:
        assert other.backup(away).field == "destination"

    assert contents(away) == kept


def test_only_the_person_makes_backups(primary, task_7, away):
    for caller in (primary, task_7):
        assert caller.backup(away).code == "not_authorized"
    assert not away.exists()


def test_a_destination_that_cannot_be_written_is_refused_without_a_trace_of_text(memory, tmp_path):
    (tmp_path / "file").write_text("in the way")

    answer = memory.backup(tmp_path / "file")

    assert answer.code == "read_only"


def write_many(folder: dict[str, Path], go, stop) -> None:
    with open_memory(SPACE, **folder) as memory:
        go.set()
        n = 0
        while not stop.is_set():
            assert isinstance(memory.remember(f"written meanwhile {n}"), Receipt)
            n += 1


def test_a_backup_is_consistent_while_another_process_writes(memory, folder, away):
    context = multiprocessing.get_context("spawn")
    go, stop = context.Event(), context.Event()
    writer = context.Process(target=write_many, args=(folder, go, stop))
    writer.start()
    assert go.wait(60)

    made = [memory.backup(away, keep=10) for _ in range(6)]

    stop.set()
    writer.join(60)
    assert writer.exitcode == 0
    assert all(isinstance(it, BackupReport) for it in made)
    for path in (away / SPACE).glob("log-*.db"):
        position = int(path.stem.split("-")[1])
        assert verify_copy(path, SPACE).position == position
    assert memory.audit.verify().findings == ()


@pytest.mark.parametrize("change", ["header", "tag", "head", "bytes", "cut"])
def test_a_damaged_copy_of_the_log_is_refused(memory, away, elsewhere, restored, change):
    memory.remember(FACT)
    memory.backup(away)
    path = log_of(away)
    statements = {
        "header": "UPDATE events SET recorded_at = recorded_at + 1 WHERE position = 2",
        "tag": "INSERT INTO tags VALUES ('us_alice', 'op:x', 'y', 99)",
        "head": "UPDATE heads SET position = position - 1",
    }
    if change in statements:
        with closing(sqlite3.connect(path)) as raw:
            raw.execute("DROP TRIGGER events_fix")
            raw.execute(statements[change])
            raw.commit()
    else:
        content = path.read_bytes()
        middle = len(content) // 2
        bad = content[:middle] if change == "cut" else bytes(200) + content[200:]
        path.write_bytes(bad)

    with pytest.raises((IntegrityFault, RefusedError)):
        verify_copy(path, SPACE)
    answer = restored(elsewhere, away, code=None)

    assert isinstance(answer, Refused)
    assert answer.refusal.number == "F38"
    assert not elsewhere["data"].parent.exists()


# -- on an empty machine --------------------------------------------------------------------------


def test_a_backup_comes_back_on_an_empty_machine_with_the_code(
    opened, away, elsewhere, restored, world
):
    memory = opened()
    code = memory.recovery_code
    memory.publish("health/peanuts", FACT)
    memory.remember(OTHER)
    memory.backup(away)
    before = memory.status()

    report = restored(elsewhere, away, code=code)

    assert report.is_served
    assert report.findings == ()
    assert (report.forgotten_again, report.gone, report.messages_lost) == (0, 0, 0)
    assert report.key_epoch == before.key_epoch + 1
    assert report.term == 1
    with open_memory(SPACE, **elsewhere, stamps=world.stamps) as back:
        assert facts(back) == sorted([FACT, OTHER])
        assert back.is_recovery_code(code)
        assert back.audit.verify(with_index=True).findings == ()
        assert [found.found.record.content for found in back.search("tea")] == [OTHER]
        assert isinstance(back.remember("and goes on"), Receipt)


def test_without_the_code_an_empty_machine_restores_nothing(opened, away, elsewhere, restored):
    memory = opened()
    memory.remember(FACT)
    memory.backup(away)

    missing = restored(elsewhere, away)
    wrong = restored(elsewhere, away, code=renewed(memory).replace("A", "B"))

    assert (missing.field, wrong.field) == ("recovery", "recovery")
    assert not (elsewhere["state"] / SPACE).exists()


def test_a_code_that_was_replaced_opens_no_bundle_any_more(opened, away, elsewhere, restored):
    memory = opened()
    memory.remember(FACT)
    memory.backup(away)
    old = memory.recovery_code

    new = renewed(memory)

    assert restored(elsewhere, away, code=old).field == "recovery"
    assert restored(elsewhere, away, code=new).is_served


def test_a_bundle_that_was_changed_is_refused(opened, away, elsewhere, restored):
    memory = opened()
    memory.remember(FACT)
    memory.forget(memory.remember(OTHER).record_id, 1)
    memory.backup(away)
    path = away / SPACE / FILE_NAME
    mark, _, content = path.read_bytes().partition(b"\n")
    said = json.loads(content)
    for changed in ({**said, "journal": ""}, {**said, "keys": said["keys"][1:]}, {}):
        path.write_bytes(mark + b"\n" + json.dumps(changed).encode())

        answer = restored(elsewhere, away, code=memory.recovery_code)

        assert answer.refusal.number == "F38"


def test_a_bundle_that_no_key_of_this_machine_opens_is_refused_when_it_was_changed(
    opened, folder, away, restored
):
    """An older key epoch than the slots have: the mark is made with what no rotation changes."""
    memory = opened()
    memory.remember(FACT)
    memory.forget(memory.remember(OTHER).record_id, 1)
    memory.backup(away)
    memory.close()
    path = away / SPACE / FILE_NAME
    mark, _, content = (genuine := path.read_bytes()).partition(b"\n")
    said = json.loads(content)
    line = json.loads(said["journal"].splitlines()[0])
    header = json.dumps({"removed_keys": [name for name, _, _ in said["keys"] if len(name) > 20]})
    forged = {**line, "type": MessageForgotten.TOPIC, "tags": [], "header": header, "position": 99}
    forged |= {"chain": "00" * 32, "sealed": "", "key_id": None}
    said["journal"] += json.dumps(forged) + "\n"
    said["key_epoch"] -= 1
    path.write_bytes(mark + b"\n" + json.dumps(said).encode())
    kept = (folder["state"] / SPACE / "forgotten").read_bytes()

    answer = restored(folder, away)

    assert (answer.refusal.number, answer.field) == ("F38", "backup")
    assert (folder["state"] / SPACE / "forgotten").read_bytes() == kept
    assert facts(opened()) == [FACT]
    path.write_bytes(genuine)
    assert restored(folder, away, force=True).is_served
    assert facts(opened()) == [FACT]


# -- nothing forgotten comes back -----------------------------------------------------------------


@pytest.fixture
def forgotten(memory, primary, tables, away) -> Memory:
    """A backup from before a forget, whose destination was there when it happened."""
    made = primary.publish("health/peanuts", FACT, sources=[f"{REF}50#0-9"])
    primary.correct(made.record_id, 1, f"{FACT} Badly.", sources=[f"{REF}50#11-17"])
    memory.remember(OTHER)
    memory.backup(away)
    receipt = memory.forget(made.record_id, 2)
    assert receipt.erased_at
    assert receipt.copies == (f"the captured message {REF}50", *tables.leftover)
    return memory


def nothing_is_left(memory: Memory, record_id: str) -> None:
    assert memory.read(record_id).refusal.number == "F35"
    assert facts(memory) == [OTHER]
    assert memory.search("peanuts") == ()
    assert memory.remnants(FACT).remnants == ()
    assert {it.content for it in memory.revisions(record_id)} == {None}
    assert "Badly" not in "".join(memory.explain(record_id))
    assert memory.audit.verify(with_index=True).findings == ()


def test_what_was_forgotten_since_does_not_come_back(forgotten, world, away, elsewhere, restored):
    record_id = forgotten.query(status="forgotten", include_inactive=True).records[0].record.id
    code = forgotten.recovery_code

    report = restored(elsewhere, away, code=code)

    assert report.findings == ()
    assert report.forgotten_again == 1
    assert report.gone > 0
    with open_memory(SPACE, **elsewhere, stamps=world.stamps) as back:
        nothing_is_left(back, record_id)
        main = back.acting_as(ModelSession("s-main-1", "agent-main"))
        again = main.publish("another", "x", sources=[f"{REF}50#2-4"])
        assert again.code == "source_forgotten"
        assert back.status().key_epoch > forgotten.status().key_epoch


def test_a_record_that_was_made_and_forgotten_behind_the_copy_blocks_its_source_too(
    memory, primary, world, away, elsewhere, restored
):
    memory.backup(away)
    made = primary.publish("health/peanuts", FACT, sources=[f"{REF}50#0-9"])
    memory.forget(made.record_id, 1, operation_id="op-forget")

    report = restored(elsewhere, away, code=memory.recovery_code)

    assert (report.forgotten_again, report.findings) == (1, ())
    with open_memory(SPACE, **elsewhere, stamps=world.stamps) as back:
        main = back.acting_as(ModelSession("s-main-1", "agent-main"))
        assert main.publish("x", "y", sources=[f"{REF}50#1-2"]).code == "source_forgotten"
        (buried,) = back.query(status="forgotten", include_inactive=True).records
        assert buried.record.id == made.record_id
        assert back.operation("op-forget").receipt.status == "forgotten"
        assert back.forget(made.record_id, 1, operation_id="op-forget").replayed


def test_a_record_that_was_forgotten_twice_since_is_forgotten_once_with_every_block(
    memory, primary, world, away, elsewhere, restored
):
    first = primary.publish("health/peanuts", FACT, sources=[f"{REF}50#0-9"])
    memory.backup(away)
    memory.forget(first.record_id, 1)
    primary.publish("health/peanuts", FACT, sources=[f"{REF}50#11-17"], expected_revision=2)
    memory.forget(first.record_id, 3)
    world.move(seconds=5)
    memory.finish_forgets()

    report = restored(elsewhere, away, code=memory.recovery_code)

    assert (report.forgotten_again, report.findings) == (1, ())
    with open_memory(SPACE, **elsewhere, stamps=world.stamps) as back:
        main = back.acting_as(ModelSession("s-main-1", "agent-main"))
        for span in ("#1-2", "#12-13"):
            assert main.publish("x", "y", sources=[f"{REF}50{span}"]).code == "source_forgotten"


def test_a_message_that_shared_its_key_with_a_forgotten_one_is_lost_with_it_and_counted(
    memory, primary, world, away, elsewhere, restored
):
    made = primary.publish("health/peanuts", FACT, sources=[f"{REF}50#0-9"])
    memory.backup(away)
    memory.forget(made.record_id, 1, with_sources=True)
    assert memory.remnants("Please answer me").remnants

    report = restored(elsewhere, away, code=memory.recovery_code)

    assert (report.forgotten_again, report.findings) == (1, ())
    assert report.messages_lost == 2  # the other messages of the same bucket of keys
    with open_memory(SPACE, **elsewhere, stamps=world.stamps) as back:
        assert back.remnants("花生").remnants == ()
        assert back.remnants("Please answer me").remnants == ()


def test_an_intent_that_was_aborted_since_is_aborted_again(
    memory, world, away, elsewhere, restored
):
    memory.prepare({"name": "publish", "operation_id": "op-1", "key": "plan", "content": FACT})
    memory.backup(away)
    memory.reconcile("op-1", writers_stopped=True, reason="nobody will finish it")
    memory.rotate_keys()

    report = restored(elsewhere, away, code=memory.recovery_code)

    assert report.findings == ()
    with open_memory(SPACE, **elsewhere, stamps=world.stamps) as back:
        assert back.operation("op-1").state == "aborted"
        assert back.remnants(FACT).remnants == ()
        assert isinstance(back.publish("plan", "another"), Receipt)


def test_an_intent_of_before_is_ended_by_the_forget_of_its_record(
    memory, world, away, elsewhere, restored
):
    request = {"name": "publish", "operation_id": "op-1", "key": "plan", "content": FACT}
    memory.prepare(request)
    memory.backup(away)
    made = memory.commit(memory.operation("op-1").intent)
    memory.forget(made.record_id, 1)

    report = restored(elsewhere, away, code=memory.recovery_code)

    assert (report.forgotten_again, report.findings) == (1, ())
    with open_memory(SPACE, **elsewhere, stamps=world.stamps) as back:
        assert back.status().unfinished == 0
        assert back.remnants(FACT).remnants == ()
        again = back.publish("plan", "another", expected_revision=made.to_revision + 1)
        assert isinstance(again, Receipt)
        assert back.audit.verify(with_index=True).findings == ()


def test_an_old_bundle_and_the_code_still_read_what_was_forgotten_since(
    opened, world, tables, away, tmp_path, elsewhere, restored
):
    """The honest limit: a destination that was away when it happened, so named in the receipt."""
    memory = opened()
    made = memory.remember(FACT)
    memory.backup(away)
    away.rename(tmp_path / "in a drawer")

    receipt = memory.forget(made.record_id, 1, operation_id="op-forget")

    assert receipt.erased_at
    assert [str(away) in it for it in receipt.copies] == [True, *(False for _ in tables.leftover)]
    report = restored(elsewhere, tmp_path / "in a drawer", code=memory.recovery_code)
    assert report.forgotten_again == 0
    with open_memory(SPACE, **elsewhere, stamps=world.stamps) as back:
        assert facts(back) == [FACT]


@pytest.fixture
def lost(opened, away, tmp_path) -> tuple[Memory, str, Path]:
    """A fact forgotten since it went into a backup that is lost and an export that is there."""
    memory, file = opened(), tmp_path / "export.jsonl"
    made = memory.remember(FACT)
    memory.backup(away)
    memory.export(file)
    away.rename(tmp_path / "lost")
    assert memory.forget(made.record_id, 1, operation_id="op-forget").erased_at
    return memory, made.record_id, file


def test_a_copy_that_the_person_says_is_gone_is_named_by_no_forget_until_it_is_made_again(
    lost, away
):
    memory, record_id, file = lost

    def named() -> list[bool]:
        copies = memory.forget(record_id, 1, operation_id="op-forget").copies
        return [any(str(it) in copy for copy in copies) for it in (away, file)]

    assert named() == [True, True]
    assert memory.copy_is_gone(away) == (str(file),)
    assert (named(), memory.old_bundles()) == ([False, True], ())
    file.unlink()
    assert memory.copy_is_gone(file) == ()
    assert named() == [False, False]

    memory.backup(away)
    (away / SPACE).rename(away / "lost again")
    memory.rotate_keys()
    assert memory.old_bundles() == (str(away),)


def test_only_the_person_says_that_a_copy_is_gone_and_of_none_that_can_be_seen(lost, away):
    memory, _, file = lost
    memory.backup(away)
    known = memory._parts.log.copies.read()
    session = memory.acting_as(ModelSession("s-main-1", "agent-main"))

    refused = [memory.copy_is_gone(it) for it in (away, file, file.with_name("no copy"))]
    others = session.copy_is_gone(away)

    assert [(it.code, it.field) for it in refused] == [("invalid_request", "path")] * 3
    assert [it.message[:5] for it in refused] == ["is st", "is st", "is no"]
    assert others.code == "not_authorized"
    assert memory._parts.log.copies.read() == known


def test_a_copy_that_nobody_may_look_for_is_not_gone(opened, tmp_path):
    memory, disk = opened(), tmp_path / "disk"
    memory.backup(disk / "away")
    disk.rename(tmp_path / "another name")
    disk.symlink_to(disk)  # a loop, which keeps root out as well

    refused = memory.copy_is_gone(disk / "away")

    assert (refused.code, refused.field) == ("read_only", "path")
    assert memory._parts.log.copies.read().paths == (str(disk / "away"),)


def test_a_destination_that_comes_back_gets_the_present_bundle_at_the_next_opening(
    opened, tables, away, tmp_path, elsewhere, restored
):
    memory = opened()
    made = memory.remember(FACT)
    memory.backup(away)
    old = (away / SPACE / FILE_NAME).read_bytes()
    away.rename(tmp_path / "in a drawer")
    memory.forget(made.record_id, 1, operation_id="op-forget")
    memory.close()
    (tmp_path / "in a drawer").rename(away)

    memory = opened()

    assert memory.forget(made.record_id, 1, operation_id="op-forget").copies == tables.leftover
    assert (away / SPACE / FILE_NAME).read_bytes() != old
    report = restored(elsewhere, away, code=renewed(memory))
    assert report.forgotten_again == 1


def test_a_bundle_that_is_rewritten_meanwhile_is_read_whole(memory, away):
    memory.backup(away)
    log, is_done = memory._parts.log, threading.Event()

    def read_on() -> None:
        while not is_done.is_set():
            read_bundle(away / SPACE)

    with ThreadPoolExecutor() as threads:
        reads = [threads.submit(read_on) for _ in range(2)]
        try:
            for _ in range(REWRITES):
                log.write_bundle(log.copies.read().backups[0])
        finally:
            is_done.set()

    assert [it.result() for it in reads] == [None, None]


def test_a_copy_that_a_backup_lets_go_of_meanwhile_gives_way_to_the_newer_one(
    memory, away, elsewhere, restored, monkeypatch
):
    memory.backup(away, keep=1)
    take_copy = restoring.take_copy

    def taken_later(there: Path, own: Path) -> None:
        monkeypatch.setattr(restoring, "take_copy", take_copy)
        memory.remember(FACT)
        memory.backup(away)
        take_copy(there, own)

    monkeypatch.setattr(restoring, "take_copy", taken_later)

    report = restored(elsewhere, away, code=memory.recovery_code)

    assert report.is_served
    with open_memory(SPACE, **elsewhere) as back:
        assert FACT in facts(back)


def test_every_known_destination_is_rewritten_after_a_rotation(memory, tmp_path):
    places = [tmp_path / name for name in ("one", "two")]
    for place in places:
        memory.backup(place)

    key_epoch = memory.rotate_keys()

    assert {read_bundle(place / SPACE).key_epoch for place in places} == {key_epoch}


@pytest.mark.parametrize("step", ["rotate:slot-written", "rotate:rewrapped", "rotate:truncated"])
def test_a_backup_after_a_rotation_that_was_cut_short_opens_with_the_code(
    opened, world, away, elsewhere, restored, step
):
    memory = opened()
    memory.publish("home", "I live in Kyoto")

    def stop(name: str) -> None:
        if name == step:
            raise Stopped

    world.at_step = stop
    with pytest.raises(Stopped):
        memory.rotate_keys()
    world.at_step = lambda _: None
    for number in range(70):  # more than lie ready: keys are minted under the new one too
        memory.publish(f"key {number}", f"fact {number}")
    memory.backup(away)

    assert restored(elsewhere, away, code=memory.recovery_code).is_served
    with open_memory(SPACE, **elsewhere, stamps=world.stamps) as back:
        assert len(back.records()) == 71


def test_a_bundle_that_is_replaced_is_overwritten_first(memory, away):
    memory.backup(away)
    held = (away / SPACE / FILE_NAME).open("rb")
    old = held.read()

    memory.rotate_keys()

    held.seek(0)
    with held:
        assert held.read() == bytes(len(old))


def test_a_torn_bundle_is_overwritten_too_and_what_is_none_is_only_replaced(memory, tmp_path):
    """Whoever may write to the folder makes nobody write a terabyte, nor over his own files."""
    torn, hole, note = (tmp_path / name for name in ("torn", "hole", "note"))
    held = {}
    for away in (torn, hole, note):
        memory.backup(away)
        path = away / SPACE / FILE_NAME
        if away == torn:
            os.truncate(path, path.stat().st_size - 100)
        elif away == hole:
            path.unlink()
            path.touch()
            os.truncate(path, 1 << 40)
        else:
            path.write_bytes(b"somebody's own note")
        held[away] = path.open("rb")

    memory.forget(memory.remember(FACT).record_id, 1)

    with held[torn] as file:
        assert set(file.read()) == {0}
    with held[hole] as file:
        assert os.fstat(file.fileno()).st_blocks == 0
    with held[note] as file:
        assert file.read() == b"somebody's own note"
    key_epoch = memory.status().key_epoch
    assert {read_bundle(it / SPACE).key_epoch for it in held} == {key_epoch}


def changed_list(path: Path) -> None:
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "copies": said["copies"][1:]}))


@pytest.mark.parametrize(
    "damage", [lambda path: path.write_bytes(path.read_bytes()[:100]), changed_list]
)
def test_a_torn_or_changed_list_of_copies_lets_go_of_none_and_the_way_out_is_named(
    memory, tmp_path, away, damage
):
    for text in (FACT, OTHER):
        memory.remember(text)
        memory.backup(away)
    damage(away / SPACE / "manifest.json")
    kept = contents(away)

    refused = memory.backup(away)

    assert (refused.code, refused.field) == ("invalid_request", "destination")
    assert f"move the folder {SPACE} there away" in refused.message
    assert contents(away) == kept
    (told,) = [it for it in memory.doctor() if it.name == "backup"]
    assert refused.message in told.message
    (away / SPACE).rename(tmp_path / "moved away")
    assert isinstance(memory.backup(away), BackupReport)
    assert [it for it in memory.doctor() if it.level == "finding"] == []


@pytest.mark.parametrize(("by", "which"), [(-1, "an older"), (1, "a newer")])
@pytest.mark.parametrize(("name", "kind"), [("manifest.json", "backup"), (FILE_NAME, "keys")])
def test_what_another_version_wrote_is_called_older_or_newer_and_never_damaged(
    memory, away, elsewhere, restored, name, kind, by, which
):
    memory.backup(away)
    path = away / SPACE / name
    other = re.sub(
        f"(?<=memoranda-{kind}/)[0-9]+", lambda it: str(int(it[0]) + by), path.read_text()
    )
    path.write_text(other)
    words = f"has {which} format, which this version cannot read"

    answer = restored(elsewhere, away, code=memory.recovery_code)

    assert (answer.refusal.number, answer.field, words in answer.message) == ("F38", "backup", True)
    (told,) = [it for it in memory.doctor() if it.name == "backup"]
    assert words in told.message
    kept, is_manifest = contents(away), name == "manifest.json"
    refused = memory.backup(away)
    assert refused.code == "invalid_request"
    assert (words if is_manifest else "another version's backups are there") in refused.message
    assert f"move {'the folder ' if is_manifest else ''}{SPACE} there away" in refused.message
    if not is_manifest:
        memory.rotate_keys()
    assert contents(away) == kept


# -- on a machine that has a state ----------------------------------------------------------------


def test_a_lost_data_folder_comes_back_without_the_code(opened, folder, tables, away, restored):
    memory = opened()
    made = memory.remember(FACT)
    memory.remember(OTHER)
    memory.backup(away)
    memory.forget(made.record_id, 1)
    memory.close()
    tables.lose()
    shutil.rmtree(folder["data"])
    with pytest.raises(RefusedError):
        opened()

    report = restored(folder, away)

    assert (report.forgotten_again, report.findings) == (1, ())
    nothing_is_left(opened(), made.record_id)


def test_a_log_that_was_rolled_back_is_refused_outside_restore_and_restore_says_what_is_gone(
    opened, folder, tables, away, restored, world, tmp_path
):
    memory = opened()
    memory.remember(OTHER)
    memory.backup(away)
    memory.close()
    put_back = tables.kept()
    shutil.copytree(folder["data"], tmp_path / "kept")
    memory = opened()
    world.move(hours=1)
    for n in range(3):
        memory.remember(f"later {n}")
    memory.close()
    shutil.rmtree(folder["data"])
    shutil.copytree(tmp_path / "kept", folder["data"])
    put_back()
    with pytest.raises(RefusedError, match="older copy"):
        opened()

    report = restored(folder, away)

    assert report.gone == 3
    assert report.recorded_at.startswith("2026-10-06T12:00")
    assert report.gone_until.startswith("2026-10-06T13:00")
    memory = opened()
    assert facts(memory) == [OTHER]
    with memory._parts.log.reading() as store:
        shapes = [(e.header.TOPIC, e.body(Value)) for e in store.page(0, 100)]
    (before,) = [body for topic, body in shapes if topic == "ledger.restored/1"]
    assert before.position == report.position + 3


def test_a_bundle_that_was_away_comes_back_with_the_code_and_this_machines_journal(
    opened, folder, tables, away, tmp_path, restored
):
    memory = opened()
    code, made = memory.recovery_code, memory.remember(FACT)
    memory.remember(OTHER)
    memory.backup(away)
    away.rename(tmp_path / "in a drawer")
    memory.forget(made.record_id, 1)
    memory.close()
    tables.lose()
    shutil.rmtree(folder["data"])

    assert restored(folder, tmp_path / "in a drawer").field == "recovery"
    report = restored(folder, tmp_path / "in a drawer", code=code)

    assert (report.forgotten_again, report.findings) == (1, ())
    nothing_is_left(opened(), made.record_id)


def test_an_older_copy_is_restored_when_it_is_asked_for(memory, away, elsewhere, restored, world):
    memory.remember(OTHER)
    first = memory.backup(away).copy_made.position
    memory.remember(FACT)
    memory.backup(away)
    log_of(away).write_bytes(b"damaged")
    code = memory.recovery_code

    assert restored(elsewhere, away, code=code).field == "backup"
    assert restored(elsewhere, away, code=code, position=first - 1).field == "backup"
    assert restored(elsewhere, away, code=code, position=first).position == first
    with open_memory(SPACE, **elsewhere, stamps=world.stamps) as back:
        assert facts(back) == [OTHER]


def test_a_folder_that_holds_another_ledgers_bundle_by_now_is_left_alone(
    memory, away, elsewhere, world
):
    memory.backup(away)
    shutil.rmtree(away)
    with open_memory(SPACE, **elsewhere, stamps=world.stamps) as other:
        other.backup(away)
    kept = contents(away)

    memory.rotate_keys()

    assert contents(away) == kept


def nothing_but_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_link_to(path: Path) -> None:
    kept = path.parents[2] / "somebody's own file"
    kept.write_text("not ours to overwrite")
    path.unlink()
    path.symlink_to(kept)


def in_another_way(**more: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        mark, _, content = path.read_bytes().partition(b"\n")
        path.write_bytes(mark + b"\n" + json.dumps({**json.loads(content), **more}).encode())

    return change


BAD_BUNDLES = {
    "deep": lambda path: path.write_bytes(b"ab\n" + b"[" * 200_000),
    "a pipe": nothing_but_a_pipe,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link": a_link_to,
    "a pipe beside it": lambda path: os.mkfifo(path.with_name(path.name + ".new")),
    "a hole": lambda path: os.truncate(path, FILE_BYTES_MAX + 1),
    "endless epoch": in_another_way(key_epoch=float("inf")),
    "large epoch": in_another_way(key_epoch=1 << 40),
    "large epoch of a key": in_another_way(keys=[["secret", 1 << 40, ""]]),
}


@pytest.mark.parametrize("name", BAD_BUNDLES)
def test_a_bad_bundle_in_one_destination_keeps_nobody_out(
    opened, away, tmp_path, elsewhere, restored, name
):
    memory = opened()
    gone, code = memory.remember(FACT), memory.recovery_code
    memory.remember(OTHER)
    memory.backup(away)
    memory.backup(tmp_path / "good")
    BAD_BUNDLES[name](away / SPACE / FILE_NAME)

    is_refused = name != "a pipe beside it"
    assert isinstance(restored(elsewhere, away, code=code), Refused if is_refused else object)
    memory.forget(gone.record_id, 1)
    memory.close()
    memory = opened()

    assert facts(memory) == [OTHER]
    key_epoch = memory.status().key_epoch
    assert read_bundle(tmp_path / "good" / SPACE).key_epoch == key_epoch
    if name in {"a pipe", "a folder", "a link"}:
        assert memory.backup(away).code == "read_only"
    else:
        assert read_bundle(away / SPACE).key_epoch == key_epoch
    if name == "a link":
        assert (tmp_path / "somebody's own file").read_text() == "not ours to overwrite"


@pytest.mark.parametrize("name", ["manifest.json", "log"])
def test_a_pipe_in_place_of_a_backups_file_is_refused_and_not_waited_for(
    memory, away, elsewhere, restored, name
):
    memory.remember(FACT)
    memory.backup(away)
    nothing_but_a_pipe(log_of(away) if name == "log" else away / SPACE / name)

    assert restored(elsewhere, away, code=memory.recovery_code).field == "backup"


def test_a_manifest_leads_to_no_file_outside_its_folder(memory, away, elsewhere, restored):
    memory.remember(FACT)
    memory.backup(away)
    log_of(away).rename(away / "log-000000000004.db")
    path = away / SPACE / "manifest.json"
    path.write_text(path.read_text().replace('"log-', '"../log-'))

    assert restored(elsewhere, away, code=memory.recovery_code).field == "backup"


def test_a_backup_writes_the_anchor(memory, away, folder):
    memory.remember(FACT)

    made = memory.backup(away)

    anchor = json.loads((folder["state"] / SPACE / "anchor").read_text())
    assert anchor["position"] == made.copy_made.position


def test_a_ledger_that_goes_further_is_not_replaced_unless_forced(opened, folder, away, restored):
    memory = opened()
    memory.remember(OTHER)
    memory.backup(away)
    memory.remember(FACT)
    memory.close()

    answer = restored(folder, away)

    assert answer.field == "force"
    memory = opened()
    assert facts(memory) == sorted([FACT, OTHER])
    memory.close()
    assert restored(folder, away, force=True).gone == 1
    assert facts(opened()) == [OTHER]


def test_a_restore_over_another_ledger_needs_force_and_then_takes_its_place(
    opened, away, elsewhere, restored, world
):
    memory = opened()
    memory.remember(OTHER)
    memory.backup(away)
    with open_memory(SPACE, **elsewhere, stamps=world.stamps) as other:
        other.forget(other.remember(FACT).record_id, 1)
        other.backup(away.with_name("others"))
    kept = contents(away.with_name("others"))

    assert restored(elsewhere, away, code=memory.recovery_code).field == "force"
    report = restored(elsewhere, away, code=memory.recovery_code, force=True)

    assert (report.findings, report.forgotten_again) == ((), 0)
    assert contents(away.with_name("others")) == kept
    with open_memory(SPACE, **elsewhere, stamps=world.stamps) as back:
        assert facts(back) == [OTHER]


def test_a_damaged_ledger_is_replaced(opened, folder, away, restored):
    memory = opened()
    memory.remember(OTHER)
    memory.backup(away)
    memory.close()
    for name in ("ledger.db", "keys.db"):
        (folder["data"] / SPACE / name).write_bytes(b"nothing of it is left" * 500)

    report = restored(folder, away)

    assert report.findings == ()
    assert facts(opened()) == [OTHER]


def test_a_copy_under_later_keys_than_its_bundle_comes_back_where_that_is_asked_for(
    memory, elsewhere, away, restored
):
    """As a folder that was copied half, or into which an older bundle was put back."""
    memory.publish("one", FACT)
    memory.backup(away)
    older = (away / SPACE / FILE_NAME).read_bytes()
    for _ in range(2):
        memory.rotate_keys()
    memory.publish("two", OTHER)
    memory.backup(away)
    (away / SPACE / FILE_NAME).write_bytes(older)

    refused = restored(elsewhere, away, code=memory.recovery_code)
    assert (refused.field, "key bundle is older" in refused.message) == ("force", True)
    assert restored(elsewhere, away, code=memory.recovery_code, force=True).is_served

    with open_memory(SPACE, **elsewhere, create=False) as back:
        assert {FACT, OTHER} <= set(facts(back))
        assert back.remember("It goes on").outcome == "committed"


def test_a_process_that_had_the_ledger_open_goes_on_after_a_restore(opened, folder, away, restored):
    memory = opened()
    memory.remember(OTHER)
    memory.backup(away)

    assert restored(folder, away, force=True).is_served

    assert isinstance(memory.remember(FACT), Receipt)
    assert facts(memory) == sorted([FACT, OTHER])
    assert memory.audit.verify(with_index=True).findings == ()


def test_who_had_the_ledger_open_goes_on_in_no_other_one_that_a_restore_puts_there(
    opened, folder, elsewhere, away, restored
):
    with open_memory(SPACE, **elsewhere) as another:
        code = another.recovery_code
        another.publish("tea", "Another Alice drinks tea.")
        another.backup(away)
    memory = opened()
    memory.publish("home", FACT)

    assert restored(folder, away, force=True, code=code).is_served
    answers = [memory.publish("tea", OTHER), memory.search("tea"), memory.publish("tea", OTHER)]

    assert {it.refusal for it in answers} == {CLOSED.refusal}
    with opened() as new:
        assert facts(new) == ["Another Alice drinks tea."]
        assert new.audit.verify(with_index=True).findings == ()


def test_a_host_that_had_attached_after_the_backup_holds_no_term_of_what_is_restored(
    opened, folder, away, restored
):
    """Its term has the number that the restore takes; the holder is another."""
    with opened() as memory:
        memory.remember(FACT)
        memory.backup(away)
    other = opened(host="other")
    assert other.remember(OTHER).epoch == 1

    assert restored(folder, away, force=True).term == 1
    refused = other.remember("It goes on")

    assert refused.refusal is Refusal.EXECUTION_FENCED
    assert opened().remember("It goes on").epoch == 1


@pytest.mark.sqlite("the log is a file")
@pytest.mark.parametrize("loss", ["removed", "damaged"])
def test_who_has_the_log_open_writes_nothing_into_it_once_another_has_its_place(
    opened, folder, away, restored, loss
):
    memory = opened()
    memory.remember(FACT)
    memory.backup(away)
    log = folder["data"] / SPACE / "ledger.db"
    if loss == "removed":
        log.unlink()
        log.with_name("ledger.db-wal").unlink()
    else:
        log.write_bytes(b"nothing of it is left" * 500)

    assert restored(folder, away).is_served
    answers = [memory.remember(OTHER), memory.search("tea"), memory.remember(OTHER)]

    assert {it.refusal for it in answers} == {CLOSED.refusal}
    memory.close()
    with opened() as new:
        assert facts(new) == [FACT]
        assert new.remember(OTHER).outcome == "committed"
        assert new.audit.verify(with_index=True).findings == ()


@pytest.fixture
def torn(opened, away, tmp_path) -> tuple[Memory, str, Path]:
    """An open ledger that forgot a fact, and the way back from before that, with its code."""
    memory = opened()
    made = memory.remember(FACT)
    memory.remember(OTHER)
    memory.backup(away)
    away.rename(tmp_path / "in a drawer")
    assert memory.forget(made.record_id, 1).erased_at
    return memory, made.record_id, tmp_path / "in a drawer"


def test_at_no_step_of_a_restore_does_who_had_the_ledger_open_read_what_was_forgotten(
    torn, folder, world, restored
):
    memory, record_id, drawer = torn
    told: dict[str, object] = {}

    def look(step: str) -> None:
        reads = (memory.read(record_id, include_inactive=True), memory.search("peanuts"))
        told[step] = [getattr(it, "refusal", it) for it in reads]

    world.at_step = look
    assert restored(folder, drawer, code=memory.recovery_code, force=True).forgotten_again == 1
    world.at_step = lambda _: None

    assert {"restore:marked", "restore:log", "restore:replayed", "rotate:rewrapped"} <= set(told)
    assert FACT not in str(told)
    assert {it.number for it in told["restore:log"]} == {"F38"}
    nothing_is_left(memory, record_id)


def test_while_a_restore_has_not_ended_who_had_the_ledger_open_neither_reads_nor_writes(
    torn, folder, world, restored, tmp_path
):
    memory, record_id, drawer = torn

    def stop(step: str) -> None:
        if step == "restore:log":
            raise Stopped

    world.at_step = stop
    with pytest.raises(Stopped):
        restored(folder, drawer, code=memory.recovery_code, force=True)
    world.at_step = lambda _: None
    refused = [
        memory.remember("Acknowledged and gone"),
        memory.read(record_id),
        memory.search("peanuts"),
        memory.backup(tmp_path / "another"),
    ]

    assert {(it.refusal.number, it.field) for it in refused} == {("F38", "data")}
    assert key_ids(folder).isdisjoint(journalled_keys(memory))
    assert restored(folder, drawer, code=memory.recovery_code, force=True).is_served
    assert isinstance(memory.remember("Acknowledged"), Receipt)


def key_ids(folder: dict[str, Path]) -> set[str]:
    with closing(sqlite3.connect(folder["data"] / SPACE / "keys.db")) as raw:
        return {key_id for (key_id,) in raw.execute("SELECT key_id FROM keys")}


def journalled_keys(memory: Memory) -> set[str]:
    headers = [json.loads(row.header) for row in memory._parts.log.journal.read()]
    named = {key_id for header in headers for key_id in header["removed_keys"]}
    assert named
    return named


def test_what_is_remembered_and_forgotten_after_a_restore_by_who_had_the_ledger_open_lasts(
    torn, opened, folder, restored
):
    """Under keys that are in the file, and erased although the positions were seen before."""
    first, _, drawer = torn
    memory = opened()
    for number in range(20):
        assert memory.remember(f"Not in the backup, {number}").to_revision == 1
    lost = memory.remember("Not in the backup")
    assert memory.forget(lost.record_id, 1, operation_id="op").position > 20
    assert memory.finish_forgets() == ()
    assert restored(folder, drawer, code=first.recovery_code, force=True).is_served

    kept, made = memory.remember("It lasts"), memory.remember("It goes")
    receipt = memory.forget(made.record_id, 1)

    assert receipt.erased_at or memory.finish_forgets() == ()
    assert key_ids(folder).isdisjoint(journalled_keys(memory))
    assert opened().read(kept.record_id).record.content == "It lasts"
    assert memory.audit.verify(with_index=True).findings == ()


# -- damaged state files --------------------------------------------------------------------------

DEEP = b"[" * 200_000


def said_otherwise(**more: object) -> Callable[[Path], None]:
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), **more}))


def of_copies(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(text)


STATE_FILES = {
    "an anchor that is no number": ("anchor", said_otherwise(position="x")),
    "an anchor without a number": ("anchor", said_otherwise(position=None)),
    "an anchor beyond every log": ("anchor", said_otherwise(position=10**22)),
    "an anchor beyond every calendar": ("anchor", said_otherwise(recorded_at=1 << 62)),
    "an anchor beyond every slot": ("anchor", said_otherwise(key_epoch=1 << 32)),
    "a deep anchor": ("anchor", lambda path: path.write_bytes(DEEP)),
    "an anchor of bytes": ("anchor", lambda path: path.write_bytes(b"\xff\xfe")),
    "an anchor that is a pipe": ("anchor", nothing_but_a_pipe),
    "an anchor that is a folder": ("anchor", lambda path: (path.unlink(), path.mkdir())),
    "slots that are a pipe": ("slots", nothing_but_a_pipe),
    "slots that are a folder": ("slots", lambda path: (path.unlink(), path.mkdir())),
    "copies at no path": (
        "copies", of_copies('{"backups": [{"path": "a\\u0000b", "keep": 7}]}'),
    ),
    "deep copies": ("copies", lambda path: path.write_bytes(DEEP)),
    "copies that are a pipe": ("copies", nothing_but_a_pipe),
}  # fmt: skip


@pytest.mark.parametrize("name", STATE_FILES)
def test_a_damaged_state_file_is_named_by_the_opening(opened, folder, away, name):
    memory = opened()
    memory.remember(FACT)
    memory.backup(away)
    memory.close()
    file, damage = STATE_FILES[name]
    damage(folder["state"] / SPACE / file)

    with pytest.raises((IntegrityFault, RefusedError)) as fault:
        opened()

    said = {"anchor": "the anchor", "slots": "the slot file", "copies": "the list of copies"}
    assert said[file] in str(fault.value)


def test_journal_lines_that_are_none_are_left_out(opened, folder, away, restored):
    memory = opened()
    memory.forget(memory.remember(FACT).record_id, 1)
    memory.remember(OTHER)
    memory.backup(away)
    path = folder["state"] / SPACE / "forgotten"
    (line,) = path.read_bytes().splitlines()
    bad = [{"position": [1]}, {"position": 10**22}, {"header": []}, {"tags": 7}, {"sealed": None}]
    lines = [DEEP, b"7", b"\xff", *(json.dumps({**json.loads(line), **it}).encode() for it in bad)]
    path.write_bytes(b"\n".join([*lines, line, b""]))
    memory.close()

    assert len(opened()._parts.log.journal.read()) == 1
    assert restored(folder, away, force=True).is_served
    assert facts(opened()) == [OTHER]


def test_a_forget_that_this_version_does_not_know_is_found_before_anything_is_replaced(
    opened, folder, away, restored
):
    memory = opened()
    memory.forget(memory.remember(FACT).record_id, 1)
    memory.backup(away)
    memory.remember(OTHER)
    memory.close()
    path = folder["state"] / SPACE / "forgotten"
    kept = path.read_bytes()
    path.write_bytes(kept.replace(b"record.committed/1", b"record.committed/9"))
    assert path.read_bytes() != kept

    answer = restored(folder, away, force=True)

    assert (answer.field, "record.committed/9" in answer.message) == ("backup", True)
    assert facts(opened()) == [OTHER]


# -- crashes --------------------------------------------------------------------------------------


def steps_of(world, run: Callable[[], object]) -> list[str]:
    world.steps.clear()
    run()
    return list(world.steps)


def raise_stopped() -> None:
    raise Stopped


def stop_at(world, place: int, stop: Callable[[], object] = raise_stopped) -> None:
    left = iter(range(place))

    def step(_: str) -> None:
        if next(left, None) is None:
            world.at_step = lambda _: None
            stop()

    world.at_step = step


def killed(world, place: int, run: Callable[[], object]) -> None:
    """Runs in a process of its own that dies at a step, with nothing closed or tidied."""
    child = os.fork()
    if child == 0:
        stop_at(world, place, lambda: os._exit(9))
        with suppress(BaseException):
            run()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    # The dead process drew from the same entropy: what follows must not draw the same again.
    world.drawn += 10_000


def test_a_backup_that_a_crash_stops_at_any_step_is_made_whole_by_the_next(opened, world, tmp_path):
    memory = opened()
    memory.remember(FACT)
    steps = steps_of(world, lambda: memory.backup(tmp_path / "whole"))
    assert len(steps) > 5

    for place in range(len(steps)):
        away = tmp_path / f"stopped {place}"
        stop_at(world, place)
        with pytest.raises(Stopped):
            memory.backup(away)
        assert str(away) in {it.path for it in memory._parts.log.copies.read().backups}

        made = memory.backup(away)

        assert isinstance(made, BackupReport)
        assert {path.name for path in (away / SPACE).iterdir()} == {
            made.copy_made.file,
            FILE_NAME,
            "manifest.json",
        }


@pytest.mark.parametrize("has_code", [True, False], ids=["empty machine", "lost data"])
def test_a_restore_that_a_crash_stops_at_any_step_ends_the_same_when_it_is_repeated(
    opened, folder, world, tmp_path, away, restored, has_code
):
    memory = opened()
    code = memory.recovery_code if has_code else None
    made = memory.remember(FACT)
    memory.remember(OTHER)
    memory.backup(away)
    memory.forget(made.record_id, 1)
    memory.close()
    shutil.copytree(away, tmp_path / "backup")

    def machine(name: str) -> dict[str, Path]:
        where = {"data": tmp_path / name / "data", "state": tmp_path / name / "state"}
        shutil.rmtree(away)
        shutil.copytree(tmp_path / "backup", away)
        if not has_code:
            shutil.copytree(folder["state"], where["state"])
        return where

    whole = machine("whole")
    steps = steps_of(world, lambda: restored(whole, away, code=code))
    assert {"restore:marked", "restore:log", "restore:replayed", "rotate:rewrapped"} <= set(steps)
    for place, name in enumerate(steps):
        where = machine(f"stopped {place}")
        killed(world, place, lambda where=where: restored(where, away, code=code))
        with pytest.raises(RefusedError, match="restore"):
            open_memory(SPACE, **where, stamps=world.stamps)

        report = restored(where, away, code=code)

        assert isinstance(report, RestoreReport), (place, name, report)
        told = (report.forgotten_again, report.messages_lost, report.findings)
        assert told == (1, 0, ()), (place, name)
        assert list((where["data"] / SPACE).glob("restoring-*")) == []
        with open_memory(SPACE, **where, stamps=world.stamps) as back:
            nothing_is_left(back, made.record_id)


def test_a_ledger_under_a_passphrase_is_restored_with_it_or_with_the_code(
    opened, world, folder, away, elsewhere, restored, monkeypatch
):
    monkeypatch.setattr(vaults, "SCRYPT_COST", (4, 8, 1))
    memory = opened(passphrase="a few words")
    code = memory.recovery_code
    gone = memory.remember(FACT)
    assert isinstance(memory.backup(away), BackupReport)
    memory.forget(gone.record_id, 1)
    memory.close()

    without = restored(folder, away, force=True)
    assert (without.code, without.field) == ("invalid_request", "recovery")
    settings = load_settings(space=SPACE, **folder)
    back = restore(settings, world.stamps, away, Asked(force=True), passphrase="a few words")

    assert (back.forgotten_again, back.is_served) == (1, True)
    assert not back.lacks_passphrase
    memory = opened(passphrase="a few words")
    assert facts(memory) == []
    memory.close()
    for where in (elsewhere, folder):
        by_code = restored(where, away, code=code, force=True)
        assert (by_code.is_served, by_code.lacks_passphrase) == (True, True)
        assert "keys passphrase" in "".join(str(it) for it in _restore_page(by_code))
    assert "keys passphrase" not in "".join(str(it) for it in _restore_page(back))


def test_messages_that_were_forgotten_for_themselves_do_not_come_back(
    opened, memory, folder, away, restored
):
    assert isinstance(memory.backup(away), BackupReport)
    fall = memory.falling(session="s-main-1")
    assert memory.forget_many(fall, with_sources=True).messages == 3
    memory.close()

    assert restored(folder, away, force=True).findings == ()

    memory = opened()
    assert memory.remnants("Please answer me").remnants == ()
    said = {"session": "s-main-1", "seq": 42, "role": "user", "text": "Please answer me"}
    (again,) = memory.capture([said])
    assert again.refusal.number == "F15"
