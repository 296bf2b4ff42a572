"""Every read surface against a plain model: random scripts of all commands, retries and crashes."""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.simulation import Killed, drop

from memoranda.ledger.authority import BackgroundItem, ModelSession
from memoranda.ledger.errors import Refused
from memoranda.ledger.events import OperationPrepared, RecordBody, RecordCommitted
from memoranda.ledger.personal import claims, record_id_of
from memoranda.ledger.receipts import ConflictReceipt, Receipt
from memoranda.ledger.sources import overlap
from memoranda.projections.history import RecordRead
from memoranda.tools.memory import Memory, open_memory

QUICK = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=20,
    stateful_step_count=10,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)

# -- the model -------------------------------------------------------------------------------

MAIN = "s-main-1"
TEXTS = {42: "Please answer me in Chinese", 50: "我对花生过敏🥜。I moved to Kyoto.", 88: "Tea!"}
TIMES = {42: datetime(2026, 10, 5, 9, tzinfo=UTC), 50: datetime(2026, 8, 1, tzinfo=UTC)}
TIMES[88] = TIMES[42] + timedelta(hours=1)
WORDS = {42: "chinese", 50: "kyoto", 88: "green"}
RECENT = timedelta(days=14)
KEYS = ("preference/reply-language", "preference/tea", "profile/home-city")
PLACES = ("42", "42#0-6", "42#6-13", "50", "50#0-7", "50#8-25", "88")
CAPTURED = {"task-7": 42, "task-9": 50}
WAYS = ("batch", "batch", "prepared", "killed")
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
    newest: datetime = TIMES[50]
    expires: datetime | None = None
    changed: int = 0
    waiting_since: int = 0
    delivery: int | None = None
    opened_by: str | None = None
    ever: Points = frozenset()
    blocked: Points = frozenset()
    rejected: Points = frozenset()

    @property
    def seqs(self) -> list[int]:
        return [int(place.partition("#")[0]) for place in self.places]

    def is_active(self, now: datetime) -> bool:
        return self.status == "accepted" and (self.expires is None or self.expires > now)

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
    at: datetime
    is_passing: bool = False

    @property
    def content(self) -> str:
        return f"{self.operation_id} {WORDS[int(self.place.partition('#')[0])]}"

    @property
    def expires(self) -> datetime | None:
        return self.at + timedelta(days=1) if self.is_passing else None

    @property
    def item(self) -> str | None:
        return self.who if self.who in CAPTURED else None


