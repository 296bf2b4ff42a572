"""The works whose every write, flush and truncation is spoiled (see `faults.py`)."""

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import keyring
from keyring.backend import KeyringBackend
from keyring.errors import KeyringError
from tests.providers import company
from tests.sites import renewed

from memoranda.ledger import sqlite_files, sqlite_log, vaults
from memoranda.ledger.authority import BackgroundItem
from memoranda.ledger.backups import read_manifest, verify_copy
from memoranda.ledger.bundles import FILE_NAME, read_bundle
from memoranda.ledger.ending import FORGOTTEN, chain_of
from memoranda.ledger.errors import IntegrityFault, Refused, RefusedError
from memoranda.ledger.events import LedgerRestored
from memoranda.ledger.places import Place
from memoranda.ledger.ports import EMBEDDED, Ports
from memoranda.ledger.restoring import Asked
from memoranda.ledger.slots import SlotFile
from memoranda.ledger.stamps import Stamps
from memoranda.ledger.vaults import InVault, Passphrase
from memoranda.tools.memory import Memory, assemble
from memoranda.tools.restore import restore
from memoranda.tools.settings import Settings, load_settings

SPACE = "us_alice"
KEY = "preference/tea"
ID = "mem_8bd9f7914096218ac8597c1a948899a2c12f19c2710f4adb7d998585c9c0de6a"
FACT = f"a fact about {KEY}"
PASSPHRASE = "correct horse battery"
STAMPS = Stamps(now=lambda: datetime(2026, 10, 6, 12, 0, tzinfo=UTC))
Complaints = Iterator[str]


@cache
def settings_of(place: Path, **more: str) -> Settings:
    """The settings of an opening, read once for all the processes that are forked later."""
    return load_settings(
        space=SPACE, data=place / "data", state=place / "state", home=place, **more
    )


def opened(
    place: Path, work: "Work", *, create: bool = True, passphrase: Passphrase = None, **more: str
) -> Memory:
    settings = settings_of(place, **more)
    return assemble(settings, STAMPS, create=create, ports=work.ports, passphrase=passphrase)


def nothing_more(*_: object) -> Complaints:
    yield from ()


@dataclass(frozen=True)
class Work:
    """What is done under a fault, after what was done `before` it in peace.

    `ids` are its operations, of which an unknown outcome names `named`, or else the first;
    `is_opening` says that the opening itself is the work, and `is_logged` that "nothing was
    written" can be seen by the position of the log. `again` is the retry, where it is not the
    same once more. `opens` gives nothing where nothing is served
    yet; `reopens` is the opening after a fault. `copies` looks at what lies elsewhere, right
    after a fault, and `ends` at everything once the retry has ended; what is `gone` by then is
    found nowhere.
    """

    do: Callable[[Memory], Any]
    before: Callable[[Memory], object] = lambda _: None
    ids: tuple[str, ...] = ()
    named: str | None = None
    is_opening: bool = False
    is_logged: bool = True
    ports: Ports = EMBEDDED
    again: Callable[[Memory], Any] | None = None
    opens: Callable[[Path, "Work"], Memory | None] = opened
    reopens: Callable[[Path, "Work"], Memory | None] | None = None
    copies: Callable[[Path, "Work", Any], Complaints] = nothing_more
    ends: Callable[[Path, "Work", Any], Complaints] = nothing_more
    gone: tuple[str, ...] = ()
    disk: str = ""
    """The folder of the backups, where only the calls below it are spoiled: nobody may notice."""


def root_of(memory: Memory) -> Path:
    return memory._parts.log.place.data.parents[1]


def publish(memory: Memory, key: str = KEY, operation_id: str = "op-1") -> Any:
    return memory.publish(key, f"a fact about {key}", operation_id=operation_id)


def prepare(memory: Memory) -> Any:
    fields = {"operation_id": "op-1", "key": KEY, "content": f"a fact about {KEY}"}
    return memory.prepare({"name": "publish", **fields})


def batch(memory: Memory) -> Any:
    opened = [
        {"name": "publish", "operation_id": f"op-{n}", "key": f"key {n}", "content": f"fact {n}"}
        for n in range(5)
    ]
    forgotten = {"name": "forget", "operation_id": "op-f", "record_id": ID, "expected_revision": 1}
    return memory.commit_many([*opened, forgotten])


