"""Forget, seen from every side: other openings, other processes, and what would come back."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.providers import company

from memoranda import open_memory_async
from memoranda.ledger.authority import BackgroundItem, ModelSession, PersonClient
from memoranda.ledger.errors import Refusal
from memoranda.ledger.ports import EMBEDDED, Ports
from memoranda.tools.host import Personal, personal_memory
from memoranda.tools.memory import Memory
from memoranda.tools.registry import Plugin, Registry, Requirement, Session

REF = "personal-message:s-main-1:"
CANARY = "I moved to Kyoto."


WATCH = """
import json, sys
from memoranda import open_memory
with open_memory("us_alice", **json.loads(sys.argv[1])) as memory:
    for words in sys.stdin:
        shown = [fact for zone in memory.recall(words).zones for fact in zone.facts]
        print(len(shown), len(memory.search(words)), flush=True)
"""


def test_scenario_52_a_process_that_had_the_ledger_open_lacks_the_fact_at_once(
    memory, primary, folder
):
    made = primary.publish("home", CANARY, sources=[f"{REF}50#8-25"])
    command = [sys.executable, "-c", WATCH, json.dumps(folder, default=str)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:

        def told() -> str:
            process.stdin.write("kyoto\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        assert told() == "1 1"
        assert memory.forget(made.record_id, 1).status == "forgotten"
        assert told() == "0 0"
        process.stdin.close()
    assert process.returncode == 0


def test_a_blocked_source_carries_no_fact_again_and_the_rest_of_its_message_does(memory, primary):
    made = primary.publish("home", CANARY, sources=[f"{REF}50#8-25"])
    assert len(memory.remnants(CANARY).remnants) == 2

    memory.forget(made.record_id, 1)

    again = [
        primary.publish("home", CANARY, sources=[f"{REF}50#8-25"]),
        primary.publish("town", CANARY, sources=[f"{REF}50"]),
        primary.propose("city", CANARY, sources=[f"{REF}50#20-25"]),
    ]
    assert [it.refusal.number for it in again] == ["F15"] * 3
    assert primary.publish("diet", "peanuts", sources=[f"{REF}50#0-7"]).to_revision == 1


def test_evidence_and_operation_of_another_opening_tell_nothing_of_a_forgotten_candidate(
    opened, memory, primary
):
    made = primary.propose("home", CANARY, sources=[f"{REF}50#8-25"], operation_id="op-c")
    other = opened()
    assert other.evidence(made.record_id).candidate.content == CANARY

    memory.forget(made.record_id, 1)

    assert other.evidence(made.record_id).refusal is Refusal.NOT_FOUND
    assert other.operation("op-c").intent is None
    assert other.candidates() == ()
    shown = other.query(include_inactive=True).records
    assert [it.record.status for it in shown] == ["forgotten"]
    assert CANARY not in str(shown)


# -- group F of PM 10, through every surface ------------------------------------------------------

SAID = "Please answer me in Chinese"
FACT = "Cornish is the language wanted."
PROGRAM = str(Path(sys.executable).with_name("memoranda"))


@dataclass
class Cast:
    """Who lives in the ledger, and where it lies."""

    memory: Memory
    folder: dict[str, Path]
    ports: Ports = EMBEDDED

    @property
    def primary(self) -> Memory:
        return self.memory.acting_as(ModelSession("s-main-1", "agent-main"))

    @property
    def item(self) -> Memory:
        return self.memory.acting_as(BackgroundItem("task-7", 1, "s-bg-7", "agent-bg", "ea-1"))

    def tombstone(self, record_id: str, **kept: object) -> dict[str, object]:
        """The raw request that forgets a record, with whatever it wrongly keeps."""
        read = self.primary.read(record_id, include_inactive=True)
        expected = read.record.model_dump(mode="json")
        same = ("id", "product_domain", "user_space_id")
        value = {name: expected[name] for name in same} | {
            "revision": expected["revision"] + 1,
            "status": "forgotten",
            "blocked_sources": [source["ref"] for source in expected["sources"]],
        }
        return {
            "id": f"op-{record_id[4:12]}",
            "key": record_id,
            "expected": expected,
            "value": value | kept,
        }


def named(record_id: str, revision: int) -> dict[str, object]:
    about = {"record_id": record_id, "expected_revision": revision}
    return {"name": "forget", "operation_id": f"op-{record_id[4:12]}", **about}


def by_the_verb(cast: Cast, record_id: str, revision: int) -> object:
    return cast.primary.forget(record_id, revision)


def by_a_raw_commit(cast: Cast, record_id: str, _: int) -> object:
    return cast.primary.commit(cast.tombstone(record_id))


def by_a_batch(cast: Cast, record_id: str, revision: int) -> object:
    (answer,) = cast.primary.commit_many([named(record_id, revision)])
    return answer


def by_a_durable_intent(cast: Cast, record_id: str, revision: int) -> object:
    request = named(record_id, revision)
    cast.primary.prepare(request)
    return cast.primary.commit(cast.primary.operation(str(request["operation_id"])).intent)


def by_a_sweep(cast: Cast, record_id: str, _: int) -> object:
    (source,) = cast.primary.read(record_id, include_inactive=True).record.sources
    fall = cast.memory.falling(source=source.ref)
    assert [it.record_id for it in fall.records] == [record_id]
    return cast.memory.forget_many(fall)


def by_the_command_line(cast: Cast, record_id: str, _: int) -> object:
    env = {f"MEMORANDA_{name.upper()}": str(it) for name, it in cast.folder.items()}
    env |= {"MEMORANDA_SPACE": "us_alice", "MEMORANDA_HOME": str(cast.folder["state"] / "home")}
    command = [PROGRAM, "forget", record_id, "--json"]
    run = subprocess.run(command, capture_output=True, check=True, env=env)
    return json.loads(run.stdout)["receipt"]


def by_awaiting(cast: Cast, record_id: str, revision: int) -> object:
    async def forget() -> object:
        async with open_memory_async("us_alice", ports=cast.ports, **cast.folder) as memory:
            session = memory.acting_as(ModelSession("s-main-1", "agent-main"))
            return await session.forget(record_id, revision)

    return asyncio.run(forget())


def by_the_host_service(cast: Cast, record_id: str, _: int) -> object:
    needs = (Requirement("host.personal", 1),)
    personal = Personal(lambda: cast.memory.acting_as(PersonClient()))
    registry = Registry([personal.plugin(), Plugin("butler", requires=needs)])
    registry.begin("turn", Session("personal", ModelSession("s-main-1", "agent-main")))
    return personal_memory(registry.host("butler", "turn")).commit(cast.tombstone(record_id))


SURFACES = [
    by_the_verb, by_a_raw_commit, by_a_batch, by_a_durable_intent, by_a_sweep,
    by_the_command_line, by_awaiting, by_the_host_service,
]  # fmt: skip


@pytest.fixture(params=["embedded", "foreign"])
def cast(request, folder, opened) -> Cast:
    """The fixture of PM 10; in a host that owns conversations, tasks and authorizations, too."""
    if request.param == "embedded":
        return Cast(request.getfixturevalue("memory"), folder)
    ports = company().ports
    return Cast(opened(ports=ports), folder, ports)


@pytest.mark.parametrize("surface", SURFACES, ids=lambda it: it.__name__)
def test_scenarios_47_48_49_52_hold_through_every_surface(cast, opened, surface):
    """For a candidate, and for a record that was one."""
    made = [
        cast.item.propose("language", f"{FACT} Or not.", sources=[f"{REF}42"], operation_id="op-1"),
        cast.primary.propose("tongue", FACT, sources=[f"{REF}88"], operation_id="op-2"),
    ]
    last = [made[0], cast.primary.accept(made[1].record_id, 1)]
    other = opened()
    assert other.search(FACT)
    messages = cast.memory.remnants(SAID).remnants

    for receipt in last:
        answer = surface(cast, receipt.record_id, receipt.to_revision)
        assert not hasattr(answer, "refusal"), answer

    for first, final in zip(made, last, strict=True):
        told = cast.memory.operation(first.operation_id)
        assert (told.state, told.intent) == ("committed", None)
        assert told.receipt.record_digest == first.record_digest
        assert told.current_revision == final.to_revision + 1
        assert other.read(first.record_id).refusal is Refusal.NOT_FOUND
    for key, seq in (("language", 42), ("another", 42), ("another", 88)):
        again = cast.primary.propose(key, FACT, sources=[f"{REF}{seq}"])
        assert again.refusal.number == "F15"
    assert cast.memory.remnants(SAID).remnants == messages
    assert cast.primary.source(f"{REF}42").occurred_at == "2026-10-05T09:00:00Z"
    for reader in (cast.memory, other, cast.primary):
        zones = reader.recall(FACT).zones
        assert [fact for zone in zones for fact in zone.facts] == []
    assert cast.memory.remnants(FACT).remnants == ()
    assert cast.memory.audit.verify().findings == ()


def test_scenario_50_no_raw_surface_takes_a_forget_that_keeps_a_body_field(cast):
    made = cast.item.propose("language", FACT, sources=[f"{REF}42"])
    position = cast.memory.status().position
    wrong: tuple[dict[str, object], ...] = (
        {"content": FACT}, {"sources": []}, {"blocked_sources": []},
    )  # fmt: skip
    primary = cast.primary
    raw: tuple[Callable[[dict[str, object]], object], ...] = (
        primary.commit, primary.prepare, lambda it: primary.commit_many([it])[0],
    )  # fmt: skip

    answers = [take(cast.tombstone(made.record_id, **kept)) for kept in wrong for take in raw]

    assert [it.refusal.number for it in answers] == ["F20"] * 9
    assert cast.memory.status().position == position
    assert cast.primary.commit(cast.tombstone(made.record_id)).status == "forgotten"
