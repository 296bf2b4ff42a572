"""Forgets of a model's session: held for the person, taken back, or gone with their window."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.conftest import MAIN, T0, World
from tests.providers import company

from memoranda.ledger.authority import Auditor, BackgroundItem, ModelSession
from memoranda.ledger.errors import Refused, RefusedError
from memoranda.ledger.events import ForgetHeld, ForgetReleased
from memoranda.ledger.holding import HELD, all_held
from memoranda.ledger.personal import record_id_of
from memoranda.ledger.places import Place
from memoranda.ledger.receipts import ForgetReceipt, Receipt
from memoranda.ledger.restoring import Asked
from memoranda.projections.audit import verify_chain
from memoranda.tools.memory import Memory, open_memory
from memoranda.tools.restore import restore
from memoranda.tools.settings import load_settings
from memoranda.tools.undoing import undo

REF = "personal-message:s-main-1:"
KEY = "preference/tea"
FACT = "Alice drinks green tea."
WINDOW = {"forget_window_hours": 24}
ENDS = "2026-10-07T12:00:00"


class Stopped(Exception):  # noqa: N818
    """A crash between two steps."""


@pytest.fixture
def person(memory: Memory, opened: Callable[..., Memory]) -> Memory:
    """The person's own client of a ledger that holds forgets for a day."""
    memory.close()
    return opened(**WINDOW)


@pytest.fixture
def agent(person: Memory) -> Memory:
    """The bound primary session of that ledger."""
    return person.acting_as(ModelSession(MAIN, "agent-main"))


def known(memory: Memory, content: str = FACT, **more: object) -> str:
    made = memory.publish(KEY, content, **more)
    assert isinstance(made, Receipt), made
    return made.record_id


def forgotten(memory: Memory, record_id: str, revision: int = 1, **more: object) -> ForgetReceipt:
    receipt = memory.forget(record_id, revision, **more)
    assert isinstance(receipt, ForgetReceipt), receipt
    return receipt


def held_in(memory: Memory) -> list[int]:
    """The positions of everything that is held."""
    with memory._parts.log.reading() as store:
        return [it.position for it in all_held(store)]


def pass_by(memory: Memory, world: World, **by: float) -> None:
    """Lets time go by that somebody has seen to be over, and then what it takes to believe it."""
    world.move(**by)
    memory.finish_forgets()
    world.move(minutes=10)


def events_of(memory: Memory, shape: type) -> int:
    with memory._parts.log.reading() as store:
        return sum(isinstance(it.header, shape) for it in store.page(0, 10_000))


def is_whole(memory: Memory) -> bool:
    return memory.audit.verify(with_index=True).findings == ()


def kinds(memory: Memory, text: str = FACT) -> list[str]:
    return [it.kind for it in memory.remnants(text).remnants]


def content_of(memory: Memory, record_id: str) -> str:
    return memory.read(record_id, include_inactive=True).record.content


# -- what is held ---------------------------------------------------------------------------------


def test_without_a_window_nothing_is_held_and_everything_goes_at_once(memory, primary):
    record_id = known(memory)

    receipt = forgotten(primary, record_id)

    assert receipt.erased_at is not None
    assert receipt.pending == ()
    assert events_of(memory, ForgetHeld) == 0
    assert kinds(memory) == []
    assert memory.take_back(record_id, 2).refusal.number == "F34"


def test_in_a_window_the_fact_is_forgotten_for_everyone_and_held_for_the_person(
    person, agent, opened
):
    record_id = known(person)
    other = opened()
    assert other.search("tea")
    epoch = person.status().key_epoch

    receipt = forgotten(agent, record_id, operation_id="op-forget")

    assert receipt.erased_at is None
    assert [reason[:43] for reason in receipt.pending] == [f"held for the person until {ENDS}"[:43]]
    assert receipt.forgotten_at == receipt.decided_at
    for reader in (person, agent, other):
        assert reader.read(record_id).refusal.number == "F35"
        assert (reader.records(), reader.search("tea"), reader.query().records) == ((), (), ())
        assert [fact for zone in reader.recall("tea").zones for fact in zone.facts] == []
        assert [it.content for it in reader.revisions(record_id)] == [None, None]
        assert reader.operation("op-forget").receipt.status == "forgotten"
        assert FACT not in str(reader.explain(record_id))
    # A forget like every other but for the copy: its keys are gone, and the wrapping key too.
    assert person.status().key_epoch == epoch + 1
    assert kinds(person) == ["held"]
    assert person.remnants(FACT).remnants[0].names == record_id
    assert person.finish_forgets() == receipt.pending
    assert is_whole(person)


