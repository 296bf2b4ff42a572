"""What must hold of a log whoever wrote it: read event by event into plain dicts, and checked."""

from collections import defaultdict
from dataclasses import dataclass, field

from memoranda.ledger.entries import Event
from memoranda.ledger.errors import Refused
from memoranda.ledger.events import (
    Actor,
    Attachment,
    Authorization,
    AuthorizationChanged,
    Binding,
    BindingChanged,
    ConflictBody,
    ConflictChanged,
    ForgetHeld,
    ForgetReleased,
    IntentBody,
    Message,
    MessageCaptured,
    MessageHidden,
    OperationAborted,
    OperationPrepared,
    RecordBody,
    RecordCommitted,
    Task,
    TaskChanged,
    TermTaken,
)
from memoranda.projections.history import OperationRead

LIVE = {"candidate", "accepted", "retired"}


@dataclass
class Authority:
    """Who may do what at this moment, whoever owns that."""

    session: str | None = None
    tasks: dict[str, Task] = field(default_factory=dict)
    leaves: dict[str, Authorization] = field(default_factory=dict)

    def allows(self, actor: Actor) -> bool:
        if actor.role != "item":
            return actor.role == "client" or actor.session_id == self.session
        task, leave = self.tasks[actor.item_id], self.leaves[actor.authorization_id]
        is_stopped = task.stopped or leave.revoked or not leave.guard_capable
        return not is_stopped and (
            leave.item_id,
            leave.executor_session_id,
            leave.requirement_revision,
        ) == (actor.item_id, actor.session_id, task.requirement_revision)


