"""An earlier store of personal records: one file of JSON lines, read and never changed (PM 6).

A line that is no line of such a store breaks the whole of it (F26); a record that breaks a rule is
refused alone. No answer repeats what a line says.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pydantic_core import PydanticCustomError

from memoranda.ledger.asking import ReadRecord
from memoranda.ledger.commands import (
    PLAIN_NAME,
    REVISION_MAX,
    Reason,
    RecordId,
    Ref,
    admit,
    normal_key,
)
from memoranda.ledger.errors import Refusal, Refused, RefusedError
from memoranda.ledger.events import Json, Value
from memoranda.ledger.personal import (
    CONTRIBUTIONS_MAX,
    RECORD_BYTES_MAX,
    AnyRecord,
    Contribution,
    Record,
    Rejection,
    Source,
    read_record,
    record_id_of,
    source_refs,
)
from memoranda.ledger.sources import MessageRef, first_overlap, parse_ref, subject
from memoranda.ledger.stamps import parse_time, time_text

FORMAT = "personal-records/1"
EXPORT_FORMAT = "memoranda-export/1"
"""A file that `memoranda export` wrote: it has one owner, so there is no move to declare."""

STORAGE, OLD_OWNER, NEW_OWNER = "personal.records", "memory", "personal"
KINDS = frozenset({"record", "conflict", "forgotten_source"})

LINE_BYTES_MAX = 4 * 1024 * 1024
"""Half of what a sealed body may hold: every line that can be read can be kept."""

LEGACY_REVISION_MAX = REVISION_MAX // 2
"""Leaves a record room for as many revisions again."""

UNKNOWN = "legacy"
"""Stands for an agent or session that the earlier store does not name."""

OTHER_NAMES, NAMES_MAX = "*", 100
"""Counts the unknown fields whose names are not said again."""


class ConflictMark(Value):
    """An open conflict of the earlier store."""

    candidate_id: RecordId
    other_id: RecordId | None = None
    reason: Reason


class SourceMark(Value):
    """A source that was forgotten in the earlier store."""

    ref: Ref


class Line(NamedTuple):
    """One line of the store behind the first."""

    number: int
    kind: str
    fields: Json


class LegacyStore:
    """The file of an earlier store; `digest` names its bytes once they were read."""

    def __init__(self, path: Path, space: str) -> None:
        self._path = path
        self._space = space
        self.digest: str | None = None

    def lines(self) -> Iterator[Line]:
        """Every line behind the first; raises RefusedError (F26) for what is no such store."""
        digest = hashlib.sha256()
        is_first = True
        for number, raw in self._numbered():
            digest.update(raw)
            if not raw.strip():
                continue
            fields = _read(raw)
            if isinstance(fields, str):
                raise broken(f"line {number}", fields)
            if is_first:
                _check_store(fields, self._space)
                is_first = False
                continue
            kind = fields.pop("kind", None)
            if not isinstance(kind, str) or kind not in KINDS:
                raise broken(f"line {number}", "is of a kind that no such store has")
            yield Line(number, kind, fields)
        if is_first:
            raise broken("file", "is empty")
        if self.digest not in {None, digest.hexdigest()}:
            raise broken("file", "was changed while it was read")
        self.digest = digest.hexdigest()

    def read_digest(self) -> str:
        """What names the file's bytes, whatever they say."""
        digest = hashlib.sha256()
        for _, raw in self._numbered():
            digest.update(raw)
        return digest.hexdigest()

    def _numbered(self) -> Iterator[tuple[int, bytes]]:
        """Every line with its number; of a too long one the beginning."""
        try:
            # A pipe or device would be waited for, and cannot be read twice.
            if not self._path.is_file():
                raise broken("file", "is no file that can be found")
            with self._path.open("rb") as stream:
                yield from enumerate(iter(partial(stream.readline, LINE_BYTES_MAX), b""), 1)
        except (OSError, ValueError) as error:
            raise broken("file", "cannot be read") from error


def broken(field: str, message: str) -> RefusedError:
    """The refusal of a whole store, by its place."""
    return RefusedError(Refused(Refusal.MIGRATION_FAILED, field, message))


def _read(raw: bytes) -> Json | str:
    """The object on a line, or what is wrong with it."""
    if len(raw) == LINE_BYTES_MAX and not raw.endswith(b"\n"):
        return f"has more than {LINE_BYTES_MAX} bytes"
    try:
        fields = _JSON.decode(raw.decode())
    except ValueError:
        return "is cut short, is not JSON, or names a field twice"
    except RecursionError:
        return "is nested too deeply"
    return fields if isinstance(fields, dict) else "is no JSON object"


def _unique(pairs: list[tuple[str, object]]) -> Json:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field stands twice")
    return fields


