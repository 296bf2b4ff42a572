"""Invariants (PM 8): random scripts against a small model, and properties of the pure parts."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pydantic_core import PydanticCustomError

from memoranda.ledger.authority import BackgroundItem, ModelSession
from memoranda.ledger.commands import KEY_BYTES_MAX, normal_key
from memoranda.ledger.errors import Refused
from memoranda.ledger.events import RecordBody, RecordCommitted
from memoranda.ledger.personal import claims, record_id_of
from memoranda.ledger.receipts import ConflictReceipt, Receipt
from memoranda.ledger.sources import merged, message_ref, overlap, parse_ref
from memoranda.projections.history import RecordRead
from memoranda.tools.memory import Memory, open_memory

QUICK = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=20,
    stateful_step_count=10,
    suppress_health_check=[HealthCheck.too_slow],
)
PURE = settings(QUICK, max_examples=100)

# -- the model -------------------------------------------------------------------------------

MAIN = "s-main-1"
TEXTS = {42: "Please answer me in Chinese", 50: "我对花生过敏🥜。I moved to Kyoto.", 88: "Tea!"}
KEYS = ("preference/reply-language", "preference/tea", "profile/home-city")
PLACES = ("42", "42#0-6", "42#6-13", "50", "50#0-7", "50#8-25", "88")
CAPTURED = {"task-7": 42, "task-9": 50}
CALLERS = ("primary", "primary", "primary", "person", "task-7", "task-9")
ROWS = {
    "propose": {None: "candidate", "rejected": "candidate", "forgotten": "candidate"},
    "publish": {None: "accepted", "rejected": "accepted", "forgotten": "accepted"},
    "revise": {"candidate": "candidate"},
    "accept": {"candidate": "accepted"},
    "reject": {"candidate": "rejected"},
    "correct": {"candidate": "accepted", "accepted": "accepted"},
    "tier": {"accepted": "accepted"},
    "retire": {"accepted": "retired"},
    "reactivate": {"retired": "accepted"},
    "forget": dict.fromkeys(("candidate", "accepted", "retired", "rejected"), "forgotten"),
}
LIVE = {"candidate", "accepted", "retired"}
Points = frozenset[tuple[int, int]]


def points(place: str) -> Points:
    """The code points that a place names: what ranges are, without any arithmetic of ranges."""
    seq, _, span = place.partition("#")
    start, end = map(int, span.split("-")) if span else (0, len(TEXTS[int(seq)]))
    return frozenset((int(seq), at) for at in range(start, end))


def ref(place: str) -> str:
    return f"personal-message:{MAIN}:{place}"


@dataclass
class Fact:
    """A record as the model knows it."""

    status: str | None = None
    revision: int = 0
    content: str | None = None
    evidence: str | None = None
    tier: str | None = None
    places: tuple[str, ...] = ()
    edits: tuple[str, ...] = ()
    opened_by: str | None = None
    ever: Points = frozenset()
    blocked: Points = frozenset()
    rejected: Points = frozenset()

    @property
    def cited(self) -> Points:
        return frozenset().union(*map(points, self.places))


@dataclass(frozen=True)
class Command:
    who: str
    action: str
    key: str
    place: str
    revision: int
    operation_id: str

    @property
    def item(self) -> str | None:
        return self.who if self.who in CAPTURED else None


@dataclass
class Model:
    """The state machine of PM 1.6 with claims, blocks and conflicts, as plainly as possible."""

    facts: dict[str, Fact] = field(default_factory=lambda: {key: Fact() for key in KEYS})
    conflicts: dict[str, tuple[str, str]] = field(default_factory=dict)

    def refusal(self, command: Command) -> str | None:
        """The number that wins by PM 2.5; None when the command is taken."""
        rules = (self._caller, self._state, self._form, self._source, self._conflict)
        return next((number for each in rules if (number := each(command))), None)

    def _caller(self, command: Command) -> str | None:
        fact = self.facts[command.key]
        if command.who == "person" and command.action in {"propose", "revise"}:
            return "F2"
        if command.item is None:
            return None
        is_anothers = fact.status is not None and fact.opened_by != command.item
        if (
            command.action not in {"propose", "revise"}
            or fact.status in {"accepted", "retired"}
            or (command.action == "revise" and is_anothers)
        ):
            return "F3"
        return None

    def _state(self, command: Command) -> str | None:
        fact = self.facts[command.key]
        if command.action in {"propose", "publish"}:
            if fact.status in LIVE:
                return "F17"
            return "F33" if command.item and fact.status == "forgotten" else None
        if fact.status is None:
            return "F35"
        if command.revision != fact.revision:
            return "F16" if command.action in {"accept", "reject"} else "F17"
        return None if fact.status in ROWS[command.action] else "F34"

    def _form(self, command: Command) -> str | None:
        is_repeated = points(command.place) & self.facts[command.key].cited
        return "F19" if command.action == "correct" and is_repeated else None

    def _source(self, command: Command) -> str | None:
        fact = self.facts[command.key]
        is_carried = command.action == "revise" and command.place in fact.places
        if command.action == "accept":
            wanted = fact.cited
        elif command.action in {"propose", "publish", "revise", "correct"} and not is_carried:
            wanted = points(command.place)
        else:
            return None
        if command.item and not wanted <= points(str(CAPTURED[command.item])):
            return "F7"
        if any(wanted & other.blocked for other in self.facts.values()):
            return "F15"
        others = (other for key, other in self.facts.items() if key != command.key)
        if any(wanted & other.cited for other in others if other.status in LIVE):
            return "F14"
        is_proposal = command.action in {"propose", "revise"}
        return "F30" if is_proposal and wanted & fact.rejected else None

    def _conflict(self, command: Command) -> str | None:
        is_open = any(command.key in pair for pair in self.conflicts.values())
        return "F27" if command.action == "accept" and is_open else None

    def take(self, command: Command) -> None:
        """What the command does to the record, once nothing stands against it."""
        fact, action = self.facts[command.key], command.action
        was_candidate = fact.status == "candidate"
        fact.status = ROWS[action][fact.status]
        fact.revision += 1
        if action in {"propose", "publish", "revise", "correct"}:
            self._say(fact, command)
        kept = fact.tier or "detail"
        tiers = {"tier": "core", "correct": kept, "retire": kept}
        fact.tier = tiers.get(action, "detail")
        if action != "revise":
            fact.opened_by = command.item
        if action == "reject":
            fact.rejected |= fact.cited
        if action == "forget":
            self._forget(fact)
        self._end_conflicts(command, was_candidate=was_candidate)

    def _end_conflicts(self, command: Command, *, was_candidate: bool) -> None:
        def is_void(candidate: str, other: str) -> bool:
            if command.action == "forget":
                return command.key in {candidate, other}
            is_decided = command.action in {"correct", "reject"} and was_candidate
            return is_decided and candidate == command.key

        kept = {each: pair for each, pair in self.conflicts.items() if not is_void(*pair)}
        self.conflicts = kept

    def _say(self, fact: Fact, command: Command) -> None:
        is_stated = command.action in {"publish", "correct"}
        is_by_hand = command.who == "person" and is_stated
        fact.content = command.operation_id
        fact.evidence = (
            "explicit"
            if is_stated
            else fact.evidence
            if command.action == "revise"
            else "inference"
        )
        earlier = (fact.places, fact.edits) if command.action == "correct" else ((), ())
        fact.places = (*earlier[0], command.place)
        fact.edits = (*earlier[1], command.operation_id) if is_by_hand else earlier[1]
        fact.ever |= points(command.place)

    def _forget(self, fact: Fact) -> None:
        fact.blocked |= fact.ever
        fact.ever = fact.rejected = frozenset()
        fact.content = fact.evidence = fact.tier = None
        fact.places = fact.edits = ()


# -- scripts against the ledger --------------------------------------------------------------


class Scripts(RuleBasedStateMachine):
    """Random commands of all callers, each answered by the model first and by the ledger then."""

    def __init__(self, folder: Path, world: Any) -> None:
        super().__init__()
        self.folder, self.world = folder, world
        self.model, self.sent = Model(), []
        self.count = 0
        self.memory = self.open()
        self.memory.host.bind_primary(MAIN)
        for seq, text in TEXTS.items():
            message = {"session": MAIN, "seq": seq, "role": "user", "text": text}
            list(self.memory.capture([{**message, "at": "2026-10-05"}]))
        for item, seq in CAPTURED.items():
            self.memory.host.open_task(item_id=item, captured_ref=ref(str(seq)))
            self.memory.host.authorize(
                authorization_id=f"leave-{item}", item_id=item, requirement_revision=1,
                executor_session_id=f"s-{item}",
            )  # fmt: skip

    def open(self) -> Memory:
        folders = {"data": self.folder / "data", "state": self.folder / "state"}
        return open_memory("us_alice", **folders, stamps=self.world.stamps)

    def caller(self, who: str) -> Memory:
        if who == "person":
            return self.memory
        if who == "primary":
            return self.memory.acting_as(ModelSession(MAIN, "agent-main"))
        item = BackgroundItem(who, 1, f"s-{who}", f"agent-{who}", f"leave-{who}")
        return self.memory.acting_as(item)

    def send(self, command: Command) -> Receipt | Refused:
        """The command by its name; what it says is its operation id, so that no two are alike."""
        memory, sources = self.caller(command.who), [ref(command.place)]
        record_id, revision = record_id_of(command.key), max(command.revision, 1)
        named: dict[str, Callable[..., Receipt | Refused]] = {
            "propose": lambda **op: memory.propose(
                command.key, command.operation_id, sources=sources, **op
            ),
            "publish": lambda **op: memory.publish(
                command.key, command.operation_id, sources=sources, **op
            ),
            "revise": lambda **op: memory.revise(
                record_id, revision, content=command.operation_id, sources=sources, **op
            ),
            "accept": lambda **op: memory.accept(record_id, revision, **op),
            "reject": lambda **op: memory.reject(record_id, revision, "a guess", **op),
            "correct": lambda **op: memory.correct(
                record_id, revision, command.operation_id, sources=sources, **op
            ),
            "tier": lambda **op: memory.choose_tier(record_id, revision, "core", **op),
            "retire": lambda **op: memory.retire(record_id, revision, "over", **op),
            "reactivate": lambda **op: memory.reactivate(record_id, revision, **op),
            "forget": lambda **op: memory.forget(record_id, revision, **op),
        }
        return named[command.action](operation_id=command.operation_id)

    def act(self, who: str, action: str, key: str, place: str, *, stale: bool = False) -> None:
        self.count += 1
        revision = self.model.facts[key].revision + stale
        command = Command(who, action, key, place, revision, f"op-{self.count}")
        expected, before = self.model.refusal(command), self.memory.status().position

        answer = self.send(command)

        if isinstance(answer, Refused):
            assert answer.refusal.number == expected
            assert self.memory.status().position == before
            return
        assert expected is None
        self.model.take(command)
        self.sent.append((command, answer))

    @rule(
        who=st.sampled_from(CALLERS),
        action=st.sampled_from(sorted(ROWS)),
        key=st.sampled_from(KEYS),
        place=st.sampled_from(PLACES),
        stale=st.integers(0, 7).map(lambda one_in_eight: one_in_eight == 7),
    )
    def anyone_tries_anything(
        self, who: str, action: str, key: str, place: str, *, stale: bool
    ) -> None:
        self.act(who, action, key, place, stale=stale)

    @rule(data=st.data(), key=st.sampled_from(KEYS), place=st.sampled_from(PLACES))
    def someone_goes_on(self, data: st.DataObject, key: str, place: str) -> None:
        status = self.model.facts[key].status
        open_rows = [action for action in sorted(ROWS) if status in ROWS[action]]
        self.act("primary", data.draw(st.sampled_from(open_rows)), key, place)

    @rule(key=st.sampled_from(KEYS), place=st.sampled_from(PLACES))
    def an_item_goes_on(self, key: str, place: str) -> None:
        fact = self.model.facts[key]
        who = fact.opened_by or ("task-7" if place.startswith("42") else "task-9")
        self.act(who, "revise" if fact.status == "candidate" else "propose", key, place)

    @rule(candidate=st.sampled_from(KEYS), other=st.sampled_from(KEYS))
    def the_primary_session_opens_a_conflict(self, candidate: str, other: str) -> None:
        statuses = [self.model.facts[key].status for key in (candidate, other)]
        is_missing = any(status in {None, "forgotten"} for status in statuses)
        is_no_pair = statuses[0] != "candidate" or candidate == other
        expected = "F35" if is_missing else "F34" if is_no_pair else None

        answer = self.caller("primary").open_conflict(
            record_id_of(candidate), record_id_of(other), "not both"
        )

        if isinstance(answer, Refused):
            assert answer.refusal.number == expected
            return
        assert expected is None
        known = {frozenset(pair): each for each, pair in self.model.conflicts.items()}
        assert answer.conflict_id == known.get(frozenset({candidate, other}), answer.conflict_id)
        self.model.conflicts.setdefault(answer.conflict_id, (candidate, other))

    @precondition(lambda self: self.model.conflicts)
    @rule()
    def the_person_resolves_a_conflict(self) -> None:
        conflict_id = next(iter(self.model.conflicts))

        answer = self.memory.resolve_conflict(conflict_id, "keep_both", "the person said so")

        assert isinstance(answer, ConflictReceipt)
        del self.model.conflicts[conflict_id]

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def an_operation_is_sent_again(self, data: st.DataObject) -> None:
        command, receipt = data.draw(st.sampled_from(self.sent))
        before = self.memory.status().position

        answer = self.send(command)

        intent = self.memory.operation(command.operation_id).intent
        if intent is not None:
            assert self.caller(command.who).commit(intent) == answer
        if self.model.facts[command.key].revision == receipt.to_revision:
            assert answer == receipt.model_copy(update={"replayed": True})
        else:
            assert isinstance(answer, Refused)
            assert answer.refusal.number == "F22"
            assert answer.current_revision == self.model.facts[command.key].revision
        assert self.memory.status().position == before

    @rule()
    def the_ledger_is_opened_again(self) -> None:
        self.memory.close()
        self.memory = self.open()

    @invariant()
    def what_is_served_is_what_the_model_says(self) -> None:
        served = {key: self.memory.read(record_id_of(key), include_inactive=True) for key in KEYS}
        for key, read in served.items():
            fact = self.model.facts[key]
            if fact.status is None:
                assert isinstance(read, Refused)
                continue
            assert isinstance(read, RecordRead)
            assert (read.record.status, read.record.revision) == (fact.status, fact.revision)
            sources = getattr(read.record, "sources", ())
            assert {source.ref for source in sources} == {*map(ref, fact.places), *fact.edits}
            for name in ("content", "evidence", "tier"):
                assert getattr(read.record, name, None) == getattr(fact, name)
            about = {each.conflict_id for each in read.conflicts}
            assert about == {each for each, pair in self.model.conflicts.items() if key in pair}

    def teardown(self) -> None:
        listed = self.memory.records(include_inactive=True)
        self.check_log(listed)
        report = self.memory.audit.verify()
        self.memory.close()
        self.memory = self.open()
        assert report.findings == ()
        assert self.memory.audit.verify() == report
        assert self.memory.records(include_inactive=True) == listed
        self.memory.close()

    def check_log(self, listed: tuple[RecordRead, ...]) -> None:
        """The log, folded here by itself: PM 8 a, b, c, d and f."""
        values, revisions, operations = {}, {}, []
        with self.memory._parts.log.reading() as store:
            for event in store.page(0, 10_000):
                operation, record = event.tag("personal:op"), event.tag("personal:rec")
                operations += [operation.blind] if operation else []
                if not isinstance(event.header, RecordCommitted):
                    continue
                revisions.setdefault(record.blind, []).append(event.header.to_revision)
                body = event.body(RecordBody)
                values[record.blind] = body.value if body else None
                if body and body.actor.role == "item":
                    assert (body.value["status"], body.value["tier"]) == ("candidate", "detail")
        served = [read.record.model_dump(mode="json") for read in listed]
        assert sorted(values.values(), key=str) == sorted(served, key=str)
        assert all(each == list(range(1, len(each) + 1)) for each in revisions.values())
        assert len(operations) == len(set(operations))
        owned = [ref for read in listed for ref in claims(read.record)]
        assert not any(overlap(a, b) for at, a in enumerate(owned) for b in owned[:at])


def test_every_script_ends_where_the_model_says(
    world: Any, tmp_path_factory: pytest.TempPathFactory, *, exhaustive: bool
) -> None:
    more = settings(QUICK, max_examples=200, stateful_step_count=30, derandomize=False)

    def scripts() -> Scripts:
        return Scripts(tmp_path_factory.mktemp("script"), type(world)())

    run_state_machine_as_test(scripts, settings=more if exhaustive else QUICK)


# -- references ------------------------------------------------------------------------------

SPANS = st.tuples(st.integers(0, 12), st.integers(1, 8)).map(lambda it: f"#{it[0]}-{sum(it)}")
REFS = st.tuples(st.sampled_from([":9", ":19"]), SPANS | st.just("")).map(
    lambda it: f"personal-message:s{it[0]}{it[1]}"
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
SEQS = st.integers(1, 2**53 - 1)
WHOLE = 40
"""More code points than any span here reaches."""


def named_points(text: str) -> set[tuple[str, int]]:
    """The code points of a reference, read off its text."""
    address, _, span = text.partition("#")
    start, end = map(int, span.split("-")) if span else (0, WHOLE)
    return {(address, at) for at in range(start, end)}


@PURE
@given(NAMES, SEQS, st.none() | st.tuples(st.integers(0, 2**50), st.integers(1, 2**50)))
def test_a_reference_is_read_back_as_it_was_written(
    session_id: str, seq: int, span: tuple[int, int] | None
) -> None:
    start, end = (span[0], sum(span)) if span else (None, None)
    written = message_ref(session_id, seq)._replace(start=start, end=end)

    read = parse_ref(written.text)

    assert read == written
    assert read.text == written.text


@st.composite
def almost_references(draw: st.DrawFn) -> str:
    """A canonical reference with one part taken out, doubled or replaced."""
    text = message_ref(draw(NAMES), draw(SEQS)).text + draw(SPANS | st.just(""))
    at, length = draw(st.integers(0, len(text))), draw(st.integers(0, 2))
    with_other = draw(st.text(max_size=2) | st.sampled_from(["%", "%3A", ":", "#", "0", "-"]))
    return text[:at] + with_other + text[at + length :]


@PURE
@given(almost_references())
def test_what_is_taken_for_a_reference_is_canonical_to_the_letter(text: str) -> None:
    read = parse_ref(text)

    assert read is None or read.text == text


@PURE
@given(REFS, REFS)
def test_overlapping_is_sharing_a_code_point_whichever_comes_first(one: str, other: str) -> None:
    shared = named_points(one) & named_points(other)

    assert overlap(one, other) is overlap(other, one) is bool(shared)


@PURE
@given(st.lists(REFS | st.sampled_from(["edit-1", "edit-2", "notes.md"]), max_size=8), st.data())
def test_merging_keeps_every_code_point_and_leaves_no_two_ranges_that_touch(
    refs: list[str], data: st.DataObject
) -> None:
    ranges = merged(refs)

    def covered(refs: list[str]) -> set[tuple[str, int]]:
        return set().union(*(named_points(ref) for ref in refs if ":" in ref))

    assert covered(ranges) == covered(refs)
    assert {ref for ref in ranges if ":" not in ref} == {ref for ref in refs if ":" not in ref}
    for at, one in enumerate(ranges):
        for other in ranges[:at]:
            assert not overlap(one, other)
            assert parse_ref(one) is None or not touch(one, other)
    assert merged(ranges) == ranges == merged(data.draw(st.permutations(refs)))


def touch(one: str, other: str) -> bool:
    widened = {(address, at + 1) for address, at in named_points(one)}
    lowered = {(address, at - 1) for address, at in named_points(one)}
    return ":" in other and bool((widened | lowered) & named_points(other))


# -- keys ------------------------------------------------------------------------------------


def normal(key: str) -> Iterator[str]:
    """The normal form, or nothing where there is none."""
    with suppress(PydanticCustomError):
        yield normal_key(key)


@PURE
@given(st.text(max_size=40))
def test_the_normal_form_of_a_key_is_its_own_and_keeps_the_rules(key: str) -> None:
    for form in normal(key):
        assert list(normal(form)) == [form]
        assert form == form.strip()
        assert "  " not in form
        assert 1 <= len(form.encode()) <= KEY_BYTES_MAX


@PURE
@given(st.text(st.characters(max_codepoint=0x2FF, categories=["L", "N", "P", "Zs"]), max_size=20))
def test_case_blanks_and_width_do_not_tell_keys_apart(key: str) -> None:
    spread = f"\u3000 {key.replace(' ', '   ')} "

    assert list(normal(spread)) == list(normal(key))
    assert list(normal(key.lower())) == list(normal(key))
