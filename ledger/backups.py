"""Backups: a verified copy of the log and the present key bundle, in a folder elsewhere.

Copies of the log may be any number and any age: what was forgotten since is sealed in them under
keys that are gone. The key bundle is one, and the present one. The list of copies is marked with a
key of the ledger: whoever may write to the folder makes no copy that a restore takes for one of it.
"""

import fcntl
import hashlib
import hmac
import json
import logging
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path

from pydantic import Field

from memoranda.ledger import chain
from memoranda.ledger.authority import Caller, PersonClient
from memoranda.ledger.bundles import FILE_NAME, check_format, occupied, read_bundle
from memoranda.ledger.entries import Head
from memoranda.ledger.errors import (
    IntegrityFault,
    Refusal,
    Refused,
    RefusedError,
    StorageFault,
)
from memoranda.ledger.events import SpaceForgotten, Value
from memoranda.ledger.locks import SpaceLock, flocked
from memoranda.ledger.log import BUSY_WAIT_S, Log
from memoranda.ledger.oplog import say
from memoranda.ledger.places import path_of
from memoranda.ledger.replaying import check_rows, named_keys
from memoranda.ledger.slots import open_regular, read_file, sync_folder
from memoranda.ledger.sqlite_files import connect_copy, take_away
from memoranda.ledger.sqlite_log import SCHEMA_NUMBER, SQLiteSnapshot
from memoranda.ledger.stamps import Stamps, moment_of, time_text
from memoranda.ledger.witness import Destination, replace_file

KEEP_DEFAULT = 7
KEEP_MAX = 10_000
MANIFEST = "manifest.json"
FORMAT = "memoranda-backup/2"
PAGE = 1000
PIECE_BYTES = 1 << 20


class LogCopy(Value):
    """One copy of the log: how far it goes, when its last event was recorded, and its bytes.

    Its name has part of their digest: at one position, two lines of a log have different copies.
    """

    file: str = Field(pattern=r"^log-[0-9]{12,}-[0-9a-f]{16}\.db$")
    sha256: str
    position: int
    chain: str
    key_epoch: int
    recorded_at: str


class Manifest(Value):
    """What a destination holds of one ledger, in the order it was made; nothing that was said.

    The last copy is the newest one, wherever its line of the log ends. `keep` is how many of them
    stay, whichever machine backs up there.
    """

    format: str = FORMAT
    data_set: str
    copies: tuple[LogCopy, ...] = ()
    keep: int | None = Field(None, ge=1, le=KEEP_MAX)
    mark: str = ""

    def of(self, copies: Iterable[LogCopy], key: bytes) -> "Manifest":
        """The same with other copies, marked with the ledger's key for bundles."""
        said = self.model_copy(update={"copies": tuple(copies)})
        return said.model_copy(update={"mark": said.marked_with(key)})

    def check(self, key: bytes) -> None:
        """Raises IntegrityFault unless it was marked with this key, and not changed since."""
        if not hmac.compare_digest(self.marked_with(key).encode(), self.mark.encode()):
            raise IntegrityFault(f"{MANIFEST} was changed since it was written")

    def marked_with(self, key: bytes) -> str:
        """The mark (hex) that who has the key makes."""
        said = self.model_dump_json(exclude={"mark"}, exclude_none=True)
        return hmac.digest(key, said.encode(), "sha256").hex()


class BackupReport(Value):
    """A backup that was made; `pending` are other destinations whose key bundle is an old one."""

    destination: str
    copy_made: LogCopy
    kept: int
    removed: int
    key_epoch: int
    pending: tuple[str, ...]


