"""Undo: the person's own last command, taken back by one that says the opposite."""

import pytest

from memoranda.tools.undoing import undo

FACT = "Alice drinks green tea."
REF = "personal-message:s-main-1:"


def content_of(memory, record_id):
    return memory.read(record_id, include_inactive=True).record


def test_remembering_is_taken_back_and_taking_back_is_too(memory):
    made = memory.remember(FACT)

    assert undo(memory).status == "retired"
    assert memory.records() == ()
    assert undo(memory).status == "accepted"
    assert content_of(memory, made.record_id).content == FACT


def test_a_correction_is_taken_back_with_its_dates(memory):
    made = memory.remember(FACT, expires_at="2027-01-01")
    memory.correct(made.record_id, 1, "Alice drinks black tea.", expires_at=None)

    undone = undo(memory)

    record = content_of(memory, made.record_id)
    assert (undone.to_revision, record.content) == (3, FACT)
    assert record.expires_at == "2027-01-01T00:00:00Z"
    assert len(memory.revisions(made.record_id)) == 3


def test_a_tier_and_a_retirement_are_taken_back(memory):
    made = memory.remember(FACT)
    memory.choose_tier(made.record_id, 1, "core")
    undo(memory)
    assert content_of(memory, made.record_id).tier == "detail"

    memory.retire(made.record_id, 3, "over")
    undo(memory)

    assert content_of(memory, made.record_id).status == "accepted"


@pytest.mark.parametrize("deed", ["forget", "accept", "reject", "conflict"])
def test_what_destroyed_or_decided_something_cannot_be_taken_back(memory, primary, deed):
    tea = memory.remember(FACT)
    made = primary.propose("city", "Kyoto", sources=[f"{REF}50#11-17"])
    match deed:
        case "forget":
            memory.forget(tea.record_id, 1)
        case "accept":
            memory.accept(made.record_id, 1)
        case "reject":
            memory.reject(made.record_id, 1, "no")
        case _:
            memory.open_conflict(made.record_id, tea.record_id, "both?")
    position = memory.status().position

    answer = undo(memory)

    assert answer.code == "invalid_transition"
    assert answer.field == "operation"
    assert deed != "forget" or "gone for good" in answer.message
    assert memory.status().position == position


def test_what_somebody_else_has_changed_since_stays(memory, primary):
    made = memory.remember(FACT)
    primary.correct(made.record_id, 1, "Black tea", sources=[f"{REF}42"])

    answer = undo(memory)

    assert (answer.code, answer.current_revision) == ("receipt_superseded", 2)


def test_only_the_persons_own_operations_are_looked_for(memory, primary):
    primary.publish("city", "Kyoto", sources=[f"{REF}50#11-17"])

    assert undo(memory).code == "not_found"


def test_a_repeated_undo_under_its_id_undoes_nothing_more(memory):
    memory.remember(FACT)

    first, again = (undo(memory, operation_id="op-undo") for _ in range(2))

    assert again == first.model_copy(update={"replayed": True})
    assert memory.records() == ()
