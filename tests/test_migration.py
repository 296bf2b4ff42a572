"""An earlier store into the log: all of it or nothing, once, and never over what the log says."""

import hashlib
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.tables import Tables
from typer.testing import CliRunner

from memoranda.ledger.authority import Auditor, ModelSession
from memoranda.ledger.entries import FRESH_KEY, Draft, Tag
from memoranda.ledger.errors import Refusal, Refused, RefusedError
from memoranda.ledger.events import MigrationCompleted, RecordBody, RecordCommitted
from memoranda.ledger.legacy import LINE_BYTES_MAX
from memoranda.ledger.locks import SpaceLock
from memoranda.ledger.personal import Record, record_id_of
from memoranda.ledger.sealed_store import SealedStore
from memoranda.ledger.takeover import MigrationReport
from memoranda.projections.records import id_bytes, id_text
from memoranda.tools.cli import main
from memoranda.tools.memory import Memory, open_memory

Json = dict[str, Any]
MAIN = "s-main-1"
ID = record_id_of("preference/reply-language")
SECRET = "aws key AKIAIOSFODNN7EXAMPLQ"
SURROGATE = "\ud800"
OWNERSHIP = [
    {"package": "memory", "storage": "personal.records", "moves_to": "personal"},
    {"package": "personal", "storage": "personal.records", "moves_from": "memory"},
]
HEAD = {
    "kind": "store",
    "format": "personal-records/1",
    "user_space_id": "us_alice",
    "ownership": OWNERSHIP,
}
ODD_IDS = (
    "1", "legacy-1", "note:Kyoto/é 🥜", "mem_", "mem_1", f"mem_{32 * 'a'}", f"mem_{64 * 'A'}",
    f"mem_{65 * '0'}", " spaced ", "line\nbreak", "\x1b[31mred", "[bold]x[/bold]", "-x", 256 * "x",
)  # fmt: skip


def ref(address: str) -> str:
    return f"personal-message:{MAIN}:{address}"


def value(record_id: str, **changes: Any) -> Json:
    """A record of the earlier store; None leaves a field out."""
    full: Json = {
        "id": record_id,
        "revision": 3,
        "product_domain": "personal",
        "user_space_id": "us_alice",
        "status": "accepted",
        "tier": "core",
        "content": f"Fact of {record_id}",
        "evidence": "explicit",
        "effective_at": None,
        "expires_at": None,
        "contributor_agent_id": "agent-old",
        "updated_by_agent_id": "agent-old",
        "sources": [source(f"old:{record_id}")],
        "contributions": [{"agent_id": "agent-old", "executor_session_id": "s-old", "revision": 3}],
        "rejections": [],
        "blocked_sources": [],
    }
    return {name: it for name, it in {**full, **changes}.items() if it is not None}


def source(text: str, **changes: Any) -> Json:
    return {
        "kind": "personal_message",
        "ref": text,
        "occurred_at": "2026-10-05T09:00:00Z",
        **changes,
    }


def record(record_id: str, **changes: Any) -> Json:
    return {"kind": "record", "value": value(record_id, **changes)}


def tombstone(record_id: str, *blocked: str, revision: int = 4) -> Json:
    return {
        "kind": "record",
        "value": {
            "id": record_id,
            "revision": revision,
            "product_domain": "personal",
            "user_space_id": "us_alice",
            "status": "forgotten",
            "blocked_sources": list(blocked),
        },
    }


def conflict(candidate_id: str, other_id: str | None = None, reason: str = "one is wrong") -> Json:
    return {
        "kind": "conflict",
        "candidate_id": candidate_id,
        "other_id": other_id,
        "reason": reason,
    }


def forgotten_source(text: str) -> Json:
    return {"kind": "forgotten_source", "ref": text}


@pytest.fixture
def old(tmp_path: Path) -> Callable[..., Path]:
    """Writes an earlier store."""

    def write(*lines: Json | bytes, head: Json | None = None, name: str = "old.jsonl") -> Path:
        raw = [
            line if isinstance(line, bytes) else json.dumps(line).encode()
            for line in (head or HEAD, *lines)
        ]
        path = tmp_path / name
        path.write_bytes(b"\n".join(raw) + b"\n")
        return path

    return write


def report(answer: object) -> MigrationReport:
    assert isinstance(answer, MigrationReport), answer
    return answer


def refused(answer: object) -> Refused:
    assert isinstance(answer, Refused), answer
    return answer


def sums(answer: object) -> Json:
    """The counts that are not zero."""
    counted = report(answer).model_dump(
        exclude={"refused_lines", "overlapping", "unknown_fields", "refused"}
    )
    return {name: count for name, count in counted.items() if count} | report(answer).refused


def rows(folder: dict[str, Path]) -> dict[str, list[tuple[object, ...]]]:
    """Every row of the ledger's log."""
    return Tables(folder).everything()


def served(memory: Memory) -> list[Json]:
    """Everything that a reader sees of every record, without places in the log."""
    page = memory.query(include_inactive=True, limit=100)
    assert not isinstance(page, Refused), page
    return [
        read.model_dump(mode="json", exclude={"position", "decided_at"}) for read in page.records
    ]


def is_whole(memory: Memory) -> bool:
    """Whether the audit finds nothing, and views computed anew say what the grown ones did."""
    before = served(memory)
    findings = memory.audit.verify(with_index=True).findings
    memory.rebuild()
    return findings == () and served(memory) == before


# -- the scenarios of PM 10 ------------------------------------------------------------------


def hundred() -> list[Json]:
    """Scenario 69: 70 accepted, 20 candidates, 5 of them more with a mark, 5 forgotten."""
    accepted = [record(record_id_of(f"fact/{at}"), sources=[source(ref(f"1{at:03}"))])
                for at in range(70)]  # fmt: skip
    candidates = [
        record(record_id_of(f"idea/{at}"), status="candidate", sources=[source(ref(f"2{at:03}"))])
        for at in range(25)
    ]
    gone = [tombstone(record_id_of(f"gone/{at}"), ref(f"3{at:03}")) for at in range(5)]
    marks = [conflict(record_id_of(f"idea/{at}"), record_id_of(f"fact/{at}")) for at in range(5)]
    return [*marks, *accepted, *candidates, *gone]


def test_scenario_69_ids_revisions_sources_and_marks_of_a_hundred_records_are_equal(memory, old):
    path = old(*hundred())

    answer = memory.migrate(path)

    assert sums(answer) == {"imported": 100, "conflicts": 5}
    for line in hundred():
        if line["kind"] == "record":
            kept = memory.read(line["value"]["id"], include_inactive=True).record
            assert kept.model_dump(mode="json") == {**line["value"], **detail(line["value"])}
    marked = {
        (it.candidate_id, it.other_id, it.state)
        for read in memory.candidates()
        for it in read.conflicts
    }
    assert marked == {
        (record_id_of(f"idea/{at}"), record_id_of(f"fact/{at}"), "open") for at in range(5)
    }
    assert memory.status().records == {"accepted": 70, "candidate": 25, "forgotten": 5}
    assert is_whole(memory)


def detail(given: Json) -> Json:
    nothing = {"effective_at": None, "expires_at": None}
    return {} if given["status"] == "forgotten" else {"tier": "detail", **nothing}


def lock(path: Path) -> None:
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("nothing is locked for this user")


def put_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def put_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


UNREADABLE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "folder": put_folder,
    "empty": lambda path: path.write_bytes(b""),
    "blank": lambda path: path.write_bytes(b"\n  \n\r\n"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "locked": lock,
    "pipe": put_pipe,
}


@pytest.mark.parametrize("how", UNREADABLE)
def test_scenario_70_an_unreadable_store_is_refused_on_every_call(how, memory, old, folder):
    path = old(record(ID))
    UNREADABLE[how](path)
    before = rows(folder)

    answers = [memory.migrate(path), memory.migrate(path, dry_run=True)]
    for _ in range(2):
        with pytest.raises(RefusedError) as raised:
            open_memory("us_alice", **folder, legacy=path)
        answers.append(raised.value.refused)

    assert {it.refusal for it in answers} == {Refusal.MIGRATION_FAILED}
    assert {it.field for it in answers} == ({"line 2"} if how == "cut" else {"file"})
    assert rows(folder) == before


