"""Restoring a backup: its log under the present keys, and what was forgotten since forgotten again.

Until it has ended a mark stands in the state folder, and the ledger opens for nothing else. Every
step may be repeated: a second run begins with the same copy and comes to the same end.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import mkstemp

from memoranda.ledger.backups import (
    KEEP_DEFAULT,
    LogCopy,
    Manifest,
    followed,
    is_as_made,
    put_line_last,
    read_manifest,
    sweep,
    take_copy,
    verify_listed,
)
from memoranda.ledger.bundles import KeyBundle, read_bundle
from memoranda.ledger.engines import engine_of
from memoranda.ledger.entries import Draft
from memoranda.ledger.errors import IntegrityFault, Refusal, Refused, RefusedError, StorageFault
from memoranda.ledger.events import LedgerRestored, RestoredFrom, Value
from memoranda.ledger.keyring import SCHEMA as KEYS_SCHEMA
from memoranda.ledger.keyring import SCHEMA_NUMBER as KEYS_SCHEMA_NUMBER
from memoranda.ledger.keyring import (
    SPACE_ROWS,
    Keyring,
    bundle_key_in,
    install_rows,
    open_recovery_copy,
)
from memoranda.ledger.locks import SpaceLock, flocked
from memoranda.ledger.log import BUSY_WAIT_S, Log
from memoranda.ledger.places import Place
from memoranda.ledger.replaying import check_rows, named_keys, replay
from memoranda.ledger.sealed_store import holder_of
from memoranda.ledger.slots import READ_AGAIN, SLOT_BYTES, SlotFile, make_folder
from memoranda.ledger.sqlite_files import connect_copy, take_away, usable
from memoranda.ledger.sqlite_log import SCHEMA_NUMBER, SQLiteSnapshot
from memoranda.ledger.stamps import Stamps, moment_of, time_text
from memoranda.ledger.vaults import SLOTS, InSlot, Unlocking, WrappingKeys
from memoranda.ledger.witness import Anchor, AnchorFile, Destination, witnesses


class Restored(Value):
    """A log that was put in place, before it is audited and served.

    `gone` counts the events behind the copy that the anchor had seen: whatever was acknowledged
    between the two times is not there any more. `lacks_passphrase` says that the code put the
    wrapping key into its slot as it is: a passphrase that was over it is not any more. `left_in`
    are the vaults that still keep a key of before: with an old copy it opens what was forgotten.
    """

    position: int
    recorded_at: str
    forgotten_again: int
    messages_lost: int
    gone: int
    gone_until: str | None
    key_epoch: int
    term: int
    lacks_passphrase: bool = False
    left_in: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """How to restore: with which code, over what is here, from which copy.

    Without a code the slots of this machine must open the backup. What is here and goes further
    is not replaced unless forced. The copy is the newest, or the newest up to a position.
    """

    code: str | None = None
    force: bool = False
    position: int | None = None


@dataclass(frozen=True, slots=True)
class _Source:
    """A backup that was read and verified; `path` is a copy of its log that is ours."""

    copy: LogCopy
    path: Path
    bundle: KeyBundle
    manifest: Manifest

    def check(self, key: bytes) -> None:
        """Raises IntegrityFault unless the ledger whose key this is has written both."""
        self.bundle.check(key)
        self.manifest.check(key)


class Restoring:
    """Puts one backup of a space in place of what is there."""

    def __init__(self, place: Place, stamps: Stamps, host: str, unlocking: Unlocking) -> None:
        self._place = replace(place, is_restoring=True)
        self._stamps = stamps
        self._host = host
        self._unlocking = unlocking
        self._slots = SlotFile(place.state / "slots")
        self._vault = WrappingKeys(self._slots, place.space, stamps, unlocking)
        self._engine = engine_of(place)
        self._lock = SpaceLock(place.data / "lock", BUSY_WAIT_S, is_shared=self._engine.is_shared)
        self._left_in: tuple[str, ...] = ()
        self._backup_lock = SpaceLock(place.data / "backup.lock", BUSY_WAIT_S)

    def begin(self, folder: Path, asked: Asked) -> Restored | Refused:
        """Verifies the backup, puts it in place, and forgets again; nothing is served yet."""
        try:
            with self._own_file() as own:
                source = self._source(folder, asked, own)
                with suppress(RefusedError):
                    self._vault.unlock()  # what does not open is asked for by its code
                wrapping_key = self._wrapping_key(source, asked)
                self._ask_vault(source.bundle, wrapping_key)
                make_folder(self._place.state)
                with self._lock.held():
                    before = self._prepared(source, wrapping_key, force=asked.force)
                known = _anchor_in(witnesses(self._place.state)[0])
                restored = self._replayed(source, before, str(folder))
                with self._lock.held():
                    replaced = Anchor.of(self._engine.put(source.path))
                # What this machine knew of was told of before, or a stopped restore has put it.
                gone = self._gone(source, before if replaced == known else max(before, replaced))
            self._stamps.step("restore:log")
            is_in_slot = self._unlocking.vault == SLOTS and self._vault.keeping == InSlot()
            lacks_passphrase = asked.code is not None and is_in_slot
            return restored.model_copy(
                update=gone | {"lacks_passphrase": lacks_passphrase, "left_in": self._left_in}
            )
        except RefusedError as error:
            return error.refused
        except OSError as error:
            return Refused(Refusal.READ_ONLY, "data", error.strerror)

    def finish(self) -> None:
        """Lets the ledger be served again."""
        AnchorFile(self._place.mark).remove()

    # -- what is restored -------------------------------------------------------------------

    @contextmanager
    def _own_file(self) -> Iterator[Path]:
        """Where the copy lies while it is verified and put in place; nothing of it stays."""
        data = self._place.data
        made = [it for it in (data, *data.parents) if not it.exists()]
        make_folder(data)
        sweep(data)
        descriptor, name = mkstemp(".db", "restoring-", data)
        os.close(descriptor)
        try:
            with flocked(Path(name), fcntl.LOCK_EX, 0):
                yield Path(name)
        finally:
            take_away(Path(name))
            with suppress(OSError):  # none is empty any more, unless it was refused
                for folder in made:
                    folder.rmdir()

    def _source(self, folder: Path, asked: Asked, own: Path) -> _Source:
        inner = folder / self._place.space
        try:
            manifest, copy = _taken(inner, asked.position, own)
            verify_listed(own, copy, self._place.space)
            if not asked.force and not is_as_made(own, copy):
                message = "the copy of the log was damaged or changed; --force puts in place what"
                raise _refused("backup", f"{message} its chain vouches for")
            bundle = read_bundle(inner)
        except IntegrityFault as fault:
            raise _refused("backup", str(fault)) from fault
        if bundle.data_set != manifest.data_set:
            raise _refused("backup", "the key bundle is of another ledger")
        return _Source(copy, own, bundle, manifest)

    def _wrapping_key(self, source: _Source, asked: Asked) -> bytes | None:
        """What opens the bundle; None where the key file here, which is newer, serves instead."""
        bundle, slots = source.bundle, self._slot_keys()
        key = slots.get(bundle.key_epoch)
        if asked.code is not None:
            try:
                _, key = open_recovery_copy(bundle.recovery, asked.code, self._place.space)
            except IntegrityFault as fault:
                message = "is not the code that opens this backup's key bundle"
                raise _refused("recovery", message) from fault
        here = self._keys_here()
        # Older ones are those of another backup, whose restore was interrupted.
        is_newer = max(slots, default=0) > bundle.key_epoch
        if key is None and not (is_newer and here is not None and here[0] == bundle.data_set):
            message = "needed here: no wrapping key on this machine opens the backup's key bundle"
            raise _refused("recovery", message)
        try:
            # Whoever may write to the folder has none of the keys that the marks are made with.
            if here is not None and here[0] == bundle.data_set:
                source.check(here[1])
            if key is not None:
                source.check(bundle_key_in(bundle.keys, key, self._place.space))
        except IntegrityFault as fault:
            message = f"the backup does not open: {fault}"
            hint = "" if asked.code else "; with --recovery, your code may"
            raise _refused("backup", message + hint) from fault
        if bundle.key_epoch < source.copy.key_epoch and not asked.force:
            message = "the key bundle is older than the copy of the log; --force restores"
            raise _refused("force", f"{message} all but what lies under later keys")
        return key

    def _ask_vault(self, bundle: KeyBundle, wrapping_key: bytes | None) -> None:
        """Raises RefusedError for a vault that could not keep the key once it is restored."""
        stays = wrapping_key in {None, self._slot_keys().get(bundle.key_epoch)}
        # Of an interrupted restore it lies in its slot, and goes where it belongs from there.
        if stays and not self._place.mark.exists():
            self._vault.refuse_another()
        else:
            self._vault.counted_on()

    def _slot_keys(self) -> dict[int, bytes]:
        try:
            return self._vault.read()
        except RefusedError:
            return {}

    def _data_set_here(self) -> str | None:
        """Which data the keys on this machine are of, where they open."""
        here = self._keys_here()
        return here[0] if here else None

    def _keys_here(self) -> tuple[str, bytes] | None:
        """The data set of the keys on this machine, and what marks its bundles."""
        path = self._place.data / "keys.db"
        if not path.exists():
            return None
        try:
            with (
                self._lock.held(),
                closing(Keyring(path, self._place.space, self._vault, self._stamps)) as keyring,
            ):
                return keyring.data_set, keyring.bundle_key
        except (IntegrityFault, StorageFault, RefusedError):
            return None

    # -- into its place ---------------------------------------------------------------------

    def _prepared(self, source: _Source, wrapping_key: bytes | None, *, force: bool) -> Anchor:
        """Keys and journal as the backup has them; the anchor of before."""
        is_anothers = self._data_set_here() not in {None, source.bundle.data_set}
        self._refuse_unknown(source.bundle, is_anothers=is_anothers)
        before = self._marked(source, force=force, is_anothers=is_anothers)
        self._stamps.step("restore:marked")
        self._put_journal(source.bundle, is_anothers=is_anothers)
        self._stamps.step("restore:journalled")
        if wrapping_key is not None:
            self._put_keys(source.bundle, wrapping_key)
        self._stamps.step("restore:keys")
        return before

    def _marked(self, source: _Source, *, force: bool, is_anothers: bool) -> Anchor:
        """From here on the ledger opens for nothing else; a repeat finds the same anchor."""
        mark = AnchorFile(self._place.mark)
        if (before := _anchor_in(mark)) is not None:
            return before
        log = self._log_here()
        if not force and log and not self._stands_in(source, log):
            message = "the ledger here goes further than the backup, or another way; --force puts"
            raise _refused("force", f"{message} the backup in its place all the same")
        here = [] if is_anothers else [_anchor_in(witnesses(self._place.state)[0]), log]
        seen = [it for it in [*here, source.bundle.anchor] if it is not None]
        # What is lost is told of: the longest line may be the one that comes back.
        before = max([it for it in seen if not self._stands_in(source, it)] or seen)
        mark.write(before)
        return before

    def _refuse_unknown(self, bundle: KeyBundle, *, is_anothers: bool) -> None:
        """What cannot be forgotten again is not brought back."""
        _, journal, _ = witnesses(self._place.state)
        try:
            check_rows(bundle.journal)
            check_rows(() if is_anothers else journal.read())
        except IntegrityFault as fault:
            raise _refused("backup", str(fault)) from fault

    def _put_journal(self, bundle: KeyBundle, *, is_anothers: bool) -> None:
        if is_anothers:
            # Its forgets mean nothing here, and its backups are not ours to rewrite.
            for name in ("forgotten", "copies"):
                (self._place.state / name).unlink(missing_ok=True)
        _, journal, _ = witnesses(self._place.state)
        known = set(journal.read())
        journal.add(row for row in bundle.journal if row not in known)

    def _put_keys(self, bundle: KeyBundle, wrapping_key: bytes) -> None:
        is_same = self._slot_keys().get(bundle.key_epoch) == wrapping_key
        # Keys that another process has minted since stay: its pool must not run dry unseen.
        keeps = is_same and self._data_set_here() == bundle.data_set
        if not is_same:
            self._put_slot(bundle.key_epoch, wrapping_key)
        self._stamps.step("restore:slots")
        path = usable(self._place.data / "keys.db", KEYS_SCHEMA, KEYS_SCHEMA_NUMBER)
        # By now it is the journal of both: what either has forgotten opens at no step.
        left = named_keys(witnesses(self._place.state)[1].read()) - SPACE_ROWS
        # What is in force here stays, the recovery code too: the bundle may be from before it.
        left |= SPACE_ROWS if keeps else set()
        install_rows(path, (row for row in bundle.keys if row[0] not in left), keeps=keeps)

    def _log_here(self) -> Anchor | None:
        """How far the log is that is to be replaced; None where there is none that can be read."""
        try:
            if not self._engine.exists():
                return None
            with (
                closing(self._engine.recorder(self._lock, self._stamps)) as recorder,
                recorder.reading() as snapshot,
            ):
                return Anchor.of(snapshot.head)
        except (StorageFault, IntegrityFault):
            return None
        except RefusedError as error:
            if error.refused.refusal is not Refusal.SPACE_UNKNOWN:
                raise
            return None

    def _put_slot(self, key_epoch: int, wrapping_key: bytes) -> None:
        if not (self._place.state / "slots").exists():
            self._slots.create(self._stamps.entropy(2 * SLOT_BYTES))
        with suppress(RefusedError):  # no valid slot names any
            self._left_in = self._vault.leave()
        # As it is: a passphrase goes over it again, or another vault takes it, once it is served.
        self._vault.write(key_epoch, wrapping_key, InSlot())
        self._slots.destroy(key_epoch + 1, self._stamps.entropy(SLOT_BYTES))

    # -- what it must forget again ------------------------------------------------------------

    def _replayed(self, source: _Source, before: Anchor, folder: str) -> Restored:
        """Forgets again in the copy: whoever has the log open sees all of it come at once."""
        opened = partial(Log, create=False, host=self._host, unlocking=self._unlocking)
        place = replace(self._place, engine=None, log=source.path.name)
        with closing(opened(place, self._stamps)) as log:
            rows = log.journal.read()
            with log.deciding() as store:
                store.attach()
                store.take_term("restored", holder_of(store))
                header = LedgerRestored(position=source.copy.position, term=store.head.term)
                store.append(Draft(header, RestoredFrom.model_validate(before.wire())))
                again = replay(store, rows)
                # What it is rotated to next: no key file of before opens it from the first moment.
                key_epoch = max(source.copy.key_epoch, *self._vault.epochs())
                store.note_rotation(key_epoch + 1)
                term = store.head.term
            self._stamps.step("restore:replayed")
            log.remove_keys(tuple(again.removed_keys))
            with self._backup_lock.held(), log.exclusive():
                self._own(log, source.bundle, folder)
            self._stamps.step("restore:destinations")
        return Restored(
            position=source.copy.position,
            recorded_at=source.copy.recorded_at,
            forgotten_again=again.records,
            messages_lost=again.messages,
            gone=0,
            gone_until=None,
            key_epoch=key_epoch,
            term=term,
        )

    def _gone(self, source: _Source, before: Anchor) -> dict[str, object]:
        """How many events the anchor had seen that are not there now; at least its own, if so."""
        if self._stands_in(source, before):
            return {}
        until = time_text(moment_of(before.recorded_at))
        return {"gone": max(1, before.position - source.copy.position), "gone_until": until}

    def _stands_in(self, source: _Source, anchor: Anchor) -> bool:
        """Whether the copy goes on from an anchor."""
        with closing(connect_copy(source.path, schema_number=SCHEMA_NUMBER)) as copy:
            rows = SQLiteSnapshot(copy, self._place.space).at([anchor.position])
        return anchor.position == 0 or [row.chain for row in rows] == [anchor.chain]

    def _own(self, log: Log, bundle: KeyBundle, folder: str) -> None:
        """Lets destinations follow this line, where nothing is lost by that.

        The one restored from does: its bundle follows this machine's key rotations from here on.
        Another may hold more than was restored; it is left for who wants to go back to it.
        """
        # What is out of reach, or is none, is found by the doctor, and keeps nobody out.
        with suppress(OSError, StorageFault, IntegrityFault, RefusedError):
            put_line_last(log, Path(folder) / self._place.space)
        made = Destination(path=folder, keep=KEEP_DEFAULT, data_set=bundle.data_set)
        known = {made.path: made} | {it.path: it for it in log.copies.read().backups}
        for destination in known.values():
            log.copies.put(followed(log, destination).model_copy(update={"key_epoch": 0}))


def _taken(
    inner: Path, position: int | None, own: Path, again: int = READ_AGAIN
) -> tuple[Manifest, LogCopy]:
    """The manifest and the copy of the log that it names, which is ours from here on."""
    manifest = read_manifest(inner)
    copy = _newest(manifest.copies if manifest else (), position)
    if manifest is None or copy is None:
        raise _refused("backup", "there is no such backup of this space in the folder")
    try:
        take_copy(inner / copy.file, own)
    except IntegrityFault:
        # A backup that was made meanwhile may have let go of it.
        if again and read_manifest(inner) != manifest:
            return _taken(inner, position, own, again - 1)
        raise
    return manifest, copy


def _newest(copies: Sequence[LogCopy], position: int | None) -> LogCopy | None:
    """The copy that was made last; up to a position, one that ends there goes before."""
    early = [it for it in copies if position is None or it.position <= position]
    exact = [it for it in early if it.position == position]
    return next(reversed(exact or early), None)


def _anchor_in(file: AnchorFile) -> Anchor | None:
    try:
        return file.read()
    except IntegrityFault:
        return None


def _refused(field: str, message: str) -> RefusedError:
    refusal = Refusal.SPACE_UNKNOWN if field == "backup" else Refusal.INVALID_REQUEST
    return RefusedError(Refused(refusal, field, message))
