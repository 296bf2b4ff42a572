"""Host services: Personal as a plugin, `host.personal@1` and `memory.records` over one ledger."""

import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, cast

from memoranda.ledger.asking import AskReconcile
from memoranda.ledger.commands import admit
from memoranda.ledger.errors import (
    OutcomeUnknown,
    Refusal,
    Refused,
    RefusedError,
    StorageFault,
    first_of,
)
from memoranda.ledger.oplog import say
from memoranda.ledger.receipts import Receipt
from memoranda.ledger.reconcile import Settled
from memoranda.projections.evidence import SourceTime
from memoranda.projections.history import OperationRead
from memoranda.projections.query import QueryPage
from memoranda.projections.unfinished import OperationLine
from memoranda.tools.memory import Memory
from memoranda.tools.registry import (
    Call,
    Method,
    NotServed,
    Payload,
    Plugin,
    PluginHost,
    Service,
    Session,
)

A = TypeVar("A")
Documents = Callable[[], Memory]
"""The selected provider of documents: opens the person's ledger when it is first needed."""

Verb = Callable[..., object]

HOST_PERSONAL = "host.personal@1"
MEMORY_RECORDS = "memory.records@1"

OPEN_WITHIN_S = 5.0
"""How long a call waits for the provider of documents; who calls later finds what it opened."""

CALLS_WAIT_S = 1.0
"""How long a stop waits for calls under way; with the ledger's own waits below 10 s (PM 3.4)."""


class _Opening:
    """A ledger asked for from a provider, which may take its time, and what it answered."""

    def __init__(self, documents: Documents) -> None:
        self.documents = documents
        self.answer: Memory | Refused | None = None


class Personal:
    """The built-in plugin of the Personal domain: the one gate to the person's ledger.

    The tools of a model, recall and the services all pass `ask`. `data_set` names the ledger that
    the host is bound to, for the host to keep: another one is refused (F29), whoever offers it.
    """

    def __init__(self, documents: Documents, data_set: str | None = None) -> None:
        self.data_set = data_set
        self._documents = documents
        self._is_enabled = True
        self._memory: Memory | None = None
        self._opening: _Opening | None = None
        self._calls = 0
        self._changed = threading.Condition()

    def plugin(self, plugin_id: str = "personal") -> Plugin:
        """Personal as the registry takes it; its id gives it no privilege."""
        records = self._methods(_RECORDS_READS, Refusal.NOT_AUTHORIZED)
        reads = self._methods(_PERSONAL_READS, Refusal.OUTSIDE_PERSONAL)
        writes = self._methods(_PERSONAL_WRITES, Refusal.OUTSIDE_PERSONAL)
        return Plugin(
            plugin_id,
            provides=(
                Service("host.personal", "1.0.0", reads, writes),
                Service("memory.records", "1.0.0", records),
            ),
            start=self._start,
            stop=self._stop,
        )

    def ask(
        self,
        session: Session,
        verb: Callable[[Memory], A],
        outside: Refusal = Refusal.NOT_AUTHORIZED,
    ) -> A | Refused:
        """What a verb answers for the session; `outside` refuses one of another domain.

        The memory is lent for the length of the verb, so that Personal can be switched off.
        """
        with self._lent() as lent:
            strange = None if session.domain == "personal" else Refused(outside)
            if isinstance(lent, Refused):
                return first_of([lent, strange or lent])
            if strange is not None:
                return strange
            try:
                return verb(lent.acting_as(session.caller))
            except RefusedError as error:
                return error.refused
            except OutcomeUnknown as unknown:
                return unknown.refused
            except StorageFault as fault:
                return Refused(Refusal.SERVICE_UNAVAILABLE, "documents", str(fault))

    def replace(self, documents: Documents) -> None:
        """Selects another provider of documents, which must hold the same data set."""
        with self._withdrawing():
            self._documents = documents

    # -- the ledger -------------------------------------------------------------------------

    @contextmanager
    def _lent(self) -> Iterator[Memory | Refused]:
        with self._changed:
            memory = self._opened()
            self._calls += 1
        try:
            yield memory
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    def _opened(self) -> Memory | Refused:
        """The ledger, opened anew by every call until it opens: a refusal is never remembered.

        So is one that serves no more: after an unknown outcome only another opening can tell.
        """
        if not self._is_enabled:
            return Refused(Refusal.SERVICE_UNAVAILABLE, "personal", "is switched off")
        if self._memory is not None and self._memory.is_serving:
            return self._memory
        opening = self._opening
        if opening is None:
            opening, dead = _Opening(self._documents), self._memory
            self._opening, self._memory = opening, None
            threading.Thread(target=self._open, args=(opening, dead), daemon=True).start()
        self._changed.wait_for(
            lambda: opening.answer is not None or self._opening is not opening, OPEN_WITHIN_S
        )
        if opening.answer is None and self._opening is not opening:
            return self._opened()
        return opening.answer or _unavailable("the documents provider does not answer in time")

    def _open(self, opening: _Opening, dead: Memory | None) -> None:
        """Asks the provider, on a thread of its own: nobody need wait for one that hangs."""
        answer = memory = _asked_for(opening.documents, dead)
        if isinstance(memory, Memory) and self.data_set not in {None, memory.data_set}:
            answer = Refused(Refusal.BINDING_MISMATCH, "documents")
        with self._changed:
            if self._opening is opening:
                self._opening, opening.answer = None, answer
                if isinstance(answer, Memory):
                    self.data_set, self._memory = answer.data_set, answer
                self._changed.notify_all()
        if isinstance(memory, Memory) and opening.answer is not memory:
            memory.close()

    def _start(self) -> None:
        with self._changed:
            self._is_enabled = True

    def _stop(self) -> None:
        with self._withdrawing():
            self._is_enabled = False

    @contextmanager
    def _withdrawing(self) -> Iterator[None]:
        """Closes the ledger behind a change; what is then still under way is left to recovery."""
        with self._changed:
            yield
            memory, self._memory, self._opening = self._memory, None, None
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._calls, CALLS_WAIT_S)
        if memory is not None:
            memory.close()

    # -- the services -----------------------------------------------------------------------

    def _methods(self, verbs: Mapping[str, Verb], outside: Refusal) -> dict[str, Method]:
        return {name: self._method(verb, outside) for name, verb in verbs.items()}

    def _method(self, verb: Verb, outside: Refusal) -> Method:
        def answer(call: Call, payload: Payload) -> object:
            return self.ask(call.session, lambda memory: _asked(verb, memory, payload), outside)

        return answer