@pytest.mark.parametrize(
    ("ownership", "silent"),
    [
        (OWNERSHIP[:1], "personal"),
        (OWNERSHIP[1:], "memory"),
        ([], "memory"),
        (None, "memory"),
        ("memory", "memory"),
        ([OWNERSHIP[0], {**OWNERSHIP[1], "moves_from": "notes"}], "personal"),
        ([{**OWNERSHIP[0], "storage": "notes"}, OWNERSHIP[1]], "memory"),
        ([{**OWNERSHIP[0], "moves_to": "project"}, OWNERSHIP[1]], "memory"),
    ],
)
def test_scenario_71_a_declaration_of_one_side_only_is_refused_and_the_other_named(
    ownership, silent, memory, old
):
    answer = refused(memory.migrate(old(record(ID), head={**HEAD, "ownership": ownership})))

    assert (answer.refusal, answer.field) == (Refusal.MIGRATION_FAILED, "ownership")
    assert f"package {silent} does not declare" in answer.message
    assert memory.records() == ()


def test_scenario_72_a_corrected_record_goes_on_in_the_log_and_later_legacy_edits_are_ignored(
    memory, primary, old
):
    path = old(record(ID, sources=[source(ref("42"))]))
    before, stat = path.read_bytes(), path.stat()
    report(memory.migrate(path))

    corrected = primary.correct(ID, 3, "Answer in Chinese", sources=[ref("88")])

    assert (corrected.from_revision, corrected.to_revision) == (3, 4)
    assert path.read_bytes() == before
    assert path.stat().st_mtime_ns == stat.st_mtime_ns
    edited = old(record(ID, content="Answer in Latin", revision=9))
    assert sums(memory.migrate(edited)) == {"already_there": 1}
    assert memory.read(ID).record.content == "Answer in Chinese"
    assert [it.revision for it in memory.revisions(ID)] == [3, 4]
    assert is_whole(memory)


@pytest.mark.parametrize("head", [{"kind": "notebook"}, {**HEAD, "format": "notebook/1"}, HEAD])
def test_scenario_73_a_coding_notebook_is_no_store_of_personal_records(head, memory, old):
    topics = [{"kind": "topic", "file": f"{at}.md", "content": "x"} for at in range(12)]

    answer = refused(memory.migrate(old(*topics, head=head)))

    assert answer.refusal is Refusal.MIGRATION_FAILED
    assert answer.field == ("line 2" if head == HEAD else "line 1")
    assert memory.status().records == {}


def test_scenario_64_a_migrated_record_is_detail_until_somebody_selects_it(memory, primary, old):
    report(memory.migrate(old(record(ID, tier="core"))))

    before = {zone.name: len(zone.facts) for zone in memory.recall("fact").zones}
    assert primary.choose_tier(ID, 3, "core").to_revision == 4
    after = {zone.name: len(zone.facts) for zone in memory.recall("fact").zones}

    assert before["core"] == 0
    assert before["recent"] == 1
    assert (after["core"], after["recent"]) == (1, 0)


# -- what is kept, and what is made of the rest -----------------------------------------------


def test_a_record_with_every_field_is_kept_as_it_is(memory, old):
    full = value(
        "legacy-1",
        status="rejected",
        effective_at="2026-10-06T00:00:00Z",
        expires_at="2027-10-06T00:00:00.5Z",
        sources=[source(ref("42#0-7")), source(ref("42#8-9"))],
        rejections=[{"ref": ref("42#0-7"), "reason": "not said", "revision": 3}],
        blocked_sources=[ref("7")],
    )

    report(memory.migrate(old({"kind": "record", "value": full})))

    read = memory.read("legacy-1", include_inactive=True)
    assert read.record.model_dump(mode="json") == {**full, "tier": "detail"}
    assert read.key is None


def test_what_a_record_lacks_gets_the_obvious_default(memory, old):
    bare = value(
        "legacy-1", tier=None, evidence=None, contributor_agent_id=None, updated_by_agent_id=None,
        contributions=None, rejections=None, blocked_sources=None,
    )  # fmt: skip
    half = value(
        "legacy-2", contributor_agent_id=None, updated_by_agent_id=None, contributions=[
            {"agent_id": f"agent-{at}", "executor_session_id": "s", "revision": at}
            for at in range(1, 13)
        ], revision=12,
    )  # fmt: skip

    report(memory.migrate(old(*({"kind": "record", "value": it} for it in (bare, half)))))

    kept = memory.read("legacy-1").record
    assert (kept.tier, kept.evidence) == ("detail", "inference")
    assert (kept.contributor_agent_id, kept.updated_by_agent_id) == ("legacy", "legacy")
    assert [it.model_dump() for it in kept.contributions] == [
        {"agent_id": "legacy", "executor_session_id": "legacy", "revision": 3}
    ]
    assert (kept.effective_at, kept.rejections, kept.blocked_sources) == (None, (), ())
    kept = memory.read("legacy-2").record
    assert (kept.contributor_agent_id, kept.updated_by_agent_id) == ("agent-1", "agent-12")
    assert [it.revision for it in kept.contributions] == list(range(5, 13))


def test_a_source_is_a_message_by_its_reference_and_a_legacy_one_otherwise(memory, old):
    given = [
        source("notes.md", kind="file"), source("op-1", kind="user_edit"), source("anything"),
        {"ref": ref("42"), "occurred_at": "2026-10-05"}, source(ref("050")),
        source(ref("7"), kind="rumour"),
    ]  # fmt: skip

    report(memory.migrate(old(record("legacy-1", sources=given))))

    kept = memory.read("legacy-1").record.sources
    assert [it.ref for it in kept] == [it["ref"] for it in given]
    assert [it.kind for it in kept] == 3 * ["legacy"] + [
        "personal_message", "legacy", "personal_message",
    ]  # fmt: skip
    assert kept[3].occurred_at == "2026-10-05T00:00:00Z"


def test_unknown_fields_stay_behind_and_are_told_by_name_only_if_it_is_one(memory, old):
    odd = source("x", **{"digest": "abc", "My Secret Diary": 1})
    lines = [
        {"kind": "record", "value": {**value("a", sources=[odd]), "mood": "good", "": 1}},
        {"kind": "record", "value": {**value("b"), "mood": {"deep": [1]}, f"x{SURROGATE}": 1}},
    ]

    answer = report(memory.migrate(old(*lines)))

    assert answer.unknown_fields == {"*": 3, "digest": 1, "mood": 2}
    assert answer.imported == 2
    assert "mood" not in memory.read("a").record.model_dump_json()


def test_records_that_overlap_are_both_kept_and_told(memory, old):
    lines = [
        record("a", sources=[source(ref("42#0-7"))]),
        record("b", sources=[source(ref("42#7-9"))]),
        record("c", sources=[source(ref("42#6-8"))], status="candidate"),
        record("d", sources=[source(ref("42"))], status="rejected"),
    ]

    dry, answer = memory.migrate(old(*lines), dry_run=True), report(memory.migrate(old(*lines)))

    assert answer.imported == 4
    assert [it.model_dump() for it in answer.overlapping] == [
        {"record_id": "c", "other_id": "a", "ref": ref("42#6-8")}
    ]
    assert dry == answer
    later = old(*lines, record("e", sources=[source(ref("42"))]))
    assert [it.other_id for it in report(memory.migrate(later)).overlapping] == ["a"]
    assert is_whole(memory)


def test_every_line_counts_once(memory, primary, old):
    primary.publish("home", "I live in Kyoto", sources=[ref("50")], operation_id="op-1")
    primary.forget(record_id_of("home"), 1)
    lines = [
        record(record_id_of("home")), record("a"), record("a"), record("b", content=""),
        tombstone("c", ref("7")), tombstone(record_id_of("home"), ref("50")),
        forgotten_source("x"), forgotten_source("x"), conflict("a"), conflict("nobody"),
        record("d", status="candidate"), conflict("d"), conflict("d", None, "again"),
        record("e", sources=[source(ref("50"))]),
    ]  # fmt: skip

    first = report(memory.migrate(old(*lines)))

    assert sums(first) == {
        "imported": 3, "conflicts": 1, "blocked": 1, "already_there": 3, "suppressed": 1,
        "invalid_value": 2, "invalid_transition": 1, "not_found": 1, "source_forgotten": 1,
    }  # fmt: skip
    assert sum(sums(first).values()) == len(lines)
    assert [(it.line, it.code, it.field) for it in first.refused_lines] == [
        (4, "invalid_value", "value.id"),
        (5, "invalid_value", "value.content"),
        (10, "invalid_transition", "candidate_id"),
        (11, "not_found", "candidate_id"),
        (15, "source_forgotten", "value.sources.0"),
    ]


# -- once, and what the log says wins ----------------------------------------------------------


