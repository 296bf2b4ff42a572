"""Bad input: every public verb answers it with a refusal that names field and rule, unwritten."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta, timezone
from functools import partial
from itertools import count

import pytest

from memoranda.ledger.commands import BATCH_MAX
from memoranda.ledger.errors import Refused
from memoranda.ledger.events import Json
from memoranda.ledger.personal import Record
from memoranda.ledger.receipts import Receipt
from memoranda.projections.history import RecordRead
from memoranda.tools.memory import Memory

KEY = "preference/reply-language"
ID = "mem_448800f070a1c5b419f7b261f803ee4b9bf720c1b67db77e20f23d7bd71a2009"
TEA_ID = "mem_8bd9f7914096218ac8597c1a948899a2c12f19c2710f4adb7d998585c9c0de6a"
SURROGATE = "\ud800"
HUGE = 2**70
NAIVE = datetime(2026, 10, 6)  # noqa: DTZ001  # naive on purpose


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


def stored_value(memory: Memory) -> Json:
    read = memory.read(ID, include_inactive=True)
    assert isinstance(read, RecordRead)
    assert isinstance(read.record, Record)
    return read.record.model_dump(mode="json")


def nested(wrap: Callable[[object], object], depth: int = 100_000) -> object:
    value: object = "x"
    for _ in range(depth):
        value = wrap(value)
    return value


DEEP_DICT = nested(lambda value: {"a": value})
DEEP_LIST = nested(lambda value: [value])
CYCLE: dict[str, object] = {}
CYCLE["a"] = CYCLE
NEVER = (
    None, True, 0, -1, HUGE, 1.5, float("nan"), float("inf"), "", "\0", SURROGATE, b"x", [], [None],
    {}, {"a": 1}, {SURROGATE: 1}, {1: 2}, DEEP_DICT, DEEP_LIST, CYCLE, object(), date(2026, 1, 1),
    NAIVE, datetime.max.replace(tzinfo=timezone(-timedelta(hours=12))), 10**6 * "x",
)  # fmt: skip
"""What no text field takes; the fields that take one of these are told apart below."""

OK: dict[str, Json] = {
    "propose": {
        "operation_id": "op-2", "key": "preference/tea", "content": "x", "evidence": "inference",
        "effective_at": None, "expires_at": None, "sources": [ref("88")], "conflicts_with": [],
    },
    "publish": {
        "operation_id": "op-2", "key": "preference/tea", "content": "x", "evidence": "explicit",
        "effective_at": None, "expires_at": None, "sources": [ref("88")], "expected_revision": None,
    },
    "revise": {
        "operation_id": "op-2", "record_id": ID, "expected_revision": 1, "content": "x",
        "evidence": "inference", "effective_at": None, "expires_at": None, "sources": [ref("88")],
        "conflicts_with": [],
    },
    "accept": {"operation_id": "op-2", "record_id": ID, "inspected_revision": 1},
    "reject": {"operation_id": "op-2", "record_id": ID, "expected_revision": 1, "reason": "x"},
    "correct": {
        "operation_id": "op-2", "record_id": ID, "expected_revision": 1, "content": "x",
        "effective_at": None, "expires_at": None, "sources": [ref("88")],
    },
    "choose_tier": {
        "operation_id": "op-2", "record_id": ID, "expected_revision": 1, "tier": "core"
    },
    "retire": {"operation_id": "op-2", "record_id": ID, "expected_revision": 1, "reason": "x"},
    "reactivate": {"operation_id": "op-2", "record_id": ID, "expected_revision": 1},
    "forget": {"operation_id": "op-2", "record_id": ID, "expected_revision": 1},
    "open_conflict": {
        "operation_id": "op-2", "candidate_id": ID, "other_id": TEA_ID, "reason": "x"
    },
    "resolve_conflict": {
        "operation_id": "op-2", "conflict_id": "con-1", "resolution": "keep_both", "reason": "x"
    },
}  # fmt: skip
EMPTY_IS_FINE = {"sources", "conflicts_with"}
NONE_IS_FINE = {"effective_at", "expires_at", "expected_revision"}


def is_taken(verb: str, field: str, bad: object) -> bool:
    """What among `NEVER` that one field of one verb takes after all."""
    if bad is None:
        return field in NONE_IS_FINE or verb == "revise"
    return bad == [] and field in EMPTY_IS_FINE


@pytest.mark.parametrize("verb", OK)
def test_no_field_of_a_command_takes_what_has_another_form(verb: str, primary: Memory) -> None:
    primary.propose(KEY, "x", sources=[ref("42")])
    call = partial(getattr(primary._parts.ledger, verb), primary.caller)
    tries = [(field, bad) for field in OK[verb] for bad in NEVER if not is_taken(verb, field, bad)]

    with nothing_written(primary):
        answers = [(field, call(**{**OK[verb], field: bad})) for field, bad in tries]

    assert {number(answer) for _, answer in answers} == {"F36", "F32"}
    assert [answer.field.partition(".")[0] for _, answer in answers] == [
        field for field, _ in tries
    ]
    assert all("[" not in answer.field for _, answer in answers)


@pytest.mark.parametrize("verb", OK)
def test_a_field_that_a_command_does_not_know_or_lacks_is_named(verb: str, primary: Memory) -> None:
    call = partial(getattr(primary._parts.ledger, verb), primary.caller)
    without = {name: value for name, value in OK[verb].items() if name != "operation_id"}

    with nothing_written(primary):
        unknown = call(**OK[verb], occurred_at="2026-10-05T09:00:00Z")
        missing = call(**without)

    assert (number(unknown), unknown.field) == ("F36", "occurred_at")
    assert unknown.message == "is not a parameter of this call"
    assert (number(missing), missing.field) == ("F36", "operation_id")


# -- ids, keys, texts ------------------------------------------------------------------------


RECORD_IDS = [
    "mem_", f"mem_{63 * '0'}", f"mem_{65 * '0'}", f"mem_{64 * 'A'}", f"MEM_{64 * '0'}",
    f"mem-{64 * '0'}", 64 * "0", f"mem_{64 * '٠'}", f" {ID}", f"{ID}\n", ID.upper(), 256 * "x",
]  # fmt: skip


def about(primary: Memory, record_id: object) -> list[Refused]:
    """What each kind of command answers about a record of that id."""
    return [
        primary.forget(record_id, 1),
        primary.accept(record_id, 1),
        primary.propose(KEY, "x", sources=[ref("42")], conflicts_with=[record_id]),
        primary.commit({"id": "op-1", "key": record_id, "expected": None, "value": {}}),
    ]


def test_only_an_earlier_store_has_record_ids_of_another_form(primary: Memory) -> None:
    with nothing_written(primary):
        answers = [answer for record_id in RECORD_IDS for answer in about(primary, record_id)]

    told = [("F35", "record_id"), ("F35", "record_id"), ("F35", "conflicts_with"), ("F36", "key")]
    assert [(number(it), it.field) for it in answers] == len(RECORD_IDS) * told


@pytest.mark.parametrize(
    ("record_id", "refusal"),
    [("", "F36"), ("\0", "F36"), (SURROGATE, "F36"), (7, "F36"), (None, "F36"), (257 * "x", "F32")],
)
def test_what_can_be_no_record_id_is_refused(
    record_id: object, refusal: str, primary: Memory
) -> None:
    with nothing_written(primary):
        answers = about(primary, record_id)

    fields = ["record_id", "record_id", "conflicts_with.0", "key"]
    assert [(number(it), it.field) for it in answers] == [(refusal, field) for field in fields]


def test_an_operation_id_is_1_to_128_of_its_alphabet(memory: Memory) -> None:
    expected = {
        128 * "x": None, "AZaz09._:-": None, 129 * "x": "F32", "": "F36", "op 1": "F36",
        "op/1": "F36", "öp-1": "F36", "op-1\n": "F36", "op-１": "F36",
    }  # fmt: skip

    answers = {each: memory.remember(f"x {each}", operation_id=each) for each in expected}

    assert {each: number(answer) for each, answer in answers.items()} == expected


def test_a_key_is_1_to_512_bytes_in_its_normal_form_and_holds_no_control_character(
    memory: Memory,
) -> None:
    expected = {
        512 * "k": None, 513 * "k": "F32", 170 * "中" + "kk": None, 170 * "中" + "kkk": "F32",
        512 * "Ⓛ": None, 86 * "ﷺ": "F32", "": "F36", "   ": "F36", "\u3000": "F36",
        "a\tb": "F36", "a\nb": "F36", "a\0b": "F36", "a\x85b": "F36", "a\ud800b": "F36",
        "a\u2028b": None,
    }  # fmt: skip

    answers = {key: memory.publish(key, "x") for key in expected}

    assert {key: number(answer) for key, answer in answers.items()} == expected
    refused = [answer for answer in answers.values() if isinstance(answer, Refused)]
    assert {answer.field for answer in refused} == {"key"}


def test_a_content_is_1_to_8192_bytes_without_nul_and_lone_surrogates(memory: Memory) -> None:
    expected = {
        8192 * "x": None, 8193 * "x": "F32", 2730 * "中" + "xx": None, 2730 * "中" + "xxx": "F32",
        2048 * "🥜": None, 2048 * "🥜" + "x": "F32", "": "F36", " \n\t\u3000": "F36",
        "a\0b": "F36", "a\udc00b": "F36", "line one\nline two\t\u2028 ": None,
    }  # fmt: skip

    answers = {text: memory.publish(f"key/{at}", text) for at, text in enumerate(expected)}

    assert {text: number(answer) for text, answer in answers.items()} == expected
    kept = {read.record.content for read in memory.records()}
    assert kept == {text for text, refusal in expected.items() if refusal is None}


@pytest.mark.parametrize("reason", [500 * "x", 500 * "🥜"], ids=["ascii", "wide"])
def test_a_reason_may_have_500_characters(reason: str, primary: Memory) -> None:
    answers = give_reason(primary, reason)

    assert [number(answer) for answer in answers] == [None] * 4


def test_a_reason_is_neither_empty_nor_longer_than_500_characters(primary: Memory) -> None:
    expected = {501 * "x": "F32", "": "F36", "  ": "F36", "a\0b": "F36", SURROGATE: "F36"}

    answers = {reason: give_reason(primary, reason) for reason in expected}

    assert {reason: [number(answer) for answer in each] for reason, each in answers.items()} == {
        reason: [refusal] * 4 for reason, refusal in expected.items()
    }
    assert {answer.field for each in answers.values() for answer in each} == {"reason"}


def give_reason(primary: Memory, reason: str) -> list[object]:
    """Every command that takes a reason, on records made when they are not there yet."""
    primary.propose(KEY, "x", sources=[ref("42")])
    primary.publish("preference/tea", "x", sources=[ref("88")])
    conflict = primary.open_conflict(ID, TEA_ID, reason)
    known = "con-1" if isinstance(conflict, Refused) else conflict.conflict_id
    return [
        conflict,
        primary.resolve_conflict(known, "keep_both", reason),
        primary.retire(TEA_ID, 1, reason),
        primary.reject(ID, 1, reason),
    ]


def test_a_raw_rejection_has_a_reason_too(primary: Memory) -> None:
    primary.propose(KEY, "x", sources=[ref("42")])
    candidate = stored_value(primary)
    own = {"agent_id": "agent-main", "executor_session_id": "s-main-1", "revision": 2}
    rejected = {
        **candidate, "revision": 2, "status": "rejected",
        "contributions": [*candidate["contributions"], own],
    }  # fmt: skip

    def reject(*reasons: str) -> object:
        rejections = [{"ref": ref("42"), "reason": each, "revision": 2} for each in reasons]
        value = {**rejected, "rejections": rejections}
        return primary.commit({"id": "op-2", "key": ID, "expected": candidate, "value": value})

    with nothing_written(primary):
        answers = [reject(""), reject("\0"), reject(), reject(501 * "x")]
    proper = reject("guess")

    assert [number(answer) for answer in answers] == ["F19", "F19", "F19", "F32"]
    assert isinstance(proper, Receipt)


def test_a_record_that_grows_beyond_its_limit_is_refused(primary: Memory, memory: Memory) -> None:
    message = {"session": "s-main-1", "seq": 90, "role": "user", "text": 64 * "a"}
    list(memory.capture([{**message, "at": "2026-10-06"}]))
    primary.propose(KEY, "x", sources=[ref(f"90#{at}-{at + 1}") for at in range(64)])

    with nothing_written(primary):
        answer = primary.reject(ID, 1, 500 * "🥜")
    shorter = primary.reject(ID, 1, "guess")

    assert (number(answer), answer.field) == ("F32", "value")
    assert isinstance(shorter, Receipt)


# -- sources ---------------------------------------------------------------------------------


def test_a_record_has_at_most_64_sources(primary: Memory, memory: Memory) -> None:
    message = {"session": "s-main-1", "seq": 90, "role": "user", "text": 70 * "a"}
    list(memory.capture([{**message, "at": "2026-10-06"}]))
    spans = [ref(f"90#{at}-{at + 1}") for at in range(66)]

    with nothing_written(primary):
        too_many = primary.publish(KEY, "x", sources=spans[:65])
    most = primary.publish(KEY, "x", sources=spans[:64])
    with nothing_written(primary):
        one_more = primary.correct(ID, 1, "y", sources=spans[64:65])

    assert (number(too_many), too_many.field) == ("F32", "sources")
    assert isinstance(most, Receipt)
    assert (number(one_more), one_more.field) == ("F32", "sources")


SOURCES = [
    ("", "F36", "sources.0.ref"),
    ("\0", "F36", "sources.0.ref"),
    (SURROGATE, "F36", "sources.0.ref"),
    (2049 * "x", "F32", "sources.0.ref"),
    (2048 * "x", "F9", "sources.0"),
    (f"personal-message:{2000 * 'x'}:1", "F7", "sources.0"),
    (ref("42#5-4"), "F9", "sources.0"),
    (5, "F36", "sources.0"),
    (None, "F36", "sources.0"),
    ({}, "F36", "sources.0.kind"),
    ({"kind": "personal_message"}, "F36", "sources.0.ref"),
    ({"ref": ref("42")}, "F36", "sources.0.kind"),
    ({"kind": "rumour", "ref": "x"}, "F36", "sources.0.kind"),
    ({"kind": "personal_message", "ref": 42}, "F36", "sources.0.ref"),
    ({"kind": "personal_message", "ref": ref("42"), "text": "x"}, "F36", "sources.0.text"),
]


def test_a_source_of_another_form_is_refused_at_its_place(primary: Memory) -> None:
    with nothing_written(primary):
        answers = [primary.propose(KEY, "x", sources=[source]) for source, _, _ in SOURCES]

    assert [(number(answer), answer.field) for answer in answers] == [
        (refusal, field) for _, refusal, field in SOURCES
    ]


# -- times -----------------------------------------------------------------------------------


TIMES = [
    "2026-02-30", "2026-13-01", "2026-10-06T24:00:00Z", "2026-10-06T12:60:00Z",
    "2026-10-06T12:00:60Z", "2026-10-06T12:00:00", "2026-10-06T12:00:00+00:00",
    "2026-10-06T12:00:00+02:00", "2026-10-06 12:00:00Z", "2026-10-06t12:00:00z",
    "2026-10-06T12:00Z", "2026-10-06T12:00:00.Z", "2026-10-06T12:00:00.50Z",
    "2026-10-06T12:00:00.1234567Z", "20261006", "2026-W41-2", "0000-01-01", "12026-01-01",
    "２０２６-10-06", " 2026-10-06", "2026-10-06\n", "now", NAIVE, date(2026, 10, 6), 1_791_288_000,
    datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
    datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))),
]  # fmt: skip


def test_a_time_of_another_form_is_refused(memory: Memory, primary: Memory) -> None:
    primary.propose("preference/tea", "x", sources=[ref("88")])
    message = {"session": "s-main-1", "seq": 90, "role": "user", "text": "x"}

    with nothing_written(memory):
        answers = [
            answer
            for time in TIMES
            for answer in (
                memory.publish(KEY, "x", effective_at=time),
                primary.revise(TEA_ID, 1, expires_at=time),
                *memory.capture([{**message, "at": time}]),
            )
        ]

    assert {number(answer) for answer in answers} == {"F36"}
    assert [answer.field for answer in answers] == len(TIMES) * ["effective_at", "expires_at", "at"]


@pytest.mark.parametrize(
    ("time", "kept"),
    [
        ("2026-10-06", "2026-10-06T00:00:00Z"),
        ("2026-10-06T12:00:00Z", "2026-10-06T12:00:00Z"),
        ("2026-10-06T12:00:00.123456Z", "2026-10-06T12:00:00.123456Z"),
        ("2028-02-29", "2028-02-29T00:00:00Z"),
        ("0001-01-01", "0001-01-01T00:00:00Z"),
        (datetime(2026, 10, 6, 12, tzinfo=UTC), "2026-10-06T12:00:00Z"),
        (
            datetime(2026, 10, 6, 14, 0, 0, 500_000, tzinfo=timezone(timedelta(hours=2))),
            "2026-10-06T12:00:00.5Z",
        ),
    ],
    ids=str,
)
def test_a_time_is_kept_in_utc_in_its_shortest_form(
    time: object, kept: str, memory: Memory
) -> None:
    memory.publish(KEY, "x", effective_at=time, expires_at=time)

    value = stored_value(memory)
    assert (value["effective_at"], value["expires_at"]) == (kept, kept)


@pytest.mark.parametrize("field", ["effective_at", "expires_at"])
def test_an_opening_has_no_date_to_keep(field: str, memory: Memory) -> None:
    answer = memory.publish(KEY, "x", **{field: "keep"})

    assert (number(answer), answer.field) == ("F36", field)


# -- the front door --------------------------------------------------------------------------


def test_a_typed_verb_refuses_what_is_no_list_of_sources_and_no_text(
    memory: Memory, primary: Memory
) -> None:
    with nothing_written(memory):
        answers = [
            *(primary.propose(KEY, "x", sources=bad) for bad in (None, 5, ref("42"))),
            primary.propose(KEY, "x", sources=[ref("42")], conflicts_with=None),
            primary.publish(KEY, "x", sources=5),
            primary.revise(ID, 1, sources=5),
            primary.correct(ID, 1, "x", sources=5),
            memory.remember(5),
            memory.remember(None),
        ]

    sources, texts = 3 * ["sources"], 2 * ["content"]
    fields = [*sources, "conflicts_with", *sources, *texts]
    assert [(number(answer), answer.field) for answer in answers] == [
        ("F36", field) for field in fields
    ]


# -- raw commits -----------------------------------------------------------------------------


@pytest.fixture
def committed(primary: Memory) -> Json:
    """A raw commit that was taken, under `op-1`."""
    primary.publish(KEY, "x", sources=[ref("42")], operation_id="op-1")
    return {"id": "op-1", "key": ID, "expected": None, "value": stored_value(primary)}


def following(committed: Json, **changes: object) -> Json:
    """A raw commit of the next revision, good but for the changes."""
    value = committed["value"]
    own = {"agent_id": "agent-main", "executor_session_id": "s-main-1", "revision": 2}
    tiered = {
        **value, "revision": 2, "tier": "core", "contributions": [*value["contributions"], own],
    }  # fmt: skip
    return {"id": "op-2", "key": ID, "expected": value, "value": {**tiered, **changes}}


def test_the_raw_commit_of_this_file_is_good_but_for_what_is_changed(
    committed: Json, primary: Memory
) -> None:
    assert isinstance(primary.commit(following(committed)), Receipt)


def test_a_raw_commit_of_another_form_is_refused(primary: Memory) -> None:
    others = (None, 5, "x", b"x", [], (), {}, {"id": "op-2"}, {1: 2}, {SURROGATE: 1}, CYCLE)

    with nothing_written(primary):
        answers = [primary.commit(other) for other in (*others, DEEP_DICT)]

    assert {number(answer) for answer in answers} == {"F36"}
    assert all(answer.wire()["message"] for answer in answers)


class Unsaid:
    """What cannot be turned into text."""

    def __str__(self) -> str:
        raise RuntimeError("said the word Peanuts")

    __repr__ = __str__


def test_a_name_that_is_no_text_is_refused_unsaid(memory: Memory) -> None:
    with nothing_written(memory):
        for name in (None, 5, [], b"publish", Unsaid()):
            request = {"name": name, "operation_id": "op-1", "key": KEY, "content": "x"}
            for answer in (
                memory.prepare(request), memory.commit(request), *memory.commit_many([request])
            ):  # fmt: skip
                assert (number(answer), answer.field) == ("F36", "name")


def test_a_batch_without_end_is_refused_at_its_limit(memory: Memory) -> None:
    asked = count()
    requests = ({"name": "publish", "key": f"k {n}", "content": "x"} for n in asked)

    with nothing_written(memory):
        answer = memory.commit_many(requests)

    assert (number(answer), answer.field) == ("F32", "requests")
    assert next(asked) == BATCH_MAX + 1


def test_what_no_other_verb_has_answered_is_refused(memory: Memory, primary: Memory) -> None:
    with nothing_written(memory):
        for other in (None, 5, "x", [], {}, Unsaid(), memory.status()):
            answer = primary.note_delivery(other)  # type: ignore[arg-type]  # on purpose
            assert (number(answer), answer.field) == ("F36", "recalled")
            answer = memory.forget_many(other)  # type: ignore[arg-type,assignment]  # on purpose
            assert (number(answer), answer.field) == ("F36", "fall")
        assert number(primary.note_delivery(primary.recall("x", step=""))) == "F36"
        assert number(memory.forget_many(memory.falling(record=ID))) == "F35"


UNSAYABLE = [
    DEEP_DICT, {"a": DEEP_LIST}, CYCLE, {"a": object()}, {"a": float("nan")}, {"a": float("inf")},
    {"a": 2**53}, {"a": -(2**60)}, {"a": SURROGATE}, {SURROGATE: "a"}, {"a": {1: "b"}},
    {"a": b"x"}, {"a": {"b"}}, {"a": date(2026, 1, 1)}, [], "x", 5,
]  # fmt: skip


@pytest.mark.parametrize("field", ["expected", "value"])
@pytest.mark.parametrize("operation_id", ["op-1", "op-2"], ids=["retry", "new"])
def test_what_json_cannot_say_is_refused_at_the_door(
    operation_id: str, field: str, committed: Json, primary: Memory
) -> None:
    request = {**committed, "id": operation_id}

    with nothing_written(primary):
        answers = [primary.commit({**request, field: unsayable}) for unsayable in UNSAYABLE]

    assert [number(answer) for answer in answers] == ["F36"] * len(UNSAYABLE)
    assert {answer.field for answer in answers} == {field}


def test_a_raw_revision_that_is_not_the_next_integer_is_refused(
    committed: Json, primary: Memory
) -> None:
    others = ("2", 2.5, True, False, None, 0, -1, 3, 2**53 - 1, [2], {"a": 2})

    with nothing_written(primary):
        answers = [primary.commit(following(committed, revision=other)) for other in others]

    assert [number(answer) for answer in answers] == ["F18"] * len(others)
    assert {answer.field for answer in answers} == {"value.revision"}


def test_true_is_no_first_revision_and_a_float_is_no_revision(primary: Memory) -> None:
    primary.publish(KEY, "x", sources=[ref("42")])
    value = {**stored_value(primary), "id": TEA_ID}
    raw = {"id": "op-2", "key": TEA_ID, "expected": None}

    with nothing_written(primary):
        answers = [primary.commit({**raw, "value": {**value, "revision": r}}) for r in (True, 1.0)]

    assert [(number(answer), answer.field) for answer in answers] == [
        ("F18", "value.revision"), ("F19", "value.revision"),
    ]  # fmt: skip


SOURCE = {
    "kind": "personal_message", "ref": ref("42"), "occurred_at": "2026-10-05T09:00:00Z"
}  # fmt: skip
REJECTION = {"ref": ref("42"), "reason": "guess", "revision": 1}
RAW_FIELDS: list[tuple[Json, str, str]] = [
    ({"status": ["accepted"]}, "F19", "value.status"),
    ({"tier": "CORE"}, "F19", "value.tier"),
    ({"evidence": None}, "F19", "value.evidence"),
    ({"content": ""}, "F19", "value.content"),
    ({"content": "a\0b"}, "F19", "value.content"),
    ({"content": 8193 * "x"}, "F32", "value.content"),
    ({"effective_at": "2026-10-06"}, "F19", "value.effective_at"),
    ({"expires_at": "2026-02-30T00:00:00Z"}, "F19", "value.expires_at"),
    ({"user_space_id": "us_bob"}, "F19", "value.user_space_id"),
    ({"product_domain": "Personal"}, "F19", "value.product_domain"),
    ({"contributor_agent_id": ""}, "F19", "value.contributor_agent_id"),
    ({"updated_by_agent_id": "agent-bg"}, "F19", "value.updated_by_agent_id"),
    ({"contributions": []}, "F19", "value.contributions"),
    ({"contributions": [{}]}, "F19", "value.contributions.0.agent_id"),
    ({"sources": []}, "F19", "value.sources"),
    ({"sources": 65 * [SOURCE]}, "F32", "value.sources"),
    ({"sources": {"0": SOURCE}}, "F19", "value.sources"),
    ({"rejections": None}, "F19", "value.rejections"),
    ({"rejections": 65 * [REJECTION]}, "F32", "value.rejections"),
    ({"rejections": [REJECTION]}, "F19", "value.rejections"),
    ({"blocked_sources": [ref("88")]}, "F19", "value.blocked_sources"),
    ({"blocked_sources": [5]}, "F19", "value.blocked_sources.0"),
    ({"id": "mem_1"}, "F19", "value.id"),
    ({"note": 1}, "F19", "value.note"),
]


def test_a_raw_field_of_another_form_is_refused_by_its_name(
    committed: Json, primary: Memory
) -> None:
    with nothing_written(primary):
        answers = [primary.commit(following(committed, **changes)) for changes, _, _ in RAW_FIELDS]

    assert [(number(answer), answer.field) for answer in answers] == [
        (refusal, field) for _, refusal, field in RAW_FIELDS
    ]


@pytest.mark.parametrize("field", ["tier", "content", "contributions", "sources", "status"])
def test_a_raw_value_that_lacks_a_field_is_refused(
    field: str, committed: Json, primary: Memory
) -> None:
    request = following(committed)
    del request["value"][field]

    with nothing_written(primary):
        answer = primary.commit(request)

    assert number(answer) == "F19"
    assert answer.field == f"value.{field}"


@pytest.mark.parametrize("more", [{"note": 1}, {"reason": "x"}, {"occurred_at": "2026-10-05"}])
def test_a_raw_commit_has_four_fields(more: Json, committed: Json, primary: Memory) -> None:
    with nothing_written(primary):
        answer = primary.commit({**following(committed), **more})

    assert (number(answer), answer.field) == ("F36", next(iter(more)))


# -- reads and the host ----------------------------------------------------------------------

NAMED: dict[str, Callable[[Memory, object], object]] = {
    "read": lambda memory, bad: memory.read(bad),
    "revisions": lambda memory, bad: memory.revisions(bad),
    "explain": lambda memory, bad: memory.explain(bad),
    "evidence": lambda memory, bad: memory.evidence(bad),
    "operation": lambda memory, bad: memory.operation(bad),
    "source": lambda memory, bad: memory.source(bad),
    "bind_primary": lambda memory, bad: memory.host.bind_primary(bad),
    "stop_task": lambda memory, bad: memory.host.stop_task(bad),
    "revoke": lambda memory, bad: memory.host.revoke(bad),
}


@pytest.mark.parametrize("verb", NAMED)
def test_a_read_or_host_call_takes_no_name_of_another_form(verb: str, memory: Memory) -> None:
    with nothing_written(memory):
        answers = [NAMED[verb](memory, bad) for bad in NEVER]

    assert {number(answer) for answer in answers} == {"F36", "F32"}
    assert all(answer.field for answer in answers)


@pytest.mark.parametrize("limit", [None, True, 0, -1, 1.5, "10", HUGE, 101])
def test_a_page_has_1_to_100_records(limit: object, memory: Memory) -> None:
    answers = [memory.records(limit=limit), memory.candidates(limit=limit)]

    expected = "F32" if isinstance(limit, int) and limit > 100 else "F36"
    assert [(number(each), each.field) for each in answers] == [(expected, "limit")] * 2
    assert memory.records(limit=1) == memory.records(limit=100) == ()


@pytest.mark.parametrize("flag", [None, 1, "yes"])
def test_asking_for_inactive_records_is_yes_or_no(flag: object, memory: Memory) -> None:
    answers = [memory.records(include_inactive=flag), memory.read(ID, include_inactive=flag)]

    assert [(number(each), each.field) for each in answers] == [("F36", "include_inactive")] * 2


MESSAGE: Json = {"session": "s-main-1", "seq": 90, "role": "user", "text": "x", "at": "2026-10-06"}
TASK: Json = {"item_id": "task-5", "requirement_revision": 1, "captured_ref": ref("42")}
LEAVE: Json = {
    "authorization_id": "ea-5", "item_id": "task-5", "requirement_revision": 1,
    "executor_session_id": "s-bg-5",
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("session", ["", "\0", SURROGATE, 257 * "x", None, 5]),
        ("seq", [0, -1, True, 1.0, "90", 2**53, None]),
        ("role", ["person", None, 5]),
        ("text", [None, 5, b"x", "a\0b", SURROGATE, 262_145 * "x", 87_382 * "中"]),
        ("origin", ["model", 5]),
        ("hidden", [None, 1, "no"]),
        ("note", [1]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_message_of_another_form_is_refused(
    field: str, bad: list[object], memory: Memory
) -> None:
    with nothing_written(memory):
        answers = list(memory.capture({**MESSAGE, field: value} for value in bad))

    assert {number(answer) for answer in answers} <= {"F36", "F32"}
    assert {answer.field for answer in answers} == {field}


def test_what_is_no_message_is_refused_in_its_place(memory: Memory) -> None:
    answers = list(memory.capture([None, 5, "x", [], {}, MESSAGE, DEEP_DICT]))

    assert [number(answer) for answer in answers] == [*5 * ["F36"], None, "F36"]


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("item_id", ["", SURROGATE, 257 * "x", None, 5]),
        ("requirement_revision", [0, True, "1", 1.0, 2**53]),
        ("captured_ref", ["", ref("042"), "file:x", SURROGATE, 5]),
        ("stopped", [True]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_task_of_another_form_is_refused(field: str, bad: list[object], memory: Memory) -> None:
    with nothing_written(memory):
        answers = [memory.host.open_task(**{**TASK, field: value}) for value in bad]

    assert {number(answer) for answer in answers} <= {"F36", "F32"}
    assert {answer.field for answer in answers} == {field}


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("authorization_id", ["", SURROGATE, 257 * "x", None, 5]),
        ("executor_session_id", ["", "\0", None]),
        ("requirement_revision", [0, True, "1", None]),
        ("guard_capable", [None, 1, "yes"]),
        ("revoked", [False]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_authorization_of_another_form_is_refused(
    field: str, bad: list[object], memory: Memory
) -> None:
    with nothing_written(memory):
        answers = [memory.host.authorize(**{**LEAVE, field: value}) for value in bad]

    assert {number(answer) for answer in answers} <= {"F36", "F32"}
    assert {answer.field for answer in answers} == {field}


def test_stopping_or_revoking_what_nobody_knows_is_not_found(memory: Memory) -> None:
    with nothing_written(memory):
        answers = [memory.host.stop_task("task-0"), memory.host.revoke("ea-0")]

    assert [(number(answer), answer.field) for answer in answers] == [
        ("F35", "item_id"), ("F35", "authorization_id"),
    ]  # fmt: skip


def test_a_refusal_never_repeats_what_it_refuses(memory: Memory) -> None:
    answers = [
        memory.publish("Peanuts\0", "x"),
        memory.publish(KEY, "Peanuts\0"),
        memory.publish(KEY, "x", effective_at="Peanuts"),
        memory.forget("Peanuts", 1),
        memory.publish(KEY, "x", sources=[{"kind": "Peanuts", "ref": "x"}]),
        memory.commit({"id": "op-1", "key": ID, "expected": None, "value": {"content": "Peanuts"}}),
        memory.read("Peanuts\0"),
    ]

    assert all(isinstance(answer, Refused) for answer in answers)
    assert "Peanuts" not in str([answer.wire() for answer in answers])
