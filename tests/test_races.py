"""The races of PM 3.6, each by its number, and what stops a commit however close they come."""

import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from random import Random  # noqa: TID251  # seeded: who waits how long can be repeated
from typing import Any

import pytest
from tests.conftest import T0
from tests.providers import Company, company
from tests.sites import WAIT_S, Answer, Site, killed_at, positions_of, race, together, told

from memoranda.ledger import commit_protocol, log, operations, reconcile
from memoranda.ledger.authority import BackgroundItem, ModelSession
from memoranda.ledger.commit_protocol import CommitProtocol
from memoranda.ledger.entries import Draft
from memoranda.ledger.errors import MemorandaError, OutcomeUnknown, Refusal, Refused
from memoranda.ledger.events import (
    Authorization,
    AuthorizationChanged,
    RecordBody,
    RecordCommitted,
    Task,
    TaskChanged,
)
from memoranda.ledger.guards import authorization_guard, caller_boundary, task_guard
from memoranda.ledger.ports import EMBEDDED
from memoranda.ledger.receipts import AbortReceipt, PreparedReceipt, Receipt
from memoranda.ledger.stamps import Stamps
from memoranda.projections import views
from memoranda.tools import host
from memoranda.tools.memory import Memory

MAIN = ModelSession("s-main-1", "agent-main")
TASK_7 = BackgroundItem("task-7", 1, "s-bg-7", "agent-bg", "ea-1")
KEY = "preference/reply-language"
ID = "mem_448800f070a1c5b419f7b261f803ee4b9bf720c1b67db77e20f23d7bd71a2009"
TEXT = "Answers in Chinese are wanted."
ROUNDS = 12
LATER = T0.replace(year=2100)
SETTLE = {"writers_stopped": True, "reason": "host crashed"}


def ref(seq: int) -> str:
    return f"personal-message:s-main-1:{seq}"


@pytest.fixture
def stage(site: Site) -> Site:
    """The ledger of several processes, with a bound conversation."""
    with site.open() as memory:
        memory.host.bind_primary("s-main-1")
        say(memory, range(1, ROUNDS + 1))
    return site


def say(memory: Memory, seqs: range) -> None:
    messages = (
        {"session": "s-main-1", "seq": seq, "role": "user", "text": f"said {seq}"} for seq in seqs
    )
    assert all(hasattr(answer, "position") for answer in memory.capture(messages))


def losers(answers: list[Answer]) -> list[Answer]:
    return [answer for answer in answers if isinstance(answer, str)]


