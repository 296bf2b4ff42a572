"""House rules that no linter knows, and the linter's own rules, each shown to bite."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from memoranda.ledger import errors
from memoranda.ledger.errors import MemorandaError, Refusal

ROOT = Path(__file__).parents[1]
PACKAGES = ("ledger", "projections", "tools")
ROOMS = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
ROOM_LINES_MAX = 450
FUNCTION_LINES_MAX = 45
NESTING_MAX = 3
VAGUE = {
    "base",
    "common",
    "core",
    "helper",
    "helpers",
    "manager",
    "misc",
    "service",
    "util",
    "utils",
}
READS_THE_OUTSIDE = {
    "ledger/locks.py": "waits for a lock, and no longer",
    "ledger/stamps.py": "the injected clock and entropy come from here",
    "tools/benchmarks/forget.py": "measures seconds",
    "tools/benchmarks/startup.py": "measures seconds",
    "tools/benchmarks/step.py": "measures seconds, on repeatable texts",
    "tools/benchmarks/workload.py": "measures seconds",
    "tools/postgres_server.py": "waits for a server to start, and no longer",
}
OUTSIDE = re.compile(
    r"datetime\.(now|utcnow|today)\b|\btime\.(time|monotonic|perf_counter|process_time)\b"
    r"|\bos\.(environ|getenv|urandom)\b|\buuid\.?\d?\(|\bimport (random|secrets)\b"
)


def name_of(room: Path) -> str:
    return room.relative_to(ROOT).as_posix()


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for room in ROOMS:
        for node in ast.walk(ast.parse(room.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield f"{name_of(room)}:{node.lineno} {node.name}", node


def lines_of(function: ast.FunctionDef) -> int:
    """How long the body is, without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def nesting_of(statements: list[ast.stmt]) -> int:
    return max((_depth(statement) for statement in statements), default=0)


def _depth(statement: ast.stmt) -> int:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return 0
    inner = [getattr(statement, field, []) for field in ("body", "finalbody")]
    inner += [handler.body for handler in getattr(statement, "handlers", [])]
    inner += [case.body for case in getattr(statement, "cases", [])]
    orelse = getattr(statement, "orelse", [])
    is_elif = isinstance(statement, ast.If) and len(orelse) == 1 and isinstance(orelse[0], ast.If)
    below = max((nesting_of(part) for part in [*inner, [] if is_elif else orelse]), default=0)
    own = below + 1 if any(inner) else 0
    return max(own, _depth(orelse[0])) if is_elif else own


# -- rooms and functions ------------------------------------------------------------------------


def test_every_room_is_short_enough_and_says_on_its_door_what_it_owns():
    assert len(ROOMS) > 30
    too_long = {
        name_of(room): len(room.read_text().splitlines())
        for room in ROOMS
        if len(room.read_text().splitlines()) > ROOM_LINES_MAX
    }
    signless = [
        name_of(room) for room in ROOMS if not ast.get_docstring(ast.parse(room.read_text()))
    ]

    assert too_long == {}
    assert signless == []


def test_every_function_is_short_and_flat_enough():
    found = dict(functions())

    assert len(found) > 300
    assert {name: n for name, f in found.items() if (n := lines_of(f)) > FUNCTION_LINES_MAX} == {}
    assert {name: n for name, f in found.items() if (n := nesting_of(f.body)) > NESTING_MAX} == {}


@pytest.mark.parametrize(
    ("code", "depth"),
    [
        ("x = 1", 0),
        ("if a:\n  x = 1\nelif b:\n  x = 2\nelif c:\n  x = 3\nelse:\n  x = 4", 1),
        (
            "for a in b:\n while c:\n  with d:\n   try:\n    x = 1\n   finally:\n    y = 2",
            4,
        ),
        ("match a:\n  case 1:\n    if b:\n      x = 1", 2),
        ("def f():\n  if a:\n    if b:\n      x = 1", 0),
    ],
)
def test_nesting_is_counted_as_a_reader_would(code, depth):
    assert nesting_of(ast.parse(code).body) == depth


def test_no_room_has_a_vague_name_or_one_of_the_standard_library():
    stems = {name_of(room): room.stem for room in ROOMS if not room.stem.startswith("__")}

    assert {name for name, stem in stems.items() if set(stem.split("_")) & VAGUE} == set()
    assert {name for name, stem in stems.items() if stem in sys.stdlib_module_names} == set()


def test_only_the_listed_rooms_read_clock_entropy_or_environment():
    found = {name_of(room) for room in ROOMS if OUTSIDE.search(room.read_text())}

    assert found == set(READS_THE_OUTSIDE)


# -- saying no ------------------------------------------------------------------------------------


def written() -> str:
    return "\n".join(room.read_text() for room in ROOMS if name_of(room) != "ledger/errors.py")


