"""Exports: a file that a person or a program reads, of all that the person may read now."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkstemp
from typing import Literal, TextIO

from memoranda.ledger.authority import Caller
from memoranda.ledger.bundles import FILE_NAME
from memoranda.ledger.errors import Refusal, Refused, RefusedError
from memoranda.ledger.events import Value
from memoranda.ledger.legacy import EXPORT_FORMAT
from memoranda.ledger.log import Log
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
        try:
            target = path_of(path, "path")
            self._check(target, form, replace=replace)
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
            with (
                os.fdopen(descriptor, "w", encoding="utf-8") as file,
                self._export.reading(caller) as readable,
            ):
                _WRITERS[form](readable, file, counts)
                file.flush()
                os.fsync(file.fileno())
            # Not inside the snapshot: whoever holds the lock may wait for its end.
            with self._log.exclusive():
                # Listed first: from here on, every forget says that the file may tell of it.
                listed = ExportedFile(path=str(target), position=readable.position)
                self._log.copies.put_export(listed)
            Path(name).replace(target)
        finally:
            Path(name).unlink(missing_ok=True)
        sync_folder(target.parent)
        conflicts, blocked = counts.pop("conflict", 0), counts.pop("blocked", 0)
        return ExportReport(
            path=str(target),
            format=form,
            position=readable.position,
            records=dict(sorted(counts.items())),
            conflicts=conflicts,
            blocked=blocked,
        )


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
