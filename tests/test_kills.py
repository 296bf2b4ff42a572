"""Processes killed while writing: what they acknowledged stands, the rest is whole or absent."""

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random  # noqa: TID251  # seeded: a run can be repeated
from typing import Any

import pytest
from tests.sites import SPACE, Site, positions_of, renewed

from memoranda.ledger.errors import Refused
from memoranda.ledger.events import RecordCommitted
from memoranda.ledger.receipts import Receipt
from memoranda.ledger.restoring import Asked
from memoranda.ledger.slots import SlotFile
from memoranda.ledger.stamps import Stamps
from memoranda.tools.memory import Memory
from memoranda.tools.restore import restore
from memoranda.tools.settings import load_settings

KILLS_PER_LEDGER = 40
LIFE_MAX_S = 0.15
DESTINATIONS = ("away", "further away")
RESTORED_MAX = 6
"""Copies of one ledger that the gate restores; an exhaustive run restores all of them."""

Work = tuple[str, dict[str, Any]]
"""A verb of `Memory` with its arguments: the same once more is its retry."""


def works(memory: Memory, dice: Random, life: int) -> Iterator[Work]:
    """A mix of everything that writes, and first what the process before has left open."""
    verbs = (*["publish"] * 3, "prepare", "commit_many", "rotate_keys", "correct", "forget",
             "forget", "backup")  # fmt: skip
    for line in memory.operations(state="prepared"):
        yield ending(memory, line.operation_id, dice)
    live = [read.record for read in memory.records()]
    dice.shuffle(live)
    for turn in range(10_000):
        # On a slow machine, too, some lives are long enough for a backup.
        name, verb = f"{life}-{turn}", "backup" if turn == life % 3 == 0 else dice.choice(verbs)
        fields = {"operation_id": f"op-{name}", "key": f"key {name}", "content": f"fact <{name}>"}
        match verb:
            case "rotate_keys":
                yield verb, {}
            case "backup":
                yield back_up(memory, dice)
            case "commit_many":
                many = [{**fields, "operation_id": f"op-{name}-{n}", "key": f"key {name} {n}"}
                        for n in range(3)]  # fmt: skip
                yield verb, {"requests": [{"name": "publish", **each} for each in many]}
            case "prepare":
                yield verb, {"request": {"name": "publish", **fields}}
                yield ending(memory, f"op-{name}", dice)
            case "correct" | "forget" if live:
                record = live.pop()
                seen = {"record_id": record.id, "expected_revision": record.revision}
                more = {"content": f"{record.content}!"} if verb == "correct" else {}
                yield verb, {"operation_id": f"op-{name}", **seen, **more}
            case _:
                yield "publish", fields


def back_up(memory: Memory, dice: Random) -> Work:
    folder = memory._parts.log.place.data.parents[1] / dice.choice(DESTINATIONS)
    return "backup", {"folder": str(folder), "keep": 10_000}


def ending(memory: Memory, operation_id: str, dice: Random) -> Work:
    if dice.random() < 0.5:
        return "commit", {"request": memory.operation(operation_id).intent}
    asked = {"operation_id": operation_id, "writers_stopped": True, "reason": "killed"}
    return "reconcile", asked


MOVING = dict.fromkeys(("replayed", "erased_at", "pending", "copies", "forgotten_at"))
"""What may change from one answer to the next: how far an erasure is."""


def done(memory: Memory, work: Work) -> list[dict[str, Any]]:
    """Does it; the receipts in the answer, without saying whether they repeat one.

    A backup's report stands for a receipt.
    """
    verb, arguments = work
    answer = getattr(memory, verb)(**arguments)
    answers = [answer] if not isinstance(answer, tuple) else list(answer)
    assert not any(isinstance(each, Refused) for each in answers), (work, answers)
    receipts = [each for each in answers if not isinstance(each, int)]
    return [{**each.model_dump(mode="json"), **MOVING} for each in receipts]


@dataclass
class Book:
    """What the processes of one ledger have acknowledged, as the test keeps it."""

    ends: dict[str, dict[str, Any]] = field(default_factory=dict)
    prepared: set[str] = field(default_factory=set)
    copies: set[tuple[str, int]] = field(default_factory=set)
    code: str = ""
    interrupted: int = 0

    def note(self, verb: str, receipts: list[dict[str, Any]]) -> None:
        for receipt in receipts:
            match verb:
                case "backup":
                    self.copies.add((receipt["destination"], receipt["copy_made"]["position"]))
                case "prepare":
                    self.prepared.add(receipt["operation_id"])
                case _:
                    assert self.ends.setdefault(receipt["operation_id"], receipt) == receipt

    @property
    def committed(self) -> list[dict[str, Any]]:
        return [end for end in self.ends.values() if end["outcome"] == "committed"]

    def committed_until(self, position: int) -> set[str]:
        ends = self.ends.items()
        return {operation_id for operation_id, end in ends if end["position"] <= position}

    @property
    def forgotten(self) -> set[str]:
        return {end["record_id"] for end in self.committed if end["status"] == "forgotten"}


def live_and_die(site: Site, dice: Random, life: int) -> list[Any]:
    """Lets a process write until it is killed; its journal, where each work has two lines."""
    seed, journal = dice.random(), f"journal {life}"

    def work() -> None:
        with site.open() as memory:
            for verb, arguments in works(memory, Random(seed), life):
                site.said(journal, [verb, arguments])
                site.said(journal, done(memory, (verb, arguments)))

    child = site.start(work)
    if dice.random() < 0.9:
        site.wait_for(journal)
    time.sleep(dice.uniform(0, LIFE_MAX_S))
    os.kill(child, signal.SIGKILL)
    assert site.end_of(child) == -signal.SIGKILL, site.heard("fault")
    return site.heard(journal)


