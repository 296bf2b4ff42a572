"""What a caller may ask to see or to have settled, validated at the same door as commands."""

from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    model_validator,
)
from pydantic_core import PydanticCustomError

from memoranda.ledger.commands import OperationId, Reason, Ref, Strict, shows, storable


def _said(value: object) -> object:
    """The value, or None where nothing was said."""
    return value if isinstance(value, str) and shows(value) else None


QUERY_POINTS_MAX = 100_000


class AskFalling(Strict):
    """What is to be forgotten at once: all from one source, from one session, or everything."""

    source: Ref | None = None
    session: Ref | None = None
    everything: StrictBool = False

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        named = (self.source is not None, self.session is not None, self.everything)
        if sum(named) != 1:
            raise PydanticCustomError("one_of", "names one of source, session and everything")
        return self


class AskReconcile(Strict):
    """What the person says to settle an operation; a wrong or missing word is F24, not F36."""

    id: OperationId
    writers_stopped: object = None
    reason: Annotated[Reason | None, BeforeValidator(_said)] = None


class AskWords(Strict):
    """Words that are looked for; nothing in them is query syntax."""

    words: Annotated[StrictStr, Field(max_length=QUERY_POINTS_MAX)]
    limit: Annotated[StrictInt, Field(ge=1, le=100)] = 10


class AskStep(Strict):
    """The matter of one model step."""

    query: Annotated[StrictStr, Field(max_length=QUERY_POINTS_MAX)]
    step: Ref


class AskRemnants(Strict):
    """A text that may still be somewhere."""

    text: Annotated[StrictStr, AfterValidator(storable), Field(min_length=1)]


class ReadRecord(Strict):
    """What a read by id names; the ids of an older store have another shape, so any text goes."""

    record_id: Ref
    include_inactive: StrictBool = False


class ReadOperation(Strict):
    operation_id: Ref


class ReadSource(Strict):
    ref: Ref
