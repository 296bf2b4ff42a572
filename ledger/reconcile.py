"""Settling what a crash left open: the person's word, a newer term, the receipt or an abort."""

import logging
from collections.abc import Mapping

from memoranda.ledger.asking import AskReconcile
from memoranda.ledger.authority import Caller, PersonClient, actor_of
from memoranda.ledger.candidates import newest_of, stored_in
from memoranda.ledger.case import operation_selector
from memoranda.ledger.commands import admit
from memoranda.ledger.commit_protocol import CommitProtocol
from memoranda.ledger.decisions import abort, apply
from memoranda.ledger.entries import FRESH_KEY, Draft, Event, Selector, Tag
from memoranda.ledger.errors import OutcomeUnknown, Refusal, Refused, RefusedError
from memoranda.ledger.events import (
    Binding,
    ConflictChanged,
    DataSets,
    IntentBody,
    OperationAborted,
    OperationPrepared,
    ReconcileBody,
    ReconcileRecorded,
)
from memoranda.ledger.guards import BINDING
from memoranda.ledger.log import Log
from memoranda.ledger.oplog import say
from memoranda.ledger.ports import Ports
from memoranda.ledger.receipts import (
    AbortReceipt,
    ConflictReceipt,
    Receipt,
    abort_receipt_of,
    conflict_receipt_of,
    receipt_of,
)
from memoranda.ledger.screening import screen
from memoranda.ledger.sealed_store import HOST_LAPSES_US, DecidingStore, has_lapsed, holder_of
from memoranda.ledger.stamps import Stamps

Settled = Receipt | ConflictReceipt | AbortReceipt

DRAIN_WAIT_S = 10.0


class Reconcile:
    """The person's way out of an operation that nobody will finish (PM 3.5)."""

    def __init__(self, log: Log, stamps: Stamps, protocol: CommitProtocol, ports: Ports) -> None:
        self._log = log
        self._stamps = stamps
        self._protocol = protocol
        self._data_sets = ports.data_sets

    def reconcile(self, caller: Caller, request: Mapping[str, object]) -> Settled | Refused:
        """Keeps the operation's receipt or aborts exactly its intent: `{id, writers_stopped,
        reason}`. Repeating it after any crash ends the same, with the same receipt.
        """
        try:
            answer = self._settled(caller, request)
        except RefusedError as error:
            is_fenced = error.refused.refusal is Refusal.EXECUTION_FENCED
            answer = Refused(Refusal.RECONCILE_REFUSED, "term") if is_fenced else error.refused
        except OutcomeUnknown as unknown:
            say(logging.ERROR, "reconcile", outcome="unknown")
            unknown.operation_id = str(request.get("id"))
            raise
        is_refused = isinstance(answer, Refused)
        outcome = "refused" if is_refused else getattr(answer, "outcome", "committed")
        say(logging.INFO, "reconcile", outcome=outcome)
        return answer

    def _settled(self, caller: Caller, request: Mapping[str, object]) -> Settled | Refused:
        asked = admit(AskReconcile, request)
        if isinstance(asked, Refused):
            return asked
        if not isinstance(caller, PersonClient) or asked.writers_stopped is not True:
            return Refused(Refusal.RECONCILE_REFUSED, "writers_stopped")
        if asked.reason is None:
            return Refused(Refusal.RECONCILE_REFUSED, "reason")
        if isinstance(secret := screen({"reason": asked.reason}, "refuse"), Refused):
            return secret
        with self._protocol.writers.drained(DRAIN_WAIT_S) as is_drained:
            if not is_drained:
                message = "a writer of this host does not end"
                return Refused(Refusal.RECONCILE_REFUSED, message=message)
            self._stamps.step("reconcile:drained")
            with self._log.deciding() as store:
                event = self._decide(store, caller, asked.id, asked.reason)
                answer = event if isinstance(event, Refused) else _receipt(event)
        # Keys are removed, and the guard's content is gone, once the decision is durable.
        self._protocol.finish()
        return answer

    def _decide(
        self, store: DecidingStore, caller: PersonClient, operation_id: str, reason: str
    ) -> Event | Refused:
        """Binding, term, the reason, then the receipt or the abort: all of it in one append."""
        newest = store.select(operation_selector(operation_id))
        if not newest:
            return Refused(Refusal.NOT_FOUND, "id")
        event = newest[0]
        if refusal := self._refusal(store):
            return refusal
        recorded = Selector(Tag("rcl", operation_id), (ReconcileRecorded,))
        if not store.select(recorded):
            store.attach()
            store.take_term("reconciled", holder_of(store))
            body = ReconcileBody(
                operation_id=operation_id, actor=actor_of(caller, "client", None), reason=reason
            )
            # The reason may quote the record: it lies under a key that a forget of it removes.
            tags = (recorded.tag, *([tag] if (tag := event.tag("personal:rec")) else []))
            store.append(Draft(ReconcileRecorded(), body, tags, FRESH_KEY))
        if not isinstance(event.header, OperationPrepared):
            return event
        intent = event.body(IntentBody)
        assert intent is not None, "an open intent has its body"
        record = store.select(newest_of(str(intent.value["id"])))
        stored = stored_in(record[0]) if record else None
        return apply(store, abort(event, stored, store.head.term, Refusal.EXECUTION_FENCED, reason))

    def _refusal(self, store: DecidingStore) -> Refused | None:
        """F29 under another data set than the bound one, F24 while another host is live."""
        newest = store.select(BINDING)
        binding = newest[0].body(Binding) if newest else None
        # Whoever selects no provider at all can still settle what lies in the log.
        if binding is not None and self._data_sets not in {binding.data_sets, DataSets()}:
            return Refused(Refusal.BINDING_MISMATCH)
        holder = holder_of(store)
        is_ours = holder.host == self._log.host
        last = store.at(holder.since - 1 if is_ours else store.head.position)
        if last is None:
            return None
        # Of a clock that ran ahead the takeover shows nothing, if it was set right before.
        wrote = (
            min(last.recorded_at, holder.clock or last.recorded_at) if is_ours else last.recorded_at
        )
        if wrote > store.clock + HOST_LAPSES_US:
            # Nobody can tell how long ago that was; whom we fenced then appends no more.
            message = "another host's clock runs ahead; write once as this one, then wait a minute"
            return None if is_ours else Refused(Refusal.RECONCILE_REFUSED, message=message)
        if not has_lapsed(wrote, store.clock):
            message = "another host wrote within the last minute; stop it, and wait that long"
            return Refused(Refusal.RECONCILE_REFUSED, message=message)
        return None


def _receipt(event: Event) -> Settled | Refused:
    match event.header:
        case OperationAborted():
            return abort_receipt_of(event)
        case ConflictChanged():
            return conflict_receipt_of(event)
        case _:
            return receipt_of(event)
