"""What only a server can do to a log: its processes die, its walls hold, its settings deceive."""

import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from eventsourcing.dcb.api import DCBEvent
from tests.conftest import RAM, T0
from tests.residue import Traces, hits, in_clear
from tests.sites import SPACE, Site, told

from memoranda.ledger import postgres_log
from memoranda.ledger.ending import set_aside
from memoranda.ledger.errors import (
    OutcomeUnknown,
    Refusal,
    Refused,
    RefusedError,
    StorageFault,
)
from memoranda.ledger.locks import SpaceLock
from memoranda.ledger.places import Place
from memoranda.ledger.postgres_log import Connection, PostgresSpace, Statement
from memoranda.ledger.receipts import Receipt
from memoranda.ledger.restoring import Asked
from memoranda.ledger.stamps import Stamps, microseconds
from memoranda.tools.memory import Memory, open_memory
from memoranda.tools.postgres_server import PostgresServer, as_owner
from memoranda.tools.restore import RestoreReport, restore
from memoranda.tools.settings import load_settings

WRITERS = 8
WAITERS = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
EVENTS = 3_000
EVENTS_EXHAUSTIVE = 30_000


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    with server.schema() as url:
        yield url


def own_memory(url: str, folder: Path) -> Memory:
    return open_memory(SPACE, data=folder / "data", state=folder / "state", engine=url)


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may end as it likes."""
    with PostgresServer.passing(RAM) as own:
        yield own


@pytest.fixture
def own_site(own_server: PostgresServer, tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, {"engine": own_server.url})
    site.open().close()
    yield site
    site.kill_all()


# -- who wrote what, when the server goes ---------------------------------------------------------


def write_on(site: Site, number: int) -> None:
    """Writes until told to end, over every failure, and says what became of each operation."""
    with site.open() as memory:
        site.said("ready", number)
        turn = 0
        while not (site.folder / "end").exists():
            name, turn = f"op-{number}-{turn}", turn + 1
            try:
                answer = memory.publish(f"key {name}", f"fact {name}", operation_id=name)
            except OutcomeUnknown as unknown:
                site.said("unknown", unknown.operation_id)
            except (StorageFault, RefusedError):
                site.said("failed", name)
            else:
                site.said("told", [name, told(answer), hasattr(answer, "position")])


def after_writing(site: Site, server: PostgresServer, disturb: list[str]) -> dict[str, int]:
    """Lets writers write while the server is disturbed; how many operations ended how."""
    writers = [site.start(lambda n=n: write_on(site, n)) for n in range(WRITERS)]
    site.wait_for("ready", WRITERS)
    for how in disturb:
        site.wait_for("told", len(site.heard("told")) + 40)
        DISTURBANCES[how](server)
    site.wait_for("told", len(site.heard("told")) + 40)
    (site.folder / "end").touch()
    site.all_end_well(*writers)

    acknowledged = {name for name, _, is_receipt in site.heard("told") if is_receipt}
    with site.open() as memory:
        kept = {
            name: hasattr(memory.operation(name), "receipt")
            for name in acknowledged | {*site.heard("unknown"), *site.heard("failed")}
        }
        with memory._parts.log.reading() as store:
            positions = [row.position for row in store.rows(0, 1_000_000)]
        assert memory.audit.verify(with_index=True).findings == ()
    assert [name for name in acknowledged if not kept[name]] == []
    assert [name for name in site.heard("failed") if kept[name]] == []
    assert positions == [*range(1, len(positions) + 1)]
    return {name: len(site.heard(name)) for name in ("told", "unknown", "failed")}


def kill_backends(server: PostgresServer) -> None:
    with psycopg.connect(server.owner_url, autocommit=True) as raw:
        raw.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND usename = 'memoranda'"
        )


def kill_one_hard(server: PostgresServer) -> None:
    """SIGKILL of one backend: the server ends all the others and recovers from its log."""
    with psycopg.connect(server.owner_url, autocommit=True) as raw:
        row = raw.execute(
            "SELECT pid FROM pg_stat_activity WHERE usename = 'memoranda' LIMIT 1"
        ).fetchone()
    assert row is not None
    os.kill(row[0], signal.SIGKILL)


def stop_at_once(server: PostgresServer) -> None:
    server.stop(signal.SIGQUIT)
    server.start()


def kill_server(server: PostgresServer) -> None:
    server.stop(signal.SIGKILL)
    server.start()


DISTURBANCES = {
    "backends": kill_backends,
    "one backend, hard": kill_one_hard,
    "immediate stop": stop_at_once,
    "server killed": kill_server,
}


def test_whatever_ends_the_server_nothing_acknowledged_is_lost_and_the_rest_is_told_by_id(
    own_site, own_server, exhaustive
):
    ended = after_writing(own_site, own_server, [*DISTURBANCES] * (10 if exhaustive else 1))

    assert ended["told"] > 150
    assert ended["unknown"] + ended["failed"] > 0


def test_a_reader_that_follows_sees_every_event_once_and_in_order(own_site, exhaustive):
    wanted = EVENTS_EXHAUSTIVE if exhaustive else EVENTS
    own_site.said("so many", wanted)

    def follow() -> None:
        seen, last = 0, 0
        with own_site.open() as memory:
            own_site.said("ready", "reader")
            while seen < wanted:
                with memory._parts.log.reading() as store:
                    rows = store.rows(last, 500)
                for row in rows:
                    assert row.position == last + 1
                    last, seen = row.position, seen + 1
        own_site.said("followed", seen)

    def write(number: int) -> None:
        share = wanted // WRITERS + 1
        with own_site.open() as memory:
            own_site.wait_for("ready")
            for first in range(0, share, 20):
                requests = [
                    {"name": "publish", "operation_id": f"op-{number}-{n}", "key": f"{number} {n}",
                     "content": f"fact {n}"}
                    for n in range(first, min(first + 20, share))
                ]  # fmt: skip
                assert all(hasattr(it, "position") for it in memory.commit_many(requests))

    reader = own_site.start(follow)
    writers = [own_site.start(lambda n=n: write(n)) for n in range(WRITERS)]
    own_site.all_end_well(reader, *writers)

    assert own_site.heard("followed")[0] >= wanted


def test_who_waited_for_the_head_goes_on_from_the_time_of_the_event_that_came_meanwhile(
    url, tmp_path
):
    late = T0 + timedelta(hours=1)
    hosts = [
        PostgresSpace(url, SPACE).recorder(
            SpaceLock(tmp_path / name, 10.0), Stamps(now=lambda t=t: t)
        )
        for name, t in (("one", late), ("other", T0))
    ]
    found = []

    def wait() -> None:
        with hosts[1].deciding() as transaction:
            found.append((transaction.head.recorded_at, transaction.now))

    waiter = threading.Thread(target=wait)
    with closing(hosts[0]) as one, closing(hosts[1]), psycopg.connect(url, autocommit=True) as raw:
        one.append([DCBEvent("thing.happened/1", b"{}", [])])
        with one.deciding() as transaction:
            waiter.start()
            while not raw.execute(WAITERS).fetchone():
                assert waiter.is_alive()
            transaction.append([DCBEvent("thing.happened/1", b"{}", [])])
        waiter.join()

    second = microseconds(late) + 1
    assert found == [(second, second + 1)]


def test_a_commit_makes_two_journeys_whatever_it_must_look_at(url, tmp_path, monkeypatch):
    texts, sent = [], Connection.sent

    def counted(connection: Connection, statements: list[Statement]) -> psycopg.Cursor[Any]:
        texts.append([sql for sql, _ in statements])
        return sent(connection, statements)

    with own_memory(url, tmp_path) as memory, own_memory(url, tmp_path) as other:
        memory.host.bind_primary("s-main")
        for n in range(3):  # other processes write in between: that is seen on the way
            other.publish(f"theirs {n}", "fact")
            texts.clear()
            monkeypatch.setattr(Connection, "sent", counted)
            receipt = memory.publish(f"ours {n}", "fact")
            monkeypatch.undo()

            assert receipt.position == 4 + 2 * n
            assert [text[-1] == "COMMIT" for text in texts] == [False, True]


def every_plan(raw: Connection, asked: dict[str, Sequence[object]]) -> Iterator[list[str]]:
    for sql, values in asked.items():
        if sql.startswith("SELECT") and " FROM " in sql and values:
            spelled = postgres_log._spelled(sql).replace("?", "%s")
            plan = raw.execute(f"EXPLAIN {spelled}".encode(), values)
            yield [line.strip() for (line,) in plan]


@pytest.mark.parametrize("is_counted", [True, False], ids=["counted", "uncounted"])
@pytest.mark.parametrize("as_whom", [str, as_owner], ids=["under policies", "as superuser"])
def test_what_is_read_goes_by_keys_however_small_the_tables_were_when_it_was_planned(
    url, tmp_path, monkeypatch, is_counted, as_whom
):
    asked, sent = {}, Connection.sent

    def noted(connection: Connection, statements: list[Statement]) -> psycopg.Cursor[Any]:
        asked.update(statements)
        return sent(connection, statements)

    monkeypatch.setattr(Connection, "sent", noted)
    with own_memory(url, tmp_path) as memory:
        record_id = memory.publish("key", "fact").record_id
        memory.correct(record_id, 1, "another fact")
        memory.forget(record_id, 2)
        assert memory.audit.verify(with_index=True).findings == ()
    monkeypatch.undo()
    with Connection.connect(as_owner(url), autocommit=True) as owner:
        if is_counted:
            owner.execute("ANALYZE")
    with Connection.connect(as_whom(url), autocommit=True) as raw:
        raw.execute("SELECT set_config('memoranda.space', %s, false)", [SPACE])
        monkeypatch.setattr(postgres_log, "BY_KEY", {})
        left_alone = [*every_plan(raw, asked)]
        monkeypatch.undo()
        postgres_log._configure(raw)
        plans = [*every_plan(raw, asked)]

    assert len(plans) > 5
    assert [plan for plan in plans if not goes_by_keys(plan)] == []
    assert not all(map(goes_by_keys, left_alone))


def goes_by_keys(plan: list[str]) -> bool:
    """Whether it reads no table as a whole, and none but that of heads by the space alone."""
    reads = [line for line in plan if re.search(r"\b(Seq|Bitmap|Hash|Merge|Materialize)\b", line)]
    by_space = [
        conditions
        for scan, conditions in pairwise(plan)
        if conditions.startswith("Index Cond:") and " AND " not in conditions
        if " on heads " not in scan
    ]
    return not reads + by_space


def test_whoever_waits_too_long_for_the_head_is_told_that_it_is_busy(url, tmp_path, monkeypatch):
    monkeypatch.setattr(postgres_log, "WAIT_S", 0.2)
    with own_memory(url, tmp_path) as memory, psycopg.connect(url) as raw:
        raw.execute("SELECT set_config('memoranda.space', %s, true)", (SPACE,))
        raw.execute("SELECT 1 FROM heads FOR UPDATE")

        answer = memory.publish("key", "fact", operation_id="op-1")
        raw.rollback()

        assert answer.refusal is Refusal.BUSY
        assert memory.publish("key", "fact", operation_id="op-1").position == 2


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell lets what it runs in the background ignore this signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_commit_that_is_interrupted_as_it_waits_spoils_no_connection(url, tmp_path):
    def is_waiting() -> bool:
        with psycopg.connect(url, autocommit=True) as other:
            return other.execute(WAITERS).fetchone() is not None

    def interrupt() -> None:
        while not is_waiting():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    with own_memory(url, tmp_path) as memory, psycopg.connect(url) as raw:
        memory.publish("first", "fact")
        raw.execute("SELECT set_config('memoranda.space', %s, true)", (SPACE,))
        raw.execute("SELECT 1 FROM heads FOR UPDATE")
        for _ in range(2):  # what it asks is prepared when it is asked again
            while is_waiting():  # who was interrupted, until the server notices
                time.sleep(0.01)
            threading.Thread(target=interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                memory.publish("second", "fact")
        raw.rollback()

        assert [memory.publish(f"later {n}", "fact").position for n in range(3)] == [3, 4, 5]


def test_an_opening_from_before_the_end_writes_nothing_into_the_space_begun_anew(url, tmp_path):
    place = Place.of(SPACE, data=tmp_path / "data", state=tmp_path / "state", engine=url)
    with own_memory(url, tmp_path) as old:
        old.publish("key", "fact")
        with own_memory(url, tmp_path) as other:
            other.forget_space(SPACE)
        set_aside(place, Stamps())
        with own_memory(url, tmp_path) as new:
            assert new.publish("key", "fact").position == 2

            assert old.publish("key", "another").refusal is Refusal.SERVICE_UNAVAILABLE
            assert new.audit.verify().findings == ()


def test_a_log_that_is_put_in_place_waits_for_the_commit_under_way(url, tmp_path):
    space = PostgresSpace(url, SPACE)
    with own_memory(url, tmp_path) as memory:
        memory.publish("key", "fact")
        memory._parts.log.copy_to(tmp_path / "copy.db")
        lock, begun = SpaceLock(tmp_path / "lock", 1.0), threading.Event()

        def commit() -> None:
            with (
                closing(space.recorder(lock, Stamps())) as recorder,
                recorder.deciding() as transaction,
                psycopg.connect(url, autocommit=True) as raw,
            ):
                begun.set()
                until = time.monotonic() + 10
                while not raw.execute(WAITERS).fetchone() and time.monotonic() < until:
                    time.sleep(0.01)
                transaction.append([DCBEvent("thing.happened/1", b"{}", [])])

        committing = threading.Thread(target=commit)
        putting = threading.Thread(target=lambda: space.put(tmp_path / "copy.db"))
        committing.start()
        begun.wait()
        putting.start()
        committing.join()
        putting.join()

        assert memory.publish("another key", "fact").position == 3
        assert memory.audit.verify().findings == ()


def test_a_machine_whose_space_was_restored_on_another_writes_nothing_more(url, tmp_path):
    away, old, new = tmp_path / "away", tmp_path / "old", tmp_path / "new"
    with own_memory(url, old) as first:
        first.publish("one", "fact")
        first.backup(away)
        folders = {"data": new / "data", "state": new / "state"}
        settings = load_settings(space=SPACE, engine=url, **folders)
        asked = Asked(code=first.recovery_code, force=True)
        assert restore(settings, Stamps(), away, asked).is_served
        with own_memory(url, new) as second:
            second.publish("two", "fact")

            assert isinstance(first.publish("three", "fact"), Refused)
            second.rotate_keys()
            with pytest.raises(RefusedError, match="older than the log"):
                own_memory(url, old)
            assert second.audit.verify().findings == ()


class Stopped(Exception):  # noqa: N818
    """A crash between two steps."""


def of_machine(folder: Path, name: str, url: str) -> dict[str, object]:
    return {"data": folder / name / "data", "state": folder / name / "state", "engine": url}


class TwoMachines:
    """The first has the ledger open; on the second its backup is restored, beside it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.of_first, self.of_second = (of_machine(folder, it, url) for it in ("1st", "2nd"))
        self.away = folder / "away"
        self.acknowledged: list[Receipt] = []
        self.refusals: set[Refusal] = set()
        self.first = open_memory(SPACE, **self.of_first)
        self.first.publish("key", "fact")
        self.first.backup(self.away)

    def write_on(self, step: str) -> None:
        """What the first one is told while the restore on the second is at a step."""
        for number in range(70):
            told = len(self.acknowledged)
            answer = self.first.publish(f"{step} {number} {told}", "fact")
            if isinstance(answer, Receipt):
                self.acknowledged.append(answer)
            else:
                self.refusals.add(answer.refusal)
        if self.refusals:
            with pytest.raises(RefusedError) as refused:
                open_memory(SPACE, **self.of_first)
            self.refusals.add(refused.value.refused.refusal)

    def restore(self, at_step: dict[str, Callable[[str], object]]) -> RestoreReport | Refused:
        stamps = Stamps(step=lambda step: at_step.get(step, lambda _: None)(step))
        asked = Asked(code=self.first.recovery_code, force=True)
        return restore(load_settings(space=SPACE, **self.of_second), stamps, self.away, asked)


