"""What lies outside every backup of the log: the anchor of its tip, the journal of what it erased.

They tell a log that was rolled back or forked, and what a restored one must forget again; beside
them stand the copies that were made, and the mark of a restore that has not ended.
"""

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from memoranda.ledger.entries import Head, Row
from memoranda.ledger.errors import IntegrityFault, Refusal, Refused, StorageFault
from memoranda.ledger.events import Value
from memoranda.ledger.slots import (
    DAMAGE,
    NO_WAITING,
    key_epoch_of,
    number_of,
    read_file,
    sync_folder,
)
from memoranda.ledger.stamps import moment_of


class Anchor(NamedTuple):
    """How far the log was when this was last written, and which keys were in force."""

    position: int
    chain: bytes
    key_epoch: int
    recorded_at: int = 0

    @classmethod
    def of(cls, head: Head) -> "Anchor":
        """The anchor of a log that is there."""
        return cls(head.position, head.chain, head.key_epoch, head.recorded_at)

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> "Anchor":
        """The anchor as `wire` wrote it; raises one of DAMAGE for another."""
        position, recorded_at = number_of(said["position"]), number_of(said.get("recorded_at", 0))
        moment_of(recorded_at)  # raises OverflowError for a time that no calendar has
        chain, key_epoch = bytes.fromhex(said["chain"]), key_epoch_of(said["key_epoch"])
        return cls(position, chain, key_epoch, recorded_at)

    def wire(self) -> dict[str, object]:
        """The anchor as it is stored."""
        return {**self._asdict(), "chain": self.chain.hex()}

    def stands_on(self, head: Head, chain_there: bytes | None) -> bool:
        """Whether a log with this head, and this chain at that position, goes on from it."""
        return head.position >= self.position and chain_there == self.chain

    def contradicted_by(self, head: Head) -> Refused:
        """Why a log that does not go on from it is not opened."""
        is_older = head.position < self.position
        what = "an older copy" if is_older else "another line than this machine has seen"
        message = (
            f"the log is {what}; `memoranda restore` brings it back without what was forgotten"
        )
        return Refused(Refusal.SPACE_UNKNOWN, "data", message)


class AnchorFile:
    """One small file that is replaced whole; a log is never behind it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: Anchor | None = None

    def read(self) -> Anchor | None:
        """The anchor; None where none was written yet. Raises IntegrityFault for a damaged one."""
        try:
            anchor = read_file(self._path, "the anchor", lambda it: Anchor.read(json.loads(it)))
        except IntegrityFault as fault:
            message = (
                f"{fault}; `memoranda restore` writes it, and so does an opening once the file is"
                " taken away, which then cannot see whether the log was put back"
            )
            raise IntegrityFault(message) from fault
        self._written = anchor or self._written
        return anchor

    def is_behind(self, head: Head, by: int) -> bool:
        """Whether the log has gone on by so many events since it was written."""
        written = self._written.position if self._written else 0
        return head.position - written >= by

    def write(self, anchor: Anchor) -> None:
        """Says where the log is now, durably."""
        if anchor == self._written:
            return
        replace_file(self._path, json.dumps(anchor.wire()).encode())
        self._written = anchor

    def remove(self) -> None:
        """Takes the anchor away, durably; a missing one is fine. Raises StorageFault."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageFault(f"the file {self._path.name} could not be removed") from error
        sync_folder(self._path.parent)


class Journal:
    """The tombstones' rows, one JSON line each; what it says is sealed, and a line may repeat."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, rows: Iterable[Row]) -> None:
        """Adds rows durably, before their keys are removed; raises StorageFault."""
        lines = journal_bytes(rows)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_WAITING
            descriptor = os.open(self._path, flags, 0o600)
            try:
                # A line that a crash cut short must not swallow this one.
                _write_all(descriptor, b"\n" + lines if self._is_cut() else lines)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StorageFault("the forget journal could not be written") from error
        sync_folder(self._path.parent)

    def read(self) -> list[Row]:
        """Every row once, in the order of the forgets; a line that was cut short is left out."""
        return read_file(self._path, "the forget journal", journal_rows) or []

    def _is_cut(self) -> bool:
        try:
            with self._path.open("rb") as file:
                file.seek(0, os.SEEK_END)
                if file.tell() == 0:
                    return False
                file.seek(-1, os.SEEK_END)
                return file.read(1) != b"\n"
        except FileNotFoundError:
            return False


FilePath = Annotated[str, Field(pattern=r"^[^\x00]+$")]


class Destination(Value):
    """A folder that backups go to: how many logs it keeps, and the key epoch of its key bundle.

    Key epoch 0 is that of no bundle, or of one that another recovery code opens. `data_set` names
    the ledger, and `mark` (hex) a bundle that a restore has left there, from which we went on.
    """

    path: FilePath
    keep: int = Field(ge=1)
    key_epoch: int = 0
    data_set: str = ""
    mark: str = ""


class ExportedFile(Value):
    """A readable copy of the log up to a position; until it is whole it lies `beside` its path."""

    path: FilePath
    position: int
    beside: FilePath | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Where it may lie: one that was stopped, at either."""
        return (self.path,) if self.beside is None else (self.path, self.beside)


