"""The hash chain over what the log says in public: header, commitment, tags, order and time."""

import hashlib
from collections.abc import Iterable
from struct import pack


def origin(space: str) -> bytes:
    """The link before the first event; it binds the chain to its space."""
    return hashlib.sha256(b"memoranda/chain/v1" + framed(space.encode())).digest()


def link(previous: bytes, position: int, recorded_at: int, parts: "LinkedParts") -> bytes:
    """The chain after one event (DESIGN 3): 32 bytes; times in microseconds.

    The tags are part of it: a deleted tag row would let an operation run twice.
    """
    event_type, header, commitment, tags = parts
    leaf = hashlib.sha256(
        b"\x00"
        + pack(">Qq", position, recorded_at)
        + framed(event_type.encode(), header, commitment, *(t.encode() for t in sorted(tags)))
    ).digest()
    return hashlib.sha256(b"link" + previous + leaf).digest()


LinkedParts = tuple[str, bytes, bytes, Iterable[str]]


def framed(*fields: bytes) -> bytes:
    """Fields with their lengths in front, so that no two sequences read alike."""
    return b"".join([len(field).to_bytes(4) + field for field in fields])
