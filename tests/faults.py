"""Storage faults: each work of a ledger with one call failing, then reopened, judged and retried.

Runs as a program under the preloaded `shim.c`: it imports everything once, forks a process for
every fault, and prints what it found as one line of JSON.
"""

import ctypes
import gc
import itertools
import json
import os
import shutil
import sqlite3
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.fault_works import SPACE, WORKS, Work, found_again, opened, records_of, settings_of

from memoranda.ledger.errors import (
    IntegrityFault,
    MemorandaError,
    OutcomeUnknown,
    Refused,
    RefusedError,
    StorageFault,
)
from memoranda.ledger.slots import SlotFile
from memoranda.tools.memory import Memory

CALLS = ("write", "flush", "truncate", "remove")
MODES = {
    "eio": 1, "enospc": 2, "short": 3, "kill": 4, "kill after": 5, "torn": 6, "sticky": 7, "lie": 8,
    "flip": 9, "stall": 10,
}  # fmt: skip
"""Their numbers in `shim.c`; `torn` writes half and dies, `sticky` fails from then on, and `stall`
works, but only after a while."""

OF_WRITES = {"short", "torn", "flip"}
DEADLY = {"kill", "kill after", "torn"}
UNSEEN = {"lie", "flip"}
"""No call can notice these: they are found out afterwards, or cost what was written last."""
QUIET = UNSEEN | {"stall"}
"""Every call goes on as if nothing were."""
FOUND_OUT = ("audit:", "it does not open", "the retry ended", "the backup does not come back")
KEYS_ROTATED = "keys.rotated/1"
ENDED: dict[str, Any] = {"is_ended": True}
"""The summary of a space that was forgotten for good."""


@dataclass(frozen=True)
class Fault:
    """What becomes of the call with number `at`; then the process closes, or just ends.

    A transaction whose flush failed is lost by closing and found by the next opening otherwise.
    """

    call: str
    mode: str
    at: int
    is_closed: bool


def in_child(work: Callable[[], object]) -> Any:
    """What a forked process answers; None when it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, json.dumps(work()).encode())
        except BaseException:  # noqa: BLE001  # it ends here, and the parent finds no answer
            traceback.print_exc()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return json.loads(said) if said else None


def arm(place: Path, fault: Fault | None) -> None:
    call, mode, at = (CALLS.index(fault.call), MODES[fault.mode], fault.at) if fault else (0, 0, 0)
    ctypes.CDLL(None).fault_arm(str(place).encode(), call, mode, ctypes.c_long(at))


# -- one fault ------------------------------------------------------------------------------------


def outcome(do: Callable[[], Any]) -> list[Any]:
    """How a call ended: done, refused, fault or unknown; a traceback is none of them."""
    try:
        answer = do()
    except OutcomeUnknown as unknown:
        return ["unknown", unknown.operation_id]
    except RefusedError as error:
        return ["refused", error.refused.refusal.name]
    except (StorageFault, IntegrityFault) as fault:
        return ["fault", str(fault)]
    except Exception:  # noqa: BLE001  # it is reported
        return ["traceback", traceback.format_exc()]
    if isinstance(answer, Refused):
        return ["refused", answer.refusal.name]
    return ["done", shown(answer)]


MOVING = dict.fromkeys(("replayed", "erased_at", "pending", "copies", "forgotten_at"))
"""What may change from one answer to the next: how far an erasure is."""


def shown(answer: Any) -> Any:
    """An answer for comparison: a retry says of itself that it is one."""
    if isinstance(answer, tuple):
        return [shown(each) for each in answer]
    if isinstance(answer, Memory) or not hasattr(answer, "model_dump"):
        return None
    return {**answer.model_dump(mode="json"), **MOVING}


def struck(place: Path, work: Work, fault: Fault | None) -> list[Any]:
    """Does the work under a fault; how it ended, how closing ended, and the calls it made."""
    memory = None if work.is_opening else work.opens(place, work)
    arm(place / work.disk, fault)
    kept: list[Memory | None] = []

    def do() -> Any:
        kept.append(memory or work.opens(place, work))
        return work.do(kept[0])

    ended = outcome(do)
    calls = [ctypes.CDLL(None).fault_seen(n) for n in range(len(CALLS))]
    if fault is None or fault.mode != "sticky":
        arm(place, None)
    is_left = fault is not None and not fault.is_closed
    closed = outcome(kept[0].close) if any(kept) and not is_left else None
    arm(place, None)
    return [ended, closed, calls]


def standing(memory: Memory, ids: tuple[str, ...]) -> dict[str, Any]:
    """Where a ledger stands: its position, and each operation's state and receipt."""
    reads = {operation_id: memory.operation(operation_id) for operation_id in ids}
    found = {
        operation_id: [read.state, shown(read.receipt)]
        for operation_id, read in reads.items()
        if not isinstance(read, Refused)
    }
    return {"position": memory.status().position, "operations": found}


