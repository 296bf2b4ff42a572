"""Keys: slots, batches, bindings, rotation, the recovery code, and no key in clear in any file."""

import base64
import itertools
import os
import shutil
import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.sites import renewed

from memoranda.ledger import keyring
from memoranda.ledger.bundles import read_bundle
from memoranda.ledger.errors import IntegrityFault, RefusedError, StorageFault
from memoranda.ledger.keyring import BATCH, open_recovery_copy
from memoranda.ledger.receipts import Receipt
from memoranda.ledger.recovery_code import code_of
from memoranda.ledger.sealing import derive, open_sealed_to, unwrap
from memoranda.ledger.slots import SLOT_BYTES, SlotFile
from memoranda.ledger.stamps import Stamps
from memoranda.tools.memory import open_memory

SPACE = "us_alice"


@pytest.fixture
def slots(tmp_path: Path) -> SlotFile:
    slots = SlotFile(tmp_path / "slots")
    slots.create(os.urandom(2 * SLOT_BYTES))
    return slots


def keys_of(folder: dict[str, Path]) -> Path:
    return folder["data"] / SPACE / "keys.db"


def slots_of(folder: dict[str, Path]) -> Path:
    return folder["state"] / SPACE / "slots"


def rows(path: Path, query: str, *values: object) -> list[tuple]:
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        return raw.execute(query, values).fetchall()


# -- slots ----------------------------------------------------------------------------------------


def test_slots_are_two_blocks_by_parity_overwritten_in_place(slots, tmp_path):
    path = tmp_path / "slots"
    inode, noise = path.stat().st_ino, path.read_bytes()

    slots.write(1, b"\1" * 32)
    after_first = path.read_bytes()
    slots.write(2, b"\2" * 32)
    both = slots.read()
    slots.destroy(1, b"\7" * SLOT_BYTES)

    assert after_first[:SLOT_BYTES] == noise[:SLOT_BYTES]
    assert both == {1: b"\1" * 32, 2: b"\2" * 32}
    assert slots.read() == {2: b"\2" * 32}
    assert path.read_bytes()[SLOT_BYTES:] == b"\7" * SLOT_BYTES
    assert path.read_bytes()[36:68] == b"\2" * 32
    assert (path.stat().st_ino, path.stat().st_size) == (inode, 2 * SLOT_BYTES)


def test_the_slot_file_is_the_owners_alone_and_never_made_over_another(slots, tmp_path):
    content = (tmp_path / "slots").read_bytes()

    with pytest.raises(FileExistsError):
        slots.create(os.urandom(2 * SLOT_BYTES))

    assert (tmp_path / "slots").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "slots").read_bytes() == content


def test_every_file_and_folder_of_a_ledger_is_the_owners_alone(memory, folder):
    memory.remember("I live in Kyoto")
    found = {
        path.name: path.stat().st_mode & 0o077
        for root in folder.values()
        for path in (root / SPACE, *(root / SPACE).rglob("*"))
    }

    assert set(found.values()) == {0}, found


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
@pytest.mark.parametrize("disk", ["/dev/full", "/dev/null"], ids=["full", "cannot flush"])
def test_a_slot_that_the_disk_does_not_take_is_a_storage_fault(disk):
    with pytest.raises(StorageFault) as fault:
        SlotFile(Path(disk)).write(1, b"\1" * 32)

    assert ("the disk is full" in str(fault.value)) is (disk == "/dev/full")


def test_a_slot_with_a_changed_bit_is_no_slot(slots, tmp_path):
    slots.write(1, b"\1" * 32)
    content = bytearray((tmp_path / "slots").read_bytes())
    for at in (0, 31, 32, 35, 36, 67):
        changed = bytearray(content)
        changed[SLOT_BYTES + at] ^= 1
        (tmp_path / "slots").write_bytes(changed)

        with pytest.raises(RefusedError, match="no valid wrapping key"):
            slots.read()


# -- data keys ------------------------------------------------------------------------------------


