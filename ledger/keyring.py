"""Data keys: minted in batches, wrapped by the key epoch's wrapping key, re-wrapped by rotation."""

import base64
import hmac
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from struct import pack
from typing import Any

from memoranda.ledger.chain import framed
from memoranda.ledger.entries import SPACE_KEY
from memoranda.ledger.errors import CLOSED, IntegrityFault, RefusedError, StorageFault
from memoranda.ledger.recovery_code import key_of, read_code
from memoranda.ledger.sealing import (
    KEY_BYTES,
    NONCE_BYTES,
    SEAL_TO_ENTROPY_BYTES,
    BodyKey,
    Cipher,
    blind,
    cipher_of,
    derive,
    open_sealed_to,
    public_of,
    seal_to,
    unwrap,
    wrap,
)
from memoranda.ledger.sqlite_files import connect, transaction, truncate_wal, watch
from memoranda.ledger.stamps import Stamps
from memoranda.ledger.vaults import Keeping, KeptKey, WrappingKeys

SCHEMA_NUMBER = 1
SCHEMA = """
CREATE TABLE keys (
    key_id    TEXT PRIMARY KEY,
    key_epoch INTEGER NOT NULL,
    wrapped   BLOB NOT NULL
) WITHOUT ROWID;
"""
BATCH = 64
"""Keys minted at once, so that a commit stays one durable write."""

OPEN_KEYS_MAX = 4096
"""Opened keys held at once, so that reading a whole log does not hold all of them."""

BLINDED_MAX = 4096
"""Blind tags at hand at once: a migration has more of them than anybody wants to hold."""

KeyRow = tuple[str, int, bytes]
"""Key id, key epoch and the wrapped key, as `keys` holds them."""

_BUNDLES = "bundles/v1"
_TAGS = "tags/v1"
_SECRET_ROW = "secret"  # noqa: S105  # the row's name, not a password
_RECOVERY_ROW = "recovery/public"
_RECOVERY_SECRET_ROW = "recovery"  # noqa: S105  # what earlier versions kept in its place
_RECOVERY_ROWS = (_RECOVERY_ROW, _RECOVERY_SECRET_ROW)
SPACE_ROWS = frozenset({_SECRET_ROW, *_RECOVERY_ROWS})
"""The rows that are no memory's: only the end of the space removes them."""


