"""The end of a whole space: keys and slots destroyed, the chain left for who wants to verify it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memoranda.ledger.engines import engine_of
from memoranda.ledger.errors import Refusal, Refused, RefusedError
from memoranda.ledger.events import SpaceForgotten
from memoranda.ledger.keyring import remove_every_key
from memoranda.ledger.places import Place
from memoranda.ledger.recorder import Snapshot
from memoranda.ledger.sqlite_files import SpaceLock
from memoranda.ledger.stamps import Stamps
from memoranda.ledger.vaults import WrappingKeys

FORGOTTEN = Refused(
    Refusal.SPACE_UNKNOWN,
    "space",
    "the space was forgotten for good; `memoranda init --new` begins another in its place",
)
LOCK_WAIT_S = 10.0


def is_forgotten_space(snapshot: Snapshot) -> bool:
    """Whether the last event is the end of the space."""
    newest = snapshot.read(None, snapshot.head.position - 1, 1) if snapshot.head.position else []
    return bool(newest) and newest[0].type == SpaceForgotten.TOPIC


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
        if not is_forgotten_space(snapshot):
            return None
        name = f"forgotten-{snapshot.head.chain.hex()[:16]}.db"
    aside = place.data / name
    engine.set_aside(aside)
    (place.state / "anchor").unlink(missing_ok=True)
    return aside
