"""The commands that look: records, candidates, evidence, status and the audit."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType

from memoranda.ledger.errors import Refused, RefusedError
from memoranda.tools.cli_answers import Answer, ExitCode, Problem
from memoranda.tools.cli_run import Json, RecordArgument, Run, run_of
from memoranda.tools.render import (
    evidence_page,
    finding_table,
    history_table,
    line,
    overdue_line,
    pairs,
    record_page,
    record_table,
    short,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

    from memoranda.projections.audit import AuditReport

LIST_MAX = 100

Limit = Annotated[
    int, typer.Option(metavar="N", min=1, max=LIST_MAX, help="At most so many records.")
]


def show(
    context: typer.Context,
    record: Annotated[
        str | None,
        typer.Argument(metavar="RECORD", help="A record's id, or its beginning."),
    ] = None,
    *,
    key: Annotated[str | None, typer.Option(help="The fact's key, in place of its id.")] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Each revision: when, who, what.")
    ] = False,
    _json: Json = False,
) -> Answer | Refused:
    """Show one record, inactive ones too."""
    if (record is None) == (key is None):
        raise typer.BadParameter("either an id or --key names it", context, param_hint="RECORD")
    run = run_of(context)
    with run.memory() as memory:
        found = run.record(memory, record) if record is not None else run.key(key or "")
        if isinstance(found, Refused):
            return found
        read = memory.read(found, include_inactive=True)
        if isinstance(read, Refused):
            return read
        fields, shown = read.model_dump(mode="json"), record_page(read)
        if history:
            revisions = memory.revisions(found)
            if isinstance(revisions, Refused):
                return revisions
            fields["revisions"] = _dumped(revisions)
            shown += ["", history_table(revisions)]
    return Answer(fields, shown)


def list_records(
    context: typer.Context,
    *,
    include_all: Annotated[
        bool, typer.Option("--all", help="Inactive records too: candidates, retired, forgotten …")
    ] = False,
    limit: Limit = LIST_MAX,
    _json: Json = False,
) -> Answer | Refused:
    """List what is remembered, the newest source first."""
    with run_of(context).memory() as memory:
        reads = memory.records(include_inactive=include_all, limit=limit)
    if isinstance(reads, Refused):
        return reads
    shown: list[RenderableType] = [record_table(reads)]
    if not reads:
        shown = ["Nothing is remembered yet: `memoranda remember TEXT` keeps a fact."]
    if len(reads) == limit:
        shown += ["", f"No more than {limit} are listed; any other is shown by its id or key."]
    return Answer({"records": _dumped(reads)}, shown)


def candidates(
    context: typer.Context, *, limit: Limit = LIST_MAX, _json: Json = False
) -> Answer | Refused:
    """List what waits for acceptance, the oldest first."""
    with run_of(context).memory() as memory:
        reads = memory.candidates(limit=limit)
    if isinstance(reads, Refused):
        return reads
    shown: list[RenderableType] = ["Nothing waits for acceptance."]
    if reads:
        name = short(reads[0].record.id)
        hint = f"`memoranda evidence {name}` shows what one rests on; then accept or reject it."
        shown = [record_table(reads), "", hint]
    return Answer({"candidates": _dumped(reads)}, shown)


def evidence(
    context: typer.Context, record: RecordArgument, *, _json: Json = False
) -> Answer | Refused:
    """Show a candidate beside the original words it rests on."""
    run = run_of(context)
    with run.memory() as memory:
        found = run.record(memory, record)
        read = found if isinstance(found, Refused) else memory.evidence(found)
    if isinstance(read, Refused):
        return read
    name = short(read.candidate.id)
    hint = (
        f"`memoranda accept {name} --expect {read.inspected_revision}` keeps it,"
        f" `memoranda reject {name} --reason TEXT` does not."
    )
    return Answer(read.model_dump(mode="json"), [*evidence_page(read), "", hint])


def status(context: typer.Context, *, _json: Json = False) -> Answer | Refused:
    """Count what is there; nothing personal."""
    run = run_of(context)
    with run.memory() as memory:
        counts = memory.status()
    settings = run.settings()
    folders = {
        "data": settings.data.expanduser() / counts.space,
        "state": settings.state.expanduser() / counts.space,
    }
    disk = {name: {"folder": str(path), "bytes": _bytes_in(path)} for name, path in folders.items()}
    waiting, left = counts.records.get("candidate", 0), counts.unfinished
    records = ", ".join(f"{count} {status}" for status, count in sorted(counts.records.items()))
    shown = pairs(
        [
            ("space", counts.space),
            ("events", str(counts.position)),
            ("records", records or "none"),
            ("waiting", f"{waiting}: `memoranda candidates`" if waiting else "nothing"),
            *([("unfinished", f"{left}: `memoranda operations`")] if left else []),
            *([("overdue", overdue_line(counts.overdue))] if counts.overdue else []),
            ("keys", f"{counts.keys}, under key epoch {counts.key_epoch}"),
            *((name, line(f"{it['folder']}, {it['bytes']:,} bytes")) for name, it in disk.items()),
        ]
    )
    fields = {**counts.model_dump(mode="json"), "candidates": waiting, "disk": disk}
    return Answer(fields, [shown])


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        # Another process may close meanwhile, which takes its write-ahead log away.
        with suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


# -- audit ----------------------------------------------------------------------------------


def verify(
    context: typer.Context,
    *,
    index: Annotated[
        bool, typer.Option("--index", help="The search index too, which takes the longest.")
    ] = False,
    _json: Json = False,
) -> Answer:
    """Recompute the whole log: chain, tags, commitments, receipts, keys and views."""
    report = _verified(run_of(context), with_index=index)
    rows = [
        ("space", report.space),
        ("events", f"{report.events}, to position {report.position}"),
        ("bodies", f"{report.opened} opened, {report.erased} erased"),
        ("records", str(report.records)),
        ("key epoch", str(report.key_epoch)),
        ("chain", report.chain),
    ]
    fields = {"report": report.model_dump(mode="json")}
    if not report.findings:
        whole = line("The log is whole: everything that can be recomputed agrees.", "green")
        return Answer(fields, [pairs(rows), "", whole])
    count = f"more than {len(report.findings)}" if report.is_truncated else len(report.findings)
    error = {
        "code": "integrity_finding",
        "message": f"the log is not whole: {count} findings",
        "next": "Keep the files as they are; restore a backup beside them and compare.",
    }
    shown: list[RenderableType] = [pairs(rows), "", finding_table(report.findings)]
    return Answer(fields, shown, Problem(ExitCode.INTEGRITY, error))


def _verified(run: Run, *, with_index: bool) -> "AuditReport":
    """The audit of the ledger, or of the chain alone once its space was forgotten."""
    from memoranda.ledger.ending import FORGOTTEN  # noqa: PLC0415  # not for --help
    from memoranda.projections.audit import verify_chain  # noqa: PLC0415

    try:
        with run.memory() as memory:
            return memory.audit.verify(with_index=with_index)
    except RefusedError as error:
        if error.refused != FORGOTTEN:
            raise
        return verify_chain(run.place(), run.stamps)


def explain(
    context: typer.Context, record: RecordArgument, *, _json: Json = False
) -> Answer | Refused:
    """Tell a record's whole story: who did what, when, on whose authority."""
    run = run_of(context)
    with run.memory() as memory:
        found = run.record(memory, record)
        story = found if isinstance(found, Refused) else memory.explain(found)
    if isinstance(story, Refused):
        return story
    fields = {"record_id": run.record_id, "story": list(story)}
    return Answer(fields, [Group(*(line(sentence) for sentence in story))])


def _dumped(values: Iterable["BaseModel"]) -> Sequence[dict[str, object]]:
    return [value.model_dump(mode="json") for value in values]
