"""Capture: what the host persisted comes in once, in order, under keys that a forget can take."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.tables import Tables

from memoranda.ledger.errors import Refused
from memoranda.ledger.events import Json
from memoranda.ledger.hosting import BUCKET_MESSAGES, CaptureReceipt
from memoranda.ledger.receipts import Receipt
from memoranda.tools.memory import Memory

KEY = "preference/reply-language"
SECRET = "AKIA" + "IOSFODNN7EXAMPLE"


def ref(place: str) -> str:
    """`42` or `50#0-7` as a reference into the primary conversation."""
    return f"personal-message:s-main-1:{place}"


def message(seq: int, **more: object) -> Json:
    base = {"session": "s-main-1", "seq": seq, "role": "user", "text": f"Message {seq}"}
    return {**base, "at": "2026-10-06T11:00:00Z", **more}


def number(answer: object) -> str | None:
    """The F-number of a refusal; None for every other answer."""
    return answer.refusal.number if isinstance(answer, Refused) else None


@contextmanager
def nothing_written(memory: Memory) -> Iterator[None]:
    before = memory.status().position, memory.records(include_inactive=True)
    yield
    assert (memory.status().position, memory.records(include_inactive=True)) == before


def key_ids_of(tables: Tables, positions: list[int]) -> list[str]:
    """The data keys of the bodies at these positions."""
    keys = dict(tables.rows("SELECT position, key_id FROM bodies"))
    return [keys[position] for position in positions]


def test_a_message_is_taken_in_under_its_canonical_reference(memory: Memory) -> None:
    (answer,) = memory.capture([message(1, session="main/α 1")])

    assert isinstance(answer, CaptureReceipt)
    assert answer.ref == "personal-message:main%2F%CE%B1%201:1"
    assert (answer.position, answer.replayed) == (memory.status().position, False)


def test_a_message_that_comes_again_is_answered_with_its_first_place(memory: Memory) -> None:
    (first,) = memory.capture([message(1)])

    with nothing_written(memory):
        (second,) = memory.capture([message(1)])

    assert second == first.model_copy(update={"replayed": True})


def test_a_message_without_a_time_of_its_own_comes_again_at_any_time(
    memory: Memory, world: Any
) -> None:
    (first,) = memory.capture([message(1, at=None)])
    world.move(hours=1)

    with nothing_written(memory):
        (second,) = memory.capture([message(1, at=None)])

    assert second.position == first.position
    assert memory.source(ref("1")).occurred_at.startswith("2026-10-06T12:00:00")


@pytest.mark.parametrize(
    "other",
    [
        {"text": "Another text"},
        {"at": "2026-10-06T11:00:01Z"},
        {"role": "assistant"},
        {"origin": "plugin"},
        {"origin_id": "calendar"},
        {"cause": "a timer"},
        {"generated": True},
        {"truncated": True},
        {"text": "Another text", "hidden": True},
    ],
    ids=str,
)
def test_an_address_stands_for_one_content(other: Json, memory: Memory) -> None:
    list(memory.capture([message(1)]))

    with nothing_written(memory):
        (answer,) = memory.capture([message(1, **other)])

    assert (number(answer), answer.field) == ("F21", "seq")


def test_a_message_that_comes_again_as_hidden_supports_nothing_from_then_on(
    memory: Memory, primary: Memory
) -> None:
    list(memory.capture([message(1)]))
    before = primary.propose(KEY, "x", sources=[ref("1")])

    (hidden,) = memory.capture([message(1, hidden=True)])
    with nothing_written(memory):
        (again,) = memory.capture([message(1, hidden=True)])
        (shown,) = memory.capture([message(1)])
        answers = [
            primary.propose("preference/tea", "x", sources=[ref("1")]),
            primary.accept(before.record_id, 1),
            primary.source(ref("1")),
        ]

    assert isinstance(before, Receipt)
    assert [each.replayed for each in (hidden, again, shown)] == [True] * 3
    assert [number(answer) for answer in answers] == ["F11"] * 3


def test_a_message_captured_as_hidden_stays_hidden(memory: Memory, primary: Memory) -> None:
    list(memory.capture([message(1, hidden=True)]))

    with nothing_written(memory):
        (again,) = memory.capture([message(1)])

    assert again.replayed
    assert number(primary.propose(KEY, "x", sources=[ref("1")])) == "F11"


@pytest.mark.parametrize(
    "flaw",
    [
        {"generated": True},
        {"truncated": True},
        {"origin": "plugin"},
        {"role": "assistant"},
        {"role": "tool", "origin": "user"},
    ],
    ids=str,
)
def test_what_the_person_did_not_write_whole_is_kept_and_supports_nothing(
    flaw: Json, memory: Memory, primary: Memory
) -> None:
    (answer,) = memory.capture([message(1, **flaw)])

    assert isinstance(answer, CaptureReceipt)
    assert number(primary.propose(KEY, "x", sources=[ref("1")])) == "F11"


def test_every_message_of_a_batch_has_its_own_answer_in_its_place(memory: Memory) -> None:
    batch = [
        message(1),
        message(2, role="nobody"),
        message(3),
        message(1),
        message(1, text="Another text"),
        message(4, text=f"The key is {SECRET}"),
        message(5, text=""),
    ]

    answers = list(memory.capture(batch))

    assert [number(answer) for answer in answers] == [
        None, "F36", None, None, "F21", "F37", None,
    ]  # fmt: skip
    assert [answers[at].replayed for at in (0, 2, 3, 6)] == [False, False, True, False]
    assert SECRET not in str(answers[5].wire())
    assert number(memory.source(ref("4"))) == "F10"


def test_secrets_are_taken_out_of_messages_where_the_setting_says_so(
    opened: Callable[..., Memory],
) -> None:
    memory = opened(secrets="redact")
    secret = message(1, text=f"The key is {SECRET}")

    first, second = memory.capture([secret, secret])

    assert isinstance(first, CaptureReceipt)
    assert second == first.model_copy(update={"replayed": True})


def test_messages_come_in_as_they_are_drawn_and_in_any_number(memory: Memory) -> None:
    drawn = []

    def conversation() -> Iterator[Json]:
        for seq in range(100, 100 + 2 * BUCKET_MESSAGES + 1):
            drawn.append(seq)
            yield message(seq)

    answers = memory.capture(conversation())
    first = next(answers)
    drawn_for_the_first = len(drawn)
    rest = list(answers)

    assert drawn_for_the_first == BUCKET_MESSAGES
    positions = [first.position, *(answer.position for answer in rest)]
    assert positions == list(range(first.position, first.position + 2 * BUCKET_MESSAGES + 1))


def test_a_day_of_one_session_shares_a_key_for_every_64_messages(
    memory: Memory, tables: Tables, world: Any
) -> None:
    world.move(days=1)
    today = list(memory.capture(message(seq) for seq in range(100, 100 + BUCKET_MESSAGES + 1)))
    other = list(memory.capture([message(1, session="s-other")]))
    more = list(memory.capture([message(200)]))
    world.move(days=1)
    tomorrow = list(memory.capture([message(201)]))

    answers = (*today, *other, *more, *tomorrow)
    keys = key_ids_of(tables, [answer.position for answer in answers])

    bucket, next_bucket = keys[:BUCKET_MESSAGES], keys[BUCKET_MESSAGES : BUCKET_MESSAGES + 1]
    of_another_session, of_the_next_bucket, of_tomorrow = keys[-3:]
    assert len(set(bucket)) == 1
    assert next_bucket == [of_the_next_bucket]
    assert len({bucket[0], next_bucket[0], of_another_session, of_tomorrow}) == 4


def test_a_bucket_is_told_by_the_day_of_capture_and_not_by_the_time_of_the_message(
    memory: Memory, tables: Tables, world: Any
) -> None:
    world.move(days=1)

    answers = list(memory.capture([message(100, at="2020-01-01"), message(101, at="2026-10-05")]))

    assert len(set(key_ids_of(tables, [answer.position for answer in answers]))) == 1


def test_messages_have_other_keys_than_records(
    memory: Memory, primary: Memory, tables: Tables
) -> None:
    (captured,) = memory.capture([message(1)])
    receipt = primary.propose(KEY, "x", sources=[ref("1")])

    assert len(set(key_ids_of(tables, [captured.position, receipt.position]))) == 2


def test_captured_messages_are_there_after_a_restart(
    memory: Memory, opened: Callable[..., Memory]
) -> None:
    (first,) = memory.capture([message(1)])
    memory.close()

    reopened = opened()
    (again,) = reopened.capture([message(1)])

    assert again == first.model_copy(update={"replayed": True})
    assert reopened.audit.verify().findings == ()


def test_binding_the_bound_session_again_writes_nothing(memory: Memory) -> None:
    with nothing_written(memory):
        again = memory.host.bind_primary("s-main-1")
        task = memory.host.open_task(item_id="task-7", captured_ref=ref("42"))

    assert again.session_id == "s-main-1"
    assert task.item_id == "task-7"
