"""The same front door for asyncio: every verb runs in a worker thread, and is written once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial, wraps
from typing import Any, Self

from memoranda.ledger.authority import Caller
from memoranda.tools.memory import Memory, open_memory


class AsyncMemory:
    """A `Memory` whose verbs are awaited; names, parameters and answers are the same."""

    def __init__(self, opened: Callable[[], Memory]) -> None:
        self._opened = opened
        self._memory: Memory | None = None

    async def __aenter__(self) -> Self:
        self._memory = await asyncio.to_thread(self._opened)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._memory is not None:
            await asyncio.to_thread(self._memory.close)

    def acting_as(self, caller: Caller) -> "AsyncMemory":
        """The same open ledger for another caller; closed by the one that opened it."""
        other = AsyncMemory(self._opened)
        other._memory = self._entered().acting_as(caller)
        return other

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        verb = getattr(self._entered(), name)
        if not callable(verb):
            raise AttributeError(f"{name} is reached through `.memory`")  # noqa: TRY004

        @wraps(verb)
        async def in_a_thread(*args: object, **fields: object) -> Any:
            return await asyncio.to_thread(partial(_complete, verb, *args, **fields))

        return in_a_thread

    @property
    def memory(self) -> Memory:
        """The synchronous memory inside, for its properties; its calls block."""
        return self._entered()

    def _entered(self) -> Memory:
        if self._memory is None:
            raise RuntimeError(
                "enter the memory first: `async with open_memory_async(…) as memory`"
            )
        return self._memory


def open_memory_async(space: str | None = None, **settings: Any) -> AsyncMemory:
    """Opens one person's memory for asyncio; parameters as for `open_memory`."""
    return AsyncMemory(partial(open_memory, space, **settings))


def _complete(verb: Callable[..., Any], *args: object, **fields: object) -> Any:
    """The verb's answer; answers that come one by one are collected in the thread."""
    answer = verb(*args, **fields)
    return list(answer) if isinstance(answer, Iterator) else answer
