"""The feed: brings a view up to the log before it answers, or computes it again."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from memoranda.ledger.chain import origin
from memoranda.ledger.log import Log
from memoranda.ledger.sealed_store import SealedStore
from memoranda.projections.views import Checkpoint, View, ViewFile

PAGE = 500
"""Events per durable step of a catch-up; the log is never held in memory."""


@contextmanager
def current(
    log: Log, views: ViewFile, view: View
) -> Iterator[tuple[SealedStore, sqlite3.Connection]]:
    """One snapshot of the log and the view's tables at exactly that position."""
    # The view is held first: a snapshot taken after that is never older than the checkpoint.
    with views.held() as connection, log.reading() as store, views.answering():
        catch_up(store, views, view)
        yield store, connection


def catch_up(store: SealedStore, views: ViewFile, view: View) -> int:
    """Reads on from the view's checkpoint to the head; how many events that were.

    When the log does not hold the checkpoint's chain at its position (a restore, a fork), or the
    view has another version, it is dropped and computed from the first event.
    """
    start = views.checkpoint(view)
    if start is not None and start == (store.head.position, store.head.chain):
        return 0
    if start is None or not _is_on(store, start):
        start = Checkpoint(0, origin(store.space))
        with views.writing():
            views.drop(view)
            views.move(view, start)
    count = 0
    while events := store.page(start.position, PAGE):
        with views.writing() as connection:
            for event in events:
                view.apply(connection, event)
            start = Checkpoint(events[-1].position, events[-1].row.chain)
            views.move(view, start)
        count += len(events)
    return count


def rebuild(log: Log, views: ViewFile, view: View) -> int:
    """Computes the view from the first event; how many there were."""
    with views.held(), log.reading() as store, views.answering():
        with views.writing():
            views.drop(view)
        return catch_up(store, views, view)


def _is_on(store: SealedStore, checkpoint: Checkpoint) -> bool:
    """Whether the log holds exactly this chain at this position."""
    if checkpoint.position == 0:
        return checkpoint.chain == origin(store.space)
    event = store.at(checkpoint.position)
    return event is not None and event.row.chain == checkpoint.chain
