"""Every surface that shows what a ledger knows, each as the text of what it says."""

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from memoranda.ledger.authority import ModelSession
from memoranda.tools.cli import main
from memoranda.tools.memory import Memory, open_memory
from memoranda.tools.memory_async import open_memory_async

MAIN = "s-main-1"


@dataclass(frozen=True)
class Told:
    """What is asked about: some records, their operations, words of them, and when they were."""

    record_ids: tuple[str, ...]
    operation_ids: tuple[str, ...]
    words: str
    position: int


def surfaces_of(memory: Memory, told: Told, folder: Path) -> dict[str, str]:
    """What each read says, to the person and to the primary session; exports go into `folder`."""
    primary = memory.acting_as(ModelSession(MAIN, "agent-main"))
    said = {name: repr(answer) for name, answer in _reads(memory, told)}
    said |= {f"{name}, to the session": repr(answer) for name, answer in _reads(primary, told)}
    for form in ("jsonl", "markdown"):
        file = folder / f"export.{form}"
        memory.export(file, form=form, replace=True)  # type: ignore[arg-type]
        said[f"export {form}"] = file.read_text()
    said["falling"] = repr(memory.falling(everything=True))
    return said


def _reads(memory: Memory, told: Told) -> Iterator[tuple[str, object]]:
    for name in ("read", "revisions", "explain", "evidence"):
        yield name, [getattr(memory, name)(it) for it in told.record_ids]
    yield "read inactive", [memory.read(it, include_inactive=True) for it in told.record_ids]
    yield "operation", [memory.operation(it) for it in told.operation_ids]
    yield "operations", memory.operations()
    yield "records", memory.records()
    yield "records inactive", memory.records(include_inactive=True)
    yield "candidates", memory.candidates()
    recalled = memory.recall(told.words, step="step")
    yield "recall", recalled.zones
    yield "rendered", recalled.render(max_bytes=4000).text
    yield "search", memory.search(told.words)
    yield "query", memory.query(text=told.words)
    yield "query inactive", memory.query(include_inactive=True)
    yield "query as of then", memory.query(as_of=told.position, include_inactive=True)


def at_the_command_line(
    space: str, folders: dict[str, Path], told: Told, folder: Path
) -> dict[str, str]:
    """What the commands print."""
    file = folder / "export.cli"
    one = [
        ["show", "--history"], ["evidence"], ["audit", "explain"],
    ]  # fmt: skip
    commands = [
        ["list", "--all"], ["candidates"], ["recall", told.words], ["search", told.words],
        ["recall", told.words, "--render", "4000"], ["query", "--all"],
        ["query", "--all", "--as-of", str(told.position)], ["export", str(file), "--replace"],
        *([*command, record_id] for command in one for record_id in told.record_ids),
        *(["operations", operation_id] for operation_id in told.operation_ids),
    ]  # fmt: skip
    said = {}
    for command in commands:
        said[" ".join(command)] = typed(space, folders, *command)[1]
    said["the exported file"] = file.read_text()
    return said


def typed(space: str, folders: dict[str, Path], *command: str) -> tuple[int, str]:
    """One run of the command line inside this process: its exit code, and what it printed."""
    env = {"MEMORANDA_DATA": str(folders["data"]), "MEMORANDA_STATE": str(folders["state"])}
    if "engine" in folders:
        env["MEMORANDA_ENGINE"] = str(folders["engine"])
    env |= {"MEMORANDA_SPACE": space, "MEMORANDA_HOME": str(folders["state"] / "home")}
    with CliRunner().isolation(b"", {"NO_COLOR": "1", "COLUMNS": "500", **env}) as (out, err, _):
        code = main(command)
        sys.stdout.flush()
        sys.stderr.flush()
        return code, out.getvalue().decode() + err.getvalue().decode()


def awaited(space: str, folders: dict[str, Path], told: Told) -> dict[str, str]:
    """What the same reads say where they are awaited."""

    async def ask() -> dict[str, str]:
        async with open_memory_async(space, **folders) as memory:
            return {
                f"{name}, awaited": repr(await getattr(memory, name)(argument))
                for name, argument in (
                    *((name, told.record_ids[0]) for name in ("read", "revisions", "explain")),
                    ("search", told.words),
                    ("operation", told.operation_ids[0]),
                )
            }

    return asyncio.run(ask())


def speaking(said: dict[str, str], text: str) -> set[str]:
    """The surfaces that say a text."""
    return {name for name, it in said.items() if text in it}


def serve() -> None:
    """A process that has the ledger open for long: one line of JSON for every line it gets."""
    space, folders, folder, told = sys.argv[1:]
    about = Told(*json.loads(told))
    with open_memory(space, **json.loads(folders)) as memory:
        for _ in sys.stdin:
            said = surfaces_of(memory, about, Path(folder))
            print(json.dumps(sorted(speaking(said, about.words))), flush=True)  # noqa: T201
