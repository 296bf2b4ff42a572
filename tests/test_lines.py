"""Lines of one ledger: after a restore two may go on, and neither takes the other's place."""

import fcntl
import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.sites import renewed

from memoranda.ledger import backups, chain, restoring
from memoranda.ledger.backups import BackupReport, LogCopy, read_manifest
from memoranda.ledger.bundles import FILE_NAME, read_bundle
from memoranda.ledger.errors import Refused, RefusedError
from memoranda.ledger.events import ForgetCompleted, MessageForgotten, SpaceForgotten
from memoranda.ledger.locks import flocked
from memoranda.ledger.restoring import Asked, Restoring
from memoranda.ledger.vaults import KeptKey
from memoranda.ledger.witness import Journal
from memoranda.tools.cli_backup import _restore_page
from memoranda.tools.memory import Memory, open_memory
from memoranda.tools.restore import RestoreReport, restore
from memoranda.tools.settings import load_settings

SPACE = "us_alice"
REF = "personal-message:s-main-1:"
FACT = "Peanuts make Alice ill."
OTHER = "Alice drinks green tea."
NEWER = "Alice moved to Kyoto."


class Stopped(Exception):  # noqa: N818
    """A crash between two steps."""


@pytest.fixture
def away(tmp_path: Path) -> Path:
    return tmp_path / "away"


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str], dict[str, Path]]:
    """The folders of an empty machine."""
    return lambda name: {root: tmp_path / name / root for root in ("data", "state")}


@pytest.fixture
def restored(world) -> Callable[..., RestoreReport | Refused]:
    def run(where: dict[str, Path], source: Path, **more: object) -> RestoreReport | Refused:
        return restore(load_settings(space=SPACE, **where), world.stamps, source, Asked(**more))

    return run


@pytest.fixture
def on(world) -> Callable[[dict[str, Path]], Memory]:
    return lambda where: open_memory(SPACE, **where, stamps=world.stamps, create=False)


def facts(memory: Memory) -> list[str]:
    return sorted(read.record.content for read in memory.records())


def findings(memory: Memory) -> dict[str, str]:
    return {it.name: it.message for it in memory.doctor() if it.level == "finding"}


def contents(folder: Path) -> dict[str, bytes]:
    return {it.name: it.read_bytes() for it in (folder / SPACE).iterdir()}


def bundle_of(folder: Path) -> bytes:
    return (folder / SPACE / FILE_NAME).read_bytes()


# -- a copy that the ledger did not make ----------------------------------------------------------


def appended(path: Path, copy: LogCopy, kind: str, key_ids: list[str]) -> tuple[int, bytes]:
    """One row more at the end of a copy, with the chain recomputed, as anybody can."""
    said: dict[str, object] = {"removed_keys": key_ids} if kind == MessageForgotten.TOPIC else {}
    header, position = json.dumps(said).encode(), copy.position + 1
    with closing(sqlite3.connect(path)) as raw:
        (tag,) = raw.execute("SELECT tags FROM events WHERE type = ?", (ForgetCompleted.TOPIC,))
        tags = tag if said else ("",)
        (at,) = raw.execute("SELECT max(recorded_at) + 1 FROM events").fetchone()
        parts = (kind, header, b"", tuple(it for it in tags if it))
        link = chain.link(bytes.fromhex(copy.chain), position, at, parts)
        row = (SPACE, position, kind, at, header, tags[0], b"", link)
        raw.execute(f"INSERT INTO events VALUES ({', '.join('?' * len(row))})", row)
        for it in parts[3]:
            raw.execute("INSERT INTO tags VALUES (?, ?, ?, ?)", (SPACE, it, kind, position))
        raw.execute("UPDATE heads SET position = ?, chain = ?", (position, link))
        raw.commit()
    return position, link


