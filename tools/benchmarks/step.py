"""One step's recall at 10,000 and at 100,000 facts, and what it takes to open and to rebuild."""

import itertools
import random  # noqa: TID251  # repeatable texts for measuring, nothing secret
import resource
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

from memoranda.ledger.authority import ModelSession
from memoranda.ledger.errors import Refused
from memoranda.tools.benchmarks.workload import SESSION, measured, scratch
from memoranda.tools.memory import Memory, open_memory

FACTS = 10_000
STEPS = 300
VOCABULARY = 20_000
CORE_EVERY = 1000
_WEIGHTS = list(itertools.accumulate(1 / (rank + 5) for rank in range(VOCABULARY)))


def run(facts: int = FACTS) -> Iterator[str]:
    """p50 and p95 of a warm step, opening with views present, rebuild, resident memory."""
    words = random.Random(1)  # noqa: S311  # see above
    with scratch() as folder:
        with _open(folder) as memory:
            _fill(memory, words, facts)
        started = time.perf_counter()
        with _open(folder) as memory:
            primary = memory.acting_as(ModelSession(SESSION, "agent"))
            primary.recall(_text(words, 5))
            first_s = time.perf_counter() - started
            queries = [_text(words, 5) for _ in range(STEPS)]
            times = sorted(measured(partial(primary.recall, it), 1).wall_s for it in queries)
            with _open(folder) as other:
                again = sorted(_after_a_commit(other, primary, number) for number in range(20))
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            rebuilt = measured(memory.rebuild, memory.status().position)
    yield f"step, warm          {median(times) * 1e3:8.2f} ms p50 at {facts:,} facts (at most 2, 5)"
    yield f"                    {times[int(STEPS * 0.95)] * 1e3:8.2f} ms p95"
    yield f"after a commit      {median(again) * 1e3:8.2f} ms p50, by another opening (at most 7)"
    yield f"open, first recall  {first_s:8.2f} s with views present (at most 0.5)"
    yield f"rebuild             {rebuilt.wall_s * 100_000:8.1f} s per 100,000 events (at most 15)"
    yield f"resident            {resident:8.0f} MB (at most 120)"


def _after_a_commit(other: Memory, primary: Memory, number: int) -> float:
    made = other.remember(f"word{number} was said elsewhere", key=f"other/{number}")
    assert not isinstance(made, Refused), made
    return measured(partial(primary.recall, f"word{number}"), 1).wall_s


def _open(folder: Path) -> Memory:
    return open_memory("bench", data=folder / "data", state=folder / "state")


def _fill(memory: Memory, words: random.Random, facts: int) -> None:
    memory.host.bind_primary(SESSION)
    messages = (
        {
            "session": SESSION,
            "seq": seq,
            "role": "user",
            "text": _text(words, 16),
            "at": f"2026-{1 + seq % 9:02d}-{1 + seq % 28:02d}T00:00:00Z",
        }
        for seq in range(1, facts + 1)
    )
    assert not any(isinstance(answer, Refused) for answer in memory.capture(messages))
    primary = memory.acting_as(ModelSession(SESSION, "agent"))
    for seq in range(1, facts + 1):
        source = f"personal-message:{SESSION}:{seq}"
        made = primary.publish(f"fact/{seq}", _text(words, 16), sources=[source])
        assert not isinstance(made, Refused), made
        if seq % CORE_EVERY == 0 and made.record_id:
            primary.choose_tier(made.record_id, 1, "core")
    primary.recall("")


def _text(words: random.Random, count: int) -> str:
    """Words as languages have them: a few often, most of them seldom."""
    ranks = words.choices(range(VOCABULARY), cum_weights=_WEIGHTS, k=count)
    return " ".join(f"word{rank}" for rank in ranks)
