"""Stored shapes: what any version ever wrote is read into the values it meant."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from memoranda.ledger import events, shapes
from memoranda.ledger.authority import ModelSession
from memoranda.ledger.entries import Draft, Selector, Tag
from memoranda.ledger.errors import IntegrityFault, Refused
from memoranda.ledger.events import (
    AbortBody,
    Actor,
    Attachment,
    Authorization,
    AuthorizationChanged,
    Binding,
    BindingChanged,
    BlockedSource,
    Body,
    CandidatesDelivered,
    Conflict,
    ConflictBody,
    ConflictChanged,
    DataSets,
    Delivery,
    ForgetCompleted,
    ForgetDue,
    ForgetHeld,
    ForgetReleased,
    Header,
    HeldWords,
    IntentBody,
    KeysRotated,
    LedgerRestored,
    Message,
    MessageCaptured,
    MessageForgotten,
    MessageHidden,
    MigrationBody,
    MigrationCompleted,
    OperationAborted,
    OperationPrepared,
    ReconcileBody,
    ReconcileRecorded,
    RecordBody,
    RecordCommitted,
    RestoredFrom,
    SourceBlocked,
    SpaceCreated,
    SpaceForgotten,
    Task,
    TaskChanged,
    TermTaken,
    Value,
)
from memoranda.ledger.guards import BINDING
from memoranda.ledger.personal import (
    Contribution,
    Record,
    Rejection,
    Source,
    Tombstone,
    record_id_of,
)
from memoranda.ledger.shapes import SHAPES, Upcaster, read_body, read_header, stored_types

GOLDEN = Path(__file__).parent / "golden"
HOME = record_id_of("home")
PLAN = record_id_of("plan")
REF = "personal-message:s-main-1:42"
PRIMARY = Actor(
    role="primary",
    agent_id="agent-main",
    session_id="s-main-1",
    item_id=None,
    authorization_id=None,
    binding_id="bind-1",
)
CLIENT = Actor(
    role="client",
    agent_id="person",
    session_id="person-client",
    item_id=None,
    authorization_id=None,
    binding_id="bind-1",
)
ITEM = Actor(
    role="item",
    agent_id="agent-bg",
    session_id="s-bg-7",
    item_id="task-7",
    authorization_id="ea-1",
    binding_id=None,
)
CONFLICT = Conflict(
    conflict_id="con-1", candidate_id=HOME, other_id=PLAN, state="open", resolution=None
)
CLOSED = Conflict(
    conflict_id="con-1", candidate_id=HOME, other_id=PLAN, state="resolved", resolution="closed"
)
RECORD = Record(
    id=HOME,
    revision=2,
    product_domain="personal",
    user_space_id="us_alice",
    status="candidate",
    tier="detail",
    content="I moved to Kyoto 🥜",
    evidence="inference",
    effective_at="2026-10-06T00:00:00Z",
    expires_at="2027-10-06T00:00:00.5Z",
    contributor_agent_id="agent-bg",
    updated_by_agent_id="agent-bg",
    sources=(
        Source(kind="personal_message", ref=f"{REF}#0-7", occurred_at="2026-10-05T09:00:00Z"),
    ),
    contributions=(Contribution(agent_id="agent-bg", executor_session_id="s-bg-7", revision=2),),
    rejections=(Rejection(ref=f"{REF}#8-9", reason="not said", revision=1),),
    blocked_sources=(f"{REF}#10-12",),
)
TOMBSTONE = Tombstone(
    id=PLAN,
    revision=3,
    product_domain="personal",
    user_space_id="us_alice",
    status="forgotten",
    blocked_sources=(REF,),
)

EXAMPLES: dict[str, list[tuple[Header, Value | None]]] = {
    "record.committed/1": [
        (
            RecordCommitted(
                family="personal",
                outcome="committed",
                from_revision=1,
                to_revision=2,
                status="candidate",
                term=0,
                removed_keys=(),
            ),
            RecordBody(
                operation_id="op-1",
                actor=ITEM,
                command={"name": "revise", "content": "I moved to Kyoto 🥜"},
                key="home",
                expected="ab" * 32,
                value=RECORD.model_dump(mode="json"),
                conflicts=(CONFLICT,),
                opened_by_item="task-7",
                earlier_rejections=(f"{REF}#20-21",),
            ),
        ),
        (
            RecordCommitted(
                family="personal",
                outcome="committed",
                from_revision=2,
                to_revision=3,
                status="forgotten",
                term=4,
                removed_keys=("a2V5LTE=", "a2V5LTI="),
            ),
            RecordBody(
                operation_id="op-2",
                actor=PRIMARY,
                command={"name": "forget"},
                key=None,
                expected="cd" * 32,
                value=TOMBSTONE.model_dump(mode="json"),
                conflicts=(CLOSED,),
                opened_by_item=None,
                earlier_rejections=(),
            ),
        ),
        (
            RecordCommitted(
                family="personal",
                outcome="committed",
                from_revision=None,
                to_revision=1,
                status="candidate",
                term=2,
                removed_keys=(),
                intent="ef" * 32,
            ),
            None,
        ),
    ],
    "operation.prepared/1": [
        (
            OperationPrepared(family="personal", to_revision=2, term=3),
            IntentBody(
                operation_id="op-5",
                actor=ITEM,
                command={"name": "revise", "content": "I moved to Kyoto 🥜"},
                key="home",
                expected="ab" * 32,
                value=RECORD.model_dump(mode="json"),
            ),
        )
    ],
    "operation.prepared/1-hosted": [
        (
            OperationPrepared(family="personal", to_revision=2, term=3),
            IntentBody(
                operation_id="op-5",
                actor=ITEM,
                command={"name": "revise", "content": "I moved to Kyoto 🥜"},
                key="home",
                expected="ab" * 32,
                value=RECORD.model_dump(mode="json"),
                fences={"tasks": 7, "authorizations": 2**63 - 1},
            ),
        )
    ],
    "operation.aborted/1": [
        (
            OperationAborted(
                family="personal",
                outcome="aborted",
                refusal="EXECUTION_FENCED",
                intent="ab" * 32,
                term=4,
                removed_keys=("a2V5LTE=",),
            ),
            AbortBody(operation_id="op-5", actor=ITEM, record_id=HOME, reason="host crashed"),
        )
    ],
    "term.taken/1": [
        (
            TermTaken(term=4, cause="reconciled"),
            Attachment(host="backend-1", since=17),
        )
    ],
    "reconcile.recorded/1": [
        (
            ReconcileRecorded(),
            ReconcileBody(operation_id="op-5", actor=PRIMARY, reason="host crashed"),
        )
    ],
    "conflict.changed/1": [
        (
            ConflictChanged(family="personal", state="resolved", term=1),
            ConflictBody(
                operation_id="op-3",
                actor=PRIMARY,
                command={"name": "conflict.resolve", "resolution": "keep_both"},
                conflict=CLOSED.model_copy(update={"resolution": "keep_both"}),
                reason="both are true",
            ),
        )
    ],
    "message.captured/1": [
        (
            MessageCaptured(bucket=64),
            Message(
                session_id="s-main-1",
                seq=42,
                role="user",
                text="我对花生过敏🥜",
                occurred_at="2026-10-05T09:00:00Z",
                origin="plugin",
                origin_id="mail-7",
                cause="reply",
                hidden=True,
                generated=True,
                truncated=True,
            ),
        ),
        (
            MessageCaptured(bucket=1),
            Message(
                session_id="s-main-1",
                seq=43,
                role="assistant",
                text="",
                occurred_at="2026-10-05T09:00:01Z",
                origin="host",
                origin_id=None,
                cause=None,
                hidden=False,
                generated=False,
                truncated=False,
            ),
        ),
    ],
    "message.hidden/1": [(MessageHidden(), None)],
    "candidates.delivered/1": [
        (
            CandidatesDelivered(),
            Delivery(
                step="step-1",
                candidate_ids=(
                    "mem_448800f070a1c5b419f7b261f803ee4b9bf720c1b67db77e20f23d7bd71a2009",
                ),
            ),
        )
    ],
    "space.forgotten/1": [(SpaceForgotten(), None)],
    "message.forgotten/1": [(MessageForgotten(removed_keys=("a2V5LTE=", "a2V5LTI=")), None)],
    "binding.changed/1": [
        (BindingChanged(), Binding(binding_id="bind-1", session_id="s-main-1")),
        (
            BindingChanged(),
            Binding(
                binding_id="bind-2",
                session_id="s-main-2",
                data_sets=DataSets(conversations="chats-1", tasks="jobs-1", authorizations=None),
            ),
        ),
    ],
    "task.changed/1": [
        (
            TaskChanged(),
            Task(item_id="task-7", requirement_revision=2, captured_ref=REF, stopped=True),
        ),
        (
            TaskChanged(),
            Task(item_id="task-8", requirement_revision=1, captured_ref=None, stopped=False),
        ),
    ],
    "authorization.changed/1": [
        (
            AuthorizationChanged(),
            Authorization(
                authorization_id="ea-1",
                item_id="task-7",
                requirement_revision=2,
                executor_session_id="s-bg-7",
                guard_capable=True,
                revoked=True,
            ),
        ),
        (
            AuthorizationChanged(),
            Authorization(
                authorization_id="ea-2",
                item_id="task-7",
                requirement_revision=2,
                executor_session_id="s-bg-7",
                guard_capable=False,
                revoked=False,
            ),
        ),
    ],
    "space.created/1": [(SpaceCreated(normalization=1), None)],
    "keys.rotated/1": [(KeysRotated(key_epoch=2), None)],
    "forget.completed/1": [
        (ForgetCompleted(through=26), None),
        (ForgetCompleted(through=29, key_epoch=4), None),
    ],
    "forget.held/1": [
        (
            ForgetHeld(revision=2, since=1_789_913_600_000_000, until=1_790_000_000_000_000),
            HeldWords(
                record_id=HOME,
                key="home",
                content="I moved to Kyoto 🥜",
                effective_at="2026-10-06T00:00:00Z",
                expires_at="2027-10-06T00:00:00.5Z",
            ),
        ),
        (
            ForgetHeld(revision=1, since=1_789_913_600_000_001, until=1_790_000_000_000_001),
            HeldWords(
                record_id="old-7", key=None, content="Tea", effective_at=None, expires_at=None
            ),
        ),
    ],
    "forget.due/1": [(ForgetDue(reading=1_790_000_000_000_002), None)],
    "forget.released/1": [
        (
            ForgetReleased(removed_keys=("a2V5LTE=", "a2V5LTI="), is_early=False, through=31),
            None,
        ),
        (ForgetReleased(removed_keys=("a2V5LTM=",), is_early=True, through=0), None),
    ],
    "record.committed/1-reasoned": [
        (
            RecordCommitted(
                family="personal",
                outcome="committed",
                from_revision=2,
                to_revision=3,
                status="forgotten",
                term=4,
                removed_keys=("a2V5LTE=", "a2V5LTI="),
                reason="sensitive",
            ),
            RecordBody(
                operation_id="op-2",
                actor=PRIMARY,
                command={"name": "forget", "reason": "sensitive"},
                key=None,
                expected="cd" * 32,
                value=TOMBSTONE.model_dump(mode="json"),
                conflicts=(CLOSED,),
                opened_by_item=None,
                earlier_rejections=(),
            ),
        )
    ],
    "record.committed/1-migrated": [
        (
            RecordCommitted(
                family="personal",
                outcome="committed",
                from_revision=None,
                to_revision=2,
                status="candidate",
                term=0,
                removed_keys=(),
                is_migrated=True,
            ),
            RecordBody(
                operation_id=f"migrate:{64 * 'a'}",
                actor=CLIENT,
                command={"name": "migrate"},
                key=None,
                expected=None,
                value=RECORD.model_dump(mode="json"),
                conflicts=(),
                opened_by_item=None,
                earlier_rejections=(),
            ),
        )
    ],
    "conflict.changed/1-migrated": [
        (
            ConflictChanged(family="personal", state="open", term=0),
            ConflictBody(
                operation_id=f"migrate:{64 * 'b'}",
                actor=CLIENT,
                command={"name": "migrate"},
                conflict=CONFLICT.model_copy(update={"other_id": None}),
                reason="both cannot be true",
            ),
        )
    ],
    "ledger.restored/1": [
        (
            LedgerRestored(position=17, term=5),
            RestoredFrom(
                position=23, chain="ab" * 32, key_epoch=2, recorded_at=1_790_000_000_000_000
            ),
        )
    ],
    "source.blocked/1": [(SourceBlocked(family="personal"), BlockedSource(ref=f"{REF}#0-7"))],
    "migration.completed/1": [
        (
            MigrationCompleted(imported=95, conflicts=5, blocked=1),
            MigrationBody(
                actor=CLIENT,
                already_there=2,
                suppressed=1,
                refused={"invalid_value": 3},
                store_digest=64 * "c",
            ),
        )
    ],
}
"""What each golden file means, every field said in full so that no default can drift.

