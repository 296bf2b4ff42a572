"""The commit protocol: prepare, protect, decide; unknown outcomes, fences, reconcile, batches."""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.providers import Chats, Company, Provider, company
from tests.sites import FailingCommit, renewed

from memoranda.ledger.authority import Auditor, BackgroundItem, ModelSession, PersonClient
from memoranda.ledger.errors import (
    CLOSED,
    OutcomeUnknown,
    Refusal,
    Refused,
    RefusedError,
    StorageFault,
)
from memoranda.ledger.events import Authorization, Binding, Task
from memoranda.ledger.forgetting import Forgetting
from memoranda.ledger.ports import Conversation, Ports, Protected
from memoranda.ledger.receipts import AbortReceipt, PreparedReceipt, Receipt
from memoranda.ledger.rules import canonical
from memoranda.tools.memory import Memory

KEY = "preference/reply-language"
ID = "mem_448800f070a1c5b419f7b261f803ee4b9bf720c1b67db77e20f23d7bd71a2009"
REF = "personal-message:s-main-1:"
TEXT = "Answers in Chinese are wanted."
REASON = "host crashed"


def proposal(operation_id: str = "op-1", **more: object) -> dict[str, object]:
    fields = {"operation_id": operation_id, "key": KEY, "content": TEXT, "sources": [f"{REF}42"]}
    return {"name": "propose", **fields, **more}


def publication(operation_id: str = "op-1", **more: object) -> dict[str, object]:
    return proposal(operation_id, name="publish", **more)


def value_of(memory: Memory, record_id: str = ID) -> dict[str, object]:
    return memory.read(record_id, include_inactive=True).record.model_dump(mode="json")


def all_rows(memory: Memory) -> list[object]:
    with memory._parts.log.reading() as store:
        return store.rows(0, 10_000)


def settle(memory: Memory, operation_id: str = "op-1", **more: object) -> object:
    return memory.reconcile(operation_id, **{"writers_stopped": True, "reason": REASON} | more)


def states(memory: Memory) -> dict[str, str]:
    return {line.operation_id: line.state for line in memory.operations()}


# -- prepare, then commit (E) ---------------------------------------------------------------------


def test_scenario_37_a_prepared_operation_returns_its_first_content_byte_exact(primary):
    prepared = primary.prepare(publication())

    assert isinstance(prepared, PreparedReceipt)
    read = primary.operation("op-1")
    assert (read.state, read.receipt) == ("prepared", None)
    assert read.intent["value"]["content"] == TEXT
    committed = primary.commit(read.intent)
    assert isinstance(committed, Receipt)
    assert committed.intent_digest == prepared.intent_digest != committed.record_digest
    again = primary.operation("op-1")
    assert canonical(again.intent) == canonical(read.intent)
    assert (again.state, again.receipt) == ("committed", committed)


