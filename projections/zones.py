"""Core, recent, detail: which facts belong to a step, in which order, and what fits (PM 5.1)."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from memoranda.projections.postings import Blinder, Hit, ranked
from memoranda.projections.records import id_text

ZoneName = Literal["core", "recent", "detail"]
RECENT_US = 1_209_600 * 1_000_000
"""How long a source makes a fact recent: fourteen days, both ends inclusive."""

FACTS_MAX = 8
BUDGETS: dict[ZoneName, int] = {"core": 2_000, "recent": 1_500, "detail": 2_500}
"""UTF-8 bytes of fact text per zone; ids and markup do not count."""

RELATED_STEP = 32
"""Matching facts whose records are looked up at once; a zone seldom needs more."""

LEFT_OUT_MAX = 20
"""How many facts that did not fit are named; the rest is only said to exist."""

ACTIVE = (
    "status = 'accepted' AND coalesce(effective_at, :now) <= :now"
    " AND coalesce(expires_at, :now + 1) > :now"
)
_IS_RECENT = "coalesce(newest_source BETWEEN :now - :recent AND :now, 0)"
MEMBERS: dict[ZoneName, str] = {
    "core": f"{ACTIVE} AND tier = 'core'",
    "recent": f"{ACTIVE} AND tier = 'detail' AND newest_source BETWEEN :now - :recent AND :now",
    "detail": f"{ACTIVE} AND tier = 'detail' AND NOT {_IS_RECENT}",
}
"""Membership: the first that holds; a fact that does not fit falls into no later zone."""


class Member(NamedTuple):
    """A fact by its id and position, with the bytes of its text; no text."""

    record_id: str
    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Packed:
    """What of a zone fits under its budget, and what was left out for its size."""

    chosen: tuple[Member, ...]
    left_out: tuple[Member, ...]
    is_more: bool


def core(connection: sqlite3.Connection, now: int) -> Iterator[Member]:
    """Chosen by the primary session or the person; the newest revision first."""
    return _members(connection, "core", "position DESC, id", now)


def recent(connection: sqlite3.Connection, now: int) -> Iterator[Member]:
    """Said within fourteen days; the newest source first."""
    return _members(connection, "recent", "newest_source DESC, id", now)


def detail(
    connection: sqlite3.Connection, now: int, query: str, blinder: Blinder
) -> Iterator[Member]:
    """Related to the matter at hand; the most relevant first. What does not match is not here."""
    return (hit.member for hit in related(connection, now, query, blinder, "detail"))


class Related(NamedTuple):
    """A fact that matches a query."""

    member: Member
    score: float


def related(
    connection: sqlite3.Connection,
    now: int,
    query: str,
    blinder: Blinder,
    zone: ZoneName | None = None,
) -> Iterator[Related]:
    """Active facts that match, of one zone or of all: relevance, newest source, id."""
    hits = ranked(connection, blinder, query)
    while hits:
        end = min(RELATED_STEP, len(hits))
        # Equals stay together: among them the newest source comes first, then the id.
        while end < len(hits) and hits[end].score == hits[end - 1].score:
            end += 1
        yield from _in_order(connection, now, hits[:end], MEMBERS[zone] if zone else ACTIVE)
        hits = hits[end:]


def _in_order(
    connection: sqlite3.Connection, now: int, hits: Sequence[Hit], membership: str
) -> Iterator[Related]:
    scores = dict(hits)
    marks = ", ".join(map(str, scores))
    rows = connection.execute(
        "SELECT document, newest_source, id, position, size FROM documents"
        # The few documents first, then their records: left alone, SQLite walks all records.
        f" CROSS JOIN records USING (record) WHERE document IN ({marks}) AND {membership}",
        {"now": now, "recent": RECENT_US},
    )
    ordered = sorted((-scores[document], -source, *member) for document, source, *member in rows)
    for score, _, kept, position, size in ordered:
        yield Related(Member(id_text(kept), position, size), -score)


def pack(members: Iterable[Member], budget_bytes: int) -> Packed:
    """Greedy and whole: a fact that does not fit is skipped, smaller later ones may still enter."""
    chosen: list[Member] = []
    left_out: list[Member] = []
    is_more = False
    for member in members:
        if len(chosen) == FACTS_MAX:
            is_more = True
            break
        if member.size_bytes <= budget_bytes:
            chosen.append(member)
            budget_bytes -= member.size_bytes
        elif len(left_out) < LEFT_OUT_MAX:
            left_out.append(member)
        else:
            is_more = True
            if budget_bytes == 0:
                break
    return Packed(tuple(chosen), tuple(left_out), is_more)


def _members(
    connection: sqlite3.Connection, zone: ZoneName, order: str, now: int
) -> Iterator[Member]:
    rows = connection.execute(
        f"SELECT id, position, size FROM records WHERE {MEMBERS[zone]} ORDER BY {order}",
        {"now": now, "recent": RECENT_US},
    )
    return (Member(id_text(kept), position, size) for kept, position, size in rows)
