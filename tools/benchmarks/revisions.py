"""The thousandth revision of one record against the first ones."""

from collections.abc import Iterator

from memoranda.ledger.errors import Refused
from memoranda.ledger.events import Tier
from memoranda.tools.benchmarks.workload import (
    capture,
    measured,
    primary_session,
    publish,
    scratch,
)

REVISIONS = 1000
SAMPLE = 100


def run() -> Iterator[str]:
    """CPU per revision, late against early; the tier moves to and fro."""
    with scratch() as folder, primary_session(folder) as memory:
        capture(memory, 1, 1)
        publish(memory, 1)
        record = memory.records(limit=1)
        assert not isinstance(record, Refused), record
        record_id = record[0].record.id
        revisions = iter(range(1, REVISIONS + SAMPLE + 1))

        def revise(count: int) -> None:
            for _ in range(count):
                revision = next(revisions)
                tier: Tier = "core" if revision % 2 else "detail"
                answer = memory.choose_tier(record_id, revision, tier)
                assert not isinstance(answer, Refused), answer

        early = measured(lambda: revise(SAMPLE), SAMPLE)
        revise(REVISIONS - SAMPLE)
        late = measured(lambda: revise(SAMPLE), SAMPLE)
    yield f"CPU per revision    {early.cpu_s * 1e3:8.3f} ms early, {late.cpu_s * 1e3:.3f} ms late"
    yield f"CPU ratio           {late.cpu_s / early.cpu_s:8.2f} (at most 1.2)"
    yield f"bytes written ratio {late.written_bytes / early.written_bytes:8.2f}"