def forge(folder: Path, kind: str) -> None:
    """The newest copy says more than the ledger did, and the list of copies agrees with it."""
    manifest = read_manifest(folder / SPACE)
    copy = manifest.copies[-1]
    path = folder / SPACE / copy.file
    key_ids = [key_id for key_id, _, _ in read_bundle(folder / SPACE).keys]
    position, link = appended(path, copy, kind, key_ids)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    forged = path.rename(path.with_name(f"log-{position:012}-{digest[:16]}.db"))
    more = {"file": forged.name, "sha256": digest, "position": position, "chain": link.hex()}
    listed = (*manifest.copies[:-1], copy.model_copy(update=more))
    said = manifest.model_copy(update={"copies": listed})
    (folder / SPACE / "manifest.json").write_text(said.model_dump_json())


def take_a_body_out(folder: Path, _: str) -> None:
    """No link of the chain says anything of the sealed bodies."""
    path = folder / SPACE / read_manifest(folder / SPACE).copies[-1].file
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("DELETE FROM bodies WHERE position = (SELECT min(position) FROM bodies)")
        raw.commit()


FORGERIES = {
    "the end of the space": (forge, SpaceForgotten.TOPIC),
    "a forget of every key": (forge, MessageForgotten.TOPIC),
    "a body less": (take_a_body_out, ""),
}


@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.sqlite
def test_a_copy_that_the_ledger_did_not_make_is_refused_before_anything_is_put(
    opened, folder, tmp_path, away, machine, restored, on, name
):
    memory = opened()
    code = memory.recovery_code
    memory.remember(OTHER)
    memory.forget(memory.remember(FACT).record_id, 1)
    good = tmp_path / "good"
    for destination in (good, away):
        assert isinstance(memory.backup(destination), BackupReport)
    memory.close()
    kept = bundle_of(good)
    do, kind = FORGERIES[name]

    do(away, kind)
    answers = [
        restored(folder, away),
        restored(folder, away, code=code),
        restored(machine("empty"), away, code=code),
    ]
    if do == forge:
        answers.append(restored(folder, away, force=True))
        answers.append(restored(folder, away, code=code, force=True))

    assert {(it.refusal.number, it.field) for it in answers} == {("F38", "backup")}
    assert bundle_of(good) == kept
    assert not (machine("empty")["data"] / SPACE).exists()
    memory = opened()
    assert facts(memory) == [OTHER]
    assert memory.status().keys > 64
    assert "backup" in findings(memory)
    memory.close()
    assert restored(machine("empty"), good, code=code).is_served
    assert facts(on(machine("empty"))) == [OTHER]


@pytest.mark.sqlite
def test_what_a_copy_says_of_the_end_of_its_space_ends_no_keys(
    opened, folder, away, restored, monkeypatch
):
    """Even one that passes for the ledger's own, at every look but the last."""
    memory = opened()
    memory.remember(OTHER)
    memory.forget(memory.remember(FACT).record_id, 1)
    memory.backup(away)
    memory.close()
    kept = bundle_of(away)
    slots = (folder["state"] / SPACE / "slots").read_bytes()
    forge(away, SpaceForgotten.TOPIC)
    monkeypatch.setattr(backups.Manifest, "check", lambda *_: None)
    assert restored(folder, away, force=True).field == "backup"
    monkeypatch.setattr(restoring, "verify_listed", lambda *_: None)

    answer = restored(folder, away, force=True)

    assert (answer.refusal.number, answer.field) == ("F38", "space")
    assert bundle_of(away) == kept
    assert (folder["state"] / SPACE / "slots").read_bytes() == slots


def put_another_log(folder: Path) -> None:
    path = folder / SPACE / read_manifest(folder / SPACE).copies[-1].file
    shutil.copy(path, folder / "swapped")
    with closing(sqlite3.connect(folder / "swapped")) as raw:
        raw.execute("DELETE FROM bodies")
        raw.commit()
    (folder / "swapped").replace(path)


