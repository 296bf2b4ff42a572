"""Where one space lives: its folder of data and its folder of state (DESIGN 3)."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from memoranda.ledger.errors import Refusal, Refused, RefusedError

_SPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", flags=re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one space lives: its folder of data and its folder of state (DESIGN 3)."""

    space: str
    data: Path
    state: Path
    engine: str | None = field(default=None, repr=False)
    """The server that keeps the log, as a URL; None for a file in the folder of data."""
    is_restoring: bool = False
    """Whether a restore opens it, before it may be served."""

    @property
    def mark(self) -> Path:
        """Stands while a restore has not ended: it holds the anchor of before."""
        return self.state / "restoring"

    @classmethod
    def of(cls, space: str, data: Path, state: Path, engine: str | None = None) -> "Place":
        """The place of a space below the two roots; raises RefusedError for a bad name."""
        if not _SPACE.fullmatch(space):
            message = "a space is 1 to 64 of A-Z a-z 0-9 _ . - and starts with a letter or digit"
            raise RefusedError(Refused(Refusal.INVALID_REQUEST, "space", message))
        return cls(space, data / space, state / space, engine)
