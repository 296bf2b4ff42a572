"""The command that looks for what could cost a ledger its memories or its secrets."""

import typer
from rich.text import Text

from memoranda.projections.unseen import visible
from memoranda.tools.cli_answers import Answer, ExitCode, Problem
from memoranda.tools.cli_run import Json, run_of

_STYLES = {"fine": "green", "note": "", "finding": "yellow"}


def doctor(context: typer.Context, *, _json: Json = False) -> Answer:
    """Look for what could cost you memories or secrets: keys, backups, files, open ends."""
    with run_of(context).memory() as memory:
        checks = memory.doctor()
    shown = [
        Text.assemble((f"{it.level:<8}", _STYLES[it.level]), f" {it.name}: {visible(it.message)}")
        for it in checks
    ]
    fields = {"checks": [it.model_dump(mode="json") for it in checks]}
    count = sum(it.level == "finding" for it in checks)
    if not count:
        return Answer(fields, shown)
    message = f"{count} of {len(checks)} checks found something"
    error = {"code": "doctor_finding", "message": message}
    return Answer(fields, shown, Problem(ExitCode.INTEGRITY, error))
