"""The commit protocol: one append where the log holds every guard, else prepare, protect, decide.

Source: PM 3.2. A refusal before the intent is durable leaves no trace; one after it is an abort
receipt under the same id; a fault leaves the intent open, and its record held.
"""

import fcntl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar
from zlib import crc32

from memoranda.ledger.authority import Caller
from memoranda.ledger.candidates import newest_of, prepared_on, stored_in
from memoranda.ledger.case import Moment, operation_of, operation_selector
from memoranda.ledger.decisions import Decided, RecordSlice, Slice, apply, first_boundary, judge
from memoranda.ledger.entries import Event, Selector
from memoranda.ledger.errors import (
    CLOSED,
    OutcomeUnknown,
    Refusal,
    Refused,
    RefusedError,
    StorageFault,
)
from memoranda.ledger.events import OperationPrepared
from memoranda.ledger.forgetting import Forgetting
from memoranda.ledger.guards import reader_of
from memoranda.ledger.locks import flocked, seconds_left
from memoranda.ledger.log import Log
from memoranda.ledger.personal import source_refs
from memoranda.ledger.ports import PROTECT_WITHIN_S, Ports
from memoranda.ledger.protection import Held, held
from memoranda.ledger.receipts import (
    PreparedReceipt,
    Receipt,
    prepared_receipt_of,
    receipt_of,
)
from memoranda.ledger.requests import Request
from memoranda.ledger.rules import HELD
from memoranda.ledger.sealed_store import DecidingStore, SealedStore
from memoranda.ledger.stamps import Stamps

A = TypeVar("A")
Judged = Decided | Event | Receipt | Refused

WRITER_WAIT_S = 10.0
"""How long a commit waits for another one of its host that holds the same record."""

POLL_S = 0.02
LOCKS = 16
"""Among so many locks a host's records are dealt out, to tell whose writer lives."""