@pytest.mark.parametrize("swap", [lambda it: take_a_body_out(it, ""), put_another_log])
def test_what_is_put_in_place_is_what_was_verified_whatever_becomes_of_the_copy_meanwhile(
    opened, away, elsewhere, restored, on, world, swap
):
    memory = opened()
    memory.remember(OTHER)
    memory.backup(away)
    code = memory.recovery_code
    memory.close()
    kept = contents(away)
    world.at_step = lambda name: swap(away) if name == "restore:marked" else None

    report = restored(elsewhere, away, code=code)

    world.at_step = lambda _: None
    assert contents(away) != kept
    assert (report.findings, report.is_served) == ((), True)
    with on(elsewhere) as back:
        assert facts(back) == [OTHER]
    assert list((elsewhere["data"] / SPACE).glob("restoring-*")) == []


def test_a_restore_leaves_the_copy_alone_that_another_one_is_at(
    opened, away, elsewhere, restored, world
):
    memory = opened()
    memory.remember(OTHER)
    memory.backup(away)
    answers = []

    def restore_too(name: str) -> None:
        if name == "restore:marked" and not answers:
            answers.append(None)
            answers[0] = restored(elsewhere, away, code="no code")

    world.at_step = restore_too
    report = restored(elsewhere, away, code=memory.recovery_code)

    assert answers[0].field == "recovery"
    assert (report.findings, report.is_served) == ((), True)


def test_what_a_killed_restore_has_left_of_a_log_goes_with_the_next_opening(opened, folder):
    opened().close()
    left, held = (folder["data"] / SPACE / f"restoring-{it}.db" for it in ("left", "held"))
    left.write_bytes(b"a sealed log")
    held.touch()

    with flocked(held, fcntl.LOCK_EX, 0):
        opened()

    assert (left.exists(), held.exists()) == (False, True)


def test_what_a_killed_restore_has_left_goes_with_a_forget_of_a_ledger_that_stays_open(
    opened, folder, world
):
    memory = opened()
    first, second = memory.remember(OTHER), memory.remember(FACT)
    left, held = (folder["data"] / SPACE / f"restoring-{it}.db" for it in ("left", "held"))
    left.write_bytes(b"a sealed log")
    held.touch()

    with flocked(held, fcntl.LOCK_EX, 0):
        beside = memory.forget(first.record_id, 1)

    assert (left.exists(), held.exists()) == (False, True)
    assert [it.startswith("a restore has") for it in beside.pending] == [True]
    world.move(seconds=3)
    after = memory.forget(second.record_id, 1)
    assert (held.exists(), after.pending) == (False, ())
    assert after.erased_at


def test_a_restore_beside_a_reader_of_the_key_file_is_served_and_names_the_key_that_is_kept(
    opened, folder, away, restored, world
):
    with opened() as memory:
        gone = memory.remember(FACT)
        memory.remember(OTHER)
        memory.backup(away)

    with closing(sqlite3.connect(folder["data"] / SPACE / "keys.db")) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM keys").fetchone()
        report = restored(folder, away)

    assert (report.findings, report.is_served, report.key_epoch) == ((), True, 2)
    assert report.kept_key in "".join(str(it) for it in _restore_page(report))
    world.move(seconds=3)
    with opened() as memory:
        assert memory.forget(gone.record_id, 1).erased_at
        assert facts(memory) == [OTHER]
        assert memory.audit.verify().findings == ()
    after = restored(folder, away, force=True)
    assert (after.is_served, after.kept_key, after.forgotten_again) == (True, None, 1)


