"""The conductor of a migration: an earlier store into the log, all of it or nothing (PM 6)."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from memoranda.ledger.authority import Caller, actor_of
from memoranda.ledger.entries import Draft
from memoranda.ledger.errors import OutcomeUnknown, Refusal, Refused, RefusedError
from memoranda.ledger.events import Actor
from memoranda.ledger.guards import Seen, caller_boundary, guards_of
from memoranda.ledger.legacy import LegacyStore, surveyed
from memoranda.ledger.log import Log
from memoranda.ledger.oplog import say
from memoranda.ledger.screening import SecretPolicy
from memoranda.ledger.sealed_store import SealedStore
from memoranda.ledger.stamps import Stamps
from memoranda.ledger.takeover import MigrationReport, Progress, Takeover, completed_in


class Migration:
    """Takes an earlier store over into one space's log."""

    def __init__(self, log: Log, stamps: Stamps, secrets: SecretPolicy = "refuse") -> None:
        self._log = log
        self._stamps = stamps
        self._secrets = secrets

    def run(
        self,
        caller: Caller,
        path: object,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> MigrationReport | Refused:
        """Imports what is not there yet, in one transaction; a dry run tells the same.

        F26 names what is no such store, and then nothing was imported; repeating it is harmless.
        """
        try:
            answer = self._run(caller, path, dry_run=dry_run, progress=progress)
        except RefusedError as error:
            answer = error.refused
        except OutcomeUnknown:
            say(logging.ERROR, "migrate", outcome="unknown")
            raise
        if isinstance(answer, Refused):
            say(logging.INFO, "migrate", outcome="refused", refusal=answer.refusal.name)
        else:
            refused = sum(answer.refused.values())
            level = logging.WARNING if refused else logging.INFO
            say(level, "migrate", imported=answer.imported, refused=refused, dry_run=dry_run)
        return answer

    def ensure(self, caller: Caller, path: Path) -> MigrationReport | None:
        """Nothing is served before the store is taken over; raises RefusedError where it is not.

        None when it was complete already. What an operation without an end holds does not keep the
        ledger shut, where alone that operation can be ended; the next opening tries it again.
        """
        digest = LegacyStore(path, self._log.space).read_digest()
        with self._log.reading() as store:
            last = completed_in(store)
        if last is not None and last.store_digest == digest:
            return None
        answer = self.run(caller, path)
        if isinstance(answer, Refused):
            raise RefusedError(answer)
        return answer

    def _run(
        self, caller: Caller, path: object, *, dry_run: bool, progress: Progress | None
    ) -> MigrationReport | Refused:
        with self._log.reading() as store:
            actor = _actor(store, caller)
        if isinstance(actor, Refused):
            return actor
        if not isinstance(path, str | os.PathLike):
            return Refused(Refusal.INVALID_REQUEST, "path", "is the path of a file")
        legacy = LegacyStore(Path(path), self._log.space)
        survey = surveyed(legacy)
        with self._writing(dry_run=dry_run) as (store, append):
            takeover = Takeover(store, append, actor, self._secrets, self._stamps.step, survey)
            takeover.take(legacy, progress or _unseen)
        return takeover.report()

    @contextmanager
    def _writing(self, *, dry_run: bool) -> Iterator[tuple[SealedStore, Callable[[Draft], object]]]:
        """The store to read from, and what takes an event: nothing, in a dry run."""
        if dry_run:
            with self._log.reading() as snapshot:
                yield snapshot, lambda _: None
        else:
            with self._log.deciding() as store:
                yield store, store.append


def _unseen(_done: int, _total: int) -> None:
    """Nobody watches."""


def _actor(store: SealedStore, caller: Caller) -> Actor | Refused:
    seen = Seen()
    seen.look(store, caller_boundary(caller))
    guards = guards_of(seen, caller)
    if guards.role != "client":
        return Refused(Refusal.NOT_AUTHORIZED)
    return actor_of(caller, guards.role, guards.binding)