@pytest.mark.parametrize("stopped_at", [None, "restore:slots", "restore:replayed", "restore:log"])
def test_from_a_restore_on_another_machine_on_none_of_before_is_acknowledged_and_none_untold(
    url, tmp_path, stopped_at
):
    here = TwoMachines(url, tmp_path)

    def stop(step: str) -> None:
        here.write_on(step)
        raise Stopped

    with here.first:
        if stopped_at:
            with pytest.raises(Stopped):
                here.restore({stopped_at: stop})
        at = ("restore:replayed", "restore:log", "rotate:rewrapped")
        report = here.restore(dict.fromkeys(at, here.write_on))
        here.write_on("afterwards")

    assert (report.is_served, report.findings) == (True, ())
    assert len(here.acknowledged) == {None: 70, "restore:log": 0}.get(stopped_at, 140)
    assert report.gone == len(here.acknowledged)
    assert here.refusals == {Refusal.SPACE_UNKNOWN}
    with open_memory(SPACE, **here.of_second) as second:
        assert [it.record.content for it in second.records()] == ["fact"]
        assert second.audit.verify(with_index=True).findings == ()


@pytest.mark.parametrize("stopped_at", ["restore:log", None])
def test_of_two_restores_into_one_space_the_later_is_served_and_the_earlier_machine_told(
    url, tmp_path, stopped_at
):
    here = TwoMachines(url, tmp_path)
    here.first.close()
    of_third = of_machine(tmp_path, "3rd", url)
    shutil.copytree(here.away, tmp_path / "away too")
    asked = Asked(code=here.first.recovery_code, force=True)

    def restored_beside(_: str) -> None:
        settings = load_settings(space=SPACE, **of_third)
        assert restore(settings, Stamps(), tmp_path / "away too", asked).is_served
        with open_memory(SPACE, **of_third) as third:
            written = [third.publish(f"key {number}", "fact") for number in range(6)]
        assert all(isinstance(it, Receipt) for it in written)

    if stopped_at:
        earlier = here.restore({stopped_at: restored_beside})
        assert (earlier.refusal, earlier.field) == (Refusal.SPACE_UNKNOWN, "data")
    else:
        assert here.restore({}).is_served
        # Refused while it is open, it closes: what it has seen is not what is there.
        with open_memory(SPACE, **here.of_second) as second:
            restored_beside("")
            assert second.publish("key", "fact").refusal is Refusal.SPACE_UNKNOWN
    with pytest.raises(RefusedError) as refused:
        open_memory(SPACE, **here.of_second)

    assert refused.value.refused.refusal is Refusal.SPACE_UNKNOWN
    with open_memory(SPACE, **of_third) as third:
        assert isinstance(third.publish("another key", "another fact"), Receipt)
        assert third.audit.verify(with_index=True).findings == ()


