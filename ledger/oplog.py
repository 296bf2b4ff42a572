"""One log line per operation, at its end: event name, numbers and codes, never what was said."""

import logging
from functools import cache
from typing import Any

LOGGER = logging.getLogger("memoranda")
# Without a handler of its own, Python prints errors of a silent library to the terminal.
LOGGER.addHandler(logging.NullHandler())


def say(level: int, event: str, **facts: str | int | bool) -> None:
    """Logs through the standard `memoranda` logger, which is silent until the program asks."""
    if LOGGER.isEnabledFor(level):
        _structured().log(level, event, **facts)


@cache
def _structured() -> Any:
    # Imported when a program has asked for log lines: structlog brings a terminal library along.
    import structlog  # noqa: PLC0415

    return structlog.wrap_logger(
        LOGGER,
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
    )
