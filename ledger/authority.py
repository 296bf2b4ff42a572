"""Who may do what (PM 2.2): callers as the host vouches for them, their roles, the table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from memoranda.ledger.errors import Refusal
from memoranda.ledger.events import Actor, Authorization, Binding, Task


@dataclass(frozen=True, slots=True)
class ModelSession:
    """A model session; it is the primary one only while the space is bound to it."""

    session_id: str
    agent_id: str


@dataclass(frozen=True, slots=True)
class BackgroundItem:
    """A background item's executor session, with the authorization it was given, if any."""

    item_id: str
    requirement_revision: int
    session_id: str
    agent_id: str
    authorization_id: str | None = None


@dataclass(frozen=True, slots=True)
class PersonClient:
    """The person's own program: no model, and no model session reaches it."""

    session_id: str = "person-client"
    agent_id: str = "person"


@dataclass(frozen=True, slots=True)
class Auditor:
    """Reads everything an auditor may, writes nothing."""


Caller = ModelSession | BackgroundItem | PersonClient | Auditor
Role = Literal["primary", "item", "client", "auditor"]
Action = Literal[
    "query", "read", "evidence", "operation", "propose", "revise", "publish", "correct",
    "accept", "reject", "tier", "retire", "reactivate", "forget", "take_back", "conflict.open",
    "conflict.resolve",
]  # fmt: skip

_ALL: frozenset[Role] = frozenset({"primary", "item", "client", "auditor"})
_DECIDE: frozenset[Role] = frozenset({"primary", "client"})
ALLOWED: Mapping[Action, frozenset[Role]] = {
    "query": _ALL,
    "read": _ALL,
    "operation": _ALL,
    "evidence": frozenset({"primary", "client", "auditor"}),
    "propose": frozenset({"primary", "item"}),
    "revise": frozenset({"primary", "item"}),
    "conflict.open": frozenset({"primary", "item", "client"}),
    "conflict.resolve": _DECIDE,
    "publish": _DECIDE,
    "correct": _DECIDE,
    "accept": _DECIDE,
    "reject": _DECIDE,
    "tier": _DECIDE,
    "retire": _DECIDE,
    "reactivate": _DECIDE,
    "forget": _DECIDE,
    "take_back": frozenset({"client"}),
}
READS: frozenset[Action] = frozenset({"query", "read", "evidence", "operation"})


def role_of(caller: Caller, binding: Binding | None, task: Task | None) -> Role | None:
    """The caller's role; None for a session that is neither bound nor an item.

    It follows from the stored binding, never from a name, a prompt or a missing parent.
    """
    match caller:
        case PersonClient():
            return "client"
        case Auditor():
            return "auditor"
        case BackgroundItem():
            return "item" if task is not None else None
        case ModelSession():
            # Where a host's provider said that nobody is bound, it is to the session without a
            # name, as which nobody acts.
            is_bound = binding is not None and binding.session_id == caller.session_id
            return "primary" if is_bound else None


def role_refusal(action: Action, role: Role | None) -> Refusal | None:
    """F2 where the row of the table says so; an item's writes are F3, which comes later."""
    if role is None:
        return Refusal.NOT_AUTHORIZED
    if role == "item" and action not in READS:
        return None
    return None if role in ALLOWED[action] else Refusal.NOT_AUTHORIZED


def item_refusal(
    caller: BackgroundItem, task: Task, authorization: Authorization | None
) -> Refusal | None:
    """F6, F4 or F5: whether the item runs under its exact execution authorization.

    A fence that is already visible takes the place of F4 (PM 2.5).
    """
    if task.stopped:
        return Refusal.EXECUTION_FENCED_EARLY
    if authorization is None or not _is_exact(caller, authorization):
        return Refusal.AUTHORIZATION_REQUIRED
    if authorization.revoked or task.requirement_revision != caller.requirement_revision:
        return Refusal.EXECUTION_FENCED_EARLY
    return None if authorization.guard_capable else Refusal.REAUTHORIZATION_REQUIRED


def actor_of(caller: Caller, role: Role | None, binding: Binding | None) -> Actor:
    """The caller as the log remembers it."""
    assert not isinstance(caller, Auditor), "an auditor writes nothing"
    assert role is not None, "a stranger writes nothing"
    assert role != "auditor", "an auditor writes nothing"
    item = caller if isinstance(caller, BackgroundItem) else None
    return Actor(
        role=role,
        agent_id=caller.agent_id,
        session_id=caller.session_id,
        item_id=item.item_id if item else None,
        authorization_id=item.authorization_id if item else None,
        binding_id=binding.binding_id if binding else None,
    )


def is_by(actor: Actor, caller: Caller) -> bool:
    """Whether the caller is the one whom the log remembers."""
    match caller:
        case PersonClient():
            return actor.role == "client"
        case BackgroundItem():
            asked = (caller.item_id, caller.session_id, caller.agent_id)
            return (actor.item_id, actor.session_id, actor.agent_id) == asked
        case ModelSession():
            asked = ("primary", caller.session_id, caller.agent_id)
            return (actor.role, actor.session_id, actor.agent_id) == asked
        case Auditor():
            return False


def _is_exact(caller: BackgroundItem, authorization: Authorization) -> bool:
    return (
        authorization.authorization_id == caller.authorization_id
        and authorization.item_id == caller.item_id
        and authorization.executor_session_id == caller.session_id
        and authorization.requirement_revision == caller.requirement_revision
    )