@dataclass
class Model:
    """The state machine of PM 1.6 with claims, blocks and conflicts, as plainly as possible."""

    facts: dict[str, Fact] = field(default_factory=lambda: {key: Fact() for key in KEYS})
    conflicts: dict[str, tuple[str, str]] = field(default_factory=dict)
    deliveries: int = 0
    changes: int = 0

    def refusal(self, command: Command) -> str | None:
        """The number that wins by PM 2.5; None when the command is taken."""
        rules = (self._caller, self._state, self._form, self._source, self._end)
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
            return "F33" if command.item and fact.status == "forgotten" else None
        if fact.status is None:
            return "F35"
        if command.revision != fact.revision:
            return "F16" if command.action in {"accept", "reject"} else "F17"
        is_core_already = command.action == "tier" and fact.tier == "core"
        is_open = fact.status in ROWS[command.action] and not is_core_already
        return None if is_open else "F34"

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
        if number := self.stands_against(wanted, command.key):
            return number
        is_proposal = command.action in {"propose", "revise"}
        return "F30" if is_proposal and wanted & fact.rejected else None

    def stands_against(self, wanted: Points, key: str) -> str | None:
        """Why a record may not rest on these code points."""
        if any(wanted & other.blocked for other in self.facts.values()):
            return "F15"
        others = (other for each, other in self.facts.items() if each != key)
        is_owned = any(wanted & other.cited for other in others if other.status in LIVE)
        return "F14" if is_owned else None

    def _end(self, command: Command) -> str | None:
        is_opening = command.action in {"propose", "publish"}
        if is_opening and self.facts[command.key].status in LIVE:
            return "F17"
        is_open = any(command.key in pair for pair in self.conflicts.values())
        return "F27" if command.action == "accept" and is_open else None

    def take(self, command: Command) -> None:
        """What the command does to the record, once nothing stands against it."""
        fact, action = self.facts[command.key], command.action
        was_candidate = fact.status == "candidate"
        self.changes += 1
        fact.changed = self.changes
        fact.status = ROWS[action][fact.status]
        fact.revision += 1
        if action in {"propose", "publish", "revise", "correct"}:
            self._say(fact, command)
        kept = fact.tier or "detail"
        tiers = {"tier": "core", "correct": kept, "retire": kept}
        fact.tier = tiers.get(action, "detail")
        if action != "revise":
            fact.opened_by = command.item
            fact.waiting_since, fact.delivery = self.changes, None
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
        fact.content = command.content
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
        if command.action in {"propose", "publish"}:
            fact.expires = command.expires
        said = [TIMES[seq] for seq in fact.seqs]
        kept = [fact.newest] if earlier[1] else []
        fact.newest = max([*said, *kept, *([command.at] if is_by_hand else [])])

    def deliver(self, candidates: list[str]) -> None:
        for key in candidates:
            self.deliveries += 1
            self.facts[key].delivery = self.deliveries

    # -- what is to be seen ---------------------------------------------------------------------

    def named(self, *statuses: str) -> list[str]:
        return [key for key, fact in self.facts.items() if fact.status in statuses]

    def active(self, now: datetime) -> list[str]:
        """Newest source first, then by id."""
        found = [key for key, fact in self.facts.items() if fact.is_active(now)]
        return sorted(
            found, key=lambda key: (-self.facts[key].newest.timestamp(), record_id_of(key))
        )

    def zones(self, now: datetime, word: str) -> dict[str, list[str]]:
        active = self.active(now)
        core = [key for key in active if self.facts[key].tier == "core"]
        rest = [key for key in active if key not in core]
        recent = [key for key in rest if now - RECENT <= self.facts[key].newest <= now]
        detail = [key for key in rest if key not in recent and word in self.facts[key].content]
        core.sort(key=lambda key: -self.facts[key].changed)
        return {"core": core, "recent": recent, "detail": detail}

    def waiting(self) -> list[str]:
        """Candidates, those never shown first, then those shown longest ago."""

        def turn(key: str) -> tuple[int, int]:
            fact = self.facts[key]
            return fact.delivery or 0, fact.waiting_since

        return sorted(self.named("candidate"), key=turn)

    def _forget(self, fact: Fact) -> None:
        fact.blocked |= fact.ever
        fact.ever = fact.rejected = frozenset()
        fact.content = fact.evidence = fact.tier = fact.expires = None
        fact.places = fact.edits = ()


# -- scripts against the ledger --------------------------------------------------------------


