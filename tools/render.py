"""What a person sees: reads as text and tables that no stored character can disturb."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from memoranda.projections.unseen import visible

if TYPE_CHECKING:
    # The pages of --help must not wait for the ledger.
    from memoranda.ledger.events import Actor, Conflict
    from memoranda.ledger.personal import AnyRecord, Source
    from memoranda.ledger.receipts import Receipt
    from memoranda.ledger.sweeping import SweepReport
    from memoranda.projections.audit import Finding
    from memoranda.projections.evidence import EvidenceRead, SourceEvidence
    from memoranda.projections.falling import Fall
    from memoranda.projections.history import OperationRead, RecordRead, RevisionRead
    from memoranda.projections.recall import Zone
    from memoranda.projections.remnants import Proof, Remnant
    from memoranda.projections.unfinished import OperationLine
    from memoranda.tools.tour import Step

SHORT_ID, LONG_ID = len("mem_") + 10, len("mem_") + 64
METER_CELLS = 20
COPIES_SHOWN = 100

_DEEDS = {
    "propose": "proposed",
    "publish": "published",
    "revise": "revised",
    "accept": "accepted",
    "reject": "rejected",
    "correct": "corrected",
    "retire": "retired",
    "reactivate": "brought back",
    "forget": "forgotten",
    "take_back": "taken back",
    "migrate": "taken over",
}


def line(text: str, style: str = "") -> Text:
    """One line of stored text: neither markup nor control characters work."""
    return Text(visible(text), style)


def when(time_text: str) -> str:
    """A time to the minute."""
    return f"{time_text[:16].replace('T', ' ')} UTC"


def short(record_id: str) -> str:
    """The part of a record's id that people read and type; of an earlier store's, the whole."""
    is_ours = record_id.startswith("mem_") and len(record_id) == LONG_ID
    return record_id[:SHORT_ID] if is_ours else visible(record_id)


def pairs(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Names on the left, what they stand for on the right."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def quoted(text: str) -> Panel:
    """Stored text inside a frame, so that its line breaks cannot pass for ours."""
    return Panel(Text(visible(text, keep="\n"), overflow="fold"), expand=False)


# -- records --------------------------------------------------------------------------------


def record_table(reads: Sequence["RecordRead"]) -> Table:
    """One line per record, as wide as the terminal."""
    table = Table(box=None, pad_edge=False, expand=True, header_style="bold")
    for name in ("record", "rev", "status", "tier", "newest source"):
        table.add_column(name, no_wrap=True)
    table.add_column("fact", no_wrap=True, overflow="ellipsis", ratio=1)
    for read in reads:
        record = read.record
        head = (short(record.id), str(record.revision))
        if record.status == "forgotten":
            table.add_row(*head, "forgotten", "", "", "")
            continue
        newest = max(source.occurred_at for source in record.sources)[:10]
        status = record.status if read.is_active or record.status != "accepted" else "inactive"
        table.add_row(*head, status, record.tier, newest, line(record.content))
    return table


def overdue_line(count: int) -> str:
    """That forgets are held past their windows, why, and what ends it."""
    away = "the host that wrote last has not come back"
    return f"{count} held past the window: {away}; `memoranda forgotten finish --now`"


def erasure_lines(receipt: "Receipt | SweepReport") -> list[RenderableType]:
    """How far a forget's erasure is, and what it did not take; nothing for other receipts."""
    copies = getattr(receipt, "copies", ())
    lines: list[RenderableType] = []
    if erased_at := getattr(receipt, "erased_at", None):
        lines.append(f"Erased from every file of the ledger, {when(erased_at)}.")
    for reason in getattr(receipt, "pending", ()):
        lines.append(Text(f"Not erased yet: {reason}.", "yellow"))
    if getattr(receipt, "pending", ()):
        lines.append("The ledger goes on by itself; `memoranda forgotten finish` tries at once.")
    # The captured messages come first, and may be many.
    hidden = len(copies) - COPIES_SHOWN
    lines += [line(f"Not taken along: {copy}.") for copy in copies[max(hidden, 0) :]]
    if hidden > 0:
        lines.append(f"Not taken along: {hidden} captured messages more; --json names them.")
    return lines


def bundle_lines(paths: Iterable[str]) -> list[RenderableType]:
    """The backup folders whose key bundle could not be rewritten."""
    return [line(f"Has an old key bundle still: {path}.", "yellow") for path in paths]


def fall_page(fall: "Fall") -> list[RenderableType]:
    """What a forget would take."""
    count = f"{len(fall.records)} records would fall, with every revision of theirs."
    if len(fall.records) == 1:
        count = "One record would fall, with every revision of it."
    if not fall.records:
        count = "No record would fall: nothing that is left rests on it. Is it spelled as stored?"
    table = Table(box=None, pad_edge=False, expand=True, header_style="bold")
    for name in ("record", "rev", "status"):
        table.add_column(name, no_wrap=True)
    table.add_column("fact", no_wrap=True, overflow="ellipsis", ratio=1)
    for it in fall.records:
        table.add_row(short(it.record_id), str(it.revision), it.status, line(it.content))
    page: list[RenderableType] = [count, *([table] if fall.records else [])]
    if fall.prepared:
        page.append(f"{len(fall.prepared)} operations without an end would be aborted with them:")
        page += [line(f"{it.operation_id}  {it.content or ''}") for it in fall.prepared]
    if fall.messages:
        page.append(f"{len(fall.messages)} captured messages, with --with-sources only:")
        page += [line(it) for it in fall.messages]
    return page