def test_what_the_person_forgets_is_never_held(person, agent):
    receipt = forgotten(person, known(agent, sources=[f"{REF}42"]))

    assert receipt.erased_at is not None
    assert held_in(person) == []


def raw_forget(memory: Memory, record_id: str, operation_id: str) -> dict[str, object]:
    """A forget as the raw commit that another implementation of the ledger's client sends."""
    before = memory.read(record_id).record.model_dump(mode="json")
    kept = ("id", "product_domain", "user_space_id")
    value = {name: before[name] for name in kept} | {
        "revision": before["revision"] + 1,
        "status": "forgotten",
        "blocked_sources": [it["ref"] for it in before["sources"]],
    }
    return {"id": operation_id, "key": record_id, "expected": before, "value": value}


@pytest.mark.parametrize("way", ["raw", "batch", "prepared", "prepared and resumed raw"])
def test_every_way_in_holds_what_a_model_forgets(person, agent, way):
    record_id = known(person)
    named = {"name": "forget", "operation_id": "op-f", "record_id": record_id}
    named |= {"expected_revision": 1, "reason": "wrong"}

    match way:
        case "raw":
            receipt = agent.commit(raw_forget(person, record_id, "op-f"))
        case "batch":
            (receipt,) = agent.commit_many([named])
        case _:
            assert agent.prepare(named).to_revision == 2
            raw = way.endswith("raw")
            receipt = agent.commit(agent.operation("op-f").intent) if raw else None
            receipt = receipt or agent.forget(record_id, 1, reason="wrong", operation_id="op-f")

    assert receipt.status == "forgotten"
    assert receipt.reason == ("unstated" if way == "raw" else "wrong")
    assert receipt.erased_at is None
    assert len(held_in(person)) == 1
    assert person.take_back(record_id, 2).status == "accepted"
    assert is_whole(person)


def test_a_host_that_owns_the_conversation_holds_nothing_less(opened):
    person = opened(ports=company().ports, **WINDOW)
    agent = person.acting_as(ModelSession(MAIN, "agent-main"))
    record_id = known(agent, sources=[f"{REF}42"])

    receipt = forgotten(agent, record_id)

    assert receipt.erased_at is None
    assert person.take_back(record_id, 2).status == "accepted"
    assert content_of(person, record_id) == FACT
    assert is_whole(person)


def test_within_a_window_a_model_takes_no_messages_along(person, agent, opened, tables):
    record_id = known(agent, sources=[f"{REF}42"], operation_id="op-made")
    position = person.status().position

    answer = agent.forget(record_id, 1, with_sources=True)

    assert (answer.code, answer.field) == ("not_authorized", "with_sources")
    assert person.status().position == position
    assert content_of(person, record_id) == FACT
    # The person's own takes them, and without a window so does the primary session's.
    assert forgotten(person, record_id, with_sources=True).copies == tables.leftover
    again = agent.publish("other", "Chinese", sources=[f"{REF}88"])
    bare = opened().acting_as(agent.caller)
    taken = forgotten(bare, again.record_id, with_sources=True, operation_id="op-w")
    assert taken.copies == tables.leftover
    # What was decided answers its retry, whatever the window is by then.
    assert agent.forget(again.record_id, 1, with_sources=True, operation_id="op-w").replayed


def test_a_prepared_forget_with_messages_is_aborted_by_the_window(person, agent, opened):
    record_id = known(agent, sources=[f"{REF}42"])
    named = {"name": "forget", "operation_id": "op-f", "record_id": record_id}
    named |= {"expected_revision": 1, "with_sources": True}
    assert opened().acting_as(agent.caller).prepare(named).to_revision == 2

    answer = agent.commit(agent.operation("op-f").intent)

    assert (answer.code, answer.field) == ("not_authorized", "with_sources")
    assert person.operation("op-f").state == "aborted"
    assert content_of(person, record_id) == FACT
    assert is_whole(person)


# -- threat 17 ------------------------------------------------------------------------------------