class Scripts(RuleBasedStateMachine):
    """Random commands of all callers, each answered by the model first and by the ledger then."""

    def __init__(self, folder: Path, engine: dict[str, str], world: Any) -> None:
        super().__init__()
        self.folder, self.engine, self.world = folder, engine, world
        self.lives = 0
        self.model = Model()
        self.sent: list[tuple[Command, Receipt]] = []
        self.ends: list[tuple[str, str | None]] = []
        """Every operation that ended, in order, with the key of its record."""
        self.count = 0
        self.memory = self.open()
        self.memory.host.bind_primary(MAIN)
        for seq, text in TEXTS.items():
            message = {"session": MAIN, "seq": seq, "role": "user", "text": text}
            list(self.memory.capture([{**message, "at": TIMES[seq]}]))
        for item, seq in CAPTURED.items():
            self.memory.host.open_task(item_id=item, captured_ref=ref(str(seq)))
            self.memory.host.authorize(
                authorization_id=f"leave-{item}", item_id=item, requirement_revision=1,
                executor_session_id=f"s-{item}",
            )  # fmt: skip

    @property
    def life(self) -> Path:
        return self.folder / f"life-{self.lives}"

    def open(self) -> Memory:
        folders = {"data": self.life / "data", "state": self.life / "state"}
        return open_memory("us_alice", **folders, **self.engine, stamps=self.world.stamps)

    def caller(self, who: str) -> Memory:
        if who == "person":
            return self.memory
        if who == "primary":
            return self.memory.acting_as(ModelSession(MAIN, "agent-main"))
        item = BackgroundItem(who, 1, f"s-{who}", f"agent-{who}", f"leave-{who}")
        return self.memory.acting_as(item)

    # -- commands -------------------------------------------------------------------------------

    def request(self, command: Command) -> dict[str, Any]:
        record_id, revision = record_id_of(command.key), max(command.revision, 1)
        on_record = {"record_id": record_id, "expected_revision": revision}
        said = {"content": command.content, "sources": [ref(command.place)]}
        dated = {"key": command.key, **said, "expires_at": command.expires}
        fields = {
            "propose": dated,
            "publish": dated,
            "revise": {**on_record, **said},
            "accept": {"record_id": record_id, "inspected_revision": revision},
            "reject": {**on_record, "reason": "a guess"},
            "correct": {**on_record, **said},
            "tier": {**on_record, "tier": "core"},
            "retire": {**on_record, "reason": "over"},
            "reactivate": on_record,
            "forget": on_record,
        }[command.action]
        return {"name": command.action, "operation_id": command.operation_id, **fields}

    def send(self, command: Command, way: str = "batch") -> Receipt | Refused:
        memory, request = self.caller(command.who), self.request(command)
        if way == "prepared":
            prepared = memory.prepare(request)
            if isinstance(prepared, Refused):
                return prepared
            assert self.memory.operations(state="prepared")[0].position == prepared.position
            intent = self.memory.operation(command.operation_id).intent
            return memory.commit(intent)
        (answer,) = memory.commit_many([request])
        return answer

    def act(
        self,
        who: str,
        action: str,
        key: str,
        place: str,
        *,
        stale: bool = False,
        way: str = "batch",
    ) -> None:
        self.count += 1
        revision = self.model.facts[key].revision + stale
        operation_id, is_passing = f"op-{self.count}", self.count % 3 == 0
        command = Command(
            who, action, key, place, revision, operation_id, self.world.moment, is_passing
        )
        expected, before = self.model.refusal(command), self.memory.status().position

        if way == "killed":
            is_there = self.sent_by_a_process_that_dies(command)
            if is_there:
                self.took(command, self.memory.operation(operation_id).receipt)
                return
        answer = self.send(command, way)

        if isinstance(answer, Refused):
            assert answer.refusal.number == expected
            assert way == "killed" or self.memory.status().position == before
        else:
            self.took(command, answer)
            assert expected is None

    def took(self, command: Command, receipt: Receipt) -> None:
        self.model.take(command)
        self.sent.append((command, receipt))
        self.ends.append((command.operation_id, command.key))

    def sent_by_a_process_that_dies(self, command: Command) -> bool:
        """Whether the command was done when its process was killed, at a step of its own choice."""
        steps_left = self.count % 5

        def kill(_: str) -> None:
            nonlocal steps_left
            steps_left -= 1
            if steps_left < 0:
                self.world.at_step = lambda _: None
                left = self.folder / f"life-{self.lives + 1}"
                shutil.copytree(self.life, left, ignore=shutil.ignore_patterns("*-shm"))
                raise Killed

        self.world.at_step = kill
        try:
            self.send(command)
        except Killed:
            drop(self.memory)
            self.lives += 1
            self.memory = self.open()
        self.world.at_step = lambda _: None
        return not isinstance(self.memory.operation(command.operation_id), Refused)

    @rule(
        who=st.sampled_from(CALLERS),
        action=st.sampled_from(sorted(ROWS)),
        key=st.sampled_from(KEYS),
        place=st.sampled_from(PLACES),
        stale=st.integers(0, 7).map(lambda one_in_eight: one_in_eight == 7),
        way=st.sampled_from(WAYS),
    )
    def anyone_tries_anything(
        self, who: str, action: str, key: str, place: str, *, stale: bool, way: str
    ) -> None:
        self.act(who, action, key, place, stale=stale, way=way)

    @rule(
        data=st.data(),
        who=st.sampled_from(["primary", "primary", "person"]),
        key=st.sampled_from(KEYS),
        place=st.sampled_from(PLACES),
        way=st.sampled_from(WAYS),
    )
    def someone_goes_on(
        self, data: st.DataObject, who: str, key: str, place: str, way: str
    ) -> None:
        status = self.model.facts[key].status
        open_rows = [action for action in sorted(ROWS) if status in ROWS[action]]
        self.act(who, data.draw(st.sampled_from(open_rows)), key, place, way=way)

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
        known = {frozenset(pair): each for each, pair in self.model.conflicts.items()}
        is_known = answer.conflict_id == known.get(frozenset({candidate, other}))
        assert expected is None or is_known
        self.model.conflicts.setdefault(answer.conflict_id, (candidate, other))
        self.ends.append((answer.operation_id, None))

    @precondition(lambda self: self.model.conflicts)
    @rule()
    def the_person_resolves_a_conflict(self) -> None:
        conflict_id = next(iter(self.model.conflicts))

        answer = self.memory.resolve_conflict(conflict_id, "keep_both", "the person said so")

        assert isinstance(answer, ConflictReceipt)
        del self.model.conflicts[conflict_id]
        self.ends.append((answer.operation_id, None))

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

    @rule(hours=st.sampled_from([1, 23, 24, 13 * 24]))
    def time_passes(self, hours: int) -> None:
        self.world.move(hours=hours)

    @rule()
    def a_step_lists_its_candidates(self) -> None:
        recalled = self.caller("primary").recall()

        self.caller("primary").note_delivery(recalled)

        self.model.deliver(self.model.waiting())
        assert self.caller("primary").recall(step=recalled.step) == recalled.model_copy(
            update={"position": self.memory.status().position}
        )

    @rule()
    def the_ledger_is_opened_again(self) -> None:
        before = self.everything()
        self.memory.close()
        self.memory = self.open()
        assert self.everything() == before

    @rule()
    def the_views_are_computed_again(self) -> None:
        before = self.everything()
        self.memory.rebuild()
        assert self.everything() == before

    # -- every surface --------------------------------------------------------------------------

    @invariant()
    def what_is_served_is_what_the_model_says(self) -> None:
        for key in KEYS:
            fact, record_id = self.model.facts[key], record_id_of(key)
            read = self.memory.read(record_id, include_inactive=True)
            revisions = self.memory.revisions(record_id)
            if fact.status is None:
                assert isinstance(read, Refused)
                assert isinstance(revisions, Refused)
                continue
            assert isinstance(read, RecordRead)
            assert read.is_active == fact.is_active(self.world.moment)
            plain = self.memory.read(record_id)
            assert plain == read if read.is_active else isinstance(plain, Refused)
            assert (read.record.status, read.record.revision) == (fact.status, fact.revision)
            sources = getattr(read.record, "sources", ())
            assert {source.ref for source in sources} == {*map(ref, fact.places), *fact.edits}
            for name in ("content", "evidence", "tier"):
                assert getattr(read.record, name, None) == getattr(fact, name)
            about = {each.conflict_id for each in read.conflicts}
            assert about == {each for each, pair in self.model.conflicts.items() if key in pair}
            assert [each.revision for each in revisions] == list(range(1, fact.revision + 1))
            assert (revisions[-1].status, revisions[-1].content) == (fact.status, fact.content)
            if fact.status == "candidate":
                self.check_evidence(key, read)

    def check_evidence(self, key: str, read: RecordRead) -> None:
        fact, evidence = self.model.facts[key], self.memory.evidence(read.record.id)
        assert (evidence.candidate, evidence.conflicts) == (read.record, read.conflicts)
        for source, place in zip(evidence.sources, fact.places, strict=True):
            seq, number = (
                int(place.partition("#")[0]),
                self.model.stands_against(points(place), key),
            )
            codes = {"F14": "source_in_use", "F15": "source_forgotten", None: None}
            assert (source.ref, source.code) == (ref(place), codes[number])
            assert source.text == (TEXTS[seq] if number is None else None)

    @invariant()
    def every_list_is_what_the_model_says(self) -> None:
        model, now, memory = self.model, self.world.moment, self.memory
        active = [record_id_of(key) for key in model.active(now)]
        known = [key for key in KEYS if model.facts[key].status]
        assert sorted(ids(memory.records())) == sorted(active)
        everything = memory.records(include_inactive=True)
        assert sorted(ids(everything)) == sorted(map(record_id_of, known))
        assert ids(self.pages(limit=1)) == ids(self.pages(limit=100)) == active
        for word in WORDS.values():
            with_word = [key for key in model.active(now) if word in model.facts[key].content]
            assert ids(self.pages(text=word)) == list(map(record_id_of, with_word))
            found = ids(each.found for each in memory.search(word))
            assert sorted(found) == sorted(map(record_id_of, with_word))
        statuses = {status for key in known if (status := model.facts[key].status)}
        counts = {status: len(model.named(status)) for status in statuses}
        assert memory.status().records == counts
        for status in statuses:
            listed = self.pages(status=status, include_inactive=True)
            assert sorted(ids(listed)) == sorted(map(record_id_of, model.named(status)))
        by_age = sorted(model.named("candidate"), key=lambda key: model.facts[key].waiting_since)
        assert ids(memory.candidates()) == list(map(record_id_of, by_age))

    @invariant()
    def every_step_recalls_what_the_model_says(self) -> None:
        for word in ("", "kyoto"):
            recalled = self.caller("primary").recall(word)
            zones = {zone.name: [fact.record_id for fact in zone.facts] for zone in recalled.zones}
            expected = self.model.zones(self.world.moment, word or "no such word")
            assert zones == {name: list(map(record_id_of, keys)) for name, keys in expected.items()}
            assert recalled.candidate_ids == tuple(map(record_id_of, self.model.waiting()))
            assert self.memory.recall(word).candidate_ids == ()

    @invariant()
    def every_operation_is_shown_as_it_ended(self) -> None:
        facts, listed = self.model.facts, self.memory.operations()
        assert len(listed) == len(self.ends)
        for line, (operation_id, _) in zip(listed, reversed(self.ends), strict=True):
            assert line.state == "committed"
            assert line.operation_id in {operation_id, None}
        for command, receipt in self.sent[-4:]:
            read, revision = (
                self.memory.operation(command.operation_id),
                facts[command.key].revision,
            )
            assert (read.state, read.receipt.position) == ("committed", receipt.position)
            assert read.is_current == (revision == receipt.to_revision)
            assert read.current_revision == revision
            if read.intent is not None:
                assert read.receipt == receipt.model_copy(update={"replayed": False})

    def pages(self, **filters: Any) -> list[RecordRead]:
        """A whole listing, page by page."""
        found, cursor = [], None
        while True:
            page = self.memory.query(**filters, cursor=cursor)
            found += page.records
            if (cursor := page.next_cursor) is None:
                return found

    def everything(self) -> tuple[object, ...]:
        memory = self.memory
        return (
            memory.records(include_inactive=True),
            memory.records(),
            memory.candidates(),
            memory.operations(),
            memory.status().records,
            self.pages(include_inactive=True),
            [memory.search(word) for word in WORDS.values()],
            # Not its position: to close a ledger may complete a forget.
            [self.caller("primary").recall(word, step="look").zones for word in WORDS.values()],
            [memory.revisions(record_id_of(key)) for key in KEYS],
            [memory.explain(record_id_of(key)) for key in KEYS],
        )

    # -- the end --------------------------------------------------------------------------------

    def teardown(self) -> None:
        self.check_log(self.memory.records(include_inactive=True))
        self.the_views_are_computed_again()
        self.the_ledger_is_opened_again()
        assert self.memory.audit.verify().findings == ()
        self.memory.close()

    def check_log(self, listed: tuple[RecordRead, ...]) -> None:
        """The log, folded here by itself: PM 8 a, b, c, d and f."""
        values, revisions, operations = {}, {}, []
        with self.memory._parts.log.reading() as store:
            for event in store.page(0, 10_000):
                operation, record = event.tag("personal:op"), event.tag("personal:rec")
                if not isinstance(event.header, OperationPrepared):
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


def ids(listed: Iterable[RecordRead]) -> list[str]:
    return [read.record.id for read in listed]


def test_every_script_ends_where_the_model_says(
    world: Any,
    tmp_path_factory: pytest.TempPathFactory,
    empty_engine: Callable[[], dict[str, str]],
    *,
    exhaustive: bool,
) -> None:
    more = settings(QUICK, max_examples=200, stateful_step_count=30, derandomize=False)

    def scripts() -> Scripts:
        return Scripts(tmp_path_factory.mktemp("script"), empty_engine(), type(world)())

    run_state_machine_as_test(scripts, settings=more if exhaustive else QUICK)
