"""The workload of the benchmarks: one person's ledger on disk, fed with hundred-byte facts."""

import gc
import multiprocessing
import os
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


Span = tuple[float, float]
"""When a step began and when it ended, in seconds of one clock for all processes."""


def at_once(
    processes: int, prepared: Callable[[int], Callable[[], object]], steps: int, before: int = 0
) -> list[Span]:
    """The steps of so many processes that begin together, each by the work of its number.

    `before` are steps of each that nobody measures, and neither is what ends a process.
    """
    context = multiprocessing.get_context("fork")
    start, spans = context.Barrier(processes), context.SimpleQueue()

    def run(number: int) -> None:
        own: list[Span] = []
        try:
            step = prepared(number)
            for _ in range(before):
                step()
            start.wait()
            for _ in range(steps):
                began = time.perf_counter()
                step()
                own.append((began, time.perf_counter()))
        except BaseException:
            start.abort()  # else nobody who got there would ever begin
            raise
        finally:
            spans.put(own)
        os._exit(0)

    # Else each fork looks through all it was born with, and its first steps wait for that.
    gc.freeze()
    workers = [context.Process(target=run, args=(number,)) for number in range(processes)]
    for worker in workers:
        worker.start()
    every = [span for _ in workers for span in spans.get()]
    for worker in workers:
        worker.join()
    assert not any(worker.exitcode for worker in workers), "a step failed"
    return every


def rate_of(spans: list[Span]) -> float:
    """Steps a second, from the first one's beginning to the last one's end."""
    return len(spans) / (max(ended for _, ended in spans) - min(began for began, _ in spans))
