"""How the wrapping key is kept: under a passphrase, in a vault, and moved between them."""

import base64
import fcntl
import os
import pty
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked, PasswordDeleteError
from tests.conftest import World
from tests.tables import Folders

from memoranda.ledger import sqlite_files, vaults
from memoranda.ledger.bundles import read_bundle
from memoranda.ledger.errors import IntegrityFault, Refusal, Refused, RefusedError, StorageFault
from memoranda.ledger.keyring import open_recovery_copy
from memoranda.ledger.receipts import Receipt
from memoranda.ledger.restoring import Asked
from memoranda.ledger.slots import CONTENT_BYTES, SLOT_BYTES, SlotFile
from memoranda.ledger.stamps import Stamps
from memoranda.tools.memory import Memory, open_memory
from memoranda.tools.restore import RestoreReport, restore
from memoranda.tools.settings import load_settings
from memoranda.tools.system_keyring import SystemKeyring

SPACE = "us_alice"
PROGRAM = str(Path(sys.executable).with_name("memoranda"))
FIRST, SECOND = "correct horse battery", "Größer als 道 😀"


class Entries(KeyringBackend):
    """A system's keyring in memory."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str], str] = {}
        self.said: list[str] = []

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.said.append(password)
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        if self.kept.pop((service, username), None) is None:
            raise PasswordDeleteError(username)


class Locked(Entries):
    """One that nobody has unlocked."""

    def get_password(self, *_: str) -> str | None:
        raise KeyringLocked("what the system says")


class Forgetful(Entries):
    """One that takes everything and keeps nothing."""

    def set_password(self, service: str, username: str, password: str) -> None:
        pass


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrypt at a cost for tests; the slot says which, so it opens anywhere."""
    monkeypatch.setattr(vaults, "SCRYPT_COST", (4, 8, 1))


@pytest.fixture(autouse=True)
def system() -> Iterator[Entries]:
    """A system's keyring in place of this machine's."""
    before = keyring.get_keyring()
    entries = Entries()
    keyring.set_keyring(entries)
    yield entries
    keyring.set_keyring(before)


@pytest.fixture
def locked(opened: Callable[..., Memory]) -> Memory:
    """A ledger that was put under a passphrase from its beginning."""
    return opened(passphrase=FIRST)


def slots_of(folder: dict[str, Path]) -> SlotFile:
    return SlotFile(folder["state"] / SPACE / "slots")


def contents(folder: dict[str, Path]) -> dict[str, bytes]:
    files = (path for root in folder.values() for path in root.rglob("*") if path.is_file())
    return {path.name: path.read_bytes() for path in files}


def refused_by(opened: Callable[..., Memory], **how: object) -> Refused:
    with pytest.raises(RefusedError) as refused:
        opened(**how)
    return refused.value.refused


# -- a passphrase ---------------------------------------------------------------------------------


def test_a_ledger_under_a_passphrase_opens_with_it_only(locked, opened):
    receipt = locked.remember("I live in Kyoto")
    locked.close()

    missing, wrong = refused_by(opened), refused_by(opened, passphrase=SECOND)

    assert (missing.refusal, missing.field) == (Refusal.INVALID_REQUEST, "passphrase")
    assert (wrong.refusal, wrong.field) == (Refusal.INVALID_REQUEST, "passphrase")
    assert "needed" in missing.message
    assert "not the one" in wrong.message
    assert opened(passphrase=FIRST).read(receipt.record_id).record.content == "I live in Kyoto"


def test_a_refused_passphrase_changes_no_file_and_is_never_repeated(locked, opened, folder):
    locked.close()
    before = contents(folder)

    said = [str(refused_by(opened, passphrase=text)) for text in (SECOND, "", "x" * 1025)]

    assert contents(folder) == before
    assert not any(text in line for line in said for text in (FIRST, SECOND, "x" * 1025))


def test_a_callable_is_asked_once_and_only_when_there_is_need(opened):
    asked = []

    def ask() -> str:
        asked.append(1)
        return FIRST

    memory = opened(passphrase=ask)
    assert asked == []
    memory.set_passphrase(FIRST)
    memory.close()
    memory = opened(passphrase=ask)
    for n in range(3):
        memory.remember(f"fact {n}")
        memory.rotate_keys()

    assert asked == [1]


