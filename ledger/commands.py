"""The door: what a caller may ask for, validated once, with a refusal that names field and rule."""

import re
import unicodedata
from datetime import datetime
from typing import Annotated, ClassVar, Literal, TypeVar, get_args

import rfc8785
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from memoranda.ledger.authority import Action
from memoranda.ledger.errors import Refusal, Refused, first_of
from memoranda.ledger.events import Evidence, ForgetReason, Json, Tier
from memoranda.ledger.stamps import parse_time, time_text

CONTENT_BYTES_MAX = 8192
KEY_BYTES_MAX = 512
REASON_POINTS_MAX = 500
OPERATION_ID_MAX = 128
SOURCES_MAX = 64
BATCH_MAX = 1000
REF_BYTES_MAX = 2048
RECORD_ID_BYTES_MAX = 256
REVISION_MAX = 2**53 - 1
_OPERATION_ID = re.compile(r"[A-Za-z0-9_.:\-]+", flags=re.ASCII)
_RECORD_ID = re.compile(r"mem_[0-9a-f]{64}", flags=re.ASCII)
PLAIN_NAME = re.compile(r"[a-z][a-z_]{0,31}", flags=re.ASCII)
"""What can be nothing but the name of a field, so that it may be said again."""

_SURROGATE = re.compile("[\ud800-\udfff]")

M = TypeVar("M", bound=BaseModel)


def _over(limit: str) -> PydanticCustomError:
    return PydanticCustomError("limit_exceeded", "at most {limit}", {"limit": limit})


def storable(text: str) -> str:
    """Refuses what no engine and no JSON can carry: NUL and lone surrogates."""
    if "\0" in text or _SURROGATE.search(text):
        raise PydanticCustomError("unstorable", "holds NUL or a lone surrogate")
    return text


def shows(text: str) -> bool:
    """Whether there is anything to see in a text: more than spaces and marks without width."""
    return any(unicodedata.category(it) not in {"Cc", "Cf", "Zl", "Zp", "Zs"} for it in text)


def _content(text: str) -> str:
    if not shows(storable(text)):
        raise PydanticCustomError("empty", "must not be empty")
    if len(text.encode()) > CONTENT_BYTES_MAX:
        raise _over(f"{CONTENT_BYTES_MAX} bytes")
    return text


def _reason(text: str) -> str:
    if not shows(storable(text)):
        raise PydanticCustomError("empty", "must not be empty")
    if len(text) > REASON_POINTS_MAX:
        raise _over(f"{REASON_POINTS_MAX} characters")
    return text


def normal_key(text: str) -> str:
    """The fact key in normalisation version 1 (PM 1.3)."""
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in text):
        raise PydanticCustomError("unstorable", "holds a control character or a lone surrogate")
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    key = " ".join(folded.split())
    if not key:
        raise PydanticCustomError("empty", "must not be empty")
    if len(key.encode()) > KEY_BYTES_MAX:
        raise _over(f"{KEY_BYTES_MAX} bytes")
    return key


def _operation_id(text: str) -> str:
    if len(text) > OPERATION_ID_MAX:
        raise _over(f"{OPERATION_ID_MAX} characters")
    if not _OPERATION_ID.fullmatch(text):
        raise PydanticCustomError("operation_id", "is 1 to 128 of A-Z a-z 0-9 . _ : -")
    return text


def is_new_record_id(text: str) -> bool:
    """Whether a record may be created under this id; those of earlier stores have any shape."""
    return _RECORD_ID.fullmatch(text) is not None


def _record_id(text: str) -> str:
    if not storable(text):
        raise PydanticCustomError("empty", "must not be empty")
    if len(text.encode()) > RECORD_ID_BYTES_MAX:
        raise _over(f"{RECORD_ID_BYTES_MAX} bytes")
    return text


def _time(value: object) -> str:
    """RFC 3339 in UTC, a date, or an aware datetime; kept in the form of PM 1.5."""
    if isinstance(value, datetime) and value.tzinfo is None:
        raise PydanticCustomError("time", "needs a time zone")
    if not isinstance(value, datetime | str):
        raise PydanticCustomError("time", "is an RFC 3339 time in UTC ending in Z, or a date")
    try:
        return time_text(value if isinstance(value, datetime) else parse_time(value))
    except (ValueError, OverflowError) as error:
        raise PydanticCustomError(
            "time", "is an RFC 3339 time in UTC ending in Z, or a date"
        ) from error


