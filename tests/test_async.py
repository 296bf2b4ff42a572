"""The front door for asyncio gives the very answers of the other one."""

import asyncio

from memoranda import open_memory_async
from memoranda.ledger.errors import Refusal


def test_awaited_reads_equal_those_of_the_memory_inside(folder, world):
    async def walk() -> None:
        async with open_memory_async("us_bob", **folder, stamps=world.stamps) as memory:
            made = await memory.remember("Bob drinks tea", key="tea")
            inside = memory.memory
            assert await memory.read(made.record_id) == inside.read(made.record_id)
            assert await memory.search("tea") == inside.search("tea")
            assert await memory.query(text="tea") == inside.query(text="tea")
            assert await memory.recall("tea", step="s") == inside.recall("tea", step="s")

    asyncio.run(walk())


def test_captures_are_a_list_and_refusals_are_values(folder, world):
    async def walk() -> tuple:
        async with open_memory_async("us_bob", **folder, stamps=world.stamps) as memory:
            message = {"session": "s", "seq": 1, "role": "user", "text": "x"}
            return await memory.capture([message]), await memory.search("x", limit=0)

    captured, refused = asyncio.run(walk())

    assert isinstance(captured, list)
    assert len(captured) == 1
    assert refused.refusal is Refusal.INVALID_REQUEST


def test_parallel_writes_are_all_kept(folder, world):
    async def walk() -> int:
        async with open_memory_async("us_bob", **folder, stamps=world.stamps) as memory:
            await asyncio.gather(*(memory.remember(f"fact {n}", key=f"k/{n}") for n in range(12)))
            return len(await memory.records())

    assert asyncio.run(walk()) == 12