def test_the_passphrase_is_derived_once_for_an_opening_and_outside_the_lock(
    locked, opened, folder, monkeypatch
):
    locked.close()
    derived = []
    stretch = vaults.stretch

    def watched(*arguments: object) -> bytes:
        with (folder["data"] / SPACE / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        derived.append(1)
        return stretch(*arguments)

    monkeypatch.setattr(vaults, "stretch", watched)
    memory = opened(passphrase=FIRST)
    memory.remember("I live in Kyoto")
    memory.rotate_keys()
    memory.records()
    memory.set_passphrase(SECOND)

    assert derived == [1, 1]


def test_however_its_letters_are_composed_a_passphrase_is_the_same(opened):
    memory = opened(passphrase="Gro\u0308\u00dfe")
    memory.close()

    assert opened(passphrase="Gr\u00f6\u00dfe").status().space == SPACE


def test_a_rotation_and_a_forget_stay_under_the_passphrase_without_asking(
    locked, opened, folder, world
):
    made = locked.remember("I live in Kyoto")
    kept = locked.remember("I work in Osaka")

    locked.rotate_keys()
    world.move(seconds=3)
    assert locked.forget(made.record_id, 1).erased_at is not None
    assert locked.status().key_epoch == 3
    locked.close()

    assert "needed" in refused_by(opened).message
    memory = opened(passphrase=FIRST)
    assert memory.read(kept.record_id).record.content == "I work in Osaka"
    assert memory.audit.verify().findings == ()
    assert set(slots_of(folder).read()) == {3}


def test_a_changed_passphrase_ends_the_one_before_and_a_removed_one_is_needed_no_more(
    locked, opened
):
    assert locked.set_passphrase(SECOND) == 2
    locked.close()
    assert "not the one" in refused_by(opened, passphrase=FIRST).message
    memory = opened(passphrase=SECOND)

    assert memory.set_passphrase(None) == 3

    memory.close()
    assert opened().audit.verify().findings == ()


@pytest.mark.parametrize("passphrase", ["", "x" * 1025], ids=["none", "too long"])
def test_what_can_be_no_passphrase_is_refused_and_nothing_changes(opened, passphrase):
    memory = opened()

    refused = memory.set_passphrase(passphrase)

    assert (refused.refusal, refused.field) == (Refusal.INVALID_REQUEST, "passphrase")
    assert memory.status().key_epoch == 1


def test_the_slots_of_another_space_do_not_open_under_the_same_passphrase(locked, opened, folder):
    opened("us_bob", passphrase=FIRST).close()
    locked.close()

    shutil.copy(folder["state"] / "us_bob" / "slots", folder["state"] / SPACE / "slots")

    assert "not the one" in refused_by(opened, passphrase=FIRST).message


def test_a_slot_with_a_changed_bit_is_no_slot_under_a_passphrase_either(locked, opened, folder):
    locked.close()
    path = folder["state"] / SPACE / "slots"
    content = path.read_bytes()
    for at in (0, 32, 36, 40, 60, 100, SLOT_BYTES - 1):
        changed = bytearray(content)
        changed[SLOT_BYTES + at] ^= 1
        path.write_bytes(changed)

        assert "no valid wrapping key" in refused_by(opened, passphrase=FIRST).message


def test_a_slot_that_asks_for_the_whole_memory_is_not_obeyed(locked, opened, folder):
    locked.close()
    slots = slots_of(folder)
    content = bytearray(slots.read()[1])
    content[1] = 40
    slots.write(1, bytes(content))

    with pytest.raises(IntegrityFault, match="may cost"):
        opened(passphrase=FIRST)


def test_a_slot_of_a_later_kind_is_a_newer_versions(opened, folder):
    opened().close()
    slots_of(folder).write(1, b"\x09" + bytes(100))

    assert refused_by(opened).refusal is Refusal.SCHEMA_NEWER


def test_for_people_a_guess_takes_a_good_part_of_a_second(monkeypatch):
    monkeypatch.undo()
    log_n, block, lanes = vaults.SCRYPT_COST

    assert log_n >= 15
    assert (block, lanes) == (8, 1)


def test_the_recovery_code_opens_recovery_copies_under_a_passphrase_too(locked):
    code = locked.recovery_code
    locked.set_passphrase(SECOND)
    keys = locked._parts.log._keyring

    key_epoch, wrapping_key = open_recovery_copy(keys.recovery_copy(), code, SPACE)

    assert {key_epoch: wrapping_key} == locked._parts.log._vault.read()
    assert locked.is_recovery_code(code)


# -- several processes ----------------------------------------------------------------------------


def test_who_has_it_open_is_told_when_another_sets_or_changes_the_passphrase(opened):
    one, other = opened(), opened()
    made = one.remember("I live in Kyoto")

    other.set_passphrase(FIRST)
    assert "needed" in one.read(made.record_id).message
    assert "needed" in one.remember("anything").message
    one.close()
    one = opened(passphrase=FIRST)
    other.set_passphrase(SECOND)

    refused = one.remember("anything")
    assert (refused.field, refused.refusal) == ("passphrase", Refusal.INVALID_REQUEST)
    assert "was changed since" in refused.message
    with pytest.raises(RefusedError, match="was changed since"):
        one.rotate_keys()
    assert other.read(made.record_id).record.content == "I live in Kyoto"
    assert other.audit.verify().findings == ()


def test_who_has_it_open_goes_on_when_another_rotates_removes_or_moves(opened, system):
    one, other = opened(passphrase=FIRST), opened(passphrase=FIRST)
    changes = (
        other.rotate_keys,
        lambda: other.set_passphrase(None),
        lambda: other.move_keys("keyring"),
        lambda: other.move_keys("slots"),
    )
    for number, change in enumerate(changes):
        change()
        assert isinstance(one.remember(f"fact {number}"), Receipt)
        one.rotate_keys()

    assert system.kept == {}
    assert one.audit.verify().findings == ()


# -- the system's keyring -------------------------------------------------------------------------


def test_a_ledger_may_keep_its_key_in_the_systems_keyring_from_the_beginning(
    opened, folder, system, world
):
    memory = opened(vault="keyring")
    receipt = memory.remember("I live in Kyoto")
    (first,) = memory._parts.log._vault.read().values()
    memory.rotate_keys()
    world.move(seconds=3)
    assert memory.forget(memory.remember("x").record_id, 1).erased_at is not None
    (current,) = memory._parts.log._vault.read().values()
    memory.close()

    assert opened(vault="keyring").read(receipt.record_id).record.content == "I live in Kyoto"
    assert len(system.kept) == 1
    assert [it.partition(":")[0] for it in system.kept.values()] == ["3"]
    for name, content in contents(folder).items():
        assert first not in content, name
        assert current not in content, name


def test_the_wrong_setting_is_refused_and_the_right_one_named(opened):
    memory = opened()
    memory.remember("I live in Kyoto")
    memory.close()
    assert "kept by slots" in refused_by(opened, vault="keyring").message
    memory = opened()
    assert memory.move_keys("keyring") == 2
    memory.close()

    refused = refused_by(opened)

    assert (refused.refusal, refused.field) == (Refusal.INVALID_REQUEST, "vault")
    assert "kept by keyring" in refused.message
    memory = opened(vault="keyring")
    assert memory.move_keys("slots") == 3
    memory.close()
    assert opened().audit.verify().findings == ()


def test_a_move_destroys_the_key_where_it_was(opened, folder, system):
    memory = opened()
    (in_slots,) = slots_of(folder).read().values()
    memory.move_keys("keyring")
    (in_keyring,) = memory._parts.log._vault.read().values()
    assert in_slots not in contents(folder)["slots"]
    memory.rotate_keys()
    memory.rotate_keys()
    (newest,) = memory._parts.log._vault.read().values()

    memory.move_keys("slots")

    assert system.kept == {}
    assert base64.b64encode(newest).decode() not in system.said[-1]
    assert not any(key in contents(folder)["slots"] for key in (in_keyring, newest))


def test_a_key_is_not_moved_where_it_is_and_a_passphrase_goes_over_slots_only(opened):
    memory = opened(passphrase=FIRST)
    assert memory.move_keys("slots").field == "vault"
    memory.move_keys("keyring")

    refused = memory.set_passphrase(SECOND)

    assert refused.field == "passphrase"
    assert "keys move slots" in refused.message
    assert memory.status().key_epoch == 2


def test_two_ledgers_of_one_name_do_not_touch_each_others_keys(opened, world, tmp_path, system):
    opened(vault="keyring").close()
    other = {"data": tmp_path / "other-data", "state": tmp_path / "other-state"}
    with open_memory(SPACE, **other, vault="keyring", stamps=world.stamps) as memory:
        memory.rotate_keys()

    assert len(system.kept) == 2
    assert opened(vault="keyring").audit.verify().findings == ()


def test_without_the_library_the_keyring_is_refused_with_what_to_install(opened, monkeypatch):
    monkeypatch.setitem(sys.modules, "keyring", None)

    refused = refused_by(opened, vault="keyring")

    assert (refused.refusal, refused.field) == (Refusal.SERVICE_UNAVAILABLE, "vault")
    assert "memoranda[keyring]" in refused.message
    assert opened("us_bob").status().space == "us_bob"


def test_a_keyring_that_cannot_be_used_is_refused_and_nothing_is_moved(opened):
    memory = opened()
    keyring.set_keyring(Locked())

    refused = memory.move_keys("keyring")

    assert (refused.refusal, refused.field) == (Refusal.SERVICE_UNAVAILABLE, "vault")
    assert "KeyringLocked" in refused.message
    keyring.set_keyring(Forgetful())
    with pytest.raises(Exception, match="did not keep"):
        memory.move_keys("keyring")
    assert memory.status().key_epoch == 1
    assert isinstance(memory.remember("I live in Kyoto"), Receipt)


def test_a_key_that_the_keyring_lost_is_named(opened, system):
    opened(vault="keyring").close()
    system.kept.clear()

    refused = refused_by(opened, vault="keyring")

    assert (refused.refusal, refused.field) == (Refusal.SPACE_UNKNOWN, "vault")


class Service:
    """A host's own key service."""

    name = "kms"

    def __init__(self) -> None:
        self.keys: dict[tuple[str, int], bytes] = {}

    def read(self, ledger_id: str, key_epoch: int) -> bytes | None:
        return self.keys.get((ledger_id, key_epoch))

    def write(self, ledger_id: str, key_epoch: int, wrapping_key: bytes) -> None:
        self.keys[ledger_id, key_epoch] = wrapping_key

    def destroy(self, ledger_id: str, key_epoch: int, noise: bytes) -> None:
        assert len(noise) == 32
        self.keys.pop((ledger_id, key_epoch), None)


def test_a_host_brings_a_vault_of_its_own(opened):
    service = Service()
    memory = opened(key_vault=service)
    memory.rotate_keys()
    memory.close()

    assert {key_epoch for _, key_epoch in service.keys} == {2}
    assert "kept by kms" in refused_by(opened).message
    assert opened(key_vault=service).audit.verify().findings == ()


@pytest.mark.parametrize("kept_by", ["keyring", "kms"])
def test_a_restore_by_code_destroys_what_a_vault_kept_of_the_ledger_or_names_it(
    opened, folder, system, tmp_path, kept_by
):
    """With an old copy of the key file, that key opens what is forgotten from here on."""
    service = Service()
    vault = {"vault": "keyring"} if kept_by == "keyring" else {"key_vault": service}
    with opened(**vault) as memory:
        code = memory.recovery_code
        memory.remember("I live in Kyoto")
        memory.backup(tmp_path / "away")
        (tmp_path / "away").rename(tmp_path / "drawer")
        memory.rotate_keys()
    settings = load_settings(space=SPACE, **folder)

    report = restore(settings, Stamps(), tmp_path / "drawer", Asked(code=code, force=True))

    assert (report.findings, report.is_served) == ((), True)
    assert (report.left_in, len(service.keys)) == (
        ((), 0) if kept_by == "keyring" else (("kms",), 1)
    )
    assert system.kept == {}
    assert len(opened().records()) == 1


class Machine(NamedTuple):
    """Another machine with nothing on it, and a backup to restore there by its code."""

    ledger: Folders
    way: dict[str, Any]
    away: Path
    code: str

    def restored(self, step: Callable[[str], None] = lambda _: None) -> RestoreReport | Refused:
        vault, key_vault = self.way.get("vault", "slots"), self.way.get("key_vault")
        settings, asked = (
            load_settings(space=SPACE, **self.ledger, vault=vault),
            Asked(code=self.code),
        )
        return restore(settings, Stamps(step=step), self.away, asked, key_vault=key_vault)

    def opened(self) -> Memory:
        return open_memory(SPACE, **self.ledger, **self.way)


@pytest.fixture(params=["keyring", "kms"])
def machine(opened, elsewhere, tmp_path: Path, request: pytest.FixtureRequest) -> Machine:
    way = {"vault": "keyring"} if request.param == "keyring" else {"key_vault": Service()}
    with opened() as memory:
        memory.remember("I live in Kyoto")
        memory.backup(tmp_path / "away")
        return Machine(elsewhere, way, tmp_path / "away", memory.recovery_code)


def kept_in_vaults(machine: Machine, system: Entries) -> int:
    return len(system.kept) + len(getattr(machine.way.get("key_vault"), "keys", ()))


def test_a_restore_on_an_empty_machine_ends_with_the_key_in_the_vault_that_is_named(
    machine, system
):
    report = machine.restored()

    assert (report.is_served, report.lacks_passphrase, report.left_in) == (True, False, ())
    assert kept_in_vaults(machine, system) == 1
    assert [len(it) for it in slots_of(machine.ledger).read().values()] == [CONTENT_BYTES]
    with machine.opened() as memory:
        assert len(memory.records()) == 1


@pytest.mark.sqlite("each stop is of a new machine")
def test_a_restore_into_a_vault_that_is_stopped_at_any_step_ends_alike_when_it_is_repeated(
    machine, system, tmp_path
):
    steps: list[str] = []
    machine.restored(steps.append)

    for step in dict.fromkeys(steps):
        folder, kept = tmp_path / step.replace(":", "-"), kept_in_vaults(machine, system)
        again = machine._replace(ledger={it: folder / it for it in ("data", "state")})
        with pytest.raises(Stopped):
            again.restored(stopping(step))

        assert again.restored().is_served
        # A key that was kept before its slot said so has never wrapped anything.
        assert kept_in_vaults(machine, system) - kept <= 1 + (step == "vault:written")
        with again.opened() as memory:
            assert len(memory.records()) == 1


@pytest.mark.parametrize("machine", ["keyring"], indirect=True)
def test_a_vault_that_cannot_be_used_is_refused_before_anything_is_restored(machine):
    keyring.set_keyring(Locked())

    refused = machine.restored()

    assert (refused.refusal, refused.field) == (Refusal.SERVICE_UNAVAILABLE, "vault")
    assert not any(machine.ledger[it].exists() for it in ("data", "state"))


@pytest.mark.parametrize("machine", ["keyring"], indirect=True)
def test_a_restore_that_counts_on_another_vault_than_the_one_here_puts_nothing(machine):
    machine.restored()
    before = contents(machine.ledger)

    refused = machine._replace(way={}).restored()

    assert refused.field == "vault"
    assert contents(machine.ledger) == before


def test_a_restore_with_a_vault_that_keeps_the_key_of_before_is_served_and_says_so(
    opened, folder, system, tmp_path, monkeypatch
):
    with opened(vault="keyring") as memory:
        memory.remember("I live in Kyoto")
        memory.backup(tmp_path / "away")
    settings = load_settings(space=SPACE, **folder, vault="keyring")
    with monkeypatch.context() as failing:
        failing.setattr(SystemKeyring, "destroy", lambda *_: None)

        report = restore(settings, Stamps(), tmp_path / "away", Asked())

    assert (report.findings, report.is_served, report.key_epoch) == ((), True, 2)
    assert report.kept_key.startswith("keyring still has a key that it was to destroy")
    with opened(vault="keyring") as memory:
        assert len(memory.records()) == 1
        assert {len(system.kept), len(slots_of(folder).read())} == {1}


class Fickle(Service):
    """The same, but for one call that fails, lies or answers with something else."""

    fault: str | None = None

    def read(self, ledger_id: str, key_epoch: int) -> bytes | None:
        if self.fault == "read fails":
            raise RuntimeError("the words of the service")
        answers = {"short": b"x", "text": "x" * 32, "other": b"\0" * 32}
        if self.fault in answers:
            return answers[self.fault]
        return super().read(ledger_id, key_epoch)

    def write(self, ledger_id: str, key_epoch: int, wrapping_key: bytes) -> None:
        if self.fault == "write fails":
            raise OSError("the words of the service")
        if self.fault != "write is lost":
            super().write(ledger_id, key_epoch, wrapping_key)

    def destroy(self, ledger_id: str, key_epoch: int, noise: bytes) -> None:
        if self.fault == "destroy fails":
            raise ValueError("the words of the service")
        if self.fault != "destroy does nothing":
            super().destroy(ledger_id, key_epoch, noise)


FAULTS = (
    "read fails", "short", "text", "other", "write fails", "write is lost", "destroy fails",
    "destroy does nothing",
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_vault_that_fails_or_lies_holds_an_erasure_up_and_is_never_believed(
    opened, tmp_path, fault
):
    service = Fickle()
    memory = opened(key_vault=service)
    gone, kept = (memory.remember(it) for it in ("I live in Kyoto", "I play the cello"))
    assert memory.backup(tmp_path / "before").copy_made
    service.fault = fault

    receipt = memory.forget(gone.record_id, 1)

    assert receipt.erased_at is None
    assert len(receipt.pending) == 1
    assert receipt.pending[0].startswith("kms")
    assert "words of the service" not in receipt.pending[0]
    with pytest.raises(StorageFault, match=r"^kms"):
        memory.rotate_keys()
    if fault.startswith("destroy"):
        again = opened(key_vault=service)
        assert again.read(kept.record_id).record.content == "I play the cello"
        assert again.remember("It goes on").to_revision == 1
        again.close()
        assert read_bundle(tmp_path / "before" / SPACE).key_epoch == 2
        assert memory.backup(tmp_path / "after").copy_made
        assert read_bundle(tmp_path / "after" / SPACE).key_epoch == memory.status().key_epoch == 2
    service.fault = None
    assert memory.finish_forgets() == ()
    assert len(service.keys) == 1
    assert memory.forget(gone.record_id, 1, operation_id=receipt.operation_id).erased_at
    assert memory.read(kept.record_id).record.content == "I play the cello"
    assert memory.audit.verify().findings == ()


def test_a_ledger_whose_key_has_moved_out_of_a_vault_that_is_gone_for_good_opens(opened):
    service = Fickle()
    memory = opened(key_vault=service)
    kept = memory.remember("I play the cello")
    service.fault = "destroy fails"

    with pytest.raises(StorageFault, match="key epoch 2 is in force"):
        memory.move_keys("slots")
    memory.close()

    again = opened()
    assert again.read(kept.record_id).record.content == "I play the cello"
    assert again.remember("It goes on").to_revision == 1
    assert unfinished(again) is not None
    again.close()
    service.fault = None
    with opened(key_vault=service) as whole:
        assert (service.keys, unfinished(whole)) == ({}, None)
        assert whole.audit.verify().findings == ()


def unfinished(memory: Memory) -> str | None:
    """What doctor says of a rotation that has not ended."""
    found = (it for it in memory.doctor() if it.name == "key rotation" and it.level == "finding")
    return next((it.message for it in found), None)


def test_a_passphrase_that_is_set_beside_a_reader_of_the_key_file_is_in_force_and_says_so(
    opened, folder
):
    memory = opened()
    memory.remember("I play the cello")
    with closing(sqlite3.connect(folder["data"] / SPACE / "keys.db", isolation_level=None)) as raw:
        raw.execute("BEGIN")
        raw.execute("SELECT count(*) FROM keys").fetchone()
        with pytest.raises(StorageFault, match="key epoch 2 is in force all the same"):
            memory.set_passphrase(FIRST)
        assert memory.remember("It goes on").to_revision == 1
        assert unfinished(memory) is not None
        raw.execute("ROLLBACK")
    memory.close()

    assert refused_by(opened).field == "passphrase"
    again = opened(passphrase=FIRST)
    assert (unfinished(again), again.audit.verify().findings) == (None, ())


class Unusable(Service):
    """The same, but for one call that is refused for now, as by a system that is locked."""

    refused: str | None = None

    def _ask(self, call: str) -> None:
        if call == self.refused:
            raise RefusedError(Refused(Refusal.SERVICE_UNAVAILABLE, "vault", "locked"))

    def read(self, ledger_id: str, key_epoch: int) -> bytes | None:
        self._ask("read")
        return super().read(ledger_id, key_epoch)

    def write(self, ledger_id: str, key_epoch: int, wrapping_key: bytes) -> None:
        self._ask("write")
        super().write(ledger_id, key_epoch, wrapping_key)

    def destroy(self, ledger_id: str, key_epoch: int, noise: bytes) -> None:
        self._ask("destroy")
        super().destroy(ledger_id, key_epoch, noise)


@pytest.mark.parametrize("call", ["read", "write", "destroy"])
def test_a_vault_that_refuses_for_now_holds_an_erasure_up_and_nothing_else(opened, call):
    service = Unusable()
    memory = opened(key_vault=service)
    gone, kept = (memory.remember(it) for it in ("I live in Kyoto", "I play the cello"))
    service.refused = call

    receipt = memory.forget(gone.record_id, 1)

    assert (receipt.erased_at, len(receipt.pending)) == (None, 1)
    assert "locked" in receipt.pending[0]
    assert memory.remember("It goes on").to_revision == 1
    if call == "read":
        assert refused_by(opened, key_vault=service).message == "locked"
    else:
        with opened(key_vault=service) as again:
            assert again.read(kept.record_id).record.content == "I play the cello"
    service.refused = None
    assert memory.finish_forgets() == ()
    assert len(service.keys) == 1
    assert memory.audit.verify().findings == ()


class Counting(Service):
    """The same, and notes what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def read(self, ledger_id: str, key_epoch: int) -> bytes | None:
        self.asked.append("read")
        return super().read(ledger_id, key_epoch)

    def write(self, ledger_id: str, key_epoch: int, wrapping_key: bytes) -> None:
        self.asked.append("write")
        super().write(ledger_id, key_epoch, wrapping_key)

    def destroy(self, ledger_id: str, key_epoch: int, noise: bytes) -> None:
        self.asked.append("destroy")
        super().destroy(ledger_id, key_epoch, noise)


def test_a_vault_is_asked_four_times_for_a_forget_or_a_rotation_and_once_for_an_opening(
    opened, world
):
    service = Counting()
    opened(key_vault=service).close()
    service.asked.clear()

    memory = opened(key_vault=service)
    made = memory.remember("I live in Kyoto")
    assert service.asked == ["read"]

    for change in (lambda: memory.forget(made.record_id, 1), memory.rotate_keys):
        service.asked.clear()
        change()
        memory.remember("It goes on")
        memory.records()
        assert service.asked == ["write", "read", "destroy", "read"]
        world.move(seconds=3)


def test_a_slot_that_keeps_nothing_leaves_the_key_before_in_force(opened, monkeypatch):
    memory = opened()
    with monkeypatch.context() as lost:
        lost.setattr(SlotFile, "write", lambda *_: None)
        with pytest.raises(StorageFault, match="did not keep"):
            memory.rotate_keys()
    assert memory.status().key_epoch == 1

    assert memory.rotate_keys() == 2
    assert memory.audit.verify().findings == ()


def opened_with(memory: Memory, folder: dict[str, Path]) -> "sqlite3.Connection":
    """Another program's connection to the key file."""
    memory.close()
    return sqlite3.connect(folder["data"] / SPACE / "keys.db", isolation_level=None)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sqlite_files._PRAGMAS, "busy_timeout", 1)


@pytest.mark.usefixtures("impatient")
def test_what_is_kept_after_a_change_that_failed_is_under_the_passphrase_in_force(
    locked, opened, folder
):
    with closing(opened_with(locked, folder)) as other:
        memory = opened(passphrase=FIRST)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageFault, match="key file could not be written"):
            memory.set_passphrase(SECOND)
        other.execute("ROLLBACK")
    kept = memory.remember("I live in Kyoto")
    memory.close()

    memory = opened(passphrase=FIRST)

    assert memory.read(kept.record_id).record.content == "I live in Kyoto"
    assert memory.audit.verify().findings == ()
    assert set(slots_of(folder).read()) == {1}


