"""The commands about copies of a ledger: backup, restore, export, import."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from memoranda.ledger.errors import Refused
from memoranda.ledger.places import path_of
from memoranda.tools.cli_answers import Answer, ExitCode, Problem
from memoranda.tools.cli_migrate import lines_problem, look_at_store, migration_page
from memoranda.tools.cli_run import Json, Run, run_of
from memoranda.tools.passphrases import asked_code
from memoranda.tools.render import bundle_lines, finding_table, line, when

if TYPE_CHECKING:
    from memoranda.ledger.backups import BackupReport
    from memoranda.tools.restore import RestoreReport

Gone = Annotated[
    bool, typer.Option("--gone", help="Write nothing: it is gone, and no forget is to name it.")
]
# Texts, since an empty path would pass for the present folder: a script's variable may be unset.
Folder = Annotated[str, typer.Argument(metavar="DIR", help="A folder on another disk or machine.")]

UNITS = """\
# ~/.config/systemd/user/memoranda-backup.service
[Service]
Type=oneshot
ExecStart={program}

# ~/.config/systemd/user/memoranda-backup.timer
[Timer]
OnCalendar=daily
Persistent=true
[Install]
WantedBy=timers.target

# then: systemctl --user enable --now memoranda-backup.timer
"""


def backup(
    context: typer.Context,
    folder: Folder,
    *,
    keep: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=10_000, help="Copies of the log kept there; 7 first."),
    ] = None,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="Only print lines for cron and systemd.")
    ] = False,
    gone: Gone = False,
    _json: Json = False,
) -> Answer | Refused:
    """Copy the log, verified, and write the present key bundle beside it.

    The recovery code opens the bundle. It is rewritten there after every key rotation; a forget
    names the folders where it could not be.
    """
    run = run_of(context)
    if gone:
        _refuse_beside_gone(context, keep=keep, schedule=schedule)
        return _gone(run, folder)
    if schedule:
        return _schedule(run, folder, keep)
    with run.memory() as memory:
        made = memory.backup(folder, keep=keep)
    if isinstance(made, Refused):
        return made
    return Answer({"backup": made.model_dump(mode="json")}, list(_backup_page(made)))


def _schedule(run: Run, folder: str, keep: int | None) -> Answer:
    given = [word for name, text in run.given.items() if text for word in (f"--{name}", text)]
    kept = [] if keep is None else ["--keep", str(keep)]
    target = str(path_of(folder, "destination"))
    program = shlex.join(["memoranda", *given, "backup", target, *kept])
    # Both cron and systemd give a per cent sign a meaning of its own.
    cron, units = program.replace("%", "\\%"), UNITS.format(program=program.replace("%", "%%"))
    shown: list[RenderableType] = [
        line(f"17 3 * * *  {cron}"),
        "",
        *(line(it) for it in units.splitlines()),
    ]
    return Answer({"cron": f"17 3 * * *  {cron}", "systemd": units}, shown)


def _refuse_beside_gone(context: typer.Context, **others: object) -> None:
    """Raises a usage error that names the options which say how to write what is not written."""
    given = ", ".join(f"--{name}" for name, value in others.items() if value)
    if given:
        raise typer.BadParameter(f"writes nothing: leave {given} out", context, param_hint="--gone")


def _gone(run: Run, path: str) -> Answer | Refused:
    with run.memory() as memory:
        left = memory.copy_is_gone(path)
    if isinstance(left, Refused):
        return left
    shown: list[RenderableType] = [line(f"No forget names {path} from here on.")]
    return Answer({"gone": str(path), "left": left}, shown)


def _backup_page(made: "BackupReport") -> Iterator[RenderableType]:
    yield line(
        f"Copied to position {made.copy_made.position} and verified: {made.destination}"
        f" ({made.kept} kept, {made.removed} removed)."
    )
    yield f"Its key bundle is of key epoch {made.key_epoch}; your recovery code opens it."
    yield from bundle_lines(made.pending)


def restore(
    context: typer.Context,
    folder: Folder,
    *,
    recovery: Annotated[
        bool, typer.Option("--recovery", help="Ask for the recovery code, or read it from a pipe.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Over a ledger that goes further, or with findings.")
    ] = False,
    position: Annotated[
        int | None,
        typer.Option("--to", metavar="POSITION", min=1, help="From the newest copy up to there."),
    ] = None,
    _json: Json = False,
) -> Answer | Refused:
    """Bring the ledger back from a backup; on an empty machine with --recovery.

    What was forgotten since the copy is forgotten again before anything is served. Repeating it
    after an interruption is harmless.
    """
    from memoranda.ledger.restoring import Asked  # noqa: PLC0415  # not for --help
    from memoranda.tools.restore import restore as restored  # noqa: PLC0415

    run = run_of(context)
    asked = Asked(asked_code() if recovery else None, force, position)
    report = restored(run.settings(), run.stamps, folder, asked)
    if isinstance(report, Refused):
        return report
    fields = {"restored": report.model_dump(mode="json")}
    return Answer(fields, list(_restore_page(report)), _restore_problem(report))


def _restore_page(report: "RestoreReport") -> Iterator[RenderableType]:
    yield f"Restored to position {report.position}, {when(report.recorded_at)}."
    yield f"Forgotten again, since the copy was made: {report.forgotten_again}."
    if report.messages_lost:
        yield f"Captured messages that lay under the same keys are lost: {report.messages_lost}."
    if report.gone_until:
        yield line(
            f"Gone: at least {report.gone} events that were acknowledged after the copy,"
            f" until {when(report.gone_until)}.",
            "yellow",
        )
    yield f"Key epoch {report.key_epoch} and term {report.term} are in force."
    for vault in report.left_in:
        shown = f"{vault} still keeps a key of before: remove it there, or an old copy tells"
        yield line(f"{shown} what was forgotten since.", "yellow")
    if report.kept_key:
        shown = f"The wrapping key of before is not destroyed yet: {report.kept_key}."
        yield line(shown, "yellow")
    if report.lacks_passphrase:
        message = (
            "No passphrase is over the wrapping key now: `memoranda keys passphrase` sets one."
        )
        yield line(message, "yellow")
    if report.findings:
        yield finding_table(report.findings)


def _restore_problem(report: "RestoreReport") -> Problem | None:
    if not report.findings:
        return None
    served = "served all the same" if report.is_served else "not served"
    message = f"the restored log is not whole, and is {served}: {len(report.findings)} findings"
    next_step = "Restore from another folder; --force serves what there is."
    error = {"code": "integrity_finding", "message": message, "next": next_step}
    return Problem(ExitCode.INTEGRITY, error)


def export(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to write.")],
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Pages for people, in place of JSON lines.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="In place of what is there.")] = False,
    gone: Gone = False,
    _json: Json = False,
) -> Answer | Refused:
    """Write everything that you may read into a readable file; nothing forgotten is in it.

    The file is out of the ledger's hands: forgets name it as a copy that they do not reach.
    """
    if gone:
        _refuse_beside_gone(context, markdown=markdown, replace=replace)
        return _gone(run_of(context), file)
    form = "markdown" if markdown else "jsonl"
    with run_of(context).memory() as memory:
        report = memory.export(file, form="markdown" if markdown else "jsonl", replace=replace)
    if isinstance(report, Refused):
        return report
    counts = ", ".join(f"{count} {status}" for status, count in report.records.items())
    shown: list[RenderableType] = [
        line(f"Wrote {report.path} as {form}: {counts or 'no records'}."),
        "It is readable by anyone who gets it, and no forget reaches it.",
    ]
    return Answer({"export": report.model_dump(mode="json")}, shown)


def import_file(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export, as JSON lines.")],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would become of it; write nothing.")
    ] = False,
    _json: Json = False,
) -> Answer | Refused:
    """Take in what an export holds and the ledger does not; repeating it changes nothing.

    What was forgotten here stays forgotten, and is counted as suppressed. A line that breaks a rule
    is refused and does not stop the others: the exit code is 1 then.
    """
    run = run_of(context)
    look_at_store(run, file)
    with run.memory(create=not dry_run) as memory:
        report = memory.import_file(file, dry_run=dry_run)
    if isinstance(report, Refused):
        return report
    fields = {**report.model_dump(mode="json"), "dry_run": dry_run}
    return Answer(fields, list(migration_page(report, dry_run=dry_run)), lines_problem(report))
