"""Raw disks and power cuts: what a file system keeps below the files, and what it loses."""

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random  # noqa: TID251  # seeded: a run can be repeated

import pytest
from tests.disks import MIB, Disk, disk_of, memory_of
from tests.residue import SPACE, Carver, Traces, in_clear
from tests.sites import Site
from tests.test_kills import Book, close_the_book, done, take_stock, works

from memoranda.ledger.errors import OutcomeUnknown, StorageFault
from memoranda.ledger.slots import SlotFile
from memoranda.tools.memory import Memory, open_memory

FAILED = (
    "the durable write failed; look the operation up:"
    " the disk is full; make room on it and try again"
)
CANARY = "quixotry under moonflowers"
FORGETS = 4
CUTS = 5
STALLED_S = 1.5
ACKNOWLEDGED = (2, 6)
"""How many answers a process gives, at least, before the power goes, however slow the machine."""


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    disk = disk_of(tmp_path, 24 * MIB)
    with disk.mounted():
        for name in ("data", "state"):
            (disk.at / name).mkdir()
    return disk


@pytest.fixture
def site(tmp_path: Path, disk: Disk) -> Iterator[Site]:
    """A ledger on the disk, and notes of the test's beside it."""
    folder = tmp_path / "site"
    folder.mkdir()
    for name in ("data", "state"):
        (folder / name).symlink_to(disk.at / name)
    site = Site(folder)
    yield site
    site.kill_all()


def slots_of(site: Site) -> SlotFile:
    return SlotFile(site.folder / "state" / SPACE / "slots")


def test_a_full_disk_is_named_and_once_there_is_room_all_is_as_it_was(site, disk):
    with disk.mounted():
        with site.open() as memory:
            made = memory.remember(CANARY)
        fill(disk.at / "fill")
        with pytest.raises(StorageFault, match="could not be opened: the disk is full"):
            site.open()

        (disk.at / "fill").unlink()
        with site.open() as memory:
            assert memory.read(made.record_id).record.content == CANARY
            fill(disk.at / "fill")
            with pytest.raises((StorageFault, OutcomeUnknown), match="the disk is full"):
                memory.forget(made.record_id, 1)


