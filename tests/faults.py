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
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from tests.providers import company

from memoranda.ledger.authority import BackgroundItem
from memoranda.ledger.errors import (
    IntegrityFault,
    MemorandaError,
    OutcomeUnknown,
    Refused,
    RefusedError,
    StorageFault,
)
from memoranda.ledger.ports import EMBEDDED, Ports
from memoranda.ledger.stamps import Stamps
from memoranda.tools.memory import Memory, open_memory

CALLS = ("write", "flush", "truncate")
MODES = {"eio": 1, "enospc": 2, "short": 3, "kill": 4, "kill after": 5}
KEY = "preference/tea"
ID = "mem_8bd9f7914096218ac8597c1a948899a2c12f19c2710f4adb7d998585c9c0de6a"
KEYS_ROTATED = "keys.rotated/1"
NOW = datetime(2026, 10, 6, 12, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Work:
    """What is done under a fault, after what was done `before` it in peace.

    `ids` are its operations, of which an unknown outcome names `named`, or else the first.
    `is_opening` says that the opening itself is the work, and
    `is_logged` that "nothing was written" can be seen by the position of the log. `again` is the
    retry, where it is not the same once more.
    """

    do: Callable[[Memory], Any]
    before: Callable[[Memory], object] = lambda _: None
    ids: tuple[str, ...] = ()
    named: str | None = None
    is_opening: bool = False
    is_logged: bool = True
    ports: Ports = EMBEDDED
    again: Callable[[Memory], Any] | None = None


def publish(memory: Memory, key: str = KEY, operation_id: str = "op-1") -> Any:
    return memory.publish(key, f"a fact about {key}", operation_id=operation_id)


def prepare(memory: Memory) -> Any:
    fields = {"operation_id": "op-1", "key": KEY, "content": f"a fact about {KEY}"}
    return memory.prepare({"name": "publish", **fields})


def batch(memory: Memory) -> Any:
    opened = [
        {"name": "publish", "operation_id": f"op-{n}", "key": f"key {n}", "content": f"fact {n}"}
        for n in range(5)
    ]
    forgotten = {"name": "forget", "operation_id": "op-f", "record_id": ID, "expected_revision": 1}
    return memory.commit_many([*opened, forgotten])


def forget_half(memory: Memory) -> None:
    """A forget that a kill stops between its tombstone and its keys."""
    publish(memory)

    def stop(name: str) -> None:
        if name == "forget:appended":
            os.kill(os.getpid(), signal.SIGKILL)

    object.__setattr__(memory._parts.stamps, "step", stop)
    memory.forget(ID, 1, operation_id="op-2")


def propose(memory: Memory) -> Any:
    item = memory.acting_as(BackgroundItem("task-7", 1, "s-bg-7", "agent-bg", "ea-1"))
    source = "personal-message:s-main-1:42"
    return item.propose(KEY, "green tea", sources=[source], operation_id="op-1")


def capture(memory: Memory) -> Any:
    return next(memory.capture([{"session": "s-1", "seq": 1, "role": "user", "text": "said"}]))


def remember_some(memory: Memory) -> None:
    for n in range(3):
        memory.remember(f"earlier fact {n}")


def earlier_store(memory: Memory) -> Path:
    return memory._parts.remnants._place.data / "earlier.jsonl"


def leave_an_earlier_store(memory: Memory) -> None:
    remember_some(memory)
    lines: list[dict[str, Any]] = [
        {
            "kind": "store",
            "format": "personal-records/1",
            "user_space_id": "us_alice",
            "ownership": [
                {"package": "memory", "storage": "personal.records", "moves_to": "personal"},
                {"package": "personal", "storage": "personal.records", "moves_from": "memory"},
            ],
        }
    ]
    common = {"product_domain": "personal", "user_space_id": "us_alice", "revision": 3}
    by = {"agent_id": "agent-old", "executor_session_id": "s-old", "revision": 3}
    for n in range(5):
        ref = f"personal-message:s-old:{n + 1}"
        source = {"kind": "personal_message", "ref": ref, "occurred_at": "2026-10-05T09:00:00Z"}
        live = {
            "status": "accepted", "tier": "core", "content": f"earlier {n}", "sources": [source],
            "evidence": "explicit", "contributor_agent_id": "agent-old", "contributions": [by],
            "updated_by_agent_id": "agent-old", "effective_at": None, "expires_at": None,
            "rejections": [], "blocked_sources": [],
        }  # fmt: skip
        forgotten = {"status": "forgotten", "blocked_sources": [ref]}
        value = {"id": f"old-{n}", **common, **(live if n else forgotten)}
        lines.append({"kind": "record", "value": value})
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    earlier_store(memory).write_text(text)


WORKS = {
    "commit": Work(publish, remember_some, ("op-1",)),
    "prepare": Work(prepare, remember_some, ("op-1",)),
    "commit of a prepared one": Work(publish, prepare, ("op-1",)),
    "reconcile": Work(
        lambda memory: memory.reconcile("op-1", writers_stopped=True, reason="crashed"),
        prepare,
        ("op-1",),
    ),
    "forget": Work(
        lambda memory: memory.forget(ID, 1, operation_id="op-2"), publish, ("op-1", "op-2"), "op-2"
    ),
    "batch": Work(batch, publish, ("op-0", "op-1", "op-2", "op-3", "op-4", "op-f")),
    "hosted commit": Work(propose, remember_some, ("op-1",), ports=company().ports),
    "migration": Work(lambda m: m.migrate(earlier_store(m)), leave_an_earlier_store),
    "capture": Work(capture, remember_some),
    "opening": Work(lambda memory: memory, publish, is_opening=True),
    "opening after a forget was cut short": Work(
        lambda memory: memory, forget_half, is_opening=True, is_logged=False
    ),
    "making": Work(lambda memory: memory, is_opening=True, is_logged=False),
    "rotation": Work(lambda memory: memory.rotate_keys(), remember_some, is_logged=False),
    "listing": Work(lambda memory: memory.records(), remember_some),
    "closing": Work(
        lambda memory: (publish(memory), memory.close())[0], ids=("op-1",), again=publish
    ),
}


@dataclass(frozen=True)
class Fault:
    """What becomes of the call with number `at`; then the process closes, or just ends.

    A transaction whose flush failed is lost by closing and found by the next opening otherwise.
    """

    call: str
    mode: str
    at: int
    is_closed: bool


def opened(place: Path, work: Work) -> Memory:
    folders = {"data": place / "data", "state": place / "state"}
    stamps = Stamps(now=lambda: NOW)
    return open_memory("us_alice", **folders, home=place, stamps=stamps, ports=work.ports)


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
    memory = None if work.is_opening else opened(place, work)
    arm(place, fault)
    kept: list[Memory] = []

    def do() -> Any:
        kept.append(memory or opened(place, work))
        return work.do(kept[0])

    ended = outcome(do)
    calls = [ctypes.CDLL(None).fault_seen(n) for n in range(len(CALLS))]
    arm(place, None)
    closed = outcome(kept[0].close) if kept and not (fault and not fault.is_closed) else None
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


def looked(place: Path, work: Work) -> dict[str, Any]:
    with opened(place, work) as memory:
        return standing(memory, work.ids)


def summary(memory: Memory) -> dict[str, Any]:
    """What must be the same whether a fault came between or not."""
    with memory._parts.log.reading() as store:
        types = Counter(event.row.type for event in store.page(0, 500))
    records = {
        read.record.id: [read.record.revision, read.record.status]
        for read in memory.query(include_inactive=True, limit=100).records
    }
    types.pop(KEYS_ROTATED, None)
    return {"types": types, "records": records}


def judged(place: Path, work: Work, before: dict[str, Any], ended: list[Any] | None) -> list[Any]:
    """Reopens after a fault: complaints about what was found there, and the summary in the end."""
    try:
        memory = opened(place, work)
    except MemorandaError:
        return [[f"it does not open again: {traceback.format_exc()}"], None]
    with memory:
        after = standing(memory, work.ids)
        complaints = [f"audit: {finding}" for finding in memory.audit.verify().findings]
        complaints += lies(work, before, after, ended)
        again = outcome(partial(work.again or work.do, memory))
        if again[0] != "done":
            complaints.append(f"the retry ended as {again}")
        if ended and ended[0] == "done" and work.ids and again[1] != ended[1]:
            complaints.append(f"answered {ended[1]}, and then {again[1]}")
        return [complaints, summary(memory)]


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


def faults_of(calls: list[int]) -> Iterator[Fault]:
    """Every fault that a work with so many calls can meet."""
    for call, count in zip(CALLS, calls, strict=True):
        modes = [mode for mode in MODES if mode != "short" or call == "write"]
        for n, (at, mode) in enumerate(itertools.product(range(1, count + 1), modes)):
            yield Fault(call, mode, at, is_closed=n % 2 == 0)


def walked(folder: Path, name: str, nth: Callable[[int], bool]) -> dict[str, Any]:
    """One work under every chosen fault: how many there were, and what went wrong."""
    work, template = WORKS[name], folder / "template"

    def begin() -> None:
        if name != "making":
            with opened(template, work) as memory:
                work.before(memory)

    template.mkdir()
    in_child(begin)
    reference, peek = folder / "reference", folder / "peek"
    shutil.copytree(template, reference)
    _, _, calls = in_child(lambda: struck(reference, work, None))
    _, expected = in_child(lambda: judged(reference, work, {}, None))
    shutil.copytree(template, peek)
    before = {"operations": {}} if name == "making" else in_child(lambda: looked(peek, work))

    tried, wrong, ends = 0, [], Counter[str]()
    for n, fault in enumerate(faults_of(calls)):
        if nth(n):
            place = folder / "place"
            shutil.copytree(template, place)
            ended, complaints = tried_once(place, work, fault, (before, expected))
            shutil.rmtree(place)
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
    if said is None and not fault.mode.startswith("kill"):
        return "nothing", ["the process ended"]
    ended, closed, verdict = said or (None, None, None)
    complaints = [it[1] for it in (ended, closed) if it and it[0] == "traceback"]
    verdict = verdict or in_child(lambda: judged(place, work, before, ended))
    complaints += verdict[0]
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


def main(folder: str, first: str, step: str, *names: str) -> None:
    warm_up(Path(folder))
    results = {}
    for name in names or WORKS:
        place = Path(folder) / "work"
        place.mkdir()
        results[name] = walked(place, name, lambda n: n % int(step) == int(first))
        shutil.rmtree(place)
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