class Writers:
    """The prepared commits under way on one host: in this process one per record, and all at once.

    Each holds a lock of its host from before its intent until after its end, in whatever process
    it is. To drain them is to take every such lock whole, once a gate lets nobody else begin.
    """

    def __init__(self, folder: Path, host_tag: str) -> None:
        self._gate = folder / f"gate-{host_tag}"
        self._locks = [folder / f"writers-{host_tag}-{place}" for place in range(LOCKS)]
        self._changed = threading.Condition()
        self._busy: set[str] = set()
        self._is_stopped = False

    @contextmanager
    def writing(self, record_id: str) -> Iterator[None]:
        """Alone on the record; raises RefusedError (F23) when another one does not end."""
        with self._changed:
            is_free = self._changed.wait_for(lambda: record_id not in self._busy, WRITER_WAIT_S)
            if self._is_stopped:
                raise RefusedError(CLOSED)
            if not is_free:
                raise RefusedError(Refused(Refusal.OUTCOME_UNKNOWN, "key", HELD))
            self._busy.add(record_id)
        try:
            yield
        finally:
            with self._changed:
                self._busy.discard(record_id)
                self._changed.notify_all()

    @contextmanager
    def counted(self, record_id: str) -> Iterator[None]:
        """Among those under way; raises RefusedError (busy) when a drain does not end."""
        with ExitStack() as held:
            with flocked(self._gate, fcntl.LOCK_SH, WRITER_WAIT_S):
                lock = flocked(self._lock_of(record_id), fcntl.LOCK_SH, WRITER_WAIT_S)
                held.enter_context(lock)
            yield

    def _lock_of(self, record_id: str) -> Path:
        return self._locks[crc32(record_id.encode()) % LOCKS]

    def is_other_live(self, record_id: str) -> bool:
        """Whether somebody may be under way on the record, for one who is not."""
        try:
            with flocked(self._lock_of(record_id), fcntl.LOCK_EX, 0):
                return False
        except RefusedError:
            return True

    def pause(self) -> None:
        """Waits a little, since nobody says what ends in another process."""
        with self._changed:
            self._changed.wait(POLL_S)

    @contextmanager
    def drained(self, within_s: float) -> Iterator[bool]:
        """Lets nobody begin, in any process; whether those under way have ended in time."""
        left_s = seconds_left(within_s)
        with ExitStack() as held:
            try:
                for path in (self._gate, *self._locks):
                    held.enter_context(flocked(path, fcntl.LOCK_EX, left_s()))
            except RefusedError:
                yield False
            else:
                yield True

    def drain(self, within_s: float) -> bool:
        """Waits for those of this process; False when some are still not done."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, within_s)

    def stop(self) -> None:
        """Lets nobody begin from here on."""
        with self._changed:
            self._is_stopped = True


class CommitProtocol:
    """How an admitted request on one record becomes a receipt.

    What a model's session forgets is held for the person for `forget_window` microseconds.
    """

    def __init__(
        self,
        log: Log,
        stamps: Stamps,
        ports: Ports,
        forgetting: Forgetting,
        *,
        forget_window: int = 0,
    ) -> None:
        self._forget_window = forget_window
        self._log = log
        self._stamps = stamps
        self._ports = ports
        self.forgetting = forgetting
        self.writers = Writers(log.place.data, log.host_tag)

    @property
    def is_embedded(self) -> bool:
        """Whether the log holds every guard, so that a commit is one append."""
        return self._ports.are_embedded

    def commit(self, request: Request, caller: Caller) -> Receipt | Refused:
        """Decides; raises OutcomeUnknown when nobody can tell whether it became durable."""
        if self.is_embedded:
            first = first_boundary(request, caller, self._log.space)
            with self._log.deciding(first) as store:
                decision = self._judged(store, request, caller, first)
                answer = _applied(store, decision)
            return self._rolled_on(decision, answer)
        with self._turn(request):
            try:
                prepared = self._prepare(request, caller)
            except RefusedError as error:
                is_open = self._is_open(request)
                return _open(error.refused, request) if is_open else error.refused
            if not isinstance(prepared, PreparedReceipt):
                return prepared
            self._stamps.step("commit:prepared")
            return self._settle(request, caller)

    @contextmanager
    def _turn(self, request: Request) -> Iterator[None]:
        """Alone on the record among the writers of this host that live (PM 3.2, step 3)."""
        with self.writers.writing(request.record_id):
            left_s = seconds_left(WRITER_WAIT_S)
            while self._is_held(request) and self.writers.is_other_live(request.record_id):
                if not left_s():
                    break
                self.writers.pause()
            with self.writers.counted(request.record_id):
                yield

    def _is_held(self, request: Request) -> bool:
        """Whether another operation holds the record."""
        with self._log.reading() as store:
            holder = store.select(prepared_on(request.record_id))
            newest = store.select(operation_of(holder[0])) if holder else []
            mine = store.select(operation_selector(request.operation_id))
        is_open = bool(newest) and newest[0].position == holder[0].position
        return is_open and [it.position for it in mine] != [holder[0].position]

    def _is_open(self, request: Request) -> bool:
        """Whether the operation was prepared before, and has no end."""
        with self._log.reading() as store:
            newest = store.select(operation_selector(request.operation_id))
        return bool(newest) and isinstance(newest[0].header, OperationPrepared)

    def decide(self, store: DecidingStore, request: Request, caller: Caller) -> Receipt | Refused:
        """One decision of several inside a deciding transaction; `finish` follows it."""
        return _receipt(_applied(store, self._judged(store, request, caller)))

    def finish(self) -> None:
        """Removes the keys that were named; a fault comes after the append: nobody may say no."""
        try:
            self.forgetting.finish()
        except (StorageFault, RefusedError) as error:
            raise OutcomeUnknown("it is durable; the keys it names are removed later") from error

    def prepare(self, request: Request, caller: Caller) -> PreparedReceipt | Receipt | Refused:
        """Makes the intent durable and lets it hold its record."""
        with self._turn(request):
            return self._prepare(request, caller)

    def decide_once(
        self, slice_at: Callable[[Moment], Slice[A | Refused]], caller: Caller
    ) -> Event | A | Refused:
        """A decision of one append that holds no record, under the caller's protections."""
        protection = held(self._ports, caller, (), PROTECT_WITHIN_S)
        with protection as protected, self._log.deciding() as store:
            moment = self._moment(store, protected)
            decision = judge(store, slice_at(moment), protected.observed(store))
            if isinstance(decision, Decided):
                protected.mirror(store)
                return apply(store, decision)
            return decision

    def observe(self, caller: Caller, record_id: str | None = None) -> None:
        """Takes into the log what the providers say now, for those who only read.

        Of a caller who and what it is, of a record the messages it rests on.
        """
        if self.is_embedded:
            return
        self._copy(caller, [])
        if record_id is None:
            return
        with self._log.reading() as known:
            # Nobody's messages are asked for, for one who may not see them.
            is_allowed = not isinstance(reader_of(known, caller, "evidence"), Refused)
            refs = _sources(known, record_id) if is_allowed else []
        if refs:
            self._copy(caller, refs)

    def _copy(self, caller: Caller, refs: list[str]) -> None:
        with held(self._ports, caller, refs, PROTECT_WITHIN_S) as protected:
            with self._log.reading() as known:
                if not protected.news(known):
                    return
            with self._log.deciding() as store:
                # What was lost meanwhile may be older than what another process has copied since.
                if not protected.is_current:
                    return
                protected.mirror(store)

    def _prepare(self, request: Request, caller: Caller) -> PreparedReceipt | Receipt | Refused:
        with self._holding(request, caller) as protected, self._log.deciding() as store:
            moment = self._moment(store, protected)
            slice_ = RecordSlice(request, caller, self._log.space, moment, is_prepare=True)
            decision: Judged = judge(store, slice_, protected.observed(store))
            answer = _applied(store, decision, protected)
        if isinstance(answer, Event) and isinstance(answer.header, OperationPrepared):
            return prepared_receipt_of(answer, replayed=not isinstance(decision, Decided))
        return self._rolled_on(decision, answer)

    def _settle(self, request: Request, caller: Caller) -> Receipt | Refused:
        """Decides what is prepared, under every protection; a provider that fails leaves it so."""
        try:
            term = self._log.head().term
            with self._holding(request, caller) as protected:
                self._stamps.step("commit:protected")
                with self._log.deciding() as store:
                    moment = self._moment(store, protected)
                    is_fenced = moment.is_fenced or store.held_term != term
                    moment = moment._replace(is_fenced=is_fenced)
                    slice_ = RecordSlice(request, caller, self._log.space, moment)
                    decision: Judged = judge(store, slice_, protected.observed(store))
                    answer = _applied(store, decision, protected)
        except StorageFault as fault:
            raise OutcomeUnknown(f"{fault}; the operation stays prepared") from fault
        except RefusedError as error:
            refused = error.refused
            is_fenced = refused.refusal is Refusal.EXECUTION_FENCED
            return refused if is_fenced else _open(refused, request)
        return self._rolled_on(decision, answer)

    def _judged(
        self,
        store: DecidingStore,
        request: Request,
        caller: Caller,
        first: Sequence[Selector] = (),
    ) -> Judged:
        slice_ = RecordSlice(request, caller, self._log.space, self._moment(store))
        return judge(store, slice_, first=first)

    def _rolled_on(
        self,
        decision: Judged,
        answer: Event | Receipt | Refused,
    ) -> Receipt | Refused:
        names_keys = isinstance(decision, Decided) and decision.names_keys
        if names_keys or self.forgetting.is_owed:
            self.finish()
        return _receipt(answer)

    @contextmanager
    def _holding(self, request: Request, caller: Caller) -> Iterator[Held]:
        with self._log.reading() as store:
            refs = _cited(store, request)
        with held(self._ports, caller, refs, PROTECT_WITHIN_S) as protected:
            yield protected

    def _moment(self, store: DecidingStore, protected: Held | None = None) -> Moment:
        moment = Moment(
            store.clock,
            store.head.term,
            self._stamps.new_id,
            self._ports.data_sets,
            forget_window=self._forget_window,
        )
        if protected is None:
            return moment
        return moment._replace(is_fenced=not protected.is_current, fences=protected.fences)


def _cited(store: SealedStore, request: Request) -> list[str]:
    """The references whose messages a decision will look at."""
    if request.change is None:
        return []
    if request.change.action == "accept":
        return _sources(store, request.record_id)
    return [source.ref for source in request.change.sources or ()]


def _sources(store: SealedStore, record_id: str) -> list[str]:
    found = store.select(newest_of(record_id))
    stored = stored_in(found[0]) if found else None
    return list(source_refs(stored.value)) if stored else []


def _applied(
    store: DecidingStore,
    decision: Judged,
    protected: Held | None = None,
) -> Event | Receipt | Refused:
    if not isinstance(decision, Decided):
        return decision
    if protected is not None and decision.refused is None:
        protected.mirror(store)
    event = apply(store, decision)
    return decision.refused or event


def _open(refused: Refused, request: Request) -> Refused:
    """What stands in the way of an operation that is prepared: it is not refused by that."""
    message = f"{refused.message or refused.code}; the operation stays prepared"
    operation_id = request.operation_id
    return Refused(Refusal.OUTCOME_UNKNOWN, refused.field, message, operation_id=operation_id)


def _receipt(answer: Event | Receipt | Refused) -> Receipt | Refused:
    return receipt_of(answer) if isinstance(answer, Event) else answer