def test_threat_17_a_forget_is_the_primary_sessions_alone_names_its_actor_and_can_be_taken_back(
    person, agent, world
):
    record_id = known(person)
    others = [
        ModelSession("s-other", "agent-main"),
        BackgroundItem("task-7", 1, "s-bg-7", "agent-bg", "ea-1"),
        BackgroundItem("task-8", 1, "s-bg-8", "agent-bg"),
        Auditor(),
    ]
    position = person.status().position
    for caller, number in zip(others, ["F2", "F3", "F4", "F2"], strict=True):
        asker = person.acting_as(caller)
        assert asker.forget(record_id, 1, reason="wrong").refusal.number == number
        assert asker.forget_many(person.falling(everything=True)).refusal.number == "F2"
        assert asker.release_held().refusal.number == "F2"
    assert person.status().position == position

    receipt = forgotten(agent, record_id, reason="wrong", operation_id="op-agents")

    world.move(hours=23)
    assert person.take_back(record_id, 2).status == "accepted"
    assert content_of(person, record_id) == FACT
    deed = person.revisions(record_id)[1]
    assert (deed.status, deed.actor.session_id, deed.actor.agent_id) == (
        "forgotten",
        MAIN,
        "agent-main",
    )
    assert (deed.operation_id, deed.decided_at) == ("op-agents", receipt.forgotten_at)
    told = person.explain(record_id)
    assert "forgotten by the primary session s-main-1 (agent agent-main)" in told[1]
    assert "Reason: wrong." in told[1]
    assert "is held for the person until 2026-10-07 12:00:00 UTC." in told[2]
    assert "taken back by the person's own client" in told[3]
    assert is_whole(person)


def test_after_the_erasure_actor_reason_count_and_time_stay_readable(person, agent, world):
    ids = [agent.publish(f"k{n}", f"Fact {n}", sources=[f"{REF}42#{n}-{n + 1}"]) for n in range(3)]
    for made in ids:
        forgotten(agent, made.record_id, reason="outdated")
    pass_by(person, world, hours=25)
    assert person.finish_forgets() == ()

    page = person.query(status="forgotten", include_inactive=True)

    assert person.status().records == {"forgotten": 3}
    assert kinds(person, "Fact") == []
    for read in page.records:
        assert read.forgotten.reason == "outdated"
        assert read.forgotten.actor.session_id == MAIN
        assert read.forgotten.held == ()
        assert read.decided_at.startswith("2026-10-06T12:00:00")
    assert is_whole(person)


def test_the_reason_of_a_forget_is_one_of_a_closed_set(person, agent):
    record_id = known(person)

    for reason in ("because I like to", "", None, "Wrong", 3):
        answer = agent.forget(record_id, 1, reason=reason)
        assert (answer.refusal.number, answer.field) == ("F36", "reason")
    receipt = forgotten(person, record_id, operation_id="op-f")

    assert receipt.reason == "unstated"
    again = person.forget(record_id, 1, reason="wrong", operation_id="op-f")
    assert again.code == "operation_conflict"
    assert person.read(record_id, include_inactive=True).forgotten.reason == "unstated"
    assert person.remember("Something else").reason is None


# -- taking back ----------------------------------------------------------------------------------


def test_the_person_takes_a_forget_back_and_a_retry_answers_the_same(person, agent, world):
    record_id = known(person, expires_at="2027-01-01")
    forgotten(agent, record_id)

    taken = person.take_back(record_id, 2, operation_id="op-back")

    read = person.read(record_id)
    assert (taken.status, taken.to_revision) == ("accepted", 3)
    assert (read.record.content, read.key) == (FACT, KEY)
    assert read.record.expires_at == "2027-01-01T00:00:00Z"
    assert (read.record.tier, read.record.evidence) == ("detail", "explicit")
    assert [(it.kind, it.ref) for it in read.record.sources] == [("user_edit", "op-back")]
    assert [it.found.record.id for it in person.search("tea")] == [record_id]
    pass_by(person, world, hours=30)
    assert person.finish_forgets() == ()
    assert person.take_back(record_id, 2, operation_id="op-back") == taken.model_copy(
        update={"replayed": True}
    )
    assert person.take_back(record_id, 3).refusal.number == "F34"
    assert held_in(person) == []
    assert content_of(person, record_id) == FACT
    assert is_whole(person)


def test_only_the_person_takes_back(person, agent):
    record_id = known(person)
    forgotten(agent, record_id)
    position = person.status().position

    callers = [
        agent.caller,
        ModelSession("s-other", "a"),
        BackgroundItem("task-7", 1, "s-bg-7", "agent-bg", "ea-1"),
        Auditor(),
    ]
    numbers = [person.acting_as(it).take_back(record_id, 2).refusal.number for it in callers]
    prepared = {"name": "take_back", "operation_id": "op-b", "record_id": record_id}

    assert numbers == ["F2", "F2", "F3", "F2"]
    assert agent.prepare(prepared | {"expected_revision": 2}).refusal.number == "F2"
    assert person.status().position == position