def _no_constant(_: str) -> object:
    raise ValueError("JSON knows neither NaN nor infinity")


_JSON = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def _check_store(fields: Json, space: str) -> None:
    """The first line says whose store it is, and that both packages know of the move."""
    # A list may stand there, which no set takes.
    if fields.get("kind") != "store" or fields.get("format") not in (FORMAT, EXPORT_FORMAT):
        message = f"does not say that this is a store of the format {FORMAT} or {EXPORT_FORMAT}"
        raise broken("line 1", message)
    if fields.get("user_space_id") != space:
        raise broken("user_space_id", "is another space")
    if fields["format"] == EXPORT_FORMAT:
        return
    declared = fields.get("ownership")
    ownership = declared if isinstance(declared, list) else []
    for package, move, other in (
        (OLD_OWNER, "moves_to", NEW_OWNER),
        (NEW_OWNER, "moves_from", OLD_OWNER),
    ):
        if {"package": package, "storage": STORAGE, move: other} not in ownership:
            message = f"the package {package} does not declare that {STORAGE} {move} {other}"
            raise broken("ownership", message)


# -- what a first reading shows ---------------------------------------------------------------


class Ranges:
    """Refs by message, each with the record that holds it."""

    def __init__(self) -> None:
        self._held: dict[str, list[tuple[str, MessageRef | None, str]]] = {}

    def add(self, ref: str, holder: str = "") -> None:
        self._held.setdefault(subject(ref), []).append((ref, parse_ref(ref), holder))

    def holder(self, ref: str) -> str | None:
        """Who holds a range that overlaps; messages by their code points, other refs as texts."""
        parsed = parse_ref(ref)
        for text, range_, holder in self._held.get(subject(ref), ()):
            if parsed.overlaps(range_) if parsed and range_ else ref == text:
                return holder
        return None


@dataclass
class Survey:
    """A store as its first reading shows it: so many lines, what it blocks, and which line counts.

    Of the lines of one id the tombstone counts, else the highest revision; of equals the first.
    """

    lines: int = 0
    blocks: Ranges = field(default_factory=Ranges)
    _best: dict[str, tuple[bool, int, int]] = field(default_factory=dict)

    def chosen(self, record_id: str) -> int | None:
        """The number of the line that counts."""
        best = self._best.get(record_id)
        return -best[2] if best else None

    def is_forgotten(self, record_id: str) -> bool:
        """Whether the store says anywhere that the record is forgotten."""
        return record_id in self._best and self._best[record_id][0]

    def note(self, line: Line) -> None:
        self.lines += 1
        # A block holds for what stands before it in the file, too.
        for ref in blocked_by(line):
            self.blocks.add(ref)
        value = line.fields.get("value")
        if line.kind != "record" or not isinstance(value, dict):
            return
        if (record_id := id_of(value)) is not None:
            given = value.get("revision")
            revision = given if isinstance(given, int) else 0
            rank = (is_tombstone(value), revision, -line.number)
            self._best[record_id] = max(rank, self._best.get(record_id, rank))


def surveyed(legacy: LegacyStore) -> Survey:
    """The whole store, read once."""
    survey = Survey()
    for line in legacy.lines():
        survey.note(line)
    return survey


# -- what a line means here -----------------------------------------------------------------


def id_of(value: Json) -> str | None:
    """The record's id verbatim, where it can be one."""
    named = admit(ReadRecord, {"record_id": value.get("id")})
    return None if isinstance(named, Refused) else named.record_id


def is_tombstone(value: Json) -> bool:
    """Whether the store says that the record is forgotten, in whatever form."""
    return value.get("status") == "forgotten"


def key_of(fields: Json, record: AnyRecord) -> str | None:
    """The text of the fact key, which only an export says, where it does name the record."""
    said = fields.get("key")
    if not isinstance(said, str) or not isinstance(record, Record):
        return None
    try:
        key = normal_key(said)
    except PydanticCustomError:
        return None
    return key if record_id_of(key) == record.id else None


def blocked_by(line: Line) -> list[str]:
    """The refs that a line blocks, whether its record can be taken over or not."""
    if line.kind == "forgotten_source":
        refs: object = [line.fields.get("ref")]
    else:
        value = line.fields.get("value")
        refs = value.get("blocked_sources") if isinstance(value, dict) else None
    return [ref for ref in refs if isinstance(ref, str)] if isinstance(refs, list) else []


def record_of(value: Json, space: str, unknown: Counter[str]) -> AnyRecord | Refused:
    """The record in a line, in today's form; unknown fields are counted and left behind."""
    fields = known(value, Record, unknown)
    if not is_tombstone(fields):
        fields = _completed(fields, unknown)
    record = read_record(fields)
    if isinstance(record, Refused):
        return record
    return _fault(record, space) or record