def is_whole(site: Site) -> bool:
    positions = positions_of(site)
    with site.open() as memory:
        return memory.audit.verify().findings == () and positions == [*range(1, len(positions) + 1)]


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Work on a thread of its own, and where its answer or its exception will stand."""
    answers: list[object] = []

    def run() -> None:
        try:
            answers.append(work())
        except MemorandaError as error:
            answers.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, answers


def test_every_race_has_a_test_of_its_number():
    names = re.findall(
        r"def (test_\w+)",
        "\n".join(path.read_text() for path in Path(__file__).parent.glob("*.py")),
    )
    tested = {int(n) for name in names for n in re.findall(r"_r(?:ace_)?(\d+)(?=_)", name)}

    assert tested == set(range(1, 27))


# -- two writers ----------------------------------------------------------------------------------


def test_race_r1_of_two_commits_from_one_expected_record_one_wins(stage):
    with stage.open() as memory:
        ids = [memory.publish(f"key {n}", "first").record_id for n in range(ROUNDS)]

    def correct(memory: Memory, n: int) -> object:
        return memory.correct(ids[n], 1, f"by {os.getpid()}")

    for answers in race(stage, ROUNDS, correct, correct):
        assert losers(answers) == ["F17"]
    assert is_whole(stage)


def corrected(primary: Memory, n: int) -> object:
    return primary.correct(ID, 1, f"by {n}", operation_id=f"op-{n}", sources=[ref(88)])


def chosen_raw(primary: Memory, n: int) -> object:
    """A raw commit, which names the record it expects and not a revision that it saw."""
    before = primary.revisions(ID)[0]
    expected = primary.operation(before.operation_id).intent["value"]
    own = {"agent_id": "agent-main", "executor_session_id": "s-main-1", "revision": 2}
    contributions = [*expected["contributions"], own]
    value = {**expected, "revision": 2, "tier": "core", "contributions": contributions}
    return primary.commit({"id": f"op-{n}", "key": ID, "expected": expected, "value": value})


@pytest.mark.parametrize("verb", [corrected, chosen_raw])
def test_scenario_45_of_sixteen_threads_on_one_expected_revision_one_commits(memory, primary, verb):
    made = primary.publish(KEY, "r1", sources=[ref(42)])
    start = threading.Barrier(16)

    def write(n: int) -> object:
        start.wait()
        return verb(primary, n)

    running = [in_thread(lambda n=n: write(n)) for n in range(16)]
    for thread, _ in running:
        thread.join()

    answers = [told(answer) for _, (answer,) in running]
    assert losers(answers) == ["F17"] * 15
    assert memory.read(made.record_id).record.revision == 2
    known = [memory.operation(f"op-{n}") for n in range(16)]
    assert sum(not isinstance(read, Refused) for read in known) == 1
    assert memory.audit.verify().findings == ()


def test_race_r3_one_id_with_other_bytes_in_parallel_is_refused_once(stage):
    def publish(memory: Memory, n: int) -> object:
        return memory.publish(f"key {n}", f"by {os.getpid()}", operation_id=f"op-{n}")

    for answers in race(stage, ROUNDS, publish, publish):
        assert losers(answers) == ["F21"]
    assert is_whole(stage)


def test_race_r9_scenario_51_of_a_forget_and_an_acceptance_one_comes_first(stage):
    ids = candidates(stage)

    def accept(memory: Memory, n: int) -> object:
        return memory.acting_as(MAIN).accept(ids[n], 1)

    def forget(memory: Memory, n: int) -> object:
        answer = memory.forget(ids[n], 1)
        return memory.forget(ids[n], 2) if isinstance(answer, Refused) else answer

    for accepted, forgotten in race(stage, ROUNDS, accept, forget):
        assert isinstance(forgotten, int)
        assert accepted in {"F17", "F22", "F34", "F16"} or accepted < forgotten
    with stage.open() as memory:
        assert memory.status().records == {"forgotten": ROUNDS}
        revisions = [len(memory.revisions(record_id)) for record_id in ids]
        assert set(revisions) <= {2, 3}
    assert is_whole(stage)


def test_race_r26_of_a_rejection_and_an_acceptance_of_one_revision_one_wins(stage):
    ids = candidates(stage)

    def accept(memory: Memory, n: int) -> object:
        return memory.acting_as(MAIN).accept(ids[n], 1)

    def reject(memory: Memory, n: int) -> object:
        return memory.acting_as(MAIN).reject(ids[n], 1, "a guess")

    for answers in race(stage, ROUNDS, accept, reject):
        assert losers(answers) == ["F16"]
    assert is_whole(stage)


def candidates(site: Site) -> list[str]:
    """A candidate from each message."""
    with site.open() as memory:
        main = memory.acting_as(MAIN)
        return [
            main.propose(f"key {n}", f"a secret of mine {n}", sources=[ref(n + 1)]).record_id
            for n in range(ROUNDS)
        ]


def test_race_r10_a_candidate_from_the_source_of_a_forget_is_blocked_or_purged(stage):
    ids = candidates(stage)

    def forget(memory: Memory, n: int) -> object:
        answer = memory.forget(ids[n], 1)
        return memory.forget(ids[n], 2) if isinstance(answer, Refused) else answer

    def propose(memory: Memory, n: int) -> object:
        return memory.acting_as(MAIN).propose(f"other {n}", "the same", sources=[ref(n + 1)])

    def revise(memory: Memory, n: int) -> object:
        return memory.acting_as(MAIN).revise(ids[n], 1, content=f"a secret of mine, {n} again")

    for forgotten, proposed, revised in race(stage, ROUNDS, forget, propose, revise):
        assert isinstance(forgotten, int)
        assert proposed in {"F14", "F15"}
        assert revised == "F17" or revised < forgotten
    with stage.open() as memory:
        assert memory.status().records == {"forgotten": ROUNDS}
        assert memory.remnants("a secret of mine").remnants == ()
    assert is_whole(stage)


def test_race_r23_a_retry_beside_a_forget_brings_no_body_back(stage):
    def publish(memory: Memory, n: int) -> Any:
        return memory.publish(f"key {n}", f"a secret of mine {n}", operation_id=f"op-{n}")

    with stage.open() as memory:
        made = [publish(memory, n) for n in range(ROUNDS)]

    def forget(memory: Memory, n: int) -> object:
        return memory.forget(made[n].record_id, 1)

    for n, (forgotten, retried) in enumerate(race(stage, ROUNDS, forget, publish)):
        assert isinstance(forgotten, int)
        assert retried in {"F22", made[n].position}
    with stage.open() as memory:
        assert {told(publish(memory, n)) for n in range(ROUNDS)} == {"F22"}
        assert memory.status().records == {"forgotten": ROUNDS}
        assert memory.remnants("a secret of mine").remnants == ()
    assert is_whole(stage)


# -- between the evidence and the acceptance ------------------------------------------------------


def test_race_r7_a_main_session_rebound_after_the_evidence_accepts_nothing(stage):
    made = candidates(stage)[0]

    def accept() -> None:
        with stage.open() as memory:
            main = memory.acting_as(MAIN)
            seen = main.evidence(made)
            stage.said("seen", seen.inspected_revision)
            stage.wait_for("rebound")
            stage.said("answer", told(main.accept(made, seen.inspected_revision)))

    child = stage.start(accept)
    stage.wait_for("seen")
    with stage.open() as memory:
        memory.host.bind_primary("s-main-2")
        stage.said("rebound", "s-main-2")
        stage.all_end_well(child)

        assert stage.heard("answer") == ["F2"]
        assert memory.read(made, include_inactive=True).record.revision == 1


def test_race_r8_a_candidate_revised_after_the_evidence_is_not_accepted(primary, task_7):
    made = task_7.propose(KEY, TEXT, sources=[ref(42)])
    seen = primary.evidence(made.record_id)

    task_7.revise(made.record_id, 1, content="Answers in English are wanted.")
    answer = primary.accept(made.record_id, seen.inspected_revision)

    assert (answer.refusal.number, answer.current_revision) == ("F16", 2)
    standing = primary.read(made.record_id, include_inactive=True).record
    assert (standing.status, standing.revision) == ("candidate", 2)
    assert standing.content == "Answers in English are wanted."


def test_scenario_25_an_open_conflict_outlives_restarts_and_the_candidate_stays(opened, primary):
    other = primary.publish("preference/tea", "green", sources=[ref(88)]).record_id
    made = primary.propose(KEY, TEXT, sources=[ref(42)], conflicts_with=[other])

    for _ in range(3):
        opened().close()
    read = opened().read(made.record_id, include_inactive=True)

    assert read.record.status == "candidate"
    assert [(it.other_id, it.state) for it in read.conflicts] == [(other, "open")]


# -- one reading, several notices -----------------------------------------------------------------


def test_race_r22_one_clock_reading_decides_a_whole_step(opened, world):
    memory = opened()
    memory.publish("visa", "The visa holds", expires_at="2026-10-06T12:00:30Z")
    memory.choose_tier(memory.records()[0].record.id, 1, "core")
    memory.close()
    readings = []

    def later() -> object:
        world.move(seconds=20)
        readings.append(world.moment)
        return world.moment

    hasty = opened(stamps=Stamps(now=later, entropy=world.entropy))
    readings.clear()
    world.moment = T0
    shown = [fact.content for zone in hasty.recall("visa").zones for fact in zone.facts]

    assert (shown, len(readings)) == (["The visa holds"], 1)


def test_race_r25_a_candidate_may_be_noted_in_two_steps(primary):
    made = primary.propose(KEY, TEXT, sources=[ref(42)])

    steps = [primary.recall("x", step=step) for step in ("s1", "s2")]
    noted = [primary.note_delivery(step) for step in steps]

    assert [receipt.candidate_ids for receipt in noted] == [(made.record_id,)] * 2
    assert noted[0].position < noted[1].position


# -- a crash at each stage ------------------------------------------------------------------------


def hosted(site: Site, firm: Company, step: str = "") -> Memory:
    return site.open(killed_at(step, now=lambda: T0), ports=firm.ports)


def propose(memory: Memory) -> Any:
    return memory.acting_as(TASK_7).propose(KEY, TEXT, sources=[ref(42)], operation_id="op-1")


@pytest.mark.parametrize("ending", ["resumed", "reconciled"])
@pytest.mark.parametrize("step", ["commit:prepared", "commit:protected"])
def test_races_r12_r14_what_a_crash_leaves_prepared_is_resumed_or_reconciled(site, step, ending):
    firm = company()
    child = site.start(lambda: propose(hosted(site, firm, step)))
    assert site.end_of(child) < 0

    with hosted(site, firm) as memory:
        assert [(it.operation_id, it.state) for it in memory.operations()] == [("op-1", "prepared")]
        assert memory.read(ID, include_inactive=True).refusal is Refusal.NOT_FOUND
        if ending == "resumed":
            receipt = propose(memory)
            assert (receipt.to_revision, receipt.replayed) == (1, False)
            assert memory.reconcile("op-1", **SETTLE) == receipt
        else:
            assert isinstance(memory.reconcile("op-1", **SETTLE), AbortReceipt)
            assert told(propose(memory)) == "F6"
            assert memory.read(ID, include_inactive=True).refusal is Refusal.NOT_FOUND
    assert is_whole(site)


def test_race_r13_scenario_39_after_a_crash_before_the_reply_a_retry_gets_the_receipt(site):
    child = site.start(
        lambda: site.open(killed_at("log:committed")).publish(KEY, TEXT, operation_id="op-1")
    )
    assert site.end_of(child) < 0

    with site.open() as memory:
        known = memory.operation("op-1").receipt
        again = memory.publish(KEY, TEXT, operation_id="op-1")

        assert again == known.model_copy(update={"replayed": True})
        assert [it.revision for it in memory.revisions(ID)] == [1]
    assert is_whole(site)


def test_race_r14_a_crash_before_the_append_leaves_nothing_and_a_retry_commits_once(site):
    before = positions_of(site)
    child = site.start(
        lambda: site.open(killed_at("log:commit")).publish(KEY, TEXT, operation_id="op-1")
    )
    assert site.end_of(child) < 0

    assert positions_of(site) == before
    with site.open() as memory:
        assert memory.operation("op-1").refusal is Refusal.NOT_FOUND
        assert memory.publish(KEY, TEXT, operation_id="op-1").replayed is False
    assert is_whole(site)


@pytest.mark.parametrize("step", ["commit:prepared", "commit:protected"])
def test_race_r15_a_commit_later_than_its_abort_is_refused(site, step):
    firm = company()

    def wait(name: str) -> None:
        if name == step:
            site.said("reached", name)
            site.wait_for("aborted")

    def late() -> None:
        stamps = Stamps(now=lambda: LATER, step=wait)
        with site.open(stamps, ports=firm.ports, host="backend-1") as memory:
            site.said("answer", told(propose(memory)))

    child = site.start(late)
    site.wait_for("reached")
    a_minute_on = Stamps(now=lambda: LATER + timedelta(seconds=61))
    with site.open(a_minute_on, ports=firm.ports, host="backend-2") as memory:
        abort = memory.reconcile("op-1", **SETTLE)
        site.said("aborted", "op-1")
        site.all_end_well(child)

        assert isinstance(abort, AbortReceipt)
        assert site.heard("answer") == ["F6"]
        assert memory.operation("op-1").receipt == abort
        assert memory.read(ID, include_inactive=True).refusal is Refusal.NOT_FOUND
    assert is_whole(site)


@pytest.mark.parametrize("is_hosted", [False, True], ids=["embedded", "hosted"])
def test_race_r15_the_abort_itself_refuses_a_late_commit_of_the_same_host(site, is_hosted):
    ports = company().ports if is_hosted else EMBEDDED
    request = {"name": "publish", "operation_id": "op-1", "key": KEY, "content": TEXT}

    def late() -> None:
        with site.open(ports=ports) as memory:
            assert isinstance(memory.prepare(request), PreparedReceipt)
            intent = memory.operation("op-1").intent
            site.said("prepared", "op-1")
            site.wait_for("aborted")
            site.said("answer", [told(memory.commit(it)) for it in (request, intent)])
            assert isinstance(memory.remember("of the same host and term"), Receipt)

    child = site.start(late)
    site.wait_for("prepared")
    with site.open(ports=ports) as memory:
        abort = memory.reconcile("op-1", **SETTLE)
        site.said("aborted", "op-1")
        site.all_end_well(child)

        assert site.heard("answer") == [["F6", "F6"]]
        assert memory.operation("op-1").receipt == abort
        assert memory.read(ID, include_inactive=True).refusal is Refusal.NOT_FOUND
    assert is_whole(site)


# -- hosts ----------------------------------------------------------------------------------------


@pytest.fixture
def firm() -> Company:
    return company()


class Halt:
    """Stops whoever comes to a step until it is let go."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.reached, self.let_go = threading.Event(), threading.Event()

    def __call__(self, name: str) -> None:
        if name == self.step:
            self.reached.set()
            assert self.let_go.wait(WAIT_S)


