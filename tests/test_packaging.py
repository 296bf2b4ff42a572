"""The package as others meet it: one name, nothing beside it, nothing printed."""

import json
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

import memoranda

ROOT = Path(__file__).parents[1]
HEAVY = ("click", "detect_secrets", "hypothesis", "rich", "structlog", "typer")
HOSTILE = {
    "PERSISTENCE_MODULE": "eventsourcing.postgres",
    "IS_SNAPSHOTTING_ENABLED": "y",
    "MAPPER_TOPIC": "builtins:dict",
    "TRANSCODER_TOPIC": "builtins:dict",
    "COMPRESSOR_TOPIC": "builtins:dict",
    "CIPHER_TOPIC": "builtins:dict",
    "CIPHER_KEY": "AAAA",
    "SQLITE_DBNAME": "elsewhere.db",
    "SQLITE_LOCK_TIMEOUT": "0",
    "CREATE_TABLE": "n",
    "POSTGRES_DBNAME": "elsewhere",
    "POSTGRES_HOST": "203.0.113.1",
    "EVENTSOURCING_DISABLE_REDEFINED_DATACLASS": "y",
}


def run(script: str, cwd: Path, *, options: tuple[str, ...] = (), **environment: str) -> str:
    """What a Python program prints, run in a folder under exactly this environment."""
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(script)],
        cwd=cwd,
        env={"HOME": str(cwd), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_front_doors_are_the_only_public_names():
    assert memoranda.__all__ == ["open_memory", "open_memory_async"]
    with pytest.raises(AttributeError, match="no attribute 'close_memory'"):
        _ = memoranda.close_memory


def test_the_front_door_opens_beside_a_callers_own_modules(tmp_path):
    for name in ("tools", "ledger", "projections", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not yours')\n")
    for name in ("memory", "settings", "log", "events", "errors", "cli", "views", "audit"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not yours')\n")

    said = run(
        """
        from memoranda import open_memory

        with open_memory("us_alice", data="data", state="state") as memory:
            memory.publish("home", "I live in Kyoto")
            print([read.record.content for read in memory.records()])
        """,
        tmp_path,
    )

    assert said == "['I live in Kyoto']\n"


def test_importing_the_package_imports_no_room_and_the_front_door_nothing_heavy(tmp_path):
    said = run(
        f"""
        import sys

        import memoranda

        print([name for name in sys.modules if name.startswith("memoranda.")])
        from memoranda import open_memory

        print([name for name in {HEAVY} if name in sys.modules])
        with open_memory("us_alice", data="data", state="state") as memory:
            memory.status()
            memory.records()
        print([name for name in {HEAVY} if name in sys.modules])
        """,
        tmp_path,
    )

    assert said == "[]\n[]\n[]\n"


def test_a_program_that_uses_the_library_prints_nothing_of_ours(tmp_path):
    said = run(
        """
        import logging

        from memoranda import open_memory
        from memoranda.ledger.oplog import say

        with open_memory("us_alice", data="data", state="state") as memory:
            receipt = memory.publish("home", "I live in Kyoto")
            memory.correct(receipt.record_id, 7, "refused")
            memory.publish("key", "my password is Tr0ub4dor&3xyzzy")
            memory.forget(receipt.record_id, 1)
            memory.rotate_keys()
            memory.audit.verify()
        say(logging.ERROR, "publish", outcome="unknown")
        """,
        tmp_path,
        options=("-X", "dev", "-W", "error::ResourceWarning"),
    )

    assert said == ""


REPEATABLE = """
    import hashlib, json, sqlite3
    from datetime import UTC, datetime
    from memoranda import open_memory
    from memoranda.ledger.stamps import Stamps

    drawn = iter(range(10_000))
    stamps = Stamps(
        now=lambda: datetime(2026, 10, 6, tzinfo=UTC),
        entropy=lambda count: hashlib.shake_256(str(next(drawn)).encode()).digest(count),
    )
    with open_memory("us_alice", data="data", state="state", stamps=stamps) as memory:
        first = memory.publish("home", "I live in Kyoto")
        memory.correct(first.record_id, 1, "I live in Nara")
        memory.rotate_keys()
        report = memory.audit.verify()
    with sqlite3.connect("data/us_alice/ledger.db") as raw:
        rows = [list(map(str, row)) for row in raw.execute("SELECT * FROM events")]
    print(json.dumps([report.chain, len(report.findings), rows]))
"""


def test_the_environment_of_the_event_store_library_changes_nothing(tmp_path):
    answers = []
    for name, environment in (("plain", {}), ("hostile", HOSTILE)):
        (tmp_path / name).mkdir()
        answers.append(json.loads(run(REPEATABLE, tmp_path / name, **environment)))
    files = [
        sorted(
            path.relative_to(tmp_path / name).as_posix() for path in (tmp_path / name).rglob("*")
        )
        for name in ("plain", "hostile")
    ]

    assert answers[0] == answers[1]
    assert answers[0][1] == 0
    assert files[0] == files[1]
    assert {path.partition("/")[0] for path in files[0]} == {"data", "state"}


# -- the wheel ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as it would be published, built from a copy so that nothing is left behind."""
    place = tmp_path_factory.mktemp("wheel")
    for name in ("ledger", "projections", "tools", "tests", ".src"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, place / "copy" / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place / "copy")
    # The environment of `tools/test` has no pip of its own; the Python it was made from has.
    pip = [sys._base_executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    built = subprocess.run(
        [*pip, "wheel", "--no-deps", "--wheel-dir", place, place / "copy"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (found,) = place.glob("*.whl")
    return found


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    sources = {
        f"memoranda/{path.relative_to(ROOT).as_posix()}"
        for package in ("ledger", "projections", "tools")
        for path in (ROOT / package).rglob("*.py")
    }

    inside = {name for name in names if ".dist-info/" not in name}
    others = {"memoranda/__init__.py", "memoranda/py.typed"}
    data = {"memoranda/tools/tour_conversation.jsonl", "memoranda/ledger/postgres.sql"}
    assert inside == sources | others | data


def test_the_wheel_declares_its_command_its_licence_and_its_python(wheel):
    with zipfile.ZipFile(wheel) as archive:
        stem = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = archive.read(stem).decode()
        commands = archive.read(stem.replace("METADATA", "entry_points.txt")).decode()

    assert "Requires-Python: >=3.11" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    assert "memoranda = memoranda.tools.cli:main" in commands


def test_the_package_of_the_wheel_works_without_the_checkout(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")

    said = run(
        """
        import memoranda
        from memoranda import open_memory

        with open_memory("us_alice", data="data", state="state") as memory:
            memory.publish("home", "I live in Kyoto")
            print(memory.audit.verify().findings, memoranda.__file__)
        """,
        tmp_path,
        PYTHONPATH=str(tmp_path / "site"),
    )

    assert said == f"() {tmp_path / 'site' / 'memoranda' / '__init__.py'}\n"