def test_a_machine_that_was_fenced_stays_so_after_the_space_was_begun_anew(url, tmp_path):
    of_second = of_machine(tmp_path, "second", url)
    with open_memory(SPACE, **of_machine(tmp_path, "first", url)) as first:
        code = first.recovery_code
        first.publish("key", "fact")
        first.backup(tmp_path / "away")
        settings = load_settings(space=SPACE, **of_second)
        restore(settings, Stamps(), tmp_path / "away", Asked(code=code, force=True))
        with open_memory(SPACE, **of_second) as second:
            second.forget_space(SPACE)
        set_aside(Place.of(SPACE, **of_second), Stamps())
        with open_memory(SPACE, **of_second) as new:
            new.publish("another key", "another fact")
            answers = [first.publish("key", "fact"), first.search("fact")]

            assert {it.refusal for it in answers} == {Refusal.SPACE_UNKNOWN}
            assert new.audit.verify(with_index=True).findings == ()


def test_a_text_that_fails_while_it_prepares_ends_its_connection(url):
    asked: list[Statement] = [("SELECT 1 / ?::int", (0,))]
    with closing(Connection.connect(url, autocommit=True)) as raw:
        for _ in range(2):
            with pytest.raises(psycopg.errors.DivisionByZero):
                raw.sent(asked)

        assert raw.closed