def take_stock(memory: Memory, book: Book, journal: list[Any]) -> None:
    """Checks what one process left, and retries what it did not get an answer to."""
    pairs = list(zip(journal[::2], journal[1::2], strict=False))
    for (verb, _), receipts in pairs:
        book.note(verb, receipts)
    assert memory.audit.verify().findings == ()
    if len(journal) % 2:
        verb, arguments = journal[-1]
        book.interrupted += 1
        operation_id = arguments.get("operation_id")
        read = memory.operation(operation_id) if operation_id else None
        if read and not isinstance(read, Refused):
            assert (read.receipt is None) == (read.state == "prepared")
        receipts = done(memory, (verb, arguments))
        assert done(memory, (verb, arguments)) == receipts
        book.note(verb, receipts)
    answered = (r for _, receipts in pairs for r in receipts)
    stands(memory, book, {r["operation_id"] for r in answered if "operation_id" in r})


def stands(memory: Memory, book: Book, operation_ids: set[str]) -> None:
    """What was acknowledged is there; of what was forgotten since, the public part."""
    for operation_id in operation_ids & book.ends.keys():
        known, end = memory.operation(operation_id).receipt, book.ends[operation_id]
        shown = {**known.model_dump(mode="json"), **MOVING}
        if end["record_id"] in book.forgotten and end["status"] != "forgotten":
            shown = {**end, **{name: value for name, value in shown.items() if value is not None}}
        assert shown == end
    for operation_id in operation_ids & book.prepared:
        assert not isinstance(memory.operation(operation_id), Refused)


def close_the_book(site: Site, memory: Memory, book: Book) -> None:
    """Every receipt is one event and every event one receipt; what was forgotten is nowhere."""
    for line in memory.operations(state="prepared"):
        asked = {"operation_id": line.operation_id, "writers_stopped": True, "reason": "killed"}
        book.note("reconcile", done(memory, ("reconcile", asked)))
    stands(memory, book, {*book.ends, *book.prepared})
    assert book.prepared <= book.ends.keys()
    with memory._parts.log.reading() as store:
        events = store.page(0, 100_000)
    commits = [event.position for event in events if isinstance(event.header, RecordCommitted)]
    assert commits == sorted(end["position"] for end in book.committed)

    nothing_forgotten_is_told(memory, book)
    assert len(SlotFile(site.folder / "state" / SPACE / "slots").read()) == 1
    assert memory.audit.verify(with_index=True).findings == ()
    positions = positions_of(site)
    assert positions == [*range(1, len(positions) + 1)]


def nothing_forgotten_is_told(memory: Memory, book: Book) -> None:
    with memory._parts.log.reading() as store:
        events = store.page(0, 100_000)
    bodies = [event.body(event.header.BODY) for event in events if event.header.BODY]
    told = {name for body in bodies if body for name in re.findall("<.*?>", body.model_dump_json())}
    names = {end["record_id"]: f"<{end['operation_id'][3:]}>" for end in book.committed
             if end["from_revision"] is None}  # fmt: skip
    assert told.isdisjoint(names[record_id] for record_id in book.forgotten)
    assert [it for it in memory.remnants("fact <").remnants if it.kind == "file"] == []


def comes_back(site: Site, book: Book, copy: tuple[str, int]) -> None:
    """On an empty machine the copy holds all that had ended by then, and nothing forgotten since.

    From here on the folder follows that machine, and the next one restores what it has left there.
    """
    destination, position = copy
    machine = Site(site.folder / "machine")
    folders = {"data": machine.folder / "data", "state": machine.folder / "state"}
    report = restore(
        load_settings(space=SPACE, home=machine.folder, **folders),
        Stamps(),
        destination,
        Asked(code=book.code, position=position),
    )
    assert (report.position, report.findings, report.is_served) == (position, (), True)
    with machine.open(create=False) as memory:
        stands(memory, book, book.committed_until(position))
        nothing_forgotten_is_told(memory, book)
        assert book.forgotten.isdisjoint(read.record.id for read in memory.records())
        assert isinstance(memory.remember("and it goes on"), Receipt)
        assert memory.audit.verify(with_index=True).findings == ()
    shutil.rmtree(machine.folder)


@pytest.mark.untraced
def test_processes_killed_at_any_moment_lose_nothing_acknowledged_and_leave_nothing_half_done(
    ram_site, exhaustive
):
    interrupted = 0
    for ledger in range(25 if exhaustive else 1):
        site, book, dice = Site(ram_site.folder / str(ledger)), Book(), Random(f"kills {ledger}")
        site.folder.mkdir()
        for life in range(KILLS_PER_LEDGER):
            journal = live_and_die(site, dice, life)
            with site.open() as memory:
                # The opening that made the space, and knew its code, may have been killed.
                book.code = book.code or memory.recovery_code or renewed(memory)
                take_stock(memory, book, journal)
        with site.open() as memory:
            close_the_book(site, memory, book)
        assert len(book.ends) > KILLS_PER_LEDGER
        assert book.forgotten
        copies = sorted(book.copies)
        assert len(copies) > 1
        few = len(copies) if exhaustive else min(len(copies), RESTORED_MAX)
        for copy in dice.sample(copies, few):
            comes_back(site, book, copy)
        interrupted += book.interrupted
    assert interrupted > KILLS_PER_LEDGER / 4
