"""Refusals: each one reachable, in the order of PM 2.5, leaving no trace."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from memoranda.ledger.authority import Auditor, BackgroundItem, ModelSession
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import Json
from memoranda.ledger.receipts import ConflictReceipt, Receipt
from memoranda.projections.history import RecordRead
from memoranda.tools.memory import Memory

KEY = "preference/reply-language"
ID = "mem_448800f070a1c5b419f7b261f803ee4b9bf720c1b67db77e20f23d7bd71a2009"
TEA = "preference/tea"
TEA_ID = "mem_8bd9f7914096218ac8597c1a948899a2c12f19c2710f4adb7d998585c9c0de6a"
NOWHERE_ID = "mem_" + 64 * "0"
SECRET = "AKIA" + "IOSFODNN7EXAMPLE"
TOO_LONG = 8193 * "x"


def ref(place: str) -> str:
    """`42` or `50#0-7` as a reference into the primary conversation."""
    return f"personal-message:s-main-1:{place}"


@dataclass
class Cast:
    """Who calls, and the world they call in."""

    person: Memory
    primary: Memory
    task_7: Memory
    task_9: Memory
    task_8: Memory
    stranger: Memory
    auditor: Memory
    world: Any

    def value(self, record_id: str = ID) -> Json:
        read = self.person.read(record_id, include_inactive=True)
        assert isinstance(read, RecordRead)
        return read.record.model_dump(mode="json")

    def next_value(self, who: str = "main", **changes: object) -> Json:
        """The value one revision on, as the primary session (or task-7) would write it."""
        value = self.value()
        session = {"main": "s-main-1", "bg": "s-bg-7"}[who]
        own = {
            "agent_id": f"agent-{who}",
            "executor_session_id": session,
            "revision": value["revision"] + 1,
        }
        contributions = [*value.get("contributions", []), own]
        more = {"revision": own["revision"], "updated_by_agent_id": own["agent_id"]}
        return {**value, **more, "contributions": contributions, **changes}

    def capture(self, seq: int, text: str = "A message", **more: object) -> None:
        message = {"session": "s-main-1", "seq": seq, "role": "user", "text": text}
        (answer,) = self.person.capture([{**message, "at": "2026-10-06", **more}])
        assert not isinstance(answer, Refused)


@pytest.fixture
def cast(memory: Memory, primary: Memory, task_7: Memory, task_9: Memory, world: object) -> Cast:
    return Cast(
        memory,
        primary,
        task_7,
        task_9,
        memory.acting_as(BackgroundItem("task-8", 1, "s-bg-8", "agent-bg")),
        memory.acting_as(ModelSession("main", "agent-main")),
        memory.acting_as(Auditor()),
        world,
    )


Act = Callable[[], object]
Case = Callable[[Cast], Act]
CASES: list[Any] = []
PAIRS: list[Any] = []


def refused(number: str) -> Callable[[Case], Case]:
    """Adds a case: what it sets up, and the call that is then refused by that number."""

    def add(case: Case) -> Case:
        CASES.append(pytest.param(number, case, id=f"{number}-{case.__name__}"))
        return case

    return add


def wins(number: str, over: str) -> Callable[[Case], Case]:
    """Adds a case whose call has two faults, of which the first number is told."""

    def add(case: Case) -> Case:
        PAIRS.append(pytest.param(number, case, id=f"{number}-over-{over}-{case.__name__}"))
        return case

    return add


def raw(operation_id: str, expected: Json | None, value: Json, key: str = ID) -> Json:
    return {"id": operation_id, "key": key, "expected": expected, "value": value}


# -- one by one (2.4) ------------------------------------------------------------------------


@refused("F2")
def a_stranger_publishes(cast: Cast) -> Act:
    return lambda: cast.stranger.publish(KEY, "x", sources=[ref("42")])


@refused("F2")
def an_auditor_forgets(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    return lambda: cast.auditor.forget(ID, 1)


@refused("F2")
def the_person_proposes(cast: Cast) -> Act:
    return lambda: cast.person.propose(KEY, "x", sources=[ref("42")])


@refused("F2")
def an_item_reads_evidence(cast: Cast) -> Act:
    cast.task_7.propose(KEY, "x", sources=[ref("42")])
    return lambda: cast.task_7.evidence(ID)


@refused("F3")
def an_item_accepts_its_own_candidate(cast: Cast) -> Act:
    cast.task_7.propose(KEY, "x", sources=[ref("42")])
    return lambda: cast.task_7.accept(ID, 1)


@refused("F3")
def an_item_revises_anothers_candidate(cast: Cast) -> Act:
    cast.task_7.propose(KEY, "x", sources=[ref("42")])
    return lambda: cast.task_9.revise(ID, 1, content="y")


@refused("F3")
def an_item_forgets_through_a_raw_commit(cast: Cast) -> Act:
    cast.task_7.propose(KEY, "x", sources=[ref("42")])
    kept = ("id", "product_domain", "user_space_id")
    tombstone = {name: cast.value()[name] for name in kept} | {
        "revision": 2, "status": "forgotten", "blocked_sources": [ref("42")],
    }  # fmt: skip
    return lambda: cast.task_7.commit(raw("op-raw", cast.value(), tombstone))


@refused("F4")
def an_item_was_never_authorized(cast: Cast) -> Act:
    return lambda: cast.task_8.propose(KEY, "x", sources=[ref("88")])


@refused("F5")
def the_authorization_has_no_commit_guard(cast: Cast) -> Act:
    cast.person.host.authorize(
        authorization_id="ea-1", item_id="task-7", requirement_revision=1,
        executor_session_id="s-bg-7", guard_capable=False,
    )  # fmt: skip
    return lambda: cast.task_7.propose(KEY, "x", sources=[ref("42")])


@refused("F6")
def the_item_was_stopped(cast: Cast) -> Act:
    cast.person.host.stop_task("task-7")
    return lambda: cast.task_7.propose(KEY, "x", sources=[ref("42")])


@refused("F6")
def the_requirement_has_changed(cast: Cast) -> Act:
    cast.person.host.open_task(item_id="task-7", requirement_revision=2, captured_ref=ref("42"))
    return lambda: cast.task_7.propose(KEY, "x", sources=[ref("42")])


@refused("F6")
def the_authorization_was_revoked(cast: Cast) -> Act:
    cast.person.host.revoke("ea-1")
    return lambda: cast.task_7.propose(KEY, "x", sources=[ref("42")])


@refused("F7")
def an_item_cites_another_message(cast: Cast) -> Act:
    return lambda: cast.task_7.propose(KEY, "x", sources=[ref("50")])


@refused("F7")
def the_primary_session_cites_another_conversation(cast: Cast) -> Act:
    cast.capture(42, session="s-fork-1")
    return lambda: cast.primary.publish(KEY, "x", sources=["personal-message:s-fork-1:42"])


@refused("F8")
def an_item_has_no_captured_message(cast: Cast) -> Act:
    cast.person.host.open_task(item_id="task-7")
    return lambda: cast.task_7.propose(KEY, "x", sources=[ref("42")])


@refused("F9")
def a_reference_is_not_canonical(cast: Cast) -> Act:
    return lambda: cast.primary.propose(KEY, "x", sources=[ref("042")])


@refused("F10")
def a_message_was_never_captured(cast: Cast) -> Act:
    return lambda: cast.primary.propose(KEY, "x", sources=[ref("9999")])


@refused("F11")
def a_message_was_hidden_later(cast: Cast) -> Act:
    cast.capture(90)
    cast.capture(90, hidden=True)
    return lambda: cast.primary.propose(KEY, "x", sources=[ref("90")])


@refused("F12")
def a_message_lies_in_the_future(cast: Cast) -> Act:
    cast.capture(90, at="2026-10-06T12:00:01Z")
    return lambda: cast.primary.propose(KEY, "x", sources=[ref("90")])


@refused("F13")
def a_candidate_rests_on_a_file(cast: Cast) -> Act:
    return lambda: cast.primary.propose(KEY, "x", sources=[{"kind": "file", "ref": "n.md"}])


@refused("F14")
def a_range_belongs_to_another_record(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    return lambda: cast.primary.propose(TEA, "x", sources=[ref("42#0-6")])


@refused("F15")
def a_range_was_forgotten(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    cast.primary.forget(ID, 1)
    return lambda: cast.primary.propose(TEA, "x", sources=[ref("42#0-6")])


@refused("F16")
def a_candidate_changed_before_its_acceptance(cast: Cast) -> Act:
    cast.task_7.propose(KEY, "x", sources=[ref("42")])
    cast.task_7.revise(ID, 1, content="y")
    return lambda: cast.primary.accept(ID, 1)


@refused("F16")
def a_candidate_changed_before_its_rejection(cast: Cast) -> Act:
    cast.task_7.propose(KEY, "x", sources=[ref("42")])
    cast.task_7.revise(ID, 1, content="y")
    return lambda: cast.primary.reject(ID, 1, "guess")


@refused("F17")
def a_key_is_live_already(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    return lambda: cast.primary.publish(KEY, "y", sources=[ref("88")])


@refused("F17")
def a_record_has_another_revision_than_expected(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    return lambda: cast.primary.correct(ID, 2, "y", sources=[ref("88")])


@refused("F17")
def a_revision_is_expected_of_a_key_that_has_none(cast: Cast) -> Act:
    return lambda: cast.primary.publish(KEY, "x", sources=[ref("42")], expected_revision=3)


@refused("F17")
def a_reopened_key_has_another_revision_than_expected(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    cast.primary.forget(ID, 1)
    return lambda: cast.primary.publish(KEY, "y", sources=[ref("88")], expected_revision=1)


@refused("F17")
def a_raw_commit_expects_another_record(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    expected = {**cast.value(), "content": "y"}
    return lambda: cast.primary.commit(
        raw("op-raw", expected, cast.next_value(content="y", tier="core"))
    )


@refused("F17")
def a_raw_commit_expects_what_is_no_record(cast: Cast) -> Act:
    return lambda: cast.primary.commit(raw("op-raw", {"id": ID}, {"id": ID}))


@refused("F18")
def a_value_skips_a_revision(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    value = cast.next_value(revision=3, tier="core")
    return lambda: cast.primary.commit(raw("op-raw", cast.value(), value))


@refused("F19")
def a_value_is_of_another_domain(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    value = cast.next_value(product_domain="coding", tier="core")
    return lambda: cast.primary.commit(raw("op-raw", cast.value(), value))


@refused("F19")
def an_item_sends_a_candidate_that_is_no_record(cast: Cast) -> Act:
    cast.task_7.propose(KEY, "x", sources=[ref("42")])
    value = cast.next_value("bg", sources=[{"kind": "personal_message"}])
    return lambda: cast.task_7.commit(raw("op-raw", cast.value(), value))


@refused("F19")
def a_publication_has_no_source(cast: Cast) -> Act:
    return lambda: cast.primary.publish(KEY, "x")


@refused("F20")
def a_tombstone_keeps_content(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    value = cast.next_value(status="forgotten")
    return lambda: cast.primary.commit(raw("op-raw", cast.value(), value))


@refused("F21")
def an_operation_id_comes_with_other_content(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")], operation_id="op-1")
    return lambda: cast.primary.publish(KEY, "y", sources=[ref("42")], operation_id="op-1")


@refused("F22")
def a_record_has_moved_on_since_the_operation(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")], operation_id="op-1")
    cast.primary.choose_tier(ID, 1, "core")
    return lambda: cast.primary.publish(KEY, "x", sources=[ref("42")], operation_id="op-1")


@refused("F27")
def a_conflict_stands_against_the_candidate(cast: Cast) -> Act:
    cast.primary.publish(TEA, "x", sources=[ref("88")])
    cast.task_7.propose(KEY, "x", sources=[ref("42")], conflicts_with=[TEA_ID])
    return lambda: cast.primary.accept(ID, 1)


@refused("F30")
def a_key_was_rejected_from_that_range(cast: Cast) -> Act:
    cast.task_7.propose(KEY, "x", sources=[ref("42")])
    cast.primary.reject(ID, 1, "guess")
    return lambda: cast.task_7.propose(KEY, "x", sources=[ref("42#0-6")])


@refused("F31")
def a_span_ends_beyond_the_text(cast: Cast) -> Act:
    return lambda: cast.primary.propose(KEY, "x", sources=[ref("50#8-26")])


@refused("F32")
def a_content_is_too_long(cast: Cast) -> Act:
    return lambda: cast.primary.publish(KEY, TOO_LONG, sources=[ref("42")])


@refused("F33")
def an_item_proposes_a_forgotten_key(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("88")])
    cast.primary.forget(ID, 1)
    return lambda: cast.task_7.propose(KEY, "x", sources=[ref("42")])


@refused("F34")
def a_candidate_is_retired(cast: Cast) -> Act:
    cast.primary.propose(KEY, "x", sources=[ref("42")])
    return lambda: cast.primary.retire(ID, 1, "over")


@refused("F34")
def evidence_is_asked_of_an_accepted_record(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    return lambda: cast.primary.evidence(ID)


@refused("F35")
def a_record_does_not_exist(cast: Cast) -> Act:
    return lambda: cast.primary.choose_tier(NOWHERE_ID, 1, "core")


@refused("F35")
def a_candidate_is_read_without_asking_for_inactive_ones(cast: Cast) -> Act:
    cast.primary.propose(KEY, "x", sources=[ref("42")])
    return lambda: cast.primary.read(ID)


@refused("F35")
def an_operation_does_not_exist(cast: Cast) -> Act:
    return lambda: cast.primary.operation("op-unknown")


@refused("F35")
def a_history_does_not_exist(cast: Cast) -> Act:
    return lambda: cast.primary.revisions(NOWHERE_ID)


@refused("F36")
def a_request_has_an_unknown_field(cast: Cast) -> Act:
    return lambda: cast.primary.commit({**raw("op-raw", None, {}), "note": "x"})


@refused("F37")
def a_text_holds_a_secret(cast: Cast) -> Act:
    return lambda: cast.primary.publish(KEY, f"The key is {SECRET}", sources=[ref("42")])


@refused("F37")
def a_raw_value_holds_a_secret(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    value = cast.next_value(content=f"The key is {SECRET}")
    return lambda: cast.primary.commit(raw("op-raw", cast.value(), value))


@pytest.mark.parametrize(("number", "case"), CASES)
def test_a_refusal_names_its_rule_and_leaves_no_trace(number: str, case: Case, cast: Cast) -> None:
    act = case(cast)
    before = cast.person.status().position, cast.person.records(include_inactive=True)

    answer = act()

    assert isinstance(answer, Refused)
    assert answer.refusal.number == number
    assert answer.wire()["code"] == answer.refusal.code
    assert answer.wire()["message"]
    assert answer.rule == answer.wire()["rule"]
    assert (cast.person.status().position, cast.person.records(include_inactive=True)) == before


def test_every_refusal_of_this_part_has_a_case() -> None:
    numbers = {case.values[0] for case in CASES}

    reachable = {*range(2, 23), 27, *range(30, 38)}
    assert numbers == {f"F{number}" for number in reachable}


def test_refusals_change_no_link_of_the_chain(cast: Cast) -> None:
    cast.primary.propose(KEY, "x", sources=[ref("42")])
    chain = cast.person.audit.verify().chain
    for _ in range(3):
        cast.primary.accept(ID, 7)
        cast.task_8.propose(TEA, "x", sources=[ref("88")])
        cast.primary.propose(TEA, SECRET, sources=[ref("88")])

    report = cast.person.audit.verify()
    assert (report.chain, report.findings) == (chain, ())


# -- the order (2.5) -------------------------------------------------------------------------

STEPS = (
    "F1 F28 F26 F38 F39 F40 F41",
    "F36 F32 F37 F25",
    "F2 F24",
    "F21 F22",
    "F6 F4 F5 F3",
    "F18 F19 F20 F35 F33 F34",
    "F13 F9 F8 F7 F10 F11 F12 F31 F15 F14 F30",
    "F23 F17 F16",
    "F27",
    "F6 F29",
)
CODES = {
    "F1": "service_unavailable", "F2": "not_authorized", "F3": "background_candidate_only",
    "F4": "authorization_required", "F5": "reauthorization_required", "F6": "execution_fenced",
    "F7": "source_not_bound", "F8": "source_not_bound", "F9": "source_ref_invalid",
    "F10": "source_missing", "F11": "source_rejected", "F12": "source_in_future",
    "F13": "source_kind_unsupported", "F14": "source_in_use", "F15": "source_forgotten",
    "F16": "revision_conflict", "F17": "revision_conflict", "F18": "invalid_value",
    "F19": "invalid_value", "F20": "invalid_value", "F21": "operation_conflict",
    "F22": "receipt_superseded", "F23": "outcome_unknown", "F24": "reconcile_refused",
    "F25": "cursor_invalid", "F26": "migration_failed", "F27": "conflict_unresolved",
    "F28": "service_unavailable", "F29": "binding_mismatch", "F30": "candidate_rejected",
    "F31": "source_span_invalid", "F32": "limit_exceeded", "F33": "record_forgotten",
    "F34": "invalid_transition", "F35": "not_found", "F36": "invalid_request",
    "F37": "secret_detected", "F38": "space_unknown", "F39": "read_only", "F40": "schema_newer",
    "F41": "busy",
}  # fmt: skip


def test_the_refusals_stand_in_the_order_in_which_they_win() -> None:
    assert [refusal.number for refusal in Refusal] == " ".join(STEPS).split()
    assert {refusal.number: refusal.code for refusal in Refusal} == CODES


@wins("F36", over="F32")
def an_empty_content_under_a_key_too_long(cast: Cast) -> Act:
    return lambda: cast.primary.publish(513 * "k", "", sources=[ref("42")])


@wins("F32", over="F37")
def a_long_content_under_a_secret_key(cast: Cast) -> Act:
    return lambda: cast.primary.publish(SECRET, TOO_LONG, sources=[ref("42")])


@wins("F37", over="F2")
def a_secret_from_a_stranger(cast: Cast) -> Act:
    return lambda: cast.stranger.publish(KEY, SECRET)


@wins("F36", over="F2")
def a_malformed_request_of_a_stranger(cast: Cast) -> Act:
    return lambda: cast.stranger.forget("\0", 1)


@wins("F36", over="F2")
def a_malformed_read_of_a_stranger(cast: Cast) -> Act:
    return lambda: cast.stranger.read("\0")


@wins("F36", over="F21")
def a_malformed_request_under_a_known_operation_id(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")], operation_id="op-1")
    return lambda: cast.primary.publish(KEY, "", sources=[ref("42")], operation_id="op-1")


@wins("F2", over="F21")
def a_stranger_under_a_known_operation_id(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")], operation_id="op-1")
    return lambda: cast.stranger.publish(KEY, "y", operation_id="op-1")


@wins("F2", over="F34")
def the_person_revises_an_accepted_record(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    return lambda: cast.person.revise(ID, 1, content="y")


@wins("F21", over="F4")
def an_unauthorized_item_under_a_known_operation_id(cast: Cast) -> Act:
    cast.primary.propose(KEY, "x", sources=[ref("42")], operation_id="op-1")
    return lambda: cast.task_8.propose(TEA, "x", sources=[ref("88")], operation_id="op-1")


@wins("F21", over="F3")
def an_item_that_decides_under_a_known_operation_id(cast: Cast) -> Act:
    cast.task_7.propose(KEY, "x", sources=[ref("42")], operation_id="op-1")
    return lambda: cast.task_7.accept(ID, 1, operation_id="op-1")


@wins("F22", over="F6")
def a_stopped_item_with_a_receipt_that_is_superseded(cast: Cast) -> Act:
    cast.task_7.propose(KEY, "x", sources=[ref("42")], operation_id="op-1")
    cast.primary.accept(ID, 1)
    cast.person.host.stop_task("task-7")
    return lambda: cast.task_7.propose(KEY, "x", sources=[ref("42")], operation_id="op-1")


@wins("F22", over="F21")
def other_content_under_an_operation_id_from_before_a_forget(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")], operation_id="op-1")
    cast.primary.forget(ID, 1)
    return lambda: cast.primary.publish(TEA, "y", sources=[ref("88")], operation_id="op-1")


@wins("F21", over="F18")
def a_skipped_revision_under_a_known_operation_id(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")], operation_id="op-1")
    return lambda: cast.primary.commit(raw("op-1", cast.value(), cast.next_value(revision=9)))


@wins("F4", over="F3")
def an_unauthorized_item_decides(cast: Cast) -> Act:
    cast.primary.propose(KEY, "x", sources=[ref("42")])
    return lambda: cast.task_8.accept(ID, 1)


@wins("F5", over="F3")
def an_item_without_commit_guard_decides(cast: Cast) -> Act:
    the_authorization_has_no_commit_guard(cast)
    return lambda: cast.task_7.forget(NOWHERE_ID, 1)


@wins("F6", over="F4")
def a_stopped_item_was_never_authorized(cast: Cast) -> Act:
    cast.person.host.stop_task("task-8")
    return lambda: cast.task_8.propose(KEY, "x", sources=[ref("88")])


@wins("F6", over="F5")
def a_revoked_authorization_had_no_commit_guard(cast: Cast) -> Act:
    the_authorization_has_no_commit_guard(cast)
    cast.person.host.revoke("ea-1")
    return lambda: cast.task_7.propose(KEY, "x", sources=[ref("42")])


@wins("F3", over="F18")
def an_item_skips_a_revision_of_an_accepted_record(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("88")])
    value = cast.next_value("bg", revision=9)
    return lambda: cast.task_7.commit(raw("op-raw", cast.value(), value))


@wins("F3", over="F35")
def an_item_decides_on_a_record_that_is_not_there(cast: Cast) -> Act:
    return lambda: cast.task_7.choose_tier(NOWHERE_ID, 1, "core")


@wins("F18", over="F19")
def a_skipped_revision_in_another_domain(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    value = cast.next_value(revision=3, product_domain="coding")
    return lambda: cast.primary.commit(raw("op-raw", cast.value(), value))


@wins("F18", over="F20")
def a_skipped_revision_of_a_tombstone_with_content(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    value = cast.next_value(revision=3, status="forgotten")
    return lambda: cast.primary.commit(raw("op-raw", cast.value(), value))


@wins("F18", over="F34")
def a_skipped_revision_into_no_status(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    value = cast.next_value(revision=3, status="candidate")
    return lambda: cast.primary.commit(raw("op-raw", cast.value(), value))


@wins("F19", over="F33")
def an_item_proposes_a_forgotten_key_from_two_sources(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("88")])
    cast.primary.forget(ID, 1)
    return lambda: cast.task_7.propose(KEY, "x", sources=[ref("42#0-1"), ref("42#1-2")])


@wins("F19", over="F34")
def another_space_in_a_transition_that_is_none(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    value = cast.next_value(status="candidate", user_space_id="us_bob")
    return lambda: cast.primary.commit(raw("op-raw", cast.value(), value))


@wins("F19", over="F34")
def another_key_in_a_transition_that_is_none(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    value = cast.next_value(status="candidate")
    return lambda: cast.primary.commit(raw("op-raw", cast.value(), value, TEA_ID))


@wins("F20", over="F34")
def a_second_tombstone_with_content(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    cast.primary.forget(ID, 1)
    value = {**cast.value(), "revision": 3, "content": "x"}
    return lambda: cast.primary.commit(raw("op-raw", cast.value(), value))


@wins("F19", over="F13")
def a_publication_from_a_legacy_source_only(cast: Cast) -> Act:
    return lambda: cast.primary.publish(KEY, "x", sources=[{"kind": "legacy", "ref": "n"}])


@wins("F35", over="F9")
def a_correction_of_nothing_from_a_malformed_source(cast: Cast) -> Act:
    return lambda: cast.primary.correct(NOWHERE_ID, 1, "x", sources=[ref("042")])


@wins("F33", over="F9")
def an_item_proposes_a_forgotten_key_from_a_malformed_source(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("88")])
    cast.primary.forget(ID, 1)
    return lambda: cast.task_7.propose(KEY, "x", sources=[ref("042")])


@wins("F34", over="F9")
def a_correction_of_a_retired_record_from_a_malformed_source(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    cast.primary.retire(ID, 1, "over")
    return lambda: cast.primary.correct(ID, 2, "x", sources=[ref("042")])


@wins("F13", over="F9")
def a_file_as_malformed_as_a_reference_can_be(cast: Cast) -> Act:
    return lambda: cast.primary.propose(KEY, "x", sources=[{"kind": "file", "ref": ref("042")}])


@wins("F9", over="F8")
def an_item_without_a_message_cites_a_malformed_one(cast: Cast) -> Act:
    cast.person.host.open_task(item_id="task-7")
    return lambda: cast.task_7.propose(KEY, "x", sources=[ref("042")])


@wins("F8", over="F10")
def an_item_without_a_message_cites_a_missing_one(cast: Cast) -> Act:
    cast.person.host.open_task(item_id="task-7")
    return lambda: cast.task_7.propose(KEY, "x", sources=[ref("9999")])


@wins("F7", over="F10")
def a_missing_message_of_another_conversation(cast: Cast) -> Act:
    return lambda: cast.primary.propose(KEY, "x", sources=["personal-message:s-fork-1:9999"])


@wins("F11", over="F12")
def a_hidden_message_of_the_future(cast: Cast) -> Act:
    cast.capture(90, hidden=True, at="2027-01-01")
    return lambda: cast.primary.propose(KEY, "x", sources=[ref("90")])


@wins("F12", over="F31")
def a_span_beyond_a_message_of_the_future(cast: Cast) -> Act:
    cast.capture(90, at="2027-01-01")
    return lambda: cast.primary.propose(KEY, "x", sources=[ref("90#0-999")])


@wins("F31", over="F15")
def a_span_beyond_a_forgotten_message(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    cast.primary.forget(ID, 1)
    return lambda: cast.primary.propose(TEA, "x", sources=[ref("42#0-999")])


@wins("F15", over="F14")
def a_message_with_a_forgotten_and_an_owned_range(cast: Cast) -> Act:
    cast.primary.publish(TEA, "x", sources=[ref("50#8-25")])
    cast.primary.publish(KEY, "x", sources=[ref("50#0-7")])
    cast.primary.forget(ID, 1)
    return lambda: cast.primary.propose("profile/home-city", "x", sources=[ref("50")])


@wins("F15", over="F30")
def a_range_that_was_rejected_for_the_key_and_forgotten_with_another(cast: Cast) -> Act:
    cast.primary.propose(KEY, "x", sources=[ref("42")])
    cast.primary.reject(ID, 1, "guess")
    cast.primary.publish(TEA, "x", sources=[ref("42")])
    cast.primary.forget(TEA_ID, 1)
    return lambda: cast.primary.propose(KEY, "x", sources=[ref("42")])


@wins("F14", over="F30")
def a_rejected_range_that_another_record_owns_by_now(cast: Cast) -> Act:
    cast.primary.propose(KEY, "x", sources=[ref("42")])
    cast.primary.reject(ID, 1, "guess")
    cast.primary.publish(TEA, "x", sources=[ref("42")])
    return lambda: cast.primary.propose(KEY, "x", sources=[ref("42")])


@wins("F31", over="F9")
def the_first_source_is_told_before_a_worse_second_one(cast: Cast) -> Act:
    return lambda: cast.primary.propose(KEY, "x", sources=[ref("50#8-26"), ref("042")])


@wins("F14", over="F17")
def a_raw_creation_of_a_live_key_from_an_owned_range(cast: Cast) -> Act:
    cast.primary.publish(TEA, "x", sources=[ref("88")])
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    (own,) = cast.value(TEA_ID)["sources"]
    value = {**cast.value(), "content": "y", "sources": [own]}
    return lambda: cast.primary.commit(raw("op-raw", None, value))


@wins("F17", over="F27")
def a_raw_acceptance_of_another_content_despite_a_conflict(cast: Cast) -> Act:
    cast.primary.publish(TEA, "x", sources=[ref("88")])
    cast.primary.propose(KEY, "x", sources=[ref("42")], conflicts_with=[TEA_ID])
    expected = {**cast.value(), "content": "y"}
    value = cast.next_value(content="y", status="accepted")
    return lambda: cast.primary.commit(raw("op-raw", expected, value))


@wins("F16", over="F27")
def an_acceptance_of_a_changed_candidate_despite_a_conflict(cast: Cast) -> Act:
    cast.primary.publish(TEA, "x", sources=[ref("88")])
    cast.primary.propose(KEY, "x", sources=[ref("42")], conflicts_with=[TEA_ID])
    cast.primary.revise(ID, 1, content="y")
    return lambda: cast.primary.accept(ID, 1)


@wins("F16", over="F34")
def an_acceptance_of_what_was_accepted_meanwhile(cast: Cast) -> Act:
    cast.primary.propose(KEY, "x", sources=[ref("42")])
    cast.primary.accept(ID, 1)
    return lambda: cast.primary.accept(ID, 1)


@wins("F17", over="F34")
def a_retirement_of_what_was_retired_meanwhile(cast: Cast) -> Act:
    cast.primary.publish(KEY, "x", sources=[ref("42")])
    cast.primary.retire(ID, 1, "over")
    return lambda: cast.primary.retire(ID, 1, "over")


@pytest.mark.parametrize(("number", "case"), PAIRS)
def test_of_two_faults_the_earlier_of_the_order_is_told(
    number: str, case: Case, cast: Cast
) -> None:
    act = case(cast)
    before = cast.person.status().position

    answer = act()

    assert isinstance(answer, Refused)
    assert answer.refusal.number == number
    assert cast.person.status().position == before


def test_a_replay_comes_before_every_doubt_about_the_caller(cast: Cast) -> None:
    first = cast.task_7.propose(KEY, "x", sources=[ref("42")], operation_id="op-1")
    cast.person.host.revoke("ea-1")
    cast.capture(42, "Please answer me in Chinese from now on", at="2026-10-05T09:00:00Z",
                 hidden=True)  # fmt: skip

    again = cast.task_7.propose(KEY, "x", sources=[ref("42")], operation_id="op-1")

    assert isinstance(first, Receipt)
    assert again == first.model_copy(update={"replayed": True})


def test_a_refused_intent_may_be_repeated_under_a_new_id_or_the_same(cast: Cast) -> None:
    first = cast.primary.propose(KEY, "x", sources=[ref("90")], operation_id="op-1")
    cast.capture(90)

    again = cast.primary.propose(KEY, "x", sources=[ref("90")], operation_id="op-1")

    assert isinstance(first, Refused)
    assert isinstance(again, Receipt)
    assert not again.replayed


def test_a_known_refusal_carries_the_revision_that_it_met(cast: Cast) -> None:
    cast.primary.propose(KEY, "x", sources=[ref("42")], operation_id="op-1")
    cast.primary.revise(ID, 1, content="y")

    answers = [
        cast.primary.accept(ID, 1),
        cast.primary.correct(ID, 1, "z", sources=[ref("88")]),
        cast.primary.propose(KEY, "x", sources=[ref("42")], operation_id="op-1"),
    ]

    assert [answer.wire()["current_revision"] for answer in answers] == [2, 2, 2]


def test_secrets_are_taken_out_where_the_setting_says_so(opened: Callable[..., Memory]) -> None:
    memory = opened(secrets="redact")

    receipt = memory.publish(KEY, f"The key is {SECRET}", operation_id="op-1")
    again = memory.publish(KEY, f"The key is {SECRET}", operation_id="op-1")

    assert isinstance(receipt, Receipt)
    assert again == receipt.model_copy(update={"replayed": True})
    (read,) = memory.records()
    assert SECRET not in read.record.content
    assert "[redacted: " in read.record.content


def test_a_secret_in_the_reason_of_a_conflict_is_refused(cast: Cast) -> None:
    cast.primary.propose(KEY, "x", sources=[ref("42")])
    cast.primary.publish(TEA, "x", sources=[ref("88")])

    refused_ = cast.primary.open_conflict(ID, TEA_ID, f"The key is {SECRET}")
    plain = cast.primary.open_conflict(ID, TEA_ID, "not both")

    assert isinstance(refused_, Refused)
    assert (refused_.refusal.number, refused_.field) == ("F37", "reason")
    assert SECRET not in str(refused_.wire())
    assert isinstance(plain, ConflictReceipt)