def test_after_the_window_nothing_can_be_taken_back_and_nothing_is_left(
    person, agent, world, folder
):
    record_id = known(person)
    receipt = forgotten(agent, record_id, operation_id="op-f")
    pass_by(person, world, hours=24)
    assert len(held_in(person)) == 1
    person.remember("A first occasion after it")

    late = person.take_back(record_id, 2)

    assert (late.refusal.number, late.field) == ("F34", "record_id")
    assert "held" in late.message
    assert person.finish_forgets() == ()
    assert kinds(person) == []
    assert held_in(person) == []
    assert events_of(person, ForgetReleased) == 1
    told = agent.forget(record_id, 1, operation_id="op-f")
    assert told.replayed
    assert told.pending == ()
    assert receipt.forgotten_at < ENDS < told.erased_at
    assert "was held for the person until" in person.explain(record_id)[2]
    person.close()
    files = [path for root in folder.values() for path in root.rglob("*") if path.is_file()]
    assert not any(b"green tea" in path.read_bytes() for path in files)


@pytest.mark.parametrize("status", ["candidate", "retired", "rejected"])
def test_whatever_it_was_before_the_person_takes_it_back_as_their_own_words(person, agent, status):
    made = agent.propose(KEY, FACT, sources=[f"{REF}42"])
    revision = 1
    if status == "rejected":
        revision = person.reject(made.record_id, 1, "no").to_revision
    if status == "retired":
        person.accept(made.record_id, 1)
        revision = person.retire(made.record_id, 2, "over").to_revision
    forgotten(agent, made.record_id, revision)

    taken = person.take_back(made.record_id, revision + 1)

    assert taken.status == "accepted"
    assert content_of(person, made.record_id) == FACT
    assert person.read(made.record_id).record.blocked_sources == (f"{REF}42",)
    assert undo(person).status == "retired"


def test_what_the_agent_opens_again_in_between_is_corrected_to_what_was_held(person, agent):
    record_id = known(person)
    forgotten(agent, record_id)
    agent.publish(KEY, "Alice drinks cola.", sources=[f"{REF}42"])

    assert person.take_back(record_id, 2).refusal.number == "F17"
    taken = person.take_back(record_id, 3)

    assert (taken.status, content_of(person, record_id)) == ("accepted", FACT)
    assert [it.content for it in person.revisions(record_id)] == [
        None,
        None,
        "Alice drinks cola.",
        FACT,
    ]
    assert is_whole(person)


def test_an_agent_that_forgets_again_does_not_push_out_what_is_held(person, agent, world):
    record_id = known(person)
    forgotten(agent, record_id)
    world.move(hours=1)
    agent.publish(KEY, "Alice drinks cola.", sources=[f"{REF}42"])
    second = forgotten(agent, record_id, 3)

    held = person.read(record_id, include_inactive=True).forgotten.held
    assert [it.revision for it in held] == [1, 3]
    assert len(second.pending) == 2
    assert person.take_back(record_id, 4, held_revision=2).refusal.number == "F34"
    assert person.take_back(record_id, 4, held_revision=1).to_revision == 5
    assert content_of(person, record_id) == FACT
    assert person.take_back(record_id, 5).to_revision == 6
    assert content_of(person, record_id) == "Alice drinks cola."
    assert is_whole(person)


def test_an_agent_that_corrects_before_it_forgets_destroys_nothing_either(person, agent):
    record_id = known(person)
    person.choose_tier(record_id, 1, "core")
    agent.correct(record_id, 2, "Alice drinks cola.", sources=[f"{REF}42"])
    receipt = forgotten(agent, record_id, 3)

    read = person.read(record_id, include_inactive=True)
    assert [it.revision for it in read.forgotten.held] == [2, 3]
    assert len(receipt.pending) == 1
    assert person.take_back(record_id, 4, held_revision=2).to_revision == 5
    assert content_of(person, record_id) == FACT
    assert person.release_held() == ()
    assert kinds(person, "cola") == []
    assert is_whole(person)


