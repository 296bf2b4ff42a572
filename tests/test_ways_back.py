"""What was forgotten does not come back: by no way, on no surface, in no process."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.surfaces import MAIN, Told, at_the_command_line, awaited, speaking, surfaces_of, typed

from memoranda.ledger.authority import ModelSession
from memoranda.ledger.restoring import Asked
from memoranda.tools.memory import Memory, open_memory
from memoranda.tools.restore import restore
from memoranda.tools.settings import load_settings

SPACE = "us_alice"
REF = f"personal-message:{MAIN}:"
CANARY = "quixotry under moonflowers"
SAID = {"session": MAIN, "seq": 42, "role": "user", "at": "2026-10-05T09:00:00Z",
        "text": "Please answer me in Chinese from now on"}  # fmt: skip


@dataclass
class Life:
    """A ledger that knows the canary, with every copy of it that ways back begin with."""

    memory: Memory
    folder: dict[str, Path]
    place: Path
    world: Any
    told: Told
    code: str | None
    intents: list[Any]

    @property
    def primary(self) -> Memory:
        return self.memory.acting_as(ModelSession(MAIN, "agent-main"))

    def reopened(self) -> None:
        self.memory.close()
        self.memory = open_memory(SPACE, **self.folder, stamps=self.world.stamps)

    def restored(self, folder: dict[str, Path], source: str = "away", **asked: Any) -> None:
        settings = load_settings(space=SPACE, **folder)
        report = restore(settings, self.world.stamps, self.place / source, Asked(**asked))
        again = 2 if source == "away" else 0
        assert (report.forgotten_again, report.findings) == (again, ())
        self.folder = folder
        self.reopened()


@pytest.fixture
def life(memory, folder, tmp_path, world) -> Iterator[Life]:
    primary = memory.acting_as(ModelSession(MAIN, "agent-main"))
    home = primary.publish("home", CANARY, sources=[f"{REF}88"], operation_id="op-1")
    more = {"sources": [f"{REF}42"], "operation_id": "op-2"}
    candidate = primary.propose("plan", f"{CANARY}, perhaps", **more)
    records = (home.record_id, candidate.record_id)
    told = Told(records, ("op-1", "op-2"), CANARY, candidate.position)
    intents = [memory.operation(it).intent for it in told.operation_ids]
    life = Life(memory, folder, tmp_path, world, told, memory.recovery_code, intents)
    memory.backup(tmp_path / "away")
    memory.export(tmp_path / "before.jsonl")
    memory.search(CANARY)
    shutil.copytree(folder["data"], tmp_path / "old data")
    yield life
    life.memory.close()


@pytest.fixture
def watcher(life) -> Iterator[Callable[[], set[str]]]:
    """A process that has read, found and recalled it, and has the ledger open all the time."""
    (life.place / "watched").mkdir()
    about = json.dumps([*vars(life.told).values()])
    command = [
        sys.executable, "-c", "from tests.surfaces import serve; serve()", SPACE,
        json.dumps(life.folder, default=str), str(life.place / "watched"), about,
    ]  # fmt: skip
    pipe = subprocess.PIPE
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=root) as process:

        def look() -> set[str]:
            process.stdin.write("look\n")
            process.stdin.flush()
            return set(json.loads(process.stdout.readline()))

        yield look
        process.stdin.close()
    assert process.returncode == 0


# -- ways back ------------------------------------------------------------------------------------


def by_a_restore_on_an_empty_machine(life: Life) -> None:
    life.restored({name: life.place / "new" / name for name in ("data", "state")}, code=life.code)


def by_a_restore_in_its_place(life: Life) -> None:
    life.memory.close()
    life.restored(life.folder, force=True)


def by_a_restore_of_an_older_copy_and_then_of_the_newer_one(life: Life) -> None:
    life.memory.backup(life.place / "newer")
    life.memory.close()
    life.restored(life.folder, force=True)
    life.memory.close()
    life.restored(life.folder, source="newer", code=life.code, force=True)


def by_an_import(life: Life) -> None:
    report = life.memory.import_file(life.place / "before.jsonl")
    assert (report.imported, report.suppressed) == (0, 2)


def by_a_rebuild(life: Life) -> None:
    assert life.memory.rebuild() > life.told.position


def by_an_old_file_of_views(life: Life) -> None:
    life.memory.close()
    for old in (life.place / "old data" / SPACE).glob("views.db*"):
        shutil.copy(old, life.folder["data"] / SPACE)
    life.reopened()


def by_capturing_and_proposing_it_again(life: Life) -> None:
    (again,) = life.memory.capture([SAID])
    assert again.replayed
    answers = [
        life.primary.propose("plan", CANARY, sources=[f"{REF}42"]),
        life.primary.propose("other", CANARY, sources=[f"{REF}42#0-6"]),
        life.primary.publish("home", CANARY, sources=[f"{REF}88"]),
    ]
    assert [it.refusal.number for it in answers] == ["F15"] * 3


def by_its_operation_ids(life: Life) -> None:
    sources = [f"{REF}88"]
    answers = [
        life.primary.publish("home", CANARY, sources=sources, operation_id="op-1"),
        life.primary.publish("home", f"{CANARY}!", sources=sources, operation_id="op-1"),
        life.memory.publish("another", CANARY, operation_id="op-2"),
    ]
    assert [it.refusal.number for it in answers] == ["F22"] * 3


def by_its_own_intent(life: Life) -> None:
    """Both verbs, under its own id and another; what was there is expected, as it was."""
    answers = [life.primary.commit(it) for it in life.intents]
    answers += life.primary.commit_many(life.intents)
    assert [it.refusal.number for it in answers] == ["F22"] * 4
    renamed = [{**it, "id": f"op-again-{at}"} for at, it in enumerate(life.intents)]
    answers = [life.primary.commit(it) for it in renamed]
    answers += [life.primary.prepare(it) for it in renamed]
    assert all(hasattr(it, "refusal") for it in answers), answers


def by_undo(life: Life) -> None:
    code, said = typed(SPACE, life.folder, "undo")
    assert code == 1
    assert "gone for good" in said


WAYS = {
    "an empty machine": [by_a_restore_on_an_empty_machine],
    "in its place": [by_a_restore_in_its_place],
    "to and fro": [by_a_restore_of_an_older_copy_and_then_of_the_newer_one],
    "told again": [
        by_an_import, by_a_rebuild, by_an_old_file_of_views, by_capturing_and_proposing_it_again,
        by_its_operation_ids, by_its_own_intent, by_undo,
    ],
}  # fmt: skip


def everywhere(life: Life) -> dict[str, str]:
    """What every surface says, of the opening at hand, another one, and the command line."""
    said = surfaces_of(life.memory, life.told, life.place)
    with open_memory(SPACE, **life.folder) as other:
        said |= {
            f"{k}, opened anew": v for k, v in surfaces_of(other, life.told, life.place).items()
        }
    said |= at_the_command_line(SPACE, life.folder, life.told, life.place)
    return said | awaited(SPACE, life.folder, life.told)


@pytest.mark.parametrize("ways", WAYS.values(), ids=WAYS)
def test_what_was_forgotten_comes_back_on_no_surface_of_any_process(life, watcher, ways):
    assert len(watcher()) > 20
    for record_id in life.told.record_ids:
        assert life.memory.forget(record_id, 1).erased_at
        life.world.move(seconds=3)
    assert watcher() == set()

    for way in ways:
        way(life)
        said = surfaces_of(life.memory, life.told, life.place)
        assert speaking(said, CANARY) == set(), way.__name__

    assert speaking(everywhere(life), CANARY) == set()
    assert watcher() == set()
    assert life.memory.remnants(CANARY).remnants == ()
    assert life.memory.audit.verify(with_index=True).findings == ()


def test_before_the_forget_every_surface_tells_it(life, watcher):
    """The control: what the surfaces are asked for, they tell."""
    said = everywhere(life)

    silent = said.keys() - speaking(said, CANARY)
    # No list of operations tells content, an accepted record has no evidence to show, and the
    # command that exports says how much, not what.
    assert {name.split(",")[0].split(" ")[0] for name in silent} == {
        "operations", "evidence", "export",
    }  # fmt: skip
    assert len(silent) == 6
    assert len(watcher()) == len(surfaces_of(life.memory, life.told, life.place)) - 2
