"""Sources: references, spans, what a message must be, and who owns or blocks a range (PM 4)."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from memoranda.ledger.errors import Refused
from memoranda.ledger.events import Json
from memoranda.ledger.personal import Record
from memoranda.ledger.receipts import Receipt
from memoranda.ledger.sources import merged, message_ref, overlap, parse_ref
from memoranda.projections.history import RecordRead
from memoranda.tools.memory import Memory

KEY = "preference/reply-language"
ID = "mem_448800f070a1c5b419f7b261f803ee4b9bf720c1b67db77e20f23d7bd71a2009"
TEA = "preference/tea"
TEA_ID = "mem_8bd9f7914096218ac8597c1a948899a2c12f19c2710f4adb7d998585c9c0de6a"
ALLERGY = "diet/peanut-allergy"
CITY = "profile/home-city"
KYOTO = "我对花生过敏🥜。I moved to Kyoto."
SEQ_MAX = 2**53 - 1


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


def record_of(memory: Memory, record_id: str) -> Record:
    read = memory.read(record_id, include_inactive=True)
    assert isinstance(read, RecordRead)
    assert isinstance(read.record, Record)
    return read.record


def capture(memory: Memory, seq: int, text: str = "A message", **more: object) -> None:
    message = {"session": "s-main-1", "seq": seq, "role": "user", "text": text, "at": "2026-10-06"}
    (answer,) = memory.capture([{**message, **more}])
    assert not isinstance(answer, Refused)


# -- the reference (4.1) ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session_id", "text"),
    [
        ("s-main-1", "personal-message:s-main-1:42"),
        ("main/α 1", "personal-message:main%2F%CE%B1%201:42"),
        ("a:b", "personal-message:a%3Ab:42"),
        ("it's(ok)!*~", "personal-message:it's(ok)!*~:42"),
        ("中文", "personal-message:%E4%B8%AD%E6%96%87:42"),
        ("a#b", "personal-message:a%23b:42"),
        ("100%", "personal-message:100%25:42"),
    ],
)
def test_scenario_29_a_session_id_has_one_canonical_reference(session_id: str, text: str) -> None:
    parsed = parse_ref(text)

    assert parsed is not None
    assert (parsed.session_id, parsed.seq, parsed.start) == (session_id, 42, None)
    assert parsed.text == message_ref(session_id, 42).text == text


@pytest.mark.parametrize("seq", ["1", "42", str(SEQ_MAX)])
def test_a_sequence_is_a_positive_integer_up_to_the_limit(seq: str) -> None:
    parsed = parse_ref(ref(seq))

    assert parsed is not None
    assert parsed.seq == int(seq)


MALFORMED = [
    "personal-message:main%2f%ce%b1%201:42",
    *(ref(seq) for seq in ("0", "042", "-1", "4.0", "１", "", "+1", "1_0", "٤", "4e1")),
    ref(str(SEQ_MAX + 1)),
    ref("9" * 5000),
    ref("42 "),
    ref("42\n"),
    f" {ref('42')}",
    ref("42:"),
    ref("42?"),
    "personal-message:s-main-1",
    "personal-message::42",
    "personal-message:a/b:42",
    "personal-message:a b:42",
    "personal-message:中文:42",
    "personal-message:a%3:42",
    "personal-message:a%61:42",
    "personal-message:%FF:42",
    "personal-message:%ED%A0%80:42",
    "Personal-message:s-main-1:42",
    "personal_message:s-main-1:42",
    "file:notes.md",
    "42",
    *(ref(f"50#{span}") for span in ("8-8", "9-8", "08-25", "-3", "0-7x", "0-0", "0", "", "0-")),
    *(ref(f"50#{span}") for span in ("0-7#0-3", "0:7", "a-b", "0-07", "0–7", "+0-7", "0-７")),
    ref(f"50#0-{SEQ_MAX + 1}"),
    ref("50##0-7"),
]


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_scenarios_29_30_90_every_other_spelling_is_refused(text: str) -> None:
    assert parse_ref(text) is None


def test_scenarios_29_30_90_a_command_refuses_every_other_spelling(primary: Memory) -> None:
    texts = [text for text in MALFORMED if len(text) < 2048]

    with nothing_written(primary):
        answers = [primary.propose(KEY, "x", sources=[text]) for text in texts]

    assert [number(answer) for answer in answers] == ["F9"] * len(texts)
    assert {answer.field for answer in answers} == {"sources.0"}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (":9", ":9#0-1", True),
        (":9#0-5", ":9#4-8", True),
        (":9#0-4", ":9#4-8", False),
        (":9#0-4", ":19#0-4", False),
        (":9", ":9", True),
        (":9#2-3", ":9#0-9", True),
    ],
)
def test_ranges_overlap_when_they_share_a_code_point(one: str, other: str, expected: bool) -> None:  # noqa: FBT001  # a row of the table
    refs = [f"personal-message:s-main-1{place}" for place in (one, other)]

    assert overlap(*refs) is expected
    assert overlap(*reversed(refs)) is expected


def test_other_kinds_of_reference_overlap_as_exact_text_only() -> None:
    assert overlap("edit-1", "edit-1")
    assert not overlap("edit-1", "edit-10")
    assert not overlap("edit-1", ref("42"))


@pytest.mark.parametrize(
    ("refs", "expected"),
    [
        (["9#0-4", "9#4-8"], ["9#0-8"]),
        (["9#0-4", "9#5-8"], ["9#0-4", "9#5-8"]),
        (["9#5-8", "9#0-4", "9#4-5"], ["9#0-8"]),
        (["9#0-4", "9"], ["9"]),
        (["19", "9#1-2", "9#1-2"], ["9#1-2", "19"]),
    ],
)
def test_ranges_are_merged_where_they_touch_or_overlap(
    refs: list[str], expected: list[str]
) -> None:
    assert merged(map(ref, refs)) == [ref(place) for place in expected]


# -- spans (4.2, K) --------------------------------------------------------------------------


def test_scenario_88_one_message_yields_a_memory_per_span(primary: Memory) -> None:
    receipts = [
        primary.propose(ALLERGY, "Allergic to peanuts", sources=[ref("50#0-7")]),
        primary.propose(CITY, "Lives in Kyoto", sources=[ref("50#8-25")]),
    ]

    sources = [primary.evidence(receipt.record_id).sources[0] for receipt in receipts]

    assert [receipt.status for receipt in receipts] == ["candidate", "candidate"]
    assert [source.span_text for source in sources] == ["我对花生过敏🥜", "I moved to Kyoto."]
    assert {source.text for source in sources} == {KYOTO}


def test_scenario_89_a_span_that_another_record_owns_is_in_use_and_the_rest_is_free(
    primary: Memory,
) -> None:
    primary.propose(ALLERGY, "Allergic to peanuts", sources=[ref("50#0-7")])
    primary.propose(CITY, "Lives in Kyoto", sources=[ref("50#8-25")])

    with nothing_written(primary):
        taken = [primary.propose(TEA, "x", sources=[ref(at)]) for at in ("50#6-9", "50")]
    free = primary.propose(TEA, "x", sources=[ref("50#7-8")])

    assert [number(answer) for answer in taken] == ["F14", "F14"]
    assert isinstance(free, Receipt)


def test_scenario_90_a_span_beyond_the_text_is_refused(primary: Memory) -> None:
    with nothing_written(primary):
        answers = [
            primary.propose(CITY, "x", sources=[ref(place)])
            for place in ("50#8-26", "50#25-26", f"50#0-{SEQ_MAX}")
        ]
    whole = primary.propose(CITY, "x", sources=[ref("50#0-25")])

    assert [number(answer) for answer in answers] == ["F31"] * 3
    assert isinstance(whole, Receipt)


def test_two_references_of_one_record_may_touch_and_not_overlap(primary: Memory) -> None:
    with nothing_written(primary):
        overlapping = primary.propose(KEY, "x", sources=[ref("50#0-7"), ref("50#6-8")])
        twice = primary.propose(KEY, "x", sources=[ref("42"), ref("42")])
    touching = primary.propose(KEY, "x", sources=[ref("50#0-7"), ref("50#7-8")])

    assert [(number(each), each.field) for each in (overlapping, twice)] == [
        ("F19", "sources.1"), ("F19", "sources.1"),
    ]  # fmt: skip
    assert isinstance(touching, Receipt)


def test_a_correction_may_not_cite_a_part_of_what_the_record_carries(primary: Memory) -> None:
    primary.publish(KEY, "x", sources=[ref("42")])

    with nothing_written(primary):
        answer = primary.correct(ID, 1, "y", sources=[ref("42#0-6")])

    assert number(answer) == "F19"


# -- the message (4.3, D) --------------------------------------------------------------------


def test_scenario_31_a_sequence_beyond_the_head_is_missing(primary: Memory) -> None:
    with nothing_written(primary):
        answer = primary.propose(KEY, "x", sources=[ref("9999")])

    assert number(answer) == "F10"


@pytest.mark.parametrize(
    ("at", "expected"), [("2026-10-06T12:00:01Z", "F12"), ("2026-10-06T12:00:00Z", None)]
)
def test_scenario_32_a_message_from_the_future_supports_nothing_until_its_time_has_come(
    at: str, expected: str | None, primary: Memory, world
) -> None:
    capture(primary, 90, at=at)

    early = primary.propose(KEY, "x", sources=[ref("90")])
    world.move(seconds=1)
    later = primary.propose(TEA, "x", sources=[ref("90#0-1")])

    assert number(early) == expected
    assert number(later) == (None if expected else "F14")


def test_scenario_33_the_time_of_a_source_is_the_persisted_one(primary: Memory) -> None:
    primary.publish(KEY, "x", sources=[ref("42")])
    value: Json = record_of(primary, ID).model_dump(mode="json")
    (source,) = value["sources"]
    forged = {**value, "id": TEA_ID, "sources": [{**source, "occurred_at": "2020-01-01T00:00:00Z"}]}

    with nothing_written(primary):
        raw = {"id": "op-raw", "key": TEA_ID, "expected": None, "value": forged}
        in_commit = primary.commit(raw)
        as_parameter = primary._parts.ledger.publish(
            primary.caller, operation_id="op-2", key=TEA, content="x", sources=[ref("88")],
            occurred_at="2020-01-01T00:00:00Z",
        )  # fmt: skip
        in_a_source = primary.publish(
            TEA, "x", sources=[{"kind": "personal_message", "ref": ref("88"), "occurred_at": "now"}]
        )

    assert source["occurred_at"] == "2026-10-05T09:00:00Z"
    assert (number(in_commit), in_commit.field) == ("F19", "value.sources")
    assert (number(as_parameter), as_parameter.field) == ("F36", "occurred_at")
    assert (number(in_a_source), in_a_source.field) == ("F36", "sources.0.occurred_at")


@pytest.mark.parametrize(
    "flaw",
    [
        {"hidden": True},
        {"generated": True},
        {"truncated": True},
        {"origin": "plugin", "origin_id": "calendar"},
        {"origin": "host"},
        {"role": "assistant"},
        {"role": "system"},
        {"role": "tool"},
        {"role": "assistant", "origin": "user"},
    ],
    ids=str,
)
def test_only_a_visible_whole_message_of_the_person_is_a_source(flaw: Json, memory: Memory,
    primary: Memory) -> None:  # fmt: skip
    capture(memory, 90, **flaw)

    with nothing_written(primary):
        answers = [
            primary.propose(KEY, "x", sources=[ref("90")]),
            primary.publish(KEY, "x", sources=[ref("90#0-1")]),
            memory.publish(KEY, "x", sources=[ref("90")]),
        ]

    assert [number(answer) for answer in answers] == ["F11"] * 3


def test_a_message_of_another_session_is_not_bound(primary: Memory, memory: Memory) -> None:
    capture(memory, 42, session="s-fork-1")

    with nothing_written(primary):
        answers = [
            who.publish(KEY, "x", sources=["personal-message:s-fork-1:42"])
            for who in (primary, memory)
        ]

    assert [number(answer) for answer in answers] == ["F7", "F7"]


def test_a_candidate_of_the_former_conversation_is_only_taken_over_by_a_correction(
    primary: Memory, memory: Memory
) -> None:
    primary.propose(KEY, "x", sources=[ref("42")])
    memory.host.bind_primary("s-main-2")
    capture(memory, 1, session="s-main-2")

    with nothing_written(memory):
        accepted = memory.accept(ID, 1)
        evidence = memory.evidence(ID)
    taken_over = memory.correct(ID, 1, "y", sources=["personal-message:s-main-2:1"])

    assert number(accepted) == "F7"
    assert [(source.ok, source.code) for source in evidence.sources] == [
        (False, "source_not_bound")
    ]
    assert isinstance(taken_over, Receipt)


def test_the_checks_are_made_again_at_acceptance(primary: Memory, memory: Memory) -> None:
    primary.propose(KEY, "x", sources=[ref("42")])
    text = "Please answer me in Chinese from now on"
    capture(memory, 42, text, at="2026-10-05T09:00:00Z", hidden=True)

    evidence = primary.evidence(ID)
    with nothing_written(primary):
        answer = primary.accept(ID, 1)

    assert [(source.code, source.text) for source in evidence.sources] == [
        ("source_rejected", None)
    ]
    assert number(answer) == "F11"


@pytest.mark.parametrize("kind", ["file", "user_edit", "legacy"])
def test_a_candidate_rests_on_messages_only(kind: str, primary: Memory) -> None:
    other = {"kind": kind, "ref": "notes.md"}
    primary.propose(TEA, "x", sources=[ref("88")])

    with nothing_written(primary):
        proposed = primary.propose(KEY, "x", sources=[ref("42"), other])
        revised = primary.revise(TEA_ID, 1, sources=[other])

    assert (number(proposed), proposed.field) == ("F13", "sources.1")
    assert (number(revised), revised.field) == ("F13", "sources.0")


def test_a_file_supports_a_statement_and_is_never_its_only_support(primary: Memory) -> None:
    file = {"kind": "file", "ref": "notes.md"}

    with nothing_written(primary):
        alone = primary.publish(KEY, "x", sources=[file])
        legacy = primary.publish(KEY, "x", sources=[ref("42"), {"kind": "legacy", "ref": "n"}])
    both = primary.publish(KEY, "x", sources=[ref("42"), file])

    assert (number(alone), number(legacy)) == ("F19", "F13")
    assert isinstance(both, Receipt)
    assert [source.kind for source in record_of(primary, ID).sources] == [
        "personal_message", "file",
    ]  # fmt: skip


def test_a_correction_needs_a_source_that_the_record_did_not_carry(primary: Memory) -> None:
    primary.publish(KEY, "x", sources=[ref("42")])

    with nothing_written(primary):
        answers = [
            primary.correct(ID, 1, "y", sources=sources)
            for sources in ([], [{"kind": "file", "ref": "notes.md"}])
        ]

    assert [number(answer) for answer in answers] == ["F19", "F19"]


def test_the_persons_own_statement_is_its_own_source(memory: Memory) -> None:
    memory.publish(KEY, "Wants Chinese", evidence="inference", operation_id="edit-1")
    memory.correct(ID, 1, "Wants French", sources=[ref("88")], operation_id="edit-2")

    record = record_of(memory, ID)
    assert record.evidence == "explicit"
    assert [(source.kind, source.ref) for source in record.sources] == [
        ("user_edit", "edit-1"), ("personal_message", ref("88")), ("user_edit", "edit-2"),
    ]  # fmt: skip


# -- claims and blocks (4.4, 4.5) ------------------------------------------------------------


def test_scenario_34_a_range_has_one_live_owner(primary: Memory) -> None:
    primary.publish(KEY, "Wants Chinese", sources=[ref("42")])

    with nothing_written(primary):
        answers = [
            primary.propose(TEA, "x", sources=[ref("42")]),
            primary.publish(TEA, "x", sources=[ref("42#3-4")]),
        ]

    assert [number(answer) for answer in answers] == ["F14", "F14"]


def test_scenario_36_whether_the_text_supports_the_fact_is_for_the_primary_session_to_judge(
    primary: Memory,
) -> None:
    primary.propose(KEY, "Owns a submarine", sources=[ref("42")])

    receipt = primary.accept(ID, 1)

    assert isinstance(receipt, Receipt)
    assert record_of(primary, ID).content == "Owns a submarine"


def test_a_range_that_a_revision_drops_or_a_rejection_releases_is_free_again(
    primary: Memory,
) -> None:
    primary.propose(KEY, "x", sources=[ref("50#0-7"), ref("42")])
    primary.revise(ID, 1, sources=[ref("50#0-3"), ref("88")])

    dropped = [primary.propose(TEA, "x", sources=[ref("50#3-7"), ref("42")])]
    primary.reject(ID, 2, "a guess")
    dropped.append(primary.propose(CITY, "x", sources=[ref("50#0-3"), ref("88")]))

    assert all(isinstance(receipt, Receipt) for receipt in dropped)


def test_an_owner_may_narrow_and_widen_its_own_range(primary: Memory) -> None:
    primary.propose(KEY, "x", sources=[ref("50#0-7")])

    narrowed = primary.revise(ID, 1, sources=[ref("50#2-3")])
    widened = primary.revise(ID, 2, sources=[ref("50")])

    assert isinstance(narrowed, Receipt)
    assert isinstance(widened, Receipt)


def test_scenario_91_a_rejected_key_stays_closed_to_that_range_and_other_keys_may_use_it(
    primary: Memory, task_7: Memory
) -> None:
    task_7.propose(KEY, "Likes Chinese", sources=[ref("42")])

    rejected = primary.reject(ID, 1, "guess")
    with nothing_written(primary):
        answers = [
            who.propose(KEY, "Likes Chinese", sources=[ref(place)])
            for who in (task_7, primary)
            for place in ("42", "42#0-6")
        ]
    other_key = task_7.propose(TEA, "Likes tea", sources=[ref("42")])

    assert (rejected.status, rejected.to_revision) == ("rejected", 2)
    assert [number(answer) for answer in answers] == ["F30"] * 4
    assert isinstance(other_key, Receipt)


def test_a_rejected_range_stays_closed_to_a_revision_of_the_reopened_candidate(
    primary: Memory,
) -> None:
    primary.propose(KEY, "x", sources=[ref("50#0-7")])
    primary.reject(ID, 1, "guess")
    primary.propose(KEY, "x", sources=[ref("50#7-9")])

    with nothing_written(primary):
        answer = primary.revise(ID, 3, sources=[ref("50#6-9")])
    elsewhere = primary.revise(ID, 3, sources=[ref("50#8-12")])

    assert number(answer) == "F30"
    assert isinstance(elsewhere, Receipt)


def test_only_events_that_add_release_or_block_a_range_are_found_under_its_message(
    primary: Memory,
) -> None:
    steps = {
        "adds": primary.propose(KEY, "x", sources=[ref("42")]),
        "keeps": primary.revise(ID, 1, content="y"),
        "moves": primary.revise(ID, 2, sources=[ref("88")]),
        "releases": primary.reject(ID, 3, "guess"),
        "blocks": primary.forget(ID, 4),
    }

    with primary._parts.log.reading() as store:
        events = {name: store.at(receipt.position) for name, receipt in steps.items()}

    tags = {
        name: sum(tag.startswith("src:") for tag in event.row.tags)
        for name, event in events.items()
    }
    assert tags == {"adds": 1, "keeps": 0, "moves": 2, "releases": 1, "blocks": 2}


def test_evidence_names_what_other_records_claim_of_the_message(primary: Memory) -> None:
    primary.propose(ALLERGY, "Allergic to peanuts", sources=[ref("50#0-7")])
    city = primary.propose(CITY, "Lives in Kyoto", sources=[ref("50#8-25")])

    evidence = primary.evidence(city.record_id)

    assert [claim.ref for claim in evidence.other_claims] == [ref("50#0-7")]
