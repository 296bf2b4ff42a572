"""Raw disks and power cuts: what a file system keeps below the files, and what it loses."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random  # noqa: TID251  # seeded: a run can be repeated

import pytest
from tests.disks import MIB, Disk, disk_of
from tests.residue import SPACE, Carver, Traces, in_clear
from tests.sites import Site
from tests.test_kills import Book, close_the_book, done, take_stock, works

from memoranda.ledger.slots import SlotFile

CANARY = "quixotry under moonflowers"
FORGETS = 4
CUTS = 5


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


def live_until_the_power_goes(site: Site, disk: Disk, dice: Random, life: int) -> list:
    """Lets a process write until the power is cut; its journal, on another disk."""
    seed, journal = dice.random(), f"journal {life}"

    def work() -> None:
        with site.open() as memory:
            site.said("open", life)
            for verb, arguments in works(memory, Random(seed), life):
                site.said(journal, [verb, arguments])
                site.said(journal, done(memory, (verb, arguments)))

    child = site.start(work)
    site.wait_for("open", life + 1)
    time.sleep(dice.uniform(0.02, 0.4))
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
    assert len(book.ends) > cuts
    assert book.forgotten or not exhaustive
