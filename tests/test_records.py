"""Records: identity, shape, the state machine of PM 1.6, acceptance, and what a forget leaves."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from tests.tables import Tables

from memoranda.ledger.errors import Refused
from memoranda.ledger.events import Json
from memoranda.ledger.personal import Record, Tombstone
from memoranda.ledger.receipts import Receipt
from memoranda.projections.history import OperationRead, RecordRead
from memoranda.tools.memory import Memory

KEY = "preference/reply-language"
ID = "mem_448800f070a1c5b419f7b261f803ee4b9bf720c1b67db77e20f23d7bd71a2009"
TEA_ID = "mem_8bd9f7914096218ac8597c1a948899a2c12f19c2710f4adb7d998585c9c0de6a"
KEYS_AND_IDS = (
    ("preference/reply-language", ID),
    ("  Preference/Reply-Language ", ID),
    ("ｐreference/reply-language", ID),
    ("profile/home-city", "mem_e085601db3189386c0566097aa521d9678f9778afc508171bcd58a906d338fa8"),
    ("preference/tea", TEA_ID),
    ("diet/peanut-allergy", "mem_be762e159e0953c11f9188a9e800a033c06fa381211313e0e8b4dd07a0d1f139"),
    (
        "Profile/Straße  name",
        "mem_8e757aef8f8f4c231fe9e7b3e60389d1859baaa57da34521f96a2f6902a7099f",
    ),
    (
        "profile/strasse name",
        "mem_8e757aef8f8f4c231fe9e7b3e60389d1859baaa57da34521f96a2f6902a7099f",
    ),
)
TOMBSTONE_FIELDS = {
    "id", "revision", "product_domain", "user_space_id", "status", "blocked_sources",
}  # fmt: skip


def ref(place: str) -> str:
    """`42` or `50#0-7` as a reference into the primary conversation."""
    return f"personal-message:s-main-1:{place}"


def number(answer: object) -> str | None:
    """The F-number of a refusal; None for every other answer."""
    return answer.refusal.number if isinstance(answer, Refused) else None


@contextmanager
def nothing_written(memory: Memory) -> Iterator[None]:
    before = memory.status().position, memory.records(include_inactive=True)
    yield
    assert (memory.status().position, memory.records(include_inactive=True)) == before


def record_of(memory: Memory, record_id: str = ID) -> Record:
    read = memory.read(record_id, include_inactive=True)
    assert isinstance(read, RecordRead)
    assert isinstance(read.record, Record)
    return read.record


def tombstone_of(memory: Memory, record_id: str = ID) -> Tombstone:
    read = memory.read(record_id, include_inactive=True)
    assert isinstance(read, RecordRead)
    assert isinstance(read.record, Tombstone)
    return read.record


def stored_value(memory: Memory, record_id: str = ID) -> Json | None:
    """The record's value as a raw commit names it in `expected`."""
    read = memory.read(record_id, include_inactive=True)
    return read.record.model_dump(mode="json") if isinstance(read, RecordRead) else None


def first_value(**changes: object) -> Json:
    """The value with which the primary session creates an accepted record."""
    return {
        "id": ID,
        "revision": 1,
        "product_domain": "personal",
        "user_space_id": "us_alice",
        "status": "accepted",
        "tier": "detail",
        "content": "Replies in Chinese",
        "evidence": "explicit",
        "effective_at": None,
        "expires_at": None,
        "contributor_agent_id": "agent-main",
        "updated_by_agent_id": "agent-main",
        "sources": [
            {
                "kind": "personal_message",
                "ref": ref("42"),
                "occurred_at": "2026-10-05T09:00:00Z",
            }
        ],
        "contributions": [
            {"agent_id": "agent-main", "executor_session_id": "s-main-1", "revision": 1}
        ],
        "rejections": [],
        "blocked_sources": [],
        **changes,
    }


def next_value(value: Json, **changes: object) -> Json:
    """The value one revision on, by the primary session."""
    revision = value["revision"] + 1
    own = {"agent_id": "agent-main", "executor_session_id": "s-main-1", "revision": revision}
    return {
        **value,
        "revision": revision,
        "updated_by_agent_id": "agent-main",
        "contributions": [*value["contributions"][-7:], own],
        **changes,
    }


def create(**changes: object) -> Json:
    """The raw commit that creates the record, `op-1`."""
    return {"id": "op-1", "key": ID, "expected": None, "value": first_value(**changes)}


# -- identity, shape, revision (A) -----------------------------------------------------------


def test_scenario_1_a_raw_commit_creates_revision_1_under_the_id_of_its_key(
    primary: Memory,
) -> None:
    receipt = primary.commit(create())

    assert isinstance(receipt, Receipt)
    assert (receipt.outcome, receipt.from_revision, receipt.to_revision) == ("committed", None, 1)
    assert receipt.record_id == record_of(primary).id == ID
    assert stored_value(primary) == first_value()