def test_keys_are_minted_in_batches_and_each_is_used_once(memory, folder, tables, world):
    world.steps.clear()
    start = memory.status().keys
    for n in range(BATCH + 1):
        assert isinstance(memory.remember(f"fact {n}"), Receipt)

    used = tables.rows("SELECT key_id FROM bodies WHERE key_id <> 'space' ORDER BY position")
    of_records = [key_id for (key_id,) in used][-(BATCH + 1) :]
    assert memory.status().keys == start + BATCH
    assert world.steps.count("keys:minted") == 1
    assert len(set(of_records)) == len(of_records)
    kept = {key_id for (key_id,) in rows(keys_of(folder), "SELECT key_id FROM keys")}
    assert set(of_records) < kept


def test_revisions_of_a_record_share_its_key_and_a_revived_record_has_another(
    memory, folder, tables
):
    first = memory.publish("home", "I live in Kyoto")
    memory.correct(first.record_id, 1, "I live in Nara")
    positions = (first.position, first.position + 1)
    query = "SELECT DISTINCT key_id FROM bodies WHERE position IN (?, ?)"
    ((key_id,),) = tables.rows(query, *positions)

    memory.forget(first.record_id, 2)
    revived = memory.publish("home", "I live in Osaka", expected_revision=3)

    ((another,),) = tables.rows("SELECT key_id FROM bodies WHERE position = ?", revived.position)
    assert another != key_id
    assert rows(keys_of(folder), "SELECT 1 FROM keys WHERE key_id = ?", key_id) == []


def test_a_key_that_could_not_be_kept_seals_nothing_later(opened, monkeypatch):
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with opened() as memory:
        kept = [memory.publish(f"before {n}", "fact").record_id for n in range(BATCH)]
        with monkeypatch.context() as failing:
            failing.setattr(keyring.Keyring, "_insert", full)
            with pytest.raises(StorageFault):
                memory.publish("meanwhile", "fact")
        kept += [memory.publish(f"after {n}", "fact").record_id for n in range(3)]

    with opened() as memory:
        assert [memory.read(it).record.content for it in kept] == ["fact"] * len(kept)
        assert memory.audit.verify().findings == ()


def test_a_reader_of_the_key_file_holds_an_erasure_up_and_no_opening(opened, folder):
    with opened() as memory, closing(sqlite3.connect(keys_of(folder))) as reader:
        gone = memory.publish("gone", "fact")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM keys").fetchone()
        assert memory.forget(gone.record_id, 1).erased_at is None
        memory.close()

        with opened() as again:
            assert again.publish("more", "fact").to_revision == 1
            reader.execute("ROLLBACK")
            assert again.finish_forgets() == ()
            assert again.audit.verify().findings == ()


def test_unused_keys_of_a_process_that_ended_are_kept(opened):
    first = opened()
    first.remember("I live in Kyoto")
    kept = first.status().keys
    first.close()

    second = opened()
    second.remember("I work in Osaka")

    assert second.status().keys == kept + BATCH


def swapped_wraps(folder: dict[str, Path], one: str, other: str) -> None:
    path = keys_of(folder)
    ((first,),) = rows(path, "SELECT wrapped FROM keys WHERE key_id = ?", one)
    ((second,),) = rows(path, "SELECT wrapped FROM keys WHERE key_id = ?", other)
    rows(path, "UPDATE keys SET wrapped = ? WHERE key_id = ?", second, one)
    rows(path, "UPDATE keys SET wrapped = ? WHERE key_id = ?", first, other)


def test_swapped_keys_do_not_open_and_audit_names_the_bodies(opened, folder, tables):
    memory = opened()
    receipts = [memory.publish(f"key {n}", f"fact {n}") for n in range(2)]
    memory.close()
    key_ids = [
        tables.rows("SELECT key_id FROM bodies WHERE position = ?", receipt.position)[0][0]
        for receipt in receipts
    ]

    swapped_wraps(folder, *key_ids)

    memory = opened()
    with pytest.raises(IntegrityFault, match="does not unwrap"):
        memory.read(receipts[0].record_id)
    found = {finding.position for finding in memory.audit.verify().findings}
    assert found >= {receipt.position for receipt in receipts}