def test_a_repeat_imports_nothing_and_writes_nothing(memory, old, folder):
    path = old(*hundred(), forgotten_source("x"), record("bad", content=""))
    report(memory.migrate(path))
    before, head = rows(folder), memory.status().position

    again = memory.migrate(path)

    assert sums(again) == {"already_there": 106, "invalid_value": 1}
    assert (rows(folder), memory.status().position) == (before, head)


def test_a_dry_run_tells_the_same_and_writes_nothing(memory, old, folder):
    overlapping = [record(it, sources=[source(ref("9"))]) for it in ("x", "y")]
    path = old(*hundred(), *overlapping, forgotten_source("z"), record("bad", content=""))
    before, keys = rows(folder), memory.status().keys

    dry = report(memory.migrate(path, dry_run=True))

    assert (rows(folder), memory.status().keys) == (before, keys)
    assert memory.records(include_inactive=True) == ()
    assert dry == memory.migrate(path)


def test_a_record_forgotten_in_the_log_stays_forgotten_whatever_the_store_says(
    memory, primary, old
):
    path = old(record(ID, sources=[source(ref("42"))]), record("b"))
    report(memory.migrate(path))
    assert memory.forget(ID, 3).to_revision == 4

    again = memory.migrate(path)

    assert sums(again) == {"already_there": 1, "suppressed": 1}
    assert memory.remnants(f"Fact of {ID}").remnants == ()
    assert primary.publish("tea", "Tea", sources=[ref("42")]).refusal is Refusal.SOURCE_FORGOTTEN
    assert is_whole(memory)


def test_a_record_of_the_log_is_not_touched_by_one_of_the_same_id(memory, primary, old):
    primary.publish("preference/reply-language", "Answer in Chinese", sources=[ref("42")])

    answer = memory.migrate(old(record(ID, revision=7), {"kind": "record", "value": {"id": ID}}))

    assert sums(answer) == {"already_there": 1, "invalid_value": 1}
    assert memory.read(ID).record.revision == 1


def test_of_two_tombstones_of_one_id_one_counts_and_both_block(memory, primary, old):
    answer = memory.migrate(old(tombstone("t", ref("42")), tombstone("t", ref("88"), revision=5)))

    assert sums(answer) == {"imported": 1, "suppressed": 1}
    assert memory.read("t", include_inactive=True).record.revision == 5
    for seq in ("42", "88"):
        again = primary.publish("k", "said again", sources=[ref(seq)])
        assert again.refusal is Refusal.SOURCE_FORGOTTEN
    assert is_whole(memory)


def test_an_operation_id_taken_by_another_refuses_the_line(memory, old):
    def taken(name: str) -> str:
        return f"migrate:{hashlib.sha256(name.encode()).hexdigest()}"

    memory.remember("one", operation_id=taken("a"))
    memory.remember("two", operation_id=taken("conflict\0\0b"))
    ended = {"name": "publish", "operation_id": taken("conflict\0\0c"), "key": "k", "content": "x"}
    assert not isinstance(memory.prepare(ended), Refused)
    memory.reconcile(taken("conflict\0\0c"), writers_stopped=True, reason="x")
    candidates = [record(name, status="candidate") for name in ("b", "c")]

    answer = memory.migrate(old(record("a"), *candidates, conflict("b"), conflict("c")))

    assert sums(answer) == {"imported": 2, "operation_conflict": 3}
    assert is_whole(memory)


def test_a_tombstone_of_the_store_blocks_like_one_of_the_log(memory, primary, old):
    report(memory.migrate(old(tombstone(ID, ref("42"), "notes.md"))))
    key = "preference/reply-language"

    answers = [
        primary.publish("preference/tea", "Tea", sources=[ref("42#0-6")]),
        memory.publish("preference/tea", "Tea", sources=[{"kind": "file", "ref": "notes.md"}]),
        primary.publish(key, "Chinese", sources=[ref("42")]),
    ]
    revived = primary.publish(key, "Chinese", sources=[ref("88")])

    assert {it.refusal for it in answers} == {Refusal.SOURCE_FORGOTTEN}
    assert (revived.from_revision, revived.to_revision) == (4, 5)
    assert memory.read(ID).record.blocked_sources == (ref("42"), "notes.md")
    assert is_whole(memory)


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("what", ["tombstone", "mark", "revived"])
def test_a_block_of_the_store_holds_wherever_it_stands(what, is_before, memory, old):
    block = {
        "tombstone": tombstone("gone", ref("42#0-6"), "notes.md"),
        "mark": forgotten_source(ref("42#0-6")),
        "revived": record("again", blocked_sources=[ref("42#0-6")]),
    }[what]
    lines = [
        record("a", sources=[source("x"), source(ref("42#5-7"))]),
        record("b", sources=[source(ref("42#6-7"))]),
        record("c", sources=[source(ref("42"))], status="rejected"),
    ]

    answer = memory.migrate(old(*([block, *lines] if is_before else [*lines, block])))

    told = [(it.code, it.field) for it in answer.refused_lines]
    assert told == [
        ("source_forgotten", "value.sources.1"),
        ("source_forgotten", "value.sources.0"),
    ]
    assert memory.read("b").record.revision == 3


def test_a_tombstone_that_is_refused_still_blocks_its_sources_in_the_store(memory, old):
    gone = tombstone("gone", ref("42"))
    gone["value"]["content"] = "what it said"

    answer = memory.migrate(old(gone, record("a", sources=[source(ref("42"))])))

    assert sums(answer) == {"invalid_value": 1, "source_forgotten": 1}
    assert answer.refused_lines[0].field == "value.content"


def test_a_blocked_mark_is_closed_to_every_key_and_caller(memory, primary, task_7, old):
    answer = memory.migrate(old(forgotten_source(ref("42#0-6")), forgotten_source("notes.md")))

    refusals = [
        primary.publish("tea", "Tea", sources=[ref("42")]),
        primary.propose("tea", "Tea", sources=[ref("42#5-8")]),
        task_7.propose("tea", "Tea", sources=[ref("42")]),
        memory.publish("tea", "Tea", sources=[{"kind": "file", "ref": "notes.md"}]),
    ]
    assert sums(answer) == {"blocked": 2}
    assert {it.refusal for it in refusals} == {Refusal.SOURCE_FORGOTTEN}
    assert primary.propose("tea", "Tea", sources=[ref("42#6-8")]).status == "candidate"
    assert is_whole(memory)


# -- several lines of one id, and what a refused one blocks ---------------------------------------


@pytest.mark.parametrize("blocked", [ref("42"), ref("88")])
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 2, 1)])
def test_what_a_store_calls_forgotten_is_not_served_wherever_the_tombstone_stands(
    order, blocked, memory, primary, old, folder
):
    live = [record(ID, sources=[source(ref("42"))], revision=revision) for revision in (3, 7)]
    lines = [live[0], tombstone(ID, blocked), live[1]]
    path = old(*(lines[at] for at in order))

    dry, answer = memory.migrate(path, dry_run=True), report(memory.migrate(path))

    assert sums(answer) == {"imported": 1, "suppressed": len(order) - 1}
    assert dry == answer
    assert memory.records() == ()
    assert memory.read(ID, include_inactive=True).record.status == "forgotten"
    assert primary.publish("tea", "Tea", sources=[blocked]).refusal is Refusal.SOURCE_FORGOTTEN
    before = rows(folder)
    assert sums(memory.migrate(path)) == {"already_there": 1, "suppressed": len(order) - 1}
    assert rows(folder) == before
    assert is_whole(memory)


@pytest.mark.parametrize("revisions", [(3, 4), (4, 3), (4, 4), (True, 4)])
def test_of_several_live_lines_of_one_id_the_highest_revision_counts(revisions, memory, old):
    lines = [record("a", revision=it, content=f"words {it}") for it in revisions]

    answer = report(memory.migrate(old(*lines)))

    assert sums(answer) == {"imported": 1, "invalid_value": 1}
    assert memory.read("a").record.content == "words 4"


def test_older_words_do_not_stand_in_for_newer_ones_that_are_refused(memory, old):
    answer = memory.migrate(old(record("a"), record("a", revision=4, content="")))

    assert sums(answer) == {"invalid_value": 2}
    assert memory.records() == ()