def test_scenario_2_a_key_has_one_id_however_it_is_spelled(memory: Memory) -> None:
    found = []
    for key, _ in KEYS_AND_IDS:
        receipt = memory.publish(key, "A fact")
        found.append(receipt.record_id)
        memory.forget(receipt.record_id, receipt.to_revision)

    assert found == [record_id for _, record_id in KEYS_AND_IDS]


OTHER_SHAPES = {
    "3-another-id": (create(id=TEA_ID), "value.id"),
    "3-another-key": ({**create(), "key": TEA_ID}, "value.id"),
    "5-domain": (create(product_domain="coding"), "value.product_domain"),
    "6-space": (create(user_space_id="us_bob"), "value.user_space_id"),
    "7-no-source": (create(sources=[]), "value.sources"),
    "no-contribution": (create(contributions=[]), "value.contributions"),
    "born-in-core": (create(tier="core"), "value.tier"),
    "unknown-status": (create(status="archived"), "value.status"),
    "unknown-field": (create(note="x"), "value.note"),
    "contributor": (create(contributor_agent_id="agent-bg"), "value.contributor_agent_id"),
}


def test_scenarios_3_5_6_7_a_value_of_another_shape_is_refused(primary: Memory) -> None:
    with nothing_written(primary):
        answers = {name: primary.commit(raw) for name, (raw, _) in OTHER_SHAPES.items()}

    assert {name: (number(answer), answer.field) for name, answer in answers.items()} == {
        name: ("F19", field) for name, (_, field) in OTHER_SHAPES.items()
    }


def test_scenario_7_a_source_that_lacks_a_part_is_refused(primary: Memory) -> None:
    (source,) = first_value()["sources"]
    partial = [{name: source[name] for name in source if name != missing} for missing in source]

    with nothing_written(primary):
        answers = [primary.commit(create(sources=[each])) for each in partial]

    assert [(number(answer), answer.field) for answer in answers] == [
        ("F19", f"value.sources.0.{missing}") for missing in ("kind", "ref", "occurred_at")
    ]


def test_scenario_4_only_the_next_revision_follows(primary: Memory) -> None:
    primary.commit(create())
    primary.choose_tier(ID, 1, "core")
    primary.choose_tier(ID, 2, "detail")
    third = stored_value(primary)
    proper = next_value(third, tier="core")

    with nothing_written(primary):
        for wrong in (3, 5):
            raw = {"id": "op-4", "key": ID, "expected": third}
            assert number(primary.commit({**raw, "value": {**proper, "revision": wrong}})) == "F18"
    receipt = primary.commit({"id": "op-4", "key": ID, "expected": third, "value": proper})

    assert isinstance(receipt, Receipt)
    assert (receipt.from_revision, receipt.to_revision) == (3, 4)


def test_scenario_8_creating_a_record_that_exists_is_a_revision_conflict(primary: Memory) -> None:
    primary.commit(create())

    with nothing_written(primary):
        answer = primary.commit({**create(content="Replies in French"), "id": "op-2"})

    assert (number(answer), answer.current_revision) == ("F17", 1)
    assert record_of(primary).content == "Replies in Chinese"


def test_the_record_keeps_the_eight_newest_contributions_and_the_history_all(
    primary: Memory,
) -> None:
    primary.publish(KEY, "Replies in Chinese", sources=[ref("42")])
    for revision in range(1, 10):
        primary.choose_tier(ID, revision, "core" if revision % 2 else "detail")

    kept = [contribution.revision for contribution in record_of(primary).contributions]
    revisions = [revision.revision for revision in primary.revisions(ID)]

    assert kept == list(range(3, 11))
    assert revisions == list(range(1, 11))


def test_a_record_with_65_hand_edits_loses_the_oldest_and_a_forget_still_blocks_it(
    memory: Memory,
) -> None:
    memory.publish(KEY, "Version 1", operation_id="edit-1")
    for revision in range(1, 65):
        memory.correct(ID, revision, f"Version {revision + 1}", operation_id=f"edit-{revision + 1}")
    kept = [source.ref for source in record_of(memory).sources]

    memory.forget(ID, 65)

    assert kept == [f"edit-{edit}" for edit in range(2, 66)]
    assert "edit-1" in tombstone_of(memory).blocked_sources


# -- the state machine (1.6) -----------------------------------------------------------------