A type may have a second file, behind a hyphen, for a form that the first does not show.
"""


def golden(name: str) -> list[dict[str, object]]:
    """The stored examples of a shape, written once by the version that introduced it."""
    return json.loads((GOLDEN / f"{name}.json").read_text())


# -- golden files ---------------------------------------------------------------------------------


def test_every_shape_ever_stored_has_a_golden_file_and_every_golden_file_a_shape():
    stored = {
        path.relative_to(GOLDEN).with_suffix("").as_posix() for path in GOLDEN.rglob("*.json")
    }

    assert {name.partition("-")[0] for name in stored} == set(SHAPES) | set(shapes.UPCASTERS)
    assert stored == set(EXAMPLES) | set(shapes.UPCASTERS)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_a_stored_shape_reads_into_the_values_it_meant(name):
    examples, event_type = golden(name), name.partition("-")[0]

    assert len(examples) == len(EXAMPLES[name])
    for example, (header, body) in zip(examples, EXAMPLES[name], strict=True):
        assert read_header(event_type, json.dumps(example["header"]).encode()) == header
        if body is None:
            assert example["body"] is None
        else:
            assert read_body(event_type, json.dumps(example["body"]).encode()) == body


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_what_is_written_today_has_the_stored_shape(name):
    for example, (header, body) in zip(golden(name), EXAMPLES[name], strict=True):
        assert json.loads(header.model_dump_json(exclude_defaults=True)) == example["header"]
        if body is not None:
            assert json.loads(body.model_dump_json(exclude_defaults=True)) == example["body"]


def test_stored_records_read_into_the_values_they_meant():
    live, gone = (example["body"]["value"] for example in golden("record.committed/1")[:2])

    assert Record.model_validate(live) == RECORD
    assert Tombstone.model_validate(gone) == TOMBSTONE


def test_every_header_is_registered_under_its_own_type():
    headers = [shape for shape in vars(events).values() if _is_concrete(shape)]

    assert {shape.TOPIC: shape for shape in headers} == dict(SHAPES)
    assert len({shape.TOPIC for shape in headers}) == len(headers)
    for shape in headers:
        name, _, number = shape.TOPIC.partition("/")
        assert name.replace(".", "").islower()
        assert number.isdecimal()


def _is_concrete(shape: object) -> bool:
    return isinstance(shape, type) and issubclass(shape, Header) and shape is not Header


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b"\xff", b'{"normalization": 1, "more": 2}', b'{"NORM": 1}']
)
def test_a_header_that_no_version_wrote_is_a_fault(raw):
    with pytest.raises(IntegrityFault, match="no known shape"):
        read_header("space.created/1", raw)


@pytest.mark.parametrize(
    "event_type", ["", "space.created", "space.created/2", "record.invented/1"]
)
def test_a_type_that_no_version_wrote_is_a_fault(event_type):
    for read in (read_header, read_body):
        with pytest.raises(IntegrityFault, match="no known shape"):
            read(event_type, b"{}")


def test_a_body_where_none_belongs_is_a_fault():
    with pytest.raises(IntegrityFault, match="has no body"):
        read_body("space.created/1", b"{}")


# -- upcasters ------------------------------------------------------------------------------------


class OldBinding(Header):
    """A made-up shape of an earlier version."""

    TOPIC = "binding.changed/0"

    reason: str


class OldBindingBody(Body):
    session: str


class OldestBinding(Header):
    """A made-up shape of the version before that."""

    TOPIC = "binding.changed/00"


class OldRecord(Header):
    """A made-up shape of a receipt that knew neither family nor outcome."""

    TOPIC = "record.committed/0"

    revisions: tuple[int | None, int]
    status: str


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Upcasters for the made-up old shapes."""
    upcasters = {
        "binding.changed/00": Upcaster(
            becomes="binding.changed/0",
            header=lambda _: {"reason": "none was kept"},
            body=lambda old: {"session": old["session"]},
        ),
        "binding.changed/0": Upcaster(
            becomes="binding.changed/1",
            header=lambda _: {},
            body=lambda old: {"binding_id": "bind-old", "session_id": old["session"]},
        ),
        "record.committed/0": Upcaster(
            becomes="record.committed/1",
            header=lambda old: {
                "family": "personal",
                "outcome": "committed",
                "from_revision": old["revisions"][0],
                "to_revision": old["revisions"][1],
                "status": old["status"],
                "term": 0,
            },
            body=lambda old: old,
        ),
    }
    for old, upcaster in upcasters.items():
        monkeypatch.setitem(shapes.UPCASTERS, old, upcaster)
    shapes.stored_types.cache_clear()
    yield
    shapes.stored_types.cache_clear()


