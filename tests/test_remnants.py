"""A forget that one can watch: where a text is found before it, and where afterwards."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from memoranda import open_memory_async
from memoranda.ledger.errors import Refusal
from memoranda.ledger.stamps import Stamps

REF = "personal-message:s-main-1:"
CANARY = "I moved to Kyoto."


@pytest.fixture
def record(primary):
    return primary.publish("home", f"{CANARY} (she said)", sources=[f"{REF}50#8-25"]).record_id


def kinds(memory, text: str = CANARY) -> list[tuple[str, str | None]]:
    return [(it.kind, it.names) for it in memory.remnants(text).remnants]


def test_scenario_49_a_forgotten_text_is_left_in_the_captured_message_only(memory, record):
    assert kinds(memory) == [("message", f"{REF}50"), ("record", record)]

    assert memory.forget(record, 1).status == "forgotten"

    assert kinds(memory) == [("message", f"{REF}50")]
    assert memory.audit.verify().findings == ()


def own_locks() -> int:
    """How many locks of SQLite's kind this process has on files."""
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return sum(lock[1:2] == ["POSIX"] and lock[4] == str(os.getpid()) for lock in locks)


def test_a_search_for_remnants_ends_no_lock_on_what_is_open(memory):
    with memory._parts.log.reading() as store:
        assert store.head.position
        before = own_locks()

        memory.remnants(CANARY)

        assert own_locks() >= before > 3


def test_with_its_sources_a_forgotten_text_is_left_nowhere(memory, record):
    assert len(kinds(memory)) == 2

    assert memory.forget(record, 1, with_sources=True).status == "forgotten"

    assert kinds(memory) == []
    assert memory.audit.verify().findings == ()
    assert [kind for kind, _ in kinds(memory, "Please answer me in Chinese")] == ["message"]
    again = {"session": "s-main-1", "seq": 50, "role": "user", "text": f"我对花生过敏🥜。{CANARY}"}
    assert next(iter(memory.capture([again]))).refusal is Refusal.SOURCE_FORGOTTEN


def test_the_rest_of_a_bucket_moves_to_a_fresh_key_and_later_messages_follow(memory, record):
    memory.forget(record, 1, with_sources=True)
    more = {"session": "s-main-1", "seq": 99, "role": "user", "text": "one more"}

    assert hasattr(next(iter(memory.capture([more]))), "position")

    assert [kind for kind, _ in kinds(memory, "one more")] == ["message"]
    assert [kind for kind, _ in kinds(memory, "Chinese replies again")] == ["message"]
    assert memory.audit.verify().findings == ()


def test_scenario_47_an_operation_of_a_forgotten_record_tells_no_content(memory, primary):
    made = primary.publish("home", CANARY, sources=[f"{REF}50#8-25"], operation_id="op-1")
    memory.forget(made.record_id, 1)

    told = memory.operation("op-1")

    assert (told.intent, told.state, told.is_current) == (None, "committed", False)
    assert told.receipt.record_digest == made.record_digest


def test_every_read_surface_of_an_open_memory_refuses_at_once(opened, memory, record):
    other = opened()
    assert other.search("kyoto")

    memory.forget(record, 1)

    assert other.read(record).refusal is Refusal.NOT_FOUND
    assert (other.records(), other.search("kyoto"), other.query().records) == ((), (), ())
    assert [fact for zone in other.recall("kyoto").zones for fact in zone.facts] == []
    assert [it.content for it in other.revisions(record)] == [None, None]
    told = " ".join(other.explain(record))
    assert CANARY not in told
    assert "erased" in told


def test_an_old_copy_of_the_views_never_shows_what_was_forgotten(opened, memory, record, folder):
    place = folder["data"] / "us_alice"
    assert memory.search("kyoto")
    memory.close()
    shutil.copy(place / "views.db", place / "old.db")
    again = opened()
    again.forget(record, 1)
    again.close()

    shutil.move(place / "old.db", place / "views.db")

    reopened = opened()
    assert reopened.search("kyoto") == ()
    assert reopened.records() == ()