class Backups:
    """Makes backups of one space."""

    def __init__(self, log: Log, stamps: Stamps) -> None:
        self._log = log
        self._stamps = stamps
        # Not the space's lock: nobody has to wait with a commit until a whole log is copied.
        self._lock = SpaceLock(log.place.data / "backup.lock", BUSY_WAIT_S)

    def make(
        self, caller: Caller, folder: Path | str, keep: int | None = None
    ) -> BackupReport | Refused:
        """Copies the log, verifies the copy, writes the key bundle, drops the oldest copies.

        `keep` is how many copies the destination keeps from now on. Repeating it is harmless.
        """
        if not isinstance(caller, PersonClient):
            return Refused(Refusal.NOT_AUTHORIZED)
        try:
            with self._lock.held():
                answer = self._made(path_of(folder, "destination"), keep)
        except RefusedError as error:
            answer = error.refused
        except OSError as error:
            answer = Refused(Refusal.READ_ONLY, "destination", error.strerror)
        outcome = "refused" if isinstance(answer, Refused) else "made"
        say(logging.INFO, "backup", outcome=outcome)
        return answer

    def strike(self, caller: Caller, path: Path | str) -> tuple[str, ...] | Refused:
        """Strikes a backup folder, or an export, off the list of copies; the paths left on it.

        Only the person can know that it is gone. What can be seen there is refused.
        """
        if not isinstance(caller, PersonClient):
            return Refused(Refusal.NOT_AUTHORIZED)
        try:
            target = path_of(path, "path")
            exports = (it.names for it in self._log.copies.read().exports)
            files = {Path(it) for names in exports if str(target) in names for it in names}
            files |= {target, target / self._log.space / FILE_NAME}
            if any(_is_there(file) for file in files):
                return Refused(Refusal.INVALID_REQUEST, "path", "is still there; remove it first")
            with self._log.exclusive():
                is_known = self._log.copies.drop(str(target))
                left = self._log.copies.read().paths
        except RefusedError as error:
            return error.refused
        except OSError as error:
            return Refused(Refusal.READ_ONLY, "path", error.strerror)
        if not is_known:
            return Refused(Refusal.INVALID_REQUEST, "path", "is no copy that the ledger knows of")
        say(logging.INFO, "copy", outcome="gone")
        return left

    def _made(self, folder: Path, keep: int | None) -> BackupReport | Refused:
        if refused := self._refusal(folder, keep):
            return refused
        self._log.head()  # refuses before anything is put there
        destination = followed(self._log, self._known(str(folder)))
        self._log.refuse_anothers(destination)
        inner = folder / self._log.space
        inner.mkdir(mode=0o700, parents=True, exist_ok=True)
        manifest = manifest_of(self._log, inner) or Manifest(data_set=self._log.data_set)
        with self._log.exclusive():
            # Listed first: from here on, no forget says that it reached every bundle.
            destination = self._listed(destination, keep or manifest.keep)
        self._stamps.step("backup:listed")
        made = self._copied(inner)
        self._log.write_bundle(destination)
        self._stamps.step("backup:bundled")
        copies = [it for it in manifest.copies if it.chain != made.chain]
        kept = (*copies, made)[-destination.keep :]
        manifest = manifest.model_copy(update={"keep": destination.keep})
        _put_manifest(inner, manifest.of(kept, self._log.bundle_key))
        self._stamps.step("backup:noted")
        self._drop_others(inner, manifest.copies, {it.file for it in kept})
        return self._report(destination, made, len(kept), len(copies) + 1 - len(kept))

    def _report(
        self, destination: Destination, made: LogCopy, kept: int, removed: int
    ) -> BackupReport:
        key_epoch = self._log.head().key_epoch
        known = self._log.copies.read().backups
        return BackupReport(
            destination=destination.path,
            copy_made=made,
            kept=kept,
            removed=removed,
            key_epoch=key_epoch,
            pending=tuple(it.path for it in known if it.key_epoch != key_epoch),
        )

    def _refusal(self, folder: Path, keep: int | None) -> Refused | None:
        if keep is not None and not (type(keep) is int and 1 <= keep <= KEEP_MAX):
            return Refused(Refusal.INVALID_REQUEST, "keep", f"is 1 to {KEEP_MAX}")
        if self._log.place.holds((folder / self._log.space).resolve()):
            message = "lies inside a ledger's own folders; choose another disk or folder"
            return Refused(Refusal.INVALID_REQUEST, "destination", message)
        return None

    def _known(self, path: str) -> Destination:
        known = {it.path: it for it in self._log.copies.read().backups}
        made = Destination(path=path, keep=KEEP_DEFAULT, data_set=self._log.data_set)
        return known.get(path) or made

    def _listed(self, destination: Destination, keep: int | None) -> Destination:
        destination = destination.model_copy(update={"keep": keep or destination.keep})
        self._log.copies.put(destination)
        return destination

    def _copied(self, inner: Path) -> LogCopy:
        """A copy of the log under its final name, which only a verified one gets."""
        path = inner / "log.new"
        path.unlink(missing_ok=True)
        # SQLite writes into an empty file, and so keeps the mode that it is made with here.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        self._log.copy_to(path)
        self._stamps.step("backup:copied")
        with path.open("rb") as file:
            os.fsync(file.fileno())
        head, digest = self._verified(path), _digest(path)
        made = path.replace(inner / f"log-{head.position:012}-{digest[:16]}.db")
        sync_folder(inner)
        self._stamps.step("backup:verified")
        return LogCopy(
            file=made.name,
            sha256=digest,
            position=head.position,
            chain=head.chain.hex(),
            key_epoch=head.key_epoch,
            recorded_at=time_text(moment_of(head.recorded_at)),
        )

    def _verified(self, path: Path) -> Head:
        """The head of the copy, once all of it is read back and the log says the same there."""
        head = verify_copy(path, self._log.space)
        if not self._is_ours(head):
            raise StorageFault("the copy is not what the log says; make the backup again")
        return head

    def _is_ours(self, head: Head) -> bool:
        with self._log.reading() as store:
            return store.chain_at(head.position) == head.chain

    def _drop_others(self, inner: Path, listed: Iterable[LogCopy], kept: Iterable[str]) -> None:
        """Removes copies that no list names any more, and what a crash left half made.

        One that no list has named stays where it goes further than our log, or another way: it may
        be the last that its machine has made.
        """
        old = {it.file for it in listed}
        for path in (*inner.glob("log-*.db"), *inner.glob("log.new*")):
            is_old = path.name in old or path.suffix != ".db" or not self._is_anothers(path)
            if path.name not in kept and is_old:
                path.unlink(missing_ok=True)
        sync_folder(inner)

    def _is_anothers(self, path: Path) -> bool:
        try:
            return not self._is_ours(verify_copy(path, self._log.space))
        except IntegrityFault:
            return False
        except RefusedError:  # a newer version's
            return True


