"""Where a passphrase comes from: a terminal, a pipe or a file; never an argument or a variable."""

import os
import stat
import sys
from getpass import getpass
from io import BufferedReader
from pathlib import Path
from typing import cast

from memoranda.ledger.errors import Refusal, Refused, RefusedError

LINE_BYTES_MAX = 8192


def passphrase_in(path: Path) -> str:
    """The first line of a file that is the user's own; raises RefusedError for any other."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
                message = "must be the user's own and closed to others; `chmod 600` it first"
                raise RefusedError(Refused(Refusal.INVALID_REQUEST, "passphrase_file", message))
            return _text(file.readline(LINE_BYTES_MAX))
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise RefusedError(Refused(Refusal.INVALID_REQUEST, "passphrase_file", message)) from error


def asked_passphrase() -> str | None:
    """What is typed without echo at the terminal; None where there is none to ask at."""
    if not _has_terminal():
        return None
    return getpass("Passphrase of this ledger: ")


def new_passphrase() -> str | Refused:
    """A new passphrase: typed twice without echo, or the one line of a pipe, repeated or not."""
    if sys.stdin.isatty():
        first, again = getpass("New passphrase: "), getpass("The same again: ")
    else:
        first, rest = _piped()
        again = rest.removesuffix("\n") or first
    if first != again:
        return Refused(Refusal.INVALID_REQUEST, "passphrase", "was not the same the second time")
    return first


def _piped() -> tuple[str, str]:
    """The first line of a pipe, and what has come with it; more is not waited for."""
    raw, pipe = b"", cast("BufferedReader", sys.stdin.buffer)
    while len(raw) < LINE_BYTES_MAX and b"\n" not in raw and (piece := pipe.read1(LINE_BYTES_MAX)):
        raw += piece
    text = raw.decode(sys.stdin.encoding, sys.stdin.errors or "strict")
    first, _, rest = text.replace("\r\n", "\n").partition("\n")
    return first, rest


def asked_code() -> str:
    """A recovery code: typed without echo, or the first line of a pipe; never an argument."""
    if sys.stdin.isatty():
        return getpass("Recovery code: ")
    return sys.stdin.readline(LINE_BYTES_MAX)


def _has_terminal() -> bool:
    # As ssh does: what is typed comes from the terminal, although standard input is a pipe.
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return sys.stdin.isatty()
    return True


def _text(line: bytes) -> str:
    return line.removesuffix(b"\n").removesuffix(b"\r").decode(errors="surrogateescape")