def test_what_a_line_that_is_not_taken_over_blocks_stays_blocked(memory, primary, old, folder):
    broken, unnamed = tombstone("gone", ref("42#0-6"), SURROGATE), tombstone("", "notes.md")
    again = record("twice", blocked_sources=[ref("88")])
    path = old(broken, unnamed, again, record("twice", revision=4), record("gone"))

    answer = report(memory.migrate(path))

    assert sums(answer) == {"imported": 1, "suppressed": 1, "invalid_value": 3}
    file = {"kind": "file", "ref": "notes.md"}
    answers = [primary.publish("tea", "Tea", sources=[ref(it)]) for it in ("42#5-7", "88")]
    answers.append(memory.publish("tea", "Tea", sources=[file]))
    assert [it.refusal for it in answers] == 3 * [Refusal.SOURCE_FORGOTTEN]
    assert primary.publish("tea", "Tea", sources=[ref("42#6-9")]).to_revision == 1
    before = rows(folder)
    assert sums(memory.migrate(path)) == {"already_there": 1, "suppressed": 1, "invalid_value": 3}
    assert rows(folder) == before
    assert is_whole(memory)


# -- conflicts -------------------------------------------------------------------------------


def test_a_mark_without_partner_stands_between_a_candidate_and_its_acceptance(memory, primary, old):
    candidate = record(ID, status="candidate", sources=[source(ref("42"))])
    report(memory.migrate(old(conflict(ID, reason="French, they said"), candidate)))

    read = primary.evidence(ID)
    (mark,) = read.conflicts
    blocked = primary.accept(ID, read.inspected_revision)
    resolved = primary.resolve_conflict(mark.conflict_id, "keep_candidate", "she said it again")
    accepted = primary.accept(ID, read.inspected_revision)

    assert (mark.other_id, mark.state) == (None, "open")
    assert read.sources[0].ok
    assert blocked.refusal is Refusal.CONFLICT_UNRESOLVED
    assert (resolved.other_id, resolved.state) == (None, "resolved")
    assert (accepted.from_revision, accepted.to_revision) == (3, 4)
    story = " ".join(memory.explain(ID))
    assert "with no named record was opened" in story
    assert "French, they said" in story
    assert "taken over from an earlier store" in story
    assert is_whole(memory)


def test_a_resolved_mark_is_not_opened_again(memory, old):
    path = old(record(ID, status="candidate"), conflict(ID), conflict(ID, "b"))
    report(memory.migrate(path))
    for mark in memory.read(ID, include_inactive=True).conflicts:
        memory.resolve_conflict(mark.conflict_id, "keep_both", "both are true")

    assert sums(memory.migrate(path)) == {"already_there": 3}
    assert memory.read(ID, include_inactive=True).conflicts == ()


def test_a_pair_has_one_conflict_whoever_opened_it(memory, primary, old):
    primary.propose("preference/reply-language", "Chinese", sources=[ref("42")])
    primary.publish("tea", "Tea", sources=[ref("88")])
    primary.open_conflict(ID, record_id_of("tea"), "cannot be")
    lines = [
        record("a", status="candidate"), record("b", status="candidate"),
        conflict(ID, record_id_of("tea")), conflict("a", "b"), conflict("b", "a"),
        conflict("a", "a"),
    ]  # fmt: skip

    answer = memory.migrate(old(*lines))

    assert sums(answer) == {"imported": 2, "conflicts": 1, "already_there": 2, "invalid_value": 1}
    for record_id in (ID, "a", "b"):
        assert len(memory.read(record_id, include_inactive=True).conflicts) == 1


def test_forgetting_a_migrated_candidate_takes_its_marks_along(memory, old):
    path = old(record(ID, status="candidate"), conflict(ID, reason="a telling reason"))
    report(memory.migrate(path))

    assert memory.forget(ID, 3).to_revision == 4

    assert memory.remnants("a telling reason").remnants == ()
    assert sums(memory.migrate(path)) == {"suppressed": 1, "already_there": 1}
    assert is_whole(memory)


# -- what is refused alone -------------------------------------------------------------------

REFUSED: list[tuple[Json, str, str]] = [
    ({"content": 8193 * "x"}, "limit_exceeded", "value.content"),
    ({"content": ""}, "invalid_value", "value.content"),
    ({"content": "a\0b"}, "invalid_value", "value.content"),
    ({"content": SURROGATE}, "invalid_value", "value.content"),
    ({"content": ["x"]}, "invalid_value", "value.content"),
    ({"content": None}, "invalid_value", "value.content"),
    ({"content": SECRET}, "secret_detected", "value.content"),
    ({"product_domain": "coding"}, "invalid_value", "value.product_domain"),
    ({"product_domain": None}, "invalid_value", "value.product_domain"),
    ({"user_space_id": "us_bob"}, "invalid_value", "value.user_space_id"),
    ({"id": ""}, "invalid_value", "value.id"),
    ({"id": 7}, "invalid_value", "value.id"),
    ({"id": None}, "invalid_value", "value.id"),
    ({"id": f"x{SURROGATE}"}, "invalid_value", "value.id"),
    ({"id": "a\0"}, "invalid_value", "value.id"),
    ({"id": 257 * "x"}, "limit_exceeded", "value.id"),
    ({"id": 5000 * "x"}, "limit_exceeded", "value.id"),
    ({"revision": 0}, "invalid_value", "value.revision"),
    ({"revision": True}, "invalid_value", "value.revision"),
    ({"revision": 1.0}, "invalid_value", "value.revision"),
    ({"revision": 10**30}, "invalid_value", "value.revision"),
    ({"revision": 2**53 - 1}, "limit_exceeded", "value.revision"),
    ({"revision": 2}, "invalid_value", "value.revision"),
    ({"status": "gone"}, "invalid_value", "value.status"),
    ({"evidence": "hearsay"}, "invalid_value", "value.evidence"),
    ({"expires_at": "soon"}, "invalid_value", "value.expires_at"),
    ({"sources": []}, "invalid_value", "value.sources"),
    ({"sources": None}, "invalid_value", "value.sources"),
    ({"sources": source("x")}, "invalid_value", "value.sources.0"),
    ({"sources": ["x"]}, "invalid_value", "value.sources.0"),
    ({"sources": [{"kind": "file", "ref": "x"}]}, "invalid_value", "value.sources.0.occurred_at"),
    ({"sources": [source("")]}, "invalid_value", "value.sources.0.ref"),
    ({"sources": [source(2049 * "x")]}, "limit_exceeded", "value.sources.0.ref"),
    ({"sources": [source(SECRET)]}, "secret_detected", "value.sources.0"),
    ({"sources": [source("x"), source("x")]}, "invalid_value", "value.sources.1"),
    ({"sources": [source(f"{at}") for at in range(65)]}, "limit_exceeded", "value.sources"),
    ({"sources": [source(f"{at}" + 2000 * "x") for at in range(40)]}, "limit_exceeded", "value"),
    ({"contributions": [{}]}, "invalid_value", "value.contributions.0.agent_id"),
    ({"contributions": "x"}, "invalid_value", "value.contributions.0"),
    ({"contributor_agent_id": SURROGATE}, "invalid_value", "value.contributor_agent_id"),
    ({"rejections": [{"ref": "x", "reason": SECRET, "revision": 1}]}, "secret_detected",
     "value.rejections.0"),
    ({"blocked_sources": [7]}, "invalid_value", "value.blocked_sources.0"),
    ({"blocked_sources": ["old:a"]}, "source_forgotten", "value.sources.0"),
    ({"id": SECRET}, "secret_detected", "value.id"),
    ({"contributor_agent_id": SECRET}, "secret_detected", "value.contributor_agent_id"),
    ({"updated_by_agent_id": SECRET}, "secret_detected", "value.updated_by_agent_id"),
    ({"contributions": [{"agent_id": SECRET, "executor_session_id": "s", "revision": 3}]},
     "secret_detected", "value.contributions.0.agent_id"),
    ({"contributions": [{"agent_id": "a", "executor_session_id": SECRET, "revision": 3}]},
     "secret_detected", "value.contributions.0.executor_session_id"),
    ({"rejections": [{"ref": SECRET, "reason": "r", "revision": 1}]}, "secret_detected",
     "value.rejections.0.ref"),
    ({"blocked_sources": ["x", SECRET]}, "secret_detected", "value.blocked_sources.1"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "code", "field"), REFUSED)
def test_a_record_that_breaks_a_rule_is_refused_by_its_line_and_the_others_go_on(
    changes, code, field, memory, old
):
    path = old({"kind": "record", "value": value("a", **changes)}, record("b"))

    dry, answer = report(memory.migrate(path, dry_run=True)), report(memory.migrate(path))

    assert answer.refused == {code: 1}
    assert [(it.line, it.code, it.field) for it in answer.refused_lines] == [(2, code, field)]
    assert dry == answer
    assert answer.imported == 1
    assert memory.read("b").record.revision == 3
    assert is_whole(memory)