def test_a_key_is_bound_to_its_epoch(opened, folder):
    memory = opened()
    receipt = memory.publish("home", "I live in Kyoto")
    old = rows(keys_of(folder), "SELECT key_id, wrapped FROM keys")
    memory.rotate_keys()
    memory.close()

    with closing(sqlite3.connect(keys_of(folder))) as raw:
        back = [(wrapped, key_id) for key_id, wrapped in old]
        raw.executemany("UPDATE keys SET wrapped = ? WHERE key_id = ?", back)
        raw.commit()

    with pytest.raises(IntegrityFault, match="does not unwrap"):
        opened()
    assert isinstance(receipt, Receipt)


def test_the_secret_and_the_recovery_key_may_not_change_places(opened, folder):
    opened().close()

    swapped_wraps(folder, "secret", "recovery/public")

    with pytest.raises(IntegrityFault, match="does not unwrap"):
        opened()


def test_swapped_bodies_do_not_open_and_audit_names_their_positions(opened, tables):
    memory = opened()
    first = memory.publish("home", "I live in Kyoto")
    second = memory.correct(first.record_id, 1, "I live in Nara1")
    memory.close()

    a, b = first.position, second.position
    for old, new in ((a, -1), (b, a), (-1, b)):
        tables.change("UPDATE bodies SET position = ? WHERE position = ?", new, old)

    memory = opened()
    with pytest.raises(IntegrityFault, match=f"position {second.position}:"):
        memory.read(first.record_id)
    findings = memory.audit.verify().findings
    assert {(finding.position, finding.kind) for finding in findings} >= {
        (first.position, "seal"),
        (second.position, "seal"),
    }


def test_equal_bodies_have_different_commitments_and_ciphertexts(memory, tables):
    session = {"session": "s-2", "role": "user", "at": "2026-10-05T09:00:00Z"}
    for seq in (1, 2):
        (answer,) = memory.capture([{**session, "seq": seq, "text": "the same words"}])
        assert answer.ref.endswith(f":{seq}")

    newest = tables.rows(
        "SELECT e.commitment, b.sealed FROM events e JOIN bodies b USING (position)"
        " ORDER BY position DESC LIMIT 2",
    )

    (one, sealed), (other, other_sealed) = newest
    assert len(one) == len(other) == 32
    assert one != other
    assert sealed != other_sealed


# -- rotation -------------------------------------------------------------------------------------

STEPS = ("rotate:slot-written", "rotate:rewrapped", "rotate:truncated", "rotate:slot-destroyed")


def test_a_rotation_wraps_every_key_anew_and_destroys_the_old_one(opened, folder):
    memory = opened()
    receipt = memory.publish("home", "I live in Kyoto")
    (old,) = SlotFile(slots_of(folder)).read().values()
    wraps = dict(rows(keys_of(folder), "SELECT key_id, wrapped FROM keys"))

    assert memory.rotate_keys() == 2

    after = rows(keys_of(folder), "SELECT key_id, key_epoch, wrapped FROM keys")
    assert {key_id for key_id, *_ in after} == set(wraps)
    assert {key_epoch for _, key_epoch, _ in after} == {2}
    assert all(wrapped != wraps[key_id] for key_id, _, wrapped in after)
    assert SlotFile(slots_of(folder)).read().keys() == {2}
    assert old not in slots_of(folder).read_bytes()
    assert memory.status().key_epoch == 2
    assert memory.read(receipt.record_id).record.content == "I live in Kyoto"
    assert memory.audit.verify().findings == ()


def test_nothing_of_the_old_wraps_is_left_in_the_key_file_after_a_rotation(opened, folder):
    memory = opened()
    memory.publish("home", "I live in Kyoto")
    old = [wrapped for (wrapped,) in rows(keys_of(folder), "SELECT wrapped FROM keys")]

    memory.rotate_keys()

    files = keys_of(folder), keys_of(folder).with_name("keys.db-wal")
    content = b"".join(path.read_bytes() for path in files if path.exists())
    assert not any(wrapped in content for wrapped in old)


