"""What it takes to import the package, against an empty interpreter."""

import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median

ROUNDS = 7


def run() -> Iterator[str]:
    """Import time in fresh interpreters, less that of an empty one."""
    empty = _run_s("pass")
    for statement in ("import memoranda", "from memoranda import open_memory"):
        yield f"{statement:34s} {_run_s(statement) - empty:6.3f} s (at most 0.25)"
    yield f"{'empty interpreter':34s} {empty:6.3f} s"


def _run_s(statement: str) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)  # noqa: S603  # ourselves
        times.append(time.perf_counter() - started)
    return median(times)
