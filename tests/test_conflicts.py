"""Conflicts: opened and resolved on the log, barring acceptance, changing no record (PM 1.8)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from memoranda.ledger.errors import Refused
from memoranda.ledger.events import Conflict
from memoranda.ledger.receipts import ConflictReceipt, Receipt
from memoranda.projections.history import RecordRead
from memoranda.tools.memory import Memory

KEY = "preference/reply-language"
ID = "mem_448800f070a1c5b419f7b261f803ee4b9bf720c1b67db77e20f23d7bd71a2009"
TEA = "preference/tea"
TEA_ID = "mem_8bd9f7914096218ac8597c1a948899a2c12f19c2710f4adb7d998585c9c0de6a"
CITY = "profile/home-city"
CITY_ID = "mem_e085601db3189386c0566097aa521d9678f9778afc508171bcd58a906d338fa8"
NOWHERE_ID = "mem_" + 64 * "0"


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


def open_about(memory: Memory, record_id: str) -> tuple[Conflict, ...]:
    read = memory.read(record_id, include_inactive=True)
    assert isinstance(read, RecordRead)
    return read.conflicts


def revision_of(memory: Memory, record_id: str) -> int:
    read = memory.read(record_id, include_inactive=True)
    assert isinstance(read, RecordRead)
    return read.record.revision


@pytest.fixture
def pair(primary: Memory, task_7: Memory) -> None:
    """A candidate of task-7 under KEY beside an accepted record under TEA."""
    primary.publish(TEA, "Likes tea", sources=[ref("88")])
    task_7.propose(KEY, "Likes Chinese", sources=[ref("42")])


pytestmark = pytest.mark.usefixtures("pair")


def test_an_open_conflict_is_shown_on_both_sides_and_changes_neither(primary: Memory) -> None:
    receipt = primary.open_conflict(ID, TEA_ID, "not both")

    expected = Conflict(
        conflict_id=receipt.conflict_id, candidate_id=ID, other_id=TEA_ID, state="open"
    )
    assert isinstance(receipt, ConflictReceipt)
    assert open_about(primary, ID) == open_about(primary, TEA_ID) == (expected,)
    assert primary.evidence(ID).conflicts == (expected,)
    assert (revision_of(primary, ID), revision_of(primary, TEA_ID)) == (1, 1)


def test_scenario_95_a_conflict_opened_after_the_evidence_bars_acceptance_until_resolved(
    primary: Memory, memory: Memory
) -> None:
    seen = primary.evidence(ID)
    opened = memory.open_conflict(ID, TEA_ID, "not both")

    with nothing_written(primary):
        barred = primary.accept(ID, seen.inspected_revision)
    resolved = primary.resolve_conflict(opened.conflict_id, "keep_candidate", "said so")
    accepted = primary.accept(ID, seen.inspected_revision)

    assert seen.conflicts == ()
    assert number(barred) == "F27"
    assert (resolved.state, resolved.resolution) == ("resolved", "keep_candidate")
    assert isinstance(accepted, Receipt)
    assert opened.position < resolved.position < accepted.position
    assert open_about(primary, ID) == open_about(primary, TEA_ID) == ()


@pytest.mark.parametrize("resolution", ["keep_candidate", "keep_other", "keep_both"])
def test_resolving_changes_no_record(resolution: str, memory: Memory) -> None:
    opened = memory.open_conflict(ID, TEA_ID, "not both")

    resolved = memory.resolve_conflict(opened.conflict_id, resolution, "the person said so")

    assert resolved.conflict_id == opened.conflict_id
    assert [read.record.status for read in memory.records(include_inactive=True)] == [
        "accepted", "candidate",
    ]  # fmt: skip
    assert (revision_of(memory, ID), revision_of(memory, TEA_ID)) == (1, 1)


def test_scenario_96_one_pair_has_one_open_conflict_whichever_side_is_named_first(
    primary: Memory,
) -> None:
    primary.propose(CITY, "Lives in Kyoto", sources=[ref("50")])

    first = primary.open_conflict(ID, CITY_ID, "not both")
    second = primary.open_conflict(CITY_ID, ID, "neither")

    assert second.conflict_id == first.conflict_id
    assert second.operation_id != first.operation_id
    assert len(open_about(primary, ID)) == 1


def test_a_resolved_pair_may_be_opened_again_as_another_conflict(primary: Memory) -> None:
    first = primary.open_conflict(ID, TEA_ID, "not both")
    primary.resolve_conflict(first.conflict_id, "keep_both", "both")

    second = primary.open_conflict(ID, TEA_ID, "after all not")

    assert second.conflict_id != first.conflict_id
    assert [each.conflict_id for each in open_about(primary, ID)] == [second.conflict_id]


def test_a_conflict_bars_either_candidate_that_it_names(primary: Memory) -> None:
    primary.propose(CITY, "Lives in Kyoto", sources=[ref("50")])
    primary.open_conflict(ID, CITY_ID, "not both")

    with nothing_written(primary):
        answers = [primary.accept(ID, 1), primary.accept(CITY_ID, 1)]

    assert [number(answer) for answer in answers] == ["F27", "F27"]


def test_an_item_opens_conflicts_of_its_own_candidate_and_resolves_none(
    task_7: Memory, task_9: Memory
) -> None:
    opened = task_7.open_conflict(ID, TEA_ID, "not both")

    with nothing_written(task_7):
        by_another = task_9.open_conflict(ID, TEA_ID, "not both")
        resolved = task_7.resolve_conflict(opened.conflict_id, "keep_candidate", "mine")

    assert isinstance(opened, ConflictReceipt)
    assert (number(by_another), number(resolved)) == ("F3", "F3")


def test_a_proposal_names_its_conflicts_in_the_one_event_of_its_operation(
    task_9: Memory, primary: Memory
) -> None:
    before = primary.status().position

    receipt = task_9.propose(
        CITY, "Lives in Kyoto", sources=[ref("50")], conflicts_with=[TEA_ID, ID, TEA_ID]
    )

    assert receipt.position == primary.status().position == before + 1
    assert [each.other_id for each in open_about(primary, CITY_ID)] == [TEA_ID, ID]
    assert number(primary.accept(CITY_ID, 1)) == "F27"


def test_a_revision_names_a_conflict_once_however_often_it_repeats_it(task_7: Memory) -> None:
    task_7.revise(ID, 1, conflicts_with=[TEA_ID])
    task_7.revise(ID, 2, content="Wants Chinese", conflicts_with=[TEA_ID])

    assert len(open_about(task_7, ID)) == 1


def test_a_conflict_with_a_record_that_is_not_there_is_not_found(primary: Memory) -> None:
    primary.publish(CITY, "Lives in Kyoto", sources=[ref("50")])
    primary.forget(CITY_ID, 1)

    with nothing_written(primary):
        answers = [
            call(other)
            for other in (NOWHERE_ID, CITY_ID)
            for call in (
                lambda other: primary.open_conflict(ID, other, "x"),
                lambda other: primary.open_conflict(other, ID, "x"),
                lambda other: primary.revise(ID, 1, conflicts_with=[other]),
                lambda other: primary.open_conflict(TEA_ID, other, "accepted, and not found"),
            )
        ]
        answers.append(primary.resolve_conflict("con-1", "keep_both", "x"))

    assert [number(answer) for answer in answers] == ["F35"] * 9


def test_only_a_candidate_and_another_record_are_a_conflict(primary: Memory) -> None:
    with nothing_written(primary):
        answers = [
            primary.open_conflict(TEA_ID, ID, "the accepted one is no candidate"),
            primary.open_conflict(ID, ID, "with itself"),
        ]

    assert [(number(each), each.field) for each in answers] == [
        ("F34", "candidate_id"), ("F34", "other_id"),
    ]  # fmt: skip


def test_a_conflict_is_resolved_once(primary: Memory) -> None:
    opened = primary.open_conflict(ID, TEA_ID, "not both")
    primary.resolve_conflict(opened.conflict_id, "keep_both", "both")

    with nothing_written(primary):
        answer = primary.resolve_conflict(opened.conflict_id, "keep_other", "no, the other")

    assert number(answer) == "F34"


ENDS: dict[str, Callable[[Memory, int], Receipt | Refused]] = {
    "corrected": lambda m, revision: m.correct(ID, revision, "French", sources=[ref("50#0-7")]),
    "rejected": lambda m, revision: m.reject(ID, revision, "guess"),
    "candidate-forgotten": lambda m, revision: m.forget(ID, revision),
    "other-forgotten": lambda m, _: m.forget(TEA_ID, 1),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("way", ["by its own operation", "inside a revision"])
def test_a_conflict_ends_with_the_operation_that_makes_it_void(
    end: str, way: str, primary: Memory
) -> None:
    if way == "inside a revision":
        primary.revise(ID, 1, conflicts_with=[TEA_ID])
    else:
        primary.open_conflict(ID, TEA_ID, "not both")
    revision = revision_of(primary, ID)
    (conflict,) = open_about(primary, TEA_ID)
    before = primary.status().position

    receipt = ENDS[end](primary, revision)

    again = primary.resolve_conflict(conflict.conflict_id, "keep_both", "x")
    assert receipt.position == before + 1
    assert open_about(primary, ID) == open_about(primary, TEA_ID) == ()
    assert number(again) == "F34"
    assert primary.audit.verify().findings == ()


def test_what_happens_to_the_other_side_short_of_a_forget_leaves_the_conflict_open(
    primary: Memory,
) -> None:
    primary.open_conflict(ID, TEA_ID, "not both")

    primary.correct(TEA_ID, 1, "Likes green tea", sources=[ref("50#0-7")])
    primary.retire(TEA_ID, 2, "over")

    assert len(open_about(primary, ID)) == 1


@pytest.mark.parametrize("end", ["corrected", "rejected"])
def test_a_decision_on_the_other_candidate_leaves_the_conflict_open(
    end: str, primary: Memory
) -> None:
    primary.propose(CITY, "Lives in Kyoto", sources=[ref("50#8-25")])
    primary.open_conflict(CITY_ID, ID, "not both")

    receipt = ENDS[end](primary, 1)

    assert isinstance(receipt, Receipt)
    assert [each.candidate_id for each in open_about(primary, CITY_ID)] == [CITY_ID]


def test_a_candidate_with_an_open_conflict_stays_one_over_every_restart(
    memory: Memory, primary: Memory, opened: Callable[..., Memory]
) -> None:
    primary.open_conflict(ID, TEA_ID, "not both")
    for _ in range(3):
        memory.close()
        memory = opened()

    assert [read.record.id for read in memory.candidates()] == [ID]
    assert len(open_about(memory, ID)) == 1
    assert number(memory.accept(ID, 1)) == "F27"


def test_a_conflict_operation_sent_again_is_answered_with_its_first_receipt(
    primary: Memory,
) -> None:
    opened = primary.open_conflict(ID, TEA_ID, "not both", operation_id="op-open")
    resolve = (opened.conflict_id, "keep_both", "both")
    resolved = primary.resolve_conflict(*resolve, operation_id="op-resolve")

    with nothing_written(primary):
        again = [
            primary.open_conflict(ID, TEA_ID, "not both", operation_id="op-open"),
            primary.resolve_conflict(*resolve, operation_id="op-resolve"),
        ]
        other = [
            primary.open_conflict(ID, TEA_ID, "not both!", operation_id="op-open"),
            primary.resolve_conflict(*resolve, operation_id="op-open"),
            primary.retire(TEA_ID, 1, "x", operation_id="op-open"),
        ]

    assert again == [each.model_copy(update={"replayed": True}) for each in (opened, resolved)]
    assert [number(answer) for answer in other] == ["F21"] * 3


def test_a_record_operation_sent_again_as_a_conflict_is_an_operation_conflict(
    primary: Memory,
) -> None:
    primary.retire(TEA_ID, 1, "over", operation_id="op-retire")

    with nothing_written(primary):
        answer = primary.open_conflict(ID, TEA_ID, "not both", operation_id="op-retire")

    assert number(answer) == "F21"


def test_the_reason_of_a_conflict_goes_with_either_side_that_is_forgotten(
    primary: Memory, memory: Memory
) -> None:
    opened = primary.open_conflict(ID, TEA_ID, "She said: tea only", operation_id="op-open")

    before = primary.explain(TEA_ID)
    primary.forget(ID, 1)
    after = primary.explain(TEA_ID)

    assert any("tea only" in line for line in before)
    assert not any("tea only" in line for line in after)
    assert number(primary.open_conflict(ID, TEA_ID, "x", operation_id="op-open")) == "F22"
    assert isinstance(opened, ConflictReceipt)
    assert memory.audit.verify().findings == ()