def test_race_r16_scenario_58_a_reconcile_drains_the_commit_under_way_first(opened, firm, world):
    memory = opened(ports=firm.ports)
    world.at_step = halt = Halt("commit:protected")
    writer, committed = in_thread(lambda: propose(memory))
    halt.reached.wait(WAIT_S)

    reconciler, settled = in_thread(lambda: memory.reconcile("op-1", **SETTLE))
    reconciler.join(0.1)
    assert reconciler.is_alive()
    assert "reconcile:drained" not in world.steps
    halt.let_go.set()
    writer.join()
    reconciler.join()

    assert isinstance(committed[0], Receipt)
    assert settled == committed
    assert memory.read(ID, include_inactive=True).record.revision == 1


def halted(site: Site, step: str) -> Callable[[str], None]:
    """Stops a process at a step until another one says `go`."""

    def wait(name: str) -> None:
        if name == step:
            site.said("reached", name)
            site.wait_for("go")

    return wait


def proposing(site: Site, firm: Company, step: str) -> int:
    """A process that proposes, halted at a step on the way."""

    def work() -> None:
        stamps = Stamps(now=lambda: T0, step=halted(site, step))
        with site.open(stamps, ports=firm.ports) as memory:
            site.said("answer", told(propose(memory)))

    child = site.start(work)
    site.wait_for("reached")
    return child


