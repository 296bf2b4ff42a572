"""What foreign providers answer and protect: asked before the lock, shown to the decision in it."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from memoranda.ledger.authority import Auditor, BackgroundItem, Caller, PersonClient
from memoranda.ledger.capturing import (
    AnsweredAuthorization,
    AnsweredBinding,
    AnsweredTask,
    DataSetName,
    IncomingMessage,
    take_message,
)
from memoranda.ledger.commands import Strict, admit
from memoranda.ledger.entries import Draft, Event, Row, Selector
from memoranda.ledger.errors import Refusal, Refused, RefusedError
from memoranda.ledger.events import (
    Authorization,
    AuthorizationChanged,
    Binding,
    BindingChanged,
    DataSets,
    Header,
    Message,
    MessageCaptured,
    MessageHidden,
    Task,
    TaskChanged,
    Value,
)
from memoranda.ledger.guards import (
    BINDING,
    Observed,
    Seen,
    authorization_guard,
    captured_at,
    message_guard,
    task_guard,
)
from memoranda.ledger.oplog import say
from memoranda.ledger.ports import (
    EMBEDDED,
    FENCE_WITHIN_S,
    PROTECT_WITHIN_S,
    RELEASE_WITHIN_S,
    Conversation,
    Ports,
    Protected,
)
from memoranda.ledger.screening import screen
from memoranda.ledger.sealed_store import DecidingStore, SealedStore
from memoranda.ledger.sources import message_ref, parse_ref

A = TypeVar("A")
B = TypeVar("B", bound=Value)
R = TypeVar("R", bound=Strict)
MALFORMED = "gave an answer that it cannot mean"
NOBODY = "nobody"
Names = tuple[str, ...]
Raw = dict[str, Any]
State = tuple[Selector, Header, Value | None]


class Copy(NamedTuple):
    """What was copied of an answer, as it came."""

    token: object
    state: Raw | None
    messages: Mapping[str, Raw | None]
    rebinds: object = 0


class Door(NamedTuple):
    """How a state comes in: what it becomes, by which rules, and which field names it."""

    shape: type[Value]
    rules: type[Strict]
    named: str


DOORS: Mapping[str, Door] = {
    "conversations": Door(Binding, AnsweredBinding, ""),
    "tasks": Door(Task, AnsweredTask, "item_id"),
    "authorizations": Door(Authorization, AnsweredAuthorization, "authorization_id"),
}


@dataclass(frozen=True)
class Held:
    """What the providers answered for one caller, while they protect it.

    `asked` are the names that each was asked for. The log keeps a copy of each state that a
    decision rested on, so that an audit finds it there.
    """

    ports: Ports
    caller: Caller
    asked: Mapping[str, Names] = field(default_factory=dict)
    answers: Mapping[str, Protected[Any]] = field(default_factory=dict)

    @property
    def is_current(self) -> bool:
        """Whether every protection still holds; compares fencing numbers only.

        Raises RefusedError (F1) naming the provider that failed or took too long.
        """
        if not self.answers:
            return True
        selected, asked = self.ports.selected, self.asked
        fencing = _Asking(asked, lambda name: _number(name, selected[name].fence(asked[name])))
        tokens = {name: answer.token for name, answer in self.answers.items()}
        return fencing.told_within(FENCE_WITHIN_S) == tokens

    @property
    def fences(self) -> dict[str, int]:
        """What an intent keeps: the numbers that a stop, a change, a revocation or a rebind moves.

        Of a conversation it is how often it was bound: the rest of it goes on all the time.
        """
        numbers = {name: answer.token for name, answer in self.answers.items()}
        spoken = self._conversation
        return numbers | ({"conversations": spoken.rebinds} if spoken else {})

    def observed(self, store: SealedStore) -> Observed:
        """What stands, in place of the guard events that the log knows.

        Each stands where the log has it, or is about to: an intent outlives no younger guard.
        """
        seen: dict[Selector, list[Event]] = {}
        for guard, header, state in self._states(store):
            found = store.select(guard)
            is_known = bool(found) and found[0].body(type(header).BODY or Value) == state
            position = found[0].position if is_known else store.head.position + 1
            seen[guard] = [_event(header, state, position)] if state else []
        for address, message in self._messages.items():
            seen[message_guard(address)] = (
                [_event(MessageCaptured(bucket=0), message)] if message else []
            )
        return seen

    def news(self, store: SealedStore) -> list[Draft]:
        """The guards that differ from the log, and the messages that are gone or hidden.

        Raises RefusedError (F29) where the space takes its authority from other data sets: what
        a stranger says may be neither acted on nor kept.
        """
        if self.ports.are_embedded:
            return []
        binding = _newest(store, BINDING, Binding)
        if binding and binding.data_sets != self.ports.data_sets:
            raise RefusedError(Refused(Refusal.BINDING_MISMATCH))
        drafts = []
        for guard, header, state in self._states(store):
            known = _newest(store, guard, type(header).BODY or Value)
            kept = _ended(known) if state is None else state
            if kept is not None and kept != known:
                drafts.append(Draft(header, kept, (guard.tag,)))
        return drafts + [
            Draft(MessageHidden(), tags=(message_guard(address).tag,))
            for address, message in self._messages.items()
            if (message is None or message.hidden) and _is_shown(store, address)
        ]

    def mirror(self, store: DecidingStore) -> None:
        """Appends what differs from the log; raises RefusedError (F1) where the two contradict."""
        for draft in self.news(store):
            store.append(draft)
        for message in filter(None, self._messages.values()):
            taken = take_message(store, message.session_id, message.seq, partial(_said, message))
            if isinstance(taken, Refused) and taken.refusal is Refusal.OPERATION_CONFLICT:
                raise _failed("conversations", "contradicts a message that was captured")

    @property
    def _conversation(self) -> Conversation | None:
        answer = self.answers.get("conversations")
        return answer.state if answer else None

    @property
    def _messages(self) -> Mapping[str, Message | None]:
        return self._conversation.messages if self._conversation else {}

    def _states(self, store: SealedStore) -> Iterator[State]:
        if not self.ports.are_embedded:
            yield BINDING, BindingChanged(), self._binding(store)
        if task := self.answers.get("tasks"):
            yield task_guard(self.asked["tasks"][0]), TaskChanged(), task.state
        if leave := self.answers.get("authorizations"):
            guard = authorization_guard(self.asked["authorizations"][0])
            yield guard, AuthorizationChanged(), leave.state

    def _binding(self, store: SealedStore) -> Binding | None:
        """Who is bound, under the data sets that the space was bound by, if it was by any."""
        known = _newest(store, BINDING, Binding)
        binding = self._conversation.binding if self._conversation else known
        by = known.data_sets if known else self.ports.data_sets
        return binding.model_copy(update={"data_sets": by}) if binding else None


# -- asking ---------------------------------------------------------------------------------------


def attached(ports: Ports) -> Ports:
    """The ports with the names of their data, each asked for this once.

    Raises RefusedError (F1) naming the provider that failed, took too long or names none.
    """
    selected = ports.selected
    if not selected:
        return EMBEDDED
    naming = _Asking(selected, lambda name: selected[name].data_set)
    names = naming.told_within(PROTECT_WITHIN_S)
    for provider, name in names.items():
        _admitted(provider, DataSetName, {"name": name})
    return replace(ports, data_sets=DataSets(**names))


@contextmanager
def held(ports: Ports, caller: Caller, refs: Sequence[str], within_s: float) -> Iterator[Held]:
    """Holds every protection that a decision for this caller needs.

    Raises RefusedError (F1) naming the provider that failed or took too long.
    """
    asked = _names(ports, caller, refs)
    if not asked:
        yield Held(ports, caller)
        return
    protections: dict[str, AbstractContextManager[Any]] = {}

    def entered(name: str) -> Copy:
        protection = ports.selected[name].protect(asked[name], within_s)
        answer = protection.__enter__()
        protections[name] = protection
        return _copied(name, asked[name], answer)

    entering = _Asking(asked, entered)
    try:
        copies = entering.told_within(within_s)
        answers = {name: _judged(name, asked[name], copies[name]) for name in asked}
        yield Held(ports, caller, asked, answers)
    finally:
        # What is there is released at once, and what was given up on as soon as it comes.
        _released(protections)
        entering.answer.add_done_callback(lambda _: _released(protections))


def _names(ports: Ports, caller: Caller, refs: Sequence[str]) -> dict[str, Names]:
    """What each provider is asked for: who is bound with the messages, the task, the leave."""
    if isinstance(caller, Auditor) or (isinstance(caller, PersonClient) and not refs):
        return {}
    addresses = dict.fromkeys(ref.address for text in refs if (ref := parse_ref(text)))
    names: dict[str, Names] = {"conversations": tuple(addresses)}
    if isinstance(caller, BackgroundItem):
        names["tasks"] = (caller.item_id,)
        if caller.authorization_id:
            names["authorizations"] = (caller.authorization_id,)
    return {name: names[name] for name in ports.selected if name in names}


class _Asking(Generic[A]):
    """One question to some providers, on a thread of its own that nobody has to wait for.

    They take their turns in one order everywhere, so that no two callers wait for each other.
    """

    def __init__(self, names: Iterable[str], ask: Callable[[str], A]) -> None:
        self.answer: Future[dict[str, A]] = Future()
        self._names = tuple(names)
        self._now = self._names[0]
        self._is_given_up = False
        threading.Thread(target=self._run, args=(ask,), daemon=True).start()

    def told_within(self, seconds: float) -> dict[str, A]:
        """All answers; raises RefusedError (F1) naming the provider whose turn it was."""
        wait([self.answer], seconds)
        if not self.answer.done():
            self._is_given_up = True
            raise _failed(self._now, "did not answer in time")
        error = self.answer.exception()
        if error is not None:
            raise error if isinstance(error, RefusedError) else _failed(self._now, "failed")
        return self.answer.result()

    def _run(self, ask: Callable[[str], A]) -> None:
        answers = {}
        try:
            for name in self._names:
                if self._is_given_up:
                    break
                self._now = name
                answers[name] = ask(name)
        except BaseException as error:  # noqa: BLE001  # a provider may fail in any way
            self.answer.set_exception(error)
        else:
            self.answer.set_result(answers)


def _released(protections: dict[str, AbstractContextManager[Any]]) -> None:
    # What was decided is decided: a provider that cannot release, or hangs, changes no answer.
    leaving = {}
    while protections:
        name, protection = protections.popitem()
        leaving[name] = _Asking([name], partial(_left, protection)).answer
    wait(leaving.values(), RELEASE_WITHIN_S)
    for name, left in leaving.items():
        if not left.done() or left.exception() is not None:
            say(logging.WARNING, "provider", provider=name, outcome="failed to let go")


def _left(protection: AbstractContextManager[Any], _name: str) -> None:
    protection.__exit__(None, None, None)


# -- the door -------------------------------------------------------------------------------------


def _copied(name: str, names: Names, answer: Any) -> Copy:
    """An answer in plain parts, looked at once: it may say otherwise the next time."""
    state, token, fields = answer.state, answer.token, DOORS[name].rules.model_fields
    if name != "conversations":
        return Copy(token, _parts(state, fields), {})
    messages = state.messages
    said = {address: _parts(messages[address], Message.model_fields) for address in names}
    return Copy(token, _parts(state.binding, fields), said, state.rebinds)


def _parts(state: object, fields: Iterable[str]) -> Raw | None:
    return None if state is None else {field: getattr(state, field) for field in fields}


def _judged(name: str, names: Names, copy: Copy) -> Protected[Any]:
    """Raises RefusedError for an answer that is malformed, or not about what was asked."""
    token, door = _number(name, copy.token), DOORS[name]
    state: Any = None
    if copy.state is not None:
        state = door.shape(**_admitted(name, door.rules, copy.state).model_dump())
    if name == "conversations":
        said = {address: _message(address, raw) for address, raw in copy.messages.items()}
        return Protected(Conversation(state, said, _number(name, copy.rebinds)), token)
    if state is not None and getattr(state, door.named) != names[0]:
        raise _failed(name, MALFORMED)
    return Protected(state, token)


def _admitted(name: str, rules: type[R], raw: Raw) -> R:
    admitted = admit(rules, raw)
    if isinstance(admitted, Refused):
        raise _failed(name, MALFORMED)
    return admitted


def _message(address: str, raw: Raw | None) -> Message | None:
    """The message at that address, as it could have been captured."""
    if raw is None:
        return None
    incoming = {**raw, "session": raw["session_id"], "at": raw["occurred_at"]}
    del incoming["session_id"], incoming["occurred_at"]
    message = _admitted("conversations", IncomingMessage, incoming).message_at("")
    # Whatever the door would still have to put right is no answer.
    if (
        message.model_dump() != raw
        or message_ref(message.session_id, message.seq).address != address
    ):
        raise _failed("conversations", MALFORMED)
    if isinstance(found := screen({"sources": message.text}, "refuse"), Refused):
        raise RefusedError(found)
    return message


def _number(name: str, token: object) -> int:
    if type(token) is not int or token.bit_length() > 63:
        raise _failed(name, MALFORMED)
    return token


def _failed(name: str, what: str) -> RefusedError:
    say(logging.WARNING, "provider", provider=name, outcome=what)
    return RefusedError(Refused(Refusal.SERVICE_UNAVAILABLE, name, f"the {name} provider {what}"))


# -- the log --------------------------------------------------------------------------------------


def _newest(store: SealedStore, guard: Selector, shape: type[B]) -> B | None:
    found = store.select(guard)
    return found[0].body(shape) if found else None


def _said(message: Message, _default_time: str) -> Message:
    return message


def _ended(known: Value | None) -> Value | None:
    """How a state that the provider no longer has stands on: nobody bound, stopped, revoked."""
    match known:
        case Binding():
            return known.model_copy(update={"binding_id": NOBODY, "session_id": ""})
        case Task():
            return known.model_copy(update={"stopped": True})
        case Authorization():
            return known.model_copy(update={"revoked": True})
        case _:
            return None


def _is_shown(store: SealedStore, address: str) -> bool:
    seen = Seen()
    seen.look(store, [message_guard(address)])
    known = captured_at(seen, address)
    return known is not None and not (known.is_hidden or known.message.hidden)


def _event(header: Header, state: Value, position: int = 0) -> Event:
    """A state as a decision reads it from an event."""
    row = Row(
        position, header.TOPIC, 0, header.model_dump_json().encode(), (), b"", b"", None, None
    )
    return Event(row, lambda _: state)