@pytest.mark.usefixtures("impatient")
def test_an_opening_hides_no_fault_of_the_key_file_in_a_rotation_that_it_ends(
    opened, folder, world
):
    memory = opened()
    kept = memory.remember("I live in Kyoto")
    world.at_step = stopping("rotate:slot-written")
    with pytest.raises(Stopped):
        memory.rotate_keys()
    world.at_step = stopping("")

    with closing(opened_with(memory, folder)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageFault, match="key file could not be written"):
            opened()

    memory = opened()
    assert memory.status().key_epoch == 2
    assert memory.read(kept.record_id).record.content == "I live in Kyoto"


def test_an_opening_hides_no_vault_that_fails_before_a_rotation_has_a_key_in_force(opened, world):
    service = Counting()
    memory = opened(key_vault=service)
    world.at_step = stopping("rotate:slot-written")
    with pytest.raises(Stopped):
        memory.rotate_keys()
    world.at_step = stopping("")
    memory.close()
    service.asked = FailingAt(2)

    with pytest.raises(StorageFault, match=r"^kms"):
        opened(key_vault=service)

    service.asked = []
    assert opened(key_vault=service).status().key_epoch == 2


class FailingAt(list):
    """Takes so many notes less one, and fails then."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._left = count

    def append(self, note: str) -> None:
        self._left -= 1
        if not self._left:
            raise RuntimeError(note)


@pytest.mark.parametrize("fault", ["read fails", "short", "text"])
def test_an_opening_says_in_our_words_that_a_vault_fails(opened, fault):
    service = Fickle()
    opened(key_vault=service).close()
    service.fault = fault

    with pytest.raises(StorageFault, match=r"^kms") as raised:
        opened(key_vault=service)

    assert "words" not in str(raised.value)


# -- crashes --------------------------------------------------------------------------------------


STEPS = ("rotate:slot-written", "rotate:rewrapped", "rotate:truncated", "rotate:slot-destroyed")


class Stopped(BaseException):
    """A stop between two steps."""


CHANGES: dict[str, tuple[dict, Callable[[Memory], object], dict]] = {
    "setting": ({}, lambda it: it.set_passphrase(FIRST), {"passphrase": FIRST}),
    "changing": (
        {"passphrase": FIRST},
        lambda it: it.set_passphrase(SECOND),
        {"passphrase": SECOND},
    ),
    "removing": ({"passphrase": FIRST}, lambda it: it.set_passphrase(None), {}),
    "rotating": ({"passphrase": FIRST}, lambda it: it.rotate_keys(), {"passphrase": FIRST}),
    "moving out": ({}, lambda it: it.move_keys("keyring"), {"vault": "keyring"}),
    "moving out from under a passphrase": (
        {"passphrase": FIRST},
        lambda it: it.move_keys("keyring"),
        {"vault": "keyring"},
    ),
    "rotating in the keyring": (
        {"vault": "keyring"},
        lambda it: it.rotate_keys(),
        {"vault": "keyring"},
    ),
    "moving back": ({"vault": "keyring"}, lambda it: it.move_keys("slots"), {}),
}


@pytest.mark.parametrize("is_old_first", [True, False], ids=["old first", "new first"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_stopped_at_any_step_ends_in_a_ledger_that_opens(
    tmp_path, world, system, name, is_old_first
):
    before, change, after = CHANGES[name]
    ways = [before, after] if is_old_first else [after, before]
    steps = steps_of(tmp_path / "whole", world, before, change)
    assert ("vault:written" in steps) == (after.get("vault") == "keyring")
    assert ("vault:destroyed" in steps) == (before.get("vault") == "keyring")

    for step in steps:
        system.kept.clear()
        ledger = {it: tmp_path / step.replace(":", "-") / it for it in ("data", "state")}
        memory = open_memory(SPACE, **ledger, stamps=world.stamps, **before)
        receipt = memory.remember("I live in Kyoto")
        world.at_step = stopping(step)
        with pytest.raises(Stopped):
            change(memory)
        world.at_step = stopping("")
        memory.close()

        with opened_by_one_of(ways, ledger, world) as memory:
            assert memory.read(receipt.record_id).record.content == "I live in Kyoto"
            assert memory.audit.verify().findings == ()
            (key_epoch,) = memory._parts.log._vault.read()
            assert memory.status().key_epoch == key_epoch
            memory.rotate_keys()
            # A key that was kept before its slot said so has never wrapped anything.
            assert len(system.kept) <= 1 + (step == "vault:written")
            assert isinstance(memory.remember("I work in Osaka"), Receipt)


def steps_of(
    folder: Path, world: World, before: dict, change: Callable[[Memory], object]
) -> list[str]:
    """The steps that a change takes when nothing stops it."""
    ledger = {it: folder / it for it in ("data", "state")}
    with open_memory(SPACE, **ledger, stamps=world.stamps, **before) as memory:
        memory.remember("I live in Kyoto")
        world.steps.clear()
        change(memory)
        return list(dict.fromkeys(world.steps))


def opened_by_one_of(ways: list[dict], ledger: dict[str, Path], world: World) -> Memory:
    """Tries one way after the other, as a person who does not know how far it went."""
    for way in ways[:-1]:
        with suppress(RefusedError):
            return open_memory(SPACE, **ledger, stamps=world.stamps, **way)
    return open_memory(SPACE, **ledger, stamps=world.stamps, **ways[-1])


def stopping(at: str) -> Callable[[str], None]:
    def stop(name: str) -> None:
        if name == at:
            raise Stopped

    return stop


@pytest.mark.parametrize("step", STEPS)
def test_a_process_killed_while_it_changes_the_passphrase_leaves_one_of_the_two_in_force(
    locked, opened, folder, step
):
    receipt = locked.remember("I live in Kyoto")
    locked.close()
    child = os.fork()
    if child == 0:
        stamps = Stamps(step=lambda name: os._exit(9) if name == step else None)
        open_memory(SPACE, **folder, stamps=stamps, passphrase=FIRST).set_passphrase(SECOND)
        os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    in_force, other = (FIRST, SECOND) if step == STEPS[0] else (SECOND, FIRST)
    memory = opened(passphrase=in_force)
    assert memory.read(receipt.record_id).record.content == "I live in Kyoto"
    assert memory.audit.verify().findings == ()
    memory.close()
    assert refused_by(opened, passphrase=other).field == "passphrase"


@pytest.mark.parametrize("step", STEPS[:2])
def test_after_a_stopped_change_a_wrong_passphrase_takes_nothing_back(
    locked, opened, folder, world, step
):
    world.at_step = stopping(step)
    with pytest.raises(Stopped):
        locked.set_passphrase(SECOND)
    world.at_step = stopping("")
    locked.close()
    slots = contents(folder)["slots"]

    refused = refused_by(opened, passphrase="neither").message
    assert "not the one" in refused
    assert ("the one before is in force" in refused) == (step == "rotate:slot-written")
    assert "needed" in refused_by(opened).message

    assert contents(folder)["slots"] == slots
    in_force = FIRST if step == "rotate:slot-written" else SECOND
    assert opened(passphrase=in_force).audit.verify().findings == ()


# -- nothing in clear -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step", ["rotate:slot-written", "rotate:rewrapped", "rotate:truncated", ""]
)
def test_no_key_and_no_passphrase_stands_in_clear_in_any_file(tmp_path, folder, step):
    drawn: list[bytes] = []

    def entropy(count: int) -> bytes:
        drawn.append(os.urandom(count))
        return drawn[-1]

    stamps = Stamps(entropy=entropy, step=stopping(step))
    memory = open_memory(SPACE, **folder, home=tmp_path, stamps=stamps)
    memory.remember("fact 1")
    if not step:
        memory.set_passphrase(FIRST)
        memory.rotate_keys()
        memory.forget(memory.remember("fact 2").record_id, 1)
    with suppress(Stopped):
        memory.set_passphrase(SECOND)
    derived = list(memory._parts.log._vault._derived.values())

    (plain,) = [drawn[1]] if step else [b""]
    secrets = [draw for draw in drawn if len(draw) in {20, 32, 44}] + derived
    assert len(secrets) > 64 + 2
    everything = contents(folder)
    for secret in secrets:
        for form in (secret[:32], secret.hex().encode(), base64.b64encode(secret)[:40]):
            found = {name for name, content in everything.items() if form in content}
            # Until the rotation ends, the key before it is where it was.
            assert found <= ({"slots"} if secret == plain else set())
    for text in (FIRST, SECOND):
        assert not any(text.encode() in content for content in everything.values())
    memory.close()


def test_a_new_ledger_under_a_passphrase_never_has_a_key_in_clear(folder, tmp_path, caplog):
    drawn: list[bytes] = []

    def entropy(count: int) -> bytes:
        drawn.append(os.urandom(count))
        return drawn[-1]

    seen: list[bytes] = []
    stamps = Stamps(entropy=entropy, step=lambda _: seen.extend(contents(folder).values()))
    caplog.set_level("DEBUG")
    with open_memory(SPACE, **folder, home=tmp_path, stamps=stamps, passphrase=FIRST) as memory:
        memory.remember("fact 1")
        seen.extend(contents(folder).values())

    everywhere = b"\n".join(seen)
    assert not any(draw[:32] in everywhere for draw in drawn if len(draw) in {20, 32, 44})
    assert FIRST not in caplog.text


# -- files that others may open -------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666, 0o610])
def test_a_slot_file_that_others_may_open_is_refused_with_what_to_do(opened, folder, mode):
    opened().close()
    path = folder["state"] / SPACE / "slots"
    path.chmod(mode)

    refused = refused_by(opened)

    assert (refused.refusal, refused.field) == (Refusal.READ_ONLY, "state")
    assert "chmod 600" in refused.message
    path.chmod(0o600)
    assert opened().status().space == SPACE


def test_a_passphrase_may_stand_in_a_file_of_the_users_own(opened, tmp_path):
    path = tmp_path / "passphrase"
    path.write_text(f"{SECOND}\nanother line\n")
    path.chmod(0o600)
    opened(passphrase=SECOND).close()

    assert opened(passphrase_file=path).status().space == SPACE
    opened("us_bob", passphrase_file=path).close()
    with pytest.raises(RefusedError, match="needed"):
        opened("us_bob")


def test_a_passphrase_file_that_others_may_read_or_own_or_that_is_missing_is_refused(
    opened, tmp_path
):
    path = tmp_path / "passphrase"
    missing = refused_by(opened, passphrase_file=path)
    path.write_text(FIRST)
    path.chmod(0o640)
    shared = refused_by(opened, passphrase_file=path)
    path.chmod(0o600)
    strange = missing
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        strange = refused_by(opened, passphrase_file=path)

    for refused in (missing, shared, strange):
        assert (refused.refusal, refused.field) == (Refusal.INVALID_REQUEST, "passphrase_file")
        assert FIRST not in str(refused)


# -- the command line -----------------------------------------------------------------------------


class Terminal:
    """The command line in a process of its own, at a terminal."""

    def __init__(self, folder: Path) -> None:
        self.env = {f"MEMORANDA_{it.upper()}": str(folder / it) for it in ("data", "state", "home")}

    def piped(self, *arguments: str, given: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [PROGRAM, *arguments],
            env=self.env,
            input=given,
            text=True,
            capture_output=True,
            check=False,
            start_new_session=True,
        )

    def typed(self, *arguments: str, answers: dict[bytes, str]) -> tuple[int, bytes]:
        """The exit code and what was shown; each answer is typed when its question stands there."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [PROGRAM, *arguments],
            env=self.env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        shown, asked = b"", list(answers.items())
        with suppress(OSError):
            while part := os.read(ours, 65_536):
                shown += part
                if asked and asked[0][0] in shown:
                    os.write(ours, asked.pop(0)[1].encode() + b"\n")
        os.close(ours)
        return process.wait(), shown


