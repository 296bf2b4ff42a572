"""The feed: brings a view up to the log before it answers, or computes it again."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from memoranda.ledger.chain import origin
from memoranda.ledger.entries import Event
from memoranda.ledger.errors import RefusedError, StorageFault
from memoranda.ledger.log import Log
from memoranda.ledger.sealed_store import SealedStore
from memoranda.projections.views import Checkpoint, View, ViewFile

PAGE = 2000
"""Events per durable step of a catch-up; the log is never held in memory."""


@contextmanager
def current(
    log: Log, views: ViewFile, *wanted: View
) -> Iterator[tuple[SealedStore, sqlite3.Connection]]:
    """One snapshot of the log and the wanted views' tables at exactly that position."""
    log.refuse_if_closed()
    # The views are held first: a snapshot taken after that is never older than a checkpoint.
    with views.held() as connection, log.reading() as store, views.answering():
        catch_up(store, views, *wanted)
        yield store, connection


def catch_up(store: SealedStore, views: ViewFile, *wanted: View) -> int:
    """Reads on from the checkpoints to the head, each event once; how many events that were.

    When the log does not hold a checkpoint's chain at its position (a restore, a fork), or the
    view has another version, it is dropped and computed from the first event.
    """
    head = (store.head.position, store.head.chain)
    starts = {view.name: views.checkpoint(view) for view in wanted}
    if all(start == head for start in starts.values()):
        return 0
    for view in wanted:
        start = starts[view.name]
        if start is None or not _is_on(store, start):
            starts[view.name] = _restart(store, views, view)
    done = {name: start.position for name, start in starts.items() if start}
    position, count = min(done.values()), 0
    while events := store.page(position, PAGE):
        with views.writing() as connection:
            for view in wanted:
                _apply(views, view, connection, [e for e in events if e.position > done[view.name]])
        position = events[-1].position
        count += len(events)
    return count


def _apply(
    views: ViewFile, view: View, connection: sqlite3.Connection, events: Sequence[Event]
) -> None:
    for event in events:
        view.apply(connection, event)
    if events:
        views.move(view, Checkpoint(events[-1].position, events[-1].row.chain))


def _restart(store: SealedStore, views: ViewFile, view: View) -> Checkpoint:
    start = Checkpoint(0, origin(store.space))
    with views.writing():
        views.drop(view)
        views.move(view, start)
    return start


def rebuild(log: Log, views: ViewFile, *wanted: View) -> int:
    """Computes the views from the first event; how many events there were."""
    log.refuse_if_closed()
    with views.held(), log.reading() as store, views.answering():
        for view in wanted:
            _restart(store, views, view)
        return catch_up(store, views, *wanted)


def purge(log: Log, views: ViewFile, *wanted: View) -> str | None:
    """Takes what was forgotten out of the views' file; why it could not, if so.

    A view that is far behind is dropped, which costs less here than reading on.
    """
    try:
        with views.held(), log.reading() as store, views.answering():
            for view in wanted:
                _purge(store, views, view)
        return None if views.truncate() else "a reader or a full disk holds the views' log up"
    except (sqlite3.Error, StorageFault, RefusedError):
        return "the file of views could not be written"


def _purge(store: SealedStore, views: ViewFile, view: View) -> None:
    checkpoint = views.checkpoint(view)
    if checkpoint is None:
        return
    if store.head.position - checkpoint.position > PAGE:
        _restart(store, views, view)
    else:
        catch_up(store, views, view)


def _is_on(store: SealedStore, checkpoint: Checkpoint) -> bool:
    """Whether the log holds exactly this chain at this position."""
    if checkpoint.position == 0:
        return checkpoint.chain == origin(store.space)
    event = store.at(checkpoint.position)
    return event is not None and event.row.chain == checkpoint.chain
