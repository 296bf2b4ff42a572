"""The doctor: what could cost this ledger its memories or its secrets, found before it does."""

import sqlite3
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from memoranda.ledger.backups import followed, is_as_made, manifest_of, verify_listed
from memoranda.ledger.bundles import OtherFormat, occupied, read_bundle
from memoranda.ledger.errors import IntegrityFault, RefusedError
from memoranda.ledger.events import RecordCommitted, Value
from memoranda.ledger.forgetting import FORGETS, pending_in
from memoranda.ledger.holding import all_held, until_of
from memoranda.ledger.log import ANCHOR_EVENTS, Log
from memoranda.ledger.slots import SlotFile
from memoranda.ledger.stamps import moment_of, time_text
from memoranda.ledger.takeover import completed_in
from memoranda.ledger.witness import Destination
from memoranda.tools.parts import Parts

MENDED = ((3, 51, 3), (3, 50, 7), (3, 44, 6))
"""SQLite versions without the fault of overlapping checkpoints, each from there on in its line."""


class Check(Value):
    """One thing that was looked at; a `note` is worth knowing, a `finding` wants to be mended."""

    name: str
    level: Literal["fine", "note", "finding"]
    message: str


def examined(parts: Parts) -> tuple[Check, ...]:
    """Everything that is looked at, in an order in which it can be mended."""
    log = parts.log
    return (
        _sqlite(),
        _fine("pragmas", "WAL, synchronous=FULL and secure_delete were set and read back"),
        *_permissions(log),
        _anchor(log),
        _journal(log),
        _erasures(log),
        _rotation(log),
        *_held(parts),
        _operations(parts),
        *_earlier_store(parts),
        *_backups(log),
        *_state_folder(log),
    )


def _sqlite() -> Check:
    version = sqlite3.sqlite_version_info
    is_mended = version >= MENDED[0] or any(
        version[:2] == it[:2] and version >= it for it in MENDED
    )
    if is_mended:
        return _fine("sqlite", sqlite3.sqlite_version)
    message = (
        f"{sqlite3.sqlite_version} can lose pages when checkpoints overlap; the ledger's lock keeps"
        " them apart, so let no other program checkpoint its files"
    )
    return Check(name="sqlite", level="note", message=message)