def test_a_record_of_an_earlier_store_is_taken_back_under_its_own_id(person, agent, tmp_path):
    lines = (
        '{"kind":"store","format":"personal-records/1","user_space_id":"us_alice","ownership":['
        '{"package":"memory","storage":"personal.records","moves_to":"personal"},'
        '{"package":"personal","storage":"personal.records","moves_from":"memory"}]}\n'
        '{"kind":"record","value":{"id":"old-7","revision":4,"product_domain":"personal",'
        '"user_space_id":"us_alice","status":"accepted","content":"Alice drinks green tea.",'
        '"evidence":"explicit","effective_at":null,"expires_at":null,'
        '"contributor_agent_id":"a","updated_by_agent_id":"a","sources":[{"kind":"legacy",'
        '"ref":"notes.md","occurred_at":"2026-01-01T00:00:00Z"}],"contributions":[{"agent_id":"a",'
        '"executor_session_id":"s","revision":4}],"rejections":[],"blocked_sources":[]}}\n'
    )
    store = tmp_path / "old.jsonl"
    store.write_text(lines)
    assert person.migrate(store).imported == 1
    forgotten(agent, "old-7", 4)

    taken = person.take_back("old-7", 5)

    assert (taken.record_id, taken.to_revision) == ("old-7", 6)
    assert content_of(person, "old-7") == FACT
    assert is_whole(person)


def test_undo_takes_no_forget_of_an_agent_back_but_the_taking_back_itself(person, agent):
    record_id = known(person)
    forgotten(agent, record_id)

    assert undo(person).code == "not_found"
    assert person.take_back(record_id, 2).to_revision == 3
    assert undo(person).status == "retired"


# -- the end of the window ------------------------------------------------------------------------


@pytest.mark.parametrize("occasion", ["opening", "commit", "batch", "closing", "another forget"])
def test_the_window_ends_by_itself_at_the_first_occasion(person, agent, opened, world, occasion):
    record_id = known(person)
    spare = person.remember("A spare fact")
    forgotten(agent, record_id)
    world.move(hours=23, minutes=59)
    person.remember("Too early an occasion")
    assert len(held_in(person)) == 1
    pass_by(person, world, minutes=2)
    assert len(held_in(person)) == 1

    match occasion:
        case "opening":
            opened()
        case "commit":
            assert person.remember("Whatever").to_revision == 1
        case "batch":
            person.commit_many(
                [{"name": "publish", "operation_id": "op-b", "key": "k", "content": "x"}]
            )
        case "closing":
            person.close()
            person = opened(**WINDOW)
        case _:
            forgotten(person, spare.record_id)

    assert held_in(person) == []
    assert events_of(person, ForgetReleased) == 1
    assert person.finish_forgets() == ()
    assert kinds(person) == []
    assert is_whole(person)


READINGS = {"a minute late": {"hours": 24, "minutes": 1}, "half a century": {"days": 50 * 365}}


@pytest.mark.parametrize("by", READINGS.values(), ids=READINGS.keys())
@pytest.mark.parametrize("occasion", ["commit", "opening"])
def test_one_reading_of_a_clock_that_is_ahead_ends_no_window(
    person, agent, opened, world, by, occasion
):
    record_id = known(person)
    forgotten(agent, record_id)
    world.move(**by)
    if occasion == "commit":
        person.remember("A wrong clock")
    else:
        opened(**WINDOW).close()
    world.move(**{unit: -much for unit, much in by.items()})
    world.move(minutes=11)

    person.remember("The clock is right again")

    assert len(held_in(person)) == 1
    later = agent.publish("later", "A later fact", sources=[f"{REF}88"])
    receipt = forgotten(agent, later.record_id)
    assert "held for the person until 2026-10-07T12:1" in receipt.pending[0]
    assert person.take_back(record_id, 2).to_revision == 3
    pass_by(person, world, hours=25)
    person.remember("By the clock the window is over")
    assert held_in(person) == []
    assert is_whole(person)


@pytest.mark.parametrize("years", [-50, 50])
def test_a_wrong_reading_at_the_forget_itself_holds_for_a_window_of_right_ones(
    person, agent, world, years
):
    record_id = known(person)
    world.move(days=years * 365)
    forgotten(agent, record_id)
    world.move(days=-years * 365)

    pass_by(person, world, hours=1)
    person.remember("Soon after")
    assert len(held_in(person)) == 1
    world.move(hours=22)
    person.remember("Within a day of right readings")
    assert len(held_in(person)) == 1
    world.move(hours=2)
    person.remember("A day later")

    assert held_in(person) == []
    assert is_whole(person)


def test_a_clock_that_jumps_back_within_the_window_ends_nothing(person, agent, world):
    record_id = known(person)
    forgotten(agent, record_id)
    world.move(days=-300)

    person.remember("Long ago")
    world.move(hours=1)
    person.remember("Still")

    assert len(held_in(person)) == 1
    assert person.take_back(record_id, 2).to_revision == 3


