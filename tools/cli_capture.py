"""The command that takes conversations in: messages as JSON lines, each with its own answer."""

import json
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from memoranda.ledger.errors import Refusal, Refused
from memoranda.projections.unseen import visible
from memoranda.tools.cli_answers import Answer, ExitCode, Problem
from memoranda.tools.cli_run import Json, Run, run_of

if TYPE_CHECKING:
    from memoranda.ledger.capturing import CaptureReceipt
    from memoranda.tools.memory import Memory

POLL_S = 0.2
"""How often a growing file is looked at."""

LINE_BYTES_MAX = 2 * 1024 * 1024
"""More than the longest message takes when every character of it is escaped."""

REFUSED_SHOWN_MAX = 100
DEFAULT_SESSION = "main"


class MessageLines:
    """Reads messages off a stream of JSON lines, and keeps what was refused, by line.

    A line without a session belongs to the default one; a line without `seq` has its place among
    the lines of its session, so that the same stream always says the same.
    """

    def __init__(self, stream: "IO[bytes] | GrowingLines", session: str) -> None:
        self._stream = stream
        self._number = 0
        self._session = session
        self._counts: Counter[str] = Counter()
        self._unanswered: deque[tuple[int, str]] = deque()
        self.first_session: str | None = None
        self.refused_count = 0
        self.refused: list[tuple[int, Refused]] = []

    def messages(self) -> Iterator[dict[str, object]]:
        """The messages in order; the answer to each is owed to `answered`."""
        for number, raw in self._numbered():
            message = _read(raw)
            if isinstance(message, Refused):
                # It keeps its place in the default session: mending it moves no other message.
                self._counts[self._session] += 1
                self._refuse(number, message)
                continue
            session = message.setdefault("session", self._session)
            self._counts[str(session)] += 1
            message.setdefault("seq", self._counts[str(session)])
            self._unanswered.append((number, str(session)))
            yield message

    def answered(self, refused: Refused | None) -> None:
        """Notes the answer to the oldest message that has none yet."""
        number, session = self._unanswered.popleft()
        if refused is not None:
            self._refuse(number, refused)
        elif self.first_session is None:
            self.first_session = session

    def _refuse(self, number: int, refused: Refused) -> None:
        self.refused_count += 1
        if len(self.refused) < REFUSED_SHOWN_MAX:
            self.refused.append((number, refused))

    def _numbered(self) -> Iterator[tuple[int, bytes]]:
        """Every line that is not blank, to the present end; of a too long one the beginning."""
        while raw := self._stream.readline(LINE_BYTES_MAX):
            self._number += 1
            rest = raw
            while len(rest) == LINE_BYTES_MAX and not rest.endswith(b"\n"):
                rest = self._stream.readline(LINE_BYTES_MAX)
            if raw.strip():
                yield self._number, raw


