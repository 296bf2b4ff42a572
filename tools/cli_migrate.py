"""The command that takes an earlier store over."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from memoranda.ledger.errors import Refused
from memoranda.tools.cli_answers import Answer, ExitCode, Problem
from memoranda.tools.cli_run import Json, Run, progress_bar, run_of
from memoranda.tools.render import line, short

if TYPE_CHECKING:
    from memoranda.ledger.takeover import MigrationReport


def migrate(
    context: typer.Context,
    store: Annotated[
        Path, typer.Argument(metavar="FROM", help="The file of the earlier store, JSON lines.")
    ],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would become of it; write nothing.")
    ] = False,
    _json: Json = False,
) -> Answer | Refused:
    """Take an earlier store of records over, all of it or nothing; it is only read.

    What the ledger has already stays as it is, and what was forgotten stays forgotten. A record
    that breaks a rule is refused by its line and does not stop the others: the exit code is 1 then.
    """
    run = run_of(context)
    look_at_store(run, store)
    with (
        run.memory(create=not dry_run) as memory,
        progress_bar("Migrating") as progress,
    ):
        report = memory.migrate(store, dry_run=dry_run, progress=progress)
    if isinstance(report, Refused):
        return report
    fields = {**report.model_dump(mode="json"), "dry_run": dry_run}
    return Answer(fields, list(migration_page(report, dry_run=dry_run)), lines_problem(report))


def look_at_store(run: Run, file: Path) -> None:
    """Refuses (F26) what is no such store before a ledger is made for it."""
    from memoranda.ledger.legacy import LegacyStore, surveyed  # noqa: PLC0415  # not for --help

    surveyed(LegacyStore(file, run.settings().space))


def lines_problem(report: "MigrationReport") -> Problem | None:
    """The first line that was refused, if any: the others are in."""
    if not report.refused_lines:
        return None
    message = f"{sum(report.refused.values())} lines were refused, and the others taken in"
    return Problem(ExitCode.REFUSED, {**dict(report.refused_lines[0]), "message": message})


def migration_page(report: "MigrationReport", *, dry_run: bool) -> Iterator[RenderableType]:
    """What became of the lines, counts first."""
    refused = sum(report.refused.values())
    yield line(
        f"Imported {report.imported}, already there {report.already_there},"
        f" suppressed by a tombstone {report.suppressed}, refused {refused}."
    )
    yield line(f"Conflicts opened {report.conflicts}, sources blocked {report.blocked}.")
    for it in report.refused_lines:
        yield line(f"line {it.line}: {it.code}{f': {it.field}' if it.field else ''}", "yellow")
    if (more := refused - len(report.refused_lines)) > 0:
        yield line(f"and {more} lines more", "yellow")
    if not report.is_complete:
        yield line("Settle what `memoranda operations` shows, then run it again.", "yellow")
    for overlap in report.overlapping:
        record, other = short(overlap.record_id), short(overlap.other_id)
        yield line(f"{record} cites the same words as {other}: {overlap.ref}")
    if report.unknown_fields:
        names = ", ".join(f"{name} ({count})" for name, count in report.unknown_fields.items())
        yield line(f"Unknown fields stay in the earlier store: {names}.")
    if dry_run:
        yield line("A dry run: nothing was written.", "bold")