# -- the second wall ------------------------------------------------------------------------------


def two_people(url: str, folder: Path) -> None:
    for space in ("us_alice", "us_bob"):
        with open_memory(space, data=folder / "data", state=folder / "state", engine=url) as memory:
            memory.publish("home", f"{space} lives in Kyoto")


def spaces_seen(url: str, *, named: str | None) -> set[str]:
    """What a query shows whose author forgot to filter by space."""
    with psycopg.connect(url) as raw:
        if named:
            raw.execute("SELECT set_config('memoranda.space', %s, true)", (named,))
        return {space for table in ("heads", "events", "tags", "bodies")
                for (space,) in raw.execute(f"SELECT space FROM {table}")}  # fmt: skip


def test_a_query_without_its_filter_shows_nobody_elses_rows(url, tmp_path):
    two_people(url, tmp_path)

    assert spaces_seen(url, named="us_alice") == {"us_alice"}
    assert spaces_seen(url, named=None) == set()
    assert spaces_seen(as_owner(url), named=None) == {
        "us_alice",
        "us_bob",
    }  # no policy binds the owner


def test_a_missing_filter_in_the_product_itself_is_stopped(url, tmp_path, monkeypatch):
    two_people(url, tmp_path)
    from memoranda.ledger import sql_log

    bodies = sql_log.BODIES.replace("b.space = e.space AND ", "")
    unfiltered = f"SELECT {sql_log._COLUMNS} FROM events e {bodies}"
    monkeypatch.setattr(
        sql_log.SQLSnapshot,
        "read",
        lambda self, *_: [
            sql_log._row(row) for row in self._connection.execute(unfiltered).fetchall()
        ],
    )
    space = PostgresSpace(url, "us_alice")
    with (
        closing(space.recorder(SpaceLock(tmp_path / "lock", 1.0), Stamps())) as recorder,
        recorder.reading() as snapshot,
    ):
        rows = snapshot.read()

    assert len(rows) == snapshot.head.position


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET header = ''",
        "DELETE FROM events WHERE position = 2",
        "UPDATE tags SET tag = 'op:other'",
        "DELETE FROM tags",
        "UPDATE bodies SET sealed = ''",
        "DELETE FROM heads WHERE space = 'us_bob'",
        "DELETE FROM bodies WHERE space = 'us_bob'",
    ],
)
def test_what_no_policy_allows_changes_no_row(url, tmp_path, statement):
    two_people(url, tmp_path)

    with psycopg.connect(url) as raw:
        raw.execute("SELECT set_config('memoranda.space', 'us_alice', true)")
        assert raw.execute(statement).rowcount == 0
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            raw.execute("INSERT INTO tags VALUES ('us_bob', 'op:x', 'x/1', 1)")


