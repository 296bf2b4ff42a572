"""Writers on one PostgreSQL server, whole commits, against raw one-row inserts of the same run."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg

from memoranda.ledger.errors import Refused
from memoranda.tools.benchmarks.workload import FACT, at_once, rate_of, scratch
from memoranda.tools.memory import Memory, open_memory
from memoranda.tools.postgres_server import PostgresServer

COMMITS = 1600
"""Commits of each run, over all its writers."""

UNMEASURED = 8
"""Commits of each writer before the start: a connection prepares a statement at its sixth use."""


def run() -> Iterator[str]:
    """The rates of many people and of one, each beside as many raw writers."""
    with scratch() as folder, PostgresServer.passing() as server:
        yield from _rates(server, folder)


def _rates(server: PostgresServer, folder: Path) -> Iterator[str]:
    with psycopg.connect(server.url, autocommit=True) as raw:
        raw.execute("CREATE TABLE facts (id bigserial PRIMARY KEY, fact text)")

    def insert(_: int) -> Callable[[], object]:
        connection = psycopg.connect(server.url, autocommit=True)
        return lambda: connection.execute("INSERT INTO facts (fact) VALUES (%s)", (FACT,))

    def people(number: int) -> Callable[[], object]:
        return _publishing(server.url, folder, f"person-{number}", number)

    def person(number: int) -> Callable[[], object]:
        return _publishing(server.url, folder, "person", number)

    _opened(server.url, folder, "person").close()  # what is open here, no fork may use
    for writers, work, what, limit in (
        (32, people, "32 people", "0.25, aim 0.4"),
        (8, person, "8 writers on one", "0.10"),
    ):
        # Before and after: what else the machine does changes a rate more than anything here.
        before, rate, after = (
            rate_of(at_once(writers, it, COMMITS // writers, UNMEASURED))
            for it in (insert, work, insert)
        )
        raw_rate = (before + after) / 2
        yield f"raw, {writers:2} writers     {raw_rate:8.0f} a second"
        yield f"{what:20}{rate:8.0f} a second"
        yield f"rate against raw    {rate / raw_rate:8.2f} (at least {limit})"


def _publishing(url: str, folder: Path, space: str, number: int) -> Callable[[], object]:
    memory = _opened(url, folder, space)
    turns = iter(range(COMMITS))

    def publish() -> None:
        turn = next(turns)
        answer = memory.publish(f"{number}/{turn}", FACT.format(turn))
        assert not isinstance(answer, Refused), answer

    return publish


def _opened(url: str, folder: Path, space: str) -> Memory:
    return open_memory(space, data=folder / "data", state=folder / "state", engine=url)