def operation_table(lines: Sequence["OperationLine"]) -> Table:
    """One line per operation, what it writes left out."""
    table = Table(box=None, pad_edge=False, expand=True, header_style="bold")
    for name in ("state", "age", "by", "position"):
        table.add_column(name, no_wrap=True)
    table.add_column("operation", overflow="fold", ratio=1)
    for it in lines:
        style = "bold yellow" if it.state == "prepared" else ""
        by = it.actor.role if it.actor else ""
        operation = line(it.operation_id or "of a forgotten record")
        table.add_row(Text(it.state, style), _age(it.age_s), by, str(it.position), operation)
    return table


def _age(seconds: int) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def operation_page(operation_id: str, read: "OperationRead") -> list[RenderableType]:
    """One operation: what became of it, and what it writes while that may be shown."""
    receipt, intent = read.receipt, read.intent or {}
    value = intent.get("value")
    content = value.get("content") if isinstance(value, dict) else None
    rows: list[tuple[str, RenderableType]] = [("state", read.state)]
    if receipt is not None:
        rows.append(("decided", when(receipt.decided_at)))
    if reason := getattr(receipt, "reason", None):
        rows.append(("reason", line(reason)))
    if record_id := getattr(receipt, "record_id", None) or intent.get("key"):
        rows.append(("record", line(str(record_id))))
    if read.current_revision is not None:
        rows.append(("now at", f"revision {read.current_revision}"))
    page: list[RenderableType] = [line(operation_id, "bold"), pairs(rows)]
    return [*page, quoted(content)] if isinstance(content, str) else page


def record_page(read: "RecordRead") -> list[RenderableType]:
    """Everything about one record as it stands."""
    record = read.record
    if record.status == "forgotten":
        return [line(record.id, "bold"), pairs([*_standing(read), *_blocked(record)])]
    rows: list[tuple[str, RenderableType]] = [
        ("key", line(read.key or "")),
        *_standing(read),
        ("evidence", record.evidence),
        ("updated by", line(record.updated_by_agent_id)),
    ]
    dates = (("effective", record.effective_at), ("expires", record.expires_at))
    rows += [(name, when(date)) for name, date in dates if date]
    rows += _named("sources", [_source(source) for source in record.sources])
    rows += _named(
        "rejected from",
        [line(f"{it.ref}: {it.reason} (revision {it.revision})") for it in record.rejections],
    )
    rows += [*_blocked(record), *_conflicts(read.conflicts)]
    return [line(record.id, "bold"), quoted(record.content), pairs(rows)]


def _standing(read: "RecordRead") -> list[tuple[str, RenderableType]]:
    record = read.record
    status: str = record.status
    if record.status != "forgotten":
        status += f", {record.tier}"
    if record.status == "accepted" and not read.is_active:
        status += ", outside its dates"
    revision = f"{record.revision}, decided {when(read.decided_at)}"
    return [("status", status), ("revision", revision)]


def _source(source: "Source") -> Text:
    kind = {"personal_message": "", "user_edit": "by hand, "}.get(source.kind, f"{source.kind}, ")
    return line(f"{kind}{source.ref}, {when(source.occurred_at)}")


def _blocked(record: "AnyRecord") -> list[tuple[str, RenderableType]]:
    return _named("blocked", [line(ref) for ref in record.blocked_sources])


def _conflicts(conflicts: Iterable["Conflict"]) -> list[tuple[str, RenderableType]]:
    texts = [
        line(
            f"{it.conflict_id}: {short(it.candidate_id)}"
            f" with {short(it.other_id) if it.other_id else 'no named record'}"
        )
        for it in conflicts
    ]
    return _named("open conflicts", texts)


def _named(name: str, values: Sequence[Text]) -> list[tuple[str, RenderableType]]:
    """Rows of one name, which is said once."""
    return [(name if place == 0 else "", value) for place, value in enumerate(values)]


