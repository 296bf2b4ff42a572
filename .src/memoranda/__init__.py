"""Memoranda: a personal memory ledger. `open_memory` is the front door."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memoranda.tools.memory import open_memory
    from memoranda.tools.memory_async import open_memory_async

__all__ = ["open_memory", "open_memory_async"]


def __getattr__(name: str) -> object:
    # Resolved at first use, so that importing one room does not import the house.
    if name == "open_memory":
        from memoranda.tools.memory import open_memory

        return open_memory
    if name == "open_memory_async":
        from memoranda.tools.memory_async import open_memory_async

        return open_memory_async
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
