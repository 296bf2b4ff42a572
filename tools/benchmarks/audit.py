"""Audit of a whole log with every body opened, against a bare read of its rows."""

from collections.abc import Iterator

from memoranda.tools.benchmarks.workload import (
    capture,
    measured,
    primary_session,
    publish,
    scratch,
)

FACTS = 5000


def run() -> Iterator[str]:
    """Events a second, all bodies opened, and how many times a bare read that is."""
    with scratch() as folder, primary_session(folder) as memory:
        capture(memory, 1, FACTS)
        for number in range(1, FACTS + 1):
            publish(memory, number)
        memory.records(limit=1)
        report = memory.audit.verify()
        assert not report.findings, report.findings
        cost = measured(memory.audit.verify, report.events)
    yield f"audit               {1 / cost.cpu_s:8.0f} events per CPU second (at least 20,000)"
    yield f"                    {report.opened} bodies opened of {report.events} events"