@pytest.mark.parametrize(
    ("line", "code", "field"),
    [
        ({"kind": "record"}, "invalid_value", "value"),
        ({"kind": "record", "value": [1]}, "invalid_value", "value"),
        ({"kind": "conflict"}, "invalid_request", "candidate_id"),
        (conflict("c", reason=""), "invalid_request", "reason"),
        (conflict("c", reason=501 * "x"), "limit_exceeded", "reason"),
        (conflict("c", reason=SECRET), "secret_detected", "reason"),
        (conflict("c", ""), "invalid_request", "other_id"),
        ({"kind": "forgotten_source"}, "invalid_request", "ref"),
        (forgotten_source(SURROGATE), "invalid_request", "ref"),
        (tombstone("t", revision=0), "invalid_value", "value.revision"),
        (tombstone("t", SURROGATE), "invalid_value", "value.blocked_sources.0"),
        (tombstone("t", SECRET), "secret_detected", "value.blocked_sources.0"),
        (tombstone(SECRET), "secret_detected", "value.id"),
        (forgotten_source(SECRET), "secret_detected", "ref"),
        (conflict("c", SECRET), "secret_detected", "other_id"),
    ],
)
def test_a_mark_or_tombstone_that_breaks_a_rule_is_refused_by_its_line(
    line, code, field, memory, old
):
    answer = report(memory.migrate(old(record("c", status="candidate"), line)))

    assert [(it.line, it.code, it.field) for it in answer.refused_lines] == [(3, code, field)]
    assert answer.imported == 1
    assert memory.remnants("AKIAIOSFODNN7EXAMPLQ").remnants == ()


def test_nothing_of_a_refused_line_is_repeated_anywhere(memory, old, caplog):
    caplog.set_level("DEBUG", "memoranda")

    answer = memory.migrate(old(record("a", content=f"Lin says {SECRET}")))

    told = answer.model_dump_json() + caplog.text
    assert "Lin" not in told
    assert "AKIA" not in told


def test_secrets_are_redacted_when_that_is_asked_for(opened, old):
    rejections = [{"ref": "x", "reason": SECRET, "revision": 1}]
    lines = [
        record("a", status="candidate", content=SECRET, rejections=rejections),
        conflict("a", reason=SECRET),
        record("long", content="x " * 4070 + "AKIAIOSFODNN7EXAMPLQ AKIAIOSFODNN7EXAMPLQ"),
    ]
    memory = opened(secrets="redact")

    answer = memory.migrate(old(*lines))

    assert sums(answer) == {"imported": 1, "conflicts": 1, "limit_exceeded": 1}
    kept = memory.read("a", include_inactive=True).record
    assert "[redacted: " in kept.content
    assert "[redacted: " in kept.rejections[0].reason
    assert memory.remnants("AKIAIOSFODNN7EXAMPLQ").remnants == ()


NASTY = (
    None, True, 0, -1, 1.5, 10**20, "", "x", "\0", SURROGATE, [], [None], ["x"], [[]], {}, {"": 1},
    {"ref": "x"}, [{"ref": ref("1"), "agent_id": "a", "reason": "r", "revision": 10**20}],
)  # fmt: skip


def test_no_value_of_any_field_stops_a_migration(memory, old):
    lines = [
        {"kind": "record", "value": {**whole, "id": f"{at}-{name}-{whole['status']}", name: nasty}}
        for whole in (value("a"), tombstone("b")["value"])
        for name in [*value("a"), "effective_at", "kind"]
        for at, nasty in enumerate(NASTY)
    ]
    lines += [
        {**mark, name: nasty}
        for mark in (conflict("a"), forgotten_source("x"))
        for name in ("candidate_id", "other_id", "reason", "ref", "value")
        for nasty in NASTY
    ]

    dry, answer = memory.migrate(old(*lines), dry_run=True), report(memory.migrate(old(*lines)))

    assert dry == answer
    assert sum(sums(answer).values()) == len(lines)
    assert is_whole(memory)
    assert sums(memory.migrate(old(*lines))).get("imported") is None


# -- what breaks the whole store --------------------------------------------------------------

BROKEN = [
    b"{", b"[]", b"null", b"7", b'"record"', b"not json", b"\xff\xfe", b"{}", b'{"kind": null}',
    b'{"kind": ["record"]}', b'{"kind": "page"}', json.dumps(HEAD).encode(),
    b'{"kind": "record", "value": {"id": NaN}}', b'{"kind": "record", "value": {"id": -Infinity}}',
    b'{"kind": "record", "kind": "record"}', b'{"kind": "record", "value": {"id": 1, "id": 2}}',
    b'{"kind": "record", "value": {"revision": ' + 5000 * b"9" + b"}}",
    100_000 * b"[", b'{"kind": "record", "value": ' + 100_000 * b'{"a":' + 100_000 * b"}" + b"}",
    b"\xef\xbb\xbf{}", b'{"kind": "record"}\x00', b"{'kind': 'record'}",
    b'{"kind": "record", "value": "' + 10_000_000 * b"x" + b'"}',
]  # fmt: skip


@pytest.mark.parametrize("line", BROKEN, ids=range(len(BROKEN)))
def test_a_line_that_no_store_has_breaks_it_whole_and_is_named_by_number(line, memory, old, folder):
    path = old(record("a", content="Kyoto"), line, record("b"))
    before = rows(folder)

    answer = refused(memory.migrate(path))

    assert (answer.refusal, answer.field) == (Refusal.MIGRATION_FAILED, "line 3")
    assert answer.message
    assert rows(folder) == before


@pytest.mark.parametrize(
    ("head", "field"),
    [
        ({**HEAD, "user_space_id": "us_bob"}, "user_space_id"),
        ({**HEAD, "user_space_id": None}, "user_space_id"),
        ({**HEAD, "format": "personal-records/2"}, "line 1"),
        ({**HEAD, "kind": "record"}, "line 1"),
        ({**HEAD, "format": ["personal-records/1"]}, "line 1"),
        ({**HEAD, "format": {}}, "line 1"),
        ({**HEAD, "kind": ["store"]}, "line 1"),
    ],
)
def test_a_store_of_another_space_or_format_is_refused_whole(head, field, memory, old):
    answer = refused(memory.migrate(old(record("a"), head=head)))

    assert (answer.refusal, answer.field) == (Refusal.MIGRATION_FAILED, field)
    assert "us_bob" not in str(answer)
    assert memory.records() == ()


def test_line_ends_of_windows_blank_lines_and_a_missing_last_one_are_no_fault(memory, old):
    path = old(record("a"), b"", record("b"))
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n").rstrip())

    assert sums(memory.migrate(path)) == {"imported": 2}


def test_a_byte_order_mark_is_named_with_its_line(memory, old):
    path = old(record("a"))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())

    assert refused(memory.migrate(path)).field == "line 1"


def test_a_long_line_within_the_limit_is_read(memory, old):
    line = {"kind": "record", "value": {**value("a"), "notes": (LINE_BYTES_MAX - 2000) * "x"}}

    assert report(memory.migrate(old(line))).unknown_fields == {"notes": 1}


def test_a_store_that_changes_while_it_is_read_is_refused_whole(memory, old, folder):
    path = old(*(record(f"a{at}") for at in range(3)), conflict("nobody"))
    before = rows(folder)

    def edit(done: int, _total: int) -> None:
        if done == 3:
            old(*(record(f"b{at}") for at in range(3)), conflict("nobody"))

    answer = refused(memory.migrate(path, progress=edit))

    assert (answer.refusal, answer.field) == (Refusal.MIGRATION_FAILED, "file")
    assert rows(folder) == before


@pytest.mark.parametrize("path", [None, 7, b"old.jsonl", ["x"], "a\0b", "x" * 5000, SURROGATE])
def test_what_is_no_path_is_refused(path, memory):
    answer = refused(memory.migrate(path))

    assert answer.refusal in {Refusal.INVALID_REQUEST, Refusal.MIGRATION_FAILED}


# -- who may -----------------------------------------------------------------------------------


def test_only_the_persons_client_migrates(memory, primary, task_7, old, folder):
    path = old(record("a"))
    before = rows(folder)
    others = [
        primary, task_7, memory.acting_as(Auditor()),
        memory.acting_as(ModelSession("s-other", "agent")),
    ]  # fmt: skip

    answers = [refused(other.migrate(at)) for other in others for at in (path, "/nowhere")]

    assert {it.refusal for it in answers} == {Refusal.NOT_AUTHORIZED}
    assert rows(folder) == before
    assert report(memory.migrate(path)).imported == 1
    actor = memory.revisions("a")[0].actor
    assert (actor.role, actor.session_id) == ("client", "person-client")