STATUSES = (None, "candidate", "accepted", "retired", "rejected", "forgotten")
ROWS = {
    (None, "propose"): "candidate",
    (None, "publish"): "accepted",
    ("candidate", "revise"): "candidate",
    ("candidate", "accept"): "accepted",
    ("candidate", "reject"): "rejected",
    ("candidate", "correct"): "accepted",
    ("candidate", "forget"): "forgotten",
    ("accepted", "correct"): "accepted",
    ("accepted", "tier"): "accepted",
    ("accepted", "retire"): "retired",
    ("accepted", "forget"): "forgotten",
    ("retired", "reactivate"): "accepted",
    ("retired", "forget"): "forgotten",
    ("rejected", "propose"): "candidate",
    ("rejected", "publish"): "accepted",
    ("rejected", "forget"): "forgotten",
    ("forgotten", "propose"): "candidate",
    ("forgotten", "publish"): "accepted",
}
Act = Callable[[Memory, int, str], Receipt | Refused]
ACTIONS: dict[str, Act] = {
    "propose": lambda m, _, op: m.propose(KEY, "New", sources=[ref("88")], operation_id=op),
    "publish": lambda m, _, op: m.publish(KEY, "New", sources=[ref("88")], operation_id=op),
    "revise": lambda m, r, op: m.revise(
        ID, r, content="New", evidence="explicit", sources=[ref("88")], operation_id=op
    ),
    "accept": lambda m, r, op: m.accept(ID, r, operation_id=op),
    "reject": lambda m, r, op: m.reject(ID, r, "a guess", operation_id=op),
    "correct": lambda m, r, op: m.correct(ID, r, "New", sources=[ref("88")], operation_id=op),
    "tier": lambda m, r, op: m.choose_tier(ID, r, "core", operation_id=op),
    "retire": lambda m, r, op: m.retire(ID, r, "no longer true", operation_id=op),
    "reactivate": lambda m, r, op: m.reactivate(ID, r, operation_id=op),
    "forget": lambda m, r, op: m.forget(ID, r, operation_id=op),
}


def bring(primary: Memory, status: str | None) -> int:
    """The record in that status, from message 42; its revision, 0 for none."""
    if status in {"candidate", "rejected"}:
        primary.propose(
            KEY, "Old", sources=[ref("42")], effective_at="2026-01-01", expires_at="2027-01-01"
        )
    elif status is not None:
        primary.publish(KEY, "Old", sources=[ref("42")], evidence="inference")
    ends = {
        "retired": lambda: primary.retire(ID, 1, "no longer true"),
        "rejected": lambda: primary.reject(ID, 1, "a guess"),
        "forgotten": lambda: primary.forget(ID, 1),
    }
    if status in ends:
        assert isinstance(ends[status](), Receipt)
        return 2
    return 0 if status is None else 1


@pytest.mark.parametrize("status", STATUSES)
def test_every_pair_outside_the_state_machine_is_refused(
    status: str | None, primary: Memory
) -> None:
    revision = bring(primary, status)
    others = [action for action in ACTIONS if (status, action) not in ROWS]

    with nothing_written(primary):
        answers = {each: ACTIONS[each](primary, max(revision, 1), "op-row") for each in others}

    by_default = "F35" if status is None else "F34"
    is_live = status in {"candidate", "accepted", "retired"}
    openings = dict.fromkeys(("propose", "publish"), "F17") if is_live else {}
    assert {action: number(answer) for action, answer in answers.items()} == {
        action: openings.get(action, by_default) for action in others
    }


OUTSIDE: dict[str | None, list[Json]] = {
    None: [{"status": "retired"}, {"status": "rejected"}],
    "candidate": [{"status": "retired"}],
    "accepted": [
        {"status": "candidate"}, {"status": "rejected"}, {}, {"tier": "core", "content": "New"},
    ],
    "retired": [{"status": "candidate"}, {"status": "retired"}, {"status": "rejected"}],
    "rejected": [{"status": "rejected"}, {"status": "retired"}],
    "forgotten": [{"status": "rejected"}, {"status": "retired"}],
}  # fmt: skip


@pytest.mark.parametrize("status", OUTSIDE)
def test_a_raw_value_that_fits_no_row_is_refused(status: str | None, primary: Memory) -> None:
    revision = bring(primary, status)
    expected = stored_value(primary)
    is_live = status not in {None, "forgotten"}
    following = next_value(expected) if is_live else first_value(revision=revision + 1)
    raw = {"id": "op-raw", "key": ID, "expected": expected}

    with nothing_written(primary):
        answers = [
            primary.commit({**raw, "value": {**following, **changes}})
            for changes in OUTSIDE[status]
        ]

    assert [number(answer) for answer in answers] == ["F34"] * len(answers)


def test_a_raw_tombstone_of_a_forgotten_or_missing_record_is_refused(primary: Memory) -> None:
    tombstone = {name: first_value()[name] for name in TOMBSTONE_FIELDS} | {"status": "forgotten"}

    with nothing_written(primary):
        of_nothing = primary.commit(
            {"id": "op-raw", "key": ID, "expected": None, "value": tombstone}
        )
    bring(primary, "forgotten")
    expected = stored_value(primary)
    with nothing_written(primary):
        again = primary.commit(
            {"id": "op-raw", "key": ID, "expected": expected, "value": {**expected, "revision": 3}}
        )

    assert (number(of_nothing), number(again)) == ("F34", "F34")