class Keyring:
    """The keys of one space. Every writing method is called under the space lock.

    A key is removed only because a forget names it: unused keys of a dead process are harmless,
    and sweeping them would delete the live pool of another.
    """

    def __init__(self, path: Path, space: str, vault: WrappingKeys, stamps: Stamps) -> None:
        self._space = space
        self._vault = vault
        self._stamps = stamps
        self._connection = connect(path, schema=SCHEMA, schema_number=SCHEMA_NUMBER)
        self._has_moved = watch(path)
        self._wrapping_keys: dict[int, tuple[bytes, Cipher]] = {}
        self._open_keys: dict[str, BodyKey] = {}
        self._pool: list[tuple[str, bytes]] = []
        self._guard = threading.RLock()
        self._version = self._first("PRAGMA data_version")
        self.blinded: Callable[[str, str], str] = lru_cache(BLINDED_MAX)(self._blinded)
        """How a tag's kind and name stand in the log; a decision asks for most of them twice."""

    def close(self) -> None:
        """Truncates the write-ahead log and closes; under the space lock."""
        with self._guard:  # closed under another thread's statement, it would end the process
            self.truncate()
            self._connection.close()

    def truncate(self) -> bool:
        """Empties the write-ahead log; False while a reader holds it or the disk fails."""
        return truncate_wal(self._connection, wait_ms=500)  # our readers take microseconds

    # -- the space secret -------------------------------------------------------------------

    def holds_data_keys(self) -> bool:
        """Whether keys of bodies were ever minted here: the making of a space mints none."""
        query = "SELECT 1 FROM keys WHERE key_id NOT IN (?, ?, ?) LIMIT 1"
        return self._first(query, _SECRET_ROW, *_RECOVERY_ROWS) is not None

    def has_secret(self) -> bool:
        return self.holds(_SECRET_ROW)

    def holds(self, key_id: str) -> bool:
        """Whether a key is kept, under whatever wrapping key."""
        return self._row(key_id) is not None

    def create_secret(self) -> None:
        """Mints the space secret; everything but the data keys follows from it."""
        with self._writing():
            self._insert([(_SECRET_ROW, self._stamps.entropy(KEY_BYTES))])

    def check(self) -> None:
        """Raises IntegrityFault unless the vault opens this key file of this space."""
        self._secret(_SECRET_ROW)

    @cached_property
    def tag_key(self) -> bytes:
        """Blinds every tag of the space; it never changes."""
        return derive(self._secret(_SECRET_ROW), _TAGS)

    def _blinded(self, kind: str, name: str) -> str:
        return blind(self.tag_key, kind, name)

    @property
    def cursor_key(self) -> bytes:
        """Authenticates the cursors that a query hands out."""
        return derive(self._secret(_SECRET_ROW), "cursors/v1")

    @property
    def data_set(self) -> str:
        """Names the space's data, for who must tell it from another's; it opens nothing."""
        return derive(self._secret(_SECRET_ROW), "data-set/v1").hex()

    @property
    def bundle_key(self) -> bytes:
        """Authenticates the key bundles of backups."""
        return derive(self._secret(_SECRET_ROW), _BUNDLES)

    # -- copies of the whole -----------------------------------------------------------------

    def rows(self) -> list[KeyRow]:
        """Every row as it is stored: a key is in it only under its wrapping key."""
        return self._rows("SELECT key_id, key_epoch, wrapped FROM keys")

    # -- data keys --------------------------------------------------------------------------

    def fresh(self) -> BodyKey:
        """A key nobody has used, from this process's pool."""
        with self._guard:
            if not self._pool:
                new = [(self._new_key_id(), self._stamps.entropy(KEY_BYTES)) for _ in range(BATCH)]
                with self._writing():
                    self._insert(new)
                self._stamps.step("keys:minted")
                self._pool = new  # not before: what a key that is not kept seals, opens for nobody
            return self._kept(BodyKey(*self._pool.pop()))

    def key(self, key_id: str) -> BodyKey | None:
        """The key of that id; None when a forget has removed it."""
        with self._guard:
            if key_id not in self._open_keys:
                if key_id == SPACE_KEY:
                    secret = derive(self._secret(_SECRET_ROW), "bodies/v1")
                elif (found := self._found(key_id)) is None:
                    return None
                else:
                    secret = found
                return self._kept(BodyKey(key_id, secret))
            return self._open_keys[key_id]

    def _kept(self, key: BodyKey) -> BodyKey:
        """Keeps an opened key at hand, and never more of them than a bound."""
        if len(self._open_keys) >= OPEN_KEYS_MAX:
            self._open_keys.clear()
        self._open_keys[key.key_id] = key
        return key

    def index_key(self, key_id: str | None) -> tuple[str, bytes]:
        """The key of a search index by its id; a new one, which nobody has used, for None."""
        if key_id is None:
            key_id = self._new_key_id()
            with self._writing():
                self._insert([(key_id, self._stamps.entropy(KEY_BYTES))])
        with self._guard:
            return key_id, self._secret(key_id)

    def heed_others(self) -> None:
        """Forgets every opened key, once another process has written to the key file."""
        if self._has_moved():
            raise RefusedError(CLOSED)  # the space has ended, and another begun in its place
        with self._guard:
            if (version := self._first("PRAGMA data_version")) != self._version:
                self.drop_cached()
                if derive(self._secret(_SECRET_ROW), _TAGS) != self.tag_key:
                    raise RefusedError(CLOSED)  # a restore has put another ledger in its place
                # They were minted together: a restore takes all of them away, and else nobody any.
                if self._pool and not self.holds(self._pool[-1][0]):
                    self._pool.clear()
                self._version = version

    def drop_cached(self) -> None:
        """Forgets every opened key."""
        with self._guard:
            self._open_keys.clear()
            self._wrapping_keys.clear()

    def remove(self, key_ids: Iterable[str]) -> None:
        """Removes the keys that a forget names, durably; gone ones are fine.

        What the whole space rests on stays, whoever names it: no forget does.
        """
        named = [(key_id,) for key_id in key_ids if key_id not in SPACE_ROWS]
        with self._writing():
            self._connection.executemany("DELETE FROM keys WHERE key_id = ?", named)
        for (key_id,) in named:
            self._open_keys.pop(key_id, None)

    def count(self) -> int:
        """How many keys are kept, used and unused."""
        counted = self._first("SELECT count(*) FROM keys")
        assert counted is not None, "a count has a row"
        return int(counted[0])

    # -- key epochs -------------------------------------------------------------------------

    @property
    def key_epoch(self) -> int:
        """The epoch in force: a newer one that the slots name may still be taken back."""
        secret = self._row(_SECRET_ROW)
        return secret[0] if secret else max(self._vault.epochs())

    def begin_epoch(self, keeping: Keeping | None = None) -> bytes:
        """Puts a fresh wrapping key in the next epoch's place, kept like the newest unless told."""
        wrapping_key = self._stamps.entropy(KEY_BYTES)
        self._vault.write(max(self._vault.epochs()) + 1, wrapping_key, keeping)
        self._stamps.step("rotate:slot-written")
        return wrapping_key

    def finish_rotation(self, begun: bytes | None = None) -> None:
        """Ends a rotation at whatever step it stopped: re-wrap, truncate, destroy the old slot.

        `begun` is the new key where this lock's holder has just begun; else the vault is asked.
        Two valid slots mean an unfinished one. Every step may be repeated. It is taken back when
        its key cannot be had and nothing is wrapped by it yet: whoever set another passphrase was
        stopped, and the one before it, which opened this, is still in force.
        """
        epochs = self._vault.epochs()
        if len(epochs) == 1:
            return
        old, new = min(epochs), max(epochs)
        if self._outside(new):
            self._wrapping_key(old)  # raises before anything is taken back
            if (wrapping_key := begun or self._vault.key(new)) is None:
                self._vault.destroy(new)
                return
            self._rewrap(new, wrapping_key)
        self._stamps.step("rotate:rewrapped")
        try:
            if not self.truncate():
                raise KeptKey("the key file is held, or the disk is full")  # noqa: TRY301  # caught to add a word
            self._stamps.step("rotate:truncated")
            self._vault.destroy(old)
        except KeptKey as error:
            message = f"{error}; key epoch {new} is in force all the same"
            raise KeptKey(message, new) from error
        self._stamps.step("rotate:slot-destroyed")

    def _outside(self, key_epoch: int) -> list[KeyRow]:
        """The rows that another epoch's key wraps."""
        query = "SELECT key_id, key_epoch, wrapped FROM keys WHERE key_epoch <> ?"
        return self._rows(query, key_epoch)

    def _rewrap(self, key_epoch: int, wrapping_key: bytes) -> None:
        new = key_epoch, cipher_of(wrapping_key)
        with self._writing():
            rows = self._outside(key_epoch)
            olds = {old: self._wrapping_key(old)[1] for old in {it[1] for it in rows}}
            self._connection.executemany(
                "UPDATE keys SET key_epoch = ?, wrapped = ? WHERE key_id = ?",
                (
                    (key_epoch, self._wrapped(key_id, secret, new), key_id)
                    for key_id, old, wrapped in rows
                    for secret in [unwrap(olds[old], wrapped, self._bound(key_id, old))]
                ),
            )
        # Not before: as long as it wraps nothing, another may be put in its place.
        self._wrapping_keys[key_epoch] = wrapping_key, new[1]

    # -- the recovery code ------------------------------------------------------------------

    def seal_copies_for(self, private: bytes) -> None:
        """Puts a code's key in force: it alone opens copies of the wrapping key from here on.

        What is kept of it seals copies after each rotation without the person, and opens none:
        with the keys of today, nobody opens a copy from before a forget.
        """
        with self._writing():
            self._connection.execute("DELETE FROM keys WHERE key_id IN (?, ?)", _RECOVERY_ROWS)
            self._insert([(_RECOVERY_ROW, public_of(private))])

    def keeps_recovery_secret(self) -> bool:
        """Whether an earlier version left here what opens recovery copies."""
        return self.holds(_RECOVERY_SECRET_ROW)

    def leave_recovery_secret(self) -> None:
        """Puts what only seals in its place; the code stays the same."""
        self.seal_copies_for(self._secret(_RECOVERY_SECRET_ROW))

    def is_recovery_code(self, code: str) -> bool:
        """Whether `code` is the current recovery code of this space."""
        raw = read_code(code)
        if raw is None or self._row(_RECOVERY_ROW) is None:
            return False
        return hmac.compare_digest(public_of(key_of(raw)), self._secret(_RECOVERY_ROW))

    def recovery_copy(self) -> bytes:
        """The current wrapping key for the recovery code alone: what a key bundle holds."""
        key_epoch = self.key_epoch
        return pack(">I", key_epoch) + seal_to(
            self._secret(_RECOVERY_ROW),
            self._wrapping_key(key_epoch)[0],
            self._bound(_RECOVERY_ROW, key_epoch),
            self._stamps.entropy(SEAL_TO_ENTROPY_BYTES),
        )

    # -- rows -------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._guard:
            try:
                with transaction(self._connection):
                    yield
            except sqlite3.Error as error:
                raise StorageFault("the key file could not be written") from error

    def _insert(self, secrets: list[tuple[str, bytes]]) -> None:
        key_epoch = self.key_epoch
        _, wrapping_key = self._wrapping_key(key_epoch)
        self._connection.executemany(
            "INSERT INTO keys (key_id, key_epoch, wrapped) VALUES (?, ?, ?)",
            [
                (key_id, key_epoch, self._wrapped(key_id, secret, (key_epoch, wrapping_key)))
                for key_id, secret in secrets
            ],
        )

    def _wrapped(self, key_id: str, secret: bytes, under: tuple[int, bytes | Cipher]) -> bytes:
        key_epoch, wrapping_key = under
        nonce = self._stamps.entropy(NONCE_BYTES)
        return wrap(wrapping_key, secret, self._bound(key_id, key_epoch), nonce)

    def _secret(self, key_id: str) -> bytes:
        if (secret := self._found(key_id)) is None:
            raise IntegrityFault("a key that the space cannot do without is missing")
        return secret

    def _found(self, key_id: str) -> bytes | None:
        row = self._row(key_id)
        if row is not None and row[0] not in self._wrapping_keys:
            if wrapping_key := self._vault.key(row[0]):
                self._wrapping_keys = {row[0]: (wrapping_key, cipher_of(wrapping_key))}
            # A rotation may have ended between the two reads; the row is read once more after it.
            row = self._row(key_id)
        if row is None:
            return None
        key_epoch, wrapped = row
        return unwrap(self._wrapping_key(key_epoch)[1], wrapped, self._bound(key_id, key_epoch))

    def _first(self, query: str, *values: str) -> tuple[Any, ...] | None:
        return next(iter(self._rows(query, *values)), None)

    def _rows(self, query: str, *values: str | int) -> list[Any]:
        with self._guard:
            try:
                return self._connection.execute(query, values).fetchall()
            except sqlite3.ProgrammingError as error:
                raise RefusedError(CLOSED) from error  # by another thread
            except sqlite3.Error as error:
                raise StorageFault("the key file could not be read") from error

    def _row(self, key_id: str) -> tuple[int, bytes] | None:
        found = self._first("SELECT key_epoch, wrapped FROM keys WHERE key_id = ?", key_id)
        if found is not None and tuple(map(type, found)) != (int, bytes):
            raise IntegrityFault("a row of the key file is damaged")
        return found

    def _wrapping_key(self, key_epoch: int) -> tuple[bytes, Cipher]:
        if key_epoch not in self._wrapping_keys:
            if (wrapping_key := self._vault.key(key_epoch)) is None:
                raise self._vault.missing(key_epoch)
            self._wrapping_keys[key_epoch] = wrapping_key, cipher_of(wrapping_key)
        return self._wrapping_keys[key_epoch]

    def _bound(self, key_id: str, key_epoch: int) -> bytes:
        return _bound(self._space, key_id, key_epoch)

    def _new_key_id(self) -> str:
        return base64.urlsafe_b64encode(self._stamps.entropy(NONCE_BYTES)).decode()