def test_a_restore_that_has_no_room_for_its_key_epoch_serves_nothing_until_it_has(
    opened, folder, away, restored
):
    with opened() as memory:
        memory.remember(FACT)
        memory.backup(away)

    with closing(sqlite3.connect(folder["data"] / SPACE / "keys.db")) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM keys").fetchone()
        assert restored(folder, away, force=True).kept_key  # the slots hold both keys from here on
        with pytest.raises(KeptKey, match=r"is held.* in place and not served"):
            restored(folder, away, force=True)
        with pytest.raises(RefusedError, match="run `memoranda restore` again"):
            opened()

    report = restored(folder, away)
    assert (report.findings, report.is_served, report.kept_key) == ((), True, None)
    with opened() as memory:
        assert facts(memory) == [FACT]
        assert memory.remember(OTHER).position


def test_who_closes_just_before_a_restore_puts_its_log_moves_no_anchor_of_it(
    opened, folder, away, restored, monkeypatch
):
    memory, replayed = opened(), Restoring._replayed
    memory.remember(FACT)
    memory.backup(away)
    memory.remember(OTHER)

    def then_closed(*given: object) -> object:
        answer = replayed(*given)
        memory.close()
        return answer

    monkeypatch.setattr(Restoring, "_replayed", then_closed)
    report = restored(folder, away, force=True)

    assert (report.findings, report.is_served) == ((), True)
    with opened() as again:
        assert facts(again) == [FACT]


def test_a_copy_whose_head_row_tells_another_key_epoch_makes_no_restore_rotate_to_it(
    opened, folder, away, restored
):
    with opened() as memory:
        memory.remember(FACT)
        memory.backup(away)
    with closing(sqlite3.connect(next((away / SPACE).glob("log-*.db")))) as copy:
        copy.execute("UPDATE heads SET key_epoch = 1000")
        copy.commit()

    report = restored(folder, away, force=True)

    assert (report.findings, report.is_served, report.key_epoch) == ((), True, 2)
    with opened() as memory:
        assert facts(memory) == [FACT]


def test_a_journal_whose_tombstone_has_lost_its_body_is_refused_before_anything_is_put(
    opened, folder, away, restored
):
    with opened() as memory:
        gone = memory.remember(FACT)
        memory.remember(OTHER)
        memory.backup(away)
        memory.forget(gone.record_id, 1)
        (row,) = memory._parts.log.journal.read()
    path = folder["state"] / SPACE / "forgotten"
    path.unlink()
    Journal(path).add([row._replace(sealed=None)])

    refused = restored(folder, away, force=True)

    assert (refused.field, "lost its body" in refused.message) == ("backup", True)
    with opened() as memory:
        assert facts(memory) == [OTHER]


# -- which copy is the newest ---------------------------------------------------------------------


@pytest.fixture
def left(opened, folder, away, restored) -> tuple[Memory, str]:
    """A ledger that went back to an early copy; the line that it left goes further."""
    memory = opened()
    code = memory.recovery_code
    memory.remember(OTHER)
    early = memory.backup(away).copy_made.position
    for number in range(10):
        memory.remember(f"On the line that was left, {number}")
    memory.backup(away)
    memory.close()
    assert restored(folder, away, force=True, position=early).gone == 10
    return opened(), code


@pytest.mark.parametrize("keep", [None, 1])
@pytest.mark.sqlite
def test_the_copy_just_made_is_kept_and_is_what_a_restore_brings(
    left, away, machine, restored, on, keep
):
    memory, code = left
    memory.remember(NEWER)

    made = memory.backup(away, keep=keep)

    assert (away / SPACE / made.copy_made.file).exists()
    assert made.kept == (keep or 3)
    assert findings(memory) == {}
    report = restored(machine("empty"), away, code=code)
    assert (report.position, report.gone) == (made.copy_made.position, 0)
    assert facts(on(machine("empty"))) == sorted([OTHER, NEWER])


@pytest.mark.sqlite
def test_a_line_that_was_left_does_not_come_back_before_the_next_backup_either(
    left, away, machine, restored, on
):
    memory, code = left
    memory.remember(NEWER)
    memory.rotate_keys()  # the bundle there notes how far the new line is
    assert findings(memory) == {}

    report = restored(machine("empty"), away, code=code)

    assert report.gone > 0
    assert facts(on(machine("empty"))) == [OTHER]


