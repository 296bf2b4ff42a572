"""Every shape that a log was ever written in, and how the older ones become the current.

Every concrete header names its stored type in `TOPIC`. A change of shape is a new number; the old
one keeps a golden file and gets an upcaster, so that every log ever written can be read.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import NamedTuple

from memoranda.ledger.errors import IntegrityFault
from memoranda.ledger.events import (
    AuthorizationChanged,
    BindingChanged,
    CandidatesDelivered,
    ConflictChanged,
    ForgetCompleted,
    ForgetDue,
    ForgetHeld,
    ForgetReleased,
    Header,
    Json,
    KeysRotated,
    LedgerRestored,
    MessageCaptured,
    MessageForgotten,
    MessageHidden,
    MigrationCompleted,
    OperationAborted,
    OperationPrepared,
    ReconcileRecorded,
    RecordCommitted,
    SourceBlocked,
    SpaceCreated,
    SpaceForgotten,
    TaskChanged,
    TermTaken,
    Value,
)

SHAPES: Mapping[str, type[Header]] = {
    shape.TOPIC: shape
    for shape in (
        RecordCommitted,
        OperationPrepared,
        OperationAborted,
        ConflictChanged,
        MessageCaptured,
        MessageHidden,
        MessageForgotten,
        BindingChanged,
        TaskChanged,
        AuthorizationChanged,
        CandidatesDelivered,
        TermTaken,
        ReconcileRecorded,
        LedgerRestored,
        SpaceCreated,
        SpaceForgotten,
        KeysRotated,
        ForgetHeld,
        ForgetDue,
        ForgetReleased,
        ForgetCompleted,
        SourceBlocked,
        MigrationCompleted,
    )
}


class Upcaster(NamedTuple):
    """How the JSON of an old shape becomes that of the next number."""

    becomes: str
    header: Callable[[Json], Json]
    body: Callable[[Json], Json]


UPCASTERS: dict[str, Upcaster] = {}


@cache
def stored_types(shapes: tuple[type[Header], ...]) -> tuple[str, ...]:
    """Every type under which events of these shapes may lie in a log, each's current one first."""
    return tuple(
        stored
        for shape in shapes
        for stored in (shape.TOPIC, *(it for it in UPCASTERS if _current(it) is shape))
    )


def read_header(event_type: str, raw: bytes) -> Header:
    """The header in its current shape; raises IntegrityFault for what no version ever wrote."""
    try:
        if event_type in SHAPES:
            return _read_current(event_type, raw)
        data = json.loads(raw)
        while event_type not in SHAPES:
            event_type, data = UPCASTERS[event_type].becomes, UPCASTERS[event_type].header(data)
        return SHAPES[event_type].model_validate(data)
    except (KeyError, ValueError) as error:
        raise IntegrityFault(f"a header of type {event_type} has no known shape") from error


@lru_cache(maxsize=1024)
def _read_current(event_type: str, raw: bytes) -> Header:
    # Headers are public, frozen, and few: most of a log says one of a handful of them.
    return SHAPES[event_type].model_validate_json(raw)


def read_body(event_type: str, raw: bytes) -> Value:
    """The body in its current shape; raises IntegrityFault like `read_header`."""
    try:
        if event_type not in SHAPES:
            data = json.loads(raw)
            while event_type not in SHAPES:
                event_type, data = UPCASTERS[event_type].becomes, UPCASTERS[event_type].body(data)
            raw = json.dumps(data).encode()
        shape = SHAPES[event_type].BODY
        if shape is None:
            raise IntegrityFault(f"an event of type {event_type} has no body")
        return shape.model_validate_json(raw)
    except (KeyError, ValueError) as error:
        raise IntegrityFault(f"a body of type {event_type} has no known shape") from error


def _current(event_type: str) -> type[Header]:
    while event_type not in SHAPES:
        event_type = UPCASTERS[event_type].becomes
    return SHAPES[event_type]