def test_an_old_key_file_beside_new_slots_is_refused(opened, folder, tmp_path):
    memory = opened()
    memory.publish("home", "I live in Kyoto")
    memory.close()
    shutil.copy(keys_of(folder), tmp_path / "old-keys.db")
    memory = opened()
    memory.rotate_keys()
    memory.close()

    shutil.copy(tmp_path / "old-keys.db", keys_of(folder))

    with pytest.raises(IntegrityFault, match="no slot holds the wrapping key"):
        opened()


def test_old_slots_beside_a_new_key_file_are_refused(opened, folder, tmp_path):
    memory = opened()
    memory.publish("home", "I live in Kyoto")
    memory.close()
    shutil.copy(slots_of(folder), tmp_path / "old-slots")
    memory = opened()
    memory.rotate_keys()
    memory.close()

    shutil.copy(tmp_path / "old-slots", slots_of(folder))

    with pytest.raises(IntegrityFault, match="no slot holds the wrapping key"):
        opened()


def test_tags_stay_the_same_across_rotations(opened):
    memory = opened()
    receipt = memory.publish("home", "I live in Kyoto", operation_id="op-1")
    tag_key = memory._parts.log._keyring.tag_key
    memory.rotate_keys()
    memory.rotate_keys()
    memory.close()

    memory = opened()

    assert memory._parts.log._keyring.tag_key == tag_key
    again = memory.publish("home", "I live in Kyoto", operation_id="op-1")
    assert (again.position, again.replayed) == (receipt.position, True)


def test_a_data_set_is_named_alike_over_rotations_and_openings_and_unlike_every_other(opened):
    memory = opened()
    name = memory.data_set

    memory.rotate_keys()

    assert memory.data_set == opened().data_set == name
    assert len({name, opened("us_bob").data_set, opened("us_carol").data_set}) == 3
    assert len(bytes.fromhex(name)) == 32


def test_a_rotation_takes_its_steps_in_the_one_order_that_loses_nothing(opened, folder, world):
    memory = opened()
    memory.publish("home", "I live in Kyoto")
    seen: dict[str, tuple[set[int], set[int], int]] = {}

    def look(name: str) -> None:
        epochs = {epoch for (epoch,) in rows(keys_of(folder), "SELECT key_epoch FROM keys")}
        wal = keys_of(folder).with_name("keys.db-wal").stat().st_size
        seen[name] = (set(SlotFile(slots_of(folder)).read()), epochs, wal)

    world.at_step = look
    memory.rotate_keys()

    assert list(seen) == [*STEPS, "log:commit", "log:committed"]
    slots = [slots for slots, *_ in seen.values()]
    assert slots == [{1, 2}, {1, 2}, {1, 2}, {2}, {2}, {2}]
    assert [epochs for _, epochs, _ in seen.values()] == [{1}, {2}, {2}, {2}, {2}, {2}]
    assert seen["rotate:truncated"][2] == 0


def test_what_another_process_forgot_or_rotated_is_no_longer_held_open(opened, tables):
    one, other = opened(), opened()
    first, kept = one.publish("home", "I live in Kyoto"), one.publish("work", "I work in Osaka")
    for receipt in (first, kept):
        assert one.read(receipt.record_id).record.revision == 1
    keyring = one._parts.log._keyring
    ((key_id,),) = tables.rows("SELECT key_id FROM bodies WHERE position = ?", first.position)
    assert key_id in keyring._open_keys

    other.forget(first.record_id, 1)
    other.rotate_keys()
    assert one.read(kept.record_id).record.content == "I work in Osaka"

    assert key_id not in keyring._open_keys
    assert keyring.key(key_id) is None
    assert 1 not in keyring._wrapping_keys


class Stopped(BaseException):
    """A stop between two steps."""


