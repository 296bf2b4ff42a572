"""One open ledger's parts, and the seat from which a caller uses them."""

from dataclasses import dataclass

from memoranda.ledger.authority import Caller, PersonClient
from memoranda.ledger.backups import Backups
from memoranda.ledger.errors import Refusal, Refused, RefusedError
from memoranda.ledger.forgetting import Forgetting
from memoranda.ledger.hosting import Host
from memoranda.ledger.log import Log
from memoranda.ledger.migration import Migration
from memoranda.ledger.operations import Ledger
from memoranda.ledger.reconcile import Reconcile
from memoranda.ledger.stamps import Stamps
from memoranda.ledger.sweeping import Sweep
from memoranda.ledger.takeover import MigrationReport
from memoranda.projections.audit import Audit
from memoranda.projections.evidence import Evidence
from memoranda.projections.exporting import Export
from memoranda.projections.falling import Falling
from memoranda.projections.history import History
from memoranda.projections.query import Query
from memoranda.projections.recall import Recall
from memoranda.projections.records import Records
from memoranda.projections.remnants import Remnants
from memoranda.projections.search import Search
from memoranda.projections.story import Story
from memoranda.projections.unfinished import Unfinished
from memoranda.projections.views import View, ViewFile


@dataclass(frozen=True, slots=True)
class Parts:
    """What one open ledger consists of."""

    log: Log
    views: ViewFile
    ledger: Ledger
    reconcile: Reconcile
    forgetting: Forgetting
    sweep: Sweep
    falling: Falling
    host: Host
    migration: Migration
    taken_over: MigrationReport | None
    backups: Backups
    export: Export
    history: History
    evidence: Evidence
    records: Records
    audit: Audit
    story: Story
    recall: Recall
    search: Search
    query: Query
    remnants: Remnants
    unfinished: Unfinished
    checked: tuple[View, ...]
    stamps: Stamps


class Seat:
    """The parts of an open ledger, as one caller sees them."""

    def __init__(self, parts: Parts, caller: Caller) -> None:
        self._parts = parts
        self.caller = caller

    def _refuse_others(self) -> None:
        """Raises RefusedError (F2) for anybody but the person."""
        if not isinstance(self.caller, PersonClient):
            raise RefusedError(Refused(Refusal.NOT_AUTHORIZED))