@pytest.fixture
def copied(
    *,
    folder: dict[str, Path],
    tables: Tables,
    opened: Callable[..., Memory],
    world: Any,
    tmp_path: Path,
) -> Callable[[], Memory]:
    """A second ledger that starts as a copy of the first, with entropy of its own."""

    def copy() -> Memory:
        folder.update(tables.copied(tmp_path / "copy"))
        world.drawn += 1_000_000
        return opened()

    return copy


@pytest.mark.parametrize(("status", "action"), ROWS)
def test_every_row_is_the_same_by_name_by_its_intent_and_sent_again(
    status: str | None, action: str, primary: Memory, copied: Callable[[], Memory]
) -> None:
    revision = bring(primary, status)
    expected = stored_value(primary)
    copy = copied().acting_as(primary.caller)

    first = ACTIONS[action](primary, revision, "op-row")
    value = stored_value(primary)
    intent = {"id": "op-row", "key": ID, "expected": expected, "value": value}
    kept = primary.operation("op-row")
    on_the_copy = copy.commit(intent)
    with nothing_written(primary):
        by_name = ACTIONS[action](primary, revision, "op-row")
        by_intent = primary.commit(intent)

    assert isinstance(first, Receipt)
    assert (first.status, first.to_revision) == (ROWS[status, action], revision + 1)
    assert isinstance(on_the_copy, Receipt)
    assert rfc8785.dumps(stored_value(copy)) == rfc8785.dumps(value)
    assert isinstance(kept, OperationRead)
    if action != "forget":
        assert rfc8785.dumps(kept.intent) == rfc8785.dumps(intent)
    assert by_name == by_intent == first.model_copy(update={"replayed": True})
    assert primary.audit.verify().findings == copy.audit.verify().findings == ()


def test_items_and_the_person_may_send_their_intents_as_raw_commits_too(
    memory: Memory, task_7: Memory, copied: Callable[[], Memory]
) -> None:
    copy = copied()
    task_7.propose(KEY, "Likes Chinese", sources=[ref("42")], operation_id="op-1")
    task_7.revise(ID, 1, content="Wants Chinese", operation_id="op-2")
    memory.publish("preference/tea", "Likes tea", operation_id="op-3")
    memory.correct(TEA_ID, 1, "Likes green tea", operation_id="op-4")
    by_hand = memory.operation("op-3").intent
    wordless = {**by_hand["value"], "evidence": "inference"}

    receipts = [
        copy.acting_as(who.caller).commit(who.operation(operation).intent)
        for who, operation in ((task_7, "op-1"), (task_7, "op-2"))
    ]
    with nothing_written(copy):
        inferred = copy.commit({**by_hand, "value": wordless})
        unstated = copy.commit({**by_hand, "id": "op-other"})
    receipts += [copy.commit(memory.operation(operation).intent) for operation in ("op-3", "op-4")]

    assert all(isinstance(receipt, Receipt) for receipt in receipts)
    assert (number(inferred), inferred.field) == ("F19", "value.evidence")
    assert (number(unstated), unstated.field) == ("F19", "value.sources")
    assert [stored_value(copy, each) for each in (ID, TEA_ID)] == [
        stored_value(memory, each) for each in (ID, TEA_ID)
    ]


@pytest.mark.parametrize("field", ["expected", "value"])
def test_one_changed_byte_in_a_raw_commit_sent_again_is_an_operation_conflict(
    field: str, primary: Memory
) -> None:
    bring(primary, "accepted")
    expected = stored_value(primary)
    primary.choose_tier(ID, 1, "core", operation_id="op-row")
    intent = {"id": "op-row", "key": ID, "expected": expected, "value": stored_value(primary)}
    intent[field] = {**intent[field], "content": "Olc"}

    with nothing_written(primary):
        answer = primary.commit(intent)

    assert number(answer) == "F21"


def test_tiering_changes_the_tier_only(primary: Memory) -> None:
    bring(primary, "accepted")
    before = record_of(primary)

    primary.choose_tier(ID, 1, "core")

    own = ("revision", "tier", "contributions")
    assert record_of(primary).tier == "core"
    assert record_of(primary).model_dump(exclude=set(own)) == before.model_dump(exclude=set(own))


def test_a_retired_record_keeps_content_and_claims_and_returns_as_detail(primary: Memory) -> None:
    bring(primary, "accepted")
    primary.choose_tier(ID, 1, "core")

    primary.retire(ID, 2, "no longer true")
    listed, shown = primary.records(), primary.records(include_inactive=True)
    taken = primary.publish("preference/tea", "Tea", sources=[ref("42")])
    primary.reactivate(ID, 3)

    assert listed == ()
    assert [read.record.content for read in shown] == ["Old"]
    assert number(taken) == "F14"
    assert (record_of(primary).tier, record_of(primary).status) == ("detail", "accepted")


