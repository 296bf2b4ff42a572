"""The locks of a space's files: one writer at a time over threads, processes and forks."""

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from memoranda.ledger.errors import Refusal, Refused, RefusedError


class SpaceLock:
    """One writer at a time for a space, over threads and processes; never deleted.

    A blocking `flock` keeps the queue fair, where SQLite's busy handler sleeps and starves. Where
    the engine queues writers itself, they share the lock and only what must be alone does not;
    a gate, passed by all and held by who waits to be alone, keeps them from overtaking that one.
    """

    def __init__(self, path: Path, wait_s: float, *, is_shared: bool = False) -> None:
        self._path = path
        self._gate = path.with_name(f"{path.name}.gate") if is_shared else None
        self._wait_s = wait_s
        self._thread_lock = threading.RLock()
        self._held: int | None = None

    @contextmanager
    def held(self, wait_s: float | None = None, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
        """Holds the lock; raises RefusedError (busy) after the wait. Reentrant in its thread."""
        left_s = seconds_left(self._wait_s if wait_s is None else wait_s)
        if not self._thread_lock.acquire(timeout=left_s()):
            raise RefusedError(Refused(Refusal.BUSY))
        try:
            if self._held is not None:
                if kind not in (self._held, fcntl.LOCK_SH):
                    raise RefusedError(Refused(Refusal.BUSY))  # as in a signal handler
                yield
                return
            with self._entered(kind, left_s):
                self._held = kind
                try:
                    yield
                finally:
                    self._held = None
        finally:
            self._thread_lock.release()

    @contextmanager
    def _entered(self, kind: int, left_s: Callable[[], float]) -> Iterator[None]:
        with ExitStack() as gate:
            if self._gate is not None:
                gate.enter_context(flocked(self._gate, kind, left_s()))
            with flocked(self._path, kind, left_s()):
                gate.close()
                yield


@contextmanager
def flocked(path: Path, kind: int, wait_s: float) -> Iterator[None]:
    """Holds a file's advisory lock, shared or not; raises RefusedError (busy) after the wait."""
    holder = os.getpid()
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RefusedError(read_only(path)) from error
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        if not wait_s:
            os.close(descriptor)
            raise RefusedError(Refused(Refusal.BUSY)) from None
        _wait_for(descriptor, kind, wait_s)
    try:
        yield
    finally:
        # A fork has the descriptor too: closing ours gives nothing back, and it ends none of ours.
        if os.getpid() == holder:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def seconds_left(within_s: float) -> Callable[[], float]:
    """Tells how much of a wait is left, at least 0, by a clock that only ever goes on."""
    ends = time.monotonic() + within_s
    return lambda: max(0.0, ends - time.monotonic())


def _wait_for(descriptor: int, kind: int, wait_s: float) -> None:
    # flock knows no deadline, so a thread waits in our place; one that comes too late gives the
    # lock back.
    acquired, abandoned, hand_over = threading.Event(), threading.Event(), threading.Lock()

    def wait() -> None:
        fcntl.flock(descriptor, kind)
        with hand_over:
            if abandoned.is_set():
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)
            acquired.set()

    try:
        threading.Thread(target=wait, daemon=True).start()
        acquired.wait(wait_s)
    except BaseException:  # an interrupt: nobody else would ever give the lock back
        with hand_over:
            abandoned.set()
            if acquired.is_set():
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)
        raise
    with hand_over:
        if not acquired.is_set():
            abandoned.set()
            raise RefusedError(Refused(Refusal.BUSY))


def read_only(path: Path) -> Refused:
    """The refusal for a file that cannot be opened to write (its name is no person's)."""
    return Refused(Refusal.READ_ONLY, field="data", message=f"{path.name} cannot be opened")