# -- crashes and races -------------------------------------------------------------------------


class PowerCutError(BaseException):
    """Stops the process where it stands, as far as one process can."""


def small() -> list[Json]:
    return [
        conflict("b"), record("a", sources=[source(ref("1"))]), record("b", status="candidate"),
        tombstone("c", ref("2")), forgotten_source("x"), record("d", content=""),
    ]  # fmt: skip


def test_race_20_a_migration_stopped_at_any_step_ends_the_same_when_it_is_run_again(
    world, tmp_path
):
    World = type(world)  # noqa: N806  # each run has a world of its own

    def opened(name: str, world: Any) -> Memory:
        return open_memory(
            "us_alice", data=tmp_path / name / "d", state=tmp_path / name / "s", stamps=world.stamps
        )

    path = tmp_path / "old.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in [HEAD, *small()]))
    world = World()
    with opened("calm", world) as memory:
        world.steps.clear()
        answer = report(memory.migrate(path))
        calm, steps = served(memory), list(world.steps)
    assert steps.count("migrate:record") == 3
    assert {"migrate:conflict", "migrate:forgotten_source", "migrate:completed"} < set(steps)

    for stop_at in range(len(steps)):
        world = World()
        with opened(f"cut-{stop_at}", world) as memory:
            world.steps.clear()

            def stop(_: str, world: Any = world, stop_at: int = stop_at) -> None:
                if len(world.steps) == stop_at + 1:
                    raise PowerCutError

            world.at_step = stop
            with pytest.raises(PowerCutError):
                memory.migrate(path)
            world.at_step = lambda _: None
            is_durable = steps[stop_at] == "log:committed"
            assert memory.records(include_inactive=True) == () or is_durable

        with opened(f"cut-{stop_at}", world) as memory:
            again = report(memory.migrate(path))
            assert (again.imported == 0) == is_durable
            assert again == answer or is_durable
            assert served(memory) == calm
            assert memory.audit.verify(with_index=True).findings == ()


def test_race_21_a_reader_sees_nothing_of_a_migration_or_all_of_it(memory, world, old):
    seen: list[int] = []
    path = old(*(record(f"a{at}") for at in range(5)))
    answers: list[object] = []

    def look(name: str) -> None:
        if name in {"migrate:record", "log:commit"}:
            reader = threading.Thread(target=lambda: seen.append(len(memory.records())))
            reader.start()
            reader.join()

    world.at_step = look
    answers.append(memory.migrate(path))
    world.at_step = lambda _: None

    assert report(answers[0]).imported == 5
    assert set(seen) == {0}
    assert len(memory.records()) == 5


def test_race_21_the_first_write_of_an_id_and_its_migration_have_one_order(
    memory, old, opened, world
):
    path = old(record(ID, sources=[source(ref("42"))]), record("b"))
    started = threading.Event()
    answers: list[object] = []
    other = opened()

    def write() -> None:
        started.set()
        answers.append(other.publish("preference/reply-language", "By hand"))

    writer = threading.Thread(target=write)

    def begin(name: str) -> None:
        if name == "migrate:record" and not writer.is_alive() and not started.is_set():
            writer.start()
            started.wait()

    world.at_step = begin
    report(memory.migrate(path))
    writer.join()
    world.at_step = lambda _: None

    assert refused(answers[0]).refusal is Refusal.REVISION_CONFLICT
    assert memory.read(ID).record.content == f"Fact of {ID}"
    assert is_whole(memory)


def test_a_dry_run_waits_for_no_writer(memory, old, folder):
    with SpaceLock(folder["data"] / "us_alice" / "lock", 1.0).held():
        assert report(memory.migrate(old(record("a")), dry_run=True)).imported == 1


def test_what_a_tombstone_blocks_costs_no_look_into_the_log(memory, old, monkeypatch):
    looks: list[object] = []
    select = SealedStore.select

    def counted(store: SealedStore, *arguments: Any) -> Any:
        looks.append(arguments)
        return select(store, *arguments)

    monkeypatch.setattr(SealedStore, "select", counted)
    counts = []
    for name, many in (("few", 2), ("many", 200)):
        looks.clear()
        blocked = [ref(f"{many}{at}") for at in range(many)]
        report(memory.migrate(old(tombstone(name, *blocked))))
        counts.append(len(looks))

    assert counts[0] == counts[1]
    assert 0 < counts[0] < 20


# -- nothing is served before -----------------------------------------------------------------


def test_a_ledger_with_an_earlier_store_serves_it_from_the_first_call(opened, old, world):
    path = old(record("a"), record("bad", content=""))

    first = opened(legacy=path)
    assert [it.record.id for it in first.records()] == ["a"]
    position = first.status().position
    first.close()
    world.steps.clear()
    again = opened(legacy=str(path))

    assert again.status().position == position
    assert again.audit.verify().findings == ()
    again.close()
    old(record("a", content="edited"), record("b"))
    with opened(legacy=path) as later:
        assert {it.record.content for it in later.records()} == {"Fact of a", "Fact of b"}


def test_a_ledger_whose_earlier_store_fails_is_closed_again(folder, old):
    path = old(record("a"), b"{")

    with pytest.raises(RefusedError) as raised:
        open_memory("us_alice", **folder, legacy=path)

    assert raised.value.refused.refusal is Refusal.MIGRATION_FAILED
    assert not (folder["data"] / "us_alice" / "ledger.db-wal").exists()


def test_a_repeat_of_a_completed_store_reads_no_line_of_it(opened, old, monkeypatch):
    path = old(record("a"))
    opened(legacy=path).close()

    monkeypatch.setattr("memoranda.ledger.legacy.LegacyStore.lines", None)

    assert len(opened(legacy=path).records()) == 1


def held_key(memory: Memory) -> None:
    """An intent without an end on the record that the store names ID."""
    key = "preference/reply-language"
    intent = {"name": "publish", "operation_id": "op-1", "key": key, "content": "x"}
    assert memory.prepare(intent).record_id == ID


def earlier_store(memory: Memory) -> tuple[str, str]:
    (found,) = (it for it in memory.doctor() if it.name == "earlier store")
    return found.level, found.message


def test_what_an_operation_held_is_taken_over_by_the_opening_after_its_end(
    opened, old, caplog, folder
):
    caplog.set_level("WARNING", "memoranda")
    path = old(record(ID), record("b"), conflict(ID))
    first = opened()
    held_key(first)
    first.close()

    with opened(legacy=path) as held:
        assert [it.record.id for it in held.records()] == ["b"]
        assert held.taken_over.refused == {"outcome_unknown": 2}
        level, message = earlier_store(held)
        assert (level, "outcome_unknown 2" in message) == ("finding", True)
        before = rows(folder)
    assert "imported=1 refused=2" in caplog.text
    assert "Fact of" not in caplog.text
    with opened(legacy=path) as held:
        assert sums(held.taken_over)["outcome_unknown"] == 2
        assert rows(folder) == before
        held.reconcile("op-1", writers_stopped=True, reason="crash")

    with opened(legacy=path) as settled:
        assert {it.record.id for it in settled.records()} == {ID, "b"}
        assert earlier_store(settled) == ("note", earlier_store(settled)[1])
        position = settled.status().position
    with opened(legacy=path) as again:
        assert (again.taken_over, again.status().position) == (None, position)
        assert "invalid_transition 1" in earlier_store(again)[1]


def test_a_store_is_complete_once_the_operation_that_held_its_record_was_committed(opened, old):
    path = old(record(ID))
    first = opened()
    held_key(first)
    first.close()
    with opened(legacy=path) as held:
        assert held.commit(held.operation("op-1").intent).to_revision == 1

    with opened(legacy=path) as settled:
        assert sums(settled.taken_over) == {"already_there": 1}
        assert earlier_store(settled)[0] == "fine"
    with opened(legacy=path) as again:
        assert again.taken_over is None


# -- ids of another shape -----------------------------------------------------------------------


