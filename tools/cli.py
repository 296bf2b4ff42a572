"""The command line: the person's own client."""

import sqlite3
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer
from typer.main import get_command

from memoranda.ledger.errors import (
    IntegrityFault,
    MemorandaError,
    OutcomeUnknown,
    Refusal,
    Refused,
    RefusedError,
)
from memoranda.tools import (
    cli_backup,
    cli_capture,
    cli_doctor,
    cli_forget,
    cli_keys,
    cli_migrate,
    cli_reads,
    cli_recall,
    cli_recovery,
    cli_writes,
)
from memoranda.tools.cli_answers import Answer, ExitCode, Problem, prepare_streams
from memoranda.tools.cli_run import Json, Run, run_of
from memoranda.tools.render import tour_page

Command = Callable[..., Answer | Refused | Problem]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and answers with its exit code; nothing prints a traceback."""
    if arguments is None:
        prepare_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    run = Run()
    try:
        outcome = _outcome(run, given)
        return outcome if isinstance(outcome, ExitCode) else run.finish(outcome)
    except (KeyboardInterrupt, EOFError, typer.Abort):
        return ExitCode.INTERRUPTED
    finally:
        run.close()


def _outcome(run: Run, given: list[str]) -> Answer | Problem | ExitCode:
    """What the command answered, or what it raised, as a problem."""
    try:
        answer = get_command(application()).main(
            args=given, prog_name="memoranda", obj=run, standalone_mode=False
        )
    except (EOFError, typer.Abort):
        raise
    except typer.TyperException as error:
        # The option may not have been read yet when the fault was found.
        run.as_json |= "--json" in given
        return _usage(error)
    except RefusedError as error:
        return run.refused(error.refused)
    except Exception as error:  # noqa: BLE001  # the last door: nobody above could name more
        return _fault(run, error)
    if isinstance(answer, Refused):
        return run.refused(answer)
    return answer if isinstance(answer, Answer | Problem) else ExitCode(answer)


def _usage(error: typer.TyperException) -> Problem:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "memoranda"
    message = error.format_message()
    next_step = f"`{command} --help` says how it is called."
    return Problem(ExitCode.USAGE, {"code": "usage", "message": message, "next": next_step})


def _fault(run: Run, error: Exception) -> Problem:
    match error:
        case OutcomeUnknown():
            operation_id = error.operation_id or run.operation_id
            again = f" with --operation {operation_id}" if operation_id else ""
            next_step = f"Run the same command again{again}: what was done is not done twice."
            wire = Refused(Refusal.OUTCOME_UNKNOWN, operation_id=operation_id).wire()
            return Problem(ExitCode.UNKNOWN_OUTCOME, {**wire, "next": next_step})
        case IntegrityFault():
            return Problem(
                ExitCode.INTEGRITY,
                {
                    "code": "integrity_fault",
                    "message": str(error),
                    "next": "Keep the files as they are; `memoranda audit verify` names the place.",
                },
            )
        case MemorandaError():
            message = str(error)
        case OSError():
            message = ": ".join(str(it) for it in (error.strerror, error.filename) if it)
        case sqlite3.Error():
            message = f"a file could not be read or written ({error.sqlite_errorname})"
        case _:
            # Its own message could quote what a person wrote; the place is enough to find it.
            place = traceback.extract_tb(error.__traceback__)[-1]
            name = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
            message = f"a defect of Memoranda, please report it: {name}"
    return Problem(ExitCode.FAULT, {"code": "fault", "message": message})


# -- every command under its name -----------------------------------------------------------


def settle(
    context: typer.Context,
    *,
    space: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose ledger (MEMORANDA_SPACE).")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where ledgers live (MEMORANDA_DATA).")
    ] = None,
    state: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where keys live (MEMORANDA_STATE).")
    ] = None,
    home: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where config.toml is (MEMORANDA_HOME).")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="URL", help="Server of the log (MEMORANDA_ENGINE).")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="One line per operation on standard error.")
    ] = False,
    version: Annotated[bool, typer.Option("--version", help="Say which version this is.")] = False,
    _json: Json = False,
) -> Answer | None:
    """A personal memory ledger: what to remember, on whose word, and able to forget.

    Settings come from config.toml, then MEMORANDA_… variables, then these options.

    Exit codes: 0 done, 1 refused, 2 usage, 3 outcome unknown, 4 integrity finding, 5 fault.
    """
    run = run_of(context)
    run.given = {
        "space": space, "data": data, "state": state, "home": home, "engine": engine,
    }  # fmt: skip
    if verbose:
        run.log_to_stderr()
    if version:
        number = installed_version("memoranda")
        return Answer({"version": number}, [f"memoranda {number}"])
    if context.invoked_subcommand is not None:
        return None
    if run.as_json:
        raise typer.BadParameter("one is needed", context, param_hint="COMMAND")
    typer.echo(context.get_help())
    raise typer.Exit(ExitCode.USAGE)


def take_tour(_context: typer.Context, *, _json: Json = False) -> Answer:
    """See a sample conversation become memory, in a folder that is gone afterwards."""
    from memoranda.tools.tour import next_commands, tour  # noqa: PLC0415  # not for --help

    steps, following = tuple(tour()), next_commands()
    fields = {"steps": [step.wire() for step in steps], "next": following}
    return Answer(fields, tour_page(steps, following))


_COMMANDS: dict[str, dict[str, Command]] = {
    "Start": {"init": cli_keys.init, "tour": take_tour},
    "Keep": {
        "remember": cli_writes.remember,
        "capture": cli_capture.capture,
        "migrate": cli_migrate.migrate,
    },
    "Look": {
        "list": cli_reads.list_records,
        "show": cli_reads.show,
        "candidates": cli_reads.candidates,
        "evidence": cli_reads.evidence,
        "recall": cli_recall.recall,
        "search": cli_recall.search,
        "query": cli_recall.query,
        "status": cli_reads.status,
    },
    "Decide": {
        "accept": cli_writes.accept,
        "reject": cli_writes.reject,
        "correct": cli_writes.correct,
        "retire": cli_writes.retire,
        "reactivate": cli_writes.reactivate,
        "forget": cli_forget.forget,
        "destroy": cli_forget.destroy,
        "undo": cli_writes.undo,
    },
    "Copies": {
        "backup": cli_backup.backup,
        "restore": cli_backup.restore,
        "export": cli_backup.export,
        "import": cli_backup.import_file,
    },
    "Recover": {
        "operations": cli_recovery.operations,
        "reconcile": cli_recovery.reconcile,
        "doctor": cli_doctor.doctor,
    },
    "Keys and proof": {"rebuild": cli_recall.rebuild},
}
_GROUPS: dict[str, tuple[str, str, dict[str, Command]]] = {
    "core": (
        "Decide",
        "Choose the few facts that every step recalls.",
        {"add": cli_writes.add, "drop": cli_writes.drop},
    ),
    "forgotten": (
        "Keys and proof",
        "What was forgotten, and what is still found.",
        {
            "prove": cli_recall.prove,
            "list": cli_recall.forgotten,
            "finish": cli_recall.finish,
            "take-back": cli_forget.take_back,
        },
    ),
    "keys": (
        "Keys and proof",
        "Recovery code, passphrase and wrapping key.",
        {
            "recovery": cli_keys.recovery,
            "rotate": cli_keys.rotate,
            "passphrase": cli_keys.passphrase,
            "move": cli_keys.move,
        },
    ),
    "audit": (
        "Keys and proof",
        "Prove what the log says.",
        {"verify": cli_reads.verify, "explain": cli_reads.explain},
    ),
}


def command_names() -> list[str]:
    """Every command as it is typed."""
    plain = [name for commands in _COMMANDS.values() for name in commands]
    inner = [f"{group} {name}" for group, (_, _, names) in _GROUPS.items() for name in names]
    return plain + inner


def application() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    app.callback(invoke_without_command=True)(settle)
    for panel, commands in _COMMANDS.items():
        for name, command in commands.items():
            app.command(name, rich_help_panel=panel)(command)
    for group, (panel, sentence, commands) in _GROUPS.items():
        inner = typer.Typer(help=sentence)
        for name, command in commands.items():
            inner.command(name)(command)
        app.add_typer(inner, name=group, rich_help_panel=panel)
    return app