def forget_half(memory: Memory) -> None:
    """A forget that a kill stops between its tombstone and its keys."""
    publish(memory)

    def stop(name: str) -> None:
        if name == "forget:appended":
            os.kill(os.getpid(), signal.SIGKILL)

    object.__setattr__(memory._parts.stamps, "step", stop)
    memory.forget(ID, 1, operation_id="op-2")


def propose(memory: Memory) -> Any:
    item = memory.acting_as(BackgroundItem("task-7", 1, "s-bg-7", "agent-bg", "ea-1"))
    source = "personal-message:s-main-1:42"
    return item.propose(KEY, "green tea", sources=[source], operation_id="op-1")


def capture(memory: Memory) -> Any:
    return next(memory.capture([{"session": "s-1", "seq": 1, "role": "user", "text": "said"}]))


def remember_some(memory: Memory) -> None:
    for n in range(3):
        memory.remember(f"earlier fact {n}")


def earlier_store(memory: Memory) -> Path:
    return memory._parts.log.place.data / "earlier.jsonl"


def leave_an_earlier_store(memory: Memory) -> None:
    remember_some(memory)
    lines: list[dict[str, Any]] = [
        {
            "kind": "store",
            "format": "personal-records/1",
            "user_space_id": "us_alice",
            "ownership": [
                {"package": "memory", "storage": "personal.records", "moves_to": "personal"},
                {"package": "personal", "storage": "personal.records", "moves_from": "memory"},
            ],
        }
    ]
    common = {"product_domain": "personal", "user_space_id": "us_alice", "revision": 3}
    by = {"agent_id": "agent-old", "executor_session_id": "s-old", "revision": 3}
    for n in range(5):
        ref = f"personal-message:s-old:{n + 1}"
        source = {"kind": "personal_message", "ref": ref, "occurred_at": "2026-10-05T09:00:00Z"}
        live = {
            "status": "accepted", "tier": "core", "content": f"earlier {n}", "sources": [source],
            "evidence": "explicit", "contributor_agent_id": "agent-old", "contributions": [by],
            "updated_by_agent_id": "agent-old", "effective_at": None, "expires_at": None,
            "rejections": [], "blocked_sources": [],
        }  # fmt: skip
        forgotten = {"status": "forgotten", "blocked_sources": [ref]}
        value = {"id": f"old-{n}", **common, **(live if n else forgotten)}
        lines.append({"kind": "record", "value": value})
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    earlier_store(memory).write_text(text)


# -- copies elsewhere -----------------------------------------------------------------------------


def away(memory: Memory) -> Path:
    return root_of(memory) / "away"


def backed_up(memory: Memory) -> None:
    publish(memory)
    remember_some(memory)
    assert not isinstance(memory.backup(away(memory)), Refused)


def back_up(memory: Memory) -> Any:
    return memory.backup(away(memory))


def backed_up_out_of_reach(memory: Memory) -> None:
    """A rotation while the backup was away, so that its bundle is an old one."""
    backed_up(memory)
    aside = away(memory).rename(root_of(memory) / "aside")
    memory.rotate_keys()
    aside.rename(away(memory))


def forgotten_since(memory: Memory) -> None:
    """A backup, a forget that its bundle knows of, and more that only the ledger knows of."""
    backed_up(memory)
    forget(memory)
    memory.remember("a later fact")


def forget(memory: Memory) -> Any:
    return memory.forget(ID, 1, operation_id="op-2")


def restored(place: Path, source: Path, **asked: object) -> Any:
    return restore(settings_of(place), STAMPS, source, Asked(**asked))


def code_at(place: Path) -> str:
    return (place / "code").read_text()


def comes_back(place: Path, work: Work, known: Any) -> Complaints:
    """What is wrong with what the backup gives back on an empty machine.

    `known` is what the records must be; before the retry, how the work ended.
    """
    machine, is_end = place / "machine", isinstance(known, dict)
    shutil.copytree(place / "away", machine / "away")
    answer = restored(machine, machine / "away", code=code_at(place))
    if isinstance(answer, Refused):
        yield f"the backup does not come back: {answer}"
    elif answer.findings or not answer.is_served:
        yield f"what comes back is damaged: {answer.findings}"
    else:
        with opened(machine, Work(work.do), create=False) as memory:
            yield from found_again(memory, work.gone if is_end else ())
            if is_end and known != records_of(memory):
                yield f"what comes back is {records_of(memory)} instead of {known}"
            if not is_end and said_of(known) not in {None, answer.position}:
                yield f"the backup goes to {answer.position}, and said {known}"
    shutil.rmtree(machine)