def remove_every_key(path: Path) -> None:
    """Removes all keys of a file, the space secret too: what they opened opens never again."""
    install_rows(path, (), keeps=False)


def install_rows(path: Path, rows: Iterable[KeyRow], *, keeps: bool) -> None:
    """Puts rows of a key bundle into a key file, in place of the others unless it keeps them."""
    with closing(connect(path, schema=SCHEMA, schema_number=SCHEMA_NUMBER)) as connection:
        try:
            with transaction(connection):
                connection.execute("DELETE FROM keys WHERE NOT ?", (keeps,))
                connection.executemany("INSERT OR REPLACE INTO keys VALUES (?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise StorageFault("the key file could not be written") from error
        truncate_wal(connection)


def open_recovery_copy(copy: bytes, code: str, space: str) -> tuple[int, bytes]:
    """Key epoch and wrapping key out of a recovery copy; raises IntegrityFault for a wrong code."""
    raw = read_code(code)
    if raw is None:
        raise IntegrityFault("this is no recovery code: a character was mistyped")
    key_epoch = int.from_bytes(copy[:4])
    bound = _bound(space, _RECOVERY_ROW, key_epoch)
    return key_epoch, open_sealed_to(key_of(raw), copy[4:], bound)


def bundle_key_in(rows: Iterable[KeyRow], wrapping_key: bytes, space: str) -> bytes:
    """The key that authenticates these rows' bundle; raises IntegrityFault unless they open."""
    for key_id, key_epoch, wrapped in rows:
        if key_id == _SECRET_ROW:
            secret = unwrap(wrapping_key, wrapped, _bound(space, key_id, key_epoch))
            return derive(secret, _BUNDLES)
    raise IntegrityFault("the rows hold no space secret")


def _bound(space: str, key_id: str, key_epoch: int) -> bytes:
    name = key_id.encode()  # framed here: a rotation asks for it twice a key
    return _bound_epoch(space, key_epoch) + len(name).to_bytes(4) + name


@lru_cache(maxsize=8)
def _bound_epoch(space: str, key_epoch: int) -> bytes:
    return b"key/v1" + framed(space.encode(), pack(">I", key_epoch))
