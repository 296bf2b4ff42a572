"""Exports: a file that a person or a program reads, of all that the person may read now."""

import fcntl
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from typing import Literal, TextIO

from memoranda.ledger.authority import Caller, PersonClient
from memoranda.ledger.bundles import FILE_NAME
from memoranda.ledger.errors import (
    IntegrityFault,
    Refusal,
    Refused,
    RefusedError,
    StorageFault,
)
from memoranda.ledger.events import Value
from memoranda.ledger.legacy import EXPORT_FORMAT
from memoranda.ledger.locks import flocked
from memoranda.ledger.log import BUSY_WAIT_S, Log
from memoranda.ledger.personal import Record
from memoranda.ledger.places import path_of
from memoranda.ledger.slots import sync_folder
from memoranda.ledger.witness import ExportedFile
from memoranda.projections.exporting import NO_REASON, Export, Readable
from memoranda.projections.history import RecordRead
from memoranda.projections.unseen import visible

Format = Literal["jsonl", "markdown"]

NAME_SHOWN = 50
"""How much of the file's name what is half written bears: with the rest it fits any folder."""


class ExportReport(Value):
    """A file that was written: what is in it, and up to which position of the log."""

    path: str
    format: Format
    position: int
    records: dict[str, int]
    conflicts: int
    blocked: int