class GrowingLines:
    """A file that somebody is still writing to: its complete lines, and an end that moves."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self._stream = stream
        self._path = path
        self._owed = b""

    def readline(self, limit: int) -> bytes:
        """The next line once it is complete, cut at the limit; nothing while it is not."""
        if self._owed:
            rest, self._owed = self._owed, b""
            return rest
        start = self._stream.tell()
        raw = self._stream.readline()
        if not raw.endswith(b"\n"):
            self._stream.seek(start)
            return b""
        if len(raw) > limit:
            self._owed = b"\n"
        return raw[:limit]

    def is_there(self) -> bool:
        """Whether the name still stands for this file, and nobody has cut it short."""
        try:
            named, opened = self._path.stat(), os.fstat(self._stream.fileno())
        except FileNotFoundError:
            return False
        return os.path.samestat(named, opened) and named.st_size >= self._stream.tell()


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuses a field named twice: one of the two would win, and nobody knows which."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field stands twice")
    return fields


def _read(raw: bytes) -> dict[str, object] | Refused:
    if len(raw) == LINE_BYTES_MAX and not raw.endswith(b"\n"):
        return Refused(Refusal.LIMIT_EXCEEDED, None, f"at most {LINE_BYTES_MAX} bytes a line")
    try:
        message = json.loads(raw, object_pairs_hook=_unique)
    except ValueError:
        return Refused(Refusal.INVALID_REQUEST, None, "is not JSON, or names a field twice")
    except RecursionError:
        return Refused(Refusal.INVALID_REQUEST, None, "is nested too deeply")
    if not isinstance(message, dict):
        return Refused(Refusal.INVALID_REQUEST, None, "is not a JSON object")
    return message


def capture(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="Messages as JSON lines; standard input unless given.",
            exists=True,
            dir_okay=False,
            allow_dash=True,
        ),
    ] = None,
    *,
    session: Annotated[
        str, typer.Option(metavar="ID", help="The session of lines that name none.")
    ] = DEFAULT_SESSION,
    primary: Annotated[
        bool,
        typer.Option(
            "--primary",
            help="Make the session of the first message the primary one: only facts that rest on"
            " its messages can be accepted. The one before may only read from then on.",
        ),
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Go on with FILE as it grows, until Ctrl-C or its end."),
    ] = False,
    _json: Json = False,
) -> Answer | Refused:
    """Take conversation messages in; the same ones again change nothing.

    Each line is an object: role (user, assistant, system, tool) and text; as wanted session, seq,
    at (a time), origin (user, host, plugin), origin_id, cause, hidden, generated, truncated. A line
    without seq gets its place among its session's lines. A refused line does not stop the others.
    """
    if file is None or str(file) == "-":
        if follow:
            raise typer.BadParameter("needs a FILE", context, param_hint="--follow")
        return _capture(context, MessageLines(sys.stdin.buffer, session), is_primary=primary)
    with file.open("rb") as stream:
        growing = GrowingLines(stream, file) if follow else None
        lines = MessageLines(growing or stream, session)
        return _capture(context, lines, is_primary=primary, growing=growing)


def _capture(
    context: typer.Context,
    lines: MessageLines,
    *,
    is_primary: bool,
    growing: GrowingLines | None = None,
) -> Answer | Refused:
    run = run_of(context)
    captured = known = 0
    bound = None
    with run.memory(create=True) as memory:
        for answer in _answers(memory, lines, growing):
            lines.answered(answer if isinstance(answer, Refused) else None)
            if not isinstance(answer, Refused):
                captured += not answer.replayed
                known += answer.replayed
            if is_primary and bound is None and lines.first_session is not None:
                bound = memory.host.bind_primary(lines.first_session)
    if isinstance(bound, Refused):
        return bound
    lines.refused.sort(key=lambda it: it[0])
    fields: dict[str, object] = {
        "captured": captured,
        "already_there": known,
        "refused": lines.refused_count,
        "refusals": [{"line": number, **it.wire()} for number, it in lines.refused],
        "primary_session": bound.session_id if bound else None,
    }
    shown = [f"Captured {captured}, already there {known}, refused {lines.refused_count}."]
    if bound:
        shown.append(f"The primary session is now {visible(bound.session_id)}.")
    return Answer(fields, shown, _problem(run, lines))


def _answers(
    memory: "Memory", lines: MessageLines, growing: GrowingLines | None
) -> Iterator["CaptureReceipt | Refused"]:
    """The answer to each message; of a growing file until it is gone or the person has enough."""
    yield from memory.capture(lines.messages())
    with suppress(KeyboardInterrupt):
        while growing is not None:
            # Looked at first and read after: what came before the end is read in any case.
            is_last = not growing.is_there()
            yield from memory.capture(lines.messages())
            if is_last:
                return
            time.sleep(POLL_S)


def _problem(run: Run, lines: MessageLines) -> Problem | None:
    if not lines.refused:
        return None
    number, first = lines.refused[0]
    others = [
        f"line {number}: {it.code}: {': '.join(filter(None, (it.field, it.message)))}"
        for number, it in lines.refused[1:]
    ]
    if lines.refused_count > len(lines.refused):
        others.append(f"and {lines.refused_count - len(lines.refused)} lines more")
    error = {**run.refused(first).error, "line": number}
    return Problem(ExitCode.REFUSED, error, others)
