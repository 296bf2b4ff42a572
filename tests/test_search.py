"""Search: words in two scripts, ranked as BM25 says, and only what stands now."""

import pytest

from memoranda.tools.memory import Memory

REF = "personal-message:s-main-1:"


def found(memory: Memory, words: str) -> list[str]:
    answer = memory.search(words, limit=100)
    assert isinstance(answer, tuple)
    return [it.found.record.content for it in answer]


@pytest.mark.parametrize(
    ("words", "is_found"),
    [
        ("peanuts", True),
        ("PEANUTS?", True),
        ("花", True),
        ("花生", True),
        ("她对花生过敏吗", True),
        ("生花", False),
        ("gen report", True),
        ("gen-report", True),
        ("cafe\u0301", True),
        ("CAFÉ", True),
        ("ｃａｆé", True),
        ("what is the", False),
        ("的吗", False),
        ("almonds", False),
    ],
)
def test_a_fact_is_found_by_each_of_its_words(memory, words, is_found):
    memory.remember("Peanuts at the Café: see gen-report. 花生过敏", key="k")

    assert bool(found(memory, words)) is is_found


def test_the_rarer_word_and_the_shorter_text_come_first_and_statistics_follow_the_facts(memory):
    memory.remember("tea", key="tea")
    memory.remember("coffee", key="coffee")
    memory.remember("coffee with a great deal of warm milk", key="long")
    assert found(memory, "coffee tea")[0] == "tea"
    assert found(memory, "coffee") == ["coffee", "coffee with a great deal of warm milk"]

    for number in range(6):
        memory.remember(f"tea {number}", key=f"tea/{number}")

    assert found(memory, "coffee tea")[0] == "coffee"


def test_what_is_retired_forgotten_expired_or_corrected_is_not_found(memory, primary, world):
    ids = [memory.remember(f"plum {n}", key=f"plum/{n}").record_id for n in range(4)]
    primary.publish("pass", "plum pass", sources=[f"{REF}42"], expires_at="2026-10-06T12:00:01Z")
    assert len(found(memory, "plum")) == 5

    memory.retire(ids[0], 1, "no more")
    memory.forget(ids[1], 1)
    memory.correct(ids[2], 1, "pear")
    world.move(seconds=1)

    assert found(memory, "plum") == ["plum 3"]
    memory.reactivate(ids[0], 2)
    assert sorted(found(memory, "plum")) == ["plum 0", "plum 3"]