def test_a_revision_replaces_what_it_names_and_clears_a_date_by_none(primary: Memory) -> None:
    bring(primary, "candidate")

    primary.revise(ID, 1, content="Newer")
    after_the_content = record_of(primary)
    primary.revise(ID, 2, effective_at=None, expires_at="2028-01-01T08:30:00.5Z")
    after_the_dates = record_of(primary)

    assert after_the_content.content == "Newer"
    assert after_the_content.effective_at == "2026-01-01T00:00:00Z"
    assert after_the_dates.effective_at is None
    assert after_the_dates.expires_at == "2028-01-01T08:30:00.5Z"
    assert after_the_dates.content == "Newer"


# -- acceptance (C) --------------------------------------------------------------------------


def test_scenario_21_an_inspected_candidate_is_accepted_exactly_as_it_is(
    primary: Memory, task_7: Memory
) -> None:
    task_7.propose(KEY, "Likes Chinese", sources=[ref("42")], expires_at="2027-01-01")
    task_7.revise(ID, 1, content="Wants replies in Chinese")
    seen = primary.evidence(ID)

    receipt = primary.accept(ID, seen.inspected_revision)

    own = {"status", "revision", "contributions", "updated_by_agent_id"}
    accepted = record_of(primary)
    assert isinstance(receipt, Receipt)
    assert (seen.inspected_revision, receipt.to_revision) == (2, 3)
    assert (accepted.status, accepted.tier, accepted.evidence) == (
        "accepted", "detail", "inference",
    )  # fmt: skip
    assert accepted.model_dump(exclude=own) == seen.candidate.model_dump(exclude=own)


def test_scenario_26_a_supported_candidate_needs_one_command_and_no_restatement(
    primary: Memory, task_7: Memory
) -> None:
    task_7.propose(KEY, "Wants replies in Chinese", sources=[ref("42")])
    before = primary.status().position

    primary.accept(ID, 1)

    assert primary.status().position == before + 1
    assert [source.ref for source in record_of(primary).sources] == [ref("42")]


def test_scenario_27_a_correction_makes_an_inference_explicit_and_keeps_its_source(
    primary: Memory, task_7: Memory
) -> None:
    task_7.propose(KEY, "Likes Chinese", sources=[ref("42")])
    primary.accept(ID, 1)

    receipt = primary.correct(ID, 2, "Wants replies in Chinese", sources=[ref("88")])

    corrected = record_of(primary)
    assert isinstance(receipt, Receipt)
    assert receipt.record_id == ID
    assert (corrected.revision, corrected.evidence) == (3, "explicit")
    assert [source.ref for source in corrected.sources] == [ref("42"), ref("88")]


def test_scenario_28_accepting_twice_under_one_operation_id_is_one_revision(
    primary: Memory,
) -> None:
    bring(primary, "candidate")
    first = primary.accept(ID, 1, operation_id="op-accept")

    with nothing_written(primary):
        second = primary.accept(ID, 1, operation_id="op-accept")

    assert isinstance(first, Receipt)
    assert second == first.model_copy(update={"replayed": True})
    assert record_of(primary).revision == 2


def test_a_receipt_answers_a_retry_only_while_it_speaks_of_the_current_record(
    primary: Memory,
) -> None:
    bring(primary, "candidate")
    primary.accept(ID, 1, operation_id="op-accept")
    primary.choose_tier(ID, 2, "core")

    answer = primary.accept(ID, 1, operation_id="op-accept")
    read = primary.operation("op-accept")

    assert (number(answer), answer.current_revision) == ("F22", 3)
    assert (read.is_current, read.current_revision, read.receipt.to_revision) == (False, 3, 2)
    assert read.intent["value"]["status"] == "accepted"


# -- rejection and revival (K) ---------------------------------------------------------------


def test_scenario_93_the_primary_session_overrules_its_own_rejection(
    primary: Memory, task_7: Memory
) -> None:
    task_7.propose(KEY, "Likes Chinese", sources=[ref("42")])
    primary.reject(ID, 1, "guess")
    task_7.propose("preference/tea", "Likes tea", sources=[ref("42")])
    primary.reject(TEA_ID, 1, "withdrawn")

    receipt = primary.publish(KEY, "Wants replies in Chinese", sources=[ref("42")])

    assert isinstance(receipt, Receipt)
    assert (receipt.status, receipt.to_revision) == ("accepted", 3)
    assert record_of(primary).contributor_agent_id == "agent-bg"
    assert record_of(primary).updated_by_agent_id == "agent-main"


def test_publishing_over_a_rejection_takes_no_range_that_another_record_owns_by_then(
    primary: Memory,
) -> None:
    bring(primary, "rejected")
    primary.propose("preference/tea", "Likes tea", sources=[ref("42#0-6")])

    with nothing_written(primary):
        answer = primary.publish(KEY, "Wants replies in Chinese", sources=[ref("42")])

    assert number(answer) == "F14"


