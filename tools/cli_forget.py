"""Forgetting: one record, or all that came from one source, one session, or everything."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Group, RenderableType

from memoranda.ledger.errors import Refused
from memoranda.tools.cli_answers import Answer, ExitCode, Problem, put
from memoranda.tools.cli_run import (
    Expect,
    Json,
    Operation,
    RecordArgument,
    Run,
    progress_bar,
    run_of,
)
from memoranda.tools.cli_writes import Asked, Target, decided
from memoranda.tools.render import fall_page, line

if TYPE_CHECKING:
    from memoranda.ledger.receipts import ForgetReceipt, Receipt
    from memoranda.ledger.sweeping import SweepReport
    from memoranda.tools.memory import Memory

Why = Literal["unstated", "requested", "wrong", "outdated", "sensitive", "duplicate"]


def forget(
    context: typer.Context,
    record: Annotated[
        str | None,
        typer.Argument(
            metavar="RECORD", help="A record's id, or its beginning: mem_ and 6 digits."
        ),
    ] = None,
    *,
    source: Annotated[
        str | None, typer.Option(metavar="REF", help="All that ever rested on this source.")
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="All that ever rested on this session.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Every record; the ledger itself stays.")
    ] = False,
    with_sources: Annotated[
        bool, typer.Option("--with-sources", help="The captured messages it rests on as well.")
    ] = False,
    reason: Annotated[
        Why, typer.Option(help="Why, by a code: it stays readable with the tombstone.")
    ] = "unstated",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would fall.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before many fall.")] = False,
    expect: Expect = None,
    operation: Operation = None,
    _json: Json = False,
) -> Answer | Refused | Problem:
    """Erase a record for good: its keys and every revision's content.

    A tombstone stays, so that nothing can be remembered from the same words again. The captured
    messages that it rests on stay unless --with-sources takes them; copies of the files made
    before are out of reach. `memoranda forgotten prove TEXT` shows what is still found where.

    Many fall at once with --source, --session or --everything: they are shown first, and you are
    asked. An interrupted one goes on when it is asked for again.
    """
    is_many = source is not None or session is not None or everything
    if record is None and is_many:
        wish = Wish(source, session, everything, with_sources, reason, dry_run, yes, operation)
        return _many(context, wish)
    if record is None or is_many or dry_run:
        message = "one is named, or many by --source, --session or --everything"
        raise typer.BadParameter(message, context, param_hint="RECORD")

    def verb(memory: "Memory", to: Target) -> "Receipt | Refused":
        return _erased(memory, to, with_sources=with_sources, reason=reason)

    return decided(context, Asked(record, expect, operation), verb, "Forgotten for good:")


def _erased(
    memory: "Memory", to: Target, *, with_sources: bool, reason: Why
) -> "Receipt | Refused":
    def forgotten() -> "ForgetReceipt | Refused":
        return memory.forget(
            to.record_id,
            to.revision,
            with_sources=with_sources,
            reason=reason,
            operation_id=to.operation_id,
        )

    answer = forgotten()
    if isinstance(answer, Refused) or answer.erased_at is not None:
        return answer
    # This process ends here: it has nobody to share a key rotation with.
    memory.finish_forgets()
    again = forgotten()
    is_replay = {"replayed": answer.replayed}
    return again if isinstance(again, Refused) else again.model_copy(update=is_replay)


@dataclass(frozen=True, slots=True)
class Wish:
    """Many to be forgotten, as it was typed."""

    source: str | None
    session: str | None
    everything: bool
    with_sources: bool
    reason: Why
    dry_run: bool
    yes: bool
    operation: str | None


def _many(context: typer.Context, wish: Wish) -> Answer | Refused:
    run = run_of(context)
    with run.memory() as memory:
        fall = memory.falling(source=wish.source, session=wish.session, everything=wish.everything)
        if isinstance(fall, Refused):
            return fall
        if wish.dry_run:
            return Answer({"would_fall": fall.model_dump(mode="json")}, fall_page(fall))
        if not wish.yes:
            _ask(context, run, fall_page(fall), "Forget all of it for good?")
        with progress_bar("Forgetting") as progress:
            report = memory.forget_many(
                fall,
                with_sources=wish.with_sources,
                reason=wish.reason,
                operation_id=run.operation(wish.operation),
                progress=progress,
            )
    return report if isinstance(report, Refused) else _told(report)


def _ask(context: typer.Context, run: Run, page: list[RenderableType], question: str) -> None:
    if run.as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        message = "needed here: it says that nobody is asked"
        raise typer.BadParameter(message, context, param_hint="--yes")
    put(Group(*page))
    if not typer.confirm(question, err=True):
        raise typer.Exit(ExitCode.REFUSED)


def _told(report: "SweepReport") -> Answer:
    shown: list[RenderableType] = [f"{report.forgotten} records forgotten for good."]
    if report.messages:
        shown.append(f"{report.messages} captured messages went with them.")
    if report.aborted:
        shown.append(f"{report.aborted} operations without an end were aborted.")
    shown += [line(f"{count} refused: {code}", "yellow") for code, count in report.refused.items()]
    shown += [line(f"Not erased yet: {reason}.", "yellow") for reason in report.pending]
    return Answer({"report": report.model_dump(mode="json")}, shown)


def take_back(
    context: typer.Context,
    record: RecordArgument,
    *,
    held: Annotated[
        int | None,
        typer.Option(
            metavar="REVISION", min=1, help="What this revision said, not the newest held."
        ),
    ] = None,
    expect: Expect = None,
    operation: Operation = None,
    _json: Json = False,
) -> Answer | Refused:
    """Take back what a model's session has forgotten, while it is still held for you.

    The record is remembered again, as your own words among the details. How long forgets are held
    says the setting forget_window_hours; `memoranda forgotten list` shows what is held.
    """

    def verb(memory: "Memory", to: Target) -> "Receipt | Refused":
        return memory.take_back(
            to.record_id, to.revision, held_revision=held, operation_id=to.operation_id
        )

    return decided(context, Asked(record, expect, operation), verb, "Taken back:")


def destroy(
    context: typer.Context,
    space: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of the space, repeated to be sure.")
    ],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    _json: Json = False,
) -> Answer | Refused:
    """End the whole ledger for good: every fact, every message and every key.

    What stays is the chain of what happened, which says nothing of what it was about.
    """
    run = run_of(context)
    with run.memory() as memory:
        counts = memory.status()
        records = sum(counts.records.values())
        words = f"{counts.space}: {records} records, {counts.position} events, {counts.keys} keys."
        if not yes:
            _ask(context, run, [words], "End this ledger for good?")
        keys = memory.forget_space(space)
    if isinstance(keys, Refused):
        return keys
    shown = [words, "All of it is destroyed; `memoranda audit verify` still checks the chain."]
    return Answer({"space": space, "records": records, "keys": keys}, shown)