def test_a_ledger_that_was_long_shut_holds_for_one_more_window(person, agent, opened, world):
    """Nobody can tell its clock from one that was wrong at the forget."""
    forgotten(agent, known(person))
    person.close()
    world.move(days=30)

    left = []
    for hours in (0, 23, 2):
        world.move(hours=hours)
        with opened(**WINDOW) as again:
            left.append(len(held_in(again)))

    assert left == [1, 1, 0]


def test_windows_end_each_in_its_turn(person, agent, world):
    made = [agent.publish(f"k{n}", f"Fact {n}", sources=[f"{REF}42#{n}-{n + 1}"]) for n in range(3)]
    for receipt in made:
        forgotten(agent, receipt.record_id)
        world.move(hours=10)

    left = []
    for day in range(3):
        pass_by(person, world)
        person.remember(f"Another day {day}")
        left.append(len(held_in(person)))
        world.move(hours=10)

    assert left == [2, 1, 0]
    assert events_of(person, ForgetReleased) == 3
    assert is_whole(person)


def test_what_another_opening_holds_is_let_go_of_by_whoever_commits_then(
    person, agent, opened, world
):
    other = opened(**WINDOW)
    other.remember("It has looked already")
    forgotten(agent, known(person))
    other.remember("It hears of the rotation")
    person.close()
    pass_by(other, world, hours=25)

    other.remember("It is the only one left")

    assert held_in(other) == []


def test_the_person_may_end_every_window_at_once(person, agent):
    record_id = known(person)
    forgotten(agent, record_id, operation_id="op-f")

    assert agent.release_held().refusal.number == "F2"
    assert len(held_in(person)) == 1
    assert person.release_held() == ()

    assert kinds(person) == []
    assert agent.forget(record_id, 1, operation_id="op-f").erased_at is not None
    assert person.take_back(record_id, 2).refusal.number == "F34"
    assert is_whole(person)


@pytest.mark.sqlite("it says itself which statements it runs")
def test_a_commit_costs_the_same_however_much_is_held(person, agent):
    def statements(content: str) -> int:
        log, said = person._parts.log._recorder, []
        for connection in (log._writer, log._reader):
            connection.set_trace_callback(said.append)
        person.remember(content)
        for connection in (log._writer, log._reader):
            connection.set_trace_callback(None)
        return len(said)

    forgotten(agent, known(person))
    person.remember("A first one looks up its tags")
    few = statements("While one is held")
    agent.commit_many(
        {"name": "forget", "operation_id": f"f{n}", "record_id": it, "expected_revision": 1}
        for n, it in enumerate(person.remember(f"Fact {n}").record_id for n in range(30))
    )
    person.finish_forgets()
    person.remember("Again a first one")

    assert len(held_in(person)) == 31
    assert statements("While many are") == few


# -- the person's own word ------------------------------------------------------------------------


def test_the_persons_own_forget_takes_what_is_held_at_once(person, agent, world):
    record_id = known(person)
    forgotten(agent, record_id)
    assert agent.forget(record_id, 2).refusal.number == "F34"
    world.move(seconds=3)

    receipt = forgotten(person, record_id, 2, reason="requested")

    assert (receipt.to_revision, receipt.pending, receipt.reason) == (3, (), "requested")
    assert receipt.erased_at is not None
    assert kinds(person) == []
    assert person.forget(record_id, 3).refusal.number == "F34"
    assert person.take_back(record_id, 3).refusal.number == "F34"
    assert is_whole(person)


@pytest.mark.parametrize("which", [{"everything": True}, {"source": f"{REF}42"}, {"session": MAIN}])
def test_a_forget_of_many_takes_what_is_held_and_shows_it_first(person, agent, which):
    record_id = known(agent, sources=[f"{REF}42"])
    other = person.remember("Something else")
    forgotten(agent, record_id)

    fall = person.falling(**which)
    fallen = {it.record_id: (it.status, it.content) for it in fall.records}
    report = person.forget_many(fall, reason="requested")

    assert fallen[record_id] == ("forgotten", FACT)
    assert (other.record_id in fallen) is ("everything" in which)
    assert (report.refused, report.pending) == ({}, ())
    assert kinds(person) == []
    assert person.falling(**which).records == ()
    assert person.read(record_id, include_inactive=True).forgotten.reason == "requested"
    assert is_whole(person)


