"""What lies outside every backup of the log: the anchor of its tip, the journal of what it erased.

They tell a log that was rolled back or forked, and what a restored one must forget again.
"""

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from memoranda.ledger.entries import Head, Row
from memoranda.ledger.errors import IntegrityFault
from memoranda.ledger.slots import sync_folder


class Anchor(NamedTuple):
    """How far the log was when this was last written, and which keys were in force."""

    position: int
    chain: bytes
    key_epoch: int

    def stands_on(self, head: Head, chain_there: bytes | None) -> bool:
        """Whether a log with this head, and this chain at that position, goes on from it."""
        return head.position >= self.position and chain_there == self.chain


class AnchorFile:
    """One small file that is replaced whole; a log is never behind it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: Anchor | None = None

    def read(self) -> Anchor | None:
        """The anchor; None where none was written yet. Raises IntegrityFault for a damaged one."""
        try:
            said = json.loads(self._path.read_text())
            anchor = Anchor(said["position"], bytes.fromhex(said["chain"]), said["key_epoch"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise IntegrityFault("the anchor is damaged; `memoranda restore` writes it") from error
        self._written = anchor
        return anchor

    def is_behind(self, head: Head, by: int) -> bool:
        """Whether the log has gone on by so many events since it was written."""
        written = self._written.position if self._written else 0
        return head.position - written >= by

    def write(self, head: Head) -> None:
        """Says where the log is now, durably."""
        anchor = Anchor(head.position, head.chain, head.key_epoch)
        if anchor == self._written:
            return
        said = {
            "position": anchor.position,
            "chain": anchor.chain.hex(),
            "key_epoch": anchor.key_epoch,
        }
        _replace(self._path, json.dumps(said).encode())
        self._written = anchor


class Journal:
    """The tombstones' rows, one JSON line each; what it says is sealed, and a line may repeat."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, rows: Iterable[Row]) -> None:
        """Adds rows durably, before their keys are removed."""
        lines = b"".join(_line(row) for row in rows)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            # A line that a crash cut short must not swallow this one.
            _write_all(descriptor, b"\n" + lines if self._is_cut() else lines)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_folder(self._path.parent)

    def read(self) -> list[Row]:
        """Every row once, in the order of the log; a line that a crash cut short is left out."""
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        rows = {row.position: row for line in lines if (row := _row(line)) is not None}
        return [rows[position] for position in sorted(rows)]

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
        return Row(
            said["position"], said["type"], said["recorded_at"], said["header"].encode(),
            tuple(said["tags"]), bytes.fromhex(said["commitment"]), bytes.fromhex(said["chain"]),
            said["key_id"], b64decode(said["sealed"]) or None,
        )  # fmt: skip
    except (ValueError, KeyError, TypeError):
        return None


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(path.name + ".new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        _write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    beside.replace(path)
    sync_folder(path.parent)