def _time_or_keep(value: object) -> str:
    return "keep" if value == "keep" else _time(value)


def _canonical(value: Json) -> Json:
    # Deeper nesting than the stack, big integers, other types: nothing that was ever stored.
    try:
        rfc8785.dumps(value)  # type: ignore[arg-type]  # it refuses other types by itself
    except (ValueError, RecursionError) as error:
        raise PydanticCustomError("json", "has no canonical form (RFC 8785)") from error
    return value


def _ref(text: str) -> str:
    if not storable(text):
        raise PydanticCustomError("empty", "must not be empty")
    if len(text.encode()) > REF_BYTES_MAX:
        raise _over(f"{REF_BYTES_MAX} bytes")
    return text


OperationId = Annotated[StrictStr, AfterValidator(_operation_id)]
RecordId = Annotated[StrictStr, AfterValidator(_record_id)]
Key = Annotated[StrictStr, AfterValidator(normal_key)]
Content = Annotated[StrictStr, AfterValidator(_content)]
Reason = Annotated[StrictStr, AfterValidator(_reason)]
Time = Annotated[str, BeforeValidator(_time)]
KeptTime = Annotated[str, BeforeValidator(_time_or_keep)]
CanonicalJson = Annotated[Json, AfterValidator(_canonical)]
Ref = Annotated[StrictStr, AfterValidator(_ref)]
Revision = Annotated[StrictInt, Field(ge=1, le=REVISION_MAX)]

SourceKind = Literal["personal_message", "file", "user_edit", "legacy"]


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SourceRef(Strict):
    """A cited source; text alone means a captured message."""

    kind: SourceKind
    ref: Ref


def _source(value: object) -> object:
    return {"kind": "personal_message", "ref": value} if isinstance(value, str) else value


Sources = Annotated[
    tuple[Annotated[SourceRef, BeforeValidator(_source)], ...], Field(max_length=SOURCES_MAX)
]


class Command(Strict):
    """One semantic intent; `operation_id` names it for ever. `SCREENED` fields hold free text."""

    ACTION: ClassVar[Action]
    SCREENED: ClassVar[tuple[str, ...]] = ()

    operation_id: OperationId

    def intent(self) -> Json:
        """What a retry must repeat: the command without its id, defaults left out."""
        content: Json = self.model_dump(
            mode="json", exclude={"operation_id"}, exclude_defaults=True
        )
        return {"name": self.ACTION, **content}


class _OnKey(Command):
    SCREENED: ClassVar[tuple[str, ...]] = ("content", "key")

    key: Key
    content: Content
    effective_at: Time | None = None
    expires_at: Time | None = None
    sources: Sources = ()


class Propose(_OnKey):
    """A candidate, or a rejected or forgotten key opened again as one (PM 1.6)."""

    ACTION: ClassVar[Action] = "propose"

    evidence: Evidence = "inference"
    conflicts_with: tuple[RecordId, ...] = Field(default=(), max_length=SOURCES_MAX)


class Publish(_OnKey):
    """An accepted record at once; `expected_revision` guards a rejected or forgotten key."""

    ACTION: ClassVar[Action] = "publish"

    evidence: Evidence = "explicit"
    expected_revision: Revision | None = None


class OnRecord(Command):
    """A command on an existing record, at the revision the caller has seen."""

    record_id: RecordId
    expected_revision: Revision


class Revise(OnRecord):
    """Changes a candidate; what is not named stays. `sources` replaces the list."""

    ACTION: ClassVar[Action] = "revise"
    SCREENED: ClassVar[tuple[str, ...]] = ("content",)

    content: Content | None = None
    evidence: Evidence | None = None
    effective_at: KeptTime | None = "keep"
    expires_at: KeptTime | None = "keep"
    sources: Sources | None = None
    conflicts_with: tuple[RecordId, ...] = Field(default=(), max_length=SOURCES_MAX)


class Accept(Command):
    """Accepts a candidate exactly as inspected."""

    ACTION: ClassVar[Action] = "accept"

    record_id: RecordId
    inspected_revision: Revision


class Reject(OnRecord):
    ACTION: ClassVar[Action] = "reject"
    SCREENED: ClassVar[tuple[str, ...]] = ("reason",)

    reason: Reason


