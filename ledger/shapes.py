"""Stored events read back: in their current shape, whatever version of this program wrote them."""

import json
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from memoranda.ledger.errors import IntegrityFault
from memoranda.ledger.events import SHAPES, Header, Json, Value


class Upcaster(NamedTuple):
    """How the JSON of an old shape becomes that of the next number."""

    becomes: str
    header: Callable[[Json], Json]
    body: Callable[[Json], Json]


UPCASTERS: dict[str, Upcaster] = {}


def stored_types(shape: type[Header]) -> tuple[str, ...]:
    """Every type under which events of this shape may lie in a log, the current one first."""
    older = (old for old, upcaster in UPCASTERS.items() if _current(upcaster.becomes) is shape)
    return (shape.TOPIC, *older)


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