# -- servers that will not do ---------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["fsync", "synchronous_commit"])
def test_a_server_that_may_lose_what_it_acknowledged_is_refused(own_server, tmp_path, setting):
    with psycopg.connect(own_server.owner_url, autocommit=True) as raw:
        raw.execute(f"ALTER SYSTEM SET {setting} = off")
        raw.execute("SELECT pg_reload_conf()")
    stop_at_once(own_server)

    with pytest.raises(RefusedError, match=setting):
        open_memory(SPACE, data=tmp_path, state=tmp_path / "state", engine=own_server.url)


def test_a_server_that_is_not_there_is_refused_without_a_word_of_its_address(tmp_path):
    engine = f"postgresql://someone:hunter2@/memoranda?host={tmp_path}"

    with pytest.raises(RefusedError) as caught:
        open_memory(SPACE, data=tmp_path / "data", state=tmp_path / "state", engine=engine)

    assert caught.value.refused.refusal is Refusal.SERVICE_UNAVAILABLE
    assert caught.value.refused.field == "engine"
    assert "hunter2" not in f"{caught.value!r} {caught.value}"
    assert "hunter2" not in repr(load_settings(engine=engine))


def test_tables_of_another_program_and_of_a_newer_version_are_left_alone(url, tmp_path):
    folders = {"data": tmp_path / "data", "state": tmp_path / "state"}
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute("CREATE TABLE heads (position integer)")
        with pytest.raises(RefusedError) as foreign:
            open_memory(SPACE, **folders, engine=url)
        raw.execute("COMMENT ON TABLE heads IS 'memoranda schema 2'")
        with pytest.raises(RefusedError) as newer:
            open_memory(SPACE, **folders, engine=url)
        left = raw.execute("SELECT count(*) FROM heads").fetchone()

    assert foreign.value.refused.refusal is Refusal.SPACE_UNKNOWN
    assert newer.value.refused.refusal is Refusal.SCHEMA_NEWER
    assert left == (0,)