@pytest.mark.parametrize("record_id", ODD_IDS)
def test_an_id_of_any_shape_works_on_every_surface(record_id, memory, primary, old):
    report(memory.migrate(old(record(record_id, content="Kyoto"), record("other-id"))))

    found = [it.found.record.id for it in memory.search("Kyoto")]
    queried = [it.record.id for it in memory.query(text="Kyoto").records]
    recalled = [fact.record_id for zone in memory.recall("Kyoto").zones for fact in zone.facts]
    assert found == queried == [record_id]
    assert record_id in recalled
    assert memory.ids_beginning(record_id) == (record_id,)
    assert memory.read(record_id).record.content == "Kyoto"
    assert memory.explain(record_id)
    operation_id = memory.revisions(record_id)[0].operation_id
    assert memory.operation(operation_id).intent == {"name": "migrate"}
    assert memory.operation(operation_id).is_current

    assert primary.choose_tier(record_id, 3, "core").to_revision == 4
    assert memory.retire(record_id, 4, "gone").to_revision == 5
    assert memory.reactivate(record_id, 5).to_revision == 6
    assert memory.correct(record_id, 6, "Nara").to_revision == 7
    assert raw_correction(memory, record_id).to_revision == 8
    assert memory.forget(record_id, 8).status == "forgotten"
    assert memory.read(record_id, include_inactive=True).record.status == "forgotten"
    assert memory.ids_beginning(record_id) == (record_id,)
    assert is_whole(memory)


def raw_correction(memory: Memory, record_id: str) -> Any:
    expected = memory.read(record_id).record.model_dump(mode="json")
    own = {"agent_id": "person", "executor_session_id": "person-client", "revision": 8}
    edit = {"kind": "user_edit", "ref": "op-raw", "occurred_at": "2026-10-06T12:00:00Z"}
    following = {
        **expected, "revision": 8, "content": "Kobe", "sources": [*expected["sources"], edit],
        "contributions": [*expected["contributions"], own][-8:],
    }  # fmt: skip
    return memory.commit(
        {"id": "op-raw", "key": record_id, "expected": expected, "value": following}
    )


@pytest.mark.parametrize("record_id", ODD_IDS)
def test_a_candidate_of_any_id_is_listed_delivered_inspected_and_decided(
    record_id, memory, primary, old
):
    lines = [
        record(record_id, status="candidate", sources=[source(ref("42"))]),
        record("other-id", status="candidate"),
    ]
    report(memory.migrate(old(*lines)))

    recalled = primary.recall("", step="step-1")
    assert set(recalled.candidate_ids) == {record_id, "other-id"}
    assert primary.note_delivery(recalled).candidate_ids == recalled.candidate_ids
    assert primary.evidence(record_id).inspected_revision == 3
    opened = primary.open_conflict(record_id, "other-id", "cannot be")
    assert opened.other_id == "other-id"
    assert primary.resolve_conflict(opened.conflict_id, "keep_both", "both").state == "resolved"
    assert primary.revise(record_id, 3, content="Nara", conflicts_with=["other-id"])
    (mark,) = primary.read(record_id, include_inactive=True).conflicts
    assert primary.resolve_conflict(mark.conflict_id, "keep_both", "both").state == "resolved"
    assert primary.accept(record_id, 4).status == "accepted"
    assert primary.reject("other-id", 3, "guess").status == "rejected"
    assert is_whole(memory)


def test_no_new_record_gets_an_id_of_another_shape(memory, primary):
    primary.publish("preference/reply-language", "Chinese", sources=[ref("42")])
    known = memory.read(ID).record.model_dump(mode="json")

    for record_id in ODD_IDS:
        first = {"id": "op-1", "key": record_id, "expected": None, "value": value(record_id)}
        next_one = {**first, "expected": {**known, "id": record_id}}
        answer = refused(memory.commit(first))
        assert (answer.refusal, answer.field) == (Refusal.INVALID_REQUEST, "key")
        assert not hasattr(memory.commit(next_one), "position")
        assert refused(memory.forget(record_id, 1)).refusal is Refusal.NOT_FOUND


def test_pages_hold_every_id_once_and_in_order(memory, old):
    ids = [*ODD_IDS, *(record_id_of(f"k{at}") for at in range(30))]
    report(memory.migrate(old(*(record(it, sources=[source(f"s{it}")]) for it in ids))))

    listed: list[str] = []
    cursor = None
    while True:
        page = memory.query(limit=7, cursor=cursor)
        listed += [it.record.id for it in page.records]
        cursor = page.next_cursor
        if cursor is None:
            break

    assert sorted(listed) == sorted(ids)
    assert listed == sorted(ids, key=id_bytes)
    likes = [it for it in ids if not it.startswith("mem_")]
    assert [it for it in listed if it in likes] == sorted(likes)


@pytest.mark.parametrize("record_id", [*ODD_IDS, ID, f"mem_{64 * '0'}", f"mem_{64 * 'f'}"])
def test_an_id_comes_back_from_the_view_as_it_was(record_id):
    assert id_text(id_bytes(record_id)) == record_id


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("le", {"legacy-1", "legacy-12"}), ("legacy-1", {"legacy-1"}), ("legacy-12", {"legacy-12"}),
        ("mem_", 2), ("m", 2), (ID[:9], {ID}), (ID, {ID}), (f"{ID}0", set()),
        ("mem_old", {"mem_old"}),
        ("mem_g", set()), ("x", set()), ("go", {"gone-1"}), ("gone-1", {"gone-1"}), ("é", {"é"}),
    ],
)  # fmt: skip
def test_a_beginning_finds_its_ids_and_a_whole_id_only_itself(text, found, memory, old):
    lines = [record(it) for it in ("legacy-1", "legacy-12", "mem_old", ID, "é")]
    report(memory.migrate(old(*lines, tombstone("gone-1"))))

    ids = memory.ids_beginning(text)

    assert len(set(ids)) == len(ids)
    assert len(ids) == found if isinstance(found, int) else set(ids) == found


@pytest.mark.parametrize("text", ["", "\0", SURROGATE])
def test_what_begins_no_id_is_refused(text, memory):
    assert refused(memory.ids_beginning(text)).refusal is Refusal.INVALID_REQUEST


# -- the log ------------------------------------------------------------------------------------


def test_the_completion_says_how_much_and_nothing_of_what(memory, old):
    report(memory.migrate(old(*small())))

    with memory._parts.log.reading() as store:
        event = store.at(store.head.position)

    assert event.header == MigrationCompleted(imported=3, conflicts=1, blocked=1)
    assert set(json.loads(event.row.header)) == {"imported", "conflicts", "blocked"}


def forged(memory: Memory, header: RecordCommitted, record_id: str, revision: int) -> None:
    """Appends what no rule has let pass."""
    kept = Record.model_validate(detailed(value(record_id, revision=revision)))
    with memory._parts.log.deciding() as store:
        body = RecordBody(
            operation_id=f"op-{revision}",
            actor=memory.revisions("a")[0].actor,
            command={"name": "migrate"},
            key=None,
            expected=None,
            value=kept.model_dump(mode="json"),
        )
        tags = (Tag("personal:op", body.operation_id), Tag("personal:rec", record_id))
        store.append(Draft(header, body, tags, FRESH_KEY))


def detailed(given: Json) -> Json:
    sources = [{**it, "kind": "legacy"} for it in given["sources"]]
    return {**given, "tier": "detail", "effective_at": None, "expires_at": None, "sources": sources}


@pytest.mark.parametrize(
    ("named", "is_migrated", "from_revision", "is_found"),
    [
        (("b", 7), True, None, False),
        (("b", 1), True, None, False),
        (("b", 7), False, None, True),
        (("b", 7), True, 6, True),
        (("a", 4), True, 3, True),
        (("a", 7), True, None, True),
    ],
)
def test_the_audit_takes_any_first_revision_of_a_migrated_record_and_nothing_else(
    named, is_migrated, from_revision, is_found, *, memory, old
):
    record_id, revision = named
    report(memory.migrate(old(record("a"))))
    assert memory.audit.verify().findings == ()
    header = RecordCommitted(
        family="personal",
        outcome="committed",
        from_revision=from_revision,
        to_revision=revision,
        status="accepted",
        term=0,
        is_migrated=is_migrated,
    )

    forged(memory, header, record_id, revision)

    messages = {it.message for it in memory.audit.verify().findings}
    assert ("its revisions do not follow the record's" in messages) == is_found


def test_a_changed_mark_of_migration_is_found_at_its_position(memory, old, folder, tables):
    report(memory.migrate(old(record("a"))))
    position = memory.revisions("a")[0].position
    memory.close()
    ((header,),) = tables.rows("SELECT header FROM events WHERE position = ?", position)
    changed = header.replace(b'"to_revision":3', b'"to_revision":5')
    tables.change("UPDATE events SET header = ? WHERE position = ?", changed, position)

    with open_memory("us_alice", **folder) as reopened:
        findings = reopened.audit.verify().findings

    assert position in {it.position for it in findings}


