"""Host services: the registry, Personal on and off, providers down, replaced or wrong."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import World
from tests.providers import Company, company
from tests.sites import WAIT_S, FailingCommit

from memoranda.ledger.authority import Auditor, BackgroundItem, ModelSession, PersonClient
from memoranda.ledger.errors import (
    OutcomeUnknown,
    Refusal,
    Refused,
    RefusedError,
    StorageFault,
    first_of,
)
from memoranda.tools import host as host_room
from memoranda.tools.host import (
    HOST_PERSONAL,
    MEMORY_RECORDS,
    Personal,
    PersonalMemory,
    personal_memory,
)
from memoranda.tools.memory import Memory
from memoranda.tools.registry import (
    Call,
    Diagnosis,
    HostRefusal,
    HostRefused,
    Plugin,
    Registry,
    Requirement,
    Service,
    Session,
)

KEY = "preference/reply-language"
ID = "mem_448800f070a1c5b419f7b261f803ee4b9bf720c1b67db77e20f23d7bd71a2009"
REF = "personal-message:s-main-1:"
TEXT = "Answers in Chinese are wanted."
MAIN = Session("personal", ModelSession("s-main-1", "agent-main"))
PERSON = Session("personal", PersonClient())
ITEM = Session("personal", BackgroundItem("task-7", 1, "s-bg-7", "agent-bg", "ea-1"))
CODING = Session("coding", ModelSession("s-main-1", "agent-main"))
PROJECT = Session("project", ModelSession("s-main-1", "agent-main"))
NEEDS = (Requirement("host.personal", 1), Requirement("memory.records", 1))


def published(memory: Memory) -> object:
    return memory.publish(KEY, TEXT, sources=[f"{REF}42"], operation_id="op-1")


def counted(memory: Memory) -> object:
    return len(memory.records())


def rows_of(memory: Memory) -> list[object]:
    with memory._parts.log.reading() as store:
        return store.rows(0, 10_000)


def files_in(folder: dict[str, Path]) -> list[Path]:
    return [path for root in folder.values() if root.exists() for path in root.rglob("*")]


@pytest.fixture
def personal(memory: Memory, opened: Callable[..., Memory]) -> Iterator[Personal]:
    """Personal over the fixture of PM section 10."""
    memory.close()
    personal = Personal(opened)
    yield personal
    personal._stop()


@pytest.fixture
def registry(personal: Personal) -> Registry:
    """Personal beside two plugins that declare its services, and one that declares nothing."""
    registry = Registry(
        [
            personal.plugin(),
            Plugin("assistant", requires=NEEDS),
            Plugin("acme.butler", requires=NEEDS),
            Plugin("stranger"),
        ]
    )
    for name, session in (("main", MAIN), ("person", PERSON), ("item", ITEM), ("coding", CODING)):
        registry.begin(name, session)
    return registry


def seat(registry: Registry, execution: str, plugin: str = "assistant") -> PersonalMemory:
    return personal_memory(registry.host(plugin, execution))


def intent(registry: Registry, operation_id: str = "op-2") -> dict[str, object]:
    """What a correction of the record commits, as a raw request."""
    value = seat(registry, "main").records().records[0].record.model_dump(mode="json")
    source = {"kind": "personal_message", "ref": f"{REF}88", "occurred_at": "2026-10-06T11:00:00Z"}
    contribution = {"agent_id": "agent-main", "executor_session_id": "s-main-1", "revision": 2}
    after = value | {
        "revision": 2,
        "content": "Chinese, please.",
        "sources": [*value["sources"], source],
        "contributions": [*value["contributions"], contribution],
    }
    return {"id": operation_id, "key": ID, "expected": value, "value": after}


# -- Personal (PM 2.2, 10) ------------------------------------------------------------------------


def test_scenario_11_with_the_provider_down_nothing_is_written_anywhere(folder):
    def down() -> Memory:
        raise OSError("the disk of Alice is gone")

    personal = Personal(down)

    refused = personal.ask(MAIN, published)

    assert (refused.refusal, refused.field) == (Refusal.SERVICE_UNAVAILABLE, "documents")
    assert "Alice" not in str(refused.wire())
    assert files_in(folder) == []


def test_a_provider_that_comes_back_serves_at_the_next_call(opened):
    answers = [StorageFault("gone"), RefusedError(Refused(Refusal.BUSY)), None]

    def documents() -> Memory:
        if fault := answers.pop(0):
            raise fault
        return opened()

    personal = Personal(documents)

    assert personal.ask(PERSON, counted).refusal is Refusal.SERVICE_UNAVAILABLE
    assert personal.ask(PERSON, counted).refusal is Refusal.BUSY
    assert personal.ask(PERSON, counted) == 0


@pytest.mark.parametrize("session", [CODING, PROJECT], ids=["coding", "project"])
def test_scenario_12_another_domain_neither_queries_nor_writes(personal, registry, session):
    registry.begin("elsewhere", session)
    before = personal.ask(PERSON, rows_of)

    assert personal.ask(session, published).refusal is Refusal.NOT_AUTHORIZED
    assert personal.ask(session, counted).refusal is Refusal.NOT_AUTHORIZED
    assert personal.ask(session, lambda memory: memory.recall()).refusal is Refusal.NOT_AUTHORIZED
    elsewhere = seat(registry, "elsewhere")
    assert elsewhere.records().refusal is Refusal.OUTSIDE_PERSONAL
    assert elsewhere.source(f"{REF}42").refusal is Refusal.OUTSIDE_PERSONAL
    assert elsewhere.commit({}).refusal is Refusal.OUTSIDE_PERSONAL
    listed = registry.host("assistant", "elsewhere").call(MEMORY_RECORDS, "records", {})
    assert listed.refusal is Refusal.NOT_AUTHORIZED
    assert personal.ask(PERSON, rows_of) == before


def test_scenario_18_an_item_that_a_client_made_without_a_source_proposes_nothing(personal):
    leave = {"item_id": "task-10", "requirement_revision": 1, "executor_session_id": "s-bg-10"}
    personal.ask(PERSON, lambda memory: memory.host.open_task(item_id="task-10"))
    personal.ask(PERSON, lambda memory: memory.host.authorize(authorization_id="ea-10", **leave))
    item = Session("personal", BackgroundItem("task-10", 1, "s-bg-10", "agent-bg", "ea-10"))

    answer = personal.ask(item, lambda memory: memory.propose(KEY, TEXT, sources=[f"{REF}42"]))

    assert answer.refusal is Refusal.ITEM_WITHOUT_SOURCE


def test_scenario_19_any_plugin_that_declares_the_service_gets_the_same(personal, registry):
    personal.ask(MAIN, published)
    ours, theirs = seat(registry, "main"), seat(registry, "main", "acme.butler")

    assert ours.records() == theirs.records()
    assert ours.source(f"{REF}42") == theirs.source(f"{REF}42")
    assert ours.operation("op-1") == theirs.operation("op-1")
    receipt = theirs.commit(intent(registry))
    assert (receipt.to_revision, receipt.session_id) == (2, "s-main-1")
    assert ours.commit(theirs.operation("op-2").intent).replayed
    assert ours.operations().refusal is theirs.operations().refusal is Refusal.RECONCILE_REFUSED


def test_scenario_19_a_plugin_that_is_not_selected_is_not_served(registry):
    registry.disable("acme.butler")

    refused = seat(registry, "main", "acme.butler").records()
    assert (refused.refusal, refused.field) == (Refusal.SERVICE_UNAVAILABLE, "plugin")
    assert seat(registry, "main").records().records == ()


def test_scenario_19_the_provider_itself_has_no_privilege_by_its_id(personal):
    personal.ask(MAIN, published)
    registry = Registry([personal.plugin("acme.memory"), Plugin("assistant", requires=NEEDS)])
    registry.begin("main", MAIN)

    assert registry.diagnoses == ()
    assert [read.record.id for read in seat(registry, "main").records().records] == [ID]


def test_scenario_20_personal_off_stops_tools_services_and_recall_and_keeps_the_records(
    personal, registry
):
    personal.ask(MAIN, published)
    records = seat(registry, "main").records()

    registry.disable("personal")

    for verb in (published, counted, lambda memory: memory.recall()):
        assert personal.ask(MAIN, verb).refusal is Refusal.SERVICE_UNAVAILABLE
    assert seat(registry, "main").records().refusal is Refusal.SERVICE_UNAVAILABLE
    listed = registry.host("assistant", "main").call(MEMORY_RECORDS, "records", {})
    assert listed.refusal is Refusal.SERVICE_UNAVAILABLE

    registry.enable("personal")

    assert seat(registry, "main").records() == records
    assert registry.host("assistant", "main").call(MEMORY_RECORDS, "records", {}) == records


def test_personal_needs_no_other_plugin(personal):
    registry = Registry([personal.plugin()])

    assert registry.diagnoses == ()
    assert personal.ask(PERSON, counted) == 0


def test_each_session_has_the_rights_of_its_caller(personal, registry):
    personal.ask(MAIN, published)

    assert seat(registry, "item").source(f"{REF}42").ref == f"{REF}42"
    assert seat(registry, "item").source(f"{REF}88").refusal is Refusal.SOURCE_NOT_BOUND
    assert seat(registry, "item").operation("op-1").refusal is Refusal.NOT_FOUND
    assert seat(registry, "item").commit(intent(registry)).refusal is (
        Refusal.BACKGROUND_CANDIDATE_ONLY
    )
    registry.begin("other", Session("personal", ModelSession("main", "agent-main")))
    assert seat(registry, "other").records().refusal is Refusal.NOT_AUTHORIZED
    registry.begin("audit", Session("personal", Auditor()))
    assert len(seat(registry, "audit").records().records) == 1
    assert seat(registry, "audit").commit(intent(registry)).refusal is Refusal.NOT_AUTHORIZED


def test_only_the_person_lists_and_reconciles_operations(personal, registry):
    prepared = {"name": "publish", "operation_id": "op-1", "key": KEY, "content": TEXT}
    personal.ask(PERSON, lambda memory: memory.prepare(prepared))
    request = {"id": "op-1", "writers_stopped": True, "reason": "host crashed"}

    for execution in ("main", "item"):
        assert seat(registry, execution).operations().refusal is Refusal.RECONCILE_REFUSED
        assert seat(registry, execution).reconcile(request).refusal is Refusal.RECONCILE_REFUSED
    person = seat(registry, "person")
    assert [line.state for line in person.operations(state="prepared")] == ["prepared"]
    for wrong in ({"writers_stopped": "true"}, {"writers_stopped": None}, {"reason": " "}):
        assert person.reconcile(request | wrong).refusal is Refusal.RECONCILE_REFUSED
    assert person.reconcile({"id": "op-1"}).refusal is Refusal.RECONCILE_REFUSED
    assert person.reconcile({"id": 1}).refusal is Refusal.INVALID_REQUEST
    assert person.reconcile(request).outcome == "aborted"


def test_a_parameter_that_a_method_does_not_have_is_refused(registry):
    person = seat(registry, "person")

    assert person.records(wildcard=True).refusal is Refusal.INVALID_REQUEST
    assert person.records(limit="many").refusal is Refusal.INVALID_REQUEST
    assert person.commit({"id": "op-1"}).refusal is Refusal.INVALID_REQUEST
    assert person.commit({"memory": 1}).refusal is Refusal.INVALID_REQUEST
    wrong = [{}, {"record_id": "x", "more": 1}, {"record_id": "x", "self": 1}]
    for method, payload in (("write", {}), *(("read", payload) for payload in wrong)):
        answer = registry.host("assistant", "person").call(MEMORY_RECORDS, method, payload)
        assert answer.refusal is Refusal.INVALID_REQUEST


def test_records_of_both_services_page_alike(personal, registry):
    for n in range(3):
        personal.ask(PERSON, lambda memory, n=n: memory.remember(f"fact {n}"))

    first = seat(registry, "person").records(limit=2)
    rest = registry.host("assistant", "person").call(
        MEMORY_RECORDS, "records", {"limit": 2, "cursor": first.next_cursor}
    )

    assert (len(first.records), len(rest.records), rest.next_cursor) == (2, 1, None)
    record_id = rest.records[0].record.id
    read = registry.host("assistant", "person").call(
        MEMORY_RECORDS, "read", {"record_id": record_id}
    )
    assert read == rest.records[0]


@pytest.mark.parametrize(
    ("fault", "refusal"),
    [
        (OutcomeUnknown("look it up"), Refusal.OUTCOME_UNKNOWN),
        (StorageFault("the disk is full; nothing was written"), Refusal.SERVICE_UNAVAILABLE),
        (RefusedError(Refused(Refusal.BUSY)), Refusal.BUSY),
    ],
    ids=["unknown", "storage", "refused"],
)
def test_what_a_verb_raises_of_these_is_an_answer(personal, fault, refusal):
    def verb(_: Memory) -> None:
        raise fault

    assert personal.ask(PERSON, verb).refusal is refusal


# -- an earlier store (PM 6) ----------------------------------------------------------------------


def test_scenario_70_an_earlier_store_that_cannot_be_read_is_the_answer_to_every_call(opened):
    state = {"is_readable": False}

    def documents() -> Memory:
        if not state["is_readable"]:
            raise RefusedError(Refused(Refusal.MIGRATION_FAILED))
        return opened()

    personal = Personal(documents)
    registry = Registry([personal.plugin(), Plugin("assistant", requires=NEEDS)])
    for name, session in (("main", MAIN), ("person", PERSON), ("coding", CODING)):
        registry.begin(name, session)

    for execution in ("main", "person"):
        assert seat(registry, execution).records().refusal is Refusal.MIGRATION_FAILED
        assert seat(registry, execution).commit({}).refusal is Refusal.MIGRATION_FAILED
        assert seat(registry, execution).operations().refusal is Refusal.MIGRATION_FAILED
        listed = registry.host("assistant", execution).call(MEMORY_RECORDS, "records", {})
        assert listed.refusal is Refusal.MIGRATION_FAILED
    assert personal.ask(CODING, counted).refusal is Refusal.MIGRATION_FAILED
    assert seat(registry, "coding").records().refusal is Refusal.OUTSIDE_PERSONAL

    state["is_readable"] = True
    assert seat(registry, "person").records().records == ()
    personal._stop()


def test_the_refusal_that_comes_first_in_the_contract_wins():
    refused = [Refused(Refusal.NOT_AUTHORIZED), Refused(Refusal.MIGRATION_FAILED)]

    assert first_of(refused).refusal is Refusal.MIGRATION_FAILED
    assert first_of([*refused, Refused(Refusal.SERVICE_UNAVAILABLE)]).code == "service_unavailable"


# -- the data set (F29) ---------------------------------------------------------------------------


def test_a_provider_may_be_replaced_by_one_with_the_same_data_only(personal, opened):
    personal.ask(MAIN, published)
    wrong = opened("us_bob")
    before = rows_of(wrong)

    personal.replace(lambda: opened("us_bob"))

    refused = personal.ask(PERSON, lambda memory: memory.remember("Bob's"))
    assert (refused.refusal, refused.field) == (Refusal.BINDING_MISMATCH, "documents")
    assert personal.ask(PERSON, counted).refusal is Refusal.BINDING_MISMATCH
    assert rows_of(wrong) == before
    personal.replace(opened)
    assert personal.ask(PERSON, counted) == 1


def test_a_host_that_kept_the_data_set_refuses_another_one_after_its_restart(personal, opened):
    personal.ask(PERSON, counted)

    restarted = Personal(lambda: opened("us_bob"), personal.data_set)

    assert restarted.ask(PERSON, counted).refusal is Refusal.BINDING_MISMATCH
    same = Personal(opened, personal.data_set)
    assert same.ask(PERSON, counted) == 0


def test_scenario_57_reconcile_under_another_documents_provider_is_refused_and_the_guard_kept(
    personal, registry, opened
):
    prepared = {"name": "publish", "operation_id": "op-1", "key": KEY, "content": TEXT}
    personal.ask(PERSON, lambda memory: memory.prepare(prepared))
    request = {"id": "op-1", "writers_stopped": True, "reason": "host crashed"}

    personal.replace(lambda: opened("us_bob"))
    assert seat(registry, "person").reconcile(request).refusal is Refusal.BINDING_MISMATCH

    personal.replace(opened)
    assert [line.state for line in seat(registry, "person").operations(state="prepared")] == [
        "prepared"
    ]
    assert seat(registry, "person").reconcile(request).outcome == "aborted"


# -- under way (R18, R24) -------------------------------------------------------------------------


@pytest.fixture
def firm() -> Company:
    return company()


@pytest.fixture
def hosted(opened: Callable[..., Memory], firm: Company) -> Personal:
    return Personal(lambda: opened(ports=firm.ports))


def test_race_24_a_commit_under_way_ends_before_personal_is_off(hosted, world: World):
    registry = Registry([hosted.plugin()])
    switching = threading.Thread(target=registry.disable, args=["personal"])

    def switch_off(step: str) -> None:
        if step == "commit:prepared":
            switching.start()
            while hosted.ask(PERSON, counted) == 0:
                pass

    world.at_step = switch_off
    receipt = hosted.ask(MAIN, published)
    switching.join()

    assert (receipt.outcome, receipt.to_revision) == ("committed", 1)
    assert hosted.ask(MAIN, published).refusal is Refusal.SERVICE_UNAVAILABLE
    registry.enable("personal")
    assert hosted.ask(MAIN, published).replayed
    assert hosted.ask(PERSON, lambda memory: memory.audit.verify().findings) == ()


def test_race_24_a_commit_that_does_not_end_leaves_its_guard_to_recovery(
    hosted, world: World, monkeypatch
):
    monkeypatch.setattr(host_room, "CALLS_WAIT_S", 0.05)
    monkeypatch.setattr("memoranda.ledger.operations.SHUTDOWN_WAIT_S", 0.05)
    registry = Registry([hosted.plugin()])
    world.at_step = lambda step: registry.disable("personal") if step == "commit:prepared" else None

    answer = hosted.ask(MAIN, published)

    assert answer.refusal is Refusal.OUTCOME_UNKNOWN
    world.at_step = lambda _: None
    registry.enable("personal")
    read = hosted.ask(MAIN, lambda memory: memory.operation("op-1"))
    assert (read.state, hosted.ask(MAIN, counted)) == ("prepared", 0)
    assert hosted.ask(MAIN, lambda memory: memory.commit(read.intent)).to_revision == 1
    assert hosted.ask(PERSON, lambda memory: memory.audit.verify().findings) == ()


@pytest.mark.parametrize(
    ("at", "state"), [("log:commit", "prepared"), ("log:committed", "committed")]
)
def test_race_18_an_outage_never_parts_a_record_from_its_receipt(hosted, world: World, at, state):
    seen = []

    def fail(step: str) -> None:
        seen.append(step)
        if step == at and "commit:protected" in seen:
            raise StorageFault("the provider is gone")

    world.at_step = fail
    assert hosted.ask(MAIN, published).refusal is Refusal.OUTCOME_UNKNOWN
    world.at_step = lambda _: None

    read = hosted.ask(MAIN, lambda memory: memory.operation("op-1"))
    assert (read.state, read.receipt is not None) == (state, state == "committed")
    assert hosted.ask(MAIN, counted) == (1 if state == "committed" else 0)
    assert hosted.ask(MAIN, published).to_revision == 1
    assert hosted.ask(PERSON, lambda memory: memory.audit.verify().findings) == ()


@pytest.mark.parametrize("is_durable", [True, False], ids=["answer lost", "write lost"])
def test_race_18_after_a_commit_that_failed_the_outcome_can_be_looked_up(hosted, is_durable):
    hosted.ask(PERSON, lambda memory: FailingCommit(memory, at=2, is_durable=is_durable))

    answer = hosted.ask(MAIN, published)

    assert (answer.refusal, answer.operation_id) == (Refusal.OUTCOME_UNKNOWN, "op-1")
    read = hosted.ask(MAIN, lambda memory: memory.operation("op-1"))
    assert read.state == ("committed" if is_durable else "prepared")
    assert (read.receipt is not None) is is_durable
    assert hosted.ask(MAIN, counted) == (1 if is_durable else 0)
    assert hosted.ask(MAIN, published).to_revision == 1
    assert hosted.ask(PERSON, lambda memory: memory.audit.verify().findings) == ()
    hosted._stop()


def test_a_plugin_looks_an_unknown_outcome_up_without_switching_personal_off(personal, registry):
    personal.ask(MAIN, published)
    request = intent(registry)
    personal.ask(PERSON, FailingCommit)
    main = seat(registry, "main")

    unknown = main.commit(request)

    assert unknown.wire()["operation_id"] == "op-2"
    assert main.operation("op-2").state == "committed"
    assert len(main.records().records) == 1
    assert main.commit(main.operation("op-2").intent).replayed


@pytest.mark.parametrize("answer", [None, 5, "memory"], ids=repr)
def test_a_provider_that_gives_no_memory_is_down(answer):
    personal = Personal(lambda: answer)

    refused = personal.ask(PERSON, counted)

    assert (refused.refusal, refused.field) == (Refusal.SERVICE_UNAVAILABLE, "documents")
    personal._stop()


def test_a_provider_that_hangs_holds_nobody_and_serves_once_it_answers(opened, monkeypatch):
    monkeypatch.setattr(host_room, "OPEN_WITHIN_S", 0.05)
    go, asked = threading.Event(), []

    def documents() -> Memory:
        asked.append(1)
        go.wait(WAIT_S)
        return opened()

    personal = Personal(documents)
    for _ in range(2):
        assert personal.ask(PERSON, counted).refusal is Refusal.SERVICE_UNAVAILABLE
    assert len(asked) == 1
    monkeypatch.setattr(host_room, "OPEN_WITHIN_S", WAIT_S)
    go.set()

    assert personal.ask(PERSON, counted) == 0
    assert len(asked) == 1
    personal._stop()


def test_a_provider_that_hangs_is_switched_off_at_once_and_closed_when_it_answers(
    opened, monkeypatch
):
    monkeypatch.setattr(host_room, "OPEN_WITHIN_S", 0.05)
    go, late = threading.Event(), []

    def documents() -> Memory:
        go.wait(WAIT_S)
        late.append(opened())
        return late[0]

    personal = Personal(documents)
    registry = Registry([personal.plugin()])
    assert personal.ask(PERSON, counted).refusal is Refusal.SERVICE_UNAVAILABLE
    monkeypatch.setattr(host_room, "OPEN_WITHIN_S", WAIT_S)
    waiting = threading.Thread(target=personal.ask, args=(PERSON, counted))
    waiting.start()

    registry.disable("personal")

    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    go.set()
    while not (late and not late[0].is_serving):
        pass
    personal.replace(opened)
    registry.enable("personal")
    assert personal.ask(PERSON, counted) == 0
    personal._stop()


def test_a_call_that_waits_for_personal_to_close_is_answered_at_once(hosted, monkeypatch):
    monkeypatch.setattr(host_room, "CALLS_WAIT_S", 5.0)
    begun, done = threading.Event(), threading.Event()

    def slow(_: Memory) -> str:
        begun.set()
        done.wait(5)
        return "done"

    answers: list[object] = []
    working = threading.Thread(target=lambda: answers.append(hosted.ask(PERSON, slow)))
    stopping = threading.Thread(target=hosted._stop)
    working.start()
    begun.wait(5)
    stopping.start()
    while hosted._is_enabled:
        pass

    assert hosted.ask(PERSON, counted).refusal is Refusal.SERVICE_UNAVAILABLE
    done.set()
    stopping.join()
    working.join()
    assert answers == ["done"]


# -- the registry (PM 2.6) ------------------------------------------------------------------------


def echo(call: Call, payload: object) -> object:
    return call, dict(payload)


def offering(name: str = "demo.echo", version: str = "1.2.0", **more: object) -> Service:
    return Service(name, version, **{"reads": {"look": echo}, "writes": {"change": echo}} | more)


def asking(name: str = "demo.echo", major: int = 1, **more: object) -> Plugin:
    return Plugin("asker", requires=(Requirement(name, major, **more),))


def running(*plugins: Plugin) -> Registry:
    registry = Registry(plugins)
    registry.begin("run-1", MAIN)
    return registry


def test_scenario_87_a_call_that_was_not_declared_is_refused(registry):
    answer = seat(registry, "main", "stranger").records()

    assert (answer.refusal, answer.code) == (
        HostRefusal.SERVICE_NOT_DECLARED,
        "service_not_authorized",
    )
    nobody = seat(registry, "main", "not installed").records()
    assert nobody.refusal is HostRefusal.SERVICE_NOT_DECLARED
    other = registry.host("assistant", "main").call("host.personal@2", "records", {})
    assert other.refusal is HostRefusal.SERVICE_NOT_DECLARED


def test_scenario_87_after_the_close_nothing_is_served(personal, registry):
    assert seat(registry, "main").records().records == ()

    registry.close()

    for plugin in ("assistant", "stranger"):
        assert seat(registry, "main", plugin).records().code == "service_unavailable"
    assert personal.ask(MAIN, counted).refusal is Refusal.SERVICE_UNAVAILABLE


def test_scenario_87_a_write_in_preflight_is_refused_and_a_read_is_not(personal, registry):
    personal.ask(MAIN, published)
    request = intent(registry)
    registry.begin("soon", MAIN, is_preflight=True)

    assert len(seat(registry, "soon").records().records) == 1
    refused = seat(registry, "soon").commit(request)
    assert (refused.refusal, refused.code) == (
        HostRefusal.PREFLIGHT_ONLY_READS,
        "service_not_authorized",
    )
    registry.begin("soon", MAIN)
    assert seat(registry, "soon").commit(request).to_revision == 2


def test_a_service_without_reads_does_not_run_in_preflight():
    registry = running(Plugin("giver", provides=(offering(reads={}),)), asking())
    registry.begin("soon", MAIN, is_preflight=True)

    answer = registry.host("asker", "soon").call("demo.echo@1", "change", {})

    assert answer.refusal is HostRefusal.PREFLIGHT_ONLY_READS


def test_the_host_stamps_who_calls():
    registry = running(Plugin("giver", provides=(offering(),)), asking())

    call, payload = registry.host("asker", "run-1").call("demo.echo@1", "look", {"id": 1})

    assert call == Call("asker", "run-1", MAIN)
    assert payload == {"id": 1}


@pytest.mark.parametrize(
    "name",
    [
        "session_id",
        "agent_id",
        "item_id",
        "thread_id",
        "turn_id",
        "caller",
        "threadId",
        "plugin_id",
    ],
)
def test_a_payload_that_says_who_calls_is_refused(registry, name):
    refused = registry.host("assistant", "main").call(HOST_PERSONAL, "records", {name: "s-main-1"})

    assert (refused.refusal, refused.field) == (Refusal.INVALID_REQUEST, name)


@pytest.mark.parametrize("payload", [None, "records", ["limit"], {1: 2}], ids=repr)
def test_a_payload_that_names_no_parameters_is_refused(registry, payload):
    refused = registry.host("assistant", "person").call(HOST_PERSONAL, "records", payload)

    assert refused.refusal is Refusal.INVALID_REQUEST


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("evil")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("odd", [None, 1, [], {}, Odd()], ids=lambda it: type(it).__name__)
def test_what_no_host_can_mean_is_refused_before_anything_is_noted(registry, odd):
    before = vars(registry) | {"_executions": dict(registry._executions), "_disabled": set()}
    switches = (registry.enable, registry.disable)
    executions = (
        registry.cancel,
        registry.end,
        lambda it: registry.begin(it, MAIN),
        lambda it: registry.begin("turn", it),
        lambda it: registry.host(it, "main"),
        lambda it: registry.host("assistant", it),
    )

    for ask in (*switches, *executions):
        with pytest.raises(RefusedError, match="none that a host knows"):
            ask(odd)
    with pytest.raises(RefusedError, match="none that a host knows") as refused:
        registry.disable("nobody")
    host = registry.host("assistant", "main")

    assert refused.value.refused.field == "plugin_id"
    assert vars(registry) == before
    assert host.call(odd, "records", {}).code == "service_not_authorized"
    assert host.call(HOST_PERSONAL, odd, {}).field == "method"


def test_an_execution_is_served_from_its_beginning_to_its_end_or_cancellation(registry):
    registry.cancel("main")
    registry.cancel("never begun")
    registry.end("item")

    assert seat(registry, "main").records().code == "execution_cancelled"
    assert seat(registry, "item").records().code == "execution_not_found"
    assert seat(registry, "never begun").records().code == "execution_not_found"
    registry.end("main")
    assert seat(registry, "main").records().refusal is HostRefusal.EXECUTION_NOT_FOUND


def test_one_plugin_provides_a_name_and_major_and_the_next_is_diagnosed():
    first, second = Plugin("one", (offering(),)), Plugin("two", (offering(version="1.9.0"),))
    next_major = Plugin("three", (offering(version="2.0.0", reads={"look": lambda *_: 2}),))
    registry = running(first, second, next_major, asking())

    assert registry.diagnoses == (Diagnosis("two", "demo.echo@1", "duplicate"),)
    assert registry.host("asker", "run-1").call("demo.echo@1", "look", {})[0].plugin_id == "asker"
    # The owner of a name keeps it while it is off: nobody else slips into its place.
    registry.disable("one")
    answer = registry.host("asker", "run-1").call("demo.echo@1", "look", {})
    assert answer.refusal is Refusal.SERVICE_UNAVAILABLE


def test_two_plugins_of_one_id_are_not_merged():
    registry = running(Plugin("giver", (offering(),)), Plugin("giver", (offering("demo.more"),)))

    assert registry.diagnoses == (Diagnosis("giver", None, "duplicate"),)


def test_a_missing_required_provider_blocks_its_consumer_and_who_needs_that():
    middle = Plugin("middle", (offering("demo.middle"),), (Requirement("demo.echo", 1),))
    registry = running(middle, asking("demo.middle"))

    assert registry.diagnoses == (
        Diagnosis("middle", "demo.echo@1", "provider_missing"),
        Diagnosis("asker", "demo.middle@1", "provider_missing"),
    )
    answer = registry.host("asker", "run-1").call("demo.middle@1", "look", {})
    assert (answer.refusal, answer.field) == (Refusal.SERVICE_UNAVAILABLE, "plugin")


def test_a_missing_optional_provider_blocks_nothing_else():
    registry = running(
        Plugin("giver", (offering("demo.other"),)),
        Plugin(
            "asker",
            requires=(Requirement("demo.echo", 1, is_optional=True), Requirement("demo.other", 1)),
        ),
    )

    assert registry.diagnoses == ()
    host = registry.host("asker", "run-1")
    assert host.call("demo.echo@1", "look", {}).refusal is Refusal.SERVICE_UNAVAILABLE
    assert host.call("demo.other@1", "look", {})[1] == {}


def test_a_plugin_may_not_both_provide_and_require_a_name():
    registry = running(Plugin("both", (offering(),), (Requirement("demo.echo", 2),)), asking())

    assert registry.diagnoses == (
        Diagnosis("both", "demo.echo", "provided_and_required"),
        Diagnosis("asker", "demo.echo@1", "provider_missing"),
    )


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("echo", "1.0.0"),
        ("Demo.echo", "1.0.0"),
        ("demo..echo", "1.0.0"),
        ("demo.echo", "1.0"),
        ("demo.echo", "01.0.0"),
        ("demo.echo", "1.0.0-01"),
        ("demo.echo", "v1.0.0"),
        ("demo.echo", "1.0.0\n"),
    ],
)
def test_names_are_dotted_and_lower_case_and_versions_strict(name, version):
    assert running(Plugin("giver", (offering(name, version),))).diagnoses == (
        Diagnosis("giver", name, "malformed"),
    )


@pytest.mark.parametrize("version", ["0.0.0", "1.10.200", "2.0.0-rc.1+build.7", "1.0.0-0a"])
def test_a_strict_version_is_taken_by_its_major(version):
    assert offering(version=version).key == f"demo.echo@{version[0]}"


def test_a_requirement_is_named_like_a_service():
    assert running(asking("Echo")).diagnoses == (Diagnosis("asker", "Echo", "malformed"),)


def test_a_host_refusal_has_the_wire_shape_of_every_refusal():
    ours, theirs = HostRefused(HostRefusal.EXECUTION_NOT_FOUND, "x"), Refused(Refusal.NOT_FOUND)

    assert ours.wire().keys() == theirs.wire().keys()
    assert ours.wire()["message"] == ours.refusal.rule
    for refusal in HostRefusal:
        assert refusal.rule.endswith(".")
        assert f"`{refusal.code}`" in (Path(__file__).parents[1] / "README.md").read_text()
