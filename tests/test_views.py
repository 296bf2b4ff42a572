"""Views: always at the head of the log, equal to what it yields, and disposable at any time."""

import itertools
import random  # noqa: TID251  # seeded dice, no entropy
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from memoranda.ledger.errors import Refused, StorageFault
from memoranda.ledger.log import Log
from memoranda.projections import feed
from memoranda.projections.records import RecordsView
from memoranda.projections.views import ViewFile
from memoranda.tools.memory import Memory, open_memory

SPACE = "us_alice"


def views_of(folder: dict[str, Path]) -> Path:
    return folder["data"] / SPACE / "views.db"


def rows_of(memory: Memory) -> list[tuple]:
    """Every row of the view of records, once it is at the head."""
    log, views = memory._parts.log, memory._parts.views
    with feed.current(log, views, RecordsView()) as (_, connection):
        return connection.execute("SELECT * FROM records ORDER BY record").fetchall()


def checkpoint_of(memory: Memory) -> tuple[int, bytes]:
    checkpoint = memory._parts.views.checkpoint(RecordsView())
    assert checkpoint is not None
    return checkpoint.position, checkpoint.chain


def head_of(memory: Memory) -> tuple[int, bytes]:
    head = memory._parts.log.head()
    return head.position, head.chain


def steps_of(memory: Memory) -> int:
    """How many events the view still has to take."""
    log, views = memory._parts.log, memory._parts.views
    with views.held(), log.reading() as store:
        return feed.catch_up(store, views, RecordsView())


def contents(memory: Memory) -> set[str]:
    return {read.record.content for read in memory.records()}


# -- catching up ----------------------------------------------------------------------------------


def test_what_was_committed_is_in_the_next_list(opened):
    memory = opened()
    for n in range(3):
        memory.publish(f"key {n}", f"fact {n}")

        assert contents(memory) == {f"fact {m}" for m in range(n + 1)}
        assert checkpoint_of(memory) == head_of(memory)


def test_what_another_opening_committed_is_in_the_next_list(opened):
    one, other = opened(), opened()
    first = one.publish("home", "I live in Kyoto")

    assert contents(other) == {"I live in Kyoto"}
    other.correct(first.record_id, 1, "I live in Nara")
    assert contents(one) == {"I live in Nara"}
    one.forget(first.record_id, 2)
    assert contents(other) == set()


def test_a_view_takes_every_event_once(opened):
    memory = opened()
    for n in range(5):
        memory.publish(f"key {n}", f"fact {n}")

    assert steps_of(memory) == memory.status().position
    assert steps_of(memory) == 0
    memory.remember("one more")
    assert steps_of(memory) == 1


def test_a_view_that_is_read_while_it_lags_moves_with_its_rows_in_one_step(opened, monkeypatch):
    monkeypatch.setattr(feed, "PAGE", 3)
    memory = opened()
    for n in range(10):
        memory.publish(f"key {n}", f"fact {n}")
    taken = []

    class Stopping(RecordsView):
        def apply(self, connection, event) -> None:
            if len(taken) == 7:
                raise RuntimeError
            taken.append(event.position)
            super().apply(connection, event)

    log, views = memory._parts.log, memory._parts.views
    with suppress(RuntimeError), views.held(), log.reading() as store:
        feed.catch_up(store, views, Stopping())

    assert taken == list(range(1, 8))
    assert checkpoint_of(memory)[0] == 6
    kept = views._connection.execute("SELECT max(position) FROM records").fetchone()
    assert kept == (6,)
    assert len(contents(memory)) == 10


def test_rows_whose_checkpoint_did_not_move_are_not_kept(opened, monkeypatch):
    monkeypatch.setattr(feed, "PAGE", 3)
    memory = opened()
    for n in range(5):
        memory.publish(f"key {n}", f"fact {n}")
    log, views = memory._parts.log, memory._parts.views
    move = views.move

    def until_three(view, checkpoint) -> None:
        if checkpoint.position > 3:
            raise RuntimeError
        move(view, checkpoint)

    monkeypatch.setattr(views, "move", until_three)
    with suppress(RuntimeError), views.held(), log.reading() as store:
        feed.catch_up(store, views, RecordsView())

    assert checkpoint_of(memory)[0] == 3
    kept = views._connection.execute("SELECT max(position) FROM records").fetchone()
    assert kept == (3,)


