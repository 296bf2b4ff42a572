"""What a forgotten fact could leave behind, and who would look for it: needles, and a carver."""

import json
import re
import sqlite3
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tests.tables import Tables

from memoranda.ledger.entries import SPACE_KEY, Row
from memoranda.ledger.errors import IntegrityFault
from memoranda.ledger.keyring import _bound, open_recovery_copy
from memoranda.ledger.sealed_store import body_identity
from memoranda.ledger.sealing import BodyKey, derive, open_sealed_to, token_of, unwrap
from memoranda.projections.tokens import index_tokens
from memoranda.tools.memory import Memory

SPACE = "us_alice"
WRAPPED_BYTES = 60
KEY_BYTES = 32
NEAR_BYTES = 20


def files(*places: Path | Tables) -> dict[str, bytes]:
    """Every file below the folders, write-ahead logs among them, and the tables of a server."""
    found = {k: v for it in places if isinstance(it, Tables) for k, v in it.files().items()}
    return found | {
        f"{folder.name}/{path.relative_to(folder)}": path.read_bytes()
        for folder in places
        if isinstance(folder, Path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def hits(needles: Iterable[bytes], *places: Path | Tables) -> set[str]:
    """The files in which any of the needles stands."""
    needles = tuple(needles)
    assert all(len(needle) >= 8 for needle in needles)
    return {name for name, it in files(*places).items() if any(n in it for n in needles)}


def in_clear(text: str) -> set[bytes]:
    """A text as files could hold it; its ends too, since indexes leave out how entries begin."""
    parts = {text, text[3:], text[: len(text) // 2], text[len(text) // 2 :]}
    plain = {part.encode(coding) for part in parts for coding in ("utf-8", "utf-16-le")}
    # Base64 of it begins at any of three places; the first and last characters depend on others.
    return plain | {b64encode(b"x" * n + text.encode())[4:-4] for n in range(3)}


@dataclass
class Traces:
    """What stands for a text in the files while it is remembered."""

    key_ids: set[str] = field(default_factory=set)
    keys: set[bytes] = field(default_factory=set)
    wrapped: set[bytes] = field(default_factory=set)
    sealed: set[bytes] = field(default_factory=set)
    tokens: set[bytes] = field(default_factory=set)

    def add(self, memory: Memory, text: str) -> "Traces":
        """Notes it as it stands now: a key rotation wraps the keys anew."""
        log = memory._parts.log
        positions = {it.position for it in memory.remnants(text).remnants}
        with log.reading() as store:
            rows = [event.row for event in store.at_positions(sorted(positions - {None})).values()]
        self.key_ids |= {row.key_id for row in rows if row.key_id not in {None, SPACE_KEY}}
        self.sealed |= {row.sealed for row in rows if row.key_id != SPACE_KEY}
        self.keys |= {key for it in self.key_ids if (key := log._keyring._found(it))}
        self.wrapped |= {it for key_id, _, it in log._keyring.rows() if key_id in self.key_ids}
        memory.search(text)
        with memory._parts.views.held() as connection:
            (key_id,) = connection.execute("SELECT key_id FROM index_key").fetchone()
        _, index_key = log.index_key(key_id)
        self.tokens |= {token_of(index_key, word) for word in index_tokens(text)}
        return self

    @property
    def all(self) -> set[bytes]:
        return self.keys | self.wrapped | self.sealed | self.tokens


# -- the carver -----------------------------------------------------------------------------------

NO_KEY = re.compile(rb"(?s)(.)\1{4,}|[ -~]{20,}")
"""Runs that no 60 encrypted bytes hold, but for one in millions: zeros, and text."""


@dataclass
class Carver:
    """Somebody with copies of files and all the time: tries everything as a key to everything.

    `held` is what was copied, `slots` what may hold wrapping keys. A format is no secret, nor is
    which key ids the wanted record had: `wanted`.
    """

    held: dict[str, bytes]
    slots: dict[str, bytes]
    wanted: set[str]
    code: str | None = None
    wrapping_keys: dict[int, set[bytes]] = field(default_factory=dict)
    opened: dict[str, bytes] = field(default_factory=dict)
    tried: int = 0

    def __post_init__(self) -> None:
        self.bundles = [it for piece in self.held.values() for it in _bundle(piece)]
        self.pieces = [*self.held.values(), *(row for it in self.bundles for row in it.rows)]

    def texts(self) -> str:
        """Everything that could be read, after every key was tried on everything."""
        self._try_wrapping_keys(window for it in self.slots.values() for window in _windows(it, 32))
        self._try_bundles()
        for key_id in self.wanted:
            places = (it for piece in self.pieces for it in _windows(piece, WRAPPED_BYTES))
            for key in self._unwrapped(key_id, ((None, it) for it in places)):
                self.opened[key_id] = key
        return " ".join(self._bodies())

    def _try_wrapping_keys(self, candidates: Iterable[bytes]) -> None:
        """The true ones open the space secret, a row that every generation of keys has."""
        places = self._rows_of("secret")
        for candidate in candidates:
            for key_epoch, place in places:
                self.tried += 1
                with suppress(IntegrityFault):
                    secret = unwrap(candidate, place, _bound(SPACE, "secret", key_epoch))
                    self.wrapping_keys.setdefault(key_epoch, set()).add(candidate)
                    self.opened["secret"] = secret

    def _try_bundles(self) -> None:
        """The code, and every key kept today, on each copy that a recovery code opens."""
        known = [key for keys in self.wrapping_keys.values() for key in keys]
        for name in ("secret", "recovery", "recovery/public"):
            known += self._unwrapped(name, self._rows_of(name))
        for bundle in self.bundles:
            copy = bundle.recovery[4:]
            bound = _bound(SPACE, "recovery/public", int.from_bytes(bundle.recovery[:4]))
            for key in known:
                for opens in (unwrap, open_sealed_to):
                    with suppress(IntegrityFault):
                        self._try_wrapping_keys([opens(key, copy, bound)])
            if self.code:
                with suppress(IntegrityFault):
                    found = open_recovery_copy(bundle.recovery, self.code, SPACE)
                    self._try_wrapping_keys([found[1]])

    def _unwrapped(self, key_id: str, places: Iterable[tuple[int | None, bytes]]) -> list[bytes]:
        ciphers = [
            (key_epoch, AESGCM(key).decrypt, _bound(SPACE, key_id, key_epoch))
            for key_epoch, keys in self.wrapping_keys.items()
            for key in keys
        ]
        found = []
        for known_epoch, place in places:
            for key_epoch, decrypt, bound in ciphers:
                if known_epoch in {None, key_epoch}:
                    self.tried += 1
                    with suppress(InvalidTag):
                        found.append(decrypt(place[:12], place[12:], bound))
        return found

    def _rows_of(self, key_id: str) -> set[tuple[int, bytes]]:
        """Where a key of that name is wrapped, and in which epoch: rows in any file, bundles."""
        found = {row for bundle in self.bundles for row in bundle.named(key_id)}
        for piece in self.held.values():
            for at in (it.end() for it in re.finditer(re.escape(key_id.encode()), piece)):
                # The number 1 takes no byte in a row, and a small one takes one.
                found.add((1, piece[at : at + WRAPPED_BYTES]))
                found.add((piece[at] if at < len(piece) else 0, piece[at + 1 :][:WRAPPED_BYTES]))
        return {row for row in found if len(row[1]) == WRAPPED_BYTES}

    def _bodies(self) -> Iterator[str]:
        """What the opened keys open, of every body in every copy of the log."""
        keys = {key_id: BodyKey(key_id, key) for key_id, key in self.opened.items()}
        if "secret" in self.opened:
            keys[SPACE_KEY] = BodyKey(SPACE_KEY, derive(self.opened["secret"], "bodies/v1"))
        for row in (row for piece in self.held.values() for row in _rows(piece)):
            if row.key_id in keys:
                identity = body_identity(SPACE, row)
                with suppress(IntegrityFault):
                    yield keys[row.key_id].open(identity, row.commitment, row.sealed).decode()


def _windows(piece: bytes, length: int) -> Iterator[bytes]:
    start = 0
    for begin, end in (*(it.span() for it in NO_KEY.finditer(piece)), (len(piece), 0)):
        # What is encrypted may begin or end with some bytes that look like the run beside it.
        last = min(begin + NEAR_BYTES, len(piece)) - length
        yield from (piece[at : at + length] for at in range(start, last + 1))
        start = max(start, last + 1, end - NEAR_BYTES)


@dataclass
class _Bundle:
    recovery: bytes
    keys: list[tuple[str, int, str]]

    @property
    def rows(self) -> list[bytes]:
        return [b64decode(wrapped) for _, _, wrapped in self.keys]

    def named(self, key_id: str) -> list[tuple[int, bytes]]:
        return [(epoch, b64decode(it)) for name, epoch, it in self.keys if name == key_id]


def _bundle(piece: bytes) -> list[_Bundle]:
    try:
        said: dict[str, Any] = json.loads(piece.partition(b"\n")[2])
        return [_Bundle(b64decode(said["recovery"]), said["keys"])]
    except (ValueError, KeyError, TypeError):
        return []


def _rows(piece: bytes) -> list[Row]:
    """The bodies of a copy of the log, with what each is bound to."""
    if not piece.startswith(b"SQLite format 3"):
        return []
    with closing(sqlite3.connect(":memory:")) as copy:
        # Of a file in WAL mode, as one that is not: there is no file to have a log beside it.
        copy.deserialize(piece[:18] + b"\1\1" + piece[20:])
        with suppress(sqlite3.OperationalError):
            return [
                Row(position, kind, 0, b"", (), commitment, b"", key_id, sealed)
                for position, kind, commitment, key_id, sealed in copy.execute(
                    "SELECT position, type, commitment, key_id, sealed FROM bodies"
                    " JOIN events USING (space, position)"
                )
            ]
    return []