@pytest.mark.parametrize("step", ["backup:verified", "backup:bundled"])
def test_a_machine_leaves_the_copy_that_a_lost_one_had_no_time_to_list_and_drops_its_own(
    opened, away, tmp_path, elsewhere, restored, on, world, step
):
    memory, other = opened(), tmp_path / "other"
    code = memory.recovery_code
    memory.remember(OTHER)
    for folder in (away, other):
        memory.backup(folder)
    memory.remember(FACT)

    def stop_at(memory: Memory) -> str:
        def stop(name: str) -> None:
            if name == step:
                raise Stopped

        world.at_step = stop
        known = set(contents(other))
        with pytest.raises(Stopped):
            memory.backup(other)
        world.at_step = lambda _: None
        (unlisted,) = {it for it in contents(other) if it.startswith("log-")} - known
        return unlisted

    of_the_lost = stop_at(memory)
    memory.close()
    assert restored(elsewhere, away, code=code).is_served
    back = on(elsewhere)
    assert isinstance(back.backup(other), BackupReport)
    back.remember("Once.")
    of_its_own = stop_at(back)
    (other / SPACE / "log-000000000009-0123456789abcdef.db").write_bytes(b"no copy")
    back.remember(NEWER)

    made = back.backup(other)

    assert isinstance(made, BackupReport)
    listed = {it.file for it in read_manifest(other / SPACE).copies}
    assert {it for it in contents(other) if it.startswith("log-")} == listed | {of_the_lost}
    assert of_its_own not in listed
    assert (
        backups.verify_copy(other / SPACE / of_the_lost, SPACE).position < made.copy_made.position
    )


@pytest.mark.sqlite
def test_two_lines_have_a_copy_each_at_one_position(left, away, machine, restored, on):
    memory, code = left
    copies = read_manifest(away / SPACE).copies
    further = max(it.position for it in copies)
    for number in range(further - memory.status().position):
        memory.remember(f"On the new line, {number}")

    made = memory.backup(away).copy_made

    assert made.position == further
    assert len(list((away / SPACE).glob("log-*.db"))) == 3
    assert restored(machine("empty"), away, code=code, position=further).findings == ()
    assert "On the new line, 0" in facts(on(machine("empty")))


@pytest.mark.sqlite
def test_what_a_shorter_line_loses_to_a_longer_one_is_told(
    opened, folder, away, tmp_path, restored
):
    memory = opened()
    code = memory.recovery_code
    memory.remember(OTHER)
    memory.backup(away)
    early = tmp_path / "early"
    shutil.copytree(away, early)
    for number in range(10):
        memory.remember(f"fact {number}")
    memory.backup(away)
    memory.close()
    shutil.copytree(away, tmp_path / "late")
    assert restored(folder, early, force=True).gone == 10
    memory = opened()
    memory.remember(NEWER)
    memory.close()

    report = restored(folder, tmp_path / "late", code=code, force=True)

    assert (report.findings, report.gone > 0) == ((), True)
    assert NEWER not in facts(opened())


# -- two machines, one folder ---------------------------------------------------------------------


@pytest.mark.sqlite
def test_a_machine_leaves_the_backups_alone_that_another_one_goes_on_with(
    opened, away, machine, restored, on, world
):
    old = opened()
    code = old.recovery_code
    base = old.remember(FACT)
    old.remember(OTHER)
    old.backup(away)
    assert restored(machine("second"), away, code=code).is_served
    new = on(machine("second"))
    new.remember(NEWER)
    made = new.backup(away).copy_made
    kept = bundle_of(away)

    receipt = old.forget(base.record_id, 1)
    old.rotate_keys()
    refused = old.backup(away)
    old.close()
    old = opened()

    assert bundle_of(away) == kept
    assert [str(away) in it for it in receipt.copies] == [True]
    assert (refused.field, "another line" in refused.message) == ("destination", True)
    assert old.old_bundles() == (str(away),)
    assert "another line" in findings(old)["backup"]
    assert findings(new) == {}
    assert (away / SPACE / made.file).exists()
    world.move(seconds=5)
    assert new.forget(new.records()[0].record.id, 1).copies == ()
    report = restored(machine("third"), away, code=code)
    assert (report.position, report.findings, report.is_served) == (made.position, (), True)