def test_scenario_38_one_changed_byte_under_the_same_id_is_refused(primary):
    primary.prepare(publication())
    intent = primary.operation("op-1").intent

    intent["value"] |= {"content": TEXT + "!"}

    assert primary.commit(intent).refusal is Refusal.OPERATION_CONFLICT
    assert primary.prepare(publication(content=TEXT + "!")).refusal is Refusal.OPERATION_CONFLICT
    assert primary.operation("op-1").state == "prepared"
    assert primary.publish(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1").to_revision == 1


def test_scenario_40_after_a_crash_a_prepared_operation_holds_its_record_and_can_be_resumed(
    opened, primary
):
    primary.prepare(publication())

    restarted = opened().acting_as(primary.caller)

    assert restarted.operation("op-1").state == "prepared"
    assert restarted.read(ID, include_inactive=True).refusal is Refusal.NOT_FOUND
    other = restarted.publish(KEY, "something else", sources=[f"{REF}88"], operation_id="op-2")
    assert other.refusal is Refusal.OUTCOME_UNKNOWN
    assert restarted.operation("op-2").refusal is Refusal.NOT_FOUND
    first = restarted.commit(restarted.operation("op-1").intent)
    assert (first.to_revision, first.replayed) == (1, False)
    again = restarted.commit(restarted.operation("op-1").intent)
    assert again == first.model_copy(update={"replayed": True})
    assert value_of(opened())["revision"] == 1


def test_preparing_again_is_the_same_intent_and_after_its_end_the_receipt(primary):
    first = primary.prepare(publication())

    assert primary.prepare(publication()) == first.model_copy(update={"replayed": True})
    receipt = primary.publish(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1")
    assert primary.prepare(publication()) == receipt.model_copy(update={"replayed": True})


def test_an_intent_belongs_to_the_one_who_prepared_it(memory, primary, task_7):
    task_7.prepare(proposal())

    intent = memory.operation("op-1").intent

    assert primary.commit(intent).refusal is Refusal.OPERATION_CONFLICT
    assert primary.operation("op-1").refusal is Refusal.NOT_FOUND
    assert task_7.commit(intent).to_revision == 1


@pytest.mark.parametrize(
    ("change", "number"),
    [
        (lambda host: host.stop_task("task-7"), "F6"),
        (lambda host: host.open_task(item_id="task-7", requirement_revision=2), "F6"),
        (lambda host: host.revoke("ea-1"), "F6"),
    ],
    ids=["stopped", "scenario 42, requirement changed", "scenario 43, revoked"],
)
def test_scenarios_42_43_a_fence_between_prepare_and_commit_aborts(memory, task_7, change, number):
    task_7.prepare(proposal())

    change(memory.host)
    answer = task_7.propose(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1")

    assert answer.refusal is Refusal.EXECUTION_FENCED
    assert answer.refusal.number == number
    read = memory.operation("op-1")
    assert (read.state, read.intent) == ("aborted", None)
    assert isinstance(read.receipt, AbortReceipt)
    assert (read.receipt.item_id, read.receipt.refusal) == ("task-7", "execution_fenced")
    again = task_7.propose(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1")
    assert again.refusal is Refusal.EXECUTION_FENCED
    assert memory.audit.verify().findings == ()


def test_scenario_44_an_authorization_without_guard_support_must_be_given_again(memory, task_7):
    leave = {"item_id": "task-7", "requirement_revision": 1, "executor_session_id": "s-bg-7"}
    memory.host.authorize(authorization_id="ea-1", **leave, guard_capable=False)

    refused = task_7.propose(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1")
    assert refused.refusal is Refusal.REAUTHORIZATION_REQUIRED
    assert memory.operation("op-1").refusal is Refusal.NOT_FOUND

    memory.host.authorize(authorization_id="ea-1", **leave)
    assert task_7.propose(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1").to_revision == 1


def test_a_rebind_between_prepare_and_commit_aborts_and_says_which_rule(memory, primary):
    primary.prepare(publication())

    memory.host.bind_primary("s-main-2")
    answer = primary.publish(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1")

    assert answer.refusal is Refusal.NOT_AUTHORIZED
    assert memory.operation("op-1").receipt.refusal == "not_authorized"


def test_an_abort_takes_its_content_and_the_key_that_only_it_had(memory, primary):
    primary.prepare(publication())
    keys = memory.status().keys

    memory.host.capture([])
    memory.host.bind_primary("s-main-2")
    assert isinstance(primary.commit(memory.operation("op-1").intent), Refused)

    assert memory.status().keys == keys - 1
    assert memory.remnants(TEXT).remnants == ()
    assert memory.audit.verify().findings == ()


def test_an_abort_on_a_live_record_leaves_the_record_as_it_was(memory, primary):
    primary.publish(KEY, TEXT, sources=[f"{REF}42"])
    before = value_of(memory)
    intent = {"name": "correct", "operation_id": "op-2", "record_id": ID, "expected_revision": 1}
    primary.prepare({**intent, "content": "Replies in Chinese", "sources": [f"{REF}88"]})

    memory.host.bind_primary("s-main-2")
    assert isinstance(primary.commit(memory.operation("op-2").intent), Refused)

    assert value_of(memory) == before
    assert memory.retire(ID, 1, REASON).to_revision == 2


def test_what_is_prepared_by_hand_keeps_the_time_it_was_prepared_at(memory, world):
    memory.prepare({"name": "publish", "operation_id": "op-1", "key": KEY, "content": TEXT})
    intent = memory.operation("op-1").intent

    world.move(hours=1)
    receipt = memory.publish(KEY, TEXT, operation_id="op-1")

    assert receipt.to_revision == 1
    assert value_of(memory) == intent["value"]
    assert value_of(memory)["sources"][0]["occurred_at"] == "2026-10-06T12:00:00Z"
    assert memory.read(ID).decided_at > "2026-10-06T13"


def test_a_named_intent_may_be_finished_with_the_raw_content_and_loses_nothing(memory, primary):
    other = primary.publish("preference/tea", "green", sources=[f"{REF}88"]).record_id
    primary.prepare(proposal(conflicts_with=[other]))

    assert primary.commit(primary.operation("op-1").intent).to_revision == 1

    read = memory.read(ID, include_inactive=True)
    assert [conflict.other_id for conflict in read.conflicts] == [other]
    assert read.key == KEY


def test_a_prepared_forget_takes_its_intent_and_its_sources_with_it(memory, primary):
    primary.publish(KEY, TEXT, sources=[f"{REF}42"])
    forget = {"name": "forget", "operation_id": "op-2", "record_id": ID, "expected_revision": 1}
    memory.prepare({**forget, "with_sources": True})

    assert memory.commit(memory.operation("op-2").intent).status == "forgotten"

    assert memory.remnants("Please answer me in Chinese").remnants == ()
    assert memory.audit.verify().findings == ()


def test_a_forget_takes_every_intent_that_was_ever_prepared_on_the_record(memory, primary):
    primary.prepare(publication())
    assert primary.commit(primary.operation("op-1").intent).to_revision == 1

    assert memory.forget(ID, 1).status == "forgotten"

    assert memory.remnants(TEXT).remnants == ()
    read = memory.operation("op-1")
    assert (read.state, read.intent, read.is_current) == ("committed", None, False)
    late = primary.publish(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1")
    assert late.refusal is Refusal.RECEIPT_SUPERSEDED
    assert memory.audit.verify().findings == ()


def test_a_refusal_before_the_intent_is_durable_leaves_no_trace(memory, primary):
    before = all_rows(memory)

    assert primary.prepare(publication(sources=[f"{REF}999"])).refusal is Refusal.SOURCE_MISSING
    assert primary.prepare({"name": "fly"}).refusal is Refusal.INVALID_REQUEST
    assert primary.prepare({}).refusal is Refusal.INVALID_REQUEST

    assert all_rows(memory) == before


# -- reconcile (G) --------------------------------------------------------------------------------


def test_scenario_53_without_a_receipt_reconcile_aborts_exactly_that_intent(memory, primary):
    primary.prepare(publication())
    tea = primary.prepare(publication("op-2", key="preference/tea", sources=[f"{REF}88"]))

    decided = settle(memory)

    assert isinstance(decided, AbortReceipt)
    assert (decided.operation_id, decided.reason) == ("op-1", REASON)
    assert states(memory) == {"op-1": "aborted", "op-2": "prepared"}
    assert primary.publish(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-3").to_revision == 1
    late = primary.publish(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1")
    assert late.refusal is Refusal.EXECUTION_FENCED
    assert primary.commit(memory.operation("op-2").intent).record_id == tea.record_id
    assert memory.audit.verify().findings == ()


def test_scenario_54_a_committed_receipt_is_kept(memory, primary):
    primary.prepare(publication())
    receipt = primary.commit(primary.operation("op-1").intent)
    before = value_of(memory)

    assert settle(memory) == receipt
    assert settle(memory) == receipt
    assert value_of(memory) == before


@pytest.mark.parametrize(
    "words",
    [
        {"writers_stopped": False},
        {"writers_stopped": None},
        {"writers_stopped": "true"},
        {"writers_stopped": 1},
        {"reason": ""},
        {"reason": " "},
        {"reason": "\u200b\ufeff\u2060"},
        {"reason": None},
    ],
    ids=str,
)
def test_scenario_55_reconcile_needs_stopped_writers_and_a_reason(memory, primary, words):
    primary.prepare(publication())

    assert settle(memory, **words).refusal is Refusal.RECONCILE_REFUSED
    assert states(memory)["op-1"] == "prepared"


def test_scenario_56_no_model_session_reconciles_or_lists_operations(memory, primary, task_7):
    primary.prepare(publication())

    for caller in (primary, task_7, memory.acting_as(ModelSession("main", "x"))):
        assert settle(caller).refusal is Refusal.RECONCILE_REFUSED
        assert caller.operations().refusal is Refusal.RECONCILE_REFUSED
    auditor = memory.acting_as(Auditor())
    assert settle(auditor).refusal is Refusal.RECONCILE_REFUSED
    assert states(auditor)["op-1"] == "prepared"


def test_reconciling_what_does_not_exist_is_not_found(memory):
    before = all_rows(memory)

    assert settle(memory, "op-nowhere").refusal is Refusal.NOT_FOUND
    assert settle(memory, "no id at all").refusal is Refusal.INVALID_REQUEST
    assert settle(memory, reason="x" * 501).refusal is Refusal.LIMIT_EXCEEDED
    assert all_rows(memory) == before


def test_a_conflict_operation_is_settled_by_its_receipt(memory, primary):
    primary.propose(KEY, TEXT, sources=[f"{REF}42"])
    other = primary.publish("preference/tea", "green", sources=[f"{REF}88"]).record_id
    receipt = primary.open_conflict(ID, other, "both?", operation_id="op-3")

    assert settle(memory, "op-3") == receipt


def test_reconcile_may_be_repeated_after_a_crash_at_any_step(opened, memory, primary, world):
    primary.prepare(publication())
    world.steps.clear()
    assert isinstance(settle(memory), AbortReceipt)
    steps = list(world.steps)
    assert len(steps) > 3

    for stopped_at in range(len(steps)):
        operation = f"op-{stopped_at}-again"
        primary.prepare(publication(operation))
        walked = iter(range(len(steps)))

        def crash(_: str, walked=walked, stopped_at=stopped_at) -> None:
            if next(walked, None) == stopped_at:
                raise KeyboardInterrupt

        world.at_step = crash
        with pytest.raises(KeyboardInterrupt):
            settle(memory, operation)
        world.at_step = lambda _: None
        memory = opened()
        first = settle(memory, operation)
        assert isinstance(first, AbortReceipt)
        assert settle(memory, operation) == first
        assert memory.audit.verify().findings == ()
        primary = memory.acting_as(primary.caller)


# -- terms ----------------------------------------------------------------------------------------


def test_a_newer_host_fences_the_older_one_and_openings_of_one_host_share_a_term(opened):
    first, second = opened(host="backend-1"), opened(host="backend-1")
    assert first.remember("one").epoch == second.remember("two").epoch == 1

    newer = opened(host="backend-2")

    assert newer.remember("three").epoch == 2
    for fenced in (first, second):
        before = all_rows(newer)
        assert fenced.remember("four").refusal is Refusal.EXECUTION_FENCED
        assert fenced.host.bind_primary("s-2").refusal is Refusal.EXECUTION_FENCED
        with pytest.raises(RefusedError, match="execution_fenced"):
            fenced.rotate_keys()
        assert all_rows(newer) == before
        assert len(fenced.records()) == 3
    assert opened(host="backend-1").remember("five").epoch == 3
    assert newer.audit.verify().findings == ()


def test_a_late_commit_of_a_fenced_host_loses_and_its_intent_stays_for_recovery(opened, world):
    old = opened(host="backend-1")
    old.prepare({"name": "publish", "operation_id": "op-1", "key": KEY, "content": TEXT})

    new = opened(host="backend-2")
    assert not isinstance(new.host.bind_primary("s-2"), Refused)

    late = old.publish(KEY, TEXT, operation_id="op-1")
    assert late.refusal is Refusal.EXECUTION_FENCED
    assert states(new) == {"op-1": "prepared"}
    assert settle(new).refusal is Refusal.RECONCILE_REFUSED
    assert settle(old).refusal is Refusal.RECONCILE_REFUSED
    world.move(seconds=61)
    assert isinstance(settle(new), AbortReceipt)
    assert old.publish(KEY, TEXT, operation_id="op-1").refusal is Refusal.EXECUTION_FENCED


def test_a_reconcile_raises_the_term_and_the_same_host_goes_on(opened):
    one, other = opened(), opened()
    one.prepare({"name": "publish", "operation_id": "op-1", "key": KEY, "content": TEXT})

    assert settle(other).epoch == 1

    assert one.publish(KEY, TEXT, operation_id="op-1").refusal is Refusal.EXECUTION_FENCED
    assert one.publish(KEY, TEXT, operation_id="op-2").epoch == 1


# -- listing --------------------------------------------------------------------------------------


def test_operations_are_listed_open_ones_first_with_their_ages_and_no_content(memory, world):
    memory.prepare({"name": "publish", "operation_id": "op-open", "key": "a", "content": TEXT})
    world.move(seconds=90)
    memory.remember(TEXT, operation_id="op-done")

    listed = memory.operations()

    assert [(line.operation_id, line.state, line.age_s) for line in listed] == [
        ("op-open", "prepared", 89),
        ("op-done", "committed", 0),
    ]
    assert TEXT not in str(listed)
    assert [line.operation_id for line in memory.operations(state="committed")] == ["op-done"]
    assert [line.operation_id for line in memory.operations(limit=1)] == ["op-open"]
    assert memory.operations(state="aborted") == ()
    assert memory.operations(state="lost").refusal is Refusal.INVALID_REQUEST
    assert memory.operations(limit=0).refusal is Refusal.INVALID_REQUEST


def test_a_long_log_is_listed_backwards_from_its_end(memory):
    for n in range(300):
        memory.remember(f"fact {n}", operation_id=f"op-{n}")

    listed = memory.operations(limit=100)

    assert [line.operation_id for line in listed] == [f"op-{n}" for n in range(299, 199, -1)]


# -- batches --------------------------------------------------------------------------------------


def test_a_batch_decides_in_order_in_one_durable_write_each_with_its_own_answer(memory, world):
    requests = [
        {"name": "publish", "operation_id": "op-1", "key": KEY, "content": TEXT},
        {"name": "publish", "operation_id": "op-2", "key": KEY, "content": "again"},
        {"name": "retire", "operation_id": "op-3", "record_id": ID, "expected_revision": 1,
         "reason": "x"},
        {"name": "publish", "operation_id": "op-4", "key": "b", "content": ""},
    ]  # fmt: skip
    world.steps.clear()

    first, taken, retired, empty = memory.commit_many(requests)

    assert (first.to_revision, retired.to_revision, retired.status) == (1, 2, "retired")
    assert taken.refusal is Refusal.REVISION_CONFLICT
    assert empty.refusal is Refusal.INVALID_REQUEST
    assert world.steps.count("log:commit") == 1
    assert memory.audit.verify().findings == ()


def test_all_or_nothing_answers_the_first_refusal_by_its_place_and_writes_nothing(memory):
    requests = [
        {"name": "publish", "operation_id": f"op-{n}", "key": key, "content": TEXT}
        for n, key in enumerate(("a", "b", "a"))
    ]
    before = all_rows(memory)

    refused = memory.commit_many(requests, all_or_nothing=True)

    assert (refused.refusal, refused.field) == (Refusal.REVISION_CONFLICT, "requests.2.key")
    assert all_rows(memory) == before
    assert len(memory.commit_many(requests[:2], all_or_nothing=True)) == 2


def test_a_batch_is_bounded_and_is_a_list(memory):
    assert memory.commit_many([]).refusal is Refusal.INVALID_REQUEST
    assert memory.commit_many([{}] * 1001).refusal is Refusal.LIMIT_EXCEEDED
    assert memory.commit_many("op").refusal is Refusal.INVALID_REQUEST
    assert memory.commit_many([{}])[0].refusal is Refusal.INVALID_REQUEST


@pytest.mark.parametrize("fault", [StorageFault("gone"), RefusedError(Refused(Refusal.BUSY))])
def test_a_forget_that_is_durable_is_neither_refused_nor_failed_when_its_receipt_cannot_be_read(
    memory, monkeypatch, fault
):
    made = memory.publish(KEY, TEXT)

    def failing(*_: object) -> None:
        raise fault

    monkeypatch.setattr(Forgetting, "reached", failing)
    with pytest.raises(OutcomeUnknown) as unknown:
        memory.forget(made.record_id, 1, operation_id="op-f")
    monkeypatch.undo()

    assert unknown.value.operation_id == "op-f"
    assert memory.operation("op-f").state == "committed"
    assert memory.forget(made.record_id, 1, operation_id="op-f").erased_at is not None


def test_an_unknown_outcome_of_a_batch_names_the_first_operation_that_was_written(opened, memory):
    memory.publish(KEY, TEXT)
    requests = [
        {"name": "publish", "key": KEY, "content": "refused, and without an id"},
        {"name": "publish", "operation_id": "op-1", "key": KEY, "content": "refused"},
        {"name": "publish", "operation_id": "op-2", "key": "a", "content": TEXT},
        {"name": "publish", "operation_id": "op-3", "key": "b", "content": TEXT},
    ]
    FailingCommit(memory)

    with pytest.raises(OutcomeUnknown) as unknown:
        memory.commit_many(requests)

    assert unknown.value.operation_id == "op-2"
    reopened = opened()
    assert reopened.operation("op-1").refusal is Refusal.NOT_FOUND
    assert [reopened.operation(it).state for it in ("op-2", "op-3")] == ["committed"] * 2


def test_an_unknown_outcome_of_one_hosted_request_keeps_the_answers_before_it(
    opened, main, firm, engine
):
    requests = [
        publication(f"op-{n}", key=f"key {n}", sources=[f"{REF}88#{n}-{n + 1}"]) for n in range(3)
    ]
    FailingCommit(main, at=4)  # its first has an intent and an end, and so has the second

    first, second, third = main.commit_many(requests)

    assert (first.operation_id, first.to_revision) == ("op-0", 1)
    assert (second.refusal, second.operation_id) == (Refusal.OUTCOME_UNKNOWN, "op-1")
    assert second.wire()["operation_id"] == "op-1"
    done = {"op-0": "committed", "op-1": "committed"}
    if engine:  # the next connection to a server is a good one
        assert (third.operation_id, third.to_revision) == ("op-2", 1)
        done["op-2"] = "committed"
    else:  # a file that failed is written again once it was opened again
        assert third.refusal is Refusal.SERVICE_UNAVAILABLE
    assert states(opened(ports=firm.ports)) == done


def test_commit_takes_what_prepare_and_commit_many_take(memory):
    named = {"name": "publish", "operation_id": "op-1", "key": KEY, "content": TEXT}
    memory.prepare(named)

    receipt = memory.commit(named)

    assert receipt.to_revision == 1
    assert memory.commit_many([named]) == (receipt.model_copy(update={"replayed": True}),)


def test_a_batch_may_hold_a_forget_whose_keys_are_gone_when_it_answers(memory):
    kept = memory.remember(TEXT).record_id
    keys = memory.status().keys

    batch = [{"name": "forget", "operation_id": "op-2", "record_id": kept, "expected_revision": 1}]
    (forgotten,) = memory.commit_many(batch)

    assert forgotten.status == "forgotten"
    assert memory.status().keys == keys - 1


# -- hosts that own their guards ------------------------------------------------------------------


@pytest.fixture
def firm() -> Company:
    return company()


@pytest.fixture
def hosted(opened: Callable[..., Memory], firm: Company) -> Memory:
    return opened(ports=firm.ports)


@pytest.fixture
def main(hosted: Memory) -> Memory:
    return hosted.acting_as(ModelSession("s-main-1", "agent-main"))


@pytest.fixture
def item(hosted: Memory) -> Memory:
    return hosted.acting_as(BackgroundItem("task-7", 1, "s-bg-7", "agent-bg", "ea-1"))


def test_a_host_with_its_own_guards_commits_under_their_protection(hosted, item, main, firm):
    proposed = item.propose(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1")

    assert proposed.to_revision == 1
    assert proposed.intent_digest != proposed.record_digest
    assert [provider.held for provider in firm.all] == [0, 0, 0]
    evidence = main.evidence(ID)
    assert evidence.sources[0].span_text.startswith("Please answer")
    assert main.accept(ID, 1).status == "accepted"
    assert main.correct(ID, 2, "Chinese, please", sources=[f"{REF}88"]).to_revision == 3
    assert hosted.forget(ID, 3).status == "forgotten"
    assert hosted.audit.verify().findings == ()
    assert states(hosted) == dict.fromkeys(states(hosted), "committed")


def test_protections_are_held_through_the_append_and_never_asked_for_inside_the_lock(
    hosted, item, firm, world
):
    at_append = []

    def look(step: str) -> None:
        if step == "log:commit":
            at_append.append([provider.held for provider in firm.all])

    world.at_step = look
    log = hosted._parts.log
    for provider in firm.all:
        provider.before = lambda: at_append.append(log._lock._held)
    item.propose(KEY, TEXT, sources=[f"{REF}42"])

    assert at_append == [None, None, None, [1, 1, 1], None, None, None, [1, 1, 1]]


@pytest.mark.parametrize("name", ["conversations", "tasks", "authorizations"])
def test_scenario_46_a_provider_that_fails_is_named_before_and_after_the_intent_is_durable(
    hosted, item, firm, world, name
):
    provider = getattr(firm.ports, name)
    rows = all_rows(hosted)

    def fail() -> None:
        raise OSError("the network is down, said Alice")

    provider.before = fail
    early = item.propose(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1")
    assert (early.refusal, early.field) == (Refusal.SERVICE_UNAVAILABLE, name)
    assert "Alice" not in str(early.wire())
    assert all_rows(hosted) == rows

    provider.before = lambda: None
    world.at_step = lambda step: (
        setattr(provider, "before", fail) if step == "commit:prepared" else None
    )
    late = item.propose(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1")
    assert (late.refusal, late.field) == (Refusal.OUTCOME_UNKNOWN, name)
    assert states(hosted) == {"op-1": "prepared"}
    world.at_step = lambda _: None
    provider.before = lambda: None
    assert item.propose(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1").to_revision == 1


def test_a_log_closed_under_a_prepared_commit_leaves_the_outcome_unknown(
    opened, hosted, main, world
):
    world.at_step = lambda step: hosted._parts.log.close() if step == "commit:prepared" else None

    answer = main.publish(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1")

    assert answer.refusal is Refusal.OUTCOME_UNKNOWN
    assert states(opened()) == {"op-1": "prepared"}


def test_a_provider_that_does_not_answer_in_time_is_given_up_and_released_when_it_does(
    item, firm, monkeypatch
):
    monkeypatch.setattr("memoranda.ledger.commit_protocol.PROTECT_WITHIN_S", 0.05)
    with firm.tasks.lock:
        answer = item.propose(KEY, TEXT, sources=[f"{REF}42"])

    assert (answer.refusal, answer.field) == (Refusal.SERVICE_UNAVAILABLE, "tasks")
    assert [provider.held for provider in firm.all] == [0, 0, 0]


def test_a_provider_that_gives_up_waiting_by_itself_has_failed(item, firm):
    def give_up() -> None:
        raise TimeoutError("its own")

    firm.tasks.before = give_up

    answer = item.propose(KEY, TEXT, sources=[f"{REF}42"])

    assert (answer.refusal, answer.field) == (Refusal.SERVICE_UNAVAILABLE, "tasks")


@pytest.mark.parametrize(
    "lose",
    [
        lambda firm: firm.tasks.lose({"task-7": firm.tasks.state["task-7"]}),
        lambda firm: firm.leaves.lose({}),
        lambda firm: firm.chats.lose(firm.chats.state),
    ],
    ids=["tasks", "authorizations", "conversations"],
)
def test_a_protection_lost_under_way_is_a_fence(hosted, item, firm, world, lose):
    world.at_step = lambda step: lose(firm) if step == "commit:protected" else None

    answer = item.propose(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1")

    assert answer.refusal is Refusal.EXECUTION_FENCED
    assert states(hosted) == {"op-1": "aborted"}


@pytest.mark.parametrize(
    "changes",
    [
        (
            lambda firm: firm.tasks.change(
                {"task-7": changed(firm.tasks.state["task-7"], stopped=True)}
            ),
            Refusal.EXECUTION_FENCED,
        ),
        (lambda firm: firm.tasks.change({}), Refusal.NOT_AUTHORIZED),
        (lambda firm: firm.leaves.change({}), Refusal.AUTHORIZATION_REQUIRED),
        (
            lambda firm: firm.leaves.change(
                {"ea-1": changed(firm.leaves.state["ea-1"], guard_capable=False)}
            ),
            Refusal.REAUTHORIZATION_REQUIRED,
        ),
        (
            lambda firm: firm.chats.change((firm.chats.state[0], {})),
            Refusal.SOURCE_MISSING,
        ),
    ],
    ids=["stopped", "gone", "no leave", "no guard", "message gone"],
)
def test_what_a_provider_changes_between_the_intent_and_its_protection_decides(
    hosted, item, firm, world, changes
):
    change, refusal = changes
    world.at_step = lambda step: change(firm) if step == "commit:prepared" else None

    answer = item.propose(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1")

    assert answer.refusal is refusal
    assert states(hosted) == {"op-1": "aborted"}
    assert hosted.read(ID, include_inactive=True).refusal is Refusal.NOT_FOUND


def changed(state: Task | Authorization | Binding, **change: object) -> object:
    return state.model_copy(update=change)


def test_a_rebind_at_the_provider_is_seen_by_the_next_read_and_write(hosted, main, firm):
    assert main.publish(KEY, TEXT, sources=[f"{REF}42"]).to_revision == 1
    other = hosted.acting_as(ModelSession("s-main-2", "agent-main"))
    assert other.read(ID).refusal is Refusal.NOT_AUTHORIZED

    binding, messages = firm.chats.state
    firm.chats.change((changed(binding, session_id="s-main-2"), messages))

    assert main.read(ID).refusal is Refusal.NOT_AUTHORIZED
    assert main.retire(ID, 1, "x").refusal is Refusal.NOT_AUTHORIZED
    assert other.read(ID).record.revision == 1
    assert other.retire(ID, 1, "x").to_revision == 2


def test_scenario_57_another_data_set_is_refused_and_the_intent_stays(opened, main, firm):
    assert main.publish("preference/tea", "green", sources=[f"{REF}88"]).to_revision == 1
    main.prepare(publication())
    strange = dataclasses.replace(firm.chats, data_set="chats-2", lock=firm.tasks.lock)
    other = opened(ports=dataclasses.replace(firm.ports, conversations=strange))

    late = other.acting_as(main.caller).publish(
        KEY, TEXT, sources=[f"{REF}42"], operation_id="op-0"
    )

    assert late.refusal is Refusal.OUTCOME_UNKNOWN
    elsewhere = other.acting_as(main.caller).retire(
        "mem_8bd9f7914096218ac8597c1a948899a2c12f19c2710f4adb7d998585c9c0de6a", 1, "x"
    )
    assert elsewhere.refusal is Refusal.BINDING_MISMATCH
    assert settle(other).refusal is Refusal.BINDING_MISMATCH
    assert states(other)["op-1"] == "prepared"
    embedded = opened()
    assert embedded.host.bind_primary("s-main-1").refusal is Refusal.BINDING_MISMATCH
    assert embedded.host.stop_task("task-7").refusal is Refusal.BINDING_MISMATCH
    assert embedded.host.revoke("ea-1").refusal is Refusal.BINDING_MISMATCH
    assert isinstance(settle(embedded), AbortReceipt)


def test_a_space_that_binds_by_itself_is_handed_to_providers_by_the_person_only(
    opened, memory, primary, firm
):
    primary.publish("preference/tea", "green", sources=[f"{REF}88"])
    before = all_rows(memory)
    other = opened(ports=firm.ports)

    for session in ("s-main-1", "s-evil"):
        stranger = other.acting_as(ModelSession(session, "x"))
        said = stranger.publish(KEY, TEXT, sources=[f"{REF}42"])
        assert said.refusal in {Refusal.BINDING_MISMATCH, Refusal.NOT_AUTHORIZED}
    assert other.host.stop_task("task-7").refusal is Refusal.BINDING_MISMATCH
    assert all_rows(memory) == before
    assert primary.read("mem_8bd9f7914096218ac8597c1a948899a2c12f19c2710f4adb7d998585c9c0de6a")

    assert not isinstance(other.host.bind_primary("s-main-1"), Refused)
    main = other.acting_as(ModelSession("s-main-1", "agent-main"))
    assert main.publish(KEY, TEXT, sources=[f"{REF}42"]).to_revision == 1
    assert opened().host.bind_primary("s-main-1").refusal is Refusal.BINDING_MISMATCH
    assert other.audit.verify().findings == ()


def test_a_host_may_own_only_some_of_its_guards(opened, firm):
    person = opened(ports=Ports(authorizations=firm.leaves))
    assert not isinstance(person.host.bind_primary("s-main-1"), Refused)
    said = {"session": "s-main-1", "seq": 42, "role": "user", "text": "Chinese, please"}
    assert all(hasattr(it, "ref") for it in person.capture([said]))
    person.host.open_task(item_id="task-7", captured_ref=f"{REF}42")
    item = person.acting_as(BackgroundItem("task-7", 1, "s-bg-7", "agent-bg", "ea-1"))

    assert item.propose(KEY, TEXT, sources=[f"{REF}42"]).to_revision == 1
    assert person.acting_as(ModelSession("s-main-1", "a")).accept(ID, 1).status == "accepted"
    assert not isinstance(person.host.bind_primary("s-main-2"), Refused)
    firm.leaves.change({})
    refused = item.propose("preference/tea", "x", sources=[f"{REF}42#0-3"])
    assert refused.refusal is Refusal.AUTHORIZATION_REQUIRED
    assert person.audit.verify().findings == ()


def test_a_batch_of_a_host_with_its_own_guards_is_never_all_or_nothing(hosted, main):
    requests = [publication(), publication("op-2", key="preference/tea", sources=[f"{REF}88"])]

    assert main.commit_many(requests, all_or_nothing=True).field == "all_or_nothing"
    assert states(hosted) == {}
    assert [answer.to_revision for answer in main.commit_many(requests)] == [1, 1]


def test_a_provider_that_contradicts_a_captured_message_is_named(hosted, item):
    said = {"session": "s-main-1", "seq": 42, "role": "user", "text": "Something else"}
    assert all(hasattr(it, "ref") for it in hosted.capture([said]))

    answer = item.propose(KEY, TEXT, sources=[f"{REF}42"])

    assert (answer.refusal, answer.field) == (Refusal.SERVICE_UNAVAILABLE, "conversations")
    assert states(hosted) == {}


def test_a_provider_that_fails_inside_the_lock_is_named_and_the_intent_stays(item, firm, world):
    def fail() -> int:
        raise OSError

    world.at_step = lambda step: (
        setattr(firm.tasks, "fence", fail) if step == "commit:protected" else None
    )

    answer = item.propose(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1")

    assert (answer.refusal, answer.field) == (Refusal.OUTCOME_UNKNOWN, "tasks")


VERBS: dict[str, Callable[[Memory], object]] = {
    "remember": lambda memory: memory.remember(TEXT),
    "prepare": lambda memory: memory.prepare(publication()),
    "commit": lambda memory: memory.commit(publication()),
    "commit many": lambda memory: memory.commit_many([publication()]),
    "reconcile": settle,
    "migrate": lambda memory: memory.migrate(__file__),
    "bind": lambda memory: memory.host.bind_primary("s-other"),
    "capture": lambda memory: next(iter(memory.capture([CAPTURED]))),
    "read": lambda memory: memory.read(ID),
    "revisions": lambda memory: memory.revisions(ID),
    "evidence": lambda memory: memory.evidence(ID),
    "operation": lambda memory: memory.operation("op-1"),
    "operations": lambda memory: memory.operations(),
    "records": lambda memory: memory.records(),
    "search": lambda memory: memory.search("tea"),
    "query": lambda memory: memory.query(),
    "recall": lambda memory: memory.recall("tea"),
    "falling": lambda memory: memory.falling(everything=True),
    "remnants": lambda memory: memory.remnants("tea"),
    "release held": lambda memory: memory.release_held(),
    "status": lambda memory: memory.status(),
    "audit": lambda memory: memory.audit.verify(),
    "rebuild": lambda memory: memory.rebuild(),
    "data set": lambda memory: memory.data_set,
    "undisturbed": lambda memory: memory.undisturbed().__enter__(),
}
CAPTURED = {"session": "s-main-1", "seq": 90, "role": "user", "text": "x"}


@pytest.mark.parametrize("is_hosted", [False, True], ids=["embedded", "hosted"])
def test_a_closed_ledger_has_one_answer(opened, firm, is_hosted):
    memory = opened(ports=firm.ports) if is_hosted else opened()
    memory.close()

    def answer_of(verb: Callable[[Memory], object]) -> object:
        try:
            answer = verb(memory)
        except RefusedError as error:
            answer = error.refused
        return answer[0] if isinstance(answer, tuple) else answer

    assert {name: answer_of(verb) for name, verb in VERBS.items()} == dict.fromkeys(VERBS, CLOSED)


def test_a_conflict_too_rests_on_the_data_sets_that_the_space_was_bound_by(opened, main, item):
    item.propose(KEY, TEXT, sources=[f"{REF}42"])
    other = main.publish("preference/tea", "green", sources=[f"{REF}88"]).record_id
    embedded = opened()

    for caller in (main.caller, item.caller):
        answer = embedded.acting_as(caller).open_conflict(ID, other, "both?")
        assert answer.refusal is Refusal.BINDING_MISMATCH
    assert embedded.open_conflict(ID, other, "both?").state == "open"


def test_a_fenced_host_with_providers_refuses_a_whole_batch_and_knows_that_it_did(opened, firm):
    old = opened(host="backend-1", ports=firm.ports)
    old.remember("by the old one")
    opened(host="backend-2").remember("by the new one")

    (answer,) = old.commit_many([publication()])

    assert answer.refusal is Refusal.EXECUTION_FENCED


def test_a_read_copies_nothing_that_changed_while_it_asked(hosted, item, firm):
    before = all_rows(hosted)
    stopped = {"task-7": changed(firm.tasks.state["task-7"], stopped=True)}
    firm.leaves.before = lambda: firm.tasks.lose(stopped)
    assert item.records().refusal is Refusal.NOT_AUTHORIZED
    assert all_rows(hosted) == before

    firm.leaves.before = lambda: None
    assert item.records() == ()
    assert len(all_rows(hosted)) == len(before) + 3


# -- what outsiders have found --------------------------------------------------------------------


def test_a_stranger_data_set_binds_nobody_by_a_read(opened, main, firm):
    assert main.publish(KEY, TEXT, sources=[f"{REF}42"]).to_revision == 1
    stranger = Chats("chats-2", (Binding(binding_id="b-2", session_id="s-evil"), {}))
    other = opened(ports=dataclasses.replace(firm.ports, conversations=stranger))
    before = all_rows(other)

    evil = other.acting_as(ModelSession("s-evil", "x"))

    assert evil.records().refusal is Refusal.NOT_AUTHORIZED
    assert evil.recall("Chinese").refusal is Refusal.NOT_AUTHORIZED
    assert all_rows(other) == before
    assert len(main.records()) == 1


@pytest.mark.parametrize("name", ["conversations", "tasks", "authorizations"])
@pytest.mark.parametrize(
    "answer",
    [
        None,
        "yes",
        Protected(None, None),
        Protected("a task", 1),
        Protected(None, bool(1)),
        Protected(None, 2**63),
        Protected({"item_id": "task-7"}, 1),
        Protected(Task(item_id="task-9", requirement_revision=1, captured_ref=f"{REF}42"), 1),
    ],
    ids=[
        "none",
        "text",
        "no token",
        "a text for a state",
        "a yes for a number",
        "a long number",
        "a dict",
        "another item",
    ],
)
def test_a_provider_that_answers_what_it_cannot_mean_is_named(hosted, item, firm, name, answer):
    @contextmanager
    def protect(_names: object, _within_s: float) -> Iterator[object]:
        yield answer

    assert item.propose(KEY, TEXT, sources=[f"{REF}42#0-3"]).to_revision == 1
    getattr(firm.ports, name).protect = protect
    before = all_rows(hosted)

    refused = item.propose("preference/tea", "x", sources=[f"{REF}42#4-9"])

    assert (refused.refusal, refused.field) == (Refusal.SERVICE_UNAVAILABLE, name)
    assert all_rows(hosted) == before


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"occurred_at": "yesterday"}, Refusal.SERVICE_UNAVAILABLE),
        ({"occurred_at": "2026-10-05T09:00:00.1000Z"}, Refusal.SERVICE_UNAVAILABLE),
        ({"text": "\ud800"}, Refusal.SERVICE_UNAVAILABLE),
        ({"text": "x" * 262_145}, Refusal.SERVICE_UNAVAILABLE),
        ({"seq": 43}, Refusal.SERVICE_UNAVAILABLE),
        ({"session_id": "other"}, Refusal.SERVICE_UNAVAILABLE),
        ({"text": "my key is AKIA" + "IOSFODNN7EXAMPLQ"}, Refusal.SECRET_DETECTED),
    ],
    ids=["no time", "long time", "surrogate", "too long", "other seq", "other session", "secret"],
)
def test_a_message_of_a_provider_passes_the_same_door_as_a_captured_one(
    hosted, item, firm, change, refusal
):
    binding, messages = firm.chats.state
    said = messages[f"{REF}42"].model_copy(update=change)
    firm.chats.change((binding, {f"{REF}42": said}))
    before = all_rows(hosted)

    assert item.propose(KEY, TEXT, sources=[f"{REF}42"]).refusal is refusal
    assert all_rows(hosted) == before


@pytest.mark.parametrize(
    "there_and_back",
    [
        lambda host: (
            host.stop_task("task-7"),
            host.open_task(item_id="task-7", captured_ref=f"{REF}42"),
        ),
        lambda host: (
            host.open_task(item_id="task-7", requirement_revision=2, captured_ref=f"{REF}42"),
            host.open_task(item_id="task-7", captured_ref=f"{REF}42"),
        ),
        lambda host: (host.bind_primary("s-main-2"), host.bind_primary("s-main-1")),
    ],
    ids=["stopped", "another requirement", "bound elsewhere"],
)
def test_an_intent_does_not_outlive_a_fence_that_was_put_back(memory, task_7, there_and_back):
    task_7.prepare(proposal())
    intent = task_7.operation("op-1").intent

    there_and_back(memory.host)

    assert task_7.commit(intent).refusal is Refusal.EXECUTION_FENCED
    assert states(memory)["op-1"] == "aborted"


def test_evidence_asks_the_provider_what_has_become_of_a_message(hosted, item, main, firm):
    item.propose(KEY, TEXT, sources=[f"{REF}42"])
    binding, messages = firm.chats.state
    assert main.evidence(ID).sources[0].code is None

    hidden = messages[f"{REF}42"].model_copy(update={"hidden": True})
    firm.chats.change((binding, {**messages, f"{REF}42": hidden}))
    assert main.evidence(ID).sources[0].code == "source_rejected"
    firm.chats.change((binding, {}))
    assert hosted.evidence(ID).sources[0].code == "source_rejected"


def test_a_provider_that_has_nobody_bound_ends_the_reads_of_who_was(hosted, item, main, firm):
    item.propose(KEY, TEXT, sources=[f"{REF}42"])
    assert main.candidates() != ()

    firm.chats.change((None, firm.chats.state[1]))

    assert main.candidates().refusal is Refusal.NOT_AUTHORIZED
    with pytest.raises(RefusedError, match="invalid_request"):
        hosted.acting_as(ModelSession("", "x"))


def test_a_clock_that_once_ran_ahead_does_not_bar_reconcile_for_ever(opened, world):
    old = opened(host="a")
    world.move(days=3650)
    old.remember("written by a clock that ran ahead")
    world.move(days=-3650)
    old.prepare({"name": "publish", "operation_id": "op-1", "key": KEY, "content": TEXT})
    new = opened(host="b")
    new.remember("with this append it attaches")
    assert settle(new).refusal is Refusal.RECONCILE_REFUSED

    world.move(seconds=61)

    assert isinstance(settle(new), AbortReceipt)


def test_a_refused_reconcile_writes_nothing_beside_a_live_host_whose_clock_runs_ahead(
    opened, world
):
    world.move(days=3650)
    ahead = opened(host="a")
    ahead.prepare({"name": "publish", "operation_id": "op-1", "key": KEY, "content": TEXT})
    world.move(days=-3650)
    before = all_rows(ahead)

    answer = settle(opened(host="b"))

    assert (answer.refusal, "runs ahead" in answer.message) == (Refusal.RECONCILE_REFUSED, True)
    assert all_rows(ahead) == before
    assert ahead.remember("it lives").to_revision == 1


def test_a_clock_that_was_set_back_after_a_takeover_bars_no_reconcile(opened, world):
    world.move(days=3650)
    old = opened(host="a")
    old.prepare({"name": "publish", "operation_id": "op-1", "key": KEY, "content": TEXT})
    opened(host="b").remember("attached by a clock that ran ahead")
    world.move(days=-3650)

    assert isinstance(settle(opened(host="b")), AbortReceipt)

    assert old.remember("late").refusal is Refusal.EXECUTION_FENCED
    assert old.audit.verify().findings == ()


def test_the_host_that_made_the_space_is_no_other_host_to_itself(opened):
    maker = opened(host="a")
    maker.prepare({"name": "publish", "operation_id": "op-1", "key": KEY, "content": TEXT})

    assert isinstance(settle(maker), AbortReceipt)
    assert settle(opened(host="b")).refusal is Refusal.RECONCILE_REFUSED


READS: dict[str, Callable[[Memory], object]] = {
    "records": lambda memory: memory.records(),
    "query": lambda memory: memory.query(include_inactive=True),
    "recall": lambda memory: memory.recall("tea"),
    "search": lambda memory: memory.search("tea"),
    "operations": lambda memory: memory.operations(),
    "status": lambda memory: memory.status(),
    "audit": lambda memory: memory.audit.verify(),
    "falling": lambda memory: memory.falling(everything=True),
    "a refused write": lambda memory: memory.retire(ID, 1, "no such record"),
    "a refused reconcile": lambda memory: settle(memory, "op-open"),
    "closing": lambda memory: memory.close(),
}


IDLE_S = 7200
"""Long past the minute, and past the window of what is held."""


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("idle_s", [0, IDLE_S], ids=["at once", "long after"])
def test_what_appends_nothing_fences_no_live_host(opened, world, idle_s, read):
    backend = opened(host="backend-1", forget_window_hours=1)
    backend.host.bind_primary("s-main-1")
    backend.prepare({"name": "publish", "operation_id": "op-open", "key": "a", "content": TEXT})
    held = backend.remember("held for an hour")
    backend.acting_as(ModelSession("s-main-1", "agent-main")).forget(held.record_id, 1)
    for kept in [backend.remember(f"tea {n}") for n in range(3)]:
        backend.forget(kept.record_id, 1)
    assert backend._parts.forgetting.is_owed
    before = all_rows(backend)
    world.move(seconds=idle_s)

    if not idle_s or read is not READS["a refused reconcile"]:
        read(opened(host="auditor"))

    assert all_rows(backend) == before
    assert backend.remember("as before").to_revision == 1
    backend.finish_forgets()
    world.move(minutes=10)  # a second reading of the clock
    assert (backend.finish_forgets() == ()) is bool(idle_s)


def test_a_host_attaches_with_its_first_append_and_in_the_same_write(opened, world):
    backend = opened(host="backend-1")
    backend.remember("one")
    auditor = opened(host="auditor")
    position = auditor.status().position
    world.steps.clear()

    receipt = auditor.remember("two")

    assert (receipt.position, receipt.epoch) == (position + 2, 2)
    assert world.steps.count("log:commit") == 1
    assert backend.remember("three").refusal is Refusal.EXECUTION_FENCED
    assert auditor.audit.verify().findings == ()


def test_a_first_append_that_fails_attaches_nobody(opened, world):
    backend = opened(host="backend-1")
    backend.remember("one")
    auditor = opened(host="auditor")

    def fail(step: str) -> None:
        if step == "log:commit":
            raise StorageFault("the disk is full")

    world.at_step = fail
    with pytest.raises(StorageFault):
        auditor.remember("two")
    world.at_step = lambda _: None

    assert backend.remember("three").epoch == 1
    assert auditor.remember("four").epoch == 2
    assert backend.remember("five").refusal is Refusal.EXECUTION_FENCED


def test_what_a_dead_host_owes_is_removed_by_the_next_opening_and_said_by_the_next_write(
    opened, world
):
    old = opened(host="backend-1")
    kept = old.remember(TEXT)

    def stop(step: str) -> None:
        if step == "forget:appended":
            raise KeyboardInterrupt

    world.at_step = stop
    with pytest.raises(KeyboardInterrupt):
        old.forget(kept.record_id, 1)
    world.at_step = lambda _: None
    owed = old.status()

    reader = opened(host="auditor")

    assert reader.status() == owed.model_copy(update={"keys": owed.keys - 1})
    reader.remember("with this write it attaches")
    assert reader.status().key_epoch > owed.key_epoch
    assert not reader._parts.forgetting.is_owed
    assert reader.audit.verify().findings == ()


def test_a_resumed_intent_is_not_fenced_by_the_term_that_its_resumption_takes(opened, firm):
    old = opened(host="backend-1", ports=firm.ports).acting_as(ModelSession("s-main-1", "a"))
    old.prepare(publication())

    new = opened(host="backend-2", ports=firm.ports).acting_as(old.caller)

    assert new.commit(old.operation("op-1").intent).to_revision == 1
    assert new.audit.verify().findings == ()


def test_an_opening_that_was_fenced_stays_so_when_its_host_comes_back(opened):
    old = opened(host="a")
    old.remember("before")
    opened(host="b").remember("between")
    new = opened(host="a")

    assert new.remember("by the new one").epoch == 3
    assert old.remember("by the old one").refusal is Refusal.EXECUTION_FENCED
    with pytest.raises(RefusedError, match="execution_fenced"):
        renewed(old)


def test_a_reason_of_reconcile_holds_no_secret_and_falls_with_its_record(memory, primary):
    primary.publish(KEY, TEXT, sources=[f"{REF}42"])
    change = {"name": "correct", "operation_id": "op-2", "record_id": ID, "expected_revision": 1}
    primary.prepare({**change, "content": "Chinese", "sources": [f"{REF}88"]})
    secret = "the key was AKIA" + "IOSFODNN7EXAMPLQ"
    assert settle(memory, "op-2", reason=secret).refusal is Refusal.SECRET_DETECTED

    assert settle(memory, "op-2", reason=f"it said: {TEXT}").reason.endswith(TEXT)
    assert memory.forget(ID, 1).status == "forgotten"

    assert memory.remnants(TEXT).remnants == ()
    read = memory.operation("op-2")
    assert (read.state, read.receipt.refusal) == ("aborted", "execution_fenced")
    assert memory.operations()[0].state in {"committed", "aborted"}
    assert settle(memory, "op-2").outcome == "aborted"
    assert memory.audit.verify().findings == ()


def test_an_intent_that_another_agent_sends_again_is_not_ended_by_it(memory, primary):
    primary.prepare(publication())
    intent = primary.operation("op-1").intent
    other = memory.acting_as(ModelSession("s-main-1", "agent-other"))

    assert other.commit(intent).refusal is Refusal.OPERATION_CONFLICT

    assert states(memory)["op-1"] == "prepared"
    assert primary.commit(intent).to_revision == 1


def test_what_is_no_request_at_all_is_refused_as_one(memory):
    for request in (None, 5, "op", []):
        assert memory.prepare(request).refusal is Refusal.INVALID_REQUEST
        assert memory.commit(request).refusal is Refusal.INVALID_REQUEST


def stopped(firm: Company) -> None:
    task = firm.tasks.state["task-7"]
    firm.tasks.change({"task-7": changed(task, stopped=True)})


def revoked(firm: Company) -> None:
    firm.leaves.change({"ea-1": changed(firm.leaves.state["ea-1"], revoked=True)})


def asked_otherwise(firm: Company) -> None:
    task = firm.tasks.state["task-7"]
    firm.tasks.change({"task-7": changed(task, requirement_revision=2)})


def put_back(firm: Company) -> None:
    was = company()
    for provider, before in zip(firm.all, was.all, strict=True):
        if provider.state != before.state:
            provider.change(before.state)


@pytest.mark.parametrize("fence", [stopped, revoked, asked_otherwise])
@pytest.mark.parametrize("by", ["its number", "the log"])
def test_an_intent_of_a_host_with_providers_outlives_no_fence_that_was_put_back(
    hosted, item, firm, fence, by
):
    item.prepare(proposal())

    fence(firm)
    if by == "the log":
        item.records()
    put_back(firm)
    if by == "the log":
        item.records()
        for provider in firm.all:
            provider.token = 1

    assert item.commit(item.operation("op-1").intent).refusal is Refusal.EXECUTION_FENCED
    assert states(hosted) == {"op-1": "aborted"}
    assert hosted.audit.verify().findings == ()


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "unseen"])
@pytest.mark.parametrize("again", ["b-3", "b-1"], ids=["as another", "as before"])
@pytest.mark.parametrize("is_anyone", [True, False], ids=["another", "nobody"])
def test_an_intent_outlives_no_rebind_at_the_provider_that_was_put_back(
    hosted, main, firm, is_seen, again, is_anyone
):
    main.prepare(publication())
    binding, messages = firm.chats.state
    other = changed(binding, binding_id="b-2", session_id="s-main-2") if is_anyone else None

    firm.chats.change((other, messages))
    if is_seen:
        assert main.records().refusal is Refusal.NOT_AUTHORIZED
    firm.chats.change((changed(binding, binding_id=again), messages))

    assert main.commit(hosted.operation("op-1").intent).refusal is Refusal.EXECUTION_FENCED
    assert states(hosted) == {"op-1": "aborted"}


def test_an_intent_outlives_what_fences_nobody(item, main, firm):
    """A conversation goes on; and a provider may count by name, so that others fence nobody."""
    firm.tasks.fence = lambda names: len([name for name in names if name != "task-7"])
    firm.tasks.token = 0
    item.prepare(proposal())
    main.prepare(publication("op-2", key="preference/tea", sources=[f"{REF}88"]))

    firm.chats.change(firm.chats.state)
    firm.tasks.state |= {"task-8": changed(firm.tasks.state["task-7"], item_id="task-8")}
    item.records()

    assert item.commit(item.operation("op-1").intent).to_revision == 1
    assert main.commit(main.operation("op-2").intent).to_revision == 1


def test_the_names_of_data_are_asked_for_once_as_the_ledger_is_opened(opened, firm):
    class Named(Chats):
        times = 0

        @property
        def data_set(self) -> str:
            Named.times += 1
            if Named.times > 1:
                raise OSError("the network is down, said Alice")
            return "chats-1"

        @data_set.setter
        def data_set(self, _: str) -> None: ...

    chats = Named("", firm.chats.state)
    hosted = opened(ports=dataclasses.replace(firm.ports, conversations=chats))
    main = hosted.acting_as(ModelSession("s-main-1", "agent-main"))

    assert main.publish(KEY, TEXT, sources=[f"{REF}42"]).to_revision == 1
    assert main.forget(ID, 1).status == "forgotten"
    with pytest.raises(RefusedError, match="service_unavailable") as refused:
        opened(ports=dataclasses.replace(firm.ports, conversations=chats))
    assert refused.value.refused.field == "conversations"
    assert "Alice" not in str(refused.value)


@pytest.mark.parametrize("name", [None, 5, "", "\ud800", "x" * 257], ids=repr)
def test_data_without_a_name_that_can_be_kept_open_no_ledger(opened, folder, firm, name):
    firm.tasks.data_set = name

    with pytest.raises(RefusedError, match="service_unavailable") as refused:
        opened(ports=firm.ports)

    assert refused.value.refused.field == "tasks"
    assert not folder["data"].exists()


def test_a_provider_that_counts_as_false_is_one_still(opened, firm):
    class Empty(Provider):
        def __len__(self) -> int:
            return 0

    ports = dataclasses.replace(firm.ports, tasks=Empty("jobs-1", firm.tasks.state))
    item = BackgroundItem("task-7", 1, "s-bg-7", "agent-bg", "ea-1")
    assert opened(ports=ports).acting_as(item).propose(KEY, TEXT, sources=[f"{REF}42"])

    assert opened(ports=firm.ports).acting_as(item).records() == ()
    strange = dataclasses.replace(ports, tasks=Empty("jobs-2", firm.tasks.state))
    late = opened(ports=strange).acting_as(item).revise(ID, 1, content="other")
    assert late.refusal is Refusal.BINDING_MISMATCH


LONG = "b" * 9_000_000


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        ({}, None),
        ({}, [f"{REF}42"]),
        ({}, 5),
        ({}, [[1]]),
        ({}, {f"{REF}42": 5}),
        ({"binding_id": LONG}, {f"{REF}42": None}),
        ({"binding_id": "\ud800"}, {f"{REF}42": None}),
        ({"session_id": ""}, {f"{REF}42": None}),
        ({"session_id": 5}, {f"{REF}42": None}),
    ],
    ids=[
        "none", "addresses", "a number", "lists", "no message", "too long", "surrogate", "empty",
        "no text",
    ],
)  # fmt: skip
def test_a_conversation_that_cannot_be_one_is_refused_by_every_verb(
    hosted, main, firm, change, messages
):
    binding, _ = firm.chats.state
    firm.chats.shown = lambda _: Conversation(changed(binding, **change), messages, 0)
    before = all_rows(hosted)

    for answer in (
        main.publish(KEY, TEXT, sources=[f"{REF}42"]),
        main.propose(KEY, TEXT, sources=[f"{REF}42"]),
        hosted.publish(KEY, TEXT, sources=[f"{REF}42"]),
    ):
        assert (answer.refusal, answer.field) == (Refusal.SERVICE_UNAVAILABLE, "conversations")
    assert all_rows(hosted) == before
    # A read asks for no message: it takes in who is bound, if that can be.
    assert isinstance(main.recall("Chinese"), Refused) is bool(change)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tasks", {"requirement_revision": 2**53}),
        ("tasks", {"requirement_revision": True}),
        ("tasks", {"captured_ref": "garbage"}),
        ("tasks", {"stopped": 0}),
        ("leaves", {"executor_session_id": LONG}),
        ("leaves", {"guard_capable": "yes"}),
        ("leaves", {"revoked": None}),
    ],
    ids=str,
)
def test_a_state_of_a_provider_keeps_the_limits_of_a_host(hosted, item, firm, name, change):
    provider = getattr(firm, name)
    provider.state = {named: changed(state, **change) for named, state in provider.state.items()}
    before = all_rows(hosted)

    refused = item.propose(KEY, TEXT, sources=[f"{REF}42"])

    assert refused.refusal is Refusal.SERVICE_UNAVAILABLE
    assert not isinstance(item.records(), tuple)
    assert all_rows(hosted) == before


@pytest.mark.parametrize("later", ["ghp_" + "0123456789abcdefghijABCDEFGHIJ012345", 5, None])
def test_what_a_provider_answers_is_looked_at_once(hosted, main, firm, later):
    class Live(dict):
        looks = 0

        def __getitem__(self, name: str) -> object:
            self.looks += 1
            first = super().__getitem__(name)
            if self.looks == 1:
                return first
            return changed(first, text=later) if isinstance(later, str) else later

    binding, messages = firm.chats.state
    answered = []

    def shown(_: object) -> Conversation:
        answered.append(Live(messages))
        return Conversation(binding, answered[-1], 0)

    firm.chats.shown = shown

    assert main.publish(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1").to_revision == 1

    assert [live.looks for live in answered] == [1, 1]
    assert main.audit.verify().findings == ()
    assert hosted.remnants("0123456789abcdefghijABCDEFGHIJ012345").remnants == ()


@pytest.mark.parametrize("record", [5, ["x"], {}, b"x", "\ud800", "x" * 10_000_000])
def test_evidence_of_what_is_no_id_is_refused_before_anybody_is_asked(main, firm, record):
    assert main.evidence(record).field == "record_id"
    assert [provider.asked for provider in firm.all] == [0, 0, 0]


def test_no_message_is_asked_for_on_behalf_of_who_may_not_see_it(hosted, item, main, firm):
    item.propose(KEY, TEXT, sources=[f"{REF}42"])
    asked = []
    shown = firm.chats.shown
    firm.chats.shown = lambda names: (asked.extend(names), shown(names))[1]

    stranger = hosted.acting_as(ModelSession("s-evil", "x"))
    assert stranger.evidence(ID).refusal is Refusal.NOT_AUTHORIZED
    assert item.evidence(ID).refusal is Refusal.NOT_AUTHORIZED
    assert asked == []
    assert main.evidence(ID).sources[0].ok
    assert asked == [f"{REF}42"]


def test_a_delivery_is_noted_by_the_session_that_the_provider_has_bound(hosted, main, firm):
    main.propose(KEY, TEXT, sources=[f"{REF}42"])
    step = main.recall("Chinese", step="step-1")
    binding, messages = firm.chats.state
    assert main.note_delivery(step).position is not None

    firm.chats.change((changed(binding, binding_id="b-2", session_id="s-main-2"), messages))
    before = all_rows(hosted)

    assert main.note_delivery(step).refusal is Refusal.NOT_AUTHORIZED
    firm.chats.change((binding, messages))
    firm.chats.fence = lambda _: 0
    assert main.note_delivery(main.recall("x")).refusal is Refusal.EXECUTION_FENCED
    firm.chats.before = lambda: 1 / 0
    down = main.note_delivery(step)
    assert (down.refusal, down.field) == (Refusal.SERVICE_UNAVAILABLE, "conversations")
    assert all_rows(hosted) == before


def test_a_delivery_too_rests_on_the_data_sets_that_the_space_was_bound_by(opened, main):
    main.propose(KEY, TEXT, sources=[f"{REF}42"])
    step = main.recall("Chinese", step="step-1")

    refused = opened().acting_as(main.caller).note_delivery(step)

    assert refused.refusal is Refusal.BINDING_MISMATCH


# -- what providers cost --------------------------------------------------------------------------


def took(work: Callable[[], object]) -> tuple[object, float]:
    started = time.monotonic()
    return work(), time.monotonic() - started


@pytest.fixture
def door() -> Iterator[threading.Event]:
    """Whoever hangs on it is let go at the end."""
    event = threading.Event()
    yield event
    event.set()


def test_the_providers_share_one_deadline(item, firm, monkeypatch):
    monkeypatch.setattr("memoranda.ledger.commit_protocol.PROTECT_WITHIN_S", 0.9)
    for provider in firm.all:
        provider.before = lambda: time.sleep(0.5)

    answer, _ = took(lambda: item.propose(KEY, TEXT, sources=[f"{REF}42"]))

    assert (answer.refusal, answer.field) == (Refusal.SERVICE_UNAVAILABLE, "tasks")


def test_whoever_answers_too_late_is_released_and_nobody_is_asked_after_it(
    item, firm, monkeypatch, door
):
    monkeypatch.setattr("memoranda.ledger.commit_protocol.PROTECT_WITHIN_S", 0.1)
    left = threading.Event()
    protect = firm.tasks.protect

    @contextmanager
    def late(names: object, within_s: float) -> Iterator[object]:
        door.wait(30)
        with protect(names, within_s) as answer:
            yield answer
        left.set()

    firm.tasks.protect = late

    assert item.propose(KEY, TEXT, sources=[f"{REF}42"]).field == "tasks"

    assert firm.chats.held == 0
    door.set()
    assert left.wait(30)
    assert [provider.asked for provider in firm.all] == [1, 1, 0]


def test_what_hangs_as_it_lets_go_holds_nobody_up_and_is_logged(
    item, firm, monkeypatch, door, caplog
):
    monkeypatch.setattr("memoranda.ledger.protection.RELEASE_WITHIN_S", 0.3)
    for provider in firm.all:
        protect = provider.protect

        @contextmanager
        def hanging(names: object, within_s: float, protect=protect) -> Iterator[object]:
            with protect(names, within_s) as answer:
                pass
            yield answer
            door.wait(30)

        provider.protect = hanging

    answer, seconds = took(lambda: item.propose(KEY, TEXT, sources=[f"{REF}42"]))

    assert answer.to_revision == 1
    assert seconds < 0.3 * 2 + 2
    assert caplog.text.count("failed to let go") == 6


def test_a_hanging_fence_gives_the_lock_back(hosted, item, firm, monkeypatch, door):
    monkeypatch.setattr("memoranda.ledger.protection.FENCE_WITHIN_S", 0.2)
    firm.tasks.fence = lambda _: door.wait(30)

    answer, seconds = took(lambda: item.propose(KEY, TEXT, sources=[f"{REF}42"]))

    assert (answer.refusal, answer.field) == (Refusal.SERVICE_UNAVAILABLE, "tasks")
    assert seconds < 5
    assert hosted.remember("anything").to_revision == 1


def quits(_: object) -> int:
    raise SystemExit("said Alice")


@pytest.mark.parametrize(
    "fence", [lambda _: None, lambda _: "1", lambda _: True, lambda _: 2**63, quits],
    ids=["none", "text", "yes", "long", "quits"],
)  # fmt: skip
def test_a_fence_that_is_no_number_is_a_failed_provider(hosted, item, firm, world, fence):
    world.at_step = lambda step: (
        setattr(firm.tasks, "fence", fence) if step == "commit:protected" else None
    )

    answer = item.propose(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1")

    assert (answer.refusal, answer.field) == (Refusal.OUTCOME_UNKNOWN, "tasks")
    assert states(hosted) == {"op-1": "prepared"}


def test_a_provider_that_is_down_is_logged_and_named_where_nobody_is_known(
    hosted, main, firm, caplog
):
    def fail() -> None:
        raise OSError("the network is down, said Alice")

    firm.chats.before = fail
    for answer in (main.records(), main.recall("Chinese"), main.evidence(ID)):
        assert (answer.refusal, answer.field) == (Refusal.SERVICE_UNAVAILABLE, "conversations")
    assert "provider='conversations' outcome='failed'" in caplog.text
    assert "Alice" not in caplog.text

    firm.chats.before = lambda: None
    assert main.records() == ()
    firm.chats.before = fail
    caplog.clear()
    assert main.records() == ()
    assert "provider='conversations'" in caplog.text
    assert hosted.records() == ()


@pytest.mark.parametrize(
    ("caller", "field"),
    [
        (ModelSession("\ud800", "a"), "session_id"),
        (ModelSession("s-main-1", "\ud800"), "agent_id"),
        (ModelSession("s-main-1", "a" * 257), "agent_id"),
        (ModelSession(5, "a"), "session_id"),
        (PersonClient("", "a"), "session_id"),
        (BackgroundItem(None, 1, "s-bg-7", "agent-bg", "ea-1"), "item_id"),
        (BackgroundItem("\ud800", 1, "s-bg-7", "agent-bg"), "item_id"),
        (BackgroundItem("task-7", bool(1), "s-bg-7", "agent-bg", "ea-1"), "requirement_revision"),
        (BackgroundItem("task-7", 1.0, "s-bg-7", "agent-bg", "ea-1"), "requirement_revision"),
        (BackgroundItem("task-7", 1, "s-bg-7", "agent-bg", ""), "authorization_id"),
        (None, None),
        ("client", None),
    ],
    ids=[
        "surrogate", "agent surrogate", "long", "number", "empty", "no item", "item surrogate",
        "yes for a number", "no whole number", "empty authorization", "nobody", "text",
    ],
)  # fmt: skip
def test_an_identity_that_nobody_can_have_is_refused_at_the_door(memory, caller, field):
    with pytest.raises(RefusedError) as refused:
        memory.acting_as(caller)

    assert refused.value.refused.field == ("caller" if field is None else f"caller.{field}")
    assert refused.value.refused.refusal in {Refusal.INVALID_REQUEST, Refusal.LIMIT_EXCEEDED}
    assert "\ud800" not in str(refused.value)