@pytest.mark.parametrize("step", ["commit:prepared", "commit:protected"])
def test_race_r16_a_reconcile_drains_the_other_processes_of_its_host_first(site, firm, step):
    child = proposing(site, firm, step)
    with hosted(site, firm) as memory:
        reconciler, settled = in_thread(lambda: memory.reconcile("op-1", **SETTLE))
        reconciler.join(0.3)
        assert reconciler.is_alive()
        site.said("go", "on")
        reconciler.join(WAIT_S)

        site.all_end_well(child)
        assert isinstance(settled[0], Receipt)
        assert site.heard("answer") == [settled[0].position]
    assert is_whole(site)


def test_race_r16_a_writer_that_does_not_end_is_named_and_nothing_is_written(
    site, firm, monkeypatch
):
    monkeypatch.setattr(reconcile, "DRAIN_WAIT_S", 0.1)
    child = proposing(site, firm, "commit:protected")
    with hosted(site, firm) as memory:
        before = positions_of(site)

        refused = memory.reconcile("op-1", **SETTLE)

        assert (told(refused), refused.message) == ("F24", "a writer of this host does not end")
        assert positions_of(site) == before
        site.said("go", "on")
        site.all_end_well(child)
        assert isinstance(site.heard("answer")[0], int)


def test_a_commit_that_begins_beside_a_reconcile_waits_for_it_and_is_not_fenced(site, firm):
    def work() -> None:
        stamps = Stamps(now=lambda: T0, step=halted(site, "reconcile:drained"))
        with site.open(stamps, ports=firm.ports) as memory:
            memory.prepare({"name": "publish", "operation_id": "op-9", "key": "x", "content": "x"})
            site.said("settled", told(memory.reconcile("op-9", **SETTLE)))

    child = site.start(work)
    site.wait_for("reached")
    with hosted(site, firm) as memory:
        writer, committed = in_thread(lambda: propose(memory))
        writer.join(0.3)
        assert writer.is_alive()
        site.said("go", "on")
        writer.join(WAIT_S)

        assert isinstance(committed[0], Receipt), committed
        site.all_end_well(child)
        assert site.heard("settled")[0] < committed[0].position
    assert is_whole(site)