@pytest.mark.usefixtures("older")
def test_an_old_shape_is_read_as_the_current_one_over_any_number_of_steps():
    header = read_header("binding.changed/0", b'{"reason": "asked"}')
    oldest = read_header("binding.changed/00", b"{}")

    assert header == oldest == BindingChanged()
    for event_type in ("binding.changed/0", "binding.changed/00"):
        body = read_body(event_type, b'{"session": "s-old"}')
        assert body == Binding(binding_id="bind-old", session_id="s-old")


@pytest.mark.usefixtures("older")
def test_a_shape_is_stored_under_its_own_type_and_every_older_one():
    found = stored_types((BindingChanged,))

    assert found[0] == "binding.changed/1"
    assert set(found) == {"binding.changed/1", "binding.changed/0", "binding.changed/00"}
    assert stored_types((TaskChanged,)) == ("task.changed/1",)


@pytest.mark.usefixtures("older")
def test_an_old_shape_that_does_not_fit_is_a_fault():
    with pytest.raises(IntegrityFault, match="no known shape"):
        read_header("record.committed/0", b'{"status": "accepted"}')
    with pytest.raises(IntegrityFault, match="no known shape"):
        read_body("binding.changed/0", b"{}")


@pytest.mark.usefixtures("older")
def test_old_events_are_found_by_selectors_and_folded_beside_new_ones(memory):
    log = memory._parts.log
    with log.deciding() as store:
        old = Draft(OldBinding(reason="asked"), OldBindingBody(session="s-old"), (BINDING.tag,))
        position = store.append(old).position
    old_session = memory.acting_as(ModelSession("s-old", "agent-main"))

    with log.reading() as store:
        (newest,) = store.select(BINDING)
        every = store.select(Selector(BINDING.tag, (BindingChanged,), newest=False))

    assert newest.position == position
    assert newest.body(Binding) == Binding(binding_id="bind-old", session_id="s-old")
    assert [event.row.type for event in every] == ["binding.changed/1", "binding.changed/0"]
    assert not isinstance(old_session.records(), Refused)
    memory.host.bind_primary("s-new")
    with log.reading() as store:
        assert store.select(BINDING)[0].row.type == "binding.changed/1"
    assert memory.audit.verify().findings == ()


