"""The commands that recall: a step's memory, search, query, and where a text is still found."""

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import RenderableType

from memoranda.ledger.errors import Refused
from memoranda.projections.unseen import visible
from memoranda.tools.cli_answers import Answer
from memoranda.tools.cli_run import Json, run_of
from memoranda.tools.render import line, overdue_line, pairs, proof_page, record_table, zone_page

if TYPE_CHECKING:
    from memoranda.projections.history import RecordRead
    from memoranda.projections.query import QueryPage


def recall(
    context: typer.Context,
    query: Annotated[str, typer.Argument(metavar="[QUERY]", help="The matter at hand.")] = "",
    *,
    step: Annotated[str | None, typer.Option(metavar="ID", help="The step's id.")] = None,
    render: Annotated[
        int | None,
        typer.Option(metavar="BYTES", min=0, help="The one block of text for a model instead."),
    ] = None,
    _json: Json = False,
) -> Answer | Refused:
    """Show what an assistant should know for one step: core, recent and detail, under budgets."""
    with run_of(context).memory() as memory:
        recalled = memory.recall(query, step=step)
    if isinstance(recalled, Refused):
        return recalled
    if render is not None:
        block = recalled.render(render)
        shown_block = [line(row) for row in block.text.splitlines()]
        return Answer(block.model_dump(mode="json"), shown_block)
    shown: list[RenderableType] = []
    for zone in recalled.zones:
        shown += [*zone_page(zone), ""]
    return Answer(recalled.model_dump(mode="json"), shown[:-1])


def search(
    context: typer.Context,
    words: Annotated[str, typer.Argument(help="Words of the fact, in any order and language.")],
    *,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100, help="At most so many.")] = 10,
    _json: Json = False,
) -> Answer | Refused:
    """Find active facts by their words, the best first."""
    with run_of(context).memory() as memory:
        found = memory.search(words, limit=limit)
    if isinstance(found, Refused):
        return found
    fields = {"found": [it.model_dump(mode="json") for it in found]}
    shown = record_table([it.found for it in found]) if found else line("Nothing matches.")
    return Answer(fields, [shown])


def query(  # options are the query's filters
    context: typer.Context,
    *,
    text: Annotated[str | None, typer.Option(help="Every word stands in the fact.")] = None,
    tier: Annotated[Literal["core", "detail"] | None, typer.Option()] = None,
    status: Annotated[
        Literal["candidate", "accepted", "retired", "rejected", "forgotten"] | None, typer.Option()
    ] = None,
    zone: Annotated[Literal["core", "recent", "detail"] | None, typer.Option()] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Said then or later.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Said then or before.")] = None,
    include_all: Annotated[bool, typer.Option("--all", help="Inactive records too.")] = False,
    as_of: Annotated[
        int | None,
        typer.Option("--as-of", metavar="POSITION", min=1, help="As records stood there."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100)] = 20,
    cursor: Annotated[str | None, typer.Option(help="The next page's, as printed.")] = None,
    _json: Json = False,
) -> Answer | Refused:
    """List records by exact filters, the newest source first, page by page."""
    with run_of(context).memory() as memory:
        page = memory.query(
            text=text,
            tier=tier,
            status=status,
            zone=zone,
            since=since,
            until=until,
            include_inactive=include_all,
            as_of=as_of,
            limit=limit,
            cursor=cursor,
        )
    return page if isinstance(page, Refused) else _page(page)


def _page(page: "QueryPage") -> Answer:
    shown: list[RenderableType] = [
        record_table(page.records) if page.records else line("Nothing matches.")
    ]
    if page.next_cursor:
        shown += ["", line(f"More: the same filters with --cursor {page.next_cursor}")]
    return Answer(page.model_dump(mode="json"), shown)


def prove(
    context: typer.Context,
    text: Annotated[str, typer.Argument(help="The text to look for; - reads it from a pipe.")],
    *,
    _json: Json = False,
) -> Answer | Refused:
    """Search every body that opens and every file for a text, and say where it is still found."""
    with run_of(context).memory() as memory:
        wanted = sys.stdin.read().removesuffix("\n") if text == "-" else text
        proof = memory.remnants(wanted)
    if isinstance(proof, Refused):
        return proof
    return Answer(proof.model_dump(mode="json"), proof_page(proof))


def forgotten(
    context: typer.Context,
    *,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=100)] = 100,
    cursor: Annotated[str | None, typer.Option(help="The next page's, as printed.")] = None,
    _json: Json = False,
) -> Answer | Refused:
    """List what was forgotten: tombstones, which tell nothing of what they buried."""
    with run_of(context).memory() as memory:
        page = memory.query(status="forgotten", include_inactive=True, limit=limit, cursor=cursor)
        overdue = memory.status().overdue
    if isinstance(page, Refused):
        return page
    rows = [(visible(read.record.id), line(_burial(read))) for read in page.records]
    shown = [pairs(rows) if rows else line("Nothing was forgotten.")]
    if any(read.forgotten and read.forgotten.held for read in page.records):
        shown.append(line("`memoranda forgotten take-back RECORD` gives back what is held."))
    if overdue:
        shown.append(line(f"{overdue_line(overdue)}.", "yellow"))
    return Answer({**page.model_dump(mode="json"), "overdue": overdue}, shown)


def _burial(read: "RecordRead") -> str:
    """When, why and by whom, and until when the person may take it back."""
    words = f"revision {read.record.revision}, forgotten {read.decided_at}"
    if read.forgotten is None:
        return words
    actor, held = read.forgotten.actor, read.forgotten.held
    who = "you" if actor.role == "client" else f"session {actor.session_id} ({actor.agent_id})"
    copies = (f", revision {it.revision} held for you until {it.until}" for it in held)
    return f"{words}, {read.forgotten.reason}, by {who}{''.join(copies)}"


def finish(
    context: typer.Context,
    *,
    now: Annotated[
        bool, typer.Option("--now", help="What is held for you to take back, too.")
    ] = False,
    _json: Json = False,
) -> Answer | Refused:
    """Finish every erasure that was held up; the ledger also does so by itself.

    With --now it no longer waits for the window in which you can take a forget back.
    """
    with run_of(context).memory() as memory:
        reasons = memory.release_held() if now else memory.finish_forgets()
    if isinstance(reasons, Refused):
        return reasons
    shown = [line(f"Not erased yet: {reason}.", "yellow") for reason in reasons]
    done = line("Everything that was forgotten is erased from every file.")
    return Answer({"pending": list(reasons)}, shown or [done])


def rebuild(context: typer.Context, *, _json: Json = False) -> Answer:
    """Compute every view anew from the log; nothing can be lost by it."""
    with run_of(context).memory() as memory:
        events = memory.rebuild()
    return Answer({"events": events}, [line(f"Every view was computed anew from {events} events.")])