def test_forgotten_with_its_messages_what_was_held_is_left_nowhere(person, agent, tables):
    record_id = known(agent, content="Chinese, please", sources=[f"{REF}42"])
    forgotten(agent, record_id)

    receipt = forgotten(person, record_id, 2, with_sources=True)

    assert receipt.copies == tables.leftover
    assert kinds(person, "Please answer me in Chinese") == []
    assert is_whole(person)


def test_the_end_of_the_space_is_the_end_of_what_is_held(person, agent, world, folder, tables):
    forgotten(agent, known(person))

    assert not isinstance(person.forget_space("us_alice"), Refused)

    assert tables.rows("SELECT * FROM bodies") == []
    place = Place.of("us_alice", **folder)
    assert verify_chain(place, world.stamps).findings == ()


# -- copies ---------------------------------------------------------------------------------------


def test_an_export_holds_nothing_that_is_held(person, agent, tmp_path):
    record_id = known(person)
    kept = person.remember("Something to keep")
    forgotten(agent, record_id)

    person.export(tmp_path / "all.jsonl")

    written = (tmp_path / "all.jsonl").read_text()
    assert kept.record_id in written
    assert "green tea" not in written


def put_back(world, folder: dict[str, Path], away: Path) -> Memory:
    settings = load_settings(space="us_alice", **folder, **WINDOW)
    report = restore(settings, world.stamps, away, Asked(force=True))
    assert report.is_served, report
    return open_memory("us_alice", **folder, **WINDOW, stamps=world.stamps)


@pytest.mark.parametrize("end", ["over", "early", "forgotten by the person"])
def test_a_backup_from_within_the_window_brings_nothing_back_after_it(
    person, agent, world, folder, tmp_path, end
):
    record_id = known(person)
    forgotten(agent, record_id)
    person.backup(tmp_path / "away")
    person.backup(tmp_path / "kept")
    shutil.copytree(tmp_path / "away", tmp_path / "old")
    if end == "over":
        pass_by(person, world, hours=25)
        assert person.finish_forgets() == ()
    elif end == "early":
        assert person.release_held() == ()
    else:
        forgotten(person, record_id, 2)
    person.close()

    with put_back(world, folder, tmp_path / "away") as back:
        assert held_in(back) == []
        assert kinds(back) == []
        revision = back.revisions(record_id)[-1].revision
        assert back.take_back(record_id, revision).refusal.number == "F34"
        assert back.read(record_id, include_inactive=True).record.status == "forgotten"
        assert is_whole(back)


def test_a_backup_from_within_the_window_still_holds_what_nobody_let_go_of(
    person, agent, world, folder, tmp_path
):
    record_id = known(person)
    forgotten(agent, record_id)
    person.backup(tmp_path / "away")
    assert person.take_back(record_id, 2).to_revision == 3
    person.close()

    with put_back(world, folder, tmp_path / "away") as back:
        # What was taken back after the copy is gone with all that came after it, but not its words.
        assert back.take_back(record_id, 2).to_revision == 3
        assert content_of(back, record_id) == FACT
        pass_by(back, world, hours=25)
        assert back.finish_forgets() == ()
        assert is_whole(back)


def test_while_something_is_held_every_key_bundle_is_listed_and_after_it_none(
    person, agent, world, tables, tmp_path
):
    person.backup(tmp_path / "away")
    record_id = known(person)

    held = forgotten(agent, record_id, operation_id="op-f")
    pass_by(person, world, hours=25)
    person.finish_forgets()

    assert any("away" in copy for copy in held.copies)
    assert agent.forget(record_id, 1, operation_id="op-f").copies == tables.leftover


# -- crashes --------------------------------------------------------------------------------------


def forget_held(memory: Memory) -> None:
    agent = memory.acting_as(ModelSession(MAIN, "agent-main"))
    forgotten(agent, record_id_of(KEY), operation_id="op-f")
    assert kinds(memory) == ["held"]


def let_go(memory: Memory) -> None:
    assert memory.release_held() == ()
    assert kinds(memory) == []


def take_back(memory: Memory) -> None:
    assert memory.take_back(record_id_of(KEY), 2, operation_id="op-t").to_revision == 3
    assert content_of(memory, record_id_of(KEY)) == FACT


def stopped_at(world, memory: Memory, deed: Callable[[Memory], None], place: int | None) -> int:
    """Runs a deed up to a step, or all of it; how many steps that were."""
    world.steps.clear()

    def stop(_: str) -> None:
        if len(world.steps) == place:
            raise Stopped

    world.at_step = stop
    with suppress(Stopped):
        deed(memory)
    world.at_step = lambda _: None
    return len(world.steps)


