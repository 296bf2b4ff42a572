"""The end of a whole space: keys and slots destroyed, the chain left for who wants to verify it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memoranda.ledger.errors import Refusal, Refused, RefusedError
from memoranda.ledger.events import SpaceForgotten
from memoranda.ledger.keyring import remove_every_key
from memoranda.ledger.places import Place
from memoranda.ledger.recorder import Snapshot
from memoranda.ledger.sqlite_files import SpaceLock, refuse_foreign
from memoranda.ledger.sqlite_log import SQLiteRecorder
from memoranda.ledger.stamps import Stamps
from memoranda.ledger.vaults import WrappingKeys

FORGOTTEN = Refused(
    Refusal.SPACE_UNKNOWN,
    "space",
    "the space was forgotten for good; `memoranda init --new` begins another in its place",
)
LOCK_WAIT_S = 10.0
PAGE = 1000


def is_forgotten_space(snapshot: Snapshot, *, anywhere: bool = False) -> bool:
    """Whether the last event is the end of the space; or any, which reads the whole log.

    Earlier versions let an opening from before write on after it.
    """
    after = 0 if anywhere else max(0, snapshot.head.position - 1)
    while after < snapshot.head.position:
        rows = snapshot.read(None, after, PAGE)
        if any(row.type == SpaceForgotten.TOPIC for row in rows):
            return True
        after += PAGE
    return False


def end_keys(place: Place, vault: WrappingKeys, stamps: Stamps) -> None:
    """Destroys what is left of a forgotten space's keys, wherever a crash has stopped it."""
    keys, slots = place.data / "keys.db", place.state / "slots"
    if keys.exists():
        remove_every_key(keys)
    stamps.step("space:keys-removed")
    vault.destroy_all()
    stamps.step("space:slots-destroyed")
    for path in (keys, slots, place.state / "forgotten", place.data / "views.db"):
        for name in ("", "-wal", "-shm", ".lock"):
            path.with_name(path.name + name).unlink(missing_ok=True)


@contextmanager
def chain_of(place: Place, stamps: Stamps) -> Iterator[Snapshot]:
    """The rows of a log whose keys are gone; raises RefusedError where there is no log."""
    file = place.data / "ledger.db"
    refuse_foreign(file)
    if not file.exists():
        raise RefusedError(Refused(Refusal.SPACE_UNKNOWN, "space"))
    lock = SpaceLock(place.data / "lock", LOCK_WAIT_S)
    recorder = SQLiteRecorder(file, place.space, lock, stamps)
    try:
        with recorder.reading() as snapshot:
            yield snapshot
    finally:
        recorder.close()


def set_aside(place: Place, stamps: Stamps) -> Path | None:
    """Moves the log of a forgotten space out of the way of a new one; where it lies then."""
    if not (place.data / "ledger.db").exists():
        return None
    with chain_of(place, stamps) as snapshot:
        if not is_forgotten_space(snapshot, anywhere=True):
            return None
        name = f"forgotten-{snapshot.head.chain.hex()[:16]}.db"
    aside = (place.data / "ledger.db").rename(place.data / name)
    (place.state / "anchor").unlink(missing_ok=True)
    return aside