def test_the_65th_rejection_leaves_the_value_and_still_blocks(
    memory: Memory, primary: Memory
) -> None:
    text = "a" * 66
    message = {"session": "s-main-1", "seq": 90, "role": "user", "text": text}
    list(memory.capture([{**message, "at": "2026-10-06"}]))
    primary.propose(KEY, "Guess", sources=[ref(f"90#{at}-{at + 1}") for at in range(64)])
    primary.reject(ID, 1, "guess")
    primary.propose(KEY, "Guess", sources=[ref("90#64-65")])
    primary.reject(ID, 3, "guess again")

    kept = [rejection.ref for rejection in record_of(primary).rejections]
    dropped = primary.propose(KEY, "Guess", sources=[ref("90#0-1")])
    free = primary.propose(KEY, "Guess", sources=[ref("90#65-66")])

    assert kept == [ref(f"90#{at}-{at + 1}") for at in range(1, 65)]
    assert number(dropped) == "F30"
    assert isinstance(free, Receipt)


def test_scenario_98_a_forgotten_key_is_reopened_by_the_primary_session_from_a_new_source(
    primary: Memory, task_7: Memory
) -> None:
    bring(primary, "accepted")
    for revision in range(1, 4):
        primary.choose_tier(ID, revision, "core" if revision % 2 else "detail")
    primary.forget(ID, 4)

    with nothing_written(primary):
        by_item = task_7.propose(KEY, "Likes Chinese", sources=[ref("42")])
        same_source = primary.publish(KEY, "Wants Chinese", sources=[ref("42")])
    revived = primary.publish(KEY, "Wants Chinese", sources=[ref("88")])

    record = record_of(primary)
    assert (number(by_item), number(same_source)) == ("F33", "F15")
    assert isinstance(revived, Receipt)
    assert (record.status, record.revision, record.tier) == ("accepted", 6, "detail")
    assert record.blocked_sources == (ref("42"),)


def test_scenario_35_what_is_said_again_after_a_forget_opens_the_key_as_a_candidate(
    primary: Memory,
) -> None:
    bring(primary, "forgotten")

    receipt = primary.propose(KEY, "Wants Chinese", sources=[ref("88")])

    assert isinstance(receipt, Receipt)
    assert (receipt.status, receipt.to_revision) == ("candidate", 3)


def test_a_revived_record_starts_with_new_contributions_and_a_new_contributor(
    primary: Memory, task_7: Memory
) -> None:
    task_7.propose(KEY, "Likes Chinese", sources=[ref("42")])
    primary.forget(ID, 1)

    primary.publish(KEY, "Wants Chinese", sources=[ref("88")])

    record = record_of(primary)
    assert record.contributor_agent_id == "agent-main"
    assert [contribution.revision for contribution in record.contributions] == [3]


# -- forget ----------------------------------------------------------------------------------


def bodies_of(tables: Tables) -> dict[int, str]:
    """The key id of every body that is stored, by position."""
    return dict(tables.rows("SELECT position, key_id FROM bodies"))


def key_ids(folder: dict[str, Path]) -> set[str]:
    with closing(sqlite3.connect(folder["data"] / "us_alice" / "keys.db")) as connection:
        return {key_id for (key_id,) in connection.execute("SELECT key_id FROM keys")}


@pytest.fixture
def storied(primary: Memory, task_7: Memory) -> list[int]:
    """A record with three revisions and one conflict: the positions that speak of it."""
    opened = task_7.propose(KEY, "Likes Chinese", sources=[ref("42")], operation_id="op-1")
    tea = primary.propose("preference/tea", "Likes tea", sources=[ref("50")])
    conflict = primary.open_conflict(TEA_ID, ID, "both?", operation_id="op-con")
    primary.resolve_conflict(conflict.conflict_id, "keep_both", "both", operation_id="op-res")
    revised = task_7.revise(ID, 1, content="Wants Chinese", operation_id="op-2")
    accepted = primary.accept(ID, 2, operation_id="op-3")
    assert isinstance(tea, Receipt)
    return [opened.position, conflict.position, conflict.position + 1, revised.position,
            accepted.position]  # fmt: skip


@pytest.mark.usefixtures("storied")
def test_a_tombstone_holds_the_id_the_blocks_and_nothing_else(primary: Memory) -> None:
    receipt = primary.forget(ID, 3)

    tombstone = tombstone_of(primary)
    assert receipt.status == "forgotten"
    assert set(tombstone.model_dump()) == TOMBSTONE_FIELDS
    assert (tombstone.revision, tombstone.blocked_sources) == (4, (ref("42"),))
    assert primary.read(ID, include_inactive=True).key is None
    assert number(primary.read(ID)) == "F35"


