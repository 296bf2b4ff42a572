"""What a commit costs at record 100 and at record 100,000, and what a fact takes on disk."""

from collections.abc import Iterator

from memoranda.tools.benchmarks.workload import (
    FACT,
    capture,
    measured,
    primary_session,
    publish,
    scratch,
)

RECORDS = 100_000
SAMPLE = 500


def run() -> Iterator[str]:
    """CPU and bytes written per commit, late against early; bytes on disk per fact."""
    with scratch() as folder:
        with primary_session(folder) as memory:
            capture(memory, 1, RECORDS + SAMPLE)
            numbers = iter(range(1, RECORDS + SAMPLE + 1))

            def facts(count: int) -> None:
                for _ in range(count):
                    publish(memory, next(numbers))

            facts(100)
            early = measured(lambda: facts(SAMPLE), SAMPLE)
            facts(RECORDS - 100 - SAMPLE)
            late = measured(lambda: facts(SAMPLE), SAMPLE)
            memory.recall("fact")
        files = {path.name: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    count = RECORDS + SAMPLE
    yield f"CPU per commit      {early.cpu_s * 1e3:8.3f} ms at 100, {late.cpu_s * 1e3:.3f} ms late"
    yield f"CPU ratio           {late.cpu_s / early.cpu_s:8.2f} (at most 1.2)"
    yield f"bytes written ratio {late.written_bytes / early.written_bytes:8.2f} (at most 1.6)"
    yield f"log per fact        {files['ledger.db'] / count:8.0f} bytes (at most 2,000)"
    yield f"all files per fact  {sum(files.values()) / count:8.0f} bytes (at most 3,000)"
    yield f"                    of {len(FACT)} bytes of text, with its captured message"
