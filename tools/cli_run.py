"""One run of the command line: its settings, its memory, and what is known of it so far."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from memoranda.ledger.errors import Refusal, Refused, StorageFault
from memoranda.ledger.stamps import Stamps
from memoranda.tools.cli_answers import (
    Answer,
    ExitCode,
    Problem,
    discard_rest,
    json_of,
    put,
    words_of,
)
from memoranda.tools.render import short

if TYPE_CHECKING:
    from memoranda.ledger.places import Place
    from memoranda.ledger.takeover import MigrationReport, Progress
    from memoranda.tools.memory import Memory
    from memoranda.tools.settings import Settings

_PLACES = {
    "passphrase": "It is typed at the terminal, or read from MEMORANDA_PASSPHRASE_FILE.",
    "vault": "`vault` in config.toml, or MEMORANDA_VAULT, says what keeps the wrapping key.",
}

BEGINNING_MIN = len("mem_") + 6
"""How much of an id names it; any shorter beginning soon names two."""


@dataclass
class Run:
    """What is known of a run so far, so that also a refusal can say what it was about."""

    given: dict[str, str | None] = field(default_factory=dict)
    as_json: bool = False
    stamps: Stamps = field(default_factory=Stamps)
    operation_id: str | None = None
    record_id: str | None = None
    recovery_code: str | None = None
    is_begun: bool = False
    log: logging.Handler = field(default_factory=logging.NullHandler)

    def __post_init__(self) -> None:
        # Without a handler, logging would print what the answer says better.
        logging.getLogger("memoranda").addHandler(self.log)

    def log_to_stderr(self) -> None:
        """Sends the ledger's one line per operation to standard error."""
        logger = logging.getLogger("memoranda")
        logger.removeHandler(self.log)
        self.log = logging.StreamHandler(sys.stderr)
        logger.addHandler(self.log)
        logger.setLevel(logging.INFO)

    def close(self) -> None:
        """Says what must not be lost, whatever became of the answer."""
        self._show_recovery_code()
        logger = logging.getLogger("memoranda")
        logger.removeHandler(self.log)
        logger.setLevel(logging.NOTSET)

    def settings(self) -> "Settings":
        """The settings in force: the global options over variables over `config.toml`."""
        from memoranda.tools.settings import load_settings  # noqa: PLC0415  # not for --help

        return load_settings(**self.given)

    @contextmanager
    def memory(self, *, create: bool = False) -> Iterator["Memory"]:
        """The person's memory, open; an unknown space is refused unless it may be created."""
        from memoranda.tools.memory import assemble  # noqa: PLC0415  # not for --help
        from memoranda.tools.passphrases import asked_passphrase  # noqa: PLC0415

        with assemble(
            self.settings(), self.stamps, create=create, passphrase=asked_passphrase
        ) as memory:
            self.recovery_code = memory.recovery_code
            self._tell_refused(memory.taken_over)
            yield memory

    def _tell_refused(self, report: "MigrationReport | None") -> None:
        """An opening that took an earlier store over has nobody else to tell what stayed behind."""
        from memoranda.tools.doctoring import refused_lines  # noqa: PLC0415  # not for --help

        if report and report.refused:
            words = f"{refused_lines(report.refused)}; `memoranda doctor` says more."
            with suppress(OSError):
                put(Text(words, "yellow"), sys.stderr)

    def place(self) -> "Place":
        """Where the person's ledger lives."""
        from memoranda.tools.memory import place_of  # noqa: PLC0415  # not for --help

        return place_of(self.settings())

    def set_aside(self) -> None:
        """Moves the log of a forgotten space out of the way of a new one."""
        from memoranda.ledger.ending import set_aside  # noqa: PLC0415  # not for --help

        set_aside(self.place(), self.stamps)

    def operation(self, given: str | None) -> str:
        """The operation's id, known before its outcome is: a fresh one unless given."""
        self.operation_id = given if given is not None else self.stamps.new_id("op")
        return self.operation_id

    def record(self, memory: "Memory", text: str) -> str | Refused:
        """The id of the record that `text` names: in full, or by an unambiguous beginning."""
        found = _record_id(memory, text)
        if isinstance(found, str):
            self.record_id = found
        return found

    def key(self, key: str) -> str | Refused:
        """The id that the record of a key has for ever (PM 1.3), whether there is one or not."""
        from pydantic_core import PydanticCustomError  # noqa: PLC0415

        from memoranda.ledger.commands import normal_key  # noqa: PLC0415  # not for --help
        from memoranda.ledger.personal import record_id_of  # noqa: PLC0415

        try:
            self.record_id = record_id_of(normal_key(key))
        except PydanticCustomError as error:
            return Refused(Refusal.INVALID_REQUEST, "key", error.message())
        return self.record_id

    def refused(self, refused: Refused) -> Problem:
        """A refusal with what to do next, as far as the rule does not say it."""
        if refused.refusal is Refusal.OUTCOME_UNKNOWN:
            shown = f"`memoranda operations {refused.operation_id or ''}".rstrip()
            fields = {**refused.wire(), "next": f"{shown}` tells what holds it up."}
            return Problem(ExitCode.UNKNOWN_OUTCOME, fields)
        next_step = self._next(refused)
        more = {} if next_step is None else {"next": next_step}
        return Problem(ExitCode.REFUSED, {**refused.wire(), **more})

    def _next(self, refused: Refused) -> str | None:
        name = short(self.record_id or "")
        match refused.refusal:
            case Refusal.INVALID_REQUEST if refused.field in {"passphrase", "vault"}:
                return _PLACES[refused.field]
            case Refusal.BUSY if self.operation_id:
                return f"Run it again with --operation {self.operation_id}."
            case Refusal.CANDIDATE_CHANGED if name:
                return f"`memoranda evidence {name}` shows it, and the revision for --expect."
            case Refusal.REVISION_CONFLICT if name:
                revision = refused.current_revision
                return (
                    f"It is at revision {revision}: read it with `memoranda show {name}`,"
                    f" then try again with --expect {revision}."
                )
            case Refusal.TRANSITION_INVALID | Refusal.RECEIPT_SUPERSEDED if name:
                return f"`memoranda show {name} --history` tells what became of it."
        return None

    # -- the way out ------------------------------------------------------------------------

    def begin(self, answer: Answer) -> None:
        """Puts out what must be seen before the rest is done; raises StorageFault if it is not."""
        if sys.stdout.name == os.devnull:  # it was closed: `prepare_streams`
            raise StorageFault("standard output is closed, so nothing was done")
        try:
            if self.as_json:
                sys.stdout.write(json_of(answer.fields).removesuffix("}"))
                self.is_begun = True
            else:
                _put_words(answer)
            sys.stdout.flush()
        except OSError as error:
            discard_rest(sys.stdout)
            message = f"the answer could not be written, so nothing was done: {error.strerror}"
            raise StorageFault(message) from error

    def finish(self, outcome: Answer | Problem) -> ExitCode:
        """Puts the outcome out, once; the exit code."""
        answer = outcome if isinstance(outcome, Answer) else Answer({}, problem=outcome)
        try:
            if self.as_json:
                text = json_of(self._fields(answer))
                rest = f", {text.removeprefix('{')}" if self.is_begun else text
                sys.stdout.write(f"{rest}\n")
            else:
                _put_words(answer)
            sys.stdout.flush()
        except OSError as error:
            discard_rest(sys.stdout)
            return self._unheard(error)
        if self.as_json:
            self.recovery_code = None
        return answer.problem.exit_code if answer.problem else ExitCode.DONE

    def _unheard(self, error: OSError) -> ExitCode:
        """Nobody heard the answer: of what was written, its id is what tells of it."""
        is_cut = isinstance(error, BrokenPipeError)
        if self.operation_id is not None:
            words = (
                f"outcome_unknown: the answer could not be written: {error.strerror}\n"
                f"  `memoranda operations {self.operation_id}` tells what became of it."
            )
        else:
            words = "" if is_cut else f"fault: the answer could not be written: {error.strerror}"
        if words:
            with suppress(OSError):
                put(words, sys.stderr)
        if self.operation_id is not None:
            return ExitCode.UNKNOWN_OUTCOME
        return ExitCode.INTERRUPTED if is_cut else ExitCode.FAULT

    def _fields(self, answer: Answer) -> dict[str, object]:
        known = {"operation_id": self.operation_id, "recovery_code": self.recovery_code}
        fields: dict[str, object] = {"ok": answer.problem is None, **answer.fields}
        fields |= {name: value for name, value in known.items() if value is not None}
        if answer.problem:
            fields["error"] = answer.problem.error
        return fields

    def _show_recovery_code(self) -> None:
        """Shows a new space's recovery code, this once; after a refusal or an interrupt too."""
        if self.recovery_code is None:
            return
        words = Text.assemble(
            "A new ledger was created. This code opens its recovery copies:\n\n",
            (f"    {self.recovery_code}\n\n", "bold"),
            "Write it down. It is shown this once and kept nowhere;\n"
            "`memoranda keys recovery` makes another one.",
        )
        self.recovery_code = None
        with suppress(OSError):
            put(Panel(words, title="recovery code", expand=False), sys.stderr)