@pytest.fixture
def at(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)


ASKED, NEW, AGAIN = b"Passphrase of this ledger: ", b"New passphrase: ", b"The same again: "


def test_at_a_terminal_a_passphrase_is_typed_twice_and_never_shown(at):
    at.piped("init")

    code, shown = at.typed("keys", "passphrase", answers={NEW: FIRST, AGAIN: FIRST})
    assert (code, FIRST.encode() in shown) == (0, False)

    code, shown = at.typed("status", answers={ASKED: FIRST})
    assert (code, shown.count(ASKED), FIRST.encode() in shown) == (0, 1, False)

    code, shown = at.typed("status", answers={ASKED: "another"})
    assert (code, b"is not the one of this ledger" in shown) == (1, True)

    changed = at.typed("keys", "passphrase", answers={ASKED: FIRST, NEW: SECOND, AGAIN: "typo"})
    assert (changed[0], b"was not the same" in changed[1]) == (1, True)

    code, shown = at.typed("keys", "passphrase", "--remove", answers={ASKED: FIRST})
    assert code == 0
    assert at.piped("status").returncode == 0


def test_in_a_pipe_the_new_one_is_a_line_and_the_one_in_force_is_in_a_file(at, tmp_path):
    at.piped("init")
    other = at.piped("keys", "passphrase", given=f"{FIRST}\n{SECOND}\n")
    assert other.returncode == 1
    assert "not the same the second time" in other.stderr
    for number, given in enumerate((f"{SECOND}\n{SECOND}\n", f"{FIRST}\n"), 2):
        set_now = at.piped("keys", "passphrase", "--json", given=given)
        assert set_now.returncode == 0
        assert f'"key_epoch": {number}' in set_now.stdout
        (tmp_path / "passphrase").write_text(given)
        (tmp_path / "passphrase").chmod(0o600)
        at.env["MEMORANDA_PASSPHRASE_FILE"] = str(tmp_path / "passphrase")
    del at.env["MEMORANDA_PASSPHRASE_FILE"]

    refused = at.piped("status", given=f"{FIRST}\n")
    assert refused.returncode == 1
    assert "is needed to open this ledger" in refused.stderr
    assert "MEMORANDA_PASSPHRASE_FILE" in refused.stderr

    (tmp_path / "passphrase").write_text(FIRST)
    (tmp_path / "passphrase").chmod(0o600)
    at.env["MEMORANDA_PASSPHRASE_FILE"] = str(tmp_path / "passphrase")
    remembered = at.piped("--verbose", "remember", "I live in Kyoto")
    assert remembered.returncode == 0
    assert FIRST not in remembered.stdout + remembered.stderr


