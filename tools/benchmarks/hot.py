"""Eight processes on one record, whole commands, against raw one-row commits of the same run."""

from collections.abc import Callable, Iterator
from pathlib import Path

from memoranda.ledger.errors import Refused
from memoranda.ledger.events import Tier
from memoranda.tools.benchmarks.workload import at_once, measured, rate_of, raw_commits, scratch
from memoranda.tools.memory import Memory, open_memory

PROCESSES = 8
COMMANDS = 60
RAW = 300


def run() -> Iterator[str]:
    """Commands that were committed a second, and how long each waited for its answer."""
    with scratch() as folder, raw_commits(folder) as raw:
        with _open(folder) as memory:
            made = memory.publish("hot", "A record that everybody changes")
            assert not isinstance(made, Refused), made
            record_id = made.record_id or ""
        for revisions in ("few", "a thousand"):
            raw_s = measured(lambda: [raw() for _ in range(RAW)], RAW).wall_s
            spans = at_once(PROCESSES, lambda _: _revising(folder, record_id), COMMANDS)
            waits, rate = sorted(ended - began for began, ended in spans), rate_of(spans)
            p99, mean = waits[int(len(waits) * 0.99)], PROCESSES / rate
            yield f"with {revisions} revisions"
            yield f"raw commit          {raw_s * 1e3:8.3f} ms"
            yield f"rate against raw    {rate * raw_s:8.2f} (at least 0.5)"
            yield f"p99                 {p99 * 1e3:8.1f} ms, {p99 / mean:.1f} waits (at most 4)"
            with _open(folder) as memory:
                _revise(memory, record_id, 1000)


def _revising(folder: Path, record_id: str) -> Callable[[], None]:
    memory = _open(folder)
    return lambda: _revise(memory, record_id, 1)


def _revise(memory: Memory, record_id: str, times: int) -> None:
    """Reads and changes, each time as one: whoever waits does so once, in the order of coming."""
    for _ in range(times):
        with memory.undisturbed():
            read = memory.read(record_id)
            assert not isinstance(read, Refused), read
            tier: Tier = "core" if read.record.revision % 2 else "detail"
            answer = memory.choose_tier(record_id, read.record.revision, tier)
            assert not isinstance(answer, Refused), answer


def _open(folder: Path) -> Memory:
    return open_memory("bench", data=folder / "data", state=folder / "state")