@pytest.mark.parametrize(("first", "second"), list(itertools.product(STEPS, STEPS)))
def test_a_rotation_stopped_twice_is_finished_by_the_third(opened, folder, world, first, second):
    memory = opened()
    receipt = memory.publish("home", "I live in Kyoto")
    stop_at = first

    def stop(name: str) -> None:
        if name == stop_at:
            raise Stopped

    world.at_step = stop
    with pytest.raises(Stopped):
        memory.rotate_keys()
    memory.close()
    stop_at = second
    with suppress(Stopped):
        opened().close()
    stop_at = ""

    memory = opened()

    (key_epoch,) = SlotFile(slots_of(folder)).read()
    assert memory.status().key_epoch == key_epoch == 2
    assert memory.read(receipt.record_id).record.content == "I live in Kyoto"
    assert memory.audit.verify().findings == ()


def test_keys_that_another_thread_closes_meanwhile_are_those_of_a_closed_ledger(opened):
    memory = opened()
    log = memory._parts.log
    key_id = log.key_rows()[0][0]
    memory.close()

    for read in (log.key_rows, lambda: log._keyring.holds(key_id)):
        with pytest.raises(RefusedError, match="is closed"):
            read()


# -- the recovery code ----------------------------------------------------------------------------


def test_the_recovery_code_is_shown_by_the_opening_that_made_the_space(opened):
    memory = opened()
    code = memory.recovery_code
    memory.close()

    assert code is not None
    groups = code.split("-")
    assert len(groups) == 9
    assert all(len(group) == 4 for group in groups)
    assert set("".join(groups)) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
    assert opened().recovery_code is None


def test_a_recovery_code_is_known_however_it_is_typed(opened):
    memory = opened()
    code = memory.recovery_code

    for text in (code, code.lower(), code.replace("-", ""), f" {code.replace('-', ' ')}\n"):
        assert memory.is_recovery_code(text)


def test_every_single_typing_error_in_a_recovery_code_is_noticed(opened):
    memory = opened()
    copy = memory._parts.log._keyring.recovery_copy()
    code = memory.recovery_code
    for at, character in enumerate(code):
        if character == "-":
            continue
        typo = code[:at] + ("A" if character != "A" else "B") + code[at + 1 :]

        assert not memory.is_recovery_code(typo)
        with pytest.raises(IntegrityFault, match="mistyped"):
            open_recovery_copy(copy, typo, SPACE)


@pytest.mark.parametrize("text", ["", "-", "AAAA", "x" * 500, "1234-5678", "ÄÖÜ", "\0"])
def test_what_is_no_recovery_code_is_none(opened, text):
    assert not opened().is_recovery_code(text)


def test_a_recovery_copy_opens_with_its_code_and_space_only(opened, folder):
    memory = opened()
    keyring = memory._parts.log._keyring
    other_code = memory.recovery_code
    code = renewed(memory)

    copy = keyring.recovery_copy()

    assert open_recovery_copy(copy, code, SPACE) == (1, SlotFile(slots_of(folder)).read()[1])
    for wrong_code, space in ((other_code, SPACE), (code, "us_bob")):
        with pytest.raises(IntegrityFault, match="does not unwrap"):
            open_recovery_copy(copy, wrong_code, space)
    for damaged in (copy[:-1], b"\0\0\0\2" + copy[4:], copy[:20], b""):
        with pytest.raises(IntegrityFault):
            open_recovery_copy(damaged, code, SPACE)


def test_a_recovery_copy_made_after_a_rotation_holds_the_new_key(opened, folder):
    memory = opened()
    code = memory.recovery_code
    memory.rotate_keys()

    copy = memory._parts.log._keyring.recovery_copy()

    assert open_recovery_copy(copy, code, SPACE) == (2, SlotFile(slots_of(folder)).read()[2])
    assert memory.is_recovery_code(code)


def test_a_new_recovery_code_ends_the_one_before(opened):
    memory = opened()
    old = memory.recovery_code

    new = renewed(memory)

    assert new != old
    assert not memory.is_recovery_code(old)
    assert memory.is_recovery_code(new)
    memory.close()
    memory = opened()
    assert (memory.is_recovery_code(new), memory.is_recovery_code(old)) == (True, False)


