"""Forgetting many at once: records in batches, and captured messages for themselves."""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from memoranda.ledger.authority import Caller, PersonClient
from memoranda.ledger.decisions import Decided, apply
from memoranda.ledger.entries import Draft, Event
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import ForgetReason, MessageCaptured, MessageForgotten, Value
from memoranda.ledger.forgetting import Forgetting
from memoranda.ledger.guards import message_guard
from memoranda.ledger.holding import FORGET_TAG
from memoranda.ledger.log import Log
from memoranda.ledger.operations import Ledger
from memoranda.ledger.oplog import say
from memoranda.ledger.receipts import Receipt
from memoranda.ledger.takeover import Progress

T = TypeVar("T")

BATCH = 100
"""Records in one durable write; an interrupt between two leaves whole records behind."""


class SweepReport(Value):
    """What a forget of many did; `pending` says what still holds the erasure up.

    `aborted` are the operations without an end that fell.
    """

    forgotten: int
    messages: int
    refused: dict[str, int]
    pending: tuple[str, ...]
    aborted: int = 0


class SweptAway(NamedTuple):
    """What is to fall: records at the revisions seen, messages by their addresses, and why."""

    records: Sequence[tuple[str, int]]
    messages: Sequence[str]
    reason: ForgetReason


class Sweep:
    """Forgets what a person has seen would fall. It may be interrupted, and asked for again."""

    def __init__(self, log: Log, ledger: Ledger, forgetting: Forgetting) -> None:
        self._log = log
        self._ledger = ledger
        self._forgetting = forgetting

    def forget(
        self,
        caller: Caller,
        operation_id: str,
        swept: SweptAway,
        progress: Progress,
    ) -> SweepReport | Refused:
        """Forgets records, each at the revision seen, and messages by their addresses."""
        if not isinstance(caller, PersonClient):
            return Refused(Refusal.NOT_AUTHORIZED)
        refused: dict[str, int] = {}
        done = 0
        for batch in _batches(swept.records):
            requests = [_request(operation_id, it, swept) for it in batch]
            answers = self._ledger.commit_many(caller, requests)
            if isinstance(answers, Refused):
                return answers
            for answer in answers:
                if isinstance(answer, Refused):
                    refused[answer.code] = refused.get(answer.code, 0) + 1
            done += sum(isinstance(answer, Receipt) for answer in answers)
            progress(done, len(swept.records))
        taken = sum(self._forget_messages(batch) for batch in _batches(swept.messages))
        pending = self._forgetting.finish(is_urgent=True)
        say(logging.INFO, "forget_many", forgotten=done, messages=taken)
        return SweepReport(forgotten=done, messages=taken, refused=refused, pending=pending)

    def _forget_messages(self, addresses: Iterable[str]) -> int:
        with self._log.deciding() as store:
            events = [
                event
                for address in addresses
                for event in store.select(message_guard(address))
                if isinstance(event.header, MessageCaptured) and event.row.key_id is not None
            ]
            if events:
                apply(store, _messages_gone(events))
            return len(events)


def _messages_gone(events: Sequence[Event]) -> Decided:
    """The messages' end: what lies beside them under their keys moves to fresh ones."""
    keys = tuple(dict.fromkeys(key for it in events if (key := it.row.key_id)))
    tags = (FORGET_TAG, *(tag for event in events if (tag := event.tag("msg"))))
    draft = Draft(MessageForgotten(removed_keys=keys), tags=tags)
    return Decided(draft, erased=tuple(event.position for event in events), left_keys=keys)


def _request(operation_id: str, record: tuple[str, int], swept: SweptAway) -> dict[str, object]:
    record_id, revision = record
    # One id per record, the same whenever it is asked again.
    digest = hashlib.sha256(f"{operation_id}\0{record_id}".encode()).hexdigest()
    return {
        "name": "forget",
        "operation_id": f"forget:{digest}",
        "record_id": record_id,
        "expected_revision": revision,
        "with_sources": bool(swept.messages),
        "reason": swept.reason,
    }


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    waiting = iter(items)
    while batch := list(islice(waiting, BATCH)):
        yield batch