def history_table(revisions: Sequence["RevisionRead"]) -> Table:
    """One row per revision: when, who, what."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("rev", "when", "who", "what"):
        table.add_column(name, no_wrap=name != "who", overflow="fold")
    table.add_column("fact", overflow="fold")
    for revision in revisions:
        table.add_row(
            str(revision.revision),
            when(revision.decided_at),
            line(_who(revision.actor)),
            line(_what(revision)),
            line(revision.content or ""),
        )
    return table


def _who(actor: "Actor | None") -> str:
    if actor is None:
        return "erased"
    match actor.role:
        case "client":
            return "you"
        case "primary":
            return f"session {actor.session_id}"
        case "item":
            return f"item {actor.item_id}"


def _what(revision: "RevisionRead") -> str:
    command: Mapping[str, object] = revision.command or {}
    if command.get("name") == "tier":
        return f"moved to {command.get('tier')}"
    return _DEEDS.get(str(command.get("name")), revision.status)


# -- evidence, audit ------------------------------------------------------------------------


def evidence_page(read: "EvidenceRead") -> list[RenderableType]:
    """A candidate above the original words it rests on."""
    record = read.candidate
    rows: list[tuple[str, RenderableType]] = [
        ("revision", str(read.inspected_revision)),
        ("evidence", record.evidence),
        ("proposed by", line(record.contributor_agent_id)),
        *_conflicts(read.conflicts),
        *_named(
            "also claimed", [line(f"{it.ref} by {short(it.record_id)}") for it in read.other_claims]
        ),
    ]
    shown: list[RenderableType] = [line(record.id, "bold"), quoted(record.content), pairs(rows)]
    for source in read.sources:
        shown += _source_page(source)
    return shown


def _source_page(source: "SourceEvidence") -> list[RenderableType]:
    if not source.ok or source.text is None:
        return [line(f"It cannot rest on {source.ref}: {source.code}", "red")]
    span = source.ref.partition("#")[2]
    start, end = (int(part) for part in span.split("-")) if span else (0, len(source.text))
    parts = (source.text[:start], source.text[start:end], source.text[end:])
    styles = ("", "reverse" if span else "", "")
    shown = Text(overflow="fold")
    for part, style in zip(parts, styles, strict=True):
        shown.append(visible(part, keep="\n"), style)
    title = f"It rests on {source.ref}, said {when(source.occurred_at or '')}"
    # Said again below the frame, since a pipe shows no style.
    cited = [line(f"Cited: {source.span_text}")] if span else []
    return [line(title), Panel(shown, expand=False), *cited]


def finding_table(findings: Sequence["Finding"]) -> Table:
    """One row per disagreement."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("position", "kind", "finding"):
        table.add_column(name, no_wrap=name != "finding", overflow="fold")
    for finding in findings:
        place = "" if finding.position is None else str(finding.position)
        table.add_row(place, finding.kind, line(finding.message))
    return table


def tour_page(steps: Sequence["Step"], following: Sequence[str]) -> list[RenderableType]:
    """The tour's steps under their headings, then what to try next."""
    shown: list[RenderableType] = []
    for number, step in enumerate(steps, 1):
        rows = Table.grid(*_folding(len(step.rows[0])), padding=(0, 2))
        for row in step.rows:
            rows.add_row(*(line(cell) for cell in row))
        rules = [line(f"{rule.code}: {rule.rule}", "dim") for rule in step.rules]
        below = Group(line(step.words, "italic"), Padding(rows, (0, 0, 0, 2)), *rules)
        shown += [Text(f"{number}  {step.title}", "bold"), Padding(below, (0, 0, 1, 3))]
    shown += [Text("Try next", "bold"), *(Text(f"   {command}") for command in following)]
    return shown


def _folding(count: int) -> list[Column]:
    """Columns that break long words, since Chinese text has no blanks to break at."""
    return [Column(overflow="fold") for _ in range(count)]


def zone_page(zone: "Zone") -> list[RenderableType]:
    """A zone of a step with its meter, its facts, and what was left out."""
    rows: list[tuple[str, RenderableType]] = [
        (short(fact.record_id), line(visible(fact.content))) for fact in zone.facts
    ]
    left_out = [
        line(f"left out: {short(it.record_id)}, {it.size_bytes:,} bytes, {it.reason}", "yellow")
        for it in zone.left_out
    ]
    more = [line("more facts of this zone were not looked at", "yellow")] if zone.is_more else []
    return [_meter(zone), pairs(rows) if rows else line("  nothing"), *left_out, *more]


def _meter(zone: "Zone") -> Text:
    filled = round(METER_CELLS * zone.used_bytes / zone.budget_bytes)
    bar = "#" * filled + "." * (METER_CELLS - filled)
    return Text.assemble(
        (f"{zone.name:6s} ", "bold"),
        f"[{bar}] {zone.used_bytes:,} of {zone.budget_bytes:,} bytes, {len(zone.facts)} facts",
    )


def _stands(remnant: "Remnant") -> str:
    return f"position {remnant.position}, {remnant.names or remnant.file}"


def proof_page(proof: "Proof") -> list[RenderableType]:
    """Where a text was looked for, and where it was found."""
    looked = (
        f"{proof.bodies_opened:,} bodies opened, {proof.bodies_erased:,} erased,"
        f" {proof.files_searched} files and {proof.bytes_searched:,} bytes searched"
    )
    if not proof.remnants:
        return [line("It is found nowhere.", "green"), line(looked)]
    rows: list[tuple[str, RenderableType]] = [
        (
            it.kind,
            line(f"{it.file} at {it.offset}" if it.kind == "file" else _stands(it)),
        )
        for it in proof.remnants
    ]
    return [pairs(rows), line(looked)]