def test_there_are_at_most_five_exceptions_and_each_is_raised_somewhere():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    exceptions = [kind for kind in kinds if issubclass(kind, MemorandaError)]
    elsewhere = re.findall(r"class \w+\([^)]*(?:Error|Exception)\)", written())

    assert len(exceptions) <= 5
    assert elsewhere == []
    for kind in exceptions:
        is_raised = re.search(rf"\b{kind.__name__}\(", written()) is not None
        assert is_raised or kind is MemorandaError, kind


def test_every_refusal_is_given_somewhere():
    given = {refusal for refusal in Refusal if f"Refusal.{refusal.name}" in _words(written())}

    assert given == set(Refusal)


def _words(text: str) -> set[str]:
    return set(re.findall(r"Refusal\.\w+", text))


def test_every_refusal_has_a_number_a_code_and_a_rule_of_its_own():
    assert len({(refusal.number, refusal.rule) for refusal in Refusal}) == len(Refusal)
    for refusal in Refusal:
        assert re.fullmatch(r"F[1-9]\d?", refusal.number)
        assert re.fullmatch(r"[a-z_]+", refusal.code)
        assert refusal.rule.endswith(".")


# -- the floor plan -------------------------------------------------------------------------------

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS = [contract["name"] for contract in SETTINGS["tool"]["importlinter"]["contracts"]]
SURFACES = "Surfaces call the read side and the write side; the write side calls neither"
WRITE, READ, DOORS = (
    f"The floors of the {side}" for side in ("write side", "read side", "surfaces")
)
LIBRARY = "Only the store and the decisions know the event store library"
CRYPTOGRAPHY = "Only sealing knows the cryptography library"
DECISIONS = "Decisions import no storage, keys, logging or network"
CONDUCTORS = "The read side calls no conductor"
BREAKS = {
    "the write side calls a surface": (
        SURFACES, "ledger/errors.py", "import memoranda.tools.settings"
    ),
    "the write side calls the read side": (
        SURFACES, "ledger/log.py", "import memoranda.projections.views"
    ),
    "the read side calls a surface": (
        SURFACES, "projections/views.py", "import memoranda.tools.settings"
    ),
    "a ground room calls a conductor": (
        WRITE, "ledger/stamps.py", "import memoranda.ledger.operations"
    ),
    "a room calls sideways": (WRITE, "ledger/errors.py", "import memoranda.ledger.stamps"),
    "a write room without a floor": (WRITE, "ledger/annex.py", '"""An annex."""'),
    "a read room calls up": (READ, "projections/views.py", "import memoranda.projections.audit"),
    "a read room without a floor": (READ, "projections/annex.py", '"""An annex."""'),
    "the settings call the front door": (
        DOORS, "tools/settings.py", "import memoranda.tools.memory"
    ),
    "a surface without a floor": (DOORS, "tools/annex.py", '"""An annex."""'),
    "a ground room knows the event store library": (
        LIBRARY, "ledger/entries.py", "import eventsourcing.persistence"
    ),
    "a surface knows the event store library": (
        LIBRARY, "tools/memory.py", "import eventsourcing"
    ),
    "the keyring knows the cryptography library": (
        CRYPTOGRAPHY, "ledger/keyring.py", "import cryptography.fernet"
    ),
    "a rule knows the engine": (DECISIONS, "ledger/rules.py", "import sqlite3"),
    "a decision reads a clock": (DECISIONS, "ledger/transitions.py", "import time"),
    "a guard reads keys": (DECISIONS, "ledger/guards.py", "import memoranda.ledger.keyring"),
    "the read side calls a conductor": (
        CONDUCTORS, "projections/history.py", "import memoranda.ledger.operations"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package to break, with a cache of what was not broken."""
    house = tmp_path_factory.mktemp("house")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, house / "memoranda" / package)
    (house / "memoranda" / "__init__.py").touch()
    shutil.copy(ROOT / "pyproject.toml", house)
    return house


def broken_in(house: Path) -> set[str]:
    """The contracts that the linter finds broken."""
    linter = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run(
        [linter, "--no-logo", "--cache-dir", "cache"],
        cwd=house,
        env={"PYTHONPATH": str(house), "COLUMNS": "300"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert all(name in run.stdout for name in CONTRACTS), run.stdout + run.stderr
    return {name for name in CONTRACTS if f"{name} BROKEN" in run.stdout}


def test_the_house_keeps_its_floor_plan(house):
    assert broken_in(house) == set()


def test_every_contract_of_the_floor_plan_is_broken_below():
    assert {contract for contract, *_ in BREAKS.values()} == set(CONTRACTS)


@pytest.mark.parametrize("what", BREAKS)
def test_the_floor_plan_is_enforced_when(house, what):
    contract, room, line = BREAKS[what]
    path = house / "memoranda" / room
    kept = path.read_text() if path.exists() else None
    path.write_text(f"{kept or ''}\n{line}\n")

    try:
        broken = broken_in(house)
    finally:
        path.unlink() if kept is None else path.write_text(kept)

    assert contract in broken
