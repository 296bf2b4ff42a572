"""The commands that change what is remembered: facts, and decisions about records."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group

from memoranda.ledger.errors import Refusal, Refused
from memoranda.tools.cli_answers import Answer, ExitCode, Problem, put
from memoranda.tools.cli_run import Expect, Json, Operation, RecordArgument, Run, run_of
from memoranda.tools.render import erasure_lines, evidence_page, line, short

if TYPE_CHECKING:
    from memoranda.ledger.events import Tier
    from memoranda.ledger.receipts import Receipt
    from memoranda.tools.memory import Memory

TEXT_CHARACTERS_MAX = 100_000

Text = Annotated[str, typer.Argument(metavar="TEXT", help="The fact; - reads it from a pipe.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; kept with the record.")]
Effective = Annotated[
    str | None, typer.Option(metavar="TIME", help="Holds from then on: a date, or RFC 3339 in UTC.")
]
Expires = Annotated[
    str | None, typer.Option(metavar="TIME", help="Holds until then: a date, or RFC 3339 in UTC.")
]
Date = Annotated[str, typer.Option(metavar="TIME", help="A new date; none clears it.")]

PLAIN_REASON = "decided by the person"


# -- facts ----------------------------------------------------------------------------------


def remember(
    context: typer.Context,
    text: Text,
    *,
    key: Annotated[
        str | None, typer.Option(help="What the fact is about; its own text unless given.")
    ] = None,
    effective: Effective = None,
    expires: Expires = None,
    operation: Operation = None,
    _json: Json = False,
) -> Answer | Refused | Problem:
    """Keep a fact that you state."""
    from memoranda.tools.writing import key_of  # noqa: PLC0415  # not for --help

    run = run_of(context)
    fact = _read(text)
    with run.memory(create=True) as memory:
        receipt = memory.remember(
            fact,
            key=key,
            effective_at=effective,
            expires_at=expires,
            operation_id=run.operation(operation),
        )
        if isinstance(receipt, Refused) and receipt.refusal is Refusal.REVISION_CONFLICT:
            return _already_known(run, receipt, key_of(fact) if key is None else key)
    return _answer(receipt, "Remembered")


def _already_known(run: Run, refused: Refused, key: str) -> Problem:
    """The way on when the key has a record: nobody wants to find its id first."""
    problem = run.refused(refused)
    name = short(str(run.key(key)))
    next_step = (
        f"The fact has a record already: `memoranda show {name}` shows it,"
        f" `memoranda correct {name} TEXT` changes it."
    )
    return Problem(problem.exit_code, {**problem.error, "next": next_step})


def _read(text: str) -> str:
    """The text itself, or what stands on standard input; one character over the limit shows."""
    return sys.stdin.read(TEXT_CHARACTERS_MAX).removesuffix("\n") if text == "-" else text


# -- decisions about a record ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """A decision as it was typed."""

    record: str
    expect: int | None
    operation: str | None


@dataclass(frozen=True, slots=True)
class Target:
    """The record that a decision is about, at the revision it must have."""

    record_id: str
    revision: int
    operation_id: str


Verb = Callable[["Memory", Target], "Receipt | Refused"]
Look = Callable[[Run, "Memory", str], "int | Refused"]


def accept(
    context: typer.Context,
    record: RecordArgument,
    *,
    expect: Annotated[
        int | None,
        typer.Option(
            metavar="REVISION",
            min=1,
            help="The revision that `memoranda evidence` showed. On a terminal, without it, the"
            " evidence is shown and you are asked.",
        ),
    ] = None,
    operation: Operation = None,
    _json: Json = False,
) -> Answer | Refused:
    """Accept a candidate exactly as its evidence showed it."""

    def verb(memory: "Memory", to: Target) -> "Receipt | Refused":
        return memory.accept(to.record_id, to.revision, operation_id=to.operation_id)

    def look(run: Run, memory: "Memory", record_id: str) -> int | Refused:
        if run.as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            message = "needed here: the revision that `memoranda evidence` showed"
            raise typer.BadParameter(message, context, param_hint="--expect")
        read = memory.evidence(record_id)
        if isinstance(read, Refused):
            return read
        put(Group(*evidence_page(read)))
        if not typer.confirm("Accept it?", err=True):
            raise typer.Exit(ExitCode.REFUSED)
        return read.inspected_revision

    return decided(context, Asked(record, expect, operation), verb, "Accepted", look)


def reject(
    context: typer.Context,
    record: RecordArgument,
    *,
    reason: Reason = PLAIN_REASON,
    expect: Expect = None,
    operation: Operation = None,
    _json: Json = False,
) -> Answer | Refused:
    """Reject a candidate: nobody may propose it from those words again."""

    def verb(memory: "Memory", to: Target) -> "Receipt | Refused":
        return memory.reject(to.record_id, to.revision, reason, operation_id=to.operation_id)

    return decided(context, Asked(record, expect, operation), verb, "Rejected")


def correct(
    context: typer.Context,
    record: RecordArgument,
    text: Text,
    *,
    effective: Date = "keep",
    expires: Date = "keep",
    expect: Expect = None,
    operation: Operation = None,
    _json: Json = False,
) -> Answer | Refused:
    """Give a record new words; what it said before stays in its history."""
    fact = _read(text)

    def verb(memory: "Memory", to: Target) -> "Receipt | Refused":
        return memory.correct(
            to.record_id,
            to.revision,
            fact,
            effective_at=None if effective == "none" else effective,
            expires_at=None if expires == "none" else expires,
            operation_id=to.operation_id,
        )

    return decided(context, Asked(record, expect, operation), verb, "Corrected")


def add(
    context: typer.Context,
    record: RecordArgument,
    *,
    expect: Expect = None,
    operation: Operation = None,
    _json: Json = False,
) -> Answer | Refused:
    """Put a record into core: the few facts that every step recalls."""
    return _moved(context, Asked(record, expect, operation), "core", "Now in core:")


def drop(
    context: typer.Context,
    record: RecordArgument,
    *,
    expect: Expect = None,
    operation: Operation = None,
    _json: Json = False,
) -> Answer | Refused:
    """Take a record out of core; it stays remembered."""
    return _moved(context, Asked(record, expect, operation), "detail", "No longer in core:")


def _moved(context: typer.Context, asked: Asked, tier: "Tier", done: str) -> Answer | Refused:
    def verb(memory: "Memory", to: Target) -> "Receipt | Refused":
        return memory.choose_tier(to.record_id, to.revision, tier, operation_id=to.operation_id)

    return decided(context, asked, verb, done)


def retire(
    context: typer.Context,
    record: RecordArgument,
    *,
    reason: Reason = PLAIN_REASON,
    expect: Expect = None,
    operation: Operation = None,
    _json: Json = False,
) -> Answer | Refused:
    """Take a record out of recall; its content stays, and reactivate brings it back."""

    def verb(memory: "Memory", to: Target) -> "Receipt | Refused":
        return memory.retire(to.record_id, to.revision, reason, operation_id=to.operation_id)

    return decided(context, Asked(record, expect, operation), verb, "Retired")


def reactivate(
    context: typer.Context,
    record: RecordArgument,
    *,
    expect: Expect = None,
    operation: Operation = None,
    _json: Json = False,
) -> Answer | Refused:
    """Bring a retired record back."""

    def verb(memory: "Memory", to: Target) -> "Receipt | Refused":
        return memory.reactivate(to.record_id, to.revision, operation_id=to.operation_id)

    return decided(context, Asked(record, expect, operation), verb, "Brought back")


def undo(
    context: typer.Context, *, operation: Operation = None, _json: Json = False
) -> Answer | Refused:
    """Take your own last command back, by one that says the opposite; history keeps both.

    A forget cannot be taken back, and neither can a decision about a candidate.
    """
    from memoranda.tools.undoing import undo as undone  # noqa: PLC0415  # not for --help

    run = run_of(context)
    with run.memory() as memory:
        operation_id = run.operation(operation)
        return _answer(undone(memory, operation_id=operation_id), "Taken back:")


def decided(
    context: typer.Context, asked: Asked, verb: Verb, done: str, look: Look | None = None
) -> Answer | Refused:
    """One decision: find the record, know its revision, decide, answer with the receipt."""
    run = run_of(context)
    with run.memory() as memory:
        record_id = run.record(memory, asked.record)
        if isinstance(record_id, Refused):
            return record_id
        operation_id = run.operation(asked.operation)
        named = asked.expect or _revision_at_first(memory, asked.operation)
        revision = named or (look or _current_revision)(run, memory, record_id)
        if isinstance(revision, Refused):
            return revision
        return _answer(verb(memory, Target(record_id, revision, operation_id)), done)


def _revision_at_first(memory: "Memory", operation_id: str | None) -> int | None:
    """The revision that a retried operation named at first: the same words must mean the same."""
    known = memory.operation(operation_id) if operation_id else None
    if known is None or isinstance(known, Refused):
        return None
    return getattr(known.receipt, "from_revision", None)


def _current_revision(_run: Run, memory: "Memory", record_id: str) -> int | Refused:
    read = memory.read(record_id, include_inactive=True)
    return read if isinstance(read, Refused) else read.record.revision


def _answer(receipt: "Receipt | Refused", done: str) -> Answer | Refused:
    if isinstance(receipt, Refused):
        return receipt
    name = short(receipt.record_id or "a forgotten record")
    shown = [f"{done} {name}, revision {receipt.to_revision}."]
    if receipt.replayed:
        shown = [f"Done before; the first answer: {name}, revision {receipt.to_revision}."]
    return Answer(
        {"receipt": receipt.model_dump(mode="json")},
        [*shown, *erasure_lines(receipt), line(f"Operation {receipt.operation_id}", "dim")],
    )
