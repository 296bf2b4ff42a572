"""Search: the person's active facts, ranked by their words."""

from memoranda.ledger.asking import AskWords
from memoranda.ledger.authority import Caller
from memoranda.ledger.candidates import stored_in
from memoranda.ledger.commands import admit
from memoranda.ledger.errors import Refused
from memoranda.ledger.events import Value
from memoranda.ledger.guards import reader_of
from memoranda.ledger.log import Log
from memoranda.ledger.stamps import Stamps, microseconds, moment_of, time_text
from memoranda.projections.feed import current
from memoranda.projections.history import RecordRead, read_of
from memoranda.projections.postings import SearchView
from memoranda.projections.records import RecordsView
from memoranda.projections.views import ViewFile
from memoranda.projections.zones import related

FOUND_DEFAULT = 10


class Found(Value):
    """A record with its relevance; scores compare within one answer only."""

    found: RecordRead
    score: float


class Search:
    """Ranked reads. Nothing that is typed is query syntax."""

    def __init__(self, log: Log, views: ViewFile, stamps: Stamps) -> None:
        self._log = log
        self._views = views
        self._stamps = stamps
        self._records = RecordsView()
        self._postings = SearchView(log.index_key)

    def for_words(
        self, caller: Caller, words: str, limit: int = FOUND_DEFAULT
    ) -> tuple[Found, ...] | Refused:
        """At most `limit` active records that share a word with the query, the best first."""
        if isinstance(asked := admit(AskWords, {"words": words, "limit": limit}), Refused):
            return asked
        with current(self._log, self._views, self._records, self._postings) as (store, connection):
            guards = reader_of(store, caller, "query")
            if isinstance(guards, Refused):
                return guards
            now = microseconds(self._stamps.now())
            blinder = self._postings.blinder(connection)
            hits = list(related(connection, now, words, blinder))[:limit]
            found = ((stored_in(store.at(hit.member.position)), hit.score) for hit in hits)
            now_text = time_text(moment_of(now))
            return tuple(
                Found(found=read_of(store, stored, now_text), score=score)
                for stored, score in found
                if stored
            )
