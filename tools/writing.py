"""The verbs that write, typed; each builds a request for the ledger and answers its receipt."""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Literal

from memoranda.ledger import events
from memoranda.ledger.authority import PersonClient
from memoranda.ledger.capturing import CaptureReceipt
from memoranda.ledger.commands import BATCH_MAX
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import ForgetReason, Tier
from memoranda.ledger.receipts import (
    AbortReceipt,
    ConflictReceipt,
    DeliveryReceipt,
    ForgetReceipt,
    PreparedReceipt,
    Receipt,
)
from memoranda.ledger.reconcile import Settled
from memoranda.ledger.sweeping import SweepReport, SweptAway
from memoranda.ledger.takeover import MigrationReport, Progress
from memoranda.projections.falling import Fall
from memoranda.projections.recall import StepRecall
from memoranda.tools.parts import Seat

Source = str | Mapping[str, str]
"""A message's reference, or `{"kind": …, "ref": …}` for another kind of source."""


NO_TEXT_KEY = "fact/none"
"""Stands in where the content is no text, which the door then refuses by its name."""


class Writing(Seat):
    """Verbs answer with a receipt or a `Refused`.

    Operation ids are fresh unless given; give one to make a retry harmless.
    """

    # -- what goes in -----------------------------------------------------------------------

    def capture(
        self, messages: Iterable[Mapping[str, object]]
    ) -> Iterator[CaptureReceipt | Refused]:
        """Takes conversation messages in, each with its answer; see `Host.capture`."""
        return self._parts.host.capture(messages)

    def remember(
        self,
        content: str,
        *,
        key: str | None = None,
        effective_at: str | None = None,
        expires_at: str | None = None,
        operation_id: str | None = None,
    ) -> Receipt | Refused:
        """Keeps a fact that the person states; without a key, its text is its identity."""
        return self.publish(
            key_of(content) if key is None else key,
            content,
            effective_at=effective_at,
            expires_at=expires_at,
            operation_id=operation_id,
        )

    def publish(
        self,
        key: str,
        content: str,
        *,
        evidence: events.Evidence = "explicit",
        sources: Iterable[Source] = (),
        effective_at: str | None = None,
        expires_at: str | None = None,
        expected_revision: int | None = None,
        operation_id: str | None = None,
    ) -> Receipt | Refused:
        """An accepted record at once; a person's own client is its own source."""
        return self._parts.ledger.publish(
            self.caller,
            operation_id=self._operation(operation_id),
            key=key,
            content=content,
            evidence=evidence,
            sources=_listed(sources),
            effective_at=effective_at,
            expires_at=expires_at,
            expected_revision=expected_revision,
        )

    def propose(
        self,
        key: str,
        content: str,
        *,
        sources: Iterable[Source],
        evidence: events.Evidence = "inference",
        effective_at: str | None = None,
        expires_at: str | None = None,
        conflicts_with: Iterable[str] = (),
        operation_id: str | None = None,
    ) -> Receipt | Refused:
        """A candidate, which waits for acceptance and is never recalled before."""
        return self._parts.ledger.propose(
            self.caller,
            operation_id=self._operation(operation_id),
            key=key,
            content=content,
            evidence=evidence,
            sources=_listed(sources),
            effective_at=effective_at,
            expires_at=expires_at,
            conflicts_with=_listed(conflicts_with),
        )

    def revise(
        self,
        record_id: str,
        expected_revision: int,
        *,
        content: str | None = None,
        evidence: events.Evidence | None = None,
        sources: Iterable[Source] | None = None,
        effective_at: str | None = "keep",
        expires_at: str | None = "keep",
        conflicts_with: Iterable[str] = (),
        operation_id: str | None = None,
    ) -> Receipt | Refused:
        """Changes a candidate; what is not named stays, None clears a date."""
        return self._parts.ledger.revise(
            self.caller,
            operation_id=self._operation(operation_id),
            record_id=record_id,
            expected_revision=expected_revision,
            content=content,
            evidence=evidence,
            sources=None if sources is None else _listed(sources),
            effective_at=effective_at,
            expires_at=expires_at,
            conflicts_with=_listed(conflicts_with),
        )

    def accept(
        self, record_id: str, inspected_revision: int, *, operation_id: str | None = None
    ) -> Receipt | Refused:
        """Accepts a candidate exactly as `evidence` showed it."""
        return self._parts.ledger.accept(
            self.caller,
            operation_id=self._operation(operation_id),
            record_id=record_id,
            inspected_revision=inspected_revision,
        )

    def correct(
        self,
        record_id: str,
        expected_revision: int,
        content: str,
        *,
        sources: Iterable[Source] = (),
        effective_at: str | None = "keep",
        expires_at: str | None = "keep",
        operation_id: str | None = None,
    ) -> Receipt | Refused:
        """New explicit content with a new source; old sources stay, None clears a date."""
        return self._parts.ledger.correct(
            self.caller,
            operation_id=self._operation(operation_id),
            record_id=record_id,
            expected_revision=expected_revision,
            content=content,
            sources=_listed(sources),
            effective_at=effective_at,
            expires_at=expires_at,
        )

    def reject(
        self,
        record_id: str,
        expected_revision: int,
        reason: str,
        *,
        operation_id: str | None = None,
    ) -> Receipt | Refused:
        """Rejects a candidate: its key may not be proposed from those sources again."""
        return self._on_record(
            self._parts.ledger.reject, record_id, expected_revision, operation_id, reason=reason
        )

    def choose_tier(
        self, record_id: str, expected_revision: int, tier: Tier, *, operation_id: str | None = None
    ) -> Receipt | Refused:
        """Moves a record into core or back to detail."""
        return self._on_record(
            self._parts.ledger.choose_tier, record_id, expected_revision, operation_id, tier=tier
        )

    def retire(
        self,
        record_id: str,
        expected_revision: int,
        reason: str,
        *,
        operation_id: str | None = None,
    ) -> Receipt | Refused:
        """Takes a record out of every projection; its content stays."""
        return self._on_record(
            self._parts.ledger.retire, record_id, expected_revision, operation_id, reason=reason
        )

    def reactivate(
        self, record_id: str, expected_revision: int, *, operation_id: str | None = None
    ) -> Receipt | Refused:
        """Brings a retired record back."""
        return self._on_record(
            self._parts.ledger.reactivate, record_id, expected_revision, operation_id
        )

    def forget(
        self,
        record_id: str,
        expected_revision: int,
        *,
        with_sources: bool = False,
        reason: ForgetReason = "unstated",
        operation_id: str | None = None,
    ) -> ForgetReceipt | Refused:
        """Leaves a tombstone and erases the rest; its captured messages too, if asked.

        While the setting `forget_window_hours` holds what a model's session forgets, its receipt
        says until when, and it takes no messages along.
        """
        return self._parts.ledger.forget(
            self.caller,
            operation_id=self._operation(operation_id),
            record_id=record_id,
            expected_revision=expected_revision,
            with_sources=with_sources,
            reason=reason,
        )

    def take_back(
        self,
        record_id: str,
        expected_revision: int,
        *,
        held_revision: int | None = None,
        operation_id: str | None = None,
    ) -> Receipt | Refused:
        """Accepts what a model's session forgot, as the person's own words; for the person alone.

        The newest that is held, or what the revision `held_revision` said; `read` lists them. A
        record that was opened again since is corrected to it.
        """
        return self._parts.ledger.take_back(
            self.caller,
            operation_id=self._operation(operation_id),
            record_id=record_id,
            expected_revision=expected_revision,
            held_revision=held_revision,
        )

    def forget_many(
        self,
        fall: Fall | Refused,
        *,
        with_sources: bool = False,
        reason: ForgetReason = "unstated",
        operation_id: str | None = None,
        progress: Progress | None = None,
    ) -> SweepReport | Refused:
        """Forgets what `falling` has shown; with the captured messages, if asked.

        Operations without an end are reconciled first, as by a person whose writers have stopped:
        they hold their record, or the text of one to come. It may be interrupted: what was
        forgotten is, and the rest falls when it is asked for again.
        """
        if not isinstance(fall, Fall):
            return _not_given(fall, "fall", "is what `falling` has shown")
        settled = [
            self.reconcile(it.operation_id, writers_stopped=True, reason="its text was forgotten")
            for it in fall.prepared
        ]
        report = self._parts.sweep.forget(
            self.caller,
            self._operation(operation_id),
            SweptAway(
                tuple((record.record_id, record.revision) for record in fall.records),
                fall.messages if with_sources else (),
                with_sources,
                reason,
            ),
            progress or _quiet,
        )
        if isinstance(report, Refused):
            return report
        refused = Counter(report.refused) + Counter(
            it.code for it in settled if isinstance(it, Refused)
        )
        aborted = sum(isinstance(it, AbortReceipt) for it in settled)
        return report.model_copy(update={"aborted": aborted, "refused": dict(refused)})

    def finish_forgets(self) -> tuple[str, ...]:
        """Finishes every erasure that was held up; why some still are, if so."""
        forgetting = self._parts.forgetting
        return forgetting.finish(is_urgent=True) + forgetting.held()

    def release_held(self) -> tuple[str, ...] | Refused:
        """Erases at once whatever is held for the person; nothing of it can be taken back then."""
        if not isinstance(self.caller, PersonClient):
            return Refused(Refusal.NOT_AUTHORIZED)
        self._parts.forgetting.release(is_early=True)
        return self.finish_forgets()

    def migrate(
        self, path: Path | str, *, dry_run: bool = False, progress: Progress | None = None
    ) -> MigrationReport | Refused:
        """Takes an earlier store of records over, all of it or nothing; a repeat is harmless."""
        return self._parts.migration.run(self.caller, path, dry_run=dry_run, progress=progress)

    def commit(self, request: Mapping[str, object]) -> Receipt | Refused:
        """The one way in, `{id, key, expected, value}`, which every verb above builds.

        Like `prepare` it also takes such a verb as `{"name": …, fields}`.
        """
        return self._parts.ledger.commit(self.caller, request)

    def commit_many(
        self, requests: Iterable[Mapping[str, object]], *, all_or_nothing: bool = False
    ) -> tuple[Receipt | Refused, ...] | Refused:
        """Decides at most 1,000 requests in order inside one durable write, each with its answer.

        A request is `{id, key, expected, value}`, or a verb above as `{"name": …, fields}`. With
        `all_or_nothing` the first refusal is the only answer, and nothing is written; with
        providers of a host's own there is a write for each request, and no `all_or_nothing`.
        """
        return self._parts.ledger.commit_many(
            self.caller, _listed(requests), all_or_nothing=all_or_nothing
        )

    def prepare(self, request: Mapping[str, object]) -> PreparedReceipt | Receipt | Refused:
        """Makes an intent durable: it holds its record until the same request is committed."""
        return self._parts.ledger.prepare(self.caller, request)

    def reconcile(
        self, operation_id: str, *, writers_stopped: bool, reason: str
    ) -> Settled | Refused:
        """Settles an operation that a crash left open: its receipt is kept, or it is aborted."""
        asked = {"id": operation_id, "writers_stopped": writers_stopped, "reason": reason}
        return self._parts.reconcile.reconcile(self.caller, asked)

    def open_conflict(
        self, candidate_id: str, other_id: str, reason: str, *, operation_id: str | None = None
    ) -> ConflictReceipt | Refused:
        """Says that a candidate and another record may not both be true."""
        return self._parts.ledger.open_conflict(
            self.caller,
            operation_id=self._operation(operation_id),
            candidate_id=candidate_id,
            other_id=other_id,
            reason=reason,
        )

    def resolve_conflict(
        self,
        conflict_id: str,
        resolution: Literal["keep_candidate", "keep_other", "keep_both"],
        reason: str,
        *,
        operation_id: str | None = None,
    ) -> ConflictReceipt | Refused:
        """Settles an open conflict; no record changes by it."""
        return self._parts.ledger.resolve_conflict(
            self.caller,
            operation_id=self._operation(operation_id),
            conflict_id=conflict_id,
            resolution=resolution,
            reason=reason,
        )

    def note_delivery(self, recalled: StepRecall | Refused) -> DeliveryReceipt | Refused:
        """Notes the candidates that a step listed, so that all of them take turns."""
        if not isinstance(recalled, StepRecall):
            return _not_given(recalled, "recalled", "is what `recall` has answered")
        return self._parts.ledger.note_delivery(
            self.caller, step=recalled.step, candidate_ids=recalled.candidate_ids
        )

    # -- how --------------------------------------------------------------------------------

    def _operation(self, operation_id: str | None) -> str:
        return self._parts.stamps.new_id("op") if operation_id is None else operation_id

    def _on_record(
        self,
        verb: Callable[..., Receipt | Refused],
        record_id: str,
        expected_revision: int,
        operation_id: str | None,
        **more: str,
    ) -> Receipt | Refused:
        return verb(
            self.caller,
            operation_id=self._operation(operation_id),
            record_id=record_id,
            expected_revision=expected_revision,
            **more,
        )


def _quiet(_done: int, _all: int) -> None:
    """Nobody watches."""


def _not_given(answer: object, field: str, rule: str) -> Refused:
    """Why the answer of another verb is none to go on with: the refusal that it was, or F36."""
    if isinstance(answer, Refused):
        return answer
    return Refused(Refusal.INVALID_REQUEST, field, rule)


def _listed(given: object) -> object:
    """What can be listed as a tuple; anything else, a bare text too, as it is, for the door."""
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping):
        return tuple(islice(given, BATCH_MAX + 1))  # one too many is refused, however many follow
    return given


def key_of(content: object) -> str:
    """The key of a fact that was given none: its text, so that saying it twice is one fact."""
    if not isinstance(content, str):
        return NO_TEXT_KEY
    words = " ".join(unicodedata.normalize("NFKC", content).casefold().split())
    return f"fact/{hashlib.sha256(words.encode(errors='replace')).hexdigest()[:32]}"