def looked_before(place: Path, work: Work) -> dict[str, Any]:
    """Where the ledger stands before the work, and what its slots hold."""
    slots = SlotFile(place / "state" / SPACE / "slots").look() or {}

    def looked() -> dict[str, Any]:
        with work.opens(place, work) as memory:
            return standing(memory, work.ids)

    before = in_child(looked) if work.ids or work.is_logged else {"operations": {}}
    return {**before, "slots": {str(epoch): key.hex() for epoch, key in slots.items()}}


def summary(memory: Memory) -> dict[str, Any]:
    """What must be the same whether a fault came between or not."""
    if memory._parts.log.is_closed:
        return ENDED
    with memory._parts.log.reading() as store:
        types = Counter(event.row.type for event in store.page(0, 500))
    types.pop(KEYS_ROTATED, None)
    return {"types": types, "records": records_of(memory)}


def judged(place: Path, work: Work, before: dict[str, Any], ended: list[Any] | None) -> list[Any]:
    """Reopens after a fault: complaints about what was found there, and the summary in the end."""
    complaints: list[str] = []
    try:
        complaints += work.copies(place, work, ended)
        memory = (work.reopens or work.opens)(place, work)
    except (MemorandaError, AssertionError):
        return [[*complaints, f"it does not open again: {traceback.format_exc()}"], None]
    found = ENDED
    try:
        if memory is not None:
            with memory:
                complaints += reopened(memory, work, before, ended)
                found = summary(memory)
        complaints += work.ends(place, work, found.get("records"))
    except (MemorandaError, sqlite3.Error):
        return [[*complaints, f"it does not open again whole: {traceback.format_exc()}"], None]
    return [complaints, found]


def reopened(
    memory: Memory, work: Work, before: dict[str, Any], ended: list[Any] | None
) -> Iterator[str]:
    """What an opening after a fault finds wrong, and what is wrong once the work is retried."""
    after = standing(memory, work.ids)
    yield from (f"audit: {finding}" for finding in memory.audit.verify().findings)
    yield from lies(work, before, after, ended)
    again = outcome(partial(work.again or work.do, memory))
    if again[0] != "done":
        yield f"the retry ended as {again}"
    if ended and ended[0] == "done" and work.ids and again[1] != ended[1]:
        yield f"answered {ended[1]}, and then {again[1]}"
    if not memory._parts.log.is_closed:
        yield from found_again(memory, work.gone)
        yield from key_faults(memory, before.get("slots", {}))


def key_faults(memory: Memory, slots: dict[str, str]) -> Iterator[str]:
    """One key epoch, under which every key opens; of the `slots` of before no byte is left."""
    log = memory._parts.log
    rows, place, key_epoch = log._keyring.rows(), log.place, log._keyring.key_epoch
    if log._vault.epochs() != {key_epoch}:
        yield f"the slots name key epochs {log._vault.epochs()}"
    if any(epoch != key_epoch for _, epoch, _ in rows):
        yield "some keys lie under an older key epoch"
    if not all(log._keyring._found(key_id) for key_id, _, _ in rows):
        yield "some keys do not open"
    old = [bytes.fromhex(it) for epoch, it in slots.items() if int(epoch) < key_epoch]
    for path in (path for folder in (place.data, place.state) for path in folder.iterdir()):
        if any(key in path.read_bytes() for key in old):
            yield f"an old wrapping key is still in {path.name}"


def lies(
    work: Work, before: dict[str, Any], after: dict[str, Any], ended: list[Any] | None
) -> Iterator[str]:
    """What an answer said that is not so."""
    match ended:
        case ["refused" | "fault", _]:
            if before["operations"] != after["operations"]:
                yield f"{ended}, and yet {before} became {after}"
            if work.is_logged and before["position"] != after["position"]:
                yield f"{ended}, and yet {before['position']} became {after['position']}"
        case ["unknown", operation_id]:
            if work.ids and operation_id != (work.named or work.ids[0]):
                yield f"the unknown outcome names {operation_id}"
        case ["done", answer] if work.ids:
            yield from lost(work, answer, after)


