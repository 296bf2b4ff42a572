"""Authority: who may do what (PM 2.2), and what a background item must hold to do it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from memoranda.ledger.authority import Auditor, BackgroundItem, ModelSession
from memoranda.ledger.errors import Refused
from memoranda.ledger.events import Json
from memoranda.ledger.personal import Record
from memoranda.ledger.receipts import Receipt
from memoranda.projections.history import RecordRead
from memoranda.tools.memory import Memory

KEY = "preference/reply-language"
ID = "mem_448800f070a1c5b419f7b261f803ee4b9bf720c1b67db77e20f23d7bd71a2009"
TEA = "preference/tea"
TEA_ID = "mem_8bd9f7914096218ac8597c1a948899a2c12f19c2710f4adb7d998585c9c0de6a"


def ref(place: str) -> str:
    """`42` or `50#0-7` as a reference into the primary conversation."""
    return f"personal-message:s-main-1:{place}"


def number(answer: object) -> str | None:
    """The F-number of a refusal; None for every other answer."""
    return answer.refusal.number if isinstance(answer, Refused) else None


@contextmanager
def nothing_written(memory: Memory) -> Iterator[None]:
    before = memory.status().position, memory.records(include_inactive=True)
    yield
    assert (memory.status().position, memory.records(include_inactive=True)) == before


def record_of(memory: Memory, record_id: str = ID) -> Record:
    read = memory.read(record_id, include_inactive=True)
    assert isinstance(read, RecordRead)
    assert isinstance(read.record, Record)
    return read.record


@dataclass
class Cast:
    """Everyone who may call, by the names of the table."""

    primary: Memory
    item: Memory
    item_without: Memory
    client: Memory
    stranger: Memory
    auditor: Memory


@pytest.fixture
def cast(memory: Memory, primary: Memory, task_7: Memory) -> Cast:
    return Cast(
        primary,
        task_7,
        memory.acting_as(BackgroundItem("task-8", 1, "s-bg-8", "agent-bg")),
        memory,
        memory.acting_as(ModelSession("main", "agent-main")),
        memory.acting_as(Auditor()),
    )


# -- the table (2.2) -------------------------------------------------------------------------

Call = Callable[[Memory], object]
READS: dict[str, Call] = {
    "records": lambda m: m.records(include_inactive=True),
    "candidates": lambda m: m.candidates(),
    "read": lambda m: m.read(ID, include_inactive=True),
    "revisions": lambda m: m.revisions(ID),
    "explain": lambda m: m.explain(ID),
}
CANDIDATES: dict[str, Call] = {
    "propose": lambda m: m.propose(TEA, "x", sources=[ref("42")]),
    "revise": lambda m: m.revise(ID, 1, content="x"),
    "raw candidate": lambda m: m.commit(raw("candidate")),
}
DECISIONS: dict[str, Call] = {
    "publish": lambda m: m.publish(TEA, "x", sources=[ref("42")]),
    "accept": lambda m: m.accept(ID, 9),
    "reject": lambda m: m.reject(ID, 9, "guess"),
    "correct": lambda m: m.correct(ID, 9, "x", sources=[ref("42")]),
    "tier": lambda m: m.choose_tier(ID, 9, "core"),
    "retire": lambda m: m.retire(ID, 9, "over"),
    "reactivate": lambda m: m.reactivate(ID, 9),
    "forget": lambda m: m.forget(ID, 9),
    "resolve": lambda m: m.resolve_conflict("con-1", "keep_both", "x"),
    "raw accepted": lambda m: m.commit(raw("accepted")),
}
DENIED = {
    "stranger": {**READS, "operation": lambda m: m.operation("op-1"),
                 "evidence": lambda m: m.evidence(ID), "source": lambda m: m.source(ref("42")),
                 **CANDIDATES, **DECISIONS, "open": lambda m: m.open_conflict(ID, TEA_ID, "x")},
    "auditor": {**CANDIDATES, **DECISIONS, "open": lambda m: m.open_conflict(ID, TEA_ID, "x")},
    "client": CANDIDATES,
    "item": {"evidence": lambda m: m.evidence(ID)},
    "item_without": {"evidence": lambda m: m.evidence(ID)},
}  # fmt: skip


def raw(status: str) -> Json:
    """A raw commit that means to create another record, with whatever else in its value."""
    value: Json = {
        "id": TEA_ID, "revision": 1, "product_domain": "personal", "user_space_id": "us_alice",
        "status": status, "tier": "detail", "content": "x", "evidence": "inference",
        "effective_at": None, "expires_at": None, "contributor_agent_id": "a",
        "updated_by_agent_id": "a", "rejections": [], "blocked_sources": [],
        "sources": [
            {"kind": "personal_message", "ref": ref("42"), "occurred_at": "2026-10-05T09:00:00Z"}
        ],
        "contributions": [{"agent_id": "a", "executor_session_id": "s", "revision": 1}],
    }  # fmt: skip
    return {"id": "op-raw", "key": TEA_ID, "expected": None, "value": value}


@pytest.mark.parametrize("who", DENIED)
def test_scenarios_9_10_who_is_not_on_the_row_of_the_table_is_not_authorized(
    who: str, cast: Cast
) -> None:
    cast.primary.propose(KEY, "x", sources=[ref("88")], operation_id="op-1")

    with nothing_written(cast.client):
        answers = {name: call(getattr(cast, who)) for name, call in DENIED[who].items()}

    assert {name: number(answer) for name, answer in answers.items()} == dict.fromkeys(
        DENIED[who], "F2"
    )


@pytest.mark.parametrize(("who", "expected"), [("item", "F3"), ("item_without", "F4")])
def test_scenario_16_a_background_item_decides_nothing(who: str, expected: str, cast: Cast) -> None:
    cast.primary.publish(KEY, "x", sources=[ref("88")])

    with nothing_written(cast.client):
        answers = {name: call(getattr(cast, who)) for name, call in DECISIONS.items()}

    assert {name: number(answer) for name, answer in answers.items()} == dict.fromkeys(
        DECISIONS, expected
    )


def test_scenario_16_a_background_item_touches_no_accepted_or_retired_record(cast: Cast) -> None:
    cast.primary.publish(KEY, "x", sources=[ref("88")])

    def touches() -> list[object]:
        return [
            cast.item.propose(KEY, "y", sources=[ref("42")]),
            cast.item.revise(ID, record_of(cast.client).revision, content="y"),
        ]

    with nothing_written(cast.client):
        accepted = touches()
    cast.primary.retire(ID, 1, "over")
    with nothing_written(cast.client):
        retired = touches()

    assert [number(answer) for answer in accepted + retired] == ["F3"] * 4


@pytest.mark.parametrize("who", ["primary", "item", "client", "auditor"])
def test_records_are_read_by_everyone_of_the_user_space(who: str, cast: Cast) -> None:
    cast.primary.propose(KEY, "x", sources=[ref("88")])

    answers = {name: call(getattr(cast, who)) for name, call in READS.items()}

    assert {name: number(answer) for name, answer in answers.items()} == dict.fromkeys(READS)


def test_an_item_without_authorization_reads_and_is_told_no_operation(cast: Cast) -> None:
    cast.primary.propose(KEY, "x", sources=[ref("88")], operation_id="op-1")

    assert record_of(cast.item_without).content == "x"
    assert number(cast.item_without.operation("op-1")) == "F4"


def test_a_rebound_conversation_ends_the_authority_of_the_one_before(
    memory: Memory, primary: Memory
) -> None:
    primary.propose(KEY, "x", sources=[ref("42")])
    memory.host.bind_primary("s-main-2")
    successor = memory.acting_as(ModelSession("s-main-2", "agent-main"))

    with nothing_written(memory):
        answers = [primary.accept(ID, 1), primary.evidence(ID), primary.records()]

    assert [number(answer) for answer in answers] == ["F2"] * 3
    assert isinstance(successor.reject(ID, 1, "not mine"), Receipt)


def test_before_any_binding_no_session_is_the_primary_one(opened: Callable[..., Memory]) -> None:
    session = opened().acting_as(ModelSession("s-main-1", "agent-main"))

    assert number(session.publish(KEY, "x", sources=[ref("42")])) == "F2"
    assert number(session.records()) == "F2"


def test_the_person_decides_by_hand_on_what_the_assistant_proposed(
    memory: Memory, primary: Memory
) -> None:
    primary.propose(KEY, "x", sources=[ref("42")])
    primary.propose(TEA, "x", sources=[ref("88")])

    receipts = [
        memory.accept(ID, 1),
        memory.choose_tier(ID, 2, "core"),
        memory.retire(ID, 3, "over"),
        memory.reactivate(ID, 4),
        memory.forget(ID, 5),
        memory.reject(TEA_ID, 1, "guess"),
    ]

    assert all(isinstance(receipt, Receipt) for receipt in receipts)
    assert {each.actor.role for each in memory.revisions(TEA_ID)} == {"primary", "client"}


# -- background items ------------------------------------------------------------------------


def test_scenario_13_an_item_proposes_from_its_captured_message(task_7: Memory) -> None:
    receipt = task_7.propose(KEY, "Likes Chinese", sources=[ref("42")])

    record = record_of(task_7)
    assert isinstance(receipt, Receipt)
    assert (receipt.item_id, receipt.authorization_id) == ("task-7", "ea-1")
    assert (record.status, record.revision, record.tier) == ("candidate", 1, "detail")
    assert (record.contributor_agent_id, record.evidence) == ("agent-bg", "inference")


def test_scenario_14_an_item_asks_for_core_in_no_way(task_7: Memory) -> None:
    task_7.propose(KEY, "Likes Chinese", sources=[ref("42")])
    value = record_of(task_7).model_dump(mode="json")
    own = {"agent_id": "agent-bg", "executor_session_id": "s-bg-7", "revision": 2}
    in_core = {
        **value, "revision": 2, "tier": "core", "contributions": [*value["contributions"], own],
    }  # fmt: skip

    with nothing_written(task_7):
        by_name = task_7.choose_tier(ID, 1, "core")
        by_value = task_7.commit({"id": "op-raw", "key": ID, "expected": value, "value": in_core})

    assert (number(by_name), number(by_value)) == ("F3", "F3")


def test_scenario_15_an_item_revises_the_candidate_that_it_opened(task_7: Memory) -> None:
    task_7.propose(KEY, "Likes Chinese", sources=[ref("42")])

    receipt = task_7.revise(ID, 1, content="Wants replies in Chinese")

    contributions = record_of(task_7).contributions
    assert isinstance(receipt, Receipt)
    assert receipt.to_revision == 2
    assert [(each.executor_session_id, each.revision) for each in contributions] == [
        ("s-bg-7", 1), ("s-bg-7", 2),
    ]  # fmt: skip


def test_an_item_may_go_on_after_the_primary_session_revised_its_candidate(
    task_7: Memory, primary: Memory
) -> None:
    task_7.propose(KEY, "Likes Chinese", sources=[ref("42")])
    primary.revise(ID, 1, content="Likes Mandarin")

    receipt = task_7.revise(ID, 2, content="Wants replies in Chinese")

    assert isinstance(receipt, Receipt)


def test_scenario_17_an_item_that_was_never_authorized_proposes_nothing(cast: Cast) -> None:
    with nothing_written(cast.client):
        answer = cast.item_without.propose(KEY, "x", sources=[ref("88")])

    assert number(answer) == "F4"


def test_scenario_18_an_item_without_a_captured_message_has_no_source(memory: Memory) -> None:
    memory.host.open_task(item_id="task-6")
    memory.host.authorize(
        authorization_id="ea-6", item_id="task-6", requirement_revision=1,
        executor_session_id="s-bg-6",
    )  # fmt: skip
    task_6 = memory.acting_as(BackgroundItem("task-6", 1, "s-bg-6", "agent-bg", "ea-6"))

    with nothing_written(memory):
        answer = task_6.propose(KEY, "x", sources=[ref("42")])

    assert number(answer) == "F8"


@pytest.mark.parametrize("sources", [[], [ref("42#0-6"), ref("42#6-9")]])
def test_an_item_cites_exactly_one_source(sources: list[str], task_7: Memory) -> None:
    task_7.propose(TEA, "x", sources=[ref("42#10-12")])

    with nothing_written(task_7):
        answers = [
            task_7.propose(KEY, "x", sources=sources),
            task_7.revise(TEA_ID, 1, sources=sources),
        ]

    assert [number(answer) for answer in answers] == ["F19", "F19"]


@pytest.mark.parametrize("place", ["50", "88", "42"])
def test_an_item_cites_and_looks_up_its_captured_message_only(place: str, task_7: Memory) -> None:
    is_captured = place == "42"

    proposed = task_7.propose(KEY, "x", sources=[ref(f"{place}#0-6")])
    time = task_7.source(ref(f"{place}#0-6"))

    assert number(proposed) == number(time) == (None if is_captured else "F7")
    assert is_captured is hasattr(time, "occurred_at")


def test_an_item_captured_by_a_span_cites_no_more_than_that_span(memory: Memory) -> None:
    memory.host.open_task(item_id="task-7", captured_ref=ref("42#0-6"))
    task_7 = memory.acting_as(BackgroundItem("task-7", 1, "s-bg-7", "agent-bg", "ea-1"))

    answers = [task_7.propose(KEY, "x", sources=[ref(p)]) for p in ("42", "42#0-7", "42#1-6")]

    assert [number(answer) for answer in answers] == ["F7", "F7", None]


@pytest.mark.parametrize(
    "caller",
    [
        BackgroundItem("task-7", 1, "s-bg-7", "agent-bg"),
        BackgroundItem("task-7", 1, "s-bg-7", "agent-bg", "ea-9"),
        BackgroundItem("task-7", 1, "s-bg-7", "agent-bg", "ea-unknown"),
        BackgroundItem("task-7", 1, "s-bg-9", "agent-bg", "ea-1"),
        BackgroundItem("task-7", 2, "s-bg-7", "agent-bg", "ea-1"),
        BackgroundItem("task-9", 1, "s-bg-7", "agent-bg", "ea-1"),
    ],
    ids=["none", "anothers", "unknown", "session", "requirement", "item"],
)
def test_an_authorization_fits_its_item_requirement_and_session_exactly(
    caller: BackgroundItem, memory: Memory
) -> None:
    with nothing_written(memory):
        answer = memory.acting_as(caller).propose(KEY, "x", sources=[ref("42")])

    assert number(answer) == "F4"


def test_an_item_that_nobody_opened_is_a_stranger(memory: Memory) -> None:
    unknown = memory.acting_as(BackgroundItem("task-0", 1, "s-bg-7", "agent-bg", "ea-1"))

    assert number(unknown.propose(KEY, "x", sources=[ref("42")])) == "F2"
    assert number(unknown.records()) == "F2"


def test_an_authorization_without_commit_guards_must_be_given_again(
    memory: Memory, task_7: Memory
) -> None:
    leave = {
        "authorization_id": "ea-1", "item_id": "task-7", "requirement_revision": 1,
        "executor_session_id": "s-bg-7",
    }  # fmt: skip
    memory.host.authorize(**leave, guard_capable=False)

    with nothing_written(memory):
        before = task_7.propose(KEY, "x", sources=[ref("42")])
    memory.host.authorize(**leave)
    after = task_7.propose(KEY, "x", sources=[ref("42")])

    assert number(before) == "F5"
    assert isinstance(after, Receipt)


FENCES: dict[str, Callable[[Memory], object]] = {
    "stop": lambda m: m.host.stop_task("task-7"),
    "requirement": lambda m: m.host.open_task(
        item_id="task-7", requirement_revision=2, captured_ref=ref("42")
    ),
    "revocation": lambda m: m.host.revoke("ea-1"),
}


@pytest.mark.parametrize("fence", FENCES)
def test_a_fence_stands_between_an_item_and_everything_it_would_write(
    fence: str, memory: Memory, task_7: Memory
) -> None:
    first = task_7.propose(KEY, "x", sources=[ref("42#0-6")], operation_id="op-1")
    FENCES[fence](memory)

    with nothing_written(memory):
        answers = [
            task_7.propose(TEA, "x", sources=[ref("42#6-9")]),
            task_7.revise(ID, 1, content="y"),
            task_7.accept(ID, 1),
            task_7.open_conflict(ID, ID, "x"),
            task_7.operation("op-1"),
        ]
        again = task_7.propose(KEY, "x", sources=[ref("42#0-6")], operation_id="op-1")

    assert [answer.refusal.name for answer in answers] == ["EXECUTION_FENCED_EARLY"] * 5
    assert again == first.model_copy(update={"replayed": True})
    assert record_of(task_7).content == "x"


def test_scenario_99_a_candidate_belongs_to_its_item_and_not_to_a_session(
    memory: Memory, task_7: Memory, task_9: Memory
) -> None:
    task_7.propose(KEY, "x", sources=[ref("42")])
    memory.host.authorize(
        authorization_id="ea-2", item_id="task-7", requirement_revision=1,
        executor_session_id="s-bg-7b",
    )  # fmt: skip
    later = memory.acting_as(BackgroundItem("task-7", 1, "s-bg-7b", "agent-bg-b", "ea-2"))

    with nothing_written(memory):
        by_another = task_9.revise(ID, 1, content="y")
    by_itself = later.revise(ID, 1, content="y")

    assert number(by_another) == "F3"
    assert isinstance(by_itself, Receipt)
    assert record_of(memory).updated_by_agent_id == "agent-bg-b"
    assert record_of(memory).contributor_agent_id == "agent-bg"


def test_a_candidate_that_the_primary_session_opened_is_revised_by_no_item(
    primary: Memory, task_7: Memory
) -> None:
    primary.propose(KEY, "x", sources=[ref("42")])

    assert number(task_7.revise(ID, 1, content="y")) == "F3"


def test_a_rejected_key_belongs_to_the_item_that_reopened_it(
    primary: Memory, task_7: Memory, task_9: Memory
) -> None:
    task_7.propose(KEY, "x", sources=[ref("42")])
    primary.reject(ID, 1, "guess")

    reopened = task_9.propose(KEY, "y", sources=[ref("50")])
    answers = [who.revise(ID, 3, content="z") for who in (task_7, task_9)]

    assert isinstance(reopened, Receipt)
    assert [number(answer) for answer in answers] == ["F3", None]


# -- operations ------------------------------------------------------------------------------


def test_a_model_is_shown_its_own_operations_and_the_person_all(cast: Cast, task_9: Memory) -> None:
    cast.item.propose(KEY, "x", sources=[ref("42")], operation_id="op-item")
    cast.primary.propose(TEA, "x", sources=[ref("88")], operation_id="op-primary")
    cast.client.publish("diet/peanuts", "x", operation_id="op-client")
    operations = ("op-item", "op-primary", "op-client")

    def seen_by(reader: Memory) -> list[str]:
        return [each for each in operations if not isinstance(reader.operation(each), Refused)]

    assert seen_by(cast.item) == ["op-item"]
    assert seen_by(cast.primary) == ["op-primary"]
    assert seen_by(task_9) == []
    assert seen_by(cast.client) == seen_by(cast.auditor) == list(operations)


# -- rejection (K) ---------------------------------------------------------------------------


def test_scenario_92_a_rejection_has_a_reason_a_decider_and_a_candidate(
    primary: Memory, task_7: Memory
) -> None:
    task_7.propose(KEY, "x", sources=[ref("42")])
    primary.publish(TEA, "x", sources=[ref("88")])

    with nothing_written(primary):
        answers = [
            primary.reject(ID, 1, ""),
            task_7.reject(ID, 1, "guess"),
            primary.reject(TEA_ID, 1, "guess"),
        ]

    assert [number(answer) for answer in answers] == ["F36", "F3", "F34"]
    assert answers[0].field == "reason"