def said_of(ended: list[Any] | None) -> int | None:
    """How far a backup was said to go."""
    match ended:
        case ["done", {"copy_made": {"position": position}}]:
            return position
        case _:
            return None


def comes_back_if_any(place: Path, work: Work, known: Any) -> Complaints:
    """The first backup of all: without a manifest there is none yet."""
    is_done = isinstance(known, list) and known[0] == "done"
    if is_done or (place / "away" / SPACE / "manifest.json").exists():
        yield from comes_back(place, work, known)


def is_tidy(place: Path, work: Work, known: Any) -> Complaints:
    """What comes back in the end, under the keys in force, with nothing half made beside it."""
    yield from comes_back(place, work, known)
    inner = place / "away" / SPACE
    manifest = read_manifest(inner)
    assert manifest is not None, "it has just come back"
    there = {path.name for path in inner.iterdir()}
    if there != {"manifest.json", FILE_NAME, *(it.file for it in manifest.copies)}:
        yield f"beside the backup lie {there}"
    slots = SlotFile(place / "state" / SPACE / "slots").look() or {}
    if read_bundle(inner).key_epoch not in slots:
        yield f"the bundle is of key epoch {read_bundle(inner).key_epoch}, not {list(slots)}"


def found_again(memory: Memory, gone: tuple[str, ...]) -> Complaints:
    for text in gone:
        for remnant in memory.remnants(text).remnants:
            yield f"{text!r} is still found: {remnant}"


def records_of(memory: Memory) -> dict[str, list[Any]]:
    return {
        read.record.id: [read.record.revision, read.record.status]
        for read in memory.query(include_inactive=True, limit=100).records
    }


def keep_code(memory: Memory) -> str:
    """A new recovery code, in place of the one that the person has noted."""
    code = renewed(memory)
    (root_of(memory) / "code").write_text(code)
    return code


# -- restoring ------------------------------------------------------------------------------------


def restores_empty(place: Path, _: Work) -> None:
    answer = restored(place / "new", place / "away", code=code_at(place))
    if isinstance(answer, Refused):
        raise RefusedError(answer)
    if not answer.is_served:
        raise IntegrityFault(f"the restored log is not served: {answer.findings[:1]}")


def is_served_or_restored(place: Path, work: Work) -> Memory:
    """What does not open is restored once more: until then it opens for nobody."""
    try:
        return opened(place / "new", work, create=False)
    except RefusedError:
        restores_empty(place, work)
        return opened(place / "new", work, create=False)


def restores_here(place: Path, _: Work) -> None:
    answer = restored(place, place / "away", force=True)
    if isinstance(answer, Refused):
        raise RefusedError(answer)
    if not answer.is_served:
        raise IntegrityFault(f"the restored log is not served: {answer.findings[:1]}")


def is_as_before_or_restored(place: Path, work: Work) -> Memory:
    """What opens is all of the one or all of the other; what does not, is restored once more."""
    is_marked = (place / "state" / SPACE / "restoring").exists()
    try:
        memory = opened(place, work, create=False)
    except RefusedError:
        assert is_marked
        answer = restored(place, place / "away")  # what was forced once goes on without
        assert not isinstance(answer, Refused), answer
        return opened(place, work, create=False)
    assert not is_marked, "it opens although a restore has not ended"
    with memory._parts.log.reading() as store:
        if any(isinstance(event.header, LedgerRestored) for event in store.page(0, 500)):
            return memory
    assert "a later fact" in {read.record.content for read in memory.records()}
    assert [*found_again(memory, work.gone)] == []
    memory.close()
    restores_here(place, work)
    return opened(place, work, create=False)


# -- import, and the end of many or of all --------------------------------------------------------