@pytest.mark.sqlite
def test_the_end_of_a_space_leaves_the_bundle_of_another_line_and_names_it(
    opened, away, machine, restored, on
):
    old = opened()
    code = old.recovery_code
    old.remember(OTHER)
    old.backup(away)
    assert restored(machine("second"), away, code=code).is_served
    kept = bundle_of(away)

    ended = old.forget_space(SPACE)

    assert [str(away) in it for it in ended.copies] == [True]
    assert bundle_of(away) == kept
    assert facts(on(machine("second"))) == [OTHER]


@pytest.mark.sqlite
def test_every_destination_goes_on_after_a_restore_but_one_that_holds_more(
    opened, folder, tmp_path, restored, world
):
    memory = opened()
    code = memory.recovery_code
    memory.remember(OTHER)
    first, second, more, drawer = (tmp_path / it for it in ("one", "two", "more", "drawer"))
    for destination in (first, second, more):
        memory.backup(destination)
    memory.rotate_keys()  # from here on each bundle lies behind the copies beside it
    for destination in (first, second):
        shutil.copytree(destination, drawer / destination.name)
    memory.rotate_keys()
    for number in range(70):  # more than lie ready: new keys are minted
        memory.remember(f"fact {number}")
    memory.backup(more)
    memory.close()
    for destination in (first, second):
        shutil.rmtree(destination)
        shutil.copytree(drawer / destination.name, destination)
    kept = bundle_of(more)
    world.move(hours=1)

    report = restored(folder, second, code=code, force=True)

    assert report.findings == ()
    memory = opened()
    assert bundle_of(more) == kept
    assert memory.old_bundles() == (str(more),)
    assert {read_bundle(it / SPACE).key_epoch for it in (first, second)} == {report.key_epoch}
    assert isinstance(memory.backup(first), BackupReport)
    assert [str(more) in it for it in memory.forget(memory.records()[0].record.id, 1).copies]
    memory.close()
    assert restored(folder, more, code=code, force=True).findings == ()
    assert len(facts(opened())) == 71 - 1


@pytest.mark.sqlite
def test_a_destination_with_the_present_keys_goes_on_after_a_restore_from_one_that_lay_away(
    opened, folder, tmp_path, restored, world
):
    memory = opened()
    memory.remember(OTHER)
    first, second = tmp_path / "one", tmp_path / "two"
    for destination in (first, second):
        memory.backup(destination)
    first.rename(tmp_path / "in a drawer")
    memory.rotate_keys()
    memory.close()
    (tmp_path / "in a drawer").rename(first)
    for path in (folder["data"] / SPACE).glob("ledger.db*"):
        path.unlink()
    world.move(hours=1)

    assert restored(folder, first).findings == ()

    memory = opened()
    assert facts(memory) == [OTHER]
    assert memory.old_bundles() == ()
    key_epoch = memory.status().key_epoch
    assert {read_bundle(it / SPACE).key_epoch for it in (first, second)} == {key_epoch}
    assert isinstance(memory.backup(second), BackupReport)


def test_a_restore_from_before_a_new_recovery_code_leaves_that_one_in_force(
    opened, folder, away, restored
):
    memory = opened()
    old = memory.recovery_code
    memory.remember(OTHER)
    memory.backup(away)
    new = renewed(memory)
    memory.close()

    assert restored(folder, away, force=True).findings == ()

    memory = opened()
    assert [memory.is_recovery_code(code) for code in (old, new)] == [False, True]


