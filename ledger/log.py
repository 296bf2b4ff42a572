"""The log of one space: the port through which everything above reads, decides and appends."""

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path

from memoranda.ledger.bundles import refuse_anothers, write_bundle
from memoranda.ledger.ending import FORGOTTEN, SpaceEnded, end_keys, is_forgotten_space, naming
from memoranda.ledger.engines import engine_of
from memoranda.ledger.entries import Draft, Head, Selector
from memoranda.ledger.errors import (
    CLOSED,
    FORKED,
    IntegrityFault,
    Refusal,
    Refused,
    RefusedError,
    StorageFault,
)
from memoranda.ledger.events import Attachment, SpaceCreated, SpaceForgotten
from memoranda.ledger.keyring import Keyring, KeyRow
from memoranda.ledger.locks import SpaceLock
from memoranda.ledger.oplog import say
from memoranda.ledger.places import LOST_LOG, MISSING_KEYS, Place
from memoranda.ledger.recorder import Snapshot
from memoranda.ledger.recovery_code import CODE_BYTES, code_of, key_of
from memoranda.ledger.sealed_store import LOCAL_HOST, DecidingStore, SealedStore, holder_of
from memoranda.ledger.slots import SlotFile, make_folder
from memoranda.ledger.stamps import Stamps
from memoranda.ledger.vaults import Keeping, KeptKey, Unlocking, WrappingKeys
from memoranda.ledger.witness import Anchor, Destination, witnesses

NORMALIZATION = 1
"""The version of the fact key's normal form (PM 1.3)."""

FIRST_KEY_EPOCH = 1
"""In force from the creation of a space until the log names another."""

ANCHOR_EVENTS = 256
"""How far the log may go on before the anchor follows it."""

BUSY_WAIT_S = 10.0
CLOSE_WAIT_S = 4.0
_LEFT_OPEN: "list[Log]" = []