def leave_an_export(memory: Memory) -> None:
    """Another ledger's export, with a fact that was forgotten here, and one that it forgot."""
    with opened(root_of(memory) / "other", Work(publish)) as other:
        publish(other)
        remember_some(other)
        other.forget(other.remember("forgotten there").record_id, 1)
        other.export(root_of(memory) / "export.jsonl")
    publish(memory)
    forget(memory)


def take_in(memory: Memory) -> Any:
    return memory.import_file(root_of(memory) / "export.jsonl")


def say_and_derive(memory: Memory) -> None:
    said = {"session": "s-1", "role": "user", "at": "2026-10-05T09:00:00Z"}
    texts = [FACT, "what it rests on", "something else"]
    list(memory.capture([{**said, "seq": n, "text": it} for n, it in enumerate(texts, 1)]))
    for n in (1, 2):
        source = f"personal-message:s-1:{n}"
        memory.publish(f"said {n}", f"{FACT}, {n}", sources=[{"kind": "message", "ref": source}])
    remember_some(memory)


def forget_session(memory: Memory) -> Any:
    fall = memory.falling(session="s-1")
    return memory.forget_many(fall, with_sources=True, operation_id="op-2")


def is_ended(place: Path, work: Work) -> Memory | None:
    """The ledger, while its end has not begun."""
    try:
        return opened(place, work, create=False)
    except RefusedError as error:
        if error.refused != FORGOTTEN:
            raise
        return None


def only_the_chain_is_left(place: Path, work: Work, _: Any) -> Complaints:
    if is_ended(place, work) is not None:
        yield "the space opens again"
    with chain_of(Place.of(SPACE, place / "data", place / "state"), STAMPS) as snapshot:
        if bodies := [row.position for row in snapshot.read(None, 0, 500) if row.sealed]:
            yield f"bodies are left at {bodies}"
    left = {path.name for path in place.rglob("*") if path.is_file()}
    if kept := left & {"keys.db", "keys.db-wal", "slots", "forgotten", "views.db"}:
        yield f"files are left: {kept}"


# -- keys -----------------------------------------------------------------------------------------


def opened_with_passphrase(place: Path, work: Work) -> Memory:
    vaults.SCRYPT_COST = (4, 8, 1)
    return opened(place, work, passphrase=lambda: PASSPHRASE)


def is_locked(place: Path, work: Work, _: Any) -> Complaints:
    try:
        opened(place, work).close()
    except RefusedError:
        return
    yield "it opens without its passphrase"


class Entries(KeyringBackend):
    """A system's keyring in a file of the ledger's own place, so that its writes fail too."""

    priority = 1

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def get_password(self, service: str, username: str) -> str | None:
        return self._kept().get(f"{service} {username}")

    def set_password(self, service: str, username: str, password: str) -> None:
        self._keep({**self._kept(), f"{service} {username}": password})

    def delete_password(self, service: str, username: str) -> None:
        self._keep({k: v for k, v in self._kept().items() if k != f"{service} {username}"})

    def _kept(self) -> dict[str, str]:
        return json.loads(self._file.read_text()) if self._file.exists() else {}

    def _keep(self, entries: dict[str, str]) -> None:
        beside = self._file.with_suffix(".new")
        try:
            with beside.open("w") as file:
                json.dump(entries, file)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise KeyringError from error
        beside.replace(self._file)


def opened_by_either_vault(place: Path, work: Work) -> Memory:
    keyring.set_keyring(Entries(place / "entries"))
    try:
        return opened(place, work)
    except RefusedError as error:
        if error.refused.field != "vault":
            raise
        return opened(place, work, vault="keyring")


def is_in_the_keyring(place: Path, work: Work, _: Any) -> Complaints:
    try:
        opened(place, work).close()
        yield "the slots still open it"
    except RefusedError as error:
        if error.refused.field != "vault":
            yield f"{error.refused}"


def move(memory: Memory) -> Any:
    is_moved = isinstance(memory._parts.log._vault.keeping, InVault)
    return "moved already" if is_moved else memory.move_keys("keyring")


# -- a newer schema -------------------------------------------------------------------------------


def opened_by_a_later_version(place: Path, work: Work) -> Memory:
    """This process is of a version whose log has one table more."""
    script = "CREATE TABLE later (said TEXT); INSERT INTO later VALUES ('once');"
    sqlite_files.UPGRADES["ledger.db", 1] = script
    sqlite_log.SCHEMA_NUMBER = 2
    return opened(place, work)