def test_a_forget_removes_every_body_of_the_record_and_the_keys_that_opened_them(
    storied: list[int], primary: Memory, folder: dict[str, Path], tables: Tables
) -> None:
    before = bodies_of(tables)
    fallen = {before[position] for position in storied}

    primary.forget(ID, 3)

    after = bodies_of(tables)
    assert not after.keys() & set(storied)
    assert not key_ids(folder) & fallen
    assert set(before.values()) - fallen <= set(after.values())
    assert primary.audit.verify().findings == ()


@pytest.mark.usefixtures("storied")
def test_the_history_of_a_forgotten_record_counts_revisions_and_tells_no_content(
    primary: Memory,
) -> None:
    primary.forget(ID, 3)

    revisions = primary.revisions(ID)

    assert [(each.revision, each.status) for each in revisions] == [
        (1, "candidate"), (2, "candidate"), (3, "accepted"), (4, "forgotten"),
    ]  # fmt: skip
    assert {each.content for each in revisions} == {None}
    assert {each.command is None for each in revisions[:3]} == {True}


@pytest.mark.usefixtures("storied")
def test_scenario_47_an_operation_before_the_forget_tells_state_and_digest_only(
    primary: Memory, memory: Memory
) -> None:
    operations = ("op-1", "op-2", "op-3")
    digests = [memory.operation(each).receipt.record_digest for each in operations]

    primary.forget(ID, 3)

    for reader in (primary, memory):
        reads = [reader.operation(each) for each in operations]
        assert [(read.state, read.intent) for read in reads] == [("committed", None)] * 3
        assert [read.receipt.record_digest for read in reads] == digests
        assert {read.receipt.record_id for read in reads} == {None}
        assert {(read.is_current, read.current_revision) for read in reads} == {(False, 4)}


@pytest.mark.usefixtures("storied")
def test_every_use_of_an_operation_id_from_before_the_forget_is_superseded(
    primary: Memory, task_7: Memory
) -> None:
    intent = primary.operation("op-3").intent
    primary.forget(ID, 3)

    with nothing_written(primary):
        answers = [
            task_7.propose(KEY, "Likes Chinese", sources=[ref("42")], operation_id="op-1"),
            task_7.propose(KEY, "Something else", sources=[ref("42")], operation_id="op-1"),
            primary.accept(ID, 2, operation_id="op-3"),
            primary.commit(intent),
            primary.publish("preference/coffee", "x", sources=[ref("88")], operation_id="op-2"),
            primary.open_conflict(TEA_ID, ID, "both?", operation_id="op-2"),
        ]
        of_conflicts = [
            primary.open_conflict(TEA_ID, ID, "both?", operation_id="op-con"),
            primary.open_conflict(TEA_ID, ID, "other words", operation_id="op-con"),
            primary.publish("preference/coffee", "x", sources=[ref("88")], operation_id="op-res"),
        ]

    assert [(number(answer), answer.current_revision) for answer in answers] == [("F22", 4)] * 6
    assert [number(answer) for answer in of_conflicts] == ["F22"] * 3


@pytest.mark.usefixtures("storied")
def test_the_forget_itself_is_answered_again_with_its_receipt(primary: Memory) -> None:
    first = primary.forget(ID, 3, operation_id="op-forget")

    with nothing_written(primary):
        again = primary.forget(ID, 3, operation_id="op-forget")
        other = primary.forget(TEA_ID, 1, operation_id="op-forget")

    assert again == first.model_copy(update={"replayed": True})
    assert number(other) == "F21"


def test_a_blocked_range_is_closed_to_every_key_and_caller(
    memory: Memory, primary: Memory, task_7: Memory
) -> None:
    primary.propose(KEY, "Likes Chinese", sources=[ref("42#0-6")])
    primary.forget(ID, 1)

    with nothing_written(memory):
        answers = [
            primary.propose("preference/tea", "x", sources=[ref("42")]),
            primary.publish("preference/tea", "x", sources=[ref("42#5-9")]),
            task_7.propose("preference/tea", "x", sources=[ref("42")]),
            memory.publish("preference/tea", "x", sources=[ref("42#0-1")]),
        ]
    rest = task_7.propose("preference/tea", "x", sources=[ref("42#6-9")])

    assert [number(answer) for answer in answers] == ["F15"] * 4
    assert isinstance(rest, Receipt)


def test_a_blocked_hand_edit_is_closed_as_the_exact_text_that_it_is(memory: Memory) -> None:
    memory.publish(KEY, "Old", operation_id="edit-1")
    memory.forget(ID, 1)
    edit = {"kind": "user_edit", "ref": "edit-1"}

    with nothing_written(memory):
        answer = memory.publish("preference/tea", "x", sources=[edit])

    assert number(answer) == "F15"
    assert tombstone_of(memory).blocked_sources == ("edit-1",)


@pytest.mark.parametrize("status", ["candidate", "accepted", "retired", "rejected"])
def test_scenario_48_a_forget_blocks_the_source_of_a_record_in_any_status(
    status: str, primary: Memory
) -> None:
    revision = bring(primary, status)

    primary.forget(ID, revision)

    assert tombstone_of(primary).blocked_sources == (ref("42"),)
    assert number(primary.propose("preference/tea", "x", sources=[ref("42")])) == "F15"