def _permissions(log: Log) -> Iterator[Check]:
    open_to_others = [
        path.name for path in _files(log) if stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    if open_to_others:
        names = ", ".join(sorted(open_to_others))
        yield _finding("permissions", f"others may enter or read {names}; `chmod go=` closes them")
    else:
        yield _fine("permissions", "every file and folder is the owner's alone")


def _files(log: Log) -> Iterator[Path]:
    for folder in (log.place.data, log.place.state):
        yield folder
        yield from folder.iterdir()


def _anchor(log: Log) -> Check:
    anchor, head = log.anchor.read(), log.head()
    if anchor is None and head.position > ANCHOR_EVENTS:
        return _finding("anchor", "missing: an older copy of the log would not be noticed")
    position = anchor.position if anchor else 0
    return _fine("anchor", f"the log goes on from it, {head.position - position} events since")


def _journal(log: Log) -> Check:
    known = {row.chain for row in log.journal.read()}
    with log.reading() as store:
        tombstones = [it for it in store.select(FORGETS) if isinstance(it.header, RecordCommitted)]
    missing = sum(it.row.chain not in known for it in tombstones)
    if missing:
        message = f"{missing} of {len(tombstones)} forgets are not in it: a restore would miss them"
        return _finding("journal", message)
    return _fine("journal", f"holds every forget, {len(tombstones)}")


def _erasures(log: Log) -> Check:
    with log.reading() as store:
        pending = len(pending_in(store))
    if pending:
        return _finding("erasures", f"{pending} are not complete; `memoranda forgotten finish`")
    return _fine("erasures", "everything that was forgotten is erased")


def _rotation(log: Log) -> Check:
    """Whether the wrapping key of before is gone: with an old copy it opens what was forgotten."""
    if len(SlotFile(log.place.state / "slots").read()) == 1:
        return _fine("key rotation", "no wrapping key of before is kept")
    message = "the wrapping key of before is not destroyed yet; end what reads keys.db, or see to"
    return _finding("key rotation", f"{message} its vault, then run any command")


def _held(parts: Parts) -> Iterator[Check]:
    with parts.log.reading() as store:
        ends = [until_of(it) for it in all_held(store)]
    if ends:
        last = time_text(moment_of(max(ends)))
        message = (
            f"{len(ends)} forgets of a model's session can be taken back, the last until {last};"
            " `memoranda forgotten list` shows them, `memoranda forgotten finish --now` ends it"
        )
        yield Check(name="held", level="note", message=message)
    if overdue := parts.forgetting.overdue():
        message = f"{overdue} past the window: the host that wrote last has not come back"
        yield _finding("overdue", f"{message}; `memoranda forgotten finish --now` lets go of them")


def _operations(parts: Parts) -> Check:
    if count := parts.unfinished.count():
        return _finding("operations", f"{count} have no end; `memoranda operations` shows them")
    return _fine("operations", "every operation has an end")


def _earlier_store(parts: Parts) -> Iterator[Check]:
    """What did not come along, as this opening saw it or the last migration noted it."""
    report = parts.taken_over
    if report is not None and not report.is_complete:
        message = "what `memoranda operations` shows must be settled before it is complete"
        yield _finding("earlier store", f"{refused_lines(report.refused)}; {message}")
        return
    with parts.log.reading() as store:
        last = completed_in(store)
    if last is not None and last.refused:
        message = f"{refused_lines(last.refused)}; `memoranda migrate FROM --dry-run` names them"
        yield Check(name="earlier store", level="note", message=message)
    elif last is not None:
        yield _fine("earlier store", "every line was taken over")


def refused_lines(counts: Mapping[str, int]) -> str:
    """How many lines of the earlier store did not come along, and for what."""
    codes = ", ".join(f"{code} {count}" for code, count in sorted(counts.items()))
    return f"lines of the earlier store that were refused: {sum(counts.values())} ({codes})"


def _backups(log: Log) -> Iterator[Check]:
    """Whether a lost machine could be restored with what is forgotten left out."""
    present = 0
    for destination in log.copies.read().backups:
        fault = _backup_fault(log, destination)
        if fault is None:
            present += 1
            message = "has the present key bundle and whole copies of the log"
            yield _fine("backup", f"{destination.path} {message}")
        else:
            yield _finding("backup", f"{destination.path}: {fault}")
    if not present:
        message = "no backup is whole and younger than the last key rotation"
        yield _finding("recovery", f"{message}; `memoranda backup DIR` makes one")


def _backup_fault(log: Log, destination: Destination) -> str | None:
    """What is wrong with a destination, and what mends it."""
    try:
        _read_backup(log, destination)
    except OtherFormat as fault:
        refused = occupied("another version's", log.space).refused  # as a backup there would be
        return f"{fault}; {refused.message}"
    except IntegrityFault as fault:
        return f"{fault}; `memoranda backup {destination.path}` writes it"
    except RefusedError as error:
        return error.refused.message
    return None


def _read_backup(log: Log, destination: Destination) -> None:
    """Raises what is wrong with a destination; the newest copy, which a restore takes, is whole."""
    folder = Path(destination.path) / log.space
    bundle = read_bundle(folder)
    log.refuse_anothers(followed(log, destination))
    bundle.check(log.bundle_key)
    if bundle.key_epoch != log.head().key_epoch:
        raise IntegrityFault("the key bundle is older than the last key rotation")
    manifest = manifest_of(log, folder)
    if manifest is None or not manifest.copies:
        raise IntegrityFault("no copy of the log is there")
    for copy in manifest.copies:
        if not (folder / copy.file).is_file():
            raise IntegrityFault(f"{copy.file} is missing")
    newest = manifest.copies[-1]
    verify_listed(folder / newest.file, newest, log.space)
    if not is_as_made(folder / newest.file, newest):
        raise IntegrityFault("the newest copy there was damaged or changed")
    with log.reading() as store:
        is_ours = store.chain_at(newest.position) == bytes.fromhex(newest.chain)
    if not is_ours:
        raise IntegrityFault("the newest copy there is of another line of this log")


def _state_folder(log: Log) -> Iterator[Check]:
    """The wrapping key beside what it opens, in one backup, makes every forget undone by it."""
    state = log.place.state.resolve()
    paths = [Path(it.path).resolve() for it in log.copies.read().backups]
    inside = [path for path in (*paths, log.place.data.resolve()) if state.is_relative_to(path)]
    for path in inside:
        yield _finding("state", f"the state folder lies inside {path}, which is backed up; move it")
    if not inside:
        yield _fine("state", "the state folder lies outside every known backup")


def _fine(name: str, message: str) -> Check:
    return Check(name=name, level="fine", message=message)


def _finding(name: str, message: str) -> Check:
    return Check(name=name, level="finding", message=message)
