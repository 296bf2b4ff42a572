"""Durable publishes, interleaved with raw one-row commits on the same disk."""

from collections.abc import Iterator
from statistics import median

from memoranda.tools.benchmarks.workload import (
    capture,
    measured,
    primary_session,
    publish,
    raw_commits,
    scratch,
)

BLOCKS = 20
BLOCK = 100


def run() -> Iterator[str]:
    """Rate against the raw rate, and CPU per commit."""
    with scratch() as folder, primary_session(folder) as memory, raw_commits(folder) as raw:
        capture(memory, 1, (BLOCKS + 1) * BLOCK)
        numbers = iter(range(1, (BLOCKS + 1) * BLOCK + 1))

        def facts() -> None:
            for _ in range(BLOCK):
                publish(memory, next(numbers))

        def rows() -> None:
            for _ in range(BLOCK):
                raw()

        facts()
        rows()
        pairs = [(measured(facts, BLOCK), measured(rows, BLOCK)) for _ in range(BLOCKS)]
    ratios = [row.wall_s / fact.wall_s for fact, row in pairs]
    yield f"raw commit          {median(row.wall_s for _, row in pairs) * 1e3:8.3f} ms"
    yield f"fact commit         {median(fact.wall_s for fact, _ in pairs) * 1e3:8.3f} ms"
    yield f"rate against raw    {median(ratios):8.2f} (at least 0.5 where raw takes 1 ms or more)"
    cpu_s = median(fact.cpu_s for fact, _ in pairs)
    yield f"CPU per fact        {cpu_s * 1e3:8.3f} ms (at most 0.9)"
    yield f"CPU per raw commit  {median(row.cpu_s for _, row in pairs) * 1e3:8.3f} ms"
