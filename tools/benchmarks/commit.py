"""Durable publishes, interleaved with raw one-row commits on the same disk."""

import json
from collections.abc import Callable, Iterator
from statistics import median

from memoranda.ledger import chain
from memoranda.ledger.errors import Refused
from memoranda.ledger.sealing import KEY_BYTES, NONCE_BYTES, SEAL_ENTROPY_BYTES, BodyKey, wrap
from memoranda.tools.benchmarks.workload import (
    FACT,
    capture,
    measured,
    primary_session,
    publish,
    raw_commits,
    scratch,
    source,
)
from memoranda.tools.memory import Memory

BLOCKS = 20
BLOCK = 100


def run() -> Iterator[str]:
    """Rate against the raw rate, CPU per commit, and the share of it that sealing takes."""
    with scratch() as folder, primary_session(folder) as memory, raw_commits(folder) as raw:
        capture(memory, 1, (BLOCKS + 1) * BLOCK + 1)
        numbers = iter(range(1, (BLOCKS + 1) * BLOCK + 1))

        def facts() -> None:
            for _ in range(BLOCK):
                publish(memory, next(numbers))

        def rows() -> None:
            for _ in range(BLOCK):
                raw()

        facts()
        rows()
        seal = _sealing(memory)
        rounds = [
            (measured(facts, BLOCK), measured(rows, BLOCK), measured(seal, BLOCK))
            for _ in range(BLOCKS)
        ]
    pairs = [(fact, row) for fact, row, _ in rounds]
    ratios = [row.wall_s / fact.wall_s for fact, row in pairs]
    yield f"raw commit          {median(row.wall_s for _, row in pairs) * 1e3:8.3f} ms"
    yield f"fact commit         {median(fact.wall_s for fact, _ in pairs) * 1e3:8.3f} ms"
    yield f"rate against raw    {median(ratios):8.2f} (at least 0.5 where raw takes 1 ms or more)"
    cpu_s = median(fact.cpu_s for fact, _ in pairs)
    yield f"CPU per fact        {cpu_s * 1e3:8.3f} ms (at most 0.9)"
    yield f"CPU per raw commit  {median(row.cpu_s for _, row in pairs) * 1e3:8.3f} ms"
    share = median(sealed.cpu_s / fact.wall_s for fact, _, sealed in rounds)
    yield f"sealing             {share:8.1%} of a fact commit (at most 10 %)"


def _sealing(memory: Memory) -> Callable[[], None]:
    """What one fact adds to a commit by keys and chain, as many times as a block has facts."""
    receipt = memory.publish("one more", FACT, sources=[source((BLOCKS + 1) * BLOCK + 1)])
    assert not isinstance(receipt, Refused), receipt
    read = memory.operation(receipt.operation_id or "")
    assert not isinstance(read, Refused), read
    body, header = json.dumps(read.intent).encode(), receipt.model_dump_json().encode()
    tags = (receipt.intent_digest, receipt.record_digest)
    secret, entropy = bytes(KEY_BYTES), bytes(SEAL_ENTROPY_BYTES)

    def seal() -> None:
        for position in range(BLOCK):
            wrap(secret, secret, b"a place", bytes(NONCE_BYTES))
            commitment, _ = BodyKey("a key", secret).seal(b"a place", body, entropy)
            parts = ("record.committed/1", header, commitment, tags)
            chain.link(secret, position, position, parts)

    return seal