class Copies(Value):
    """Every copy that was made where the ledger cannot reach it by itself."""

    backups: tuple[Destination, ...] = ()
    exports: tuple[ExportedFile, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Where they are, or were."""
        return (*(it.path for it in self.backups), *self.exported())

    def exported(self, before: float = inf) -> tuple[str, ...]:
        """Where the exports are, or were, that were made of the log before a position."""
        made = (it for it in self.exports if it.position < before)
        return tuple(dict.fromkeys(name for it in made for name in it.names))


class CopyList:
    """The list of copies, in the state folder: a forget says which of them it did not reach."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Copies:
        """The copies known; raises IntegrityFault for a damaged list."""
        what = "the list of copies (`copies` in the state folder: take it away and back up again)"
        return read_file(self._path, what, Copies.model_validate_json) or Copies()

    def put(self, destination: Destination) -> None:
        """Adds a destination, or replaces what is known of it; under the space lock."""
        known = self.read()
        kept = [it for it in known.backups if it.path != destination.path]
        self._write(known.model_copy(update={"backups": (*kept, destination)}))

    def put_export(self, file: ExportedFile) -> None:
        """Adds an export, under the space lock; one that is whole takes the place of all before."""
        known = self.read()
        kept = [it for it in known.exports if file.beside or it.path != file.path]
        self._write(known.model_copy(update={"exports": (*kept, file)}))

    def drop(self, path: str) -> bool:
        """Takes a copy off the list, under the space lock; False for one that is not on it."""
        known = self.read()
        backups = tuple(it for it in known.backups if it.path != path)
        exports = tuple(it for it in known.exports if path not in it.names)
        self._write(Copies(backups=backups, exports=exports))
        return path in known.paths

    def leave(self, backups: Iterable[Destination]) -> None:
        """Leaves only these destinations."""
        self._write(self.read().model_copy(update={"backups": tuple(backups)}))

    def disown_bundles(self) -> None:
        """Counts every key bundle as an old one: another recovery code is in force."""
        for destination in self.read().backups:
            self.put(destination.model_copy(update={"key_epoch": 0}))

    def _write(self, copies: Copies) -> None:
        try:
            if copies == Copies():
                self._path.unlink(missing_ok=True)
                return
            replace_file(self._path, copies.model_dump_json().encode())
        except OSError as error:
            raise StorageFault("the list of copies could not be written") from error


def witnesses(state: Path) -> tuple[AnchorFile, Journal, CopyList]:
    """What a space's state folder holds beside the wrapping keys."""
    return AnchorFile(state / "anchor"), Journal(state / "forgotten"), CopyList(state / "copies")


def journal_bytes(rows: Iterable[Row]) -> bytes:
    """Journal rows as they are stored, one line each."""
    return b"".join(_line(row) for row in rows)


def journal_rows(stored: bytes) -> list[Row]:
    """The rows again, each once, in their order."""
    rows = (row for line in stored.split(b"\n") if (row := _row(line)) is not None)
    return list({(row.position, row.chain): row for row in rows}.values())


def _line(row: Row) -> bytes:
    said = {
        "position": row.position,
        "type": row.type,
        "recorded_at": row.recorded_at,
        "header": row.header.decode(),
        "tags": row.tags,
        "commitment": row.commitment.hex(),
        "chain": row.chain.hex(),
        "key_id": row.key_id,
        "sealed": b64encode(row.sealed or b"").decode(),
    }
    return json.dumps(said).encode() + b"\n"


def _row(line: bytes) -> Row | None:
    try:
        said = json.loads(line)
        key_id = said["key_id"]
        return Row(
            number_of(said["position"]), str(said["type"]), number_of(said["recorded_at"]),
            said["header"].encode(), tuple(map(str, said["tags"])),
            bytes.fromhex(said["commitment"]), bytes.fromhex(said["chain"]),
            None if key_id is None else str(key_id), b64decode(said["sealed"]) or None,
        )  # fmt: skip
    except DAMAGE:
        return None


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def replace_file(path: Path, content: bytes) -> None:
    """Puts a whole new file in place of the old one, durably, for the owner alone."""
    beside = path.with_name(path.name + ".new")
    # Whatever bears the name: a link may lead to what is not ours to overwrite.
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    beside.replace(path)
    sync_folder(path.parent)
