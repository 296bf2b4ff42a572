"""What follows a forget or an abort: the keys it names are removed, and the log says so."""

from memoranda.ledger.decisions import FORGET_TAG
from memoranda.ledger.entries import Draft, Event, Selector
from memoranda.ledger.events import ForgetCompleted, OperationAborted, RecordCommitted
from memoranda.ledger.log import Log
from memoranda.ledger.stamps import Stamps

FORGETS = Selector(FORGET_TAG, (RecordCommitted, OperationAborted), newest=False)
COMPLETIONS = Selector(FORGET_TAG, (ForgetCompleted,))


def finish_forgets(log: Log, stamps: Stamps) -> int:
    """Rolls every pending forget forward; how many there were. Repeatable after any crash.

    The tombstone comes first and the keys go second: a crash between leaves a promise that the
    log remembers, where the other order would lose a memory without a trace.
    """
    with log.deciding() as store:
        completed = store.select(COMPLETIONS)
        pending = store.select(FORGETS, after=_through(completed))
        if not pending:
            return 0
        stamps.step("forget:appended")
        log.remove_keys(tuple(key_id for event in pending for key_id in _keys(event)))
        stamps.step("forget:keys-removed")
        completion = ForgetCompleted(through=pending[-1].position)
        store.append(Draft(completion, tags=(FORGET_TAG,)))
    log.truncate()
    return len(pending)


def _through(completed: list[Event]) -> int:
    header = completed[0].header if completed else None
    return header.through if isinstance(header, ForgetCompleted) else 0


def _keys(event: Event) -> tuple[str, ...]:
    assert isinstance(event.header, RecordCommitted | OperationAborted), "others end nothing"
    return event.header.removed_keys
