"""What a guard costs as the traffic of its task grows: ten proposals against 100,000."""

from collections.abc import Iterator

from memoranda.ledger.authority import BackgroundItem
from memoranda.ledger.errors import Refused
from memoranda.tools.benchmarks.workload import capture, measured, primary_session, scratch, source
from memoranda.tools.memory import Memory

EARLY, LATE = 10, 100_000
SAMPLE = 200


def run() -> Iterator[str]:
    """CPU of an item's commits, early in its task's life and late."""
    with scratch() as folder, primary_session(folder) as memory:
        capture(memory, 1, 1)
        memory.host.open_task(item_id="item", captured_ref=source(1))
        leave = {"item_id": "item", "requirement_revision": 1, "executor_session_id": "run"}
        memory.host.authorize(authorization_id="leave", **leave)
        item = memory.acting_as(BackgroundItem("item", 1, "run", "agent", "leave"))
        first = item.propose("hot", "A candidate", sources=[source(1)])
        assert not isinstance(first, Refused), first
        record_id = first.record_id or ""
        _revise(item, record_id, 1, EARLY)
        early = measured(lambda: _revise(item, record_id, 1 + EARLY, SAMPLE), SAMPLE)
        _revise(item, record_id, 1 + EARLY + SAMPLE, LATE)
        late = measured(lambda: _revise(item, record_id, 1 + EARLY + SAMPLE + LATE, SAMPLE), SAMPLE)
    yield f"CPU of a commit     {early.cpu_s * 1e3:8.3f} ms after {EARLY} events of the task"
    yield f"                    {late.cpu_s * 1e3:8.3f} ms after {LATE:,}"
    yield f"CPU ratio           {late.cpu_s / early.cpu_s:8.2f} (at most 1.2)"


def _revise(item: Memory, record_id: str, revision: int, times: int) -> None:
    """Revises in batches, so that a long life is lived in minutes; a sample is single."""
    step = 1 if times <= SAMPLE else 1000
    for at in range(revision, revision + times, step):
        answers = item.commit_many(
            {
                "name": "revise",
                "operation_id": f"op-{n}",
                "record_id": record_id,
                "expected_revision": n,
                "content": f"A candidate, for the {n}th time",
            }
            for n in range(at, at + min(step, revision + times - at))
        )
        assert not isinstance(answers, Refused), answers
        assert not any(isinstance(answer, Refused) for answer in answers), answers
