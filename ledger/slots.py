"""The wrapping key, one random key per key epoch, in two slots that are overwritten in place."""

import hashlib
import os
from pathlib import Path
from struct import pack, unpack
from typing import Protocol

from memoranda.ledger.errors import Refusal, Refused, RefusedError, StorageFault
from memoranda.ledger.sealing import KEY_BYTES

SLOT_BYTES = 4096
_DIGEST_BYTES = 32


class KeyVault(Protocol):
    """Where the wrapping keys of a space live; the slot file is the default."""

    def read(self) -> dict[int, bytes]:
        """The valid wrapping keys by key epoch: one, or two while a rotation is unfinished."""
        ...

    def write(self, key_epoch: int, wrapping_key: bytes) -> None:
        """Makes the key of an epoch durable, in the slot that the epoch's parity names."""
        ...

    def destroy(self, key_epoch: int, noise: bytes) -> None:
        """Overwrites the slot of an epoch, durably; `noise` is SLOT_BYTES long."""
        ...


class SlotFile:
    """Two fixed slots of 4 KiB in one 0600 file, written in place.

    Replacing the file by rename would leave the old key on the disk; in-place slots leave none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def create(self, noise: bytes) -> None:
        """Makes the file with two empty slots, exclusively; `noise` is two slots long."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _write_all(descriptor, noise, 0)
        finally:
            os.close(descriptor)
        sync_folder(self._path.parent)

    def read(self) -> dict[int, bytes]:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError as error:
            raise RefusedError(_unusable("the slot file is missing")) from error
        except PermissionError as error:
            raise RefusedError(Refused(Refusal.READ_ONLY, field="state")) from error
        slots = (_decode(content[:SLOT_BYTES]), _decode(content[SLOT_BYTES:]))
        valid = dict(slot for slot in slots if slot is not None)
        if not valid:
            raise RefusedError(_unusable("the slot file holds no valid wrapping key"))
        return valid

    def write(self, key_epoch: int, wrapping_key: bytes) -> None:
        rest = pack(">I", key_epoch) + wrapping_key
        slot = (hashlib.sha256(rest).digest() + rest).ljust(SLOT_BYTES, b"\0")
        self._overwrite(key_epoch, slot)

    def destroy(self, key_epoch: int, noise: bytes) -> None:
        self._overwrite(key_epoch, noise)

    def destroy_all(self, noise: bytes) -> None:
        """Overwrites both slots; `noise` is two slots long."""
        for parity in (0, 1):
            self._overwrite(parity, noise[parity * SLOT_BYTES :][:SLOT_BYTES])

    def _overwrite(self, key_epoch: int, content: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY)
        try:
            _write_all(descriptor, content, (key_epoch % 2) * SLOT_BYTES)
        finally:
            os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Makes a new name in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _flush(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes, offset: int) -> None:
    try:
        written = os.pwrite(descriptor, content, offset)
    except OSError as error:
        raise StorageFault("a slot could not be written") from error
    if written != len(content):
        raise StorageFault("a slot was written short")
    _flush(descriptor)


def _flush(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise StorageFault("the disk would not say that a file or folder is durable") from error


def _decode(slot: bytes) -> tuple[int, bytes] | None:
    digest, rest = slot[:_DIGEST_BYTES], slot[_DIGEST_BYTES : _DIGEST_BYTES + 4 + KEY_BYTES]
    if len(slot) != SLOT_BYTES or hashlib.sha256(rest).digest() != digest:
        return None
    (key_epoch,) = unpack(">I", rest[:4])
    return key_epoch, rest[4:]


def _unusable(message: str) -> Refused:
    return Refused(Refusal.SPACE_UNKNOWN, field="state", message=message)