def test_a_reconcile_ends_beside_writers_that_never_pause(site, firm):
    with hosted(site, firm) as memory:
        memory.prepare({"name": "publish", "operation_id": "op-9", "key": "x", "content": "x"})
        stopped = threading.Event()

        def write(name: str) -> int:
            n = 0
            while not stopped.is_set():
                assert isinstance(memory.publish(f"{name} {n}", "fact"), Receipt)
                n += 1
            return n

        running = [in_thread(lambda name=name: write(name)) for name in "abc"]
        settled = memory.reconcile("op-9", **SETTLE)
        stopped.set()
        for thread, _ in running:
            thread.join(WAIT_S)

        assert isinstance(settled, AbortReceipt)
        assert all(isinstance(answer, int) for _, (answer,) in running), running
    assert is_whole(site)


def test_a_record_that_a_live_process_holds_is_waited_for(site, firm):
    child = proposing(site, firm, "commit:protected")
    with hosted(site, firm) as memory:
        main = memory.acting_as(MAIN)
        writer, answers = in_thread(
            lambda: main.propose(KEY, "something else", sources=[ref(88)], operation_id="op-2")
        )
        writer.join(0.3)
        assert writer.is_alive()
        site.said("go", "on")
        writer.join(WAIT_S)

        site.all_end_well(child)
        assert told(answers[0]) == "F17"
    assert is_whole(site)