def fill(path: Path, but: int = 0) -> None:
    """Leaves no block free on a disk, or so many bytes."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    for size in (MIB, 4096):
        with suppress(OSError):
            while os.write(file, bytes(size)):
                pass
    os.ftruncate(file, os.fstat(file).st_size - but)
    os.close(file)


@pytest.mark.parametrize("is_fresh", [True, False], ids=["just opened", "in use"])
def test_a_forget_that_a_full_disk_stops_anywhere_says_so_and_is_ended_once_there_is_room(
    tmp_path, is_fresh
):
    said = set()
    with memory_of(tmp_path, 8 * MIB) as disk:
        for free in range(0, 160 * 1024, 16 * 1024):
            ledger = {it: disk / f"{free}" / it for it in ("data", "state")}
            memory = open_memory(SPACE, **ledger)
            gone, kept = (memory.remember(it) for it in (CANARY, "I play the cello"))
            if is_fresh:
                memory.close()
                memory = open_memory(SPACE, **ledger)
            forget = partial(
                Memory.forget, record_id=gone.record_id, expected_revision=1, operation_id="op"
            )
            fill(disk / "fill", but=free)
            try:
                said.update(forget(memory).pending or ["erased"])
            except OutcomeUnknown as unknown:
                said.add(str(unknown))
            memory.close()

            (disk / "fill").unlink()
            with open_memory(SPACE, **ledger) as memory:
                assert forget(memory).erased_at
                assert memory.remnants(CANARY).remnants == ()
                assert memory.read(kept.record_id).record.content == "I play the cello"
                assert memory.audit.verify().findings == ()

    assert {"erased", FAILED} < said
    assert all("the disk is full" in it for it in said - {"erased"}), said


def test_a_raw_disk_holds_no_word_of_what_was_forgotten_and_no_wrapping_key_of_before(site, disk):
    traces, old_keys = Traces(), set()
    with disk.mounted():
        (disk.at / "in clear").write_text("a word that the search finds")
        for life in range(FORGETS):
            with site.open() as memory:
                memory.backup(disk.at / "away")
                made = memory.publish(f"key {life}", f"{CANARY} {life}")
                memory.correct(made.record_id, 1, f"{CANARY} {life}, corrected")
                assert memory.search(CANARY)
                traces.add(memory, CANARY)
                old_keys |= set(slots_of(site).read().values())
                assert memory.forget(made.record_id, 2).status == "forgotten"
        (key,) = slots_of(site).read().values()
        wrapping_keys = {max(slots_of(site).read()): {key}}

    raw = disk.image.read_bytes()

    assert len(old_keys - {key}) >= FORGETS
    assert b"a word that the search finds" in raw
    assert key in raw
    assert not [it for it in old_keys - {key} if it in raw]
    assert not [it for it in in_clear(CANARY) if it in raw]
    assert not [it for it in traces.keys if it in raw]
    # Keys under keys that are gone, in blocks that nothing names any more, are of no use.
    assert [it for it in traces.wrapped if it in raw]
    carver = Carver({"raw": raw}, {}, traces.key_ids, wrapping_keys=wrapping_keys)
    rows = {key_id: carver._rows_of(key_id) for key_id in ("secret", *traces.key_ids)}
    found = {key_id for key_id in rows if carver._unwrapped(key_id, rows[key_id])}
    assert found == {"secret"}


def test_while_a_disk_stalls_nothing_is_acknowledged_and_then_all_goes_on(site, disk):
    def work() -> None:
        with site.open() as memory:
            for number in itertools.count():
                memory.remember(f"fact {number}")
                site.said("kept", f"fact {number}")

    with disk.mounted():
        child = site.start(work)
        site.wait_for("kept", 2)
        with disk.stalled():
            before = len(site.heard("kept"))
            time.sleep(STALLED_S)
            during = len(site.heard("kept"))
        site.wait_for("kept", during + 3)
        os.kill(child, signal.SIGKILL)
        site.end_of(child)

        with site.open() as memory:
            kept = {read.record.content for read in memory.query(limit=100).records}
            assert memory.audit.verify().findings == ()

    assert during <= before + 1  # one was durable already
    assert set(site.heard("kept")) <= kept


def live_until_the_power_goes(site: Site, disk: Disk, dice: Random, life: int) -> list:
    """Lets a process write until the power is cut; its journal, on another disk."""
    seed, journal = dice.random(), f"journal {life}"

    def work() -> None:
        with site.open() as memory:
            for verb, arguments in works(memory, Random(seed), life):
                site.said(journal, [verb, arguments])
                site.said(journal, done(memory, (verb, arguments)))

    child = site.start(work)
    site.wait_for(journal, 2 * dice.randint(*ACKNOWLEDGED))  # what is asked, and the answer
    time.sleep(dice.uniform(0, 0.2))
    (disk.at / f"unsaved {life}").write_text("what nobody has flushed")
    # It stops at the end of the call that it is in: while a file system is shut down, a flush
    # may still be called a success, and no machine without power acknowledges anything.
    os.kill(child, signal.SIGSTOP)
    disk.cut_the_power()
    os.kill(child, signal.SIGKILL)
    assert site.end_of(child) == -signal.SIGKILL, site.heard("fault")
    return site.heard(journal)


def test_after_power_cuts_all_that_was_acknowledged_is_there_and_nothing_forgotten_is(
    site, disk, exhaustive
):
    book, dice = Book(), Random("power")
    cuts = 200 if exhaustive else CUTS
    with disk.mounted(), site.open():
        pass
    for life in range(cuts):
        with disk.mounted():
            journal = live_until_the_power_goes(site, disk, dice, life)
        with disk.mounted():
            unsaved = disk.at / f"unsaved {life}"
            assert not (unsaved.exists() and unsaved.read_bytes())
            with site.open() as memory:
                take_stock(memory, book, journal)
    with disk.mounted(), site.open() as memory:
        assert memory.finish_forgets() == ()
        close_the_book(site, memory, book)
    assert len(book.ends) > 2 * cuts
    assert book.forgotten or not exhaustive