def _is_there(path: Path) -> bool:
    """Whether a file can be seen at a path; raises OSError where nobody may look."""
    try:
        return not stat.S_ISDIR(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def manifest_of(log: Log, inner: Path) -> Manifest | None:
    """What this ledger has noted of a destination; raises RefusedError for what it has not."""
    try:
        manifest = read_manifest(inner)
        if manifest is None:
            return None
        if manifest.data_set != log.data_set:
            raise occupied("another ledger's", log.space)
        manifest.check(log.bundle_key)
    except IntegrityFault as fault:
        # Not begun anew in its place: that would let go of every copy that it named.
        message = f"{fault}: move the folder {inner.name} there away, or choose another folder"
        raise RefusedError(Refused(Refusal.INVALID_REQUEST, "destination", message)) from fault
    return manifest


def followed(log: Log, destination: Destination) -> Destination:
    """The destination, marked as one to go on with where its bundle says nothing new to us.

    Every forget of it is known here, and every key: as it is here, or from an older key epoch.
    Its newest copy of the log is a part of ours, so that all it tells is here too.
    """
    mark, journal, folder = "", log.journal.read(), Path(destination.path) / log.space
    with suppress(IntegrityFault):
        bundle, manifest = read_bundle(folder), read_manifest(folder)
        check_rows(journal)
        here, gone = set(log.key_rows()), named_keys(journal)
        epochs = {key_id: key_epoch for key_id, key_epoch, _ in here}
        others = (it for it in bundle.keys if it not in here and it[0] not in gone)
        is_older = all(key_epoch < epochs.get(key_id, 0) for key_id, key_epoch, _ in others)
        with log.reading() as store:
            newest = manifest.copies[-1:] if manifest else ()
            is_part = all(store.chain_at(it.position) == bytes.fromhex(it.chain) for it in newest)
        if is_older and is_part and set(bundle.journal) <= set(journal):
            mark = bundle.mark.hex()
    return destination.model_copy(update={"mark": mark})


def put_line_last(log: Log, inner: Path) -> None:
    """After a restore, the copies of a line that was left are older than any of the present one."""
    manifest = manifest_of(log, inner)
    if manifest is None:
        return
    with log.reading() as store:
        copies = sorted(
            manifest.copies,
            key=lambda it: store.chain_at(it.position) == bytes.fromhex(it.chain),
        )
    if tuple(copies) != manifest.copies:
        _put_manifest(inner, manifest.of(copies, log.bundle_key))


def _put_manifest(inner: Path, manifest: Manifest) -> None:
    replace_file(inner / MANIFEST, manifest.model_dump_json(indent=1).encode())


def read_manifest(inner: Path) -> Manifest | None:
    """What a destination says it holds, whoever wrote it there; raises IntegrityFault."""
    return read_file(inner / MANIFEST, MANIFEST, _manifest)


def _manifest(stored: bytes) -> Manifest:
    check_format(json.loads(stored)["format"], FORMAT, MANIFEST)
    return Manifest.model_validate_json(stored)


def sweep(data: Path) -> str | None:
    """Takes away the copies of a log that restores have left: one that is not held is a crash's.

    The answer is why one stays, if so.
    """
    reason = None
    for left in data.glob("restoring-*.db"):
        try:
            with flocked(left, fcntl.LOCK_EX, 0):
                take_away(left)
        except (OSError, RefusedError):
            reason = "a restore has a copy of the log, or has left one that cannot be taken away"
    return reason


def take_copy(there: Path, own: Path) -> None:
    """Reads a copy of the log once, into a file of ours; raises IntegrityFault.

    Whoever may write to a destination may change what lies there between two looks at it.
    """
    with own.open("wb") as file:
        file.writelines(_pieces(there))


def _pieces(path: Path) -> Iterator[bytes]:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            yield from iter(lambda: file.read(PIECE_BYTES), b"")
    except OSError as error:
        raise IntegrityFault("the copy of the log is missing or cannot be read") from error


def verify_listed(path: Path, copy: LogCopy, space: str) -> None:
    """Reads a copy of the manifest whole; raises IntegrityFault unless it is the one it names.

    The chain says nothing of sealed bodies; whether they are as they were, `is_as_made` says.
    """
    head = verify_copy(path, space)
    if (head.position, head.chain.hex()) != (copy.position, copy.chain):
        raise IntegrityFault("the copy of the log is not the one of the manifest")


def is_as_made(path: Path, copy: LogCopy) -> bool:
    """Whether every byte of a copy is as it was when it was made."""
    return _digest(path) == copy.sha256


def _digest(path: Path) -> str:
    with os.fdopen(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify_copy(path: Path, space: str) -> Head:
    """Reads a copy of the log whole, without any key; raises IntegrityFault where it is not."""
    try:
        os.close(open_regular(path))
        with closing(connect_copy(path, schema_number=SCHEMA_NUMBER)) as connection:
            return _whole(SQLiteSnapshot(connection, space), space)
    except OSError as error:
        raise IntegrityFault("the copy of the log is missing or cannot be read") from error
    except (sqlite3.Error, StorageFault, RefusedError) as error:
        if isinstance(error, RefusedError) and error.refused.refusal is Refusal.SCHEMA_NEWER:
            raise
        raise IntegrityFault("the copy of the log is damaged") from error


def _whole(snapshot: SQLiteSnapshot, space: str) -> Head:
    if snapshot.storage_faults() or snapshot.stray_rows():
        raise IntegrityFault("the copy of the log is damaged")
    position, tip = 0, chain.origin(space)
    while rows := snapshot.read(None, position, PAGE):
        for row in rows:
            parts = (row.type, row.header, row.commitment, row.tags)
            tip = chain.link(tip, row.position, row.recorded_at, parts)
            position += 1
            if row.position != position or row.chain != tip:
                raise IntegrityFault(f"the copy of the log is damaged at position {position}")
            if row.type == SpaceForgotten.TOPIC:
                raise IntegrityFault("the copy is of a log whose space was forgotten")
    if position == 0 or snapshot.head[:2] != (position, tip):
        raise IntegrityFault("the copy of the log is not complete")
    return snapshot.head