class Exporting:
    """Writes exports, and keeps on the list of copies that they exist."""

    def __init__(self, log: Log, export: Export) -> None:
        self._log = log
        self._export = export

    def write(
        self, caller: Caller, path: Path | str, *, form: Format = "jsonl", replace: bool = False
    ) -> ExportReport | Refused:
        """Writes the file whole or not at all; one that is there is replaced only when asked."""
        if not isinstance(caller, PersonClient):
            return Refused(Refusal.NOT_AUTHORIZED)
        try:
            target = path_of(path, "path")
            self._check(target, form, replace=replace)
            with flocked(_lock_of(self._log), fcntl.LOCK_EX, BUSY_WAIT_S):
                _sweep(self._log)
                return self._written(caller, target, form)
        except RefusedError as error:
            return error.refused
        except OSError as error:
            return Refused(Refusal.READ_ONLY, "path", error.strerror)

    def _check(self, target: Path, form: Format, *, replace: bool) -> None:
        field, message = "path", None
        if form not in list(_WRITERS):
            field, message = "form", "is jsonl or markdown"
        elif self._log.place.holds(target):
            message = "lies inside a ledger's own folders; choose another folder"
        elif self._is_of_backups(target.parent):
            message = "lies in a folder of backups; choose another folder"
        elif os.path.lexists(target) and (target.is_dir() or not replace):
            message = "exists already; `replace` (--replace) overwrites a file"
        if message:
            raise RefusedError(Refused(Refusal.INVALID_REQUEST, field, message))

    def _is_of_backups(self, folder: Path) -> bool:
        """Whether this space backs up there, or any other: each keeps its key bundle beside it."""
        known = (Path(it.path) / self._log.space for it in self._log.copies.read().backups)
        is_known = folder.resolve() in [it.resolve() for it in known]
        return is_known or (folder / FILE_NAME).exists()

    def _written(self, caller: Caller, target: Path, form: Format) -> ExportReport:
        counts: Counter[str] = Counter()
        # A name that nothing has, and for nobody else to read.
        descriptor, name = mkstemp(".new", f"{target.name[:NAME_SHOWN]}.", target.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                # Before it is read: every forget from here on says that the file may tell of it.
                with self._log.exclusive():
                    now = self._log.head().position
                    begun = ExportedFile(path=str(target), position=now, beside=name)
                    self._log.copies.put_export(begun)
                with self._export.reading(caller) as readable:
                    _WRITERS[form](readable, file, counts)
                    file.flush()
                    os.fsync(file.fileno())
            Path(name).replace(target)
            sync_folder(target.parent)
            # It is there, whoever holds the ledger: then it stays listed as it was begun.
            with suppress(RefusedError, StorageFault), self._log.exclusive():
                whole = ExportedFile(path=str(target), position=readable.position)
                self._log.copies.put_export(whole)
        finally:
            _take_away(self._log, Path(name))
        conflicts, blocked = counts.pop("conflict", 0), counts.pop("blocked", 0)
        return ExportReport(
            path=str(target),
            format=form,
            position=readable.position,
            records=dict(sorted(counts.items())),
            conflicts=conflicts,
            blocked=blocked,
        )


def sweep(log: Log) -> None:
    """Takes away what stopped exports have left; where it cannot, a forget goes on to name it."""
    with suppress(IntegrityFault, RefusedError):
        if any(it.beside for it in log.copies.read().exports):
            with flocked(_lock_of(log), fcntl.LOCK_EX, 0):
                _sweep(log)


def _sweep(log: Log) -> None:
    for left in [it.beside for it in log.copies.read().exports if it.beside]:
        with suppress(OSError):
            _take_away(log, Path(left))


def _take_away(log: Log, left: Path) -> None:
    # One that is not there may have got its name, or lie on a disk that is out.
    with suppress(FileNotFoundError):
        left.unlink()
        with suppress(RefusedError, StorageFault), log.exclusive():
            log.copies.drop(str(left))


def _lock_of(log: Log) -> Path:
    """Held by who writes an export: whatever else is listed as unfinished was stopped."""
    return log.place.data / "export.lock"


# -- lines for programs -----------------------------------------------------------------------


def _write_lines(readable: Readable, file: TextIO, counts: Counter[str]) -> None:
    """The lines that `memoranda import` takes, the first of which says whose they are."""
    head = {"kind": "store", "format": EXPORT_FORMAT, "user_space_id": readable.space}
    _put(file, {**head, "position": readable.position, "exported_at": readable.now_text})
    told: set[str] = set()
    for read in readable.records:
        counts[read.record.status] += 1
        _put(
            file, {"kind": "record", "key": read.key, "value": read.record.model_dump(mode="json")}
        )
        for conflict in read.conflicts:
            if conflict.conflict_id not in told:
                told.add(conflict.conflict_id)
                pair = conflict.model_dump(include={"candidate_id", "other_id"})
                reason = readable.reasons.get(conflict.conflict_id, NO_REASON)
                _put(file, {"kind": "conflict", **pair, "reason": reason})
    for ref in readable.blocked:
        _put(file, {"kind": "forgotten_source", "ref": ref})
    counts.update({"conflict": len(told), "blocked": len(readable.blocked)})


def _put(file: TextIO, fields: dict[str, object]) -> None:
    file.write(json.dumps(fields, ensure_ascii=False) + "\n")


# -- pages for people -------------------------------------------------------------------------

_SIGNS = re.compile(r"([\\`*_{}\[\]<>#|!~&])")
"""What Markdown or HTML would obey."""


def _write_pages(readable: Readable, file: TextIO, counts: Counter[str]) -> None:
    """Each record as a quotation with where it comes from; tombstones are only counted."""
    file.write(f"# What is remembered in {_plain(readable.space)}\n\n")
    file.write(f"As of {readable.now_text}, position {readable.position} of the log.\n")
    for read in readable.records:
        counts[read.record.status] += 1
        if isinstance(read.record, Record):
            file.writelines(f"{text}\n" for text in _page(read, read.record))
    if counts["forgotten"]:
        file.write(
            f"\nForgotten records, of which nothing is left to read: {counts['forgotten']}.\n"
        )


def _page(read: RecordRead, record: Record) -> Iterator[str]:
    yield ""
    yield from (f"> {_plain(text)}" for text in record.content.split("\n"))
    yield ""
    name = f", about {_plain(read.key)}" if read.key else ""
    state = record.status if read.is_active or record.status != "accepted" else "not in force"
    yield f"- {state}, {record.tier}, {record.evidence}{name}"
    for word, date in (("from", record.effective_at), ("until", record.expires_at)):
        if date:
            yield f"- {word} {date}"
    for source in record.sources:
        yield f"- source: {_plain(source.ref)}, {source.occurred_at}"
    yield f"- {_plain(record.id)}, revision {record.revision}, {read.decided_at}"


def _plain(text: str) -> str:
    return _SIGNS.sub(r"\\\1", visible(text))


_WRITERS: dict[Format, Callable[[Readable, TextIO, Counter[str]], None]] = {
    "jsonl": _write_lines,
    "markdown": _write_pages,
}
