"""What foreign providers answer and protect: asked before the lock, shown to the decision in it."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from memoranda.ledger.authority import Auditor, BackgroundItem, Caller, PersonClient
from memoranda.ledger.capturing import IncomingMessage, take_message
from memoranda.ledger.commands import admit
from memoranda.ledger.entries import Draft, Event, Row, Selector
from memoranda.ledger.errors import Refusal, Refused, RefusedError
from memoranda.ledger.events import (
    Authorization,
    AuthorizationChanged,
    Binding,
    BindingChanged,
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
from memoranda.ledger.ports import PROTECT_WITHIN_S, Conversation, Ports, Protected, Provider
from memoranda.ledger.screening import screen
from memoranda.ledger.sealed_store import DecidingStore, SealedStore
from memoranda.ledger.sources import message_ref, parse_ref

S = TypeVar("S")
B = TypeVar("B", bound=Value)
MALFORMED = "gave an answer that it cannot mean"
NOBODY = "nobody"
State = tuple[Selector, Header, Value | None]


@dataclass(frozen=True)
class Held:
    """What the providers answered for one caller, while they protect it.

    The log keeps a copy of each state that a decision rested on, so that an audit finds it there.
    """

    ports: Ports
    caller: Caller
    conversation: Protected[Conversation] | None = None
    task: Protected[Task | None] | None = None
    authorization: Protected[Authorization | None] | None = None

    @property
    def is_current(self) -> bool:
        """Whether every protection still holds; compares fencing numbers only."""
        ports = self.ports
        return (
            _holds("conversations", ports.conversations, self.conversation)
            and _holds("tasks", ports.tasks, self.task)
            and _holds("authorizations", ports.authorizations, self.authorization)
        )

    def observed(self, store: SealedStore) -> Observed:
        """What stands, in place of the guard events that the log knows."""
        seen = {
            guard: [_event(header, state)] if state else []
            for guard, header, state in self._states(store)
        }
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
    def _messages(self) -> Mapping[str, Message | None]:
        return self.conversation.state.messages if self.conversation else {}

    def _states(self, store: SealedStore) -> Iterator[State]:
        if not self.ports.are_embedded:
            yield BINDING, BindingChanged(), self._binding(store)
        if isinstance(self.caller, BackgroundItem):
            if self.task is not None:
                yield task_guard(self.caller.item_id), TaskChanged(), self.task.state
            if self.authorization is not None and self.caller.authorization_id is not None:
                guard = authorization_guard(self.caller.authorization_id)
                yield guard, AuthorizationChanged(), self.authorization.state

    def _binding(self, store: SealedStore) -> Binding | None:
        """Who is bound, under the data sets that the space was bound by, if it was by any."""
        known = _newest(store, BINDING, Binding)
        binding = self.conversation.state.binding if self.conversation else known
        by = known.data_sets if known else self.ports.data_sets
        return binding.model_copy(update={"data_sets": by}) if binding else None


@contextmanager
def held(ports: Ports, caller: Caller, refs: Sequence[str], within_s: float) -> Iterator[Held]:
    """Holds every protection that a decision for this caller needs.

    Raises RefusedError (F1) naming the provider that failed or took too long.
    """
    if isinstance(caller, Auditor) or (isinstance(caller, PersonClient) and not refs):
        yield Held(ports, caller)
        return
    item = caller if isinstance(caller, BackgroundItem) else None
    addresses = list(dict.fromkeys(ref.address for text in refs if (ref := parse_ref(text))))
    with ExitStack() as protections:

        def entered(
            name: str, provider: Provider[S] | None, names: list[str]
        ) -> Protected[S] | None:
            if provider is None:
                return None
            return _entered(protections, name, partial(provider.protect, names, within_s), within_s)

        conversation = entered("conversations", ports.conversations, addresses)
        task = authorization = None
        if item:
            task = entered("tasks", ports.tasks, [item.item_id])
        if item and item.authorization_id:
            authorization = entered("authorizations", ports.authorizations, [item.authorization_id])
        _check_conversation(conversation, addresses)
        _check("tasks", task, Task, {"item_id": item.item_id if item else None})
        leave = {"authorization_id": item.authorization_id if item else None}
        _check("authorizations", authorization, Authorization, leave)
        yield Held(ports, caller, conversation, task, authorization)


def _check_conversation(answer: Protected[Any] | None, addresses: list[str]) -> None:
    """Raises RefusedError for an answer that is not about what was asked, or is malformed."""
    if answer is None:
        return
    state = answer.state
    if not isinstance(state, Conversation) or set(state.messages or ()) != set(addresses):
        raise _failed("conversations", MALFORMED)
    _check("conversations", Protected(state.binding, answer.token), Binding, {})
    for address, message in state.messages.items():
        if message is not None and not _is_message(message, address):
            raise _failed("conversations", MALFORMED)
        if message and isinstance(found := screen({"sources": message.text}, "refuse"), Refused):
            raise RefusedError(found)


def _is_message(message: object, address: str) -> bool:
    """Whether it is the message at that address, as it could have been captured."""
    if not isinstance(message, Message) or not _is_whole(message, Message):
        return False
    fields = message.model_dump(exclude={"session_id", "occurred_at"})
    incoming = {**fields, "session": message.session_id, "at": message.occurred_at}
    admitted = admit(IncomingMessage, incoming)
    is_canonical = not isinstance(admitted, Refused) and admitted.at == message.occurred_at
    return is_canonical and message_ref(message.session_id, message.seq).address == address


def _check(
    name: str, answer: Protected[Any] | None, shape: type[Value], named: Mapping[str, object]
) -> None:
    """Raises RefusedError unless the answer is nothing, or a whole value about what was asked."""
    if answer is None or answer.state is None:
        return
    is_meant = all(getattr(answer.state, field, None) == name for field, name in named.items())
    if not is_meant or not _is_whole(answer.state, shape):
        raise _failed(name, MALFORMED)


def _is_whole(state: object, shape: type[Value]) -> bool:
    """Whether a state is a value of the shape that can be written and read again."""
    try:
        return isinstance(state, shape) and state == _read_again(state)
    except (ValueError, TypeError):
        return False


def _read_again(state: Value) -> Value:
    return type(state).model_validate_json(state.model_dump_json())


def _entered(
    protections: ExitStack,
    name: str,
    protect: Callable[[], AbstractContextManager[S]],
    within_s: float,
) -> S:
    """Enters a protection on a thread of its own, which may be left waiting past the deadline."""
    answer: Future[tuple[AbstractContextManager[S], S]] = Future()

    def enter() -> None:
        try:
            protection = protect()
            state = protection.__enter__()
        except Exception as error:  # noqa: BLE001  # a provider may fail in any way
            with suppress(InvalidStateError):
                answer.set_exception(error)
            return
        try:
            answer.set_result((protection, state))
        except InvalidStateError:
            # Given up on: what came too late is released at once.
            _left(protection)

    threading.Thread(target=enter, daemon=True).start()
    wait([answer], within_s)
    if answer.cancel() or answer.exception() is not None:
        raise _failed(name, "failed or did not answer in time")
    protection, state = answer.result()
    protections.callback(_left, protection)
    if not isinstance(state, Protected) or not isinstance(state.token, int):
        raise _failed(name, MALFORMED)
    return state


def _failed(name: str, what: str) -> RefusedError:
    return RefusedError(Refused(Refusal.SERVICE_UNAVAILABLE, name, f"the {name} provider {what}"))


def _newest(store: SealedStore, guard: Selector, shape: type[B]) -> B | None:
    found = store.select(guard)
    return found[0].body(shape) if found else None


def _said(message: Message, _default_time: str) -> Message:
    return message


def _left(protection: AbstractContextManager[object]) -> None:
    # What was decided is decided: a provider that cannot release, or hangs, changes no answer.
    def leave() -> None:
        with suppress(Exception):
            protection.__exit__(None, None, None)

    leaving = threading.Thread(target=leave, daemon=True)
    leaving.start()
    leaving.join(PROTECT_WITHIN_S)


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


def _holds(name: str, provider: Provider[S] | None, protected: Protected[S] | None) -> bool:
    if provider is None or protected is None:
        return True
    try:
        return provider.fence() == protected.token
    except Exception as error:
        raise _failed(name, "failed") from error


def _event(header: Header, state: Value) -> Event:
    """A state as a decision reads it from an event."""
    row = Row(0, header.TOPIC, 0, header.model_dump_json().encode(), (), b"", b"", None, None)
    return Event(row, lambda _: state)
