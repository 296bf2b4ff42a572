"""The engine of a place: a file of its own, or a server that keeps the logs of many."""

from memoranda.ledger.errors import Refusal, Refused, RefusedError
from memoranda.ledger.places import Place
from memoranda.ledger.recorder import Engine
from memoranda.ledger.sqlite_log import SQLiteFile


def engine_of(place: Place) -> Engine:
    """What keeps the log of a place; raises RefusedError where its driver is not installed."""
    if place.engine is None:
        return SQLiteFile(place.data / place.log, place.space)
    try:
        from memoranda.ledger.postgres_log import PostgresSpace  # noqa: PLC0415  # an extra
    except ImportError as error:
        message = "PostgreSQL needs its driver: install memoranda[postgres]"
        raise RefusedError(Refused(Refusal.INVALID_REQUEST, "engine", message)) from error
    return PostgresSpace(place.engine, place.space)
