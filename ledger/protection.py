"""What foreign providers answer and protect: asked before the lock, shown to the decision in it."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from memoranda.ledger.authority import Auditor, BackgroundItem, Caller, PersonClient
from memoranda.ledger.capturing import take_message
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
    Task,
    TaskChanged,
    Value,
)
from memoranda.ledger.guards import (
    BINDING,
    Observed,
    authorization_guard,
    message_guard,
    task_guard,
)
from memoranda.ledger.ports import Conversation, Ports, Protected, Provider
from memoranda.ledger.sealed_store import DecidingStore, SealedStore
from memoranda.ledger.sources import parse_ref

S = TypeVar("S")
B = TypeVar("B", bound=Value)
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
        messages = self.conversation.state.messages if self.conversation else {}
        for address, message in messages.items():
            seen[message_guard(address)] = (
                [_event(MessageCaptured(bucket=0), message)] if message else []
            )
        return seen

    def news(self, store: SealedStore) -> list[Draft]:
        """The guards that differ from the log, messages aside."""
        return [
            Draft(header, state, (guard.tag,))
            for guard, header, state in self._states(store)
            if state is not None and state != _newest(store, guard, type(state))
        ]

    def mirror(self, store: DecidingStore) -> None:
        """Appends what differs from the log; raises RefusedError (F1) where the two contradict."""
        for draft in self.news(store):
            store.append(draft)
        messages = self.conversation.state.messages if self.conversation else {}
        for message in filter(None, messages.values()):
            taken = take_message(store, message.session_id, message.seq, partial(_said, message))
            if isinstance(taken, Refused) and taken.refusal is Refusal.OPERATION_CONFLICT:
                raise _failed("conversations", "contradicts a message that was captured")

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
        by = known.data_sets if known and known.data_sets != DataSets() else self.ports.data_sets
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

        yield Held(
            ports,
            caller,
            entered("conversations", ports.conversations, addresses),
            entered("tasks", ports.tasks, [item.item_id]) if item else None,
            entered("authorizations", ports.authorizations, [item.authorization_id])
            if item and item.authorization_id
            else None,
        )


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
    return state


def _failed(name: str, what: str) -> RefusedError:
    return RefusedError(Refused(Refusal.SERVICE_UNAVAILABLE, name, f"the {name} provider {what}"))


def _newest(store: SealedStore, guard: Selector, shape: type[B]) -> B | None:
    found = store.select(guard)
    return found[0].body(shape) if found else None


def _said(message: Message, _default_time: str) -> Message:
    return message


def _left(protection: AbstractContextManager[object]) -> None:
    # What was decided is decided: a provider that cannot release changes no answer.
    with suppress(Exception):
        protection.__exit__(None, None, None)


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
