"""One forget with its key rotation, of a ledger with many keys, against raw one-row commits."""

import time
from collections.abc import Iterator
from statistics import median

from memoranda.ledger.errors import Refused
from memoranda.ledger.personal import record_id_of
from memoranda.tools.benchmarks.workload import FACT, measured, raw_commits, scratch
from memoranda.tools.memory import Memory, open_memory

FORGETS = 5
BATCH = 100
APART_S = 2.1
"""Forgets nearer to each other share a rotation."""


def run(keys: int = 10_000) -> Iterator[str]:
    """Seconds from the command to the receipt that says erased; each rotates on its own."""
    with scratch() as folder, raw_commits(folder) as raw:
        with open_memory("bench", data=folder / "data", state=folder / "state") as memory:
            for first in range(0, keys, BATCH):
                _publish(memory, first)
            memory.records(limit=1)
            spent = [_forget(memory, number) for number in range(FORGETS)]
            kept = memory.status().keys
        raw_s = measured(lambda: [raw() for _ in range(BATCH)], BATCH).wall_s
    forget_s, limit = median(spent), 0.3 if keys <= 10_000 else 1.5
    yield f"keys                {kept:8d}"
    yield f"forget and rotate   {forget_s:8.3f} s (at most {limit})"
    yield f"                    {forget_s / kept * 1e6:8.1f} us a key"
    yield f"                    {forget_s / raw_s:8.0f} raw commits"


def _publish(memory: Memory, first: int) -> None:
    facts = [
        {
            "name": "publish",
            "operation_id": f"op-{number}",
            "key": f"fact/{number}",
            "content": FACT.format(number),
        }
        for number in range(first, first + BATCH)
    ]
    answers = memory.commit_many(facts)
    assert not isinstance(answers, Refused), answers
    assert not any(isinstance(answer, Refused) for answer in answers)


def _forget(memory: Memory, number: int) -> float:
    time.sleep(APART_S)
    record_id = record_id_of(f"fact/{number}")
    started = time.perf_counter()
    answer = memory.forget(record_id, 1)
    spent = time.perf_counter() - started
    assert not isinstance(answer, Refused), answer
    assert answer.erased_at is not None, answer.pending
    return spent
