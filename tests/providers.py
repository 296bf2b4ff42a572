"""A host that owns conversations, tasks and authorizations itself, in memory."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from memoranda.ledger.events import Authorization, Binding, Message, Task
from memoranda.ledger.ports import Conversation, Ports, Protected


@dataclass
class Provider:
    """Holds off changes while a protection stands; `lose` breaks one from outside."""

    data_set: str
    state: Any = None
    before: Callable[[], None] = lambda: None
    held: int = 0
    asked: int = 0
    token: int = 1
    lock: Any = field(default_factory=threading.Lock)

    @contextmanager
    def protect(self, names: Sequence[str], within_s: float) -> Iterator[Protected[Any]]:
        self.asked += 1
        self.before()
        if not self.lock.acquire(timeout=within_s):
            raise TimeoutError("is busy")
        self.held += 1
        try:
            yield Protected(self.shown(names), self.token)
        finally:
            self.held -= 1
            self.lock.release()

    def shown(self, names: Sequence[str]) -> Any:
        return (self.state or {}).get(names[0])

    def fence(self, _names: Sequence[str]) -> int:
        return self.token

    def change(self, state: Any) -> None:
        """Waits for every protection to end, then changes."""
        with self.lock:
            self.state = state
            self.token += 1

    def lose(self, state: Any) -> None:
        """Changes at once: what was protected is not any more."""
        self.state = state
        self.token += 1


class Chats(Provider):
    rebinds: int = 0

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "state" and self.state and value[0] != self.state[0]:
            self.rebinds += 1
        super().__setattr__(name, value)

    def shown(self, names: Sequence[str]) -> Conversation:
        binding, messages = self.state
        return Conversation(binding, {name: messages.get(name) for name in names}, self.rebinds)


@dataclass
class Company:
    """The providers of one host with the fixture of PM section 10."""

    chats: Chats
    tasks: Provider
    leaves: Provider

    @property
    def ports(self) -> Ports:
        return Ports(self.chats, self.tasks, self.leaves)

    @property
    def all(self) -> tuple[Provider, ...]:
        return self.chats, self.tasks, self.leaves


def company() -> Company:
    ref = "personal-message:s-main-1:"
    said = {
        42: ("Please answer me in Chinese from now on", "2026-10-05T09:00:00Z"),
        88: ("Chinese replies again, please", "2026-10-06T11:00:00Z"),
    }
    messages = {
        f"{ref}{seq}": Message(
            session_id="s-main-1", seq=seq, role="user", text=text, occurred_at=at, origin="user"
        )
        for seq, (text, at) in said.items()
    }
    task = Task(item_id="task-7", requirement_revision=1, captured_ref=f"{ref}42")
    leave = Authorization(
        authorization_id="ea-1",
        item_id="task-7",
        requirement_revision=1,
        executor_session_id="s-bg-7",
        guard_capable=True,
    )
    return Company(
        Chats("chats-1", (Binding(binding_id="b-1", session_id="s-main-1"), messages)),
        Provider("jobs-1", {"task-7": task}),
        Provider("leaves-1", {"ea-1": leave}),
    )