def test_a_recovery_code_is_in_force_once_it_is_set_and_not_before(opened, tmp_path):
    memory = opened()
    old, bundle = memory.recovery_code, tmp_path / "away" / SPACE
    memory.backup(tmp_path / "away")

    new = memory.make_recovery_code()
    with pytest.raises(RefusedError, match="is no recovery code"):
        memory.set_recovery_code(code_of(b"short"))

    memory.close()
    memory = opened()
    assert [memory.is_recovery_code(code) for code in (old, new)] == [True, False]
    assert open_recovery_copy(read_bundle(bundle).recovery, old, SPACE)[0] == 1
    memory.set_recovery_code(new)
    assert [memory.is_recovery_code(code) for code in (old, new)] == [False, True]
    assert open_recovery_copy(read_bundle(bundle).recovery, new, SPACE)[0] == 1


def test_no_key_of_today_opens_a_recovery_copy(opened):
    """Or who has today's keys and a bundle from before a forget would need no code."""
    memory = opened()
    memory.remember("a fact")
    keyring = memory._parts.log._keyring
    copy = keyring.recovery_copy()
    bound = keyring._bound("recovery/public", 1)
    kept = [keyring._secret(key_id) for key_id, _, _ in keyring.rows()]
    assert len(kept) > BATCH

    for secret in [*kept, *memory._parts.log._vault.read().values()]:
        with pytest.raises(IntegrityFault):
            open_sealed_to(secret, copy[4:], bound)
        with pytest.raises(IntegrityFault):
            unwrap(secret, copy[4:], bound)


def test_what_an_earlier_version_kept_of_the_recovery_code_is_replaced_and_the_code_stays(
    opened, tmp_path
):
    memory = opened()
    code = memory.recovery_code
    memory.backup(tmp_path / "away")
    keyring = memory._parts.log._keyring
    opens_copies = derive(base64.b32decode(code.replace("-", "")[:-4]), "recovery/v1")
    with keyring._writing():
        keyring._connection.execute("DELETE FROM keys WHERE key_id = 'recovery/public'")
        keyring._insert([("recovery", opens_copies)])
    before = read_bundle(tmp_path / "away" / SPACE).content
    memory.close()

    memory = opened()

    assert memory.is_recovery_code(code)
    assert {"recovery", "recovery/public"}.intersection(
        key_id for key_id, _, _ in memory._parts.log._keyring.rows()
    ) == {"recovery/public"}
    bundle = read_bundle(tmp_path / "away" / SPACE)
    assert bundle.content != before
    assert open_recovery_copy(bundle.recovery, code, SPACE)[0] == 1


# -- no key in clear ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
def test_no_key_ever_stands_in_clear_in_any_file(folder, tmp_path, is_open):
    drawn: list[bytes] = []

    def entropy(count: int) -> bytes:
        drawn.append(os.urandom(count))
        return drawn[-1]

    memory = open_memory(SPACE, **folder, home=tmp_path, stamps=Stamps(entropy=entropy))
    codes = [memory.recovery_code]
    for n in range(3):
        memory.remember(f"fact {n}")
    before_rotation = len(drawn)
    memory.rotate_keys()
    codes.append(renewed(memory))
    memory.remember("fact 4")
    if not is_open:
        memory.close()

    files = [path for root in folder.values() for path in root.rglob("*") if path.is_file()]
    content = {path.name: path.read_bytes() for path in files}
    everywhere = b"\n".join(content.values())
    (current,) = SlotFile(slots_of(folder)).read().values()
    secrets = [draw[:32] for draw in drawn if len(draw) in {20, 32, 44}]
    in_clear = [secret for secret in secrets if secret in everywhere]
    assert before_rotation > 64
    assert len(secrets) > 70
    assert in_clear == [current]
    assert [name for name, text in content.items() if current in text] == ["slots"]
    for secret in secrets:
        for written in (secret.hex().encode(), base64.b64encode(secret)[:40]):
            assert written not in everywhere
    for code in codes:
        assert code.encode() not in everywhere
        assert code.replace("-", "").encode() not in everywhere
    memory.close()


