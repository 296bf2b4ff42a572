"""The commands about the space itself: its creation, its recovery code, its wrapping key."""

from typing import Annotated, Literal

import typer
from rich.console import RenderableType

from memoranda.ledger.errors import Refusal, Refused
from memoranda.tools.cli_answers import Answer, Problem
from memoranda.tools.cli_run import Json, run_of
from memoranda.tools.passphrases import asked_code, new_passphrase
from memoranda.tools.render import bundle_lines, line, pairs


def init(
    context: typer.Context,
    *,
    new: Annotated[
        bool, typer.Option("--new", help="Begin another in place of one that was forgotten.")
    ] = False,
    _json: Json = False,
) -> Answer:
    """Create the ledger, and show its recovery code once; harmless when it exists already."""
    run = run_of(context)
    if new:
        run.set_aside()
    with run.memory(create=True) as memory:
        space = memory.status().space
    settings = run.settings()
    folders = {
        "data": str(settings.data.expanduser() / space),
        "state": str(settings.state.expanduser() / space),
    }
    created = run.recovery_code is not None
    shown: list[RenderableType] = [
        f"The space {space} {'is ready' if created else 'exists already; nothing was changed'}.",
        pairs((name, line(folder)) for name, folder in folders.items()),
        "Keep the state folder out of every backup of the data: it holds the wrapping keys.",
        'Try next: memoranda remember "I take my tea without milk"',
    ]
    return Answer({"space": space, "created": created, **folders}, shown)


def recovery(
    context: typer.Context,
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Only check a code: asked for, or read from a pipe.")
    ] = False,
    _json: Json = False,
) -> Answer:
    """Make a new recovery code, shown this once; the one before opens no later copy.

    It is in force once the command says so: until then, the one before still is.
    """
    run = run_of(context)
    if not check:
        with run.memory() as memory:
            code = memory.make_recovery_code()
            shown = [f"    {code}", "Write it down. It is shown this once and kept nowhere."]
            run.begin(Answer({"recovery_code": code}, shown))
            memory.set_recovery_code(code)
            pending = memory.old_bundles()
        return Answer({"pending": pending}, ["It is in force.", *bundle_lines(pending)])
    typed = asked_code()
    with run.memory() as memory:
        is_valid = memory.is_recovery_code(typed)
    if is_valid:
        return Answer({"is_valid": True}, ["That is the recovery code in force."])
    wrong = Refused(Refusal.INVALID_REQUEST, "check", "is not the recovery code in force")
    next_step = "Type it again, or make a new one with `memoranda keys recovery`."
    problem = run.refused(wrong)
    error = {**problem.error, "rule": "A recovery code has 36 characters.", "next": next_step}
    return Answer({"is_valid": False}, problem=Problem(problem.exit_code, error))


def rotate(context: typer.Context, *, _json: Json = False) -> Answer:
    """Put a new wrapping key in force and destroy the one before."""
    with run_of(context).memory() as memory:
        key_epoch, pending = memory.rotate_keys(), memory.old_bundles()
    words = f"Key epoch {key_epoch} is in force; the wrapping key before it is destroyed."
    fields = {"key_epoch": key_epoch, "pending": pending}
    return Answer(fields, [words, *bundle_lines(pending)])


def passphrase(
    context: typer.Context,
    *,
    remove: Annotated[
        bool, typer.Option("--remove", help="Keep the wrapping key without a passphrase again.")
    ] = False,
    _json: Json = False,
) -> Answer | Refused:
    """Put the wrapping key under a passphrase: typed twice, or one line of standard input.

    A new wrapping key is put in force, so that no copy of the one before is left anywhere.
    """
    with run_of(context).memory() as memory:
        given = None if remove else new_passphrase()
        if isinstance(given, Refused):
            return given
        key_epoch = memory.set_passphrase(given)
    if isinstance(key_epoch, Refused):
        return key_epoch
    how = "No passphrase is needed any more" if remove else "The passphrase is in force"
    shown: list[RenderableType] = [f"{how}, from key epoch {key_epoch} on."]
    if not remove:
        shown.append(
            "Nobody opens the ledger without it, nor you: only a backup, by its recovery code."
        )
    return Answer({"key_epoch": key_epoch, "passphrase": not remove}, shown)


def move(
    context: typer.Context,
    vault: Annotated[
        Literal["slots", "keyring"],
        typer.Argument(metavar="VAULT", help="slots (the slot file) or keyring (the system's)."),
    ],
    *,
    _json: Json = False,
) -> Answer | Refused:
    """Move the wrapping key between the slot file and the system's keyring."""
    with run_of(context).memory() as memory:
        key_epoch = memory.move_keys(vault)
    if isinstance(key_epoch, Refused):
        return key_epoch
    shown = [
        f"The wrapping key of key epoch {key_epoch} is kept by {vault}, without a passphrase.",
        f'Set vault = "{vault}" in config.toml, or MEMORANDA_VAULT={vault}.',
    ]
    return Answer({"key_epoch": key_epoch, "vault": vault}, shown)
