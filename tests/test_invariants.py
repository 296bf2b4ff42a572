"""Invariants (PM 8): random scripts against a small model, and properties of the pure parts."""

from collections.abc import Iterator
from contextlib import suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from memoranda.ledger.commands import KEY_BYTES_MAX, normal_key
from memoranda.ledger.sources import merged, message_ref, overlap, parse_ref

QUICK = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=20,
    stateful_step_count=10,
    suppress_health_check=[HealthCheck.too_slow],
)
PURE = settings(QUICK, max_examples=100)

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