@pytest.mark.usefixtures("older")
def test_a_record_of_an_old_shape_is_listed_revised_and_audited(memory):
    first = memory.publish("home", "I live in Kyoto")
    log = memory._parts.log
    with log.deciding() as store:
        known = store.at(first.position)
        body = known.body(RecordBody)
        value = Record.model_validate(body.value).model_copy(
            update={"revision": 2, "content": "I live in Nara"}
        )
        older = body.model_copy(
            update={
                "operation_id": "op-old",
                "expected": known.row.commitment.hex(),
                "value": value.model_dump(mode="json"),
            }
        )
        tags = (Tag("personal:op", "op-old"), Tag("personal:rec", first.record_id))
        header = OldRecord(revisions=(1, 2), status="accepted")
        store.append(Draft(header, older, tags, known.row.key_id))

    assert [read.record.content for read in memory.records()] == ["I live in Nara"]
    assert memory.read(first.record_id).record.revision == 2
    assert memory.operation("op-old").receipt.to_revision == 2
    assert memory.correct(first.record_id, 2, "I live in Osaka").to_revision == 3
    assert [revision.content for revision in memory.revisions(first.record_id)] == [
        "I live in Kyoto",
        "I live in Nara",
        "I live in Osaka",
    ]
    assert memory.audit.verify().findings == ()
    assert memory.forget(first.record_id, 3).to_revision == 4
    assert memory.audit.verify().findings == ()