# -- forgetting, and from one engine to the other -------------------------------------------------


def test_a_forget_says_what_the_server_still_holds_and_that_nothing_opens_it(url, tmp_path):
    with open_memory("me", data=tmp_path / "d", state=tmp_path / "s", engine=url) as memory:
        made = memory.publish("home", "I live in Kyoto")
        answer = memory.forget(made.record_id, 1)

        assert answer.erased_at is not None
        (server,) = answer.copies
        assert "vacuumed" in server
        assert "no key opens" in server
        assert memory.remnants("Kyoto").remnants == ()


def test_no_file_of_the_server_says_anything_readable_before_a_forget_or_after_it(
    own_server, tmp_path
):
    text = "quixotry under moonflowers"
    with open_memory(SPACE, data=tmp_path / "d", state=tmp_path / "s", engine=own_server.url) as me:
        said = {"session": "s", "seq": 1, "role": "user", "text": f"I said: {text}"}
        assert len(list(me.capture([said]))) == 1
        made = me.publish(text, text)
        traces = Traces().add(me, text)
        sealed, others = traces.sealed, (traces.all - traces.sealed) | in_clear(text)
        for _ in ("before", "after"):
            own_server.stop()  # in order, so that all it has is in its files
            # The control: it is what was sealed that they hold, until they are vacuumed.
            assert hits(sealed, own_server.data / "base")
            assert hits(others, own_server.data) == set()
            own_server.start()
            assert me.forget(made.record_id, 1, operation_id="op-f").erased_at is not None


