"""Several processes on one ledger: a place they share, and how they start and end together."""

import itertools
import json
import multiprocessing
import os
import signal
import sqlite3
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import psycopg
import pytest

from memoranda.ledger.errors import Refused
from memoranda.ledger.stamps import Stamps
from memoranda.tools.memory import Memory, open_memory

SPACE = "us_alice"
WAIT_S = 120.0
"""Longer than anything takes on a busy machine: whatever waits so long hangs."""


class Site:
    """One ledger's folders, and the processes of a test that work on it."""

    def __init__(self, folder: Path, engine: Mapping[str, str] = MappingProxyType({})) -> None:
        self.folder = folder
        self.engine = engine
        self._children: set[int] = set()

    def open(self, stamps: Stamps | None = None, **more: object) -> Memory:
        place = {"data": self.folder / "data", "state": self.folder / "state", **self.engine}
        return open_memory(SPACE, **place, home=self.folder, stamps=stamps, **more)

    def start(self, work: Callable[[], None]) -> int:
        """Runs `work` in a forked process that ends without any clean-up."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work()
                status = 0
            except BaseException:  # noqa: BLE001  # the parent asserts on the status
                self.said("fault", traceback.format_exc())
            os._exit(status)
        self._children.add(child)
        return child

    def end_of(self, child: int) -> int:
        """Waits for a process; its exit status, or minus the signal that ended it."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                self._children.discard(child)
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        pytest.fail("a process did not end")

    def all_end_well(self, *children: int) -> None:
        statuses = [self.end_of(child) for child in children]
        assert statuses == [0] * len(children), "\n".join(self.heard("fault"))

    def said(self, name: str, what: object) -> None:
        """Notes something durably enough for the other processes, in one atomic write."""
        descriptor = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(descriptor, json.dumps(what).encode() + b"\n")
        os.close(descriptor)

    def heard(self, name: str) -> list:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for(self, name: str, count: int = 1) -> None:
        deadline = time.monotonic() + WAIT_S
        while len(self.heard(name)) < count:
            assert time.monotonic() < deadline, f"{name} was not said {count} times"
            time.sleep(0.002)

    def kill_all(self) -> None:
        for child in self._children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def together(site: Site, count: int, work: Callable[[Memory, int], None]) -> None:
    """Runs `work` in so many processes, each with the ledger open before any of them starts."""

    def one(number: int) -> None:
        with site.open() as memory:
            site.said("ready", number)
            site.wait_for("go")
            work(memory, number)

    children = [site.start(lambda number=number: one(number)) for number in range(count)]
    site.wait_for("ready", count)
    site.said("go", "all")
    site.all_end_well(*children)


def positions_of(site: Site) -> list[int]:
    with site.open() as memory, memory._parts.log.reading() as store:
        return [row.position for row in store.rows(0, 1_000_000)]


Answer = int | str
"""The position of what was committed, or the number of the refusal."""

_races = itertools.count()


def told(answer: object) -> Answer:
    return answer.refusal.number if isinstance(answer, Refused) else answer.position


def race(site: Site, rounds: int, *works: Callable[[Memory, int], object]) -> list[list[Answer]]:
    """Lets one process for each work start every round together; the answers, round by round."""
    gate = multiprocessing.get_context("fork").Barrier(len(works), timeout=WAIT_S)
    name = f"race {next(_races)}"

    def one(place: int, work: Callable[[Memory, int], object]) -> None:
        with site.open() as memory:
            for turn in range(rounds):
                gate.wait()
                site.said(name, [turn, place, told(work(memory, turn))])

    site.all_end_well(
        *(site.start(lambda it=it: one(*it)) for it in enumerate(works)),
    )
    heard = sorted(site.heard(name))
    return [[said for turn, _, said in heard if turn == each] for each in range(rounds)]


class FailingCommit:
    """What writes a log; one COMMIT of it fails, before it is durable or after.

    It stands before the connection of SQLite that writes, or before the pool of a server's and
    then before each connection that the pool gives out.
    """

    def __init__(self, memory: Memory, *, at: int = 1, is_durable: bool = True) -> None:
        recorder = memory._parts.log._recorder
        self._left, self._is_durable = at, is_durable
        name = "_writer" if hasattr(recorder, "_writer") else "_pool"
        self._behind = getattr(recorder, name)
        setattr(recorder, name, self)

    @contextmanager
    def connection(self, wait_s: float) -> Iterator["FailingCommit"]:
        pool = self._behind
        with pool.connection(wait_s) as raw:
            self._behind = raw
            try:
                yield self
            finally:
                self._behind = pool

    def execute(self, statement: str, *values: object) -> object:
        return self._done(statement, lambda: self._behind.execute(statement, *values))

    def sent(self, statements: list[tuple[str, object]]) -> object:
        # A server is sent the whole write as one text, which ends with it.
        return self._done(statements[-1][0], lambda: self._behind.sent(statements))

    def _done(self, statement: str, do: Callable[[], object]) -> object:
        is_commit = statement == "COMMIT"
        self._left -= is_commit
        is_failing = is_commit and self._left == 0
        answer = do() if self._is_durable or not is_failing else None
        if is_failing:
            is_file = isinstance(self._behind, sqlite3.Connection)
            raise (sqlite3 if is_file else psycopg).OperationalError("disk I/O error")
        return answer

    def __getattr__(self, name: str) -> object:
        return getattr(self._behind, name)


def killed_at(step: str, **more: object) -> Stamps:
    """The world of a process that is killed at a step."""

    def reached(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return Stamps(step=reached, **more)


def renewed(memory: Memory) -> str:
    """A new recovery code, in force."""
    code = memory.make_recovery_code()
    memory.set_recovery_code(code)
    return code
