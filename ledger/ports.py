"""What a host may own instead of the log: conversations, tasks and authorizations (PM 3.2).

A provider answers what stands, and keeps it from changing while its protection is held. It is
asked outside the space's lock; inside it only `fence()` is compared, which must not block.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from memoranda.ledger.events import Authorization, Binding, DataSets, Message, Task

S = TypeVar("S")

PROTECT_WITHIN_S = 5.0
"""How long a provider may take to protect what it answers."""


@dataclass(frozen=True, slots=True)
class Protected(Generic[S]):
    """What stands, and the provider's fencing number at that moment."""

    state: S
    token: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """Who is bound as the primary session, and the messages asked for by their addresses."""

    binding: Binding | None
    messages: Mapping[str, Message | None]


class Provider(Protocol[S]):
    """One authority. `data_set` names its data; another provider may only replace it with that."""

    @property
    def data_set(self) -> str: ...

    def protect(
        self, names: Sequence[str], within_s: float
    ) -> AbstractContextManager[Protected[S]]:
        """Keeps what is named from changing until it is left, on whatever thread that is."""
        ...

    def fence(self) -> int:
        """The fencing number now; it has moved when a protection no longer holds."""
        ...


class Conversations(Provider[Conversation], Protocol):
    """The names are the references of whole messages."""


class Tasks(Provider[Task | None], Protocol):
    """The name is the item's id."""


class Authorizations(Provider[Authorization | None], Protocol):
    """The name is the authorization's id; its `guard_capable` says whether this port guards it."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Who owns what; None is the log itself."""

    conversations: Conversations | None = None
    tasks: Tasks | None = None
    authorizations: Authorizations | None = None

    @property
    def are_embedded(self) -> bool:
        return self == EMBEDDED

    @property
    def data_sets(self) -> DataSets:
        named = {
            "conversations": self.conversations,
            "tasks": self.tasks,
            "authorizations": self.authorizations,
        }
        return DataSets(**{name: port.data_set for name, port in named.items() if port})


EMBEDDED = Ports()
"""The log owns all of it."""