@dataclass
class Oracle:
    """The log as it must be. Names are blind tags, contents are unique to their operation."""

    authority: Authority
    is_embedded: bool
    has_window: bool = False
    position: int = 0
    term: int = 0
    holder: str = "local"
    takeovers: int = 0
    wrote: dict[str, float] = field(default_factory=dict)
    """When each host last wrote, as whoever shows it the log counts the time."""
    open: dict[str, str] = field(default_factory=dict)
    """The operations that hold a record, with that record."""
    ended: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """Operation ids in clear, with their blind tags."""
    commands: dict[str, dict] = field(default_factory=dict)
    """What each operation was first, by its id."""
    revisions: dict[str, int] = field(default_factory=dict)
    values: dict[str, dict | None] = field(default_factory=dict)
    """Every record's newest value by its blind tag."""
    records: dict[str, str] = field(default_factory=dict)
    """Record ids in clear, with their blind tags."""
    said: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """What was ever said about a record."""
    gone: set[str] = field(default_factory=set)
    """What no body may say any more."""
    fallen: set[str] = field(default_factory=set)
    """What of it was forgotten, and not only aborted: what no backup gives back either."""
    kept: dict[str, set[str]] = field(default_factory=dict)
    """What a record said that the person may take back."""
    held: dict[str, str] = field(default_factory=dict)
    """The names of what is held, with its record."""
    owed: str | None = None
    """The record of which the next event must hold what it said."""
    refs: dict[str, str] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    blocked: set[str] = field(default_factory=set)

    def take(self, event: Event, host: str) -> None:
        """Reads the next event, which a process of `host` appended."""
        assert event.position == self.position + 1
        self.position = event.position
        self._kept(event)
        match event.header:
            case TermTaken(term=term):
                assert term == self.term + 1
                self.takeovers += event.body(Attachment).host != self.holder
                self.term, self.holder = term, event.body(Attachment).host
            case BindingChanged() | TaskChanged() | AuthorizationChanged():
                self._guard(event)
            case MessageCaptured() | MessageHidden():
                self._message(event)
            case OperationPrepared():
                self._prepared(event)
            case OperationAborted():
                self._ended(event)
            case RecordCommitted():
                self._committed(event)
            case ConflictChanged():
                self._conflict(event)
        assert self.holder == host, "an older term appends nothing"

    def value(self, record_id: str) -> dict | None:
        return self.values.get(self.records.get(record_id, ""))

    def end_of(self, operation_id: str) -> int | None:
        return self.ended.get(self.names.get(operation_id, ""))

    def agrees(self, read: OperationRead | Refused, operation_id: str) -> bool:
        """Whether an operation is shown as the log has it."""
        if isinstance(read, Refused):
            return False
        name = self.names[operation_id]
        if name in self.open:
            return (read.state, read.receipt) == ("prepared", None)
        return read.state != "prepared" and read.receipt.position == self.ended[name]

    def _guard(self, event: Event) -> None:
        state, authority = event.body(Binding | Task | Authorization), self.authority
        if isinstance(state, Binding):
            kept, name, now = vars(authority), "session", state.session_id
        elif isinstance(state, Task):
            kept, name, now = authority.tasks, state.item_id, state
        else:
            kept, name, now = authority.leaves, state.authorization_id, state
        if self.is_embedded:
            kept[name] = now
        assert kept[name] == now, "a copy in the log is what its provider says"

    def _message(self, event: Event) -> None:
        tag, message = _tag(event, "msg"), event.body(Message)
        if message is None:
            self.hidden |= {self.refs[tag]} if isinstance(event.header, MessageHidden) else set()
        else:
            self.refs[tag] = f"personal-message:{message.session_id}:{message.seq}"

    def _prepared(self, event: Event) -> None:
        operation, record = _tag(event, "op"), _tag(event, "rec")
        body = event.body(IntentBody)
        assert operation not in {*self.open, *self.ended}
        assert record not in self.open.values(), "another operation holds the record"
        assert self.authority.allows(body.actor)
        self.open[operation], self.names[body.operation_id] = record, operation
        self._say(operation, record, body)

    def _ended(self, event: Event) -> str:
        operation = _tag(event, "op")
        assert operation not in self.ended, "an operation has one end"
        self.ended[operation] = event.position
        record = self.open.pop(operation, None)
        assert event.header.term == self.term
        if isinstance(event.header, OperationAborted):
            assert record is not None
            self.gone |= self.said.pop(operation, set())
        return operation

    def _committed(self, event: Event) -> None:
        header, record, body = event.header, _tag(event, "rec"), event.body(RecordBody)
        operation = self._ended(event)
        assert record not in self.open.values(), "another operation holds the record"
        before = self.revisions.get(record)
        assert (header.from_revision, header.to_revision) == (before, (before or 0) + 1)
        self.revisions[record] = header.to_revision
        previous, self.values[record] = self.values.get(record), body.value if body else None
        if body is None:
            return
        assert self.authority.allows(body.actor)
        self.names[body.operation_id], self.records[body.value["id"]] = operation, record
        self._say(operation, record, body)
        if body.command["name"] == "take_back":
            self.said[record].add(str(body.value["content"]))
        if header.status == "forgotten":
            self._forgotten(record, by_model=body.actor.role != "client")
        self._sources(body, previous)

    def _forgotten(self, record: str, *, by_model: bool) -> None:
        """What the record said is held, or gone; of what lies beside it nothing is held."""
        said = self.said.pop(record, set())
        self._fall(set().union(*(self.said.pop(each, set()) for each in self._about(record))))
        if by_model and self.has_window:
            self.kept.setdefault(record, set()).update(said - self.gone)
            self.owed = record
        else:
            self._fall(said | self.kept.pop(record, set()))
            self.held = {name: of for name, of in self.held.items() if of != record}

    def _fall(self, said: set[str]) -> None:
        self.fallen |= said
        self.gone |= said

    def _kept(self, event: Event) -> None:
        """What a model forgot is held by the very next event, and let go of by its name."""
        is_held = isinstance(event.header, ForgetHeld)
        assert self.owed is None or (is_held and _tag(event, "rec") == self.owed)
        self.owed = None
        if is_held:
            self.held[_tag(event, "held")] = _tag(event, "rec")
        if isinstance(event.header, ForgetReleased):
            self._released(event)

    def _released(self, event: Event) -> None:
        names = [tag for tag in event.row.tags if tag.startswith("held:")]
        records = [self.held.pop(name) for name in names]
        for record in set(records) - set(self.held.values()):
            self._fall(self.kept.pop(record) - self.said[record])

    def _about(self, record: str) -> list[str]:
        return [record, *(name for name in self.said if record in name.split())]

    def _sources(self, body: RecordBody, previous: dict | None) -> None:
        """Every message has one live owner; what is forgotten or hidden supports nothing new."""
        live = [each for each in self.values.values() if each and each["status"] in LIVE]
        cited = [ref for each in live for ref in _refs(each)]
        assert len(cited) == len(set(cited))
        is_accepted = body.command["name"] == "accept"
        kept = [] if is_accepted or previous is None else _refs(previous)
        assert (self.hidden | self.blocked).isdisjoint(set(_refs(body.value)) - set(kept))
        self.blocked |= set(body.value["blocked_sources"])

    def _conflict(self, event: Event) -> None:
        operation, body = self._ended(event), event.body(ConflictBody)
        assert self.authority.allows(body.actor)
        self.names[body.operation_id] = operation
        sides = [self.records[body.conflict.candidate_id], self.records[body.conflict.other_id]]
        self.said[" ".join(sides)].add(body.reason)

    def _say(self, operation: str, record: str, body: IntentBody) -> None:
        assert self.commands.setdefault(body.operation_id, body.command) == body.command
        content = body.command.get("content")
        if isinstance(content, str):
            self.said[operation].add(content)
            self.said[record].add(content)


def _tag(event: Event, kind: str) -> str:
    tag = event.tag(kind)
    assert tag is not None, f"an event without its {kind} tag"
    return tag.blind


def _refs(value: dict) -> list[str]:
    return [source["ref"] for source in value.get("sources", ())]