def _asked_for(documents: Documents, dead: Memory | None) -> Memory | Refused:
    try:
        if dead is not None:
            dead.close()
        memory: object = documents()
    except RefusedError as error:
        return error.refused
    except BaseException as error:  # noqa: BLE001  # a provider may fail in any way
        say(logging.ERROR, "documents", outcome="failed", fault=type(error).__name__)
        return _unavailable("the documents provider failed")
    return memory if isinstance(memory, Memory) else _unavailable("the provider gave no memory")


def _unavailable(message: str) -> Refused:
    return Refused(Refusal.SERVICE_UNAVAILABLE, "documents", message)


def _asked(verb: Verb, memory: Memory, payload: Payload) -> object:
    """The verb with the payload as its parameters; their values are judged by its own door."""
    try:
        given = inspect.signature(verb).bind(memory, **payload)
    except TypeError:
        message = "the parameters are not those of the method"
        return Refused(Refusal.INVALID_REQUEST, message=message)
    return verb(*given.args, **given.kwargs)


def _commit(memory: Memory, **request: object) -> Receipt | Refused:
    return memory.commit(request)


def _reconcile(memory: Memory, **request: object) -> Settled | Refused:
    asked = admit(AskReconcile, request)
    if isinstance(asked, Refused):
        return asked
    is_stopped = asked.writers_stopped is True
    return memory.reconcile(asked.id, writers_stopped=is_stopped, reason=asked.reason or "")


_RECORDS_READS: Mapping[str, Verb] = {"records": Memory.query, "read": Memory.read}
_PERSONAL_READS: Mapping[str, Verb] = {
    "records": Memory.query,
    "source": Memory.source,
    "operation": Memory.operation,
    "operations": Memory.operations,
}
_PERSONAL_WRITES: Mapping[str, Verb] = {"commit": _commit, "reconcile": _reconcile}


@dataclass(frozen=True, slots=True)
class PersonalMemory:
    """`host.personal@1`, typed, for a plugin that declares it."""

    host: PluginHost

    def records(self, **filters: object) -> QueryPage | NotServed:
        """Committed records page by page; filters and cursor as for `Memory.query`."""
        return cast("QueryPage | NotServed", self._call("records", filters))

    def source(self, ref: str) -> SourceTime | NotServed:
        """When a message was said, never what."""
        return cast("SourceTime | NotServed", self._call("source", {"ref": ref}))

    def operation(self, operation_id: str) -> OperationRead | NotServed:
        """An operation with the content first prepared, and its receipt."""
        asked = {"operation_id": operation_id}
        return cast("OperationRead | NotServed", self._call("operation", asked))

    def commit(self, request: Payload) -> Receipt | NotServed:
        """`{id, key, expected, value}`; an unknown outcome is F23, to be looked up by its id."""
        return cast("Receipt | NotServed", self._call("commit", request))

    def operations(self, **filters: object) -> tuple[OperationLine, ...] | NotServed:
        """Unresolved and ended operations, for the person's own client only (F24)."""
        return cast("tuple[OperationLine, ...] | NotServed", self._call("operations", filters))

    def reconcile(self, request: Payload) -> Settled | NotServed:
        """`{id, writers_stopped, reason}`, for the person's own client only (F24)."""
        return cast("Settled | NotServed", self._call("reconcile", request))

    def _call(self, method: str, payload: Payload) -> object:
        return self.host.call(HOST_PERSONAL, method, payload)


def personal_memory(host: PluginHost) -> PersonalMemory:
    """The person's memory as that plugin, in that execution, may use it."""
    return PersonalMemory(host)