def test_scenario_49_the_conversation_message_stays_where_it_is(
    primary: Memory, memory: Memory
) -> None:
    bring(primary, "forgotten")
    text = "Please answer me in Chinese from now on"
    message = {"session": "s-main-1", "seq": 42, "role": "user", "text": text}

    (again,) = memory.capture([{**message, "at": "2026-10-05T09:00:00Z"}])

    assert again.replayed
    assert primary.source(ref("42")).occurred_at == "2026-10-05T09:00:00Z"


def test_scenario_50_a_forget_value_that_keeps_a_body_field_or_drops_a_range_is_refused(
    primary: Memory,
) -> None:
    bring(primary, "accepted")
    expected = stored_value(primary)
    tombstone = {name: expected[name] for name in TOMBSTONE_FIELDS} | {
        "revision": 2,
        "status": "forgotten",
        "blocked_sources": [ref("42")],
    }
    raw = {"id": "op-raw", "key": ID, "expected": expected}
    wrong = ({"content": "Old"}, {"sources": []}, {"rejections": []}, {"blocked_sources": []})

    with nothing_written(primary):
        answers = [primary.commit({**raw, "value": {**tombstone, **kept}}) for kept in wrong]
    proper = primary.commit({**raw, "value": tombstone})

    assert [number(answer) for answer in answers] == ["F20"] * 4
    assert isinstance(proper, Receipt)
    assert tombstone_of(primary).revision == 2


def test_every_range_that_any_revision_carried_is_blocked_and_touching_ones_are_merged(
    primary: Memory,
) -> None:
    primary.propose(KEY, "x", sources=[ref("50#0-7")])
    primary.revise(ID, 1, sources=[ref("88"), ref("50#7-9")])
    primary.revise(ID, 2, sources=[ref("50#12-14"), ref("50#10-12")])
    primary.forget(ID, 3)
    first = tombstone_of(primary).blocked_sources
    primary.publish(KEY, "x", sources=[ref("50#9-10")])
    primary.forget(ID, 5)

    assert first == (ref("50#0-9"), ref("50#10-14"), ref("88"))
    assert tombstone_of(primary).blocked_sources == (ref("50#0-14"), ref("88"))


def test_a_revived_record_is_sealed_under_another_key_and_can_be_forgotten_again(
    primary: Memory, folder: dict[str, Path], tables: Tables
) -> None:
    first = primary.publish(KEY, "Old", sources=[ref("42")])
    first_key = bodies_of(tables)[first.position]
    primary.forget(ID, 1)

    second = primary.publish(KEY, "New", sources=[ref("88")])
    second_key = bodies_of(tables)[second.position]
    is_kept = second_key in key_ids(folder)
    primary.forget(ID, 3)

    assert is_kept
    assert first_key != second_key
    assert not bodies_of(tables).keys() & {first.position, second.position}
    assert not key_ids(folder) & {first_key, second_key}
    assert tombstone_of(primary).blocked_sources == (ref("42"), ref("88"))
    assert primary.audit.verify().findings == ()


class PowerCutError(BaseException):
    """Stops the process where it stands, as far as one process can."""


@pytest.mark.parametrize("step", ["forget:appended", "forget:keys-removed"])
def test_a_forget_that_a_crash_interrupts_is_finished_at_the_next_opening(
    step: str,
    *,
    storied: list[int],
    primary: Memory,
    world: Any,
    folder: dict[str, Path],
    tables: Tables,
    opened: Callable[..., Memory],
) -> None:
    def stop(name: str) -> None:
        if name == step:
            raise PowerCutError

    before = bodies_of(tables)
    fallen = {before[position] for position in storied}
    world.at_step = stop
    with pytest.raises(PowerCutError):
        primary.forget(ID, 3, operation_id="op-forget")

    world.at_step = lambda _: None
    reopened = opened().acting_as(primary.caller)

    assert tombstone_of(reopened).revision == 4
    assert not key_ids(folder) & fallen
    assert not bodies_of(tables).keys() & set(storied)
    assert reopened.forget(ID, 3, operation_id="op-forget").replayed
    assert reopened.audit.verify().findings == ()


def test_reads_refuse_a_record_from_the_tombstone_on_whatever_becomes_of_its_keys(
    primary: Memory, world: Any, storied: list[int]
) -> None:
    def stop(name: str) -> None:
        if name == "forget:appended":
            raise PowerCutError

    world.at_step = stop
    with pytest.raises(PowerCutError):
        primary.forget(ID, 3)
    world.at_step = lambda _: None

    assert storied
    assert number(primary.read(ID)) == "F35"
    assert {each.content for each in primary.revisions(ID)} == {None}
    assert [read.record.id for read in primary.candidates()] == [TEA_ID]
