"""Query: exact filters, stable pages, and records as they stood."""

import pytest

from memoranda.ledger.errors import Refusal

REF = "personal-message:s-main-1:"


@pytest.fixture
def thirty(memory, primary):
    """Thirty records with sources a minute apart."""
    for number in range(30):
        message = {
            "session": "s-main-1",
            "seq": 100 + number,
            "role": "user",
            "text": "said",
            "at": f"2026-10-01T00:{number:02d}:00Z",
        }
        assert hasattr(next(iter(memory.capture([message]))), "position")
        made = primary.publish(f"k/{number}", f"fact {number}", sources=[f"{REF}{100 + number}"])
        assert made.to_revision == 1
    return primary


def contents(page) -> list[str]:
    return [it.record.content for it in page.records]


def test_scenario_68_thirty_records_are_three_pages_and_the_last_has_no_cursor(thirty):
    pages, cursor = [], None
    for _ in range(3):
        page = thirty.query(limit=10, cursor=cursor)
        pages.append(page)
        cursor = page.next_cursor

    shown = [text for page in pages for text in contents(page)]
    assert shown == [f"fact {number}" for number in reversed(range(30))]
    assert [page.next_cursor is None for page in pages] == [False, False, True]


def test_race_r19_a_cursor_goes_stale_with_a_record_and_not_with_a_delivery(thirty):
    cursor = thirty.query(limit=10).next_cursor
    thirty.propose("new", "a candidate", sources=[f"{REF}42"])
    assert thirty.query(limit=10, cursor=cursor).refusal is Refusal.CURSOR_INVALID

    cursor = thirty.query(limit=10).next_cursor
    assert thirty.note_delivery(thirty.recall("x")).position is not None

    assert len(thirty.query(limit=10, cursor=cursor).records) == 10


@pytest.mark.parametrize(
    "change", [{"tier": "detail"}, {"text": "fact"}, {"include_inactive": True}]
)
def test_a_cursor_holds_for_its_own_filters_only(thirty, change):
    cursor = thirty.query(limit=10).next_cursor

    assert thirty.query(limit=10, cursor=cursor, **change).refusal is Refusal.CURSOR_INVALID


@pytest.mark.parametrize("forged", ["", "x", "中文", "A" * 88, "===="])
def test_a_forged_cursor_is_refused(thirty, forged):
    assert thirty.query(cursor=forged).refusal is Refusal.CURSOR_INVALID


def test_a_changed_byte_of_a_cursor_is_refused(thirty):
    cursor = thirty.query(limit=10).next_cursor

    changed = cursor[:50] + ("A" if cursor[50] != "A" else "B") + cursor[51:]

    assert thirty.query(limit=10, cursor=changed).refusal is Refusal.CURSOR_INVALID


def test_race_r22_pages_of_one_chain_share_one_clock_reading(thirty, memory, world):
    memory.host.bind_primary("s-main-1")
    expiring = thirty.publish(
        "visa", "expires soon", sources=[f"{REF}42"], expires_at="2026-10-06T12:00:05Z"
    )
    first = thirty.query(limit=1)
    assert first.records[0].record.id == expiring.record_id

    world.move(seconds=10)

    rest = thirty.query(limit=100, cursor=first.next_cursor)
    assert len(rest.records) == 30
    assert thirty.query(limit=1).records[0].record.id != expiring.record_id


def test_every_filter_narrows_exactly(thirty, memory):
    ids = {it.record.content: it.record.id for it in thirty.query(limit=100).records}
    memory.choose_tier(ids["fact 3"], 1, "core")
    memory.retire(ids["fact 4"], 1, "no longer so")
    memory.forget(ids["fact 5"], 1)

    assert contents(thirty.query(tier="core")) == ["fact 3"]
    assert contents(thirty.query(zone="core")) == ["fact 3"]
    assert len(thirty.query(zone="recent", limit=100).records) == 27
    assert contents(thirty.query(status="retired")) == ["fact 4"]
    assert thirty.query(status="forgotten").records[0].record.id == ids["fact 5"]
    since = thirty.query(since="2026-10-01T00:28:00Z")
    assert contents(since) == ["fact 29", "fact 28"]
    assert contents(thirty.query(until="2026-10-01T00:01:00Z")) == ["fact 1", "fact 0"]
    assert len(thirty.query(include_inactive=True, limit=100).records) == 30
    assert contents(thirty.query(text="fact 17")) == ["fact 17"]


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("lisbon", True),
        ("LISBON moved", True),
        ("isb", True),
        ("is", False),
        ("in", True),
        ("花", True),
        ("花生", True),
        ("生花", False),
        ("cafe", True),
        ("Café", True),
        ("cafe\u0301", True),
        ("porto", False),
    ],
)
def test_a_word_is_found_whole_or_inside_from_three_letters_or_one_cjk_character(
    memory, text, is_found
):
    memory.remember("She moved to a Café in Lisbon. 她对花生过敏。", key="k")

    assert bool(memory.query(text=text).records) is is_found


def test_as_of_shows_records_as_they_stood_at_a_position(memory, primary):
    made = primary.publish("home", "She lives in Porto", sources=[f"{REF}42"])
    corrected = primary.correct(made.record_id, 1, "She lives in Braga", sources=[f"{REF}88"])

    assert contents(memory.query(as_of=made.position)) == ["She lives in Porto"]
    assert contents(memory.query(as_of=corrected.position)) == ["She lives in Braga"]
    assert memory.query(as_of=made.position - 1).records == ()


def test_a_limit_is_1_to_100(memory):
    for limit in (0, 101, "10", True):
        assert memory.query(limit=limit).refusal is Refusal.INVALID_REQUEST


def test_a_cursor_goes_stale_with_a_conflict(thirty, task_7, primary):
    candidate = task_7.propose("language", "Answer in Chinese", sources=[f"{REF}42"])
    other = thirty.query(limit=1).records[0].record.id
    cursor = thirty.query(limit=10).next_cursor

    opened = primary.open_conflict(candidate.record_id, other, "both cannot be")

    assert opened.conflict_id
    assert thirty.query(limit=10, cursor=cursor).refusal is Refusal.CURSOR_INVALID
