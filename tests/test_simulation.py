"""Seeded worlds of several hosts keep every promise, and a planted bug is found among them."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.simulation import Simulation

from memoranda.ledger import decisions, guards, reconcile, restoring, rules
from memoranda.ledger.case import Case
from memoranda.ledger.events import OperationAborted
from memoranda.ledger.forgetting import Forgetting
from memoranda.ledger.log import Log
from memoranda.ledger.protection import Held
from memoranda.ledger.replaying import Replayed
from memoranda.ledger.sealed_store import DecidingStore
from memoranda.ledger.sqlite_log import SQLiteRecorder, SQLiteTransaction

ACTIONS = 80
SEEDS = 12
PLANTED_SEEDS = 50
STEPS_EXHAUSTIVE = 1_000_000
SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one; what is durable is not asked here."""
    is_there = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    folder = Path(tempfile.mkdtemp(dir=SHARED_MEMORY if is_there else tmp_path))
    yield folder
    shutil.rmtree(folder)


def play(folder: Path, seed: int) -> Simulation:
    """One seed from its first event to its last look."""
    world = folder / str(seed)
    world.mkdir()
    simulation = Simulation(world, seed)
    simulation.run(ACTIONS)
    shutil.rmtree(world)
    return simulation


def test_every_seed_ends_with_every_promise_kept(memory_folder, exhaustive):
    steps = seed = 0
    while steps < STEPS_EXHAUSTIVE if exhaustive else seed < SEEDS:
        try:
            steps += play(memory_folder, seed).steps
        except Exception as fault:
            fault.add_note(f"seed {seed}")
            raise
        seed += 1


def test_a_seed_is_one_history(memory_folder):
    first, second = (Simulation(memory_folder / name, 1) for name in ("first", "second"))

    assert first.run(ACTIONS) == second.run(ACTIONS)


# -- bugs planted on purpose ----------------------------------------------------------------------


def items_are_not_guarded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guards, "item_refusal", lambda *_: None)


def the_receipt_follows_its_record(patch: pytest.MonkeyPatch) -> None:
    whole = SQLiteRecorder._transaction

    @contextmanager
    def torn(recorder: SQLiteRecorder) -> Iterator[SQLiteTransaction]:
        execute = recorder._writer.execute
        with whole(recorder) as transaction:
            start = transaction.head.position
            yield transaction
            (trigger,) = execute(
                "SELECT sql FROM sqlite_schema WHERE name = 'tags_keep'"
            ).fetchone()
            execute("DROP TRIGGER tags_keep")
            late = execute(
                "DELETE FROM tags WHERE position > ? AND tag LIKE 'op:%' RETURNING *", (start,)
            ).fetchall()
            execute(trigger)
        recorder._stamps.step("planted")
        recorder._writer.executemany("INSERT INTO tags VALUES (?, ?, ?, ?)", late)

    patch.setattr(SQLiteRecorder, "_transaction", torn)


def an_abort_is_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    def heedless(case: Case) -> rules.Answer:
        is_aborted = case.earlier and isinstance(case.earlier.header, OperationAborted)
        return None if is_aborted else rules._identity(case)

    others = [heedless if rule is rules._identity else rule for rule in rules.RULES]
    patch.setattr(decisions, "RULES", others)


def an_intent_holds_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Case, "is_held", False)


def an_older_term_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "_refuse_if_fenced", lambda *_: None)


def a_lost_protection_goes_unnoticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Held, "is_current", True)


def a_retry_is_a_new_operation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "_replay", lambda *_: None)


def a_live_host_is_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile, "HOST_LAPSES_US", 0)


def a_forget_only_says_so(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DecidingStore, "erase_bodies", lambda *_: None)
    patch.setattr(Log, "remove_keys", lambda *_: None)


def a_restore_forgets_nothing_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restoring, "replay", lambda *_: Replayed())


def a_models_forget_is_not_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Case, "is_held_back", False)


def what_is_held_is_never_let_go_of(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Forgetting, "release", lambda *_, **__: None)


@pytest.mark.parametrize(
    "plant",
    [
        items_are_not_guarded,
        the_receipt_follows_its_record,
        an_abort_is_not_asked_for,
        an_intent_holds_nothing,
        an_older_term_goes_on,
        a_lost_protection_goes_unnoticed,
        a_retry_is_a_new_operation,
        a_live_host_is_not_asked_for,
        a_forget_only_says_so,
        a_restore_forgets_nothing_again,
        a_models_forget_is_not_held,
        what_is_held_is_never_let_go_of,
    ],
)
def test_a_planted_bug_is_found(memory_folder, monkeypatch, plant):
    plant(monkeypatch)

    assert any(is_found_by(memory_folder, seed) for seed in range(PLANTED_SEEDS))


def is_found_by(folder: Path, seed: int) -> bool:
    try:
        play(folder, seed)
    except Exception:  # noqa: BLE001  # by the oracle, by the audit, or by the ledger itself
        return True
    return False