class Correct(OnRecord):
    """New explicit content with a new source of the person; old sources stay."""

    ACTION: ClassVar[Action] = "correct"
    SCREENED: ClassVar[tuple[str, ...]] = ("content",)

    content: Content
    effective_at: KeptTime | None = "keep"
    expires_at: KeptTime | None = "keep"
    sources: Sources = ()


class ChooseTier(OnRecord):
    ACTION: ClassVar[Action] = "tier"

    tier: Tier


class Retire(OnRecord):
    ACTION: ClassVar[Action] = "retire"
    SCREENED: ClassVar[tuple[str, ...]] = ("reason",)

    reason: Reason


class Reactivate(OnRecord):
    ACTION: ClassVar[Action] = "reactivate"


class Forget(OnRecord):
    """`with_sources` takes the captured messages too that any revision cited."""

    ACTION: ClassVar[Action] = "forget"

    with_sources: StrictBool = False
    reason: ForgetReason = "unstated"


class TakeBack(OnRecord):
    """Gives a record the words again that a model's session forgot and that are still held.

    Those of the newest forget, or of the revision `held_revision`.
    """

    ACTION: ClassVar[Action] = "take_back"

    held_revision: Revision | None = None


class Commit(Strict):
    """The one way in, `{id, key, expected, value}`; every named command builds one (PM 1.7)."""

    id: OperationId
    key: RecordId
    expected: CanonicalJson | None
    value: CanonicalJson


class CommitMany(Strict):
    """Requests to decide in order inside one durable write."""

    requests: Annotated[tuple[dict[str, object], ...], Field(min_length=1, max_length=BATCH_MAX)]
    all_or_nothing: StrictBool = False


class NoteDelivery(Strict):
    """The candidate ids that a step of the primary session listed."""

    step: Ref
    candidate_ids: tuple[RecordId, ...] = Field(max_length=SOURCES_MAX)


class OpenConflict(Command):
    ACTION: ClassVar[Action] = "conflict.open"
    SCREENED: ClassVar[tuple[str, ...]] = ("reason",)

    candidate_id: RecordId
    other_id: RecordId
    reason: Reason


class ResolveConflict(Command):
    ACTION: ClassVar[Action] = "conflict.resolve"
    SCREENED: ClassVar[tuple[str, ...]] = ("reason",)

    conflict_id: Ref
    resolution: Literal["keep_candidate", "keep_other", "keep_both"]
    reason: Reason


RecordCommand = (
    Propose
    | Publish
    | Revise
    | Accept
    | Reject
    | Correct
    | ChooseTier
    | Retire
    | Reactivate
    | Forget
    | TakeBack
)
RECORD_COMMANDS: dict[str, type[RecordCommand]] = {
    shape.ACTION: shape for shape in get_args(RecordCommand)
}
ConflictCommand = OpenConflict | ResolveConflict


def admit(shape: type[M], request: object) -> M | Refused:
    """The request as a value of that shape, or the first refusal by PM 2.5 with its field."""
    try:
        return shape.model_validate(request)
    except ValidationError as error:
        return first_of(refusals_of(error))
    except RecursionError:
        return Refused(Refusal.INVALID_REQUEST, message="is nested too deeply")


def refusals_of(error: ValidationError, form: Refusal = Refusal.INVALID_REQUEST) -> list[Refused]:
    """Every fault of a validation by field and rule, never with the value; limits are F32."""
    return [
        Refused(
            Refusal.LIMIT_EXCEEDED if fault["type"] in _LIMITS else form,
            field=_field(fault["loc"], fault["type"]),
            message=_message(fault["type"], fault["msg"]),
        )
        for fault in error.errors(include_url=False, include_input=False, include_context=False)
    ]


_LIMITS = frozenset({"limit_exceeded", "string_too_long", "too_long"})


def _field(place: tuple[int | str, ...], kind: str) -> str | None:
    """Where the fault is; an unknown name is told only when it can be nothing but a name."""
    if kind == "extra_forbidden" and not PLAIN_NAME.fullmatch(str(place[-1])):
        place = place[:-1]
    return ".".join(str(part) for part in place) or None


def _message(kind: str, message: str) -> str:
    return "is not a parameter of this call" if kind == "extra_forbidden" else message
