"""Erasure: no file holds a forgotten fact, old keys are destroyed, receipts are honest."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.conftest import World

from memoranda.ledger import vaults
from memoranda.ledger.authority import ModelSession
from memoranda.ledger.bundles import FILE_NAME
from memoranda.ledger.ending import set_aside
from memoranda.ledger.errors import IntegrityFault, Refused, RefusedError
from memoranda.ledger.keyring import Keyring
from memoranda.ledger.places import Place
from memoranda.ledger.receipts import ForgetReceipt
from memoranda.ledger.restoring import Asked
from memoranda.ledger.sealed_store import SealedStore
from memoranda.ledger.slots import SlotFile
from memoranda.projections.audit import verify_chain
from memoranda.projections.falling import Fall
from memoranda.tools.memory import Memory
from memoranda.tools.restore import restore
from memoranda.tools.settings import load_settings

REF = "personal-message:s-main-1:"
KEY = "preference/reply-language"
FACT = "Answers in Chinese are wanted."


def slots_of(folder: dict[str, Path]) -> SlotFile:
    return SlotFile(folder["state"] / "us_alice" / "slots")


def forget(memory: Memory, content: str = FACT, **more: object) -> ForgetReceipt:
    made = memory.publish("a fact", content)
    receipt = memory.forget(made.record_id, made.to_revision, **more)
    assert isinstance(receipt, ForgetReceipt)
    return receipt


@contextmanager
def reader_of(folder: dict[str, Path]) -> Iterator[None]:
    """Somebody who has an old state of a file in view."""
    keys = folder["data"] / "us_alice" / "keys.db"
    with closing(sqlite3.connect(f"{keys.as_uri()}?mode=ro", uri=True)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM keys").fetchone() > (0,)
        yield


# -- honest receipts ------------------------------------------------------------------------------


def test_a_forget_says_when_it_was_forgotten_and_when_every_file_was_rid_of_it(
    memory, primary, tables
):
    made = primary.publish(KEY, FACT, sources=[f"{REF}42"])

    receipt = memory.forget(made.record_id, 1)

    assert receipt.forgotten_at == receipt.decided_at
    assert receipt.erased_at is not None
    assert receipt.erased_at >= receipt.forgotten_at
    assert receipt.pending == ()
    assert receipt.copies == (f"the captured message {REF}42", *tables.leftover)


def test_with_its_sources_a_forget_leaves_no_copy(memory, primary, tables):
    made = primary.publish(KEY, FACT, sources=[f"{REF}42"])

    assert memory.forget(made.record_id, 1, with_sources=True).copies == tables.leftover


def test_a_reader_with_an_old_snapshot_holds_the_erasure_up_and_the_receipt_says_so(memory, folder):
    made = memory.publish("a fact", FACT)
    with reader_of(folder):
        receipt = memory.forget(made.record_id, 1, operation_id="op-forget")

        assert receipt.erased_at is None
        assert any("old snapshot" in reason for reason in receipt.pending)
        assert memory.read(made.record_id).refusal.number == "F35"
        assert memory.finish_forgets() == receipt.pending
    assert memory.finish_forgets() == ()
    again = memory.forget(made.record_id, 1, operation_id="op-forget")
    assert again.replayed
    assert again.erased_at is not None
    assert again.pending == ()


def test_an_erasure_that_was_held_up_is_finished_by_the_next_commit_or_opening(
    opened, world, folder
):
    for finish in ("commit", "opening"):
        memory = opened()
        made = memory.publish(f"a fact {finish}", FACT)
        with reader_of(folder):
            pending = memory.forget(made.record_id, 1, operation_id=f"op-{finish}")
            assert pending.erased_at is None
            world.move(seconds=10)
            if finish == "opening":
                memory.close()
        if finish == "commit":
            memory.remember("something else")
        done = opened().forget(made.record_id, 1, operation_id=f"op-{finish}")
        assert done.erased_at is not None


# -- key epochs -----------------------------------------------------------------------------------


def test_each_forget_puts_a_new_wrapping_key_in_force_and_destroys_the_old_one(memory, folder):
    before = slots_of(folder).read()

    forget(memory)

    after = slots_of(folder).read()
    assert set(before) == {1}
    assert set(after) == {2}
    slots = (folder["state"] / "us_alice" / "slots").read_bytes()
    assert before[1] not in slots


def test_forgets_within_two_seconds_share_the_next_rotation(memory, world, folder):
    first = forget(memory)
    assert first.erased_at is not None

    shared = [forget(memory, f"{FACT} {n}") for n in range(3)]
    assert {it.erased_at for it in shared} == {None}
    assert "shares" in shared[0].pending[0]
    assert set(slots_of(folder).read()) == {2}

    world.move(seconds=3)
    memory.remember("whatever comes next finishes them")
    assert set(slots_of(folder).read()) == {3}
    assert memory.finish_forgets() == ()
    for number, receipt in enumerate(shared):
        assert memory.remnants(f"{FACT} {number}").remnants == ()
        again = memory.forget(
            receipt.record_id, receipt.from_revision, operation_id=receipt.operation_id
        )
        assert again.erased_at if number == 2 else again.refusal.number == "F22"
    assert memory.audit.verify().findings == ()


def test_a_clock_reading_that_was_ahead_holds_no_later_erasure_up(memory, world, folder):
    made = [memory.publish(f"k{n}", f"{FACT} {n}") for n in range(3)]
    world.move(days=1)
    memory.remember("By a wrong clock")
    assert forget(memory).erased_at
    world.move(days=-1)

    first = memory.forget(made[0].record_id, 1)
    world.move(seconds=1)
    shared = memory.forget(made[1].record_id, 1, operation_id="op-shared")
    world.move(seconds=2.5)
    last = memory.forget(made[2].record_id, 1)

    assert first.erased_at
    assert shared.pending
    assert last.erased_at
    assert memory.forget(made[1].record_id, 1, operation_id="op-shared").erased_at
    assert max(slots_of(folder).read()) == 4


def test_closing_waits_for_no_other_forget(opened, folder):
    memory = opened()
    forget(memory)
    assert forget(memory, "Another").erased_at is None

    memory.close()

    assert set(slots_of(folder).read()) == {3}


def test_a_fresh_forget_after_a_rotation_by_hand_shares_nothing_older(memory, world):
    assert memory.rotate_keys() == 2
    world.move(seconds=2.1)

    assert forget(memory).erased_at is not None


# -- the anchor -----------------------------------------------------------------------------------


def copies(folder: dict[str, Path], place: Path) -> None:
    shutil.copytree(folder["data"], place)


@pytest.mark.parametrize("other", [0, 5], ids=["rolled back", "forked"])
def test_a_log_that_does_not_go_on_from_its_anchor_is_not_served(
    opened, folder, tables, tmp_path, other
):
    memory = opened()
    memory.remember("one")
    memory.close()
    copies(folder, tmp_path / "kept")
    put_back = tables.kept()
    memory = opened()
    memory.remember("two")
    memory.close()
    anchor = folder["state"] / "us_alice" / "anchor"
    kept = anchor.read_bytes()
    shutil.rmtree(folder["data"])
    shutil.copytree(tmp_path / "kept", folder["data"])
    put_back()
    if other:
        anchor.unlink()
        memory = opened()
        for n in range(other):
            memory.remember(f"another line {n}")
        memory.close()
        anchor.write_bytes(kept)

    with pytest.raises(RefusedError, match="the log is") as refused:
        opened()

    assert refused.value.refused.refusal.code == "space_unknown"
    assert ("older copy" in str(refused.value)) is (other == 0)


def test_a_damaged_anchor_is_a_finding_of_the_opening(opened, folder):
    opened().close()
    (folder["state"] / "us_alice" / "anchor").write_text('{"position": "many"}')

    with pytest.raises(IntegrityFault, match="anchor"):
        opened()


def test_a_log_that_went_missing_beside_its_anchor_is_not_begun_anew(opened, folder, tables):
    memory = opened()
    memory.remember("one")
    memory.close()
    tables.lose()
    shutil.rmtree(folder["data"])

    with pytest.raises(RefusedError, match="missing or empty"):
        opened()

    assert not (folder["data"] / "us_alice" / "ledger.db").exists()


def test_the_anchor_follows_a_long_life_without_a_close(memory, folder):
    anchor = folder["state"] / "us_alice" / "anchor"
    before = anchor.read_bytes() if anchor.exists() else b""

    memory.commit_many(
        {"name": "publish", "operation_id": f"op-{n}", "key": f"k{n}", "content": "x"}
        for n in range(300)
    )

    assert anchor.read_bytes() != before


def test_the_journal_holds_every_tombstone_sealed_and_outlives_a_line_that_was_cut(memory, folder):
    journal = folder["state"] / "us_alice" / "forgotten"
    first = forget(memory)
    with journal.open("ab") as file:
        file.write(b'{"position": 3, "ty')

    second = forget(memory, "Another fact")

    rows = memory._parts.log.journal.read()
    assert [row.position for row in rows] == [first.position, second.position]
    assert first.record_id.encode() not in journal.read_bytes()
    with memory._parts.log.reading() as store:
        assert [store.at(row.position).row for row in rows] == rows


# -- many at once ---------------------------------------------------------------------------------


def test_all_that_ever_rested_on_a_source_is_shown_and_then_falls(memory, primary):
    first = primary.publish("diet/peanuts", "Allergic to peanuts", sources=[f"{REF}50#0-7"])
    second = primary.propose("profile/city", "Lives in Kyoto", sources=[f"{REF}50#8-25"])
    moved = primary.propose("preference/tea", "Green tea", sources=[f"{REF}42#0-6"])
    primary.revise(moved.record_id, 1, sources=[f"{REF}88"])
    other = primary.publish("other", "Something else", sources=[f"{REF}42#7-13"])

    fall = memory.falling(source=f"{REF}50")
    assert {it.record_id for it in fall.records} == {first.record_id, second.record_id}
    assert fall.messages == (f"{REF}50",)
    assert [it.record_id for it in memory.falling(source=f"{REF}50#0-2").records] == [
        first.record_id
    ]
    assert [it.record_id for it in memory.falling(source=f"{REF}42#0-1").records] == [
        moved.record_id
    ]

    report = memory.forget_many(fall)

    assert (report.forgotten, report.messages, report.pending) == (2, 0, ())
    assert memory.read(other.record_id).record.revision == 1
    assert memory.remnants("Allergic to peanuts").remnants == ()
    assert [it.kind for it in memory.remnants("我对花生过敏").remnants] == ["message"]
    assert memory.audit.verify().findings == ()


def test_a_session_falls_with_its_messages_cited_or_not(memory, primary, task_7):
    primary.publish("diet/peanuts", "Allergic to peanuts", sources=[f"{REF}50#0-7"])
    task_7.propose(KEY, FACT, sources=[f"{REF}42"])
    said = {"session": "s-other", "seq": 1, "role": "user", "text": "From another session"}
    assert all(hasattr(it, "ref") for it in memory.capture([said]))

    report = memory.forget_many(memory.falling(session="s-main-1"), with_sources=True)

    assert (report.forgotten, report.refused, report.pending) == (2, {}, ())
    for text in ("Please answer me", "Chinese replies again", "花生", "peanuts"):
        assert memory.remnants(text).remnants == ()
    assert [it.kind for it in memory.remnants("From another session").remnants] == ["message"]
    again = {"session": "s-main-1", "seq": 88, "role": "user", "text": "Chinese replies again"}
    (answer,) = memory.capture([again])
    assert answer.refusal.number == "F15"
    assert memory.audit.verify().findings == ()


def test_everything_shows_the_messages_it_cites_and_takes_them_along_when_asked(memory, primary):
    first = primary.publish("diet/peanuts", "Allergic to peanuts", sources=[f"{REF}50#0-7"])
    primary.correct(first.record_id, 1, "Ill of peanuts", sources=[f"{REF}88"])
    memory.remember("A fact by hand")

    fall = memory.falling(everything=True)
    assert fall.messages == (f"{REF}50", f"{REF}88")
    report = memory.forget_many(fall, with_sources=True)

    assert (report.forgotten, report.messages, report.pending) == (2, 2, ())
    for text in ("花生", "Chinese replies again"):
        assert memory.remnants(text).remnants == ()
    assert [it.kind for it in memory.remnants("Please answer me").remnants] == ["message"]
    assert memory.audit.verify().findings == ()


def test_a_forget_of_many_says_when_it_was_erased_and_names_the_copies_that_are_left(
    memory, primary, tables, tmp_path
):
    for seq in (42, 50):
        primary.publish(f"from/{seq}", f"Said in {seq}", sources=[f"{REF}{seq}"])
    memory.export(tmp_path / "export")

    report = memory.forget_many(memory.falling(everything=True))

    assert report.pending == ()
    assert str(report.erased_at).startswith("2026-10-06T12:00:00")
    messages = tuple(f"the captured message {REF}{seq}" for seq in (42, 50))
    outside = f"the export {tmp_path / 'export'}, if the record was in it"
    assert report.copies == (*messages, outside, *tables.leftover)

    nothing = memory.forget_many(memory.falling(everything=True))
    assert (nothing.forgotten, nothing.erased_at, nothing.copies) == (0, None, ())


def test_what_one_record_takes_along_is_shown_and_nothing_falls(memory, primary):
    made = primary.publish("diet/peanuts", "Allergic to peanuts", sources=[f"{REF}50#0-7"])
    primary.correct(made.record_id, 1, "Ill of peanuts", sources=[f"{REF}88"])
    position = memory.status().position

    fall = memory.falling(record=made.record_id)

    assert [(it.revision, it.content) for it in fall.records] == [(2, "Ill of peanuts")]
    assert fall.messages == (f"{REF}50", f"{REF}88")
    assert memory.status().position == position
    memory.forget(made.record_id, 2)
    for gone in (made.record_id, "mem_unknown"):
        assert memory.falling(record=gone).refusal.number == "F35"


def test_everything_may_fall_and_the_ledger_goes_on(memory, primary):
    primary.publish("diet/peanuts", "Allergic to peanuts", sources=[f"{REF}50#0-7"])
    memory.remember("A fact by hand")

    fall = memory.falling(everything=True)
    watched = []
    report = memory.forget_many(fall, progress=lambda done, whole: watched.append((done, whole)))

    assert report.forgotten == 2
    assert watched == [(2, 2)]
    assert memory.records() == ()
    assert memory.remember("A new beginning").to_revision == 1
    assert memory.falling(everything=True).records[0].content == "A new beginning"


def test_what_is_only_prepared_falls_too(memory, primary):
    held = primary.publish("diet/peanuts", "Allergic to peanuts", sources=[f"{REF}50#0-7"])
    correction = {"name": "correct", "operation_id": "op-1", "record_id": held.record_id}
    memory.prepare({**correction, "expected_revision": 1, "content": "a held correction"})
    unborn = {"name": "publish", "operation_id": "op-2", "key": KEY, "content": "not yet born"}
    primary.prepare({**unborn, "sources": [f"{REF}42"]})
    elsewhere = {"name": "publish", "operation_id": "op-3", "key": "tea", "content": "by hand"}
    memory.prepare(elsewhere)

    by_source = memory.falling(source=f"{REF}42#0-3")
    assert [it.operation_id for it in by_source.prepared] == ["op-2"]
    assert [it.operation_id for it in memory.falling(source=f"{REF}50").prepared] == ["op-1"]
    fall = memory.falling(everything=True)
    assert [(it.operation_id, it.content) for it in fall.prepared] == [
        ("op-1", "a held correction"),
        ("op-2", "not yet born"),
        ("op-3", "by hand"),
    ]

    report = memory.forget_many(fall)

    assert (report.forgotten, report.aborted, report.refused) == (1, 3, {})
    for text in ("a held correction", "not yet born", "by hand", "Allergic to peanuts"):
        assert memory.remnants(text).remnants == ()
    assert memory.falling(everything=True) == Fall(records=(), messages=())
    assert memory.audit.verify().findings == ()


def test_what_is_prepared_and_cannot_be_settled_is_told(memory, opened):
    other = opened(host="backend-1")
    other.prepare({"name": "publish", "operation_id": "op-1", "key": KEY, "content": FACT})

    report = memory.forget_many(memory.falling(everything=True))

    assert (report.forgotten, report.aborted) == (0, 0)
    assert report.refused == {"reconcile_refused": 1}
    assert memory.operation("op-1").state == "prepared"


def test_a_forget_of_many_that_was_interrupted_goes_on_when_it_is_asked_for_again(memory):
    memory.commit_many(
        {"name": "publish", "operation_id": f"op-{n}", "key": f"k{n}", "content": f"Fact {n}"}
        for n in range(230)
    )

    def interrupt(done: int, _whole: int) -> None:
        if done >= 100:
            raise KeyboardInterrupt

    fall = memory.falling(everything=True)
    with pytest.raises(KeyboardInterrupt):
        memory.forget_many(fall, operation_id="op-all", progress=interrupt)
    assert len(memory.falling(everything=True).records) == 130

    again = memory.forget_many(fall, operation_id="op-all")
    assert (again.forgotten, again.refused) == (230, {})
    assert memory.falling(everything=True).records == ()
    assert memory.finish_forgets() == ()
    assert memory.audit.verify().findings == ()


def test_a_record_that_changed_since_it_was_shown_does_not_fall(memory):
    made = memory.remember("Tea")
    fall = memory.falling(everything=True)
    memory.correct(made.record_id, 1, "Green tea")

    report = memory.forget_many(fall)

    assert (report.forgotten, report.refused) == (0, {"revision_conflict": 1})


def test_only_the_person_forgets_many_and_must_say_which(memory, primary, task_7):
    fall = memory.falling(everything=True)
    for caller in (primary, task_7):
        assert caller.falling(everything=True).refusal.number == "F2"
        assert caller.forget_many(fall).refusal.number == "F2"
    for asked in ({}, {"source": "x", "everything": True}, {"session": "a", "source": "b"}):
        assert memory.falling(**asked).refusal.number == "F36"


# -- the whole space ------------------------------------------------------------------------------


def place_of(folder: dict[str, Path]) -> Place:
    return Place.of("us_alice", **folder)


def test_a_whole_space_ends_and_its_chain_verifies_without_keys(
    opened, memory, world, folder, tables
):
    memory.remember(FACT)
    before = memory.audit.verify()
    secrets = slots_of(folder).read()

    assert memory.acting_as(ModelSession("s-main-1", "a")).forget_space("us_alice").refusal
    assert memory.forget_space("us_bob").field == "space"
    assert memory.forget_space("us_alice").keys > 64

    with pytest.raises(RefusedError, match="forgotten for good"):
        opened()
    report = verify_chain(place_of(folder), world.stamps)
    assert report.findings == ()
    assert report.events == before.events + 1
    files = [path for root in folder.values() for path in root.rglob("*") if path.is_file()]
    for text in (FACT.encode(), b"Please answer me", *secrets.values()):
        assert not any(text in path.read_bytes() for path in files)
    assert tables.rows("SELECT * FROM bodies") == []


def test_another_space_may_begin_in_the_place_of_one_that_ended(opened, memory, world, folder):
    assert not isinstance(memory.forget_space("us_alice"), Refused)

    kept = set_aside(place_of(folder), world.stamps)

    assert kept.name.startswith("forgotten-")
    assert opened().records() == ()
    assert opened().remember("A new life").to_revision == 1
    assert set_aside(place_of(folder), world.stamps) is None


def test_with_the_space_end_the_bundles_in_reach_and_every_other_copy_is_named(
    opened, memory, world, tables, elsewhere, tmp_path
):
    memory.remember(FACT)
    here, gone, anothers = (tmp_path / name for name in ("here", "gone", "anothers"))
    for away in (here, gone, anothers):
        memory.backup(away)
    assert not isinstance(memory.export(tmp_path / "all.jsonl"), Refused)
    gone.rename(tmp_path / "in a drawer")
    shutil.rmtree(anothers)
    with opened(**elsewhere) as other:
        other.backup(anothers)
    kept, code = (anothers / "us_alice" / FILE_NAME).read_bytes(), memory.recovery_code

    with (here / "us_alice" / FILE_NAME).open("rb") as bundle:
        ended = memory.forget_space("us_alice")

        assert set(bundle.read()) == {0}
    in_gone, in_export, *others = ended.copies
    assert str(tmp_path / "gone") in in_gone
    assert str(tmp_path / "all.jsonl") in in_export
    assert tuple(others) == tables.leftover
    assert (anothers / "us_alice" / FILE_NAME).read_bytes() == kept
    settings = load_settings(space="us_alice", data=tmp_path / "d", state=tmp_path / "s")
    back = [
        restore(settings, world.stamps, it, Asked(code)) for it in (here, tmp_path / "in a drawer")
    ]
    assert isinstance(back[0], Refused)
    assert not isinstance(back[1], Refused)


def test_a_space_that_ended_is_set_aside_by_the_next_try_after_a_crash_between(
    opened, memory, world, folder
):
    assert memory.forget_space("us_alice").keys > 64

    def crash(step: str) -> None:
        assert step == "space:anchor-removed"
        raise KeyboardInterrupt

    world.at_step = crash
    with pytest.raises(KeyboardInterrupt):
        set_aside(place_of(folder), world.stamps)
    world.at_step = lambda _: None
    assert not (folder["state"] / "us_alice" / "anchor").exists()

    with pytest.raises(RefusedError, match="forgotten for good"):
        opened()
    assert set_aside(place_of(folder), world.stamps) is not None
    assert opened().records() == ()


def test_what_ended_leaves_no_copies_to_the_space_that_begins_in_its_place(
    opened, memory, world, folder, tables, tmp_path
):
    memory.backup(tmp_path / "away")
    (tmp_path / "away").rename(tmp_path / "in a drawer")
    memory.export(tmp_path / "all.jsonl")
    assert len(memory.forget_space("us_alice").copies) == 2 + len(tables.leftover)
    assert set_aside(place_of(folder), world.stamps) is not None

    assert forget(opened()).copies == tables.leftover


def test_who_had_the_space_open_when_it_ended_neither_reads_nor_writes_any_more(
    opened, memory, world, folder, tmp_path
):
    made, other = memory.remember(FACT), opened()
    assert other.read(made.record_id).record.content == FACT
    assert memory.forget_space("us_alice").keys > 64

    refused = [
        other.remember("After the end"),
        other.read(made.record_id),
        other.search("wanted"),
        other.backup(tmp_path / "away"),
    ]

    assert {it.refusal.number for it in refused} == {"F38"}
    assert not (folder["state"] / "us_alice" / "copies").exists()
    assert verify_chain(place_of(folder), world.stamps).findings == ()
    assert set_aside(place_of(folder), world.stamps) is not None
    following = opened()
    other.close()
    assert opened().data_set == following.data_set


def test_a_space_that_an_earlier_version_wrote_into_after_its_end_is_forgotten_all_the_same(
    opened, memory, world, folder, monkeypatch
):
    other = opened()
    assert other.remember(FACT).to_revision == 1
    assert memory.forget_space("us_alice").keys > 64
    with monkeypatch.context() as earlier:
        earlier.setattr("memoranda.ledger.log.is_forgotten_space", lambda _: False)
        earlier.setattr(Keyring, "heed_others", lambda _: None)
        earlier.setattr(SealedStore, "refuse_old_keys", lambda _: None)
        assert other.remember("After the end").to_revision == 1

    with pytest.raises(RefusedError, match="forgotten for good"):
        opened()
    assert set_aside(place_of(folder), world.stamps) is not None
    assert opened().records() == ()


ENDING = ("forgotten", "bundles-destroyed", "keys-removed", "slots-destroyed")


def crash_the_end(memory: Memory, world: World, at: str) -> None:
    """Ends the space, by a process that is gone after that step."""

    def crash(step: str) -> None:
        if step == at:
            raise KeyboardInterrupt

    world.at_step = crash
    with pytest.raises(KeyboardInterrupt):
        memory.forget_space("us_alice")
    world.at_step = lambda _: None


@pytest.mark.parametrize("step", [f"space:{it}" for it in ENDING])
def test_the_end_of_a_space_is_rolled_forward_after_a_crash_at_any_step(
    opened, memory, world, folder, step, tmp_path
):
    memory.remember(FACT)
    memory.backup(tmp_path / "away")
    secrets = slots_of(folder).read()

    crash_the_end(memory, world, step)

    with pytest.raises(RefusedError, match="forgotten for good"):
        opened()
    assert verify_chain(place_of(folder), world.stamps).findings == ()
    assert not (folder["data"] / "us_alice" / "keys.db").exists()
    assert not (tmp_path / "away" / "us_alice" / FILE_NAME).exists()
    files = [path for root in folder.values() for path in root.rglob("*") if path.is_file()]
    assert not any(key in path.read_bytes() for path in files for key in secrets.values())


@pytest.mark.parametrize("step", [f"space:{it}" for it in ENDING])
@pytest.mark.sqlite
def test_an_end_that_was_stopped_names_every_copy_it_did_not_reach_until_it_does(
    opened, memory, world, step, tmp_path
):
    memory.remember(FACT)
    here, gone = tmp_path / "here", tmp_path / "gone"
    for away in (here, gone):
        memory.backup(away)
    memory.export(tmp_path / "all.jsonl")
    gone.rename(tmp_path / "in a drawer")

    crash_the_end(memory, world, step)

    for _ in range(2):
        with pytest.raises(RefusedError, match="forgotten for good") as told:
            opened()
        assert [str(it) in str(told.value) for it in (here, gone, tmp_path / "all.jsonl")] == [
            False, True, True,
        ]  # fmt: skip
    assert not (here / "us_alice" / FILE_NAME).exists()
    (tmp_path / "in a drawer").rename(gone)
    with pytest.raises(RefusedError, match=r"all\.jsonl") as told:
        opened()
    assert str(gone) not in str(told.value)
    assert not (gone / "us_alice" / FILE_NAME).exists()


@pytest.mark.sqlite
def test_an_end_under_a_passphrase_is_rolled_forward_by_who_does_not_know_it(
    opened, world, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(vaults, "SCRYPT_COST", (4, 8, 1))
    with opened(passphrase="a few words") as memory:
        memory.remember(FACT)
        memory.backup(tmp_path / "away")

        crash_the_end(memory, world, "space:forgotten")

    with pytest.raises(RefusedError, match="forgotten for good"):
        opened()

    assert not (tmp_path / "away" / "us_alice" / FILE_NAME).exists()
    assert not (folder["state"] / "us_alice" / "slots").exists()
