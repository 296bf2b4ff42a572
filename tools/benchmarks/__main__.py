"""Runs benchmarks by name, all by default: `python -m memoranda.tools.benchmarks [NAME …]`."""

import sys
from collections.abc import Callable, Iterator
from functools import partial

from memoranda.tools.benchmarks import (
    audit,
    batch,
    commit,
    forget,
    growth,
    guards,
    hot,
    postgres,
    revisions,
    startup,
    step,
)

BENCHMARKS: dict[str, Callable[[], Iterator[str]]] = {
    "commit": commit.run,
    "batch": batch.run,
    "hot": hot.run,
    "guards": guards.run,
    "postgres": postgres.run,
    "growth": growth.run,
    "revisions": revisions.run,
    "forget": forget.run,
    "forget-100000": partial(forget.run, 100_000),
    "audit": audit.run,
    "startup": startup.run,
    "step": step.run,
    "step-100000": partial(step.run, 100_000),
}


def main() -> None:
    """Prints one line per figure, each with the baseline of the same run beside it."""
    wanted = sys.argv[1:] or list(BENCHMARKS)
    for name in wanted:
        sys.stdout.write(f"== {name}\n")
        for line in BENCHMARKS[name]():
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
