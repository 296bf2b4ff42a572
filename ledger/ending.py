"""The end of a whole space: keys and slots destroyed, the chain left for who wants to verify it.

Which key bundles elsewhere are this space's own, its chain says, whoever opens it later without
any key. What was not reached stays listed, until another space begins in its place.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from memoranda.ledger.bundles import destroy_bundle
from memoranda.ledger.engines import engine_of
from memoranda.ledger.errors import IntegrityFault, Refusal, Refused, RefusedError, StorageFault
from memoranda.ledger.events import SpaceForgotten, Value
from memoranda.ledger.keyring import remove_every_key
from memoranda.ledger.locks import SpaceLock
from memoranda.ledger.places import Place
from memoranda.ledger.recorder import Snapshot
from memoranda.ledger.stamps import Stamps
from memoranda.ledger.vaults import WrappingKeys
from memoranda.ledger.witness import CopyList

FORGOTTEN = Refused(
    Refusal.SPACE_UNKNOWN,
    "space",
    "the space was forgotten for good; `memoranda init --new` begins another in its place",
)
LOCK_WAIT_S = 10.0
PAGE = 1000
ENDINGS = ("", "-wal", "-shm", ".lock")
"""What SQLite and the ledger put behind a file's name."""


class SpaceEnded(Value):
    """A space that is destroyed: how many keys it had, and the copies that were out of reach."""

    keys: int
    copies: tuple[str, ...]


def is_forgotten_space(snapshot: Snapshot, *, anywhere: bool = False) -> bool:
    """Whether the last event is the end of the space; or any, which reads the whole log.

    Earlier versions let an opening from before write on after it.
    """
    after = 0
    while anywhere and after < snapshot.head.position:
        rows = snapshot.read(None, after, PAGE)
        if any(row.type == SpaceForgotten.TOPIC for row in rows):
            return True
        after += PAGE
    return snapshot.head.type == SpaceForgotten.TOPIC


def naming(left: Sequence[str]) -> Refused:
    """The refusal of a forgotten space that names the copies which were not reached."""
    return replace(FORGOTTEN, message="; not reached: ".join([str(FORGOTTEN.message), *left]))


def end_keys(
    place: Place, vault: WrappingKeys, stamps: Stamps, snapshot: Snapshot
) -> tuple[str, ...]:
    """Destroys what is left of a forgotten space's keys, wherever a crash has stopped it.

    Answers the copies that were not reached.
    """
    keys, slots = place.data / "keys.db", place.state / "slots"
    unreached = _end_bundles(place, snapshot)
    stamps.step("space:bundles-destroyed")
    if keys.exists():
        remove_every_key(keys)
    stamps.step("space:keys-removed")
    vault.destroy_all()
    stamps.step("space:slots-destroyed")
    paths = (keys, slots, place.state / "forgotten", place.data / "views.db")
    try:
        for path in (it.with_name(it.name + end) for it in paths for end in ENDINGS):
            path.unlink(missing_ok=True)
    except OSError as error:
        message = "the space is forgotten; a file of it could not be removed yet"
        raise StorageFault(message) from error
    return unreached


def _notes(place: Place) -> tuple[Path, ...]:
    """What is known of a space's forgets and copies, and means nothing for the next one."""
    return place.state / "forgotten", place.state / "copies"


def _end_bundles(place: Place, snapshot: Snapshot) -> tuple[str, ...]:
    """Destroys the key bundles that can be reached; names the others, and every export."""

    def chain_at(position: int) -> bytes | None:
        return next((row.chain for row in snapshot.at([position])), None)

    listed = CopyList(place.state / "copies")
    try:
        known = listed.read()
    except IntegrityFault:
        return ("every backup and export: the list of them could not be read",)
    left = [it for it in known.backups if not destroy_bundle(it, place.space, chain_at)]
    # Of a list that cannot be written the next opening finds out the same again.
    with suppress(StorageFault):
        listed.leave(left)
    return (
        *(
            f"the backup in {it.path}: its key bundle with the recovery code reads it"
            for it in left
        ),
        *(f"the export {it}" for it in known.exported()),
    )


@contextmanager
def chain_of(place: Place, stamps: Stamps) -> Iterator[Snapshot]:
    """The rows of a log whose keys are gone; raises RefusedError where there is no log."""
    engine = engine_of(place)
    if not engine.exists():
        raise RefusedError(Refused(Refusal.SPACE_UNKNOWN, "space"))
    recorder = engine.recorder(SpaceLock(place.data / "lock", LOCK_WAIT_S), stamps)
    try:
        with recorder.reading() as snapshot:
            yield snapshot
    finally:
        recorder.close()


def set_aside(place: Place, stamps: Stamps) -> Path | None:
    """Moves the log of a forgotten space out of the way of a new one; where it lies then."""
    engine = engine_of(place)
    if not engine.exists():
        return None
    with chain_of(place, stamps) as snapshot:
        if not is_forgotten_space(snapshot, anywhere=True):
            return None
        name = f"forgotten-{snapshot.head.chain.hex()[:16]}.db"
    # Before the log: an anchor without one would be of a log that was lost.
    for path in (*_notes(place), place.state / "anchor"):
        path.unlink(missing_ok=True)
    stamps.step("space:anchor-removed")
    engine.set_aside(place.data / name)
    return place.data / name