@pytest.mark.parametrize(("of", "to"), [("server", "file"), ("file", "server")])
def test_a_backup_of_one_engine_is_restored_into_the_other(url, tmp_path, of, to):
    engines = {"server": {"engine": url}, "file": {}}
    old = {"data": tmp_path / "old", "state": tmp_path / "old state", **engines[of]}
    with open_memory("me", **old) as memory:
        code = memory.recovery_code
        kept, gone = memory.publish("home", "Kyoto"), memory.publish("work", "Osaka")
        memory.backup(tmp_path / "backup")
        memory.forget(gone.record_id, 1)

    new = {"data": tmp_path / "new", "state": tmp_path / "new state", **engines[to]}
    settings = load_settings(space="me", **new)

    report = restore(settings, Stamps(now=lambda: T0), tmp_path / "backup", Asked(code=code))

    assert report.is_served, report
    assert report.forgotten_again == 1
    with open_memory("me", **new) as memory:
        assert memory.read(kept.record_id).record.content == "Kyoto"
        assert memory.read(gone.record_id, include_inactive=True).record.status == "forgotten"
        assert memory.audit.verify(with_index=True).findings == ()


def test_a_fork_opens_connections_of_its_own(url, tmp_path):
    site = Site(tmp_path, {"engine": url})
    with site.open() as parent:
        parent.publish("home", "Kyoto")

        def write() -> None:
            folders = {"data": tmp_path / "fork", "state": tmp_path / "state of the fork"}
            with open_memory("us_bob", **folders, engine=url) as memory:
                assert hasattr(memory.publish("work", "Osaka"), "position")

        site.all_end_well(site.start(write))
        assert [it.record.content for it in parent.records()] == ["Kyoto"]