def is_upgraded_beside_its_copy(place: Path, *_: Any) -> Complaints:
    data = place / "data" / SPACE
    with closing(sqlite3.connect(data / "ledger.db")) as raw:
        if raw.execute("SELECT said FROM later").fetchall() != [("once",)]:
            yield "it was not upgraded once"
    if verify_copy(data / "ledger.db.schema-1", SPACE).position == 0:
        yield "the copy from before is empty"
    with closing(sqlite3.connect(data / "ledger.db.schema-1")) as raw:
        if raw.execute("PRAGMA user_version").fetchone() != (1,):
            yield "the copy is not from before"


WORKS = {
    "commit": Work(publish, remember_some, ("op-1",)),
    "prepare": Work(prepare, remember_some, ("op-1",)),
    "commit of a prepared one": Work(publish, prepare, ("op-1",)),
    "reconcile": Work(
        lambda memory: memory.reconcile("op-1", writers_stopped=True, reason="crashed"),
        prepare,
        ("op-1",),
    ),
    "forget": Work(forget, backed_up, ("op-1", "op-2"), named="op-2", gone=(FACT,), ends=is_tidy),
    "batch": Work(batch, publish, ("op-0", "op-1", "op-2", "op-3", "op-4", "op-f"), gone=(FACT,)),
    "forget of a session": Work(forget_session, say_and_derive, is_logged=False, gone=(FACT,)),
    "forget of the space": Work(
        lambda memory: memory.forget_space(SPACE),
        backed_up,
        reopens=is_ended,
        ends=only_the_chain_is_left,
        is_logged=False,
    ),
    "hosted commit": Work(propose, remember_some, ("op-1",), ports=company().ports),
    "migration": Work(lambda m: m.migrate(earlier_store(m)), leave_an_earlier_store),
    "capture": Work(capture, remember_some),
    "opening": Work(lambda memory: memory, publish, is_opening=True),
    "opening after a forget was cut short": Work(
        lambda memory: memory, forget_half, is_opening=True, is_logged=False, gone=(FACT,)
    ),
    "opening beside a backup disk that fails": Work(
        lambda memory: memory, backed_up_out_of_reach, is_opening=True, disk="away", ends=is_tidy
    ),
    "making": Work(lambda memory: memory, is_opening=True, is_logged=False),
    "rotation": Work(
        lambda memory: memory.rotate_keys(),
        backed_up,
        is_logged=False,
        copies=comes_back,
        ends=is_tidy,
    ),
    "passphrase": Work(
        lambda memory: memory.set_passphrase(PASSPHRASE),
        remember_some,
        is_logged=False,
        opens=opened_with_passphrase,
        ends=is_locked,
    ),
    "move of the keys": Work(
        move,
        remember_some,
        is_logged=False,
        opens=opened_by_either_vault,
        ends=is_in_the_keyring,
    ),
    "recovery code": Work(renewed, backed_up, again=keep_code, ends=is_tidy),
    "first backup": Work(back_up, publish, copies=comes_back_if_any, ends=is_tidy),
    "backup": Work(back_up, forgotten_since, copies=comes_back, ends=is_tidy, gone=(FACT,)),
    "restore": Work(
        lambda _: None,
        forgotten_since,
        is_opening=True,
        is_logged=False,
        opens=restores_empty,
        reopens=is_served_or_restored,
        gone=(FACT,),
    ),
    "restore over what is here": Work(
        lambda _: None,
        forgotten_since,
        is_opening=True,
        is_logged=False,
        opens=restores_here,
        reopens=is_as_before_or_restored,
        gone=(FACT,),
    ),
    "import": Work(take_in, leave_an_export, gone=(FACT,)),
    "upgrade of the schema": Work(
        lambda memory: memory,
        publish,
        is_opening=True,
        opens=opened_by_a_later_version,
        ends=is_upgraded_beside_its_copy,
    ),
    "listing": Work(lambda memory: memory.records(), remember_some),
    "closing": Work(
        lambda memory: (publish(memory), memory.close())[0], ids=("op-1",), again=publish
    ),
}