@contextmanager
def progress_bar(what: str) -> Iterator["Progress | None"]:
    """A bar on standard error where somebody looks at it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415  # not for --help
    from rich.progress import Progress as Bar  # noqa: PLC0415

    with Bar(console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def run_of(context: typer.Context) -> Run:
    """The run that a command belongs to."""
    run = context.find_root().obj
    assert isinstance(run, Run), "main puts it there"
    return run


def _put_words(answer: Answer) -> None:
    if answer.shown:
        put(Group(*answer.shown))
    if answer.problem:
        put(words_of(answer.problem), sys.stderr)


def _record_id(memory: "Memory", text: str) -> str | Refused:
    from memoranda.ledger.commands import is_new_record_id  # noqa: PLC0415  # not for --help

    if is_new_record_id(text):
        return text
    found = memory.ids_beginning(text)
    if isinstance(found, Refused):
        return replace(found, field="record")
    if len(found) == 1 and (found[0] == text or len(text) >= BEGINNING_MIN):
        return found[0]
    if len(text) < BEGINNING_MIN:
        message = "is a record's id, or its beginning: for most, mem_ and at least 6 hex digits"
        return Refused(Refusal.INVALID_REQUEST, "record", message)
    message = "several records' ids begin so; give more digits" if found else "no id begins so"
    return Refused(Refusal.NOT_FOUND, "record", message)


# -- options that many commands share -------------------------------------------------------


def _ask_for_json(context: typer.Context, value: bool) -> bool:
    run_of(context).as_json |= value
    return value


Json = Annotated[
    bool,
    typer.Option("--json", help="Answer with one JSON object.", callback=_ask_for_json),
]
RecordArgument = Annotated[
    str,
    typer.Argument(metavar="RECORD", help="A record's id, or its beginning: mem_ and 6 digits."),
]
Operation = Annotated[
    str | None,
    typer.Option(
        "--operation",
        metavar="ID",
        help="The operation's id; the same one makes a retry harmless. Fresh unless given.",
    ),
]
Expect = Annotated[
    int | None,
    typer.Option(
        "--expect",
        metavar="REVISION",
        min=1,
        help="The revision the record must be at; the one read right before unless given.",
    ),
]