def test_a_record_that_a_dead_process_holds_is_not_waited_for(site, firm):
    child = site.start(lambda: propose(hosted(site, firm, "commit:protected")))
    assert site.end_of(child) < 0
    started = time.monotonic()
    with hosted(site, firm) as memory:
        main, writers = memory.acting_as(MAIN), memory._parts.ledger._protocol.writers
        held = memory.operation("op-1").intent["key"]
        ids = (f"mem_{n}" for n in itertools.count())
        another = next(it for it in ids if writers._lock_of(it) != writers._lock_of(held))

        with writers.counted(another):
            answer = main.propose(KEY, "something else", sources=[ref(88)], operation_id="op-2")

    assert told(answer) == "F23"
    assert time.monotonic() - started < commit_protocol.WRITER_WAIT_S / 2


def test_race_r17_a_host_reconciles_nothing_while_another_writes(site):
    def write() -> None:
        with site.open(host="backend-1") as memory:
            memory.prepare({"name": "publish", "operation_id": "op-1", "key": KEY, "content": TEXT})
            n = 0
            while isinstance(answer := memory.remember(f"fact {n}"), Receipt):
                site.said("written", answer.position)
                n += 1
            site.said("fenced", told(answer))

    child = site.start(write)
    site.wait_for("written", 3)
    with site.open(host="backend-2") as memory:
        assert told(memory.reconcile("op-1", **SETTLE)) == "F24"
        site.wait_for("written", len(site.heard("written")) + 2)
        assert isinstance(memory.remember("attached"), Receipt)
        site.all_end_well(child)
        assert site.heard("fenced") == ["F6"]
        with site.open(host="backend-1") as back:
            assert told(memory.reconcile("op-1", **SETTLE)) == "F24"
            assert back.operation("op-1").state == "prepared"
    assert is_whole(site)


def test_race_r18_an_outage_at_any_step_never_parts_a_record_from_its_receipt(opened, firm, world):
    memory = opened(ports=firm.ports)
    item = memory.acting_as(TASK_7)

    def proposed(n: int) -> Any:
        source = f"{ref(42)}#{n}-{n + 1}"
        return item.propose(f"key {n}", TEXT, sources=[source], operation_id=f"op-{n}")

    def fail() -> None:
        raise OSError("the network is down")

    world.steps.clear()
    assert isinstance(proposed(0), Receipt)
    cases = [(place, each) for place in range(len(world.steps)) for each in firm.all]
    assert len(cases) > 12

    for n, (place, provider) in enumerate(cases, start=1):
        start = len(world.steps)

        def outage(_: str, place=place, provider=provider, start=start) -> None:
            if len(world.steps) > start + place:
                provider.before = fail

        world.at_step = outage
        answer = proposed(n)
        read = memory.operation(f"op-{n}")
        receipt = None if isinstance(read, Refused) else read.receipt
        has_record = len(memory.records(include_inactive=True)) == n + 1
        assert has_record is (receipt is not None) is isinstance(answer, Receipt)
        assert isinstance(answer, Receipt) or answer.refusal.number in {"F1", "F23"}
        world.at_step, provider.before = (lambda _: None), (lambda: None)
        assert proposed(n).to_revision == 1
    assert memory.audit.verify().findings == ()


