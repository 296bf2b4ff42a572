"""Clock, entropy, ids and steps: everything a run takes from the outside, in one injected value."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

_TIME = re.compile(r"(\d{4}-\d{2}-\d{2})T(\d{2}:\d{2}:\d{2})(?:\.(\d{1,6}))?Z", flags=re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", flags=re.ASCII)


def _system_now() -> datetime:
    return datetime.now(UTC)


def _no_step(name: str) -> None:
    """Crash tests stop a process here; the product walks on."""


@dataclass(frozen=True, slots=True)
class Stamps:
    """What a ledger takes from the world.

    `now` reads the UTC clock, `entropy(n)` gives n random bytes, `step(name)` is called between
    any two effects that a crash could separate.
    """

    now: Callable[[], datetime] = _system_now
    entropy: Callable[[int], bytes] = os.urandom
    step: Callable[[str], None] = _no_step

    def new_id(self, prefix: str) -> str:
        """A fresh id, 96 bits of entropy in hex behind `prefix` and a hyphen."""
        return f"{prefix}-{self.entropy(12).hex()}"


def microseconds(moment: datetime) -> int:
    """Whole microseconds since 1970, UTC; `moment` must be aware."""
    return (moment - EPOCH) // MICROSECOND


def moment_of(count: int) -> datetime:
    """The UTC time that many microseconds after 1970."""
    return EPOCH + count * MICROSECOND


def time_text(moment: datetime) -> str:
    """RFC 3339, UTC, `Z`, at most six fraction digits without trailing zeros (PM 1.5)."""
    text = moment.astimezone(UTC).replace(tzinfo=None).isoformat()
    return (text.rstrip("0") if moment.microsecond else text) + "Z"


def parse_time(text: str) -> datetime:
    """The time that `text` writes in the form of PM 1.5; a bare date means its first instant.

    Raises ValueError with the rule for anything else, other zones and naive times included.
    """
    if _DATE.fullmatch(text):
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    found = _TIME.fullmatch(text)
    if found is None or (found[3] or "").endswith("0"):
        raise ValueError("a time is RFC 3339 in UTC ending in Z, or a date YYYY-MM-DD")
    return datetime.fromisoformat(text)