@pytest.mark.parametrize("deed", [forget_held, let_go, take_back])
def test_a_crash_between_any_two_steps_leaves_the_fact_or_its_held_copy_until_it_is_let_go(
    person, opened, world, tables, tmp_path, deed
):
    known(person)
    if deed is not forget_held:
        forget_held(person)
    person.close()

    whole = tables.copied(tmp_path / "whole")
    steps = stopped_at(world, opened(**WINDOW, **whole), deed, None)
    assert steps >= 3
    for place in range(1, steps + 1):
        copy = tables.copied(tmp_path / f"at-{place}")
        assert stopped_at(world, opened(**WINDOW, **copy), deed, place) == place
        name = world.steps[-1]
        again = opened(**WINDOW, **copy)

        found = kinds(again)
        assert found in ([["held"], []] if deed is let_go else [["record"], ["held"], BOTH]), name
        assert is_whole(again), name
        deed(again)
        assert is_whole(again), name


BOTH = ["held", "record"]
"""What was taken back, and the copy until its window is over."""


# -- audit and doctor -----------------------------------------------------------------------------


def test_a_held_copy_that_vanished_without_a_release_is_a_finding(person, agent, tables, opened):
    forgotten(agent, known(person))
    (position,) = held_in(person)
    person.close()
    tables.change("DELETE FROM bodies WHERE position = ?", position)

    findings = opened().audit.verify().findings

    assert [(it.position, it.kind) for it in findings] == [(position, "body")]


def test_the_key_of_a_released_copy_put_back_is_a_finding_at_its_release(
    person, agent, folder, opened
):
    forgotten(agent, known(person))
    (position,) = held_in(person)
    with person._parts.log.reading() as store:
        key_id = store.at(position).row.key_id
    keys = folder["data"] / "us_alice" / "keys.db"
    with closing(sqlite3.connect(keys)) as raw:
        row = raw.execute("SELECT * FROM keys WHERE key_id = ?", (key_id,)).fetchone()
    assert person.release_held() == ()
    person.close()
    with closing(sqlite3.connect(keys, isolation_level=None)) as raw:
        raw.execute("INSERT INTO keys VALUES (?, ?, ?)", row)

    findings = opened().audit.verify().findings

    assert [it.kind for it in findings] == ["key"]
    assert findings[0].position > position


def test_the_doctor_says_what_is_held_and_nothing_when_nothing_is(person, agent, world):
    assert "held" not in {it.name for it in person.doctor()}
    forgotten(agent, known(person))

    (check,) = [it for it in person.doctor() if it.name == "held"]

    assert check.level == "note"
    assert ENDS in check.message
    pass_by(person, world, hours=25)
    person.finish_forgets()
    assert "held" not in {it.name for it in person.doctor()}


def test_a_window_that_is_over_while_the_host_that_wrote_last_is_away_is_said_to_be_overdue(
    person, agent, opened, world
):
    other = opened(host="laptop")
    forgotten(agent, known(person))
    world.move(hours=23)
    assert (person.status().overdue, other.status().overdue) == (0, 0)

    world.move(hours=2)

    assert person.status().overdue == 0  # it is here, and lets go by itself
    assert other.status().overdue == 1
    (check,) = [it for it in other.doctor() if it.name == "overdue"]
    assert check.level == "finding"
    assert check.message.startswith("1 past the window")
    assert "forgotten finish --now" in check.message
    assert KEY not in check.message
    other.release_held()
    assert other.status().overdue == 0
    assert "overdue" not in {it.name for it in other.doctor()}


# -- the setting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [-1, 24 * 366 + 1, "soon", 1.5])
def test_a_window_is_a_number_of_hours_within_a_year(hours):
    with pytest.raises(RefusedError) as refused:
        load_settings(forget_window_hours=hours)

    assert refused.value.refused.field == "forget_window_hours"


def test_a_window_may_be_changed_and_each_forget_keeps_its_own(person, agent, opened):
    first = forgotten(agent, known(person))
    person.close()
    longer = opened(forget_window_hours=48)
    agent = longer.acting_as(agent.caller)
    made = agent.publish("other", "Another fact", sources=[f"{REF}88"])

    second = forgotten(agent, made.record_id)

    assert "2026-10-07" in first.pending[0]
    assert "2026-10-08" in second.pending[0]
    assert T0.day == 6
    with longer._parts.log.reading() as store:
        assert len(store.select(HELD)) == 2