def test_tokens_of_a_forgotten_word_are_found_by_the_indexs_own_key(memory, record, folder):
    """In the live index, and in an old file of views; a word that others still say is none."""
    place = folder["data"] / "us_alice"
    memory.remember("Who moved to Osaka?")
    assert memory.search("kyoto")
    memory._parts.views.truncate()
    shutil.copy(place / "views.db", place / "old.db")
    postings = rows(memory)["postings"]
    assert [it for it in memory.remnants(CANARY).remnants if it.kind == "index"] == []
    position = memory.operation(memory.forget(record, 1).operation_id).receipt.position

    found = memory.remnants("Kyoto").remnants
    assert [(it.kind, it.file) for it in found if it.kind == "index"] == [("index", "old.db")]
    assert found[-1].position < position
    (place / "old.db").unlink()
    assert [it.kind for it in memory.remnants("Kyoto").remnants] == ["message"]

    with memory._parts.views.held() as connection:
        marks = "(?, ?, ?, ?, ?)"
        connection.executemany(f"INSERT OR IGNORE INTO postings VALUES {marks}", postings)

    found = memory.remnants("Kyoto").remnants
    assert [(it.kind, it.file) for it in found if it.kind == "index"] == [("index", "views.db")]
    assert [it.kind for it in memory.remnants("Osaka").remnants] == ["record"]


def test_a_view_computed_anew_after_a_forget_equals_the_one_that_grew(memory, primary, record):
    primary.publish("tea", "Green tea in the morning", sources=[f"{REF}88"])
    memory.search("tea")
    memory.forget(record, 1)
    memory.remember("Coffee after lunch")
    memory.search("tea")

    grown = rows(memory)
    memory.rebuild()

    assert memory.search("tea")
    fresh = rows(memory)
    assert grown["records"] == fresh["records"]
    assert grown["scopes"] == fresh["scopes"]
    assert len(grown["postings"]) == len(fresh["postings"])
    assert memory.audit.verify(with_index=True).findings == ()


def test_a_changed_row_of_the_index_is_found_when_it_is_recomputed(memory):
    memory.remember("Coffee after lunch")
    assert memory.audit.verify(with_index=True).findings == ()

    with memory._parts.views.held() as connection:
        connection.execute("UPDATE postings SET count = count + 1")

    assert memory.audit.verify().findings == ()
    (finding,) = memory.audit.verify(with_index=True).findings
    assert (finding.kind, finding.message.split()[0]) == ("view", "postings")


def rows(memory) -> dict[str, list]:
    tables = ("records", "counters", "postings", "documents", "words", "scopes")
    with memory._parts.views.held() as connection:
        return {t: sorted(connection.execute(f"SELECT * FROM {t}")) for t in tables}


def test_no_word_of_a_fact_stands_in_the_views(memory, record, folder):
    assert memory.search("kyoto")

    kept = (folder["data"] / "us_alice" / "views.db").read_bytes()
    kept += (folder["data"] / "us_alice" / "views.db-wal").read_bytes()

    assert b"kyoto" not in kept.lower()
    assert record.encode() not in kept


def test_asyncio_gets_the_same_answers(folder, world):
    async def walk() -> tuple:
        stamps: Stamps = world.stamps
        async with open_memory_async("us_bob", **folder, stamps=stamps) as memory:
            made = await memory.remember("Bob drinks tea", key="tea")
            captured = await memory.capture(
                [{"session": "s", "seq": 1, "role": "user", "text": "x"}]
            )
            refused = await memory.remember("Bob drinks tea", key="tea")
            recalled = await memory.recall("tea")
            return made, captured, refused, recalled, memory.memory.audit.verify()

    made, captured, refused, recalled, report = asyncio.run(walk())

    assert made.to_revision == 1
    assert [it.ref for it in captured] == ["personal-message:s:1"]
    assert refused.refusal is Refusal.REVISION_CONFLICT
    assert [f.content for zone in recalled.zones for f in zone.facts] == ["Bob drinks tea"]
    assert report.findings == ()


def test_a_memory_for_asyncio_is_entered_first():
    with pytest.raises(RuntimeError, match="enter the memory first"):
        open_memory_async("us_bob").remember("x")
