"""Where one space lives: its folder of data and its folder of state (DESIGN 3)."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from memoranda.ledger.errors import Refusal, Refused, RefusedError


def path_of(given: object, field: str) -> Path:
    """A path from outside, absolute, its `~` resolved; raises RefusedError (F36) for any other."""
    try:
        path = Path(given).expanduser().absolute()  # type: ignore[arg-type]  # that is asked here
        is_path = str(given) != "" and b"\0" not in str(path).encode()
    except (TypeError, ValueError, RuntimeError):
        path, is_path = Path(), False
    if not is_path:
        message = "is a path of text, not empty, without NUL, and its ~ somebody's home"
        raise RefusedError(Refused(Refusal.INVALID_REQUEST, field, message))
    return path


LOG = "ledger.db"
_SPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", flags=re.ASCII)


def _unusable(message: str) -> Refused:
    return Refused(Refusal.SPACE_UNKNOWN, "data", message)


LOST_LOG = _unusable(
    "the log is missing or empty although its keys or its anchor are here; restore it"
)
OLD_KEYS = _unusable("its keys are older than the log: another machine goes on with it; restore it")
MISSING_KEYS = _unusable("the key file is missing; restore it before the ledger can be read")


@dataclass(frozen=True, slots=True)
class Place:
    """Where one space lives: its folder of data and its folder of state (DESIGN 3)."""

    space: str
    data: Path
    state: Path
    engine: str | None = field(default=None, repr=False)
    """The server that keeps the log, as a URL; None for a file in the folder of data."""
    log: str = LOG
    """The file in the folder of data that keeps the log, where no server does."""
    is_restoring: bool = False
    """Whether a restore opens it, before it may be served."""

    def holds(self, path: Path) -> bool:
        """Whether a path would lie inside the folders of this space, or of one beside it."""
        target = path.parent.resolve() / path.name
        return any(
            target.is_relative_to(folder)
            for own in (self.data.resolve(), self.state.resolve())
            for folder in (own, *_beside(own, target))
        )

    @property
    def is_copy(self) -> bool:
        """Whether the log is a copy that a restore works on, before it is put in place."""
        return self.log != LOG

    @property
    def mark(self) -> Path:
        """Stands while a restore has not ended: it holds the anchor of before."""
        return self.state / "restoring"

    def refuse_unrestored(self) -> None:
        """Raises RefusedError (F38) while a restore has not ended, unless it is the one asking."""
        # In every transaction: a new Path would take three times as long.
        if not self.is_restoring and os.path.exists(f"{self.state}/restoring"):  # noqa: PTH110
            message = "a restore has not ended; run `memoranda restore` again"
            raise RefusedError(Refused(Refusal.SPACE_UNKNOWN, "data", message))

    @classmethod
    def of(cls, space: str, data: Path, state: Path, engine: str | None = None) -> "Place":
        """The place of a space below the two roots; raises RefusedError for a bad name."""
        if not _SPACE.fullmatch(space):
            message = "a space is 1 to 64 of A-Z a-z 0-9 _ . - and starts with a letter or digit"
            raise RefusedError(Refused(Refusal.INVALID_REQUEST, "space", message))
        # What is open is known by its path, wherever the process goes from here.
        return cls(space, data.absolute() / space, state.absolute() / space, engine)


def _beside(own: Path, target: Path) -> Iterator[Path]:
    """The folder of another space that a path leads into, if it leads into one."""
    if own.parent in target.parents:
        folder = own.parent / target.relative_to(own.parent).parts[0]
        if any((folder / name).exists() for name in ("keys.db", "slots")):
            yield folder
