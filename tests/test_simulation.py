"""Seeded worlds of several hosts keep every promise, and a planted bug is found among them."""

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.simulation import Simulation

from memoranda.ledger import (
    commit_protocol,
    decisions,
    guards,
    reconcile,
    restoring,
    rules,
    sealed_store,
)
from memoranda.ledger.case import Case
from memoranda.ledger.events import OperationAborted
from memoranda.ledger.forgetting import Forgetting
from memoranda.ledger.log import Log
from memoranda.ledger.protection import Held
from memoranda.ledger.replaying import Replayed
from memoranda.ledger.sealed_store import DecidingStore
from memoranda.ledger.sql_log import SQLTransaction
from memoranda.ledger.sqlite_log import SQLiteRecorder

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


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes share one thread: whoever waits for another one waits in vain."""
    monkeypatch.setattr(commit_protocol, "WRITER_WAIT_S", 0)
    monkeypatch.setattr(reconcile, "DRAIN_WAIT_S", 0)


def play(folder: Path, seed: int, engine: dict[str, str] | None = None) -> Simulation:
    """One seed from its first event to its last look."""
    world = folder / str(seed)
    world.mkdir()
    simulation = Simulation(world, seed, engine)
    simulation.run(ACTIONS)
    shutil.rmtree(world)
    return simulation


@pytest.mark.untraced
def test_every_seed_ends_with_every_promise_kept(memory_folder, empty_engine, exhaustive):
    steps = seed = 0
    while steps < STEPS_EXHAUSTIVE if exhaustive else seed < SEEDS:
        try:
            steps += play(memory_folder, seed, empty_engine()).steps
        except Exception as fault:
            fault.add_note(f"seed {seed}")
            raise
        seed += 1


def test_a_seed_is_one_history(memory_folder, empty_engine):
    first, second = (
        Simulation(memory_folder / name, 1, empty_engine()).run(ACTIONS)
        for name in ("first", "second")
    )

    assert first == second


# -- bugs planted on purpose ----------------------------------------------------------------------


def items_are_not_guarded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guards, "item_refusal", lambda *_: None)


def the_receipt_follows_its_record(patch: pytest.MonkeyPatch) -> None:
    whole = SQLiteRecorder._transaction

    @contextmanager
    def torn(recorder: SQLiteRecorder) -> Iterator[SQLTransaction]:
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
    patch.setattr(Case, "holder", None)


def an_older_term_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "_refuse_if_fenced", lambda *_: None)


def a_lost_protection_goes_unnoticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Held, "is_current", True)


def a_retry_is_a_new_operation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "_replay", lambda *_: None)


def a_live_host_is_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sealed_store, "HOST_LAPSES_US", 0)


def a_forget_only_says_so(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DecidingStore, "erase_bodies", lambda *_: None)
    patch.setattr(Log, "remove_keys", lambda *_: None)


def a_restore_forgets_nothing_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restoring, "replay", lambda *_: Replayed())


def a_models_forget_is_not_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Case, "is_held_back", False)


def what_is_held_is_never_let_go_of(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Forgetting, "release", lambda *_, **__: None)


PLANTED: dict[Callable[[pytest.MonkeyPatch], None], set[str]] = {
    items_are_not_guarded: {"allows"},
    the_receipt_follows_its_record: {"agrees"},
    an_abort_is_not_asked_for: {"judged once more", "one end"},
    an_intent_holds_nothing: {"holds the record"},
    an_older_term_goes_on: {"an older term appends nothing"},
    a_lost_protection_goes_unnoticed: {"allows"},
    a_retry_is_a_new_operation: {"judged once more"},
    a_live_host_is_not_asked_for: {"another host is live"},
    a_forget_only_says_so: {"gone"},
    a_restore_forgets_nothing_again: {"report.findings"},
    a_models_forget_is_not_held: {"self.owed"},
    what_is_held_is_never_let_go_of: {"oracle.held"},
}
"""Each bug with what is said about its own violation; another one does not count as found."""


@pytest.mark.untraced
@pytest.mark.parametrize(("plant", "violations"), PLANTED.items())
def test_a_planted_bug_is_found_by_its_own_violation(memory_folder, plant, violations):
    for seed in range(PLANTED_SEEDS):
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            found = violation_of(memory_folder, seed)
        if any(each in found for each in violations):
            break
    else:
        pytest.fail(f"not found by {PLANTED_SEEDS} seeds")

    assert violation_of(memory_folder, seed) == ""


def violation_of(folder: Path, seed: int) -> str:
    """What a seed finds wrong: the line of the check that failed, and what it said."""
    try:
        play(folder, seed)
    except Exception as fault:  # noqa: BLE001  # by the oracle, by the audit, or by the ledger itself
        shutil.rmtree(folder / str(seed), ignore_errors=True)
        return f"{traceback.extract_tb(fault.__traceback__)[-1].line}: {fault}"
    return ""
