"""The commands that look after what a crash left open: operations, and settling one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from memoranda.ledger.errors import Refused
from memoranda.tools.cli_answers import Answer, Problem
from memoranda.tools.cli_run import Json, Run, run_of
from memoranda.tools.render import line, operation_page, operation_table

if TYPE_CHECKING:
    from memoranda.projections.unfinished import OperationLine
    from memoranda.tools.memory import Memory

LIST_MAX = 100


def operations(
    context: typer.Context,
    operation: Annotated[
        str | None,
        typer.Argument(metavar="OPERATION", help="Only this one, with what it means to write."),
    ] = None,
    *,
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only prepared, committed or aborted ones.")
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=LIST_MAX, help="At most so many.")
    ] = 20,
    _json: Json = False,
) -> Answer | Refused:
    """List operations: those without an end and their ages, then the latest that ended."""
    with run_of(context).memory() as memory:
        if operation is not None:
            return _one(memory, operation)
        found = memory.operations(state=state, limit=limit)
    if isinstance(found, Refused):
        return found
    shown: list[RenderableType] = [operation_table(found)] if found else ["There are none."]
    if hint := _hint(found):
        shown += ["", hint]
    return Answer({"operations": [it.model_dump(mode="json") for it in found]}, shown)


def _one(memory: "Memory", operation_id: str) -> Answer | Refused:
    read = memory.operation(operation_id)
    if isinstance(read, Refused):
        return read
    return Answer({"operation": read.model_dump(mode="json")}, operation_page(operation_id, read))


def _hint(found: "Sequence[OperationLine]") -> str | None:
    waiting = next((it.operation_id for it in found if it.state == "prepared"), None)
    if waiting is None:
        return None
    return (
        "A prepared operation holds its record until its writer repeats it. When nobody will:"
        f" `memoranda reconcile {waiting} --writers-stopped --reason TEXT`."
    )


def reconcile(
    context: typer.Context,
    operation: Annotated[
        str, typer.Argument(metavar="OPERATION", help="The operation that has no end.")
    ],
    *,
    writers_stopped: Annotated[
        bool, typer.Option("--writers-stopped", help="You have stopped whatever wrote it.")
    ] = False,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; kept with the decision.")] = "",
    _json: Json = False,
) -> Answer | Refused | Problem:
    """Settle an operation that a crash left open: its receipt is kept, or it is aborted.

    What it meant to write is gone with an abort, and its id stays used. Repeating it is harmless.
    """
    run = run_of(context)
    run.operation_id = operation
    with run.memory() as memory:
        settled = memory.reconcile(operation, writers_stopped=writers_stopped, reason=reason)
    if isinstance(settled, Refused):
        return _next_step(run, settled, operation)
    outcome = getattr(settled, "outcome", "committed")
    shown = {
        "aborted": "Aborted: nothing of it was written, and its record is free.",
        "committed": "It had been committed; its receipt stays.",
    }[outcome]
    fields = {"receipt": settled.model_dump(mode="json")}
    return Answer(fields, [shown, line(f"Operation {operation}", "dim")])


def _next_step(run: Run, refused: Refused, operation: str) -> Problem:
    problem = run.refused(refused)
    if refused.field not in {"writers_stopped", "reason"}:
        return problem
    next_step = f"`memoranda reconcile {operation} --writers-stopped --reason TEXT` says both."
    return Problem(problem.exit_code, {**problem.error, "next": next_step})
