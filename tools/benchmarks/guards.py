"""What a guard costs as the traffic of its task grows: ten proposals against 100,000."""

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from memoranda.ledger.authority import BackgroundItem
from memoranda.ledger.errors import Refused
from memoranda.tools.benchmarks.workload import capture, measured, primary_session, scratch, source
from memoranda.tools.memory import Memory

EARLY, LATE = 10, 100_000
ROUNDS, ROUND = 21, 20
BATCH = 1000


def run() -> Iterator[str]:
    """CPU of an item's commits, early in its task's life and late, taken by turns."""
    with _item_at_work(EARLY) as early, _item_at_work(LATE) as late:
        costs = [(_commits(early), _commits(late)) for _ in range(ROUNDS)]
    first, last = (median(cost) for cost in zip(*costs, strict=True))
    yield f"CPU of a commit     {first * 1e3:8.3f} ms after {EARLY} events of the task"
    yield f"                    {last * 1e3:8.3f} ms after {LATE:,}"
    yield f"CPU ratio           {last / first:8.2f} (at most 1.2)"


class _Candidate:
    """A candidate that its item revises again and again."""

    def __init__(self, item: Memory) -> None:
        self._item = item
        answer = item.propose("hot", "A candidate", sources=[source(1)])
        assert not isinstance(answer, Refused), answer
        self._record_id = answer.record_id
        self._revision = 1

    def revise(self, times: int) -> None:
        first, self._revision = self._revision, self._revision + times
        answers = self._item.commit_many(
            {
                "name": "revise",
                "operation_id": f"op-{n}",
                "record_id": self._record_id,
                "expected_revision": n,
                "content": f"A candidate, for the {n}th time",
            }
            for n in range(first, first + times)
        )
        assert not isinstance(answers, Refused), answers
        assert not any(isinstance(answer, Refused) for answer in answers), answers


@contextmanager
def _item_at_work(events: int) -> Iterator[_Candidate]:
    """A candidate of a task that has already seen so many events."""
    with scratch() as folder, primary_session(folder) as memory:
        capture(memory, 1, 1)
        memory.host.open_task(item_id="item", captured_ref=source(1))
        leave = {"item_id": "item", "requirement_revision": 1, "executor_session_id": "run"}
        memory.host.authorize(authorization_id="leave", **leave)
        item = BackgroundItem("item", 1, "run", "agent", "leave")
        candidate = _Candidate(memory.acting_as(item))
        for done in range(0, events, BATCH):
            candidate.revise(min(BATCH, events - done))
        yield candidate


def _commits(candidate: _Candidate) -> float:
    """CPU seconds of a single commit."""

    def round_of_them() -> None:
        for _ in range(ROUND):
            candidate.revise(1)

    return measured(round_of_them, ROUND).cpu_s