def known(value: Mapping[str, object], shape: type[Value], unknown: Counter[str]) -> Json:
    """The fields that the shape knows; a null says what a missing field says."""
    for name in value:
        if name not in shape.model_fields:
            is_said = PLAIN_NAME.fullmatch(name) and (name in unknown or len(unknown) < NAMES_MAX)
            unknown[name if is_said else OTHER_NAMES] += 1
    return {name: value[name] for name in shape.model_fields if value.get(name) is not None}


def _completed(fields: Json, unknown: Counter[str]) -> Json:
    """A live record with what today's form adds: tier detail, and a default for what is missing."""
    made = _entries(fields.get("contributions"), Contribution, unknown)
    if not made:
        agent = fields.get("updated_by_agent_id", fields.get("contributor_agent_id", UNKNOWN))
        revision = fields.get("revision")
        made = [{"agent_id": agent, "executor_session_id": UNKNOWN, "revision": revision}]
    defaults: Json = {
        "evidence": "inference",
        "effective_at": None,
        "expires_at": None,
        "contributor_agent_id": _agent(made[0]),
        "updated_by_agent_id": _agent(made[-1]),
        "blocked_sources": [],
    }
    dates: Json = {
        name: _time(fields[name]) for name in ("effective_at", "expires_at") if name in fields
    }
    return {
        **defaults,
        **fields,
        **dates,
        "tier": "detail",
        "sources": [_source(it) for it in _entries(fields.get("sources"), Source, unknown)],
        "contributions": made[-CONTRIBUTIONS_MAX:],
        "rejections": _entries(fields.get("rejections"), Rejection, unknown),
    }


def _entries(listed: object, shape: type[Value], unknown: Counter[str]) -> list[object]:
    """The entries of a list with the fields that are known; what is no list is one bad entry."""
    entries = listed if isinstance(listed, list) else [] if listed is None else [None]
    return [known(it, shape, unknown) if isinstance(it, dict) else it for it in entries]


def _agent(contribution: object) -> object:
    return contribution.get("agent_id") if isinstance(contribution, dict) else None


def _source(source: object) -> object:
    """A canonical reference is a message's, whatever it was called; any other is a legacy one."""
    ref = source.get("ref") if isinstance(source, dict) else None
    if not isinstance(source, dict) or not isinstance(ref, str):
        return source
    kind = "personal_message" if parse_ref(ref) else "legacy"
    return {**source, "kind": kind, "occurred_at": _time(source.get("occurred_at"))}


def _time(given: object) -> object:
    """The time in its shortest form; what is none stays, to be refused."""
    try:
        return time_text(parse_time(given)) if isinstance(given, str) else given
    except (ValueError, OverflowError):
        return given


def names_in(record: AnyRecord) -> dict[str, str]:
    """The ids and refs of a record by field, each once; references of messages say nothing."""
    fields = {record.id: "value.id"}
    refs = [(f"value.blocked_sources.{at}", ref) for at, ref in enumerate(record.blocked_sources)]
    if isinstance(record, Record):
        fields.setdefault(record.contributor_agent_id, "value.contributor_agent_id")
        fields.setdefault(record.updated_by_agent_id, "value.updated_by_agent_id")
        for at, made in enumerate(record.contributions):
            fields.setdefault(made.agent_id, f"value.contributions.{at}.agent_id")
            place = f"value.contributions.{at}.executor_session_id"
            fields.setdefault(made.executor_session_id, place)
        refs += [(f"value.sources.{at}", source.ref) for at, source in enumerate(record.sources)]
        refs += [(f"value.rejections.{at}.ref", it.ref) for at, it in enumerate(record.rejections)]
    for place, ref in refs:
        if parse_ref(ref) is None:
            fields.setdefault(ref, place)
    return {place: name for name, place in fields.items()}


def _fault(record: AnyRecord, space: str) -> Refused | None:
    """What the form alone does not show."""
    if record.user_space_id != space:
        return Refused(Refusal.VALUE_INVALID, "value.user_space_id")
    if record.revision > LEGACY_REVISION_MAX:
        return Refused(Refusal.LIMIT_EXCEEDED, "value.revision")
    return _content_fault(record) if isinstance(record, Record) else None


def _content_fault(record: Record) -> Refused | None:
    if (place := first_overlap(source_refs(record))) is not None:
        return Refused(Refusal.VALUE_INVALID, f"value.sources.{place}")
    revisions = [it.revision for it in record.contributions]
    if max(revisions + [it.revision for it in record.rejections]) > record.revision:
        return Refused(Refusal.VALUE_INVALID, "value.revision")
    if len(record.model_dump_json().encode()) > RECORD_BYTES_MAX:
        return Refused(Refusal.LIMIT_EXCEEDED, "value")
    return None