@pytest.mark.parametrize("step", ["commit:prepared", "commit:protected", "log:committed"])
def test_race_r24_a_ledger_closed_under_a_commit_leaves_a_result_or_a_guard(
    opened, firm, world, monkeypatch, step
):
    monkeypatch.setattr(operations, "SHUTDOWN_WAIT_S", 0.05)
    monkeypatch.setattr(log, "CLOSE_WAIT_S", 0.05)
    memory = opened(ports=firm.ports)
    world.at_step = halt = Halt(step)
    writer, answers = in_thread(lambda: propose(memory))
    halt.reached.wait(WAIT_S)

    memory.close()
    world.at_step = lambda _: None
    halt.let_go.set()
    writer.join()

    assert isinstance(answers[0], Receipt | OutcomeUnknown) or told(answers[0]) == "F23"
    reopened = opened(ports=firm.ports)
    listed = [(it.operation_id, it.state) for it in reopened.operations()]
    expected = "committed" if isinstance(answers[0], Receipt) else "prepared"
    assert listed == [("op-1", expected)]
    assert propose(reopened).to_revision == 1
    assert reopened.audit.verify().findings == ()


def test_a_ledger_closes_beside_threads_that_use_it_and_tells_each_that_it_is_closed(opened):
    memory = opened()
    kept = memory.publish(KEY, TEXT).record_id

    def forget() -> object:
        made = memory.remember(os.urandom(4).hex())
        return memory.forget(made.record_id, 1) if isinstance(made, Receipt) else made

    uses: list[Callable[[], object]] = [
        lambda: memory.remember(TEXT),
        forget,
        memory.rotate_keys,
        lambda: memory.read(kept),
        lambda: memory.recall("Chinese"),
        memory.query,
        memory.operations,
        memory.status,
        memory._parts.log.key_count,
    ]

    def use(verb: Callable[[], object]) -> object:
        while not isinstance(answer := verb(), Refused) or not memory._parts.log.is_closed:
            pass
        return answer

    running = [in_thread(lambda verb=verb: use(verb)) for verb in uses]
    time.sleep(0.1)
    memory.close()
    for thread, _ in running:
        thread.join(WAIT_S)

    said = [answer for _, (answer,) in running]
    assert all(isinstance(answer, MemorandaError | Refused) for answer in said), said
    assert opened().audit.verify().findings == ()


def test_scenario_59_a_shutdown_ends_in_time_and_the_next_start_lists_what_is_open(
    site, exhaustive, monkeypatch
):
    waits = operations.SHUTDOWN_WAIT_S + views.CLOSE_WAIT_S + log.CLOSE_WAIT_S
    assert host.CALLS_WAIT_S + waits < 10
    if not exhaustive:
        monkeypatch.setattr(operations, "SHUTDOWN_WAIT_S", 0.2)
        monkeypatch.setattr(log, "CLOSE_WAIT_S", 0.2)
    firm = company()

    def work() -> None:
        halt = Halt("commit:protected")
        memory = site.open(Stamps(now=lambda: T0, step=halt), ports=firm.ports)
        in_thread(lambda: propose(memory))
        halt.reached.wait(WAIT_S)
        memory.close()

    started = time.monotonic()
    site.all_end_well(site.start(work))

    assert time.monotonic() - started < 10
    with hosted(site, firm) as memory:
        assert [(it.operation_id, it.state) for it in memory.operations()] == [("op-1", "prepared")]
        assert isinstance(memory.reconcile("op-1", **SETTLE), AbortReceipt)


# -- fences ---------------------------------------------------------------------------------------

CHUNK = 1000
"""Races that are set up in one append."""

FENCES: dict[str, Callable[[Memory, int], object]] = {
    "stop": lambda memory, n: memory.host.stop_task(f"item-{n}"),
    "requirement change": lambda memory, n: memory.host.open_task(
        item_id=f"item-{n}", requirement_revision=2, captured_ref=ref(n)
    ),
    "revocation": lambda memory, n: memory.host.revoke(f"leave-{n}"),
}


