"""Memoranda: a personal memory ledger. `open_memory` is the front door."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memoranda.tools.memory import open_memory

__all__ = ["open_memory"]


def __getattr__(name: str) -> object:
    # Resolved at first use, so that importing one room does not import the house.
    if name == "open_memory":
        from memoranda.tools.memory import open_memory

        return open_memory
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
