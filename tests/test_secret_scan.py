"""The secret scan: what must be found, what must be left alone, and what it may cost."""

import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from runpy import run_path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memoranda.ledger.secret_scan import _LIBRARY, Secret, find_secrets, redact

_CORPUS = run_path(str(Path(__file__).with_name("secret_corpus.py")))
POSITIVES: str = _CORPUS["POSITIVES"]
NEGATIVES: str = _CORPUS["NEGATIVES"]


def _positive(row: str) -> tuple[str, Secret]:
    kind, _, marked = (
        row.replace("·", "").replace("⏎", "\n").replace("∅", "\u200b").partition(" | ")
    )
    start, end = marked.index("⟦"), marked.index("⟧") - 1
    return marked.replace("⟦", "").replace("⟧", ""), Secret(kind, start, end)


POSITIVE = [_positive(row) for row in POSITIVES.strip().splitlines()]
NEGATIVE = [row.replace("⏎", "\n") for row in NEGATIVES.strip().splitlines()]
PIECES = st.sampled_from(
    [text for text, _ in POSITIVE]
    + [text[secret.start : secret.end] for text, secret in POSITIVE]
    + [
        "password",
        " is ",
        "=",
        ": ",
        "密码",
        "\u200b",
        "[redacted: ",
        "]",
        "://",
        "@",
        "-----",
        "\x00",
    ]
)
TEXTS = st.lists(st.text(max_size=12) | PIECES, max_size=8).map("".join)


@pytest.mark.parametrize(("text", "secret"), POSITIVE)
def test_a_secret_is_found_with_its_kind_and_place(text: str, secret: Secret) -> None:
    found = find_secrets(text)

    assert found == (secret,)


@pytest.mark.parametrize(("text", "secret"), POSITIVE)
def test_a_finding_never_repeats_the_value(text: str, secret: Secret) -> None:
    value = text[secret.start : secret.end]

    assert value not in repr(find_secrets(text))


@pytest.mark.parametrize(("text", "secret"), POSITIVE)
def test_redaction_removes_the_value_and_keeps_the_rest(text: str, secret: Secret) -> None:
    redacted = redact(text)

    assert redacted == f"{text[: secret.start]}[redacted: {secret.kind}]{text[secret.end :]}"


@pytest.mark.parametrize("text", NEGATIVE)
def test_ordinary_text_holds_no_secret_and_is_left_as_it_is(text: str) -> None:
    assert find_secrets(text) == ()
    assert redact(text) == text


def test_the_corpus_is_found_whole_and_without_false_alarms(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = sum(find_secrets(text) == (secret,) for text, secret in POSITIVE)
    alarms = sum(find_secrets(text) != () for text in NEGATIVE)

    with capsys.disabled():
        print(  # noqa: T201 - the hit rate is for whoever reads the run
            f"\nsecrets found {found}/{len(POSITIVE)}, false alarms {alarms}/{len(NEGATIVE)}"
        )
    assert (found, alarms) == (len(POSITIVE), 0)
    assert min(len(POSITIVE), len(NEGATIVE)) >= 60


def test_every_secret_of_a_long_text_is_found_in_order() -> None:
    text = "\n\n".join(text for text, _ in POSITIVE)

    found = find_secrets(text)

    assert [secret.kind for secret in found] == [secret.kind for _, secret in POSITIVE]


def test_a_name_on_one_line_says_nothing_about_the_next_line() -> None:
    text = "These are my passwords:\nBitwarden holds them\nPassword:\nRemember to change it"

    assert find_secrets(text) == ()


@given(TEXTS)
@settings(deadline=None)
def test_findings_are_ordered_disjoint_and_inside_any_text(text: str) -> None:
    found = find_secrets(text)

    places = [place for secret in found for place in (secret.start, secret.end)]
    assert places == sorted(places)
    assert all(0 <= secret.start < secret.end <= len(text) for secret in found)


@given(TEXTS)
@settings(deadline=None)
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redact(text)

    assert redact(once) == once
    assert find_secrets(once) == ()


@pytest.mark.parametrize(("kind", "module", "name"), _LIBRARY)
@given(data=st.data())
@settings(deadline=None, max_examples=20)
def test_nothing_that_a_detector_of_the_library_knows_is_missed(
    data: st.DataObject, kind: str, module: str, name: str
) -> None:
    detector = getattr(import_module(f"detect_secrets.plugins.{module}"), name)()
    pattern = data.draw(st.sampled_from(list(detector.denylist)))
    token = data.draw(st.from_regex(pattern, fullmatch=True, alphabet=st.characters(codec="ascii")))

    found = find_secrets(f"see {token}")

    assert [found[0].start, len(found)] == [4, 1], kind
    assert found[0].end >= 4 + len(token.rstrip("-_"))


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "a",
            "aB3",
            " ",
            "://a:",
            "eyJ-",
            "sk-a-",
            "password=",
            "pwd:",
            "token=",
            "密码是 abc123 ",
        ),
        *("-----BEGIN PRIVATE KEY-----", "-----BEGIN A-----", "PuTTY-User-Key-File-2: a\n"),
        *("password for a b c ", "recovery phrase: abc abc ", "[redacted: a", "glrt-aaaaaaaaaaa-"),
        *("password=https://", "\u200b", "key aB3dE5fG7hI9kL1mN3oP5q ", '"password: "', "bearer a"),
    ],
)
def test_a_hostile_text_of_200_000_characters_takes_no_quadratic_time(piece: str) -> None:
    text = (piece * 200_000)[:200_000]

    began = time.process_time()
    find_secrets(text)

    # Measured at most 0.55 s of CPU; quadratic time would be minutes.
    assert time.process_time() - began < 10


def test_neither_importing_nor_scanning_ordinary_text_loads_the_library() -> None:
    program = (
        "import sys; from memoranda.ledger.secret_scan import find_secrets\n"
        f"assert not any(find_secrets(text) for text in {NEGATIVE[:60]!r})\n"
        "print('detect_secrets' in sys.modules)"
    )

    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert answer.stdout == "False\n"