def script(memory: Memory, dice: random.Random, length: int) -> None:
    """Random commands on a few keys; the refused ones are part of it."""
    keys = [f"key {n}" for n in range(6)]
    for step in range(length):
        known = {read.record.id: read.record for read in memory.records(include_inactive=True)}
        record = dice.choice([*known.values(), None])
        verb = dice.choice(
            ["publish", "publish", "correct", "retire", "reactivate", "tier", "forget"]
        )
        if record is None or verb == "publish":
            memory.publish(dice.choice(keys), f"fact {step}")
        elif verb == "correct":
            memory.correct(record.id, record.revision, f"fact {step}", expires_at="2030-01-01")
        elif verb == "tier":
            memory.choose_tier(record.id, record.revision, dice.choice(["core", "detail"]))
        elif verb == "retire":
            memory.retire(record.id, record.revision, "no longer")
        else:
            getattr(memory, verb)(record.id, record.revision)


@pytest.mark.parametrize("seed", range(3))
def test_a_view_computed_anew_equals_the_one_that_grew(opened, world, seed, exhaustive):
    memory = opened()
    dice = random.Random(seed)
    world.at_step = lambda _: world.move(seconds=1)
    for _ in range(40 if exhaustive else 4):
        script(memory, dice, 10)
        grown = rows_of(memory)

        count = feed.rebuild(memory._parts.log, memory._parts.views, RecordsView())

        assert count == memory.status().position
        erased = [row for row in grown if row[3] == "forgotten"]
        assert [row for row in rows_of(memory) if row[3] == "forgotten"] == erased
        assert rows_of(memory) == grown
        assert memory.audit.verify().findings == ()


# -- disposable -----------------------------------------------------------------------------------


def garbage(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at:] = b"\xa5" * (len(content) - at)
    path.write_bytes(content)