def fenced_races(site: Site, numbers: range, fence: Callable[[Memory, int], object]) -> list[str]:
    """Lets the fence of an item race with its proposal, once for each number.

    How each ended by the positions in the log: committed `before` its fence, `refused`, or, which
    must never be, committed `after` it.
    """
    with site.open() as memory:
        memory.host.bind_primary("s-main-1")
        say(memory, numbers)
        authorize(memory, numbers)
        start = memory.status().position
    dice = Random(numbers.start)
    waits = [dice.uniform(0, 0.0015) for _ in numbers]

    def commit(memory: Memory, turn: int) -> object:
        n = numbers[turn]
        item = memory.acting_as(BackgroundItem(f"item-{n}", 1, "s-bg", "agent", f"leave-{n}"))
        return item.propose(f"key {n}", f"fact {n}", sources=[ref(n)])

    def fall(memory: Memory, turn: int) -> object:
        time.sleep(waits[turn])
        assert not isinstance(fence(memory, numbers[turn]), Refused)
        return Refused(Refusal.EXECUTION_FENCED)

    answers = race(site, len(numbers), commit, fall)
    with site.open() as memory:
        fences, commits = positions_by_item(memory, start)
    ends = []
    for n, (answer, _) in zip(numbers, answers, strict=True):
        position = commits.get(f"item-{n}")
        assert position == (None if answer == "F6" else answer)
        is_before = position is not None and position < fences[f"item-{n}"]
        ends.append("refused" if position is None else "before" if is_before else "after")
    return ends


def authorize(memory: Memory, numbers: range) -> None:
    with memory._parts.log.deciding() as store:
        for n in numbers:
            item, leave = f"item-{n}", f"leave-{n}"
            task = Task(item_id=item, requirement_revision=1, captured_ref=ref(n))
            store.append(Draft(TaskChanged(), task, (task_guard(item).tag,)))
            given = Authorization(
                authorization_id=leave, item_id=item, requirement_revision=1,
                executor_session_id="s-bg", guard_capable=True,
            )  # fmt: skip
            store.append(Draft(AuthorizationChanged(), given, (authorization_guard(leave).tag,)))


def positions_by_item(memory: Memory, start: int) -> tuple[dict[str, int], dict[str, int]]:
    """Where each item's fence and its commit lie in the log."""
    fences: dict[str, int] = {}
    commits: dict[str, int] = {}
    for event in events_after(memory, start):
        match event.header:
            case TaskChanged():
                fences[event.body(Task).item_id] = event.position
            case AuthorizationChanged():
                fences[event.body(Authorization).item_id] = event.position
            case RecordCommitted():
                commits[event.body(RecordBody).actor.item_id] = event.position
    return fences, commits


def events_after(memory: Memory, position: int) -> Iterator[Any]:
    with memory._parts.log.reading() as store:
        while page := store.page(position, 500):
            yield from page
            position = page[-1].position


@pytest.mark.parametrize("kind", FENCES)
def test_races_r4_r5_r6_no_commit_follows_the_fence_of_its_item(ram_site, exhaustive, kind):
    count = 1000 if kind == "stop" else 150
    rounds = range(1, (100 if exhaustive else 1) * count + 1)

    ends: list[str] = []
    for start in range(1, len(rounds) + 1, CHUNK):
        numbers = range(start, min(start + CHUNK, len(rounds) + 1))
        ends += fenced_races(ram_site, numbers, FENCES[kind])

    counts = {end: ends.count(end) for end in ("before", "refused", "after")}
    assert counts["after"] == 0
    assert min(counts["before"], counts["refused"]) > len(rounds) / 50, counts
    assert is_whole(ram_site)


def test_a_guard_read_before_the_lock_and_not_in_it_lets_commits_follow_the_stop(
    ram_site, monkeypatch
):
    """The control: with the guard taken out of the deciding transaction, the check above fails."""
    commit, judge = CommitProtocol.commit, commit_protocol.judge
    stale = {}

    def commit_by_stale_guards(self: CommitProtocol, request: Any, caller: Any) -> object:
        with self._log.reading() as store:
            stale.update({guard: store.select(guard) for guard in caller_boundary(caller)})
        return commit(self, request, caller)

    monkeypatch.setattr(CommitProtocol, "commit", commit_by_stale_guards)
    monkeypatch.setattr(commit_protocol, "judge", lambda store, it, **_: judge(store, it, stale))

    ends = fenced_races(ram_site, range(1, 201), FENCES["stop"])

    assert ends.count("after") > 0


def test_a_read_and_a_command_may_be_done_undisturbed_by_every_other_process(site):
    with site.open() as memory:
        counter = memory.publish("counter", "0").record_id

    def work(memory: Memory, _: int) -> None:
        for _ in range(10):
            with memory.undisturbed():
                seen = memory.read(counter).record
                answer = memory.correct(counter, seen.revision, str(int(seen.content) + 1))
                assert isinstance(answer, Receipt), answer

    together(site, 4, work)

    with site.open() as memory:
        assert memory.read(counter).record.content == "40"