class Log:
    """One space's authoritative log with its keys, as one host holds it.

    `recovery_code` is set once, by the opening that created the space. A host attaches with its
    first append: that takes a newer term than the host before, which appends no more. Openings of
    one host share its term; reading takes none.
    """

    _since: int | None = None
    _is_closed = False

    def __init__(
        self,
        place: Place,
        stamps: Stamps,
        *,
        create: bool,
        host: str = LOCAL_HOST,
        unlocking: Unlocking = Unlocking(),  # noqa: B008  # frozen
    ) -> None:
        self.space = place.space
        self.place = place
        self.host = host
        self._term: int | None = None
        self.recovery_code: str | None = None
        self._process = os.getpid()
        self._stamps = stamps
        self.engine = engine_of(place)
        self.anchor, self.journal, self.copies = witnesses(place.state)
        self._vault = WrappingKeys(SlotFile(place.state / "slots"), place.space, stamps, unlocking)
        self._look_before(place, create=create)
        self._lock = SpaceLock(place.data / "lock", BUSY_WAIT_S, is_shared=self.engine.is_shared)
        with self._lock.held(), ExitStack() as opened:
            self._recorder = self.engine.recorder(self._lock, stamps)
            opened.callback(self._recorder.close)
            is_new = self._is_new(place)
            self._keyring = self._open_keys(place, is_new=is_new)
            opened.callback(self._keyring.close)
            if is_new and (not create or self._keyring.holds_data_keys()):
                raise RefusedError(LOST_LOG if create else Refused(Refusal.SPACE_UNKNOWN))
            if is_new:
                self._create_space()
            # Before anything is written: a later key epoch of foreign slots is not ours to note.
            self._keyring.check()
            self._join()
            self._settle_keys()
            self._settle_bundles()
            opened.pop_all()

    def close(self) -> None:
        """Truncates the write-ahead logs and closes; safe beside other processes.

        While somebody holds the lock, the files are left to the end of the process, as by a kill.
        """
        self._is_closed = True
        try:
            with self._lock.held(CLOSE_WAIT_S):
                self._write_anchor(by=1)
                self._recorder.close()
                self._keyring.close()
        except RefusedError:
            _LEFT_OPEN.append(self)
            say(logging.WARNING, "close", outcome="left to the end of the process")

    @contextmanager
    def deciding(self, first: Iterable[Selector] = ()) -> Iterator[DecidingStore]:
        """Holds the space's lock: read, decide and append as one (DESIGN 3).

        Raises RefusedError (F6) once another host has taken a newer term.
        """
        self.refuse_if_closed()
        known = {it: SealedStore.asked(it, self._keyring) for it in first}
        with self._recorder.deciding([*known.values()]) as transaction:
            self._notice(transaction)
            store = DecidingStore(transaction, self._keyring, self.space, self._stamps, known)
            self._refuse_if_fenced(store)
            was_newcomer = store.newcomer is not None
            yield store
            holder = holder_of(store) if was_newcomer and store.newcomer is None else None
        # Not before it is durable: a host whose first append failed has not attached.
        self._since = self._since if holder is None else holder.since
        if self._since is not None:
            self._term = store.held_term
        self._recorder.seen = transaction.head  # last: by it another thread's restore is noticed
        if self.anchor.is_behind(store.head, ANCHOR_EVENTS):
            self._write_anchor(by=ANCHOR_EVENTS)

    @contextmanager
    def exclusive(self, wait_s: float | None = None) -> Iterator[None]:
        """Holds the space's lock over several steps, each with a transaction of its own."""
        self.refuse_if_closed()
        with self._lock.held(wait_s):
            yield

    @contextmanager
    def reading(self) -> Iterator[SealedStore]:
        """One consistent snapshot."""
        self.refuse_if_closed()
        with self._recorder.reading() as snapshot:
            self._notice(snapshot)
            yield SealedStore(snapshot, self._keyring, self.space)

    def head(self) -> Head:
        with self.reading() as store:
            return store.head

    @property
    def seen(self) -> Head:
        """The head as this opening last saw it; what others appended since is not in it."""
        return self._recorder.seen

    @property
    def host_tag(self) -> str:
        """Names this host for those who know the space's keys only."""
        return self._keyring.blinded("host", self.host).rpartition(":")[2]

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, or belongs to the process that this one was forked from."""
        return self._is_closed or os.getpid() != self._process

    def refuse_if_closed(self) -> None:
        """Raises RefusedError (F1), the one answer of a closed ledger to whatever is asked."""
        if self.is_closed:
            raise RefusedError(CLOSED if self._is_closed else FORKED)

    @property
    def is_serving(self) -> bool:
        """Whether it still answers: neither closed, nor stopped by a write that failed."""
        return not (self.is_closed or self._recorder.has_failed)

    @property
    def data_set(self) -> str:
        """Names what this log holds; the same over rotations, restores and hosts."""
        self.refuse_if_closed()
        return self._keyring.data_set

    @property
    def bundle_key(self) -> bytes:
        """Marks what lies at backup destinations; no rotation changes it."""
        return self._keyring.bundle_key

    def truncate(self) -> bool:
        """Empties the write-ahead logs; False while a reader or a full disk holds them up."""
        with self._lock.held():
            return not self.is_closed and self._recorder.truncate() and self._keyring.truncate()

    # -- keys -------------------------------------------------------------------------------

    def remove_keys(self, key_ids: tuple[str, ...]) -> None:
        """Removes the data keys that a forget names."""
        with self._lock.held():
            self._keyring.remove(key_ids)

    def index_key(self, key_id: str | None) -> tuple[str, bytes]:
        """The key of a search index by its id; a new one for None."""
        with self._lock.held() if key_id is None else nullcontext():
            return self._keyring.index_key(key_id)

    def rotate_keys(self, keeping: Keeping | None = None) -> int:
        """Puts a new wrapping key in force and destroys the old one; the new key epoch.

        Kept like it unless told how, or by a restore; the next opening finishes a stopped one.
        """
        with self._lock.held():
            with self.deciding():
                pass  # a fenced host is refused before it touches the slots
            self._keyring.finish_rotation()
            keeping = self._vault.counted_on() if self.place.is_restoring else keeping
            self._settle_keys(self._keyring.begin_epoch(keeping))
            self._write_anchor(by=1)
            self.rewrite_bundles()
            self._keyring.finish_rotation()  # raises what keeps the key of before, if anything
            return self._keyring.key_epoch

    def set_passphrase(self, passphrase: str | None) -> int:
        """Puts the slots under another passphrase, or under none; the new key epoch."""
        return self.rotate_keys(self._vault.put_under(passphrase))

    def move_keys(self, vault: str) -> int:
        """Moves the wrapping key into another vault; the new key epoch."""
        return self.rotate_keys(self._vault.moved_to(vault))

    def set_recovery_code(self, raw: bytes) -> None:
        """Puts a recovery code in force; the one before opens no copy made from here on."""
        with self._lock.held():
            with self.deciding():
                pass  # a fenced host changes nothing
            # First: a bundle that the old code opens must not pass for a present one.
            self.copies.disown_bundles()
            self._keyring.seal_copies_for(key_of(raw))
            self.rewrite_bundles()

    def is_recovery_code(self, code: str) -> bool:
        """Whether `code` is the recovery code in force."""
        return self._keyring.is_recovery_code(code)

    # -- copies -----------------------------------------------------------------------------

    def copy_to(self, path: Path) -> None:
        """Writes the log as it is now into a new file; writers wait meanwhile."""
        self._recorder.copy_to(path)

    def refuse_anothers(self, destination: Destination) -> None:
        """Raises RefusedError where another ledger, or another line of this one, backs up."""
        with self.reading() as store:
            refuse_anothers(destination, self.space, store.chain_at)

    def write_bundle(self, destination: Destination) -> None:
        """Writes the key bundle of a destination, durably, and notes its key epoch."""
        with self._lock.held():
            self.refuse_anothers(destination)
            folder = Path(destination.path) / self.space
            # The code opens one wrapping key: a rotation that was cut short leaves keys under two.
            if len(self._vault.epochs()) > 1:
                self._settle_keys()
            self._write_anchor(by=1)
            self._stamps.step("bundle:due")
            write_bundle(folder, self._keyring, self.journal.read(), Anchor.of(self.head()))
            self._stamps.step("bundle:written")
            self.copies.put(destination.model_copy(update={"key_epoch": self._keyring.key_epoch}))

    def rewrite_bundles(self) -> None:
        """Rewrites every key bundle of an older key epoch, where its destination is there.

        The others stay listed: an old bundle and the code still read what was forgotten since.
        """
        key_epoch = self._keyring.key_epoch
        for it in self.copies.read().backups:
            # Whatever a disk elsewhere holds or fails at, it keeps nobody from this one.
            with suppress(OSError, StorageFault, IntegrityFault, RefusedError):
                if it.key_epoch != key_epoch and (Path(it.path) / self.space).is_dir():
                    self.write_bundle(it)

    def drop_opened_keys(self) -> None:
        """Forgets every opened key, so that the next read sees what the key file holds."""
        self._keyring.drop_cached()

    def key_rows(self) -> list[KeyRow]:
        """Every key as it is stored: under its wrapping key."""
        return self._keyring.rows()

    def key_count(self) -> int:
        """How many keys are kept, used and unused."""
        self.refuse_if_closed()
        return self._keyring.count()

    def forget_space(self) -> SpaceEnded:
        """Ends the space: every body, every key, and every key bundle that can be reached.

        Headers and chain stay, and verify without keys; the next opening finishes a stopped end.
        """
        with self._lock.held():
            keys = self._keyring.count()
            with self.deciding() as store:
                store.append(Draft(SpaceForgotten()))
                store.erase_every_body()
            self._stamps.step("space:forgotten")
            self._recorder.truncate()
            self._keyring.close()
            with self._recorder.reading() as snapshot:
                copies = end_keys(self.place, self._vault, self._stamps, snapshot)
            self._is_closed = True
            self._recorder.close()
            copies += (self.engine.leftover,) if self.engine.leftover else ()
            return SpaceEnded(keys=keys, copies=copies)

    # -- opening ----------------------------------------------------------------------------

    def _notice(self, snapshot: Snapshot) -> None:
        # Not before the snapshot: none that began without the mark holds what a restore has put.
        self.place.refuse_unrestored()
        # What another process appended may be a forget, a rotation, or the end of the space.
        if (head := snapshot.head) != (seen := self._recorder.seen):
            if is_forgotten_space(snapshot):
                raise RefusedError(FORGOTTEN)
            self._keyring.heed_others()
            if not snapshot.goes_on:  # a restore here has moved the anchor
                self._refuse_rollback(snapshot)
                self._term = None  # whoever held it then
            if not self.place.is_restoring:  # which puts later ones in force
                SealedStore(snapshot, self._keyring, self.space).refuse_old_keys()
            if seen.position and seen.key_epoch != head.key_epoch:
                self._keyring.check()  # a pool of keys would outlast a passphrase that is ours
            self._recorder.seen = head

    def _is_new(self, place: Place) -> bool:
        """Whether nothing was written yet; ends what a forgotten space left, and refuses it."""
        with self._recorder.reading() as snapshot:
            has_keys = (place.data / "keys.db").exists()
            if not is_forgotten_space(snapshot, anywhere=not has_keys):
                return snapshot.head.position == 0
            if place.is_restoring:  # what a copy says ends no keys
                raise RefusedError(FORGOTTEN)
            raise RefusedError(naming(end_keys(place, self._vault, self._stamps, snapshot)))

    def _look_before(self, place: Place, *, create: bool) -> None:
        """Refuses what is not ours to open or begin, before anything but a folder is made."""
        place.refuse_unrestored()
        if not self.engine.exists():
            if not create:
                raise RefusedError(Refused(Refusal.SPACE_UNKNOWN, "space"))
            self._refuse_lost_log(place)
        if not place.is_restoring:
            self._vault.refuse_another()
        self._vault.unlock()  # before the lock, since a passphrase takes its time
        make_folder(place.data)

    def _refuse_rollback(self, snapshot: Snapshot) -> None:
        """A log that does not go on from its anchor is an older copy, or another line of it."""
        anchor = None if self.place.is_copy else self.anchor.read() or Anchor.of(self.seen)
        if anchor and anchor.position:
            there = SealedStore(snapshot, self._keyring, self.space).chain_at(anchor.position)
            if not anchor.stands_on(snapshot.head, there):
                raise RefusedError(anchor.contradicted_by(snapshot.head))

    def _write_anchor(self, *, by: int) -> None:
        # What was decided is durable without it; the next one comes soon enough.
        with suppress(OSError, StorageFault, RefusedError), self._recorder.reading() as snapshot:
            self.place.refuse_unrestored()  # which has noted there what it is about to put
            # Of a space that ended, an anchor would stand in the way of the next one.
            is_due = self.anchor.is_behind(snapshot.head, by) and snapshot.goes_on
            if is_due and not is_forgotten_space(snapshot):
                self.anchor.write(Anchor.of(snapshot.head))

    def _join(self) -> None:
        """Shares the term that this host holds; another's is taken with the first append only."""
        with self.reading() as store:
            holder = holder_of(store)
        if holder.host == self.host:
            self._since = holder.since

    @property
    def holds_term(self) -> bool:
        """Whether what this opening appends by itself fences nobody, idle hosts included."""
        return self._since is not None

    def _refuse_if_fenced(self, store: DecidingStore) -> None:
        if store.held_term == self._term or store.head.position == 0:
            return
        holder = holder_of(store)
        if self._since is None and holder.host != self.host:
            store.newcomer = self.host
        elif self._since is None:
            self._since = holder.since
        elif holder.since != self._since:
            # A newer term of the same host is its own, when it has held it all the time since.
            message = "another host has attached since; open the ledger again"
            raise RefusedError(Refused(Refusal.EXECUTION_FENCED, message=message))

    def _open_keys(self, place: Place, *, is_new: bool) -> Keyring:
        path = place.data / "keys.db"
        if is_new:
            make_folder(place.state)
            self._vault.create_first(FIRST_KEY_EPOCH)
        elif not path.exists():
            raise RefusedError(MISSING_KEYS)
        self._vault.unlock()  # again: another process may have changed the passphrase meanwhile
        self._vault.drop_passphrase()
        return Keyring(path, place.space, self._vault, self._stamps)

    def _refuse_lost_log(self, place: Place) -> None:
        """Keys or an anchor without a log are an older space's: no empty one takes its place."""
        if self.anchor.read() is not None:
            raise RefusedError(LOST_LOG)
        path = place.data / "keys.db"
        if path.exists() and (place.state / "slots").exists():
            with closing(Keyring(path, place.space, self._vault, self._stamps)) as keyring:
                if keyring.holds_data_keys():
                    raise RefusedError(LOST_LOG)

    def _create_space(self) -> None:
        self._keyring.finish_rotation()
        if not self._keyring.has_secret():
            self._keyring.create_secret()
        raw = self._stamps.entropy(CODE_BYTES)
        self._keyring.seal_copies_for(key_of(raw))
        self.recovery_code = code_of(raw)
        with self.deciding() as store:
            store.append(Draft(SpaceCreated(normalization=NORMALIZATION)))
            if self.host != LOCAL_HOST:
                maker = Attachment(host=self.host, since=1, clock=store.clock)
                store.take_term("attached", maker)
            store.set_key_epoch(FIRST_KEY_EPOCH)

    def _settle_keys(self, begun: bytes | None = None) -> None:
        """Finishes an unfinished rotation and says on the log which key epoch is in force."""
        with suppress(KeptKey):  # it holds an erasure up, and nothing else
            self._keyring.finish_rotation(begun)
        with self.deciding() as store:
            own = self._keyring.key_epoch  # a restore notes the next one before it is in force
            if (ahead := store.head.key_epoch - own) < 0 or (ahead and not self.place.is_restoring):
                store.note_rotation(own)

    def _settle_bundles(self) -> None:
        """Rewrites what is out of date, all of them where an earlier version made them."""
        if self._keyring.keeps_recovery_secret():
            self.copies.disown_bundles()  # first, as for a new code
            self._keyring.leave_recovery_secret()
        if not self.place.is_restoring:  # which has yet to say which of them follow this line
            self.rewrite_bundles()