# -- the command line ---------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    env = {f"MEMORANDA_{it.upper()}": str(tmp_path / it) for it in ("data", "state", "home")}
    env |= {"MEMORANDA_SPACE": "us_alice", "NO_COLOR": "1"}

    def call(*arguments: str, **more: str) -> tuple[int, str, str]:
        with CliRunner().isolation(b"", {**env, **more}) as (out, err, _):
            code = main(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
            return code, out.getvalue().decode(), err.getvalue().decode()

    return call


def test_the_command_tells_in_words_what_became_of_the_store(run, old):
    odd = {"kind": "record", "value": {**value("y", sources=[source(ref("9"))]), "mood": 1}}
    path = old(*small(), record("x", sources=[source(ref("9"))]), odd)
    run("init")

    dry = run("migrate", str(path), "--dry-run")
    code, out, err = run("migrate", str(path))

    problem = "line 7: invalid_value: value.content: 1 lines were refused, and the others taken in"
    assert (code, err.splitlines()[0]) == (1, problem)
    assert out.splitlines() == [
        "Imported 5, already there 0, suppressed by a tombstone 0, refused 1.",
        "Conflicts opened 1, sources blocked 1.",
        "line 7: invalid_value: value.content",
        f"y cites the same words as x: {ref('9')}",
        "Unknown fields stay in the earlier store: mood (1).",
    ]
    assert dry == (1, out + "A dry run: nothing was written.\n", err)
    assert run("migrate", str(path))[1].startswith("Imported 0, already there 7,")
    assert run("audit", "verify")[0] == 0


def test_the_command_answers_a_program_with_the_same_numbers(run, old):
    code, out, _ = run("migrate", str(old(*small())), "--json")

    answer = json.loads(out)
    assert code == 1
    assert answer.pop("recovery_code")
    assert answer.pop("error")["code"] == "invalid_value"
    assert answer == {
        "ok": False, "imported": 3, "conflicts": 1, "blocked": 1, "already_there": 0,
        "suppressed": 0, "refused": {"invalid_value": 1}, "overlapping": [], "unknown_fields": {},
        "refused_lines": [{"line": 7, "code": "invalid_value", "field": "value.content"}],
        "dry_run": False,
    }  # fmt: skip


@pytest.mark.parametrize("command", ["migrate", "import"])
@pytest.mark.parametrize("store", [None, "", b"{", "folder"], ids=repr)
def test_no_ledger_is_made_for_what_is_no_store(run, tmp_path, command, store):
    path = tmp_path / "store"
    if isinstance(store, bytes):
        path.write_bytes(store)
    elif store == "folder":
        path.mkdir()

    for more in ([], ["--dry-run"]):
        code, out, err = run(command, "" if store == "" else str(path), *more)
        assert (code, out, "migration_failed" in err) == (1, "", True)

    assert "recovery code" not in err
    assert not (tmp_path / "data").exists()
    assert not (tmp_path / "state").exists()


def test_the_command_refuses_a_broken_store_whole(run, old):
    path = old(record("a", content="Kyoto"), b"{")
    run("init")

    code, out, err = run("migrate", str(path), "--json")
    words = run("migrate", str(path))

    error = json.loads(out)["error"]
    assert (code, error["code"], error["field"]) == (1, "migration_failed", "line 3")
    assert "Kyoto" not in out + err
    assert words[0] == 1
    assert "migration_failed: line 3" in words[2]


def test_every_command_refuses_while_the_earlier_store_cannot_be_read(run, old, tmp_path):
    nowhere = str(tmp_path / "nowhere.jsonl")
    run("init")

    for command in (["list"], ["status"], ["remember", "x"], ["audit", "verify"]):
        code, out, _ = run(*command, "--json", MEMORANDA_LEGACY=nowhere)
        assert (code, json.loads(out)["error"]["code"]) == (1, "migration_failed")
    assert run("list", MEMORANDA_LEGACY=str(old(record("a"))))[1].count("Fact of a") == 1


def test_the_command_that_opens_an_earlier_store_says_how_much_of_it_was_refused(run, old):
    path = str(old(record("a"), record("b", content="")))
    run("init")

    code, out, err = run("list", MEMORANDA_LEGACY=path)
    again = run("list", MEMORANDA_LEGACY=path)
    doctor = run("doctor", MEMORANDA_LEGACY=path)[1]

    told = "lines of the earlier store that were refused: 1 (invalid_value 1)"
    assert (code, err) == (0, f"{told}; `memoranda doctor` says more.\n")
    assert again == (0, out, "")
    assert f"{told}; `memoranda migrate FROM --dry-run` names them" in doctor


def test_the_command_says_what_to_settle_before_a_store_is_complete(run, old, tmp_path):
    run("init")
    with open_memory("us_alice", data=tmp_path / "data", state=tmp_path / "state") as memory:
        held_key(memory)

    out = run("migrate", str(old(record(ID))))[1]

    assert "line 2: outcome_unknown: value.id" in out
    assert "Settle what `memoranda operations` shows, then run it again." in out


@pytest.mark.parametrize("record_id", [it for it in ODD_IDS if it != "-x"])
def test_every_command_takes_an_id_of_any_shape(record_id, run, old):
    run("migrate", str(old(record(record_id, content="Kyoto"), record("other-id"))))

    def answer(*arguments: str) -> Json:
        code, out, err = run(*arguments, "--json")
        assert code == 0, (out, err)
        found: Json = json.loads(out)
        return found

    assert answer("show", record_id, "--history")["record"]["id"] == record_id
    assert answer("audit", "explain", record_id)["record_id"] == record_id
    assert answer("core", "add", record_id)["receipt"]["to_revision"] == 4
    assert answer("core", "drop", record_id)["receipt"]["to_revision"] == 5
    assert answer("correct", record_id, "Nara")["receipt"]["to_revision"] == 6
    assert answer("retire", record_id)["receipt"]["to_revision"] == 7
    for words in (["list", "--all"], ["show", record_id, "--history"], ["query", "--all"]):
        assert "\x1b" not in run(*words)[1]
    assert answer("forget", record_id)["receipt"]["to_revision"] == 8
    (gone,) = answer("forgotten", "list")["records"]
    assert gone["record"]["id"] == record_id
    assert "\x1b" not in run("forgotten", "list")[1]


def test_a_candidate_with_a_mark_and_no_partner_is_shown_and_decided(run, old):
    run("migrate", str(old(record("legacy-idea", status="candidate"), conflict("legacy-idea"))))

    for command in (["evidence", "legacy-idea"], ["show", "legacy-idea"]):
        code, out, _ = run(*command)
        assert code == 0
        assert "legacy-idea with no named record" in out
    assert run("reject", "legacy-idea", "--reason", "guess")[0] == 0


def test_a_short_beginning_names_no_record_and_a_whole_id_always_does(run, old):
    run("migrate", str(old(record("abc"), record("abcdefghijkl"))))

    assert run("forget", "ab", "--json")[0] == 1
    assert json.loads(run("show", "abc", "--json")[1])["record"]["id"] == "abc"
    assert json.loads(run("show", "abcdefghij", "--json")[1])["record"]["id"] == "abcdefghijkl"


def test_a_dry_run_makes_no_ledger(run, old, tmp_path):
    code, out, _ = run("migrate", str(old(record("a"))), "--dry-run", "--json")

    assert (code, json.loads(out)["error"]["code"]) == (1, "space_unknown")
    assert not (tmp_path / "data").exists()


def test_a_terminal_sees_a_bar_and_a_pipe_does_not(tmp_path, old):
    path = old(*(record(f"a{at}") for at in range(50)))
    env = {f"MEMORANDA_{it.upper()}": str(tmp_path / it) for it in ("data", "state", "home")}
    env |= {"MEMORANDA_SPACE": "us_alice", "TERM": "xterm"}
    program = str(Path(sys.executable).with_name("memoranda"))
    ours, theirs = pty.openpty()

    process = subprocess.Popen(
        [program, "migrate", str(path), "--json"], stdout=subprocess.PIPE, stderr=theirs, env=env
    )
    os.close(theirs)
    seen = b"".join(_until_closed(ours))
    out, _ = process.communicate(timeout=60)
    os.close(ours)

    assert json.loads(out)["imported"] == 50
    assert b"Migrating" in seen


def _until_closed(descriptor: int) -> Iterable[bytes]:
    try:
        while piece := os.read(descriptor, 65536):
            yield piece
    except OSError:
        return


def test_a_record_that_an_operation_holds_is_not_taken_over_from_under_it(memory, old):
    intent = {"name": "publish", "operation_id": "op-1", "key": "k", "content": "x"}
    held = memory.prepare(intent).record_id

    assert sums(memory.migrate(old(record(held)))) == {"outcome_unknown": 1}

    assert memory.commit(memory.operation("op-1").intent).to_revision == 1
