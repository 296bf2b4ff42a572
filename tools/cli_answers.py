"""What a command answers, and how it goes out: words for people, one JSON object for programs."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.text import Text

from memoranda.projections.unseen import escaped, visible
from memoranda.tools.render import line

UNBOUNDED_COLUMNS = 20_000
"""The width where nobody looks at a terminal: wider than any fact, so that no line is cut."""


class ExitCode(IntEnum):
    """How a run ended (DESIGN 9)."""

    DONE = 0
    REFUSED = 1
    USAGE = 2
    UNKNOWN_OUTCOME = 3
    INTEGRITY = 4
    FAULT = 5
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a run did not do what it was asked; `error` is the object of DESIGN 9.

    `others` are further ones of the same kind, for people: programs find them in the answer.
    """

    exit_code: ExitCode
    error: Mapping[str, object]
    others: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command found or did: `fields` for programs, `shown` for people.

    A `problem` makes it an answer that is not all well, like an audit with findings.
    """

    fields: Mapping[str, object]
    shown: Sequence[RenderableType] = ()
    problem: Problem | None = None


def json_of(fields: Mapping[str, object]) -> str:
    """One object on one line, valid in whatever encoding standard output has."""
    is_utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
    return escaped(json.dumps(fields, ensure_ascii=not is_utf8))


def put(shown: RenderableType, stream: TextIO | None = None) -> None:
    """Shows something: as wide as the terminal, or unbroken and unpadded into a file or pipe."""
    stream = sys.stdout if stream is None else stream
    is_terminal = stream.isatty()
    console = Console(
        file=stream,
        width=None if is_terminal else UNBOUNDED_COLUMNS,
        highlight=False,
        markup=False,
        emoji=False,
    )
    if is_terminal:
        console.print(shown)
        return
    text = "".join(segment.text for segment in console.render(Group(shown)))
    stream.write("\n".join(row.rstrip() for row in text.split("\n")))


def words_of(problem: Problem) -> Text:
    """A problem in words: code, place and message, then the rule and the next step."""
    error = problem.error
    place = f"line {error['line']}: " if "line" in error else ""
    named = f"{error['field']}: " if error.get("field") else ""
    words = Text.assemble(place, (str(error["code"]), "bold red"), ": ")
    words.append_text(line(f"{named}{error['message']}"))
    for name in ("rule", "next"):
        text = error.get(name)
        if text is not None and text != error["message"]:
            words.append(f"\n  {visible(str(text))}")
    for other in problem.others:
        words.append(f"\n{visible(other)}")
    return words


def prepare_streams() -> None:
    """Makes the process's streams take and give anything; a closed one becomes an empty one."""
    for name, mode, errors in _STREAMS:
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  # open to the end
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)


# A byte that is no text is refused later, by name; a character that the terminal cannot write is
# shown as its escape.
_STREAMS = (
    ("stdin", "r", "surrogateescape"),
    ("stdout", "w", "backslashreplace"),
    ("stderr", "w", "backslashreplace"),
)


def discard_rest(stream: TextIO) -> None:
    """Lets go of what nobody takes: the interpreter's last flush must not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