def lost(work: Work, answer: Any, after: dict[str, Any]) -> Iterator[str]:
    """What was answered and is not there; a batch answers or refuses each of its ids in order."""
    receipts = answer if isinstance(answer, list) else [answer]
    if isinstance(answer, list):
        answered = [it["operation_id"] if it else None for it in receipts]
        of_ids = [name and it for name, it in zip(answered, work.ids, strict=False)]
        if answered != of_ids or len(answered) != len(work.ids):
            yield f"{answered} does not answer {work.ids}"
    for receipt in filter(None, receipts):
        known = after["operations"].get(receipt["operation_id"])
        if known is None or (known[1] is not None and known[1] != receipt):
            yield f"the receipt {receipt} is not there: {known}"


# -- all of them ----------------------------------------------------------------------------------


def faults_of(calls: list[int], left_out: set[str]) -> Iterator[Fault]:
    """Every fault that a work with so many calls can meet.

    Each call's modes begin one further on, so that no stride ever meets one mode only.
    """
    for call, count in zip(CALLS, calls, strict=True):
        known = [mode for mode in MODES if mode not in left_out]
        modes = [mode for mode in known if mode not in OF_WRITES or call == "write"]
        for n, (at, turn) in enumerate(itertools.product(range(1, count + 1), range(len(modes)))):
            yield Fault(call, modes[(at + turn) % len(modes)], at, is_closed=n % 2 == 0)


def walked(
    folder: Path, name: str, nth: Callable[[int], bool], left_out: set[str]
) -> dict[str, Any]:
    """One work under every chosen fault: how many there were, and what went wrong."""
    # Always at one path: a ledger notes where its backups lie.
    work, place, template = WORKS[name], folder / "place", folder / "template"

    def begin() -> None:
        if name != "making":
            with opened(place, work) as memory:
                (place / "code").write_text(memory.recovery_code)
                work.before(memory)

    def afresh() -> Path:
        shutil.rmtree(place, ignore_errors=True)
        return shutil.copytree(template, place)

    for machine in (place, place / "new", place / "machine"):
        settings_of(machine)
    place.mkdir()
    in_child(begin)
    place.rename(template)
    before = looked_before(afresh(), work)
    _, _, calls = in_child(partial(struck, afresh(), work, None))
    wrong, expected = in_child(partial(judged, place, work, before, None))

    tried, ends = 0, Counter[str]()
    for n, fault in enumerate(faults_of(calls, left_out)):
        if nth(n):
            ended, complaints = tried_once(afresh(), work, fault, (before, expected))
            wrong += [f"{name}, {fault.call} {fault.at} {fault.mode}: {it}" for it in complaints]
            tried, ends = tried + 1, ends + Counter({f"{fault.mode}: {ended}": 1})
    return {"tried": tried, "wrong": wrong, "ends": ends}


def tried_once(
    place: Path, work: Work, fault: Fault, known: tuple[dict[str, Any], dict[str, Any]]
) -> tuple[str, list[str]]:
    before, expected = known

    def one() -> list[Any]:
        ended, closed, _ = struck(place, work, fault)
        return [ended, closed, judged(place, work, before, ended) if fault.is_closed else None]

    said = in_child(one)
    if said is None and fault.mode not in DEADLY:
        return "nothing", ["the process ended"]
    ended, closed, verdict = said or (None, None, None)
    tracebacks = [it[1] for it in (ended, closed) if it and it[0] == "traceback"]
    complaints = [*tracebacks]
    if (work.disk or fault.mode == "stall") and ended and ended[0] != "done":
        complaints.append(f"what is no fault of this disk came through: {ended}")
    verdict = verdict or in_child(lambda: judged(place, work, before, ended))
    if verdict is None:
        return "nothing", [*tracebacks, "the judge ended"]
    complaints += verdict[0]
    if fault.mode in UNSEEN and any(it.startswith(FOUND_OUT) for it in complaints):
        return "found out", tracebacks
    if fault.mode in UNSEEN:
        complaints = tracebacks
    if (found := verdict[1]) != expected:
        complaints.append(f"{ended} ends in {found} instead of {expected}")
    return ended[0] if ended else "killed", complaints


def warm_up(folder: Path) -> None:
    """Does once what every child would do again: first uses import and compile much."""
    for work in (WORKS["hosted commit"], WORKS["batch"]):
        known = {"operations": {}}
        judged(folder / "scratch", work, known, struck(folder / "scratch", work, None)[0])
    gc.collect()
    gc.freeze()


def main(folder: str, first: str, step: str, which: str, *names: str) -> None:
    warm_up(Path(folder))
    results = {}
    for name in names or WORKS:
        place = Path(folder) / "work"
        place.mkdir()
        left_out = QUIET if which == "noticed" else set()
        results[name] = walked(place, name, lambda n: n % int(step) == int(first), left_out)
        shutil.rmtree(place)
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
