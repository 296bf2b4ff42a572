"""The key bundle of a backup destination: one generation, overwritten after every key rotation.

It holds every wrapped key, the wrapping key under the recovery code, the forget journal and the
anchor: with the code, all that a restore on an empty machine needs beside a copy of the log. One
that lies on another line of the log, where another machine goes on from a backup, is left alone.
"""

import hmac
import json
import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from memoranda.ledger.entries import Row
from memoranda.ledger.errors import IntegrityFault, Refusal, Refused, RefusedError, StorageFault
from memoranda.ledger.keyring import Keyring, KeyRow
from memoranda.ledger.slots import (
    FILE_BYTES_MAX,
    key_epoch_of,
    open_regular,
    read_file,
    sync_folder,
)
from memoranda.ledger.witness import (
    Anchor,
    Destination,
    journal_bytes,
    journal_rows,
    replace_file,
)

FILE_NAME = "keys.bundle"
FORMAT = "memoranda-keys/1"
_MARK_BYTES = 64
_BEGINNING = b'\n{"format": "memoranda-keys/'
_PIECE_BYTES = 1 << 20

ChainAt = Callable[[int], bytes | None]
"""The chain of this ledger's log at a position; None where it has no event."""

Whose = Literal["ours", "another line's", "another ledger's", "another version's"]


class OtherFormat(IntegrityFault):
    """It was written by another version of this program."""


@dataclass(frozen=True, slots=True)
class KeyBundle:
    """A bundle as it lies at a destination; who has no key can read none of its secrets."""

    data_set: str
    key_epoch: int
    recovery: bytes
    keys: tuple[KeyRow, ...]
    journal: tuple[Row, ...]
    anchor: Anchor
    content: bytes
    mark: bytes

    def check(self, key: bytes) -> None:
        """Raises IntegrityFault unless it was marked with this key, and not changed since."""
        if not hmac.compare_digest(hmac.digest(key, self.content, "sha256"), self.mark):
            raise IntegrityFault("the key bundle was changed since it was written")


def write_bundle(folder: Path, keyring: Keyring, journal: Iterable[Row], anchor: Anchor) -> None:
    """Puts the present generation in place of the one before, whose bytes are overwritten."""
    said = {
        "format": FORMAT,
        "data_set": keyring.data_set,
        "key_epoch": keyring.key_epoch,
        "recovery": b64encode(keyring.recovery_copy()).decode(),
        "keys": [(name, epoch, b64encode(it).decode()) for name, epoch, it in keyring.rows()],
        "journal": journal_bytes(journal).decode(),
        "anchor": anchor.wire(),
    }
    content = json.dumps(said).encode()
    mark = hmac.digest(keyring.bundle_key, content, "sha256")
    stored = mark.hex().encode() + b"\n" + content
    if len(stored) > FILE_BYTES_MAX:
        raise StorageFault("the key bundle would be larger than any that is read")
    path = folder / FILE_NAME
    with suppress(FileNotFoundError), os.fdopen(open_regular(path, os.O_RDWR), "r+b") as old:
        replace_file(path, stored)
        _overwrite(old.fileno())
        return
    replace_file(path, stored)


def destroy_bundle(destination: Destination, space: str, chain_at: ChainAt) -> bool:
    """Overwrites this ledger's bundle and takes it away; False where that cannot be done."""
    folder = Path(destination.path) / space
    path = folder / FILE_NAME
    try:
        whose = whose_bundle(destination, space, chain_at)
        if path.exists() and whose == "ours":
            with os.fdopen(open_regular(path, os.O_RDWR), "r+b") as file:
                _overwrite(file.fileno())
            path.unlink()
        sync_folder(folder)
    except (OSError, IntegrityFault):
        return False
    return whose in ("ours", "another ledger's")


def whose_bundle(destination: Destination, space: str, chain_at: ChainAt) -> Whose:
    """Who has put the bundle at a destination there, as far as it says so, without any key.

    Ours is what was written along our own log, what we came from, and whatever is no bundle. The
    first links of two ledgers of one name may be the same.
    """
    try:
        bundle = read_bundle(Path(destination.path) / space)
    except OtherFormat:
        return "another version's"
    except IntegrityFault:
        return "ours"
    if bundle.data_set != destination.data_set:
        return "another ledger's"
    is_ours = chain_at(bundle.anchor.position) == bundle.anchor.chain
    return "ours" if is_ours or bundle.mark.hex() == destination.mark else "another line's"


def refuse_anothers(destination: Destination, space: str, chain_at: ChainAt) -> None:
    """Raises RefusedError (F36) for a destination where the bundle is not ours to replace."""
    whose = whose_bundle(destination, space, chain_at)
    if whose != "ours":
        raise occupied(whose, space)


def occupied(whose: Whose, space: str) -> RefusedError:
    """The refusal of a destination that is somebody else's, and the two ways out."""
    message = f"{whose} backups are there; choose another folder, or move {space} there away"
    return RefusedError(Refused(Refusal.INVALID_REQUEST, "destination", message))


def read_bundle(folder: Path) -> KeyBundle:
    """The bundle at a destination; raises IntegrityFault for what is none, or a part of one."""
    bundle = read_file(folder / FILE_NAME, "the key bundle", _bundle)
    if bundle is None:
        raise IntegrityFault("the key bundle is missing")
    return bundle


def _bundle(stored: bytes) -> KeyBundle:
    mark, _, content = stored.partition(b"\n")
    said = json.loads(content)
    check_format(said["format"], FORMAT, "the key bundle")
    return KeyBundle(
        data_set=str(said["data_set"]),
        key_epoch=key_epoch_of(said["key_epoch"]),
        recovery=b64decode(said["recovery"]),
        keys=tuple((str(it[0]), key_epoch_of(it[1]), b64decode(it[2])) for it in said["keys"]),
        journal=tuple(journal_rows(said["journal"].encode())),
        anchor=Anchor.read(said["anchor"]),
        content=content,
        mark=bytes.fromhex(mark.decode()),
    )


def check_format(said: object, ours: str, what: str) -> None:
    """Raises IntegrityFault for the format of any other version, one of DAMAGE for no format."""
    if said != ours:
        name, _, number = ours.rpartition("/")
        is_older = int(str(said).removeprefix(f"{name}/")) < int(number)
        which = "an older format" if is_older else "a newer format"
        raise OtherFormat(f"{what} has {which}, which this version cannot read")


def _overwrite(descriptor: int) -> None:
    """A file without a name keeps its blocks until they are needed: what it said must not stay.

    Only of what begins like a bundle, and of no more than any bundle has.
    """
    if os.pread(descriptor, len(_BEGINNING), _MARK_BYTES) != _BEGINNING:
        return
    size = min(os.fstat(descriptor).st_size, FILE_BYTES_MAX)
    for offset in range(0, size, _PIECE_BYTES):
        os.pwrite(descriptor, bytes(min(_PIECE_BYTES, size - offset)), offset)
    os.fsync(descriptor)