def other_tables(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("DROP TABLE records")
        raw.execute("CREATE TABLE records (something TEXT)")


def no_tables(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("DROP TABLE checkpoints")


def of_a_newer_version(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("PRAGMA user_version=99")


def text_for_numbers(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("UPDATE records SET position = 'x', newest_source = 'y'")


def text_for_a_checkpoint(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("UPDATE checkpoints SET position = 'x'")


RUINS: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "cut to a page": lambda path: path.write_bytes(path.read_bytes()[:4096]),
    "cut in the middle": lambda path: path.write_bytes(path.read_bytes()[:6000]),
    "text": lambda path: path.write_text("not a database\n" * 300),
    "garbage from the start": lambda path: garbage(path, 0),
    "garbage in its tables": lambda path: garbage(path, 4096),
    "garbage in its first page": lambda path: garbage(path, 100),
    "with other tables": other_tables,
    "without checkpoints": no_tables,
    "of a newer version": of_a_newer_version,
    "with text for numbers": text_for_numbers,
    "with text for a checkpoint": text_for_a_checkpoint,
}


@pytest.mark.parametrize("kind", RUINS)
def test_a_ruined_view_file_is_computed_anew(opened, folder, kind):
    memory = opened()
    for n in range(12):
        memory.publish(f"key {n}", f"fact {n}")
    expected = rows_of(memory)
    memory.close()
    RUINS[kind](views_of(folder))

    memory = opened()
    # Damage that shows while a view answers costs that one answer.
    with suppress(StorageFault):
        contents(memory)

    assert contents(memory) == {f"fact {n}" for n in range(12)}
    assert rows_of(memory) == expected
    assert memory.audit.verify().findings == ()


def test_a_view_file_deleted_while_it_is_open_answers_on_and_is_made_anew(opened, folder):
    memory = opened()
    memory.publish("home", "I live in Kyoto")
    assert contents(memory) == {"I live in Kyoto"}
    for name in ("views.db", "views.db-wal", "views.db-shm"):
        views_of(folder).with_name(name).unlink()

    memory.publish("work", "I work in Osaka")

    assert contents(memory) == {"I live in Kyoto", "I work in Osaka"}
    memory.close()
    assert contents(opened()) == {"I live in Kyoto", "I work in Osaka"}


def test_what_is_forgotten_leaves_the_views_that_another_process_has_made_anew(opened, folder):
    memory, place = opened(), folder["data"] / SPACE
    made = memory.publish("home", "Kyoto has moonflowers")
    assert memory.search("moonflowers")
    for name in ("views.db", "views.db-wal", "views.db-shm"):
        (place / name).unlink()
    with opened() as other:
        assert other.search("moonflowers")
        views = sqlite3.connect(place / "views.db")
        assert views.execute("SELECT count(*) FROM postings").fetchone() != (0,)

        assert memory.forget(made.record_id, 1).erased_at
        assert views.execute("SELECT count(*) FROM postings").fetchone() == (0,)
        views.close()


def test_a_view_of_another_version_is_computed_anew(opened):
    memory = opened()
    memory.publish("home", "I live in Kyoto")
    assert len(rows_of(memory)) == 1
    position, taken = memory.status().position, []

    class Newer(RecordsView):
        version = RecordsView.version + 1

        def apply(self, connection, event) -> None:
            taken.append(event.position)
            super().apply(connection, event)

    log, views = memory._parts.log, memory._parts.views
    for _ in range(2):
        with feed.current(log, views, Newer()) as (_, connection):
            assert connection.execute("SELECT count(*) FROM records").fetchone() == (1,)

    assert taken == list(range(1, position + 1))
    assert steps_of(memory) == position


# -- another log under the view -------------------------------------------------------------------


def restore(put_back: Callable[[], None], folder: dict[str, Path]) -> None:
    """Puts an older copy of the log back, without a witness, and leaves all else as it is."""
    put_back()
    (folder["state"] / SPACE / "anchor").unlink()


def test_a_view_ahead_of_a_restored_log_is_computed_anew(opened, folder, tables):
    memory = opened()
    first = memory.publish("home", "I live in Kyoto")
    memory.close()
    put_back = tables.kept()
    memory = opened()
    memory.publish("work", "I work in Osaka")
    memory.correct(first.record_id, 1, "I live in Nara")
    assert len(contents(memory)) == 2
    memory.close()

    restore(put_back, folder)

    memory = opened()
    assert contents(memory) == {"I live in Kyoto"}
    assert checkpoint_of(memory) == head_of(memory)
    assert memory.audit.verify().findings == ()


def test_a_view_of_a_log_that_forked_is_computed_anew(opened, folder, tables):
    memory = opened()
    memory.publish("home", "I live in Kyoto")
    memory.close()
    put_back = tables.kept()
    memory = opened()
    for n in range(3):
        memory.publish(f"one side {n}", f"this side {n}")
    assert len(contents(memory)) == 4
    ahead = memory.status().position
    memory.close()

    restore(put_back, folder)
    memory = opened()
    for n in range(4):
        memory.publish(f"other side {n}", f"that side {n}")

    assert memory.status().position > ahead
    assert contents(memory) == {"I live in Kyoto"} | {f"that side {n}" for n in range(4)}
    assert memory.audit.verify().findings == ()


def test_a_view_of_another_space_is_not_believed(opened, folder):
    alice, bob = opened(), opened("us_bob")
    alice.publish("home", "I live in Kyoto")
    bob.publish("home", "I live in Bergen")
    assert contents(bob) == {"I live in Bergen"}
    alice.close()
    bob.close()

    shutil.copy(folder["data"] / "us_bob" / "views.db", views_of(folder))

    assert contents(opened()) == {"I live in Kyoto"}


def test_two_view_files_of_one_log_agree(opened, tmp_path):
    memory = opened()
    other = ViewFile(tmp_path / "other-views.db", SPACE)
    for n, key in itertools.product(range(3), ("a", "b")):
        memory.publish(f"{key} {n}", f"fact {n}")
        log: Log = memory._parts.log
        with feed.current(log, other, RecordsView()) as (_, connection):
            rows = connection.execute("SELECT * FROM records ORDER BY record").fetchall()

        assert rows == rows_of(memory)
    other.close()


def test_a_view_file_holds_no_words(opened, folder):
    memory = opened()
    receipt = memory.publish("home", "I live in Kyoto")
    assert not isinstance(receipt, Refused)
    rows_of(memory)
    memory.close()

    content = views_of(folder).read_bytes()

    for word in (b"Kyoto", b"home", receipt.record_id.encode(), receipt.operation_id.encode()):
        assert word not in content


def test_closing_twice_is_harmless(folder, tmp_path):
    memory = open_memory(SPACE, **folder, home=tmp_path)

    memory.close()
    memory.close()

    with open_memory(SPACE, **folder, home=tmp_path) as again:
        assert again.records() == ()
