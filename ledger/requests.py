"""What is asked of one record: a named command or a raw commit, as one request."""

from dataclasses import dataclass

from memoranda.ledger.commands import (
    Accept,
    Commit,
    Propose,
    Publish,
    RecordCommand,
    Revise,
    is_new_record_id,
)
from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.events import Json
from memoranda.ledger.personal import AnyRecord, Record, read_record, record_id_of, record_texts
from memoranda.ledger.screening import SecretPolicy, screen
from memoranda.ledger.transitions import Change, change_between, change_of

RAW_INTENT: Json = {"name": "commit"}


@dataclass(frozen=True, slots=True)
class Raw:
    """What a raw commit brings: `expected` and `value` as sent, and as read where readable.

    A fault of the value's shape waits for its turn among the refusals.
    """

    sent_expected: Json | None
    sent_value: Json
    expected: AnyRecord | None = None
    value: AnyRecord | None = None
    fault: Refused | None = None

    @property
    def is_expected_readable(self) -> bool:
        return self.sent_expected is None or self.expected is not None

    def time_given(self, ref: str) -> str | None:
        """The time that the value claims for a source."""
        sources = self.value.sources if isinstance(self.value, Record) else ()
        return next((source.occurred_at for source in sources if source.ref == ref), None)


@dataclass(frozen=True, slots=True)
class Request:
    """An operation on one record as admitted at the door; `change` is None where no row fits."""

    operation_id: str
    record_id: str
    intent: Json
    change: Change | None
    key: str | None = None
    revision: int | None = None
    conflicts_with: tuple[str, ...] = ()
    raw: Raw | None = None


def named_request(command: RecordCommand) -> Request:
    """A named command as an operation on one record."""
    match command:
        case Propose() | Publish():
            return Request(
                command.operation_id,
                record_id_of(command.key),
                command.intent(),
                change_of(command),
                key=command.key,
                revision=command.expected_revision if isinstance(command, Publish) else None,
                conflicts_with=command.conflicts_with if isinstance(command, Propose) else (),
            )
        case Accept():
            revision = command.inspected_revision
        case _:
            revision = command.expected_revision
    return Request(
        command.operation_id,
        command.record_id,
        command.intent(),
        change_of(command),
        revision=revision,
        conflicts_with=command.conflicts_with if isinstance(command, Revise) else (),
    )


def raw_request(commit: Commit, secrets: SecretPolicy) -> Request | Refused:
    """A raw commit as an operation; only new ids, limits and secrets are refused at the door."""
    if commit.expected is None and not is_new_record_id(commit.key):
        return Refused(Refusal.INVALID_REQUEST, "key", "is mem_ and 64 lower-case hex digits")
    value = read_record(commit.value)
    if isinstance(value, Refused) and value.refusal is Refusal.LIMIT_EXCEEDED:
        return value
    texts = record_texts(value) if isinstance(value, Record) else {}
    screened = screen(texts, secrets)
    if isinstance(screened, Refused):
        return screened
    if screened != texts:
        # A raw value is the caller's to the byte; it cannot be redacted on the way in.
        return Refused(Refusal.SECRET_DETECTED, "value.content")
    expected = None if commit.expected is None else read_record(commit.expected)
    raw = Raw(
        sent_expected=commit.expected,
        sent_value=commit.value,
        expected=None if isinstance(expected, Refused) else expected,
        value=None if isinstance(value, Refused) else value,
        fault=value if isinstance(value, Refused) else None,
    )
    is_readable = raw.value is not None and raw.is_expected_readable
    return Request(
        commit.id,
        commit.key,
        dict(RAW_INTENT),
        change_between(raw.expected, raw.value) if is_readable and raw.value else None,
        raw=raw,
    )
