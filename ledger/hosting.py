"""The embedded host: conversations, primary binding, tasks and authorizations on the same log."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

from memoranda.ledger.capturing import (
    BUCKET_MESSAGES,
    CaptureReceipt,
    IncomingAuthorization,
    IncomingBinding,
    IncomingMessage,
    IncomingRevocation,
    IncomingStop,
    IncomingTask,
    take_message,
)
from memoranda.ledger.commands import admit
from memoranda.ledger.entries import Draft, Selector
from memoranda.ledger.errors import Refusal, Refused, RefusedError
from memoranda.ledger.events import (
    Authorization,
    AuthorizationChanged,
    Binding,
    BindingChanged,
    DataSets,
    Header,
    Task,
    TaskChanged,
)
from memoranda.ledger.guards import BINDING, authorization_guard, task_guard
from memoranda.ledger.log import Log
from memoranda.ledger.oplog import say
from memoranda.ledger.screening import SecretPolicy, screen
from memoranda.ledger.sealed_store import DecidingStore
from memoranda.ledger.stamps import Stamps

T = TypeVar("T", Binding, Task, Authorization)


class Host:
    """What the embedding host tells the ledger. The host is trusted: it vouches for identities."""

    def __init__(
        self,
        log: Log,
        stamps: Stamps,
        secrets: SecretPolicy = "refuse",
        data_sets: DataSets = DataSets(),  # noqa: B008  # frozen
    ) -> None:
        self._log = log
        self._stamps = stamps
        self._secrets = secrets
        self._data_sets = data_sets

    # -- conversations ----------------------------------------------------------------------

    def capture(
        self, messages: Iterable[Mapping[str, object]]
    ) -> Iterator[CaptureReceipt | Refused]:
        """Takes messages in, in order, each with its own answer; repeating a message is harmless.

        An address stands for one content: another text there is F21. A message that comes again
        as hidden is hidden from then on. Up to 64 messages share one durable write.
        """
        waiting = iter(messages)
        while batch := list(islice(waiting, BUCKET_MESSAGES)):
            admitted = [self._admit_message(message) for message in batch]
            try:
                with self._log.deciding() as store:
                    answers = [
                        it
                        if isinstance(it, Refused)
                        else take_message(store, it.session, it.seq, it.message_at)
                        for it in admitted
                    ]
            except RefusedError as error:
                answers = [error.refused] * len(batch)
            refused = sum(isinstance(answer, Refused) for answer in answers)
            say(logging.INFO, "capture", captured=len(answers) - refused, refused=refused)
            yield from answers

    def _admit_message(self, request: Mapping[str, object]) -> IncomingMessage | Refused:
        message = admit(IncomingMessage, request)
        if isinstance(message, Refused):
            return message
        kept = {"text": message.text, "cause": message.cause, "origin_id": message.origin_id}
        texts = {field: text for field, text in kept.items() if text is not None}
        screened = screen(texts, self._secrets)
        if isinstance(screened, Refused):
            return screened
        return message.model_copy(update=screened)

    def bind_primary(self, session_id: str) -> Binding | Refused:
        """Makes a session the primary one; the one before may only read from then on.

        Where providers were selected since, it hands the log's own authority over to them.
        """
        incoming = admit(IncomingBinding, {"session_id": session_id})
        if isinstance(incoming, Refused):
            return incoming
        fresh = Binding(
            binding_id=self._stamps.new_id("bind"),
            session_id=session_id,
            data_sets=self._data_sets,
        )

        def bound(known: Binding | None) -> Binding:
            is_known = known and known.data_sets == fresh.data_sets
            return known if known and is_known and known.session_id == session_id else fresh

        return self._put(BINDING, BindingChanged(), Binding, bound)

    # -- tasks and authorizations -----------------------------------------------------------

    def open_task(self, **request: object) -> Task | Refused:
        """Makes a background item known, or changes its requirement; fields of IncomingTask."""
        incoming = admit(IncomingTask, request)
        if isinstance(incoming, Refused):
            return incoming
        task = Task(**incoming.model_dump())
        return self._put(task_guard(task.item_id), TaskChanged(), Task, lambda _: task)

    def stop_task(self, item_id: str) -> Task | Refused:
        """Stops an item: nothing of it commits from then on."""
        incoming = admit(IncomingStop, {"item_id": item_id})
        if isinstance(incoming, Refused):
            return incoming

        def stopped(known: Task | None) -> Task | Refused:
            if known is None:
                return Refused(Refusal.NOT_FOUND, "item_id")
            return known.model_copy(update={"stopped": True})

        return self._put(task_guard(item_id), TaskChanged(), Task, stopped)

    def authorize(self, **request: object) -> Authorization | Refused:
        """Records the person's leave for an item; fields of IncomingAuthorization."""
        incoming = admit(IncomingAuthorization, request)
        if isinstance(incoming, Refused):
            return incoming
        leave = Authorization(**incoming.model_dump())
        guard = authorization_guard(leave.authorization_id)
        return self._put(guard, AuthorizationChanged(), Authorization, lambda _: leave)

    def revoke(self, authorization_id: str) -> Authorization | Refused:
        """Takes an authorization back: nothing commits under it from then on."""
        incoming = admit(IncomingRevocation, {"authorization_id": authorization_id})
        if isinstance(incoming, Refused):
            return incoming

        def revoked(known: Authorization | None) -> Authorization | Refused:
            if known is None:
                return Refused(Refusal.NOT_FOUND, "authorization_id")
            return known.model_copy(update={"revoked": True})

        guard = authorization_guard(authorization_id)
        return self._put(guard, AuthorizationChanged(), Authorization, revoked)

    def _is_bound(self, store: DecidingStore, guard: Selector) -> bool:
        """Whether the space takes its authority from the data sets of this opening (PM 3.5).

        A binding may take it from the log, which the person who binds owns.
        """
        newest = store.select(BINDING)
        binding = newest[0].body(Binding) if newest else None
        allowed = {self._data_sets, DataSets()} if guard == BINDING else {self._data_sets}
        return binding is None or binding.data_sets in allowed

    def _put(
        self,
        guard: Selector,
        header: Header,
        shape: type[T],
        change: Callable[[T | None], T | Refused],
    ) -> T | Refused:
        """Appends a guard's next state, unless it is the present one already."""
        try:
            with self._log.deciding() as store:
                newest = store.select(guard)
                known = newest[0].body(shape) if newest else None
                state = (
                    change(known)
                    if self._is_bound(store, guard)
                    else Refused(Refusal.BINDING_MISMATCH)
                )
                if not isinstance(state, Refused) and state != known:
                    store.append(Draft(header, state, (guard.tag,)))
        except RefusedError as error:
            state = error.refused
        outcome = "refused" if isinstance(state, Refused) else "done"
        say(logging.INFO, header.TOPIC, outcome=outcome)
        return state