def test_opened_keys_are_held_up_to_a_bound_however_many_are_minted(opened, monkeypatch):
    monkeypatch.setattr(keyring, "OPEN_KEYS_MAX", 8)
    memory = opened()
    ids = [memory.remember(f"fact {number}").record_id for number in range(30)]

    held = len(memory._parts.log._keyring._open_keys)

    assert held <= 8
    assert all(hasattr(memory.read(record_id), "record") for record_id in ids)


DEEDS = {
    "rotate": lambda it: it.rotate_keys(),
    "make a code": lambda it: it.make_recovery_code(),
    "set a code": lambda it: it.set_recovery_code("any"),
    "ask": lambda it: it.is_recovery_code("any"),
    "rebuild": lambda it: it.rebuild(),
    "passphrase": lambda it: it.set_passphrase("of somebody else"),
    "move": lambda it: it.move_keys("keyring"),
    "doctor": lambda it: it.doctor(),
    "bundles": lambda it: it.old_bundles(),
}


@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS)
@pytest.mark.parametrize("who", ["primary", "task_7"])
def test_the_keys_are_the_persons_alone(memory, folder, deed, who, request):
    caller = request.getfixturevalue(who)
    before = (slots_of(folder).read_bytes(), rows(keys_of(folder), "SELECT * FROM keys"))

    try:
        refused = deed(caller)
    except RefusedError as error:
        refused = error.refused

    assert refused.refusal.number == "F2"
    assert caller.recovery_code is None
    assert memory.recovery_code is not None
    assert (slots_of(folder).read_bytes(), rows(keys_of(folder), "SELECT * FROM keys")) == before
    assert memory.rotate_keys() == 2


@pytest.mark.sqlite
def test_no_forget_removes_what_the_whole_space_rests_on(opened):
    memory = opened()
    code, made = memory.recovery_code, memory.remember("It stays")
    names = [key_id for key_id, _, _ in memory._parts.log._keyring.rows()]
    rests = [key_id for key_id in names if len(key_id) != len(names[-1])]
    assert len(rests) == 1 + 1  # the secret, and what seals for the recovery code

    memory._parts.log.remove_keys(tuple(rests))

    memory.close()
    memory = opened()
    assert memory.read(made.record_id).record.content == "It stays"
    assert memory.is_recovery_code(code)


@pytest.mark.parametrize("odd", [None, 5, b"AAAA", [], {}, "\ud800", ""], ids=repr)
def test_what_is_no_text_is_no_recovery_code_passphrase_or_vault(memory, folder, odd):
    before = slots_of(folder).read_bytes()

    assert memory.is_recovery_code(odd) is False
    assert memory.move_keys(odd).field == "vault"
    if odd is not None and odd != "\ud800":
        assert memory.set_passphrase(odd).field == "passphrase"
    assert slots_of(folder).read_bytes() == before


@pytest.mark.parametrize(
    ("argument", "odd"),
    [
        *(("key_vault", odd) for odd in (5, "kms", object(), SimpleNamespace(name="kms"))),
        *(("passphrase", odd) for odd in (5, b"secret", [])),
    ],
)
def test_an_opening_refuses_an_odd_vault_or_passphrase_before_it_makes_anything(
    opened, folder, argument, odd
):
    with pytest.raises(RefusedError) as raised:
        opened("us_new", **{argument: odd})

    assert (raised.value.refused.code, raised.value.refused.field) == ("invalid_request", argument)
    assert not (folder["data"] / "us_new").exists()


@pytest.mark.sqlite("the log's own file")
def test_a_pipe_in_place_of_the_log_is_refused_at_once(opened, folder):
    opened().close()
    log = folder["data"] / "us_alice" / "ledger.db"
    log.unlink()
    os.mkfifo(log)

    with pytest.raises(RefusedError) as raised:
        opened()

    assert "ledger.db is not a Memoranda file" in raised.value.refused.message


def test_a_folder_in_place_of_the_views_is_named(opened, folder):
    opened().close()
    views = folder["data"] / "us_alice" / "views.db"
    views.unlink()
    views.mkdir()

    with pytest.raises(StorageFault, match=r"^views\.db is in the way"):
        opened()