def test_a_program_that_keeps_its_pipe_open_is_not_waited_for(at):
    at.piped("init")
    reading, writing = os.pipe()
    os.write(writing, f"{FIRST}\n".encode())

    set_now = subprocess.run(
        [PROGRAM, "keys", "passphrase"], env=at.env, stdin=reading, timeout=60, check=False
    )

    os.close(writing)
    os.close(reading)
    assert set_now.returncode == 0
    assert at.piped("status").returncode == 1


def test_a_line_that_does_not_end_is_not_read_for_ever(at):
    at.piped("init")
    with Path("/dev/zero").open("rb") as endless:
        refused = subprocess.run(
            [PROGRAM, "keys", "passphrase"], env=at.env, stdin=endless, timeout=60, check=False
        )

    assert refused.returncode == 1
    assert at.piped("status").returncode == 0


def test_the_command_line_moves_the_key_or_says_why_it_cannot(at):
    at.env["PYTHON_KEYRING_BACKEND"] = "keyring.backends.fail.Keyring"
    at.piped("init")

    refused = at.piped("keys", "move", "keyring")

    assert refused.returncode == 1
    assert "NoKeyringError" in refused.stderr
    assert at.piped("status").returncode == 0
    assert at.piped("keys", "move", "nowhere").returncode == 2


def test_the_answer_of_a_move_names_the_setting(at, monkeypatch):
    from memoranda.tools.cli import main

    for name, value in at.env.items():
        monkeypatch.setenv(name, value)

    codes = [main(["init"]), main(["keys", "move", "keyring"]), main(["status"])]
    monkeypatch.setenv("MEMORANDA_VAULT", "keyring")
    codes += [main(["status"]), main(["keys", "move", "slots"]), main(["status"])]

    assert codes == [0, 0, 1, 0, 0, 1]