# -- two disks, a new machine ---------------------------------------------------------------------


@pytest.fixture
def disks(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "one", tmp_path / "two"


def test_the_second_disk_goes_on_after_a_restore_from_the_first_on_a_new_machine(
    opened, elsewhere, disks, machine, restored, on, world
):
    memory = opened()
    code, gone = memory.recovery_code, memory.remember(FACT)
    memory.remember(OTHER)
    for disk in disks:
        memory.backup(disk)
    memory.forget(gone.record_id, 1)
    memory.close()
    world.move(hours=1)
    assert restored(elsewhere, disks[0], code=code).findings == ()
    with on(elsewhere) as new:
        new.remember(NEWER)

        made = [new.backup(it) for it in disks]

        assert [type(it) for it in made] == [BackupReport] * 2
        assert [it.kept for it in made] == [2, 2]
        new.rotate_keys()
        assert new.old_bundles() == ()
        assert findings(new) == {}
    for disk in disks:
        assert restored(machine(disk.name), disk, code=code).findings == ()
        with on(machine(disk.name)) as back:
            assert facts(back) == sorted([OTHER, NEWER])


MORE = {
    "facts under keys that are here": lambda memory: memory.remember("A fact more."),
    "a key epoch": lambda memory: memory.rotate_keys(),
    "a forget": lambda memory: memory.forget(memory.records()[0].record.id, 1),
    "keys": lambda memory: [memory.remember(f"fact {number}") for number in range(70)],
}


@pytest.mark.parametrize("what", MORE)
def test_a_second_disk_that_holds_more_than_was_restored_is_left_and_the_way_out_is_named(
    opened, elsewhere, disks, tmp_path, restored, on, world, what
):
    memory = opened()
    code = memory.recovery_code
    memory.remember(OTHER)
    for disk in disks:
        memory.backup(disk)
    disks[0].rename(tmp_path / "in a drawer")
    MORE[what](memory)
    memory.backup(disks[1])
    memory.close()
    kept = bundle_of(disks[1])
    world.move(hours=1)
    assert restored(elsewhere, tmp_path / "in a drawer", code=code).findings == ()
    with on(elsewhere) as new:
        refused = new.backup(disks[1])

        assert (refused.field, "another line" in refused.message) == ("destination", True)
        assert f"move {SPACE} there away" in refused.message
        assert bundle_of(disks[1]) == kept
        (disks[1] / SPACE).rename(tmp_path / "moved away")
        assert isinstance(new.backup(disks[1]), BackupReport)


def test_a_disk_that_was_out_of_reach_at_a_restore_goes_on_with_the_next_backup_to_it(
    opened, folder, disks, tmp_path, restored, world
):
    memory = opened()
    code = memory.recovery_code
    for disk in disks:
        memory.backup(disk)
    memory.rotate_keys()
    memory.close()
    disks[1].rename(tmp_path / "in a drawer")
    world.move(hours=1)
    assert restored(folder, disks[0], code=code, force=True).findings == ()
    (tmp_path / "in a drawer").rename(disks[1])
    memory = opened()
    assert f"`memoranda backup {disks[1]}` writes it" in findings(memory)["backup"]

    assert isinstance(memory.backup(disks[1]), BackupReport)

    assert findings(memory) == {}


# -- to and fro -----------------------------------------------------------------------------------


@pytest.fixture
def two_backups(memory, primary, tmp_path, away) -> tuple[Memory, Path]:
    """A backup from before forgets of every kind, and one from after them."""
    made = primary.publish("health/peanuts", FACT, sources=[f"{REF}50#0-9"])
    memory.remember(OTHER)
    prepared = {"name": "publish", "operation_id": "op-1", "key": "plan", "content": FACT}
    assert not isinstance(memory.prepare(prepared), Refused)
    memory.backup(away)
    old = tmp_path / "old"
    shutil.copytree(away, old)
    memory.remember(NEWER)
    memory.forget(made.record_id, 1)
    memory.reconcile("op-1", writers_stopped=True, reason="nobody will finish it")
    fall = memory.falling(session="s-main-1")
    assert not isinstance(memory.forget_many(fall, with_sources=True), Refused)
    memory.backup(away)
    memory.close()
    return memory, old


def journal_of(folder: dict[str, Path]) -> int:
    return len((folder["state"] / SPACE / "forgotten").read_bytes().splitlines())


@pytest.mark.sqlite
def test_a_restore_of_an_older_copy_and_then_of_the_newer_one_leaves_a_whole_ledger(
    two_backups, opened, folder, away, machine, restored, on, tmp_path
):
    memory, old = two_backups
    code = memory.recovery_code
    newer = tmp_path / "newer"
    shutil.copytree(away, newer)
    lengths = []
    for turn in range(3):
        back = restored(folder, old, code=code, force=True)
        assert (back.findings, back.forgotten_again > 0) == ((), True)
        forth = restored(folder, newer, code=code, force=True)
        assert (forth.findings, forth.forgotten_again) == ((), 0), turn
        lengths.append(journal_of(folder))
        assert isinstance(opened().backup(tmp_path / f"after {turn}"), BackupReport)
    # Each way back to the old copy forgets once more; the way forth adds nothing.
    assert lengths == [6, 9, 12]

    assert facts(opened()) == sorted([OTHER, NEWER])
    assert opened().remnants(FACT).remnants == ()
    assert opened().audit.verify(with_index=True).findings == ()
    for source in (newer, tmp_path / "after 2"):
        where = machine(source.name)
        report = restored(where, source, code=code)
        assert (report.findings, report.is_served) == ((), True)
        assert facts(on(where)) == sorted([OTHER, NEWER])


@pytest.mark.sqlite
def test_a_forget_of_the_line_that_was_left_is_told_once_and_a_later_life_of_the_record_stays(
    opened, folder, away, tmp_path, restored
):
    memory = opened()
    code, made = memory.recovery_code, memory.publish("home", FACT)
    memory.backup(away)
    old = tmp_path / "old"
    shutil.copytree(away, old)
    memory.forget(made.record_id, 1, operation_id="op-forget")
    again = memory.publish("home", NEWER, expected_revision=2)
    assert again.to_revision == 3
    memory.backup(away)
    memory.close()
    newer = tmp_path / "newer"
    shutil.copytree(away, newer)
    assert restored(folder, old, code=code, force=True).forgotten_again == 1

    report = restored(folder, newer, code=code, force=True)

    assert (report.findings, report.forgotten_again) == ((), 0)
    memory = opened()
    assert facts(memory) == [NEWER]
    again = memory.forget(made.record_id, 1, operation_id="op-forget")
    assert (again.refusal.number, again.current_revision) == ("F22", 3)


STEPS = ("marked", "journalled", "slots", "keys", "log", "replayed", "destinations")


@pytest.mark.parametrize("step", [f"restore:{it}" for it in STEPS])
@pytest.mark.sqlite
def test_a_restore_with_the_code_that_was_stopped_lets_another_end_well_or_asks_for_the_code(
    two_backups, opened, folder, away, restored, world, step
):
    memory, old = two_backups
    code = memory.recovery_code

    def stop(name: str) -> None:
        if name == step:
            raise Stopped

    world.at_step = stop
    with pytest.raises(Stopped):
        restored(folder, old, code=code, force=True)
    world.at_step = lambda _: None

    report = restored(folder, away)
    if isinstance(report, Refused):
        assert report.field in {"recovery", "backup"}
        report = restored(folder, away, code=code)

    assert (report.findings, report.is_served) == ((), True)
    assert facts(opened()) == sorted([OTHER, NEWER])
