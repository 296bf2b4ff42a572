"""Two slots that are overwritten in place: one file says of each key epoch how its key is kept.

Beside them, how a file that is read whole is opened, whatever somebody put in its place.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import TypeVar

from memoranda.ledger.errors import IntegrityFault, Refusal, Refused, RefusedError, StorageFault
from memoranda.ledger.sealing import KEY_BYTES

SLOT_BYTES = 4096
_DIGEST_BYTES = 32
_EPOCH_BYTES = 4
CONTENT_BYTES = SLOT_BYTES - _DIGEST_BYTES - _EPOCH_BYTES
FILE_BYTES_MAX = 512 * 1024 * 1024
"""No file that is read whole is larger: the wrapped keys of some million records fit in."""

READ_AGAIN = 3
"""How often a file is read again that was replaced meanwhile."""

NO_WAITING = os.O_NONBLOCK | os.O_NOFOLLOW
"""A pipe would keep its opener waiting; a link may lead to what is not ours to overwrite."""

DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What comes of taking apart what is not what it should be."""

T = TypeVar("T")


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
        """The valid contents by key epoch: one, or two while a rotation is unfinished."""
        valid = self.look()
        if valid is None:
            raise RefusedError(_unusable("the slot file is missing"))
        if not valid:
            raise RefusedError(_unusable("the slot file holds no valid wrapping key"))
        return valid

    def look(self) -> dict[int, bytes] | None:
        """The same where there need not be any; None without a file.

        A content of KEY_BYTES comes back as it was, any other filled up to CONTENT_BYTES.
        """
        try:
            with os.fdopen(open_regular(self._path), "rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                content = file.read(2 * SLOT_BYTES)
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise RefusedError(Refused(Refusal.READ_ONLY, field="state")) from error
        except OSError as error:
            raise RefusedError(_unusable("the slot file cannot be read")) from error
        if mode & 0o077:
            # As ssh does with a private key: a warning would be read by nobody.
            message = f"others may open the slot file (mode {mode:o}); `chmod 600` it first"
            raise RefusedError(Refused(Refusal.READ_ONLY, "state", message))
        slots = (_decode(content[:SLOT_BYTES]), _decode(content[SLOT_BYTES:]))
        return dict(slot for slot in slots if slot is not None)

    def write(self, key_epoch: int, content: bytes) -> None:
        """Makes the content of an epoch durable, in the slot that the epoch's parity names."""
        if len(content) != KEY_BYTES:
            content = content.ljust(CONTENT_BYTES, b"\0")
        rest = pack(">I", key_epoch) + content
        slot = (hashlib.sha256(rest).digest() + rest).ljust(SLOT_BYTES, b"\0")
        self._overwrite(key_epoch, slot)

    def destroy(self, key_epoch: int, noise: bytes) -> None:
        """Overwrites the slot of an epoch, durably; `noise` is SLOT_BYTES long."""
        self._overwrite(key_epoch, noise)

    def _overwrite(self, key_epoch: int, content: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | NO_WAITING)
        try:
            _write_all(descriptor, content, (key_epoch % 2) * SLOT_BYTES)
        finally:
            os.close(descriptor)


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file; raises OSError, also for whatever else bears the name."""
    descriptor = os.open(path, flags | NO_WAITING)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, f"{path.name} is not a regular file")


def read_file(
    path: Path, what: str, read: Callable[[bytes], T], again: int = READ_AGAIN
) -> T | None:
    """What a file says, as `read` finds it; None where there is none.

    Raises IntegrityFault for whatever cannot be read, whoever wrote it there.
    """
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > FILE_BYTES_MAX:
                raise IntegrityFault(f"{what} is larger than any that is written")
            content = file.read(size)
            is_replaced = os.fstat(file.fileno()).st_nlink == 0
        if is_replaced and again:  # and overwritten by now, as a key bundle is
            return read_file(path, what, read, again - 1)
        return read(content)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise IntegrityFault(f"{what} cannot be read") from error
    except DAMAGE as error:
        raise IntegrityFault(f"{what} is damaged") from error


def number_of(said: object, limit: int = 1 << 63) -> int:
    """A whole number that the log can hold, as a file says it; raises ValueError for all else."""
    if isinstance(said, int) and 0 <= said < limit:
        return said
    raise ValueError("that is no number of the log's")


def key_epoch_of(said: object) -> int:
    """A key epoch that a slot can name; raises ValueError for anything else."""
    return number_of(said, 256**_EPOCH_BYTES)


def make_folder(folder: Path) -> None:
    """Makes a folder for the owner alone, durably; raises RefusedError where it cannot be."""
    if folder.is_dir():
        return
    try:
        made = [it for it in (folder, *folder.parents) if not it.exists()]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in made:
            sync_folder(each.parent)
    except OSError as error:
        raise RefusedError(
            Refused(Refusal.READ_ONLY, "data", f"the folder {folder.name} cannot be made")
        ) from error


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
    """Key epoch and content; the digest tells which of the two lengths the content has."""
    if len(slot) != SLOT_BYTES:
        return None
    for length in (KEY_BYTES, CONTENT_BYTES):
        rest = slot[_DIGEST_BYTES:][: _EPOCH_BYTES + length]
        if hashlib.sha256(rest).digest() == slot[:_DIGEST_BYTES]:
            return int.from_bytes(rest[:_EPOCH_BYTES]), rest[_EPOCH_BYTES:]
    return None


def _unusable(message: str) -> Refused:
    return Refused(Refusal.SPACE_UNKNOWN, field="state", message=message)
