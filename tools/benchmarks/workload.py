"""The workload of the benchmarks: one person's ledger on disk, fed with hundred-byte facts."""

import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from memoranda.ledger.authority import ModelSession
from memoranda.ledger.errors import Refused
from memoranda.tools.memory import Memory, open_memory

SESSION = "s-main"
FACT = "Fact {} is about a hundred bytes long, as a person's facts are on average, or so I say."


@dataclass(frozen=True, slots=True)
class Cost:
    """What a stretch of work took, per step."""

    wall_s: float
    cpu_s: float
    written_bytes: float


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder on the disk of the checkout's user, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="memoranda-bench-", dir=Path.home()) as folder:
        yield Path(folder)


@contextmanager
def primary_session(folder: Path) -> Iterator[Memory]:
    """A fresh ledger, seen by its primary session."""
    with open_memory("bench", data=folder / "data", state=folder / "state") as memory:
        memory.host.bind_primary(SESSION)
        yield memory.acting_as(ModelSession(SESSION, "agent"))


def capture(memory: Memory, first: int, count: int) -> None:
    """Takes in as many messages as facts will cite."""
    messages = (
        {"session": SESSION, "seq": seq, "role": "user", "text": FACT.format(seq)}
        for seq in range(first, first + count)
    )
    assert not any(isinstance(answer, Refused) for answer in memory.capture(messages))


def source(number: int) -> str:
    """The message that a fact cites."""
    return f"personal-message:{SESSION}:{number}"


def publish(memory: Memory, number: int) -> None:
    """One durable fact with a source, its guards and its receipt."""
    answer = memory.publish(f"fact/{number}", FACT.format(number), sources=[source(number)])
    assert not isinstance(answer, Refused), answer


def measured(work: Callable[[], object], steps: int) -> Cost:
    """The cost of one of `steps` equal steps."""
    written, cpu, wall = _written(), time.process_time(), time.perf_counter()
    work()
    return Cost(
        (time.perf_counter() - wall) / steps,
        (time.process_time() - cpu) / steps,
        (_written() - written) / steps,
    )


@contextmanager
def raw_commits(folder: Path) -> Iterator[Callable[[], object]]:
    """The baseline: one durable commit of one row of a fact's size (WAL, FULL)."""
    connection = sqlite3.connect(folder / "raw.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE facts (id INTEGER PRIMARY KEY, fact TEXT)")
    yield lambda: connection.execute("INSERT INTO facts (fact) VALUES (?)", (FACT,))
    connection.close()


def _written() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])
