"""Several hosts on one space under seeded dice: who acts, what is lost, who dies at which step."""

import random  # noqa: TID251  # seeded dice, no entropy
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.conftest import World
from tests.oracle import Authority, Oracle
from tests.providers import Company, company

from memoranda.ledger.authority import BackgroundItem, Caller, ModelSession, PersonClient
from memoranda.ledger.backups import LogCopy
from memoranda.ledger.errors import Refusal, Refused, RefusedError
from memoranda.ledger.events import Authorization, Binding, Message, RecordCommitted, Task, Value
from memoranda.ledger.personal import record_id_of
from memoranda.ledger.ports import EMBEDDED, Ports
from memoranda.ledger.receipts import AbortReceipt, ConflictReceipt, ForgetReceipt, Receipt
from memoranda.ledger.restoring import Asked
from memoranda.ledger.rules import ABORTED
from memoranda.ledger.sqlite_log import SQLiteRecorder
from memoranda.ledger.stamps import moment_of
from memoranda.tools.memory import Memory, open_memory
from memoranda.tools.restore import restore
from memoranda.tools.settings import load_settings

SESSIONS = ("s-main-1", "s-main-2")
ITEMS = ("task-7", "task-9")
KEYS = ("home", "tea", "work")
SAID = [(session, seq) for session in SESSIONS for seq in range(1, 9)]
VERBS = {"tier": "choose_tier"}
OPENING = ("propose", "propose", "publish")
GOING_ON: dict[str | None, tuple[str, ...]] = {
    None: OPENING,
    "candidate": ("revise", "accept", "accept", "reject", "correct", "forget"),
    "accepted": ("correct", "correct", "tier", "retire", "forget"),
    "retired": ("reactivate", "forget"),
    "rejected": (*OPENING, "forget"),
    "forgotten": (*OPENING, "take_back", "take_back", "take_back"),
}
BY_HAND = {"propose": "publish", "revise": "correct"}
BETWEEN = {"commit:prepared", "commit:protected", "reconcile:drained"}
"""Steps at which a process holds no lock, so that others may act in between."""

Intent = tuple[Caller, dict[str, Any]]
Answer = Receipt | AbortReceipt | ConflictReceipt | Value | Refused


class Killed(BaseException):
    """A process ends here and now."""


class Impatient:
    """A provider's lock whose waiters give up at once: in one thread nobody would free it."""

    is_held = False

    def acquire(self, timeout: float) -> bool:
        assert timeout > 0
        was_free, self.is_held = not self.is_held, True
        return was_free

    def release(self) -> None:
        self.is_held = False


def plain(receipt: Receipt | AbortReceipt) -> Receipt | AbortReceipt:
    """A receipt without how far an erasure was when it was answered."""
    if not isinstance(receipt, ForgetReceipt):
        return receipt
    return Receipt(**{name: getattr(receipt, name) for name in Receipt.model_fields})


class Process:
    """One opening of the space, and the positions of the records it commits in one action."""

    def __init__(self, host: str, ports: Ports) -> None:
        self.host = host
        self.ports = ports
        self.memory: Memory | None = None
        self.takeovers = 0
        self.committed: set[int] = set()


class Simulation:
    """One seed's world. `steps` counts the ledger's steps and the actions between them."""

    def __init__(self, folder: Path, seed: int, engine: Mapping[str, str] | None = None) -> None:
        self.root, self.lives, self.engine = folder, 0, engine or {}
        self.dice, self.world = random.Random(seed), World()
        self.sent: list[Intent] = []
        self.receipts: dict[str, Receipt | AbortReceipt] = {}
        self.conflicts: list[str] = []
        self.acting: list[Process] = []
        self.copy_made: LogCopy | None = None
        self.fuse: int | None = None
        self.dies_with_all = False
        self.steps = 0
        self.elapsed = 0.0
        """The seconds that passed at most, however the clock was set back meanwhile."""
        is_foreign = self.chance(0.4)
        self.firm = hired(self.trouble) if is_foreign else None
        self.window_hours = 2 * (seed % 2)
        self.oracle = Oracle(Authority(), is_embedded=not is_foreign, has_window=seed % 2 > 0)
        ports = self.firm.ports if self.firm else EMBEDDED
        places = ("local", ports), ("local", ports), ("local", EMBEDDED), ("other", ports)
        self.processes = [Process(*place) for place in places]
        self.act(self.processes[0], self.begin)
        self.world.at_step = self.at_step

    @property
    def folder(self) -> Path:
        return self.root / f"life-{self.lives}"

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.processes if process.memory]

    def chance(self, odds: float) -> bool:
        return self.dice.random() < odds

    def run(self, actions: int) -> str:
        """Acts that often, settles what is open, and looks at everything; the chain at the end."""
        for _ in range(actions):
            odds = [4 if each.host == self.oracle.holder else 1 for each in self.processes]
            (process,) = self.dice.choices(self.processes, odds)
            is_fenced = process.takeovers != self.oracle.takeovers
            if process.memory is None or self.chance(0.3 if is_fenced else 0.03):
                self.act(process, self.restart)
            else:
                self.act(process, self.anything())
        return self.end()

    # -- processes and their ends ---------------------------------------------------------------

    def act(self, process: Process, action: Callable[[Process], None]) -> None:
        """One action of one process, which may be killed at any step of it."""
        self.steps += 1
        if not self.acting and self.chance(0.2):
            self.fuse = self.dice.randrange(6)
        self.acting.append(process)
        process.committed = set()
        try:
            action(process)
        except Killed:
            self.bury(process)
        self.look(process)
        self.acting.pop()
        if not self.acting:
            self.fuse = None

    def at_step(self, name: str) -> None:
        self.steps += 1
        if name == "log:committed" and self.alive:
            self.look(self.acting[-1])
        if len(self.acting) != 1:
            return
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.kill()
        if name in BETWEEN and self.chance(0.5):
            self.meanwhile(self.acting[0])

    def meanwhile(self, process: Process) -> None:
        """Somebody else acts, or what the process acts under changes."""
        self.look(process)
        others = [other for other in self.alive if other is not process]
        if others and self.chance(0.6):
            self.act(self.dice.choice(others), self.anything())
        elif self.firm:
            self.fences(process)

    def kill(self) -> None:
        """Ends the acting process, or all of them: then the files as they lie are what is left."""
        self.fuse = None
        is_last = all(process in self.acting for process in self.alive)
        self.dies_with_all = is_last or self.chance(0.5)
        if self.dies_with_all:
            after = self.root / f"life-{self.lives + 1}"
            shutil.copytree(self.folder, after, ignore=shutil.ignore_patterns("*-shm"))
        raise Killed

    def bury(self, process: Process) -> None:
        dead = self.alive if self.dies_with_all else [process]
        for each in dead:
            if each.memory:
                drop(each.memory)
                each.memory = None
        if self.dies_with_all:
            shutil.rmtree(self.folder)
            self.lives += 1
            self.dies_with_all = False
            self.restart(process)

    def restart(self, process: Process) -> None:
        if process.memory:
            process.memory.close()
            process.memory = None
        folder = self.folder
        process.memory = open_memory(
            "us_alice", data=folder / "data", state=folder / "state", home=folder, **self.engine,
            stamps=self.world.stamps, host=process.host, ports=process.ports,
            forget_window_hours=self.window_hours,
        )  # fmt: skip
        self.look(process)
        process.takeovers = self.oracle.takeovers

    def look(self, process: Process) -> None:
        """Shows the oracle what the process has appended."""
        with self.alive[0].memory._parts.log.reading() as store:
            for event in store.page(self.oracle.position, 1000):
                self.oracle.take(event, process.host)
                self.oracle.wrote[process.host] = self.elapsed
                # Whoever has appended holds the term.
                process.takeovers = self.oracle.takeovers
                if isinstance(event.header, RecordCommitted):
                    process.committed.add(event.position)

    # -- the world around -----------------------------------------------------------------------

    def begin(self, process: Process) -> None:
        self.restart(process)
        self.code = process.memory.recovery_code
        messages = (
            {"session": session, "seq": seq, "role": "user", "text": f"{session} {seq}"}
            for session, seq in SAID
        )
        list(process.memory.capture(message | {"at": "2026-10-05"} for message in messages))
        self.bind(process, SESSIONS[0])
        for item in ITEMS:
            self.charge(process, item)
            self.authorize(process, item)

    def trouble(self) -> None:
        """A provider that is asked may fail, or lose what another one protects."""
        if self.world.at_step != self.at_step:
            return
        if self.chance(0.04):
            raise OSError("no answer")
        if self.chance(0.08):
            self.guards_change(self.acting[-1])

    def guards_change(self, process: Process) -> None:
        item = self.dice.choice(ITEMS)
        change = self.dice.choice([*[self.charge, self.authorize] * 3, self.stop, self.revoke])
        if self.chance(0.1):
            self.bind(process, self.dice.choice(SESSIONS))
        else:
            change(process, item)

    def fences(self, process: Process) -> None:
        """Whoever acts may have no right to any more."""
        item = self.dice.choice(ITEMS)
        if self.chance(0.5):
            self.bind(process, self.dice.choice(SESSIONS))
        else:
            self.dice.choice([self.stop, self.revoke])(process, item)

    def bind(self, process: Process, session: str) -> None:
        if self.firm is None:
            process.memory.host.bind_primary(session)
            return
        binding = Binding(binding_id=f"b-{self.steps}", session_id=session)
        self.foreign(process, self.firm.chats, (binding, self.firm.chats.state[1]))
        self.oracle.authority.session = session

    def charge(self, process: Process, item: str) -> None:
        known = self.oracle.authority.tasks.get(item)
        revision = known.requirement_revision + self.chance(0.4) if known else 1
        asked = ref_of(self.dice.choice(SAID))
        if self.firm is None:
            process.memory.host.open_task(
                item_id=item, requirement_revision=revision, captured_ref=asked
            )
        else:
            self.task(process, Task(
                item_id=item, requirement_revision=revision, captured_ref=asked,
            ))  # fmt: skip

    def stop(self, process: Process, item: str) -> None:
        if self.firm is None:
            process.memory.host.stop_task(item)
        else:
            task = self.oracle.authority.tasks[item]
            self.task(process, task.model_copy(update={"stopped": True}))

    def authorize(self, process: Process, item: str) -> None:
        task = self.oracle.authority.tasks.get(item)
        leave = Authorization(
            authorization_id=f"ea-{item}", item_id=item, executor_session_id=f"s-{item}",
            requirement_revision=task.requirement_revision if task else 1,
            guard_capable=not self.chance(0.1),
        )  # fmt: skip
        if self.firm is None:
            process.memory.host.authorize(**leave.model_dump(exclude={"revoked"}))
        else:
            self.leave(process, leave)

    def revoke(self, process: Process, item: str) -> None:
        if self.firm is None:
            process.memory.host.revoke(f"ea-{item}")
        else:
            leave = self.oracle.authority.leaves[f"ea-{item}"]
            self.leave(process, leave.model_copy(update={"revoked": True}))

    def task(self, process: Process, task: Task) -> None:
        self.foreign(process, self.firm.tasks, self.firm.tasks.state | {task.item_id: task})
        self.oracle.authority.tasks[task.item_id] = task

    def leave(self, process: Process, leave: Authorization) -> None:
        name = leave.authorization_id
        self.foreign(process, self.firm.leaves, self.firm.leaves.state | {name: leave})
        self.oracle.authority.leaves[name] = leave

    def foreign(self, process: Process, provider: Any, state: object) -> None:
        """What was appended until now came before the change, and nothing after it may rest."""
        self.look(process)
        provider.lose(state)

    # -- what a process may do ------------------------------------------------------------------

    def anything(self) -> Callable[[Process], None]:
        weighted = (
            (30, self.says), (11, self.prepares), (16, self.says_again), (5, self.says_otherwise),
            (11, self.commits_what_is_open), (12, self.guards_change), (5, self.conflict),
            (4, self.many), (7, self.reconciles), (1, self.rotates), (5, self.time_jumps),
            (3, self.message), (5, self.reads), (2, self.backs_up),
        )  # fmt: skip
        weights, actions = zip(*weighted, strict=True)
        return self.dice.choices(actions, weights)[0]

    def caller(self) -> Caller:
        if self.chance(0.3):
            return PersonClient()
        if self.chance(0.6):
            is_bound = self.chance(0.9)
            session = self.oracle.authority.session if is_bound else self.dice.choice(SESSIONS)
            return ModelSession(session, "agent-main")
        item = self.dice.choice(ITEMS)
        revision = self.oracle.authority.tasks[item].requirement_revision
        return BackgroundItem(item, revision, f"s-{item}", "agent-bg", f"ea-{item}")

    def intent(self) -> Intent:
        caller, key = self.caller(), self.dice.choice(KEYS)
        record_id = record_id_of(key)
        value = self.oracle.value(record_id)
        status, revision = (value["status"], value["revision"]) if value else (None, 1)
        name = self.dice.choice(GOING_ON[status])
        if isinstance(caller, PersonClient):
            name = BY_HAND.get(name, name)
        if isinstance(caller, BackgroundItem):
            name = "revise" if status == "candidate" else "propose"
            source = self.oracle.authority.tasks[caller.item_id].captured_ref
        else:
            place = self.dice.choice(SAID)
            source = ref_of((self.oracle.authority.session, place[1]))
        operation = f"op-{len(self.sent) + 1}"
        revision += self.chance(0.04)
        wording = {"content": f"«{operation}»", "sources": [source]}
        on_record = {"record_id": record_id, "expected_revision": revision}
        fields: dict[str, Any] = {
            "propose": {"key": key, **wording},
            "publish": {"key": key, **wording},
            "revise": {**on_record, **wording},
            "correct": {**on_record, **wording},
            "accept": {"record_id": record_id, "inspected_revision": revision},
            "reject": {**on_record, "reason": f"«{operation}»"},
            "retire": {**on_record, "reason": f"«{operation}»"},
            "tier": {**on_record, "tier": self.dice.choice(["core", "detail"])},
            "reactivate": on_record,
            "take_back": on_record,
            "forget": {**on_record, "with_sources": self.chance(0.2)},
        }[name]
        self.sent.append((caller, {"name": name, "operation_id": operation, **fields}))
        return self.sent[-1]

    def says(self, process: Process) -> None:
        self.send(process, self.intent())

    def prepares(self, process: Process) -> None:
        self.send(process, self.intent(), first="prepare")

    def says_again(self, process: Process) -> None:
        if self.sent:
            first = self.dice.choice(["", "prepare"])
            self.send(process, self.dice.choice(self.sent[-12:]), first=first)

    def says_otherwise(self, process: Process) -> None:
        worded = [each for each in self.sent[-12:] if "content" in each[1]]
        if worded:
            caller, request = self.dice.choice(worded)
            self.send(process, (caller, request | {"content": f"«otherwise {self.steps}»"}))

    def commits_what_is_open(self, process: Process) -> None:
        operations = self.open_operations()
        if not operations:
            return
        operation = self.dice.choice(operations)
        caller = next(by for by, request in self.sent if request["operation_id"] == operation)
        intent = process.memory.operation(operation).intent
        is_other = self.chance(0.2)
        if is_other:
            intent["value"] |= {"content": f"«otherwise {self.steps}»"}
        answer = process.memory.acting_as(caller).commit(intent)
        self.heard(process, [operation], [answer])
        assert isinstance(answer, Refused) or not is_other

    def send(self, process: Process, intent: Intent, first: str = "") -> None:
        caller, request = intent
        ledger, operation = process.memory._parts.ledger, request["operation_id"]
        has_ended = self.oracle.end_of(operation) is not None
        if first:
            answer = ledger.prepare(caller, request)
        else:
            verb = VERBS.get(request["name"], request["name"])
            answer = getattr(ledger, verb)(caller, **without_name(request))
        self.heard(process, [operation], [answer])
        command = self.oracle.commands.get(operation, {})
        told = {"name", "content", "reason", "tier"} & set(request) & set(command)
        is_same = all(command[field] == request[field] for field in told)
        assert is_same or isinstance(answer, Refused)
        if has_ended and is_same and isinstance(answer, Refused):
            # Who it is comes first, then what became of it: an end is never judged once more.
            is_meant = answer.refusal.number in {"F1", "F2", "F6", "F22", "F41"}
            assert is_meant or answer.message == ABORTED, "an end was judged once more"

    def many(self, process: Process) -> None:
        caller, _ = self.intent()
        requests = [self.intent()[1] for _ in range(self.dice.randrange(1, 4))]
        answers = process.memory.acting_as(caller).commit_many(
            requests, all_or_nothing=self.chance(0.5)
        )
        is_nothing = isinstance(answers, Refused)
        operations = [] if is_nothing else [each["operation_id"] for each in requests]
        self.heard(process, operations, [] if is_nothing else answers)

    def conflict(self, process: Process) -> None:
        memory = process.memory.acting_as(self.caller())
        if self.conflicts and self.chance(0.4):
            memory.resolve_conflict(self.dice.choice(self.conflicts), "keep_both", "«both»")
            return
        one, other = (record_id_of(key) for key in self.dice.sample(KEYS, 2))
        answer = memory.open_conflict(one, other, f"«why {self.steps}»")
        if isinstance(answer, ConflictReceipt):
            self.conflicts.append(answer.conflict_id)

    def reconciles(self, process: Process) -> None:
        operations = self.open_operations() or list(self.oracle.names)
        if operations:
            self.settle(process, self.dice.choice(operations))

    def settle(self, process: Process, operation: str) -> Answer:
        was_open = operation in self.open_operations()
        answer = process.memory.reconcile(operation, writers_stopped=True, reason="crashed")
        self.heard(process, [operation], [answer])
        if was_open and isinstance(answer, AbortReceipt):
            wrote = self.oracle.wrote.items()
            is_late = all(at + 60 <= self.elapsed for host, at in wrote if host != process.host)
            assert is_late, "another host is live"
        return answer

    def rotates(self, process: Process) -> None:
        try:
            process.memory.rotate_keys()
        except RefusedError as error:
            assert error.refused.refusal is Refusal.EXECUTION_FENCED  # noqa: PT017
            assert process.takeovers != self.oracle.takeovers

    def backs_up(self, process: Process) -> None:
        answer = process.memory.backup(self.root / "away")
        if isinstance(answer, Refused):
            # A rotation that was cut short is finished first, which a fenced host may not do.
            assert answer.refusal is Refusal.EXECUTION_FENCED
            assert process.takeovers != self.oracle.takeovers
        else:
            self.copy_made = answer.copy_made

    def time_jumps(self, _: Process) -> None:
        self.passes(self.dice.choice([0.001, 1, 61, 90, 4000, -1, -61, -4000]))

    def passes(self, seconds: float) -> None:
        self.world.move(seconds=seconds)
        # How long ago something was, nobody can tell any more once the clock was set back.
        self.elapsed += 60 if seconds < -60 else max(0, seconds)

    def message(self, process: Process) -> None:
        """A message comes again, perhaps to be hidden from now on."""
        session, seq = self.dice.choice(SAID)
        if self.firm is None:
            said = {"session": session, "seq": seq, "role": "user", "text": f"{session} {seq}"}
            is_hidden = {"at": "2026-10-05", "hidden": self.chance(0.5)}
            list(process.memory.capture([said | is_hidden]))
        else:
            binding, messages = self.firm.chats.state
            ref = ref_of((session, seq))
            hidden = messages[ref].model_copy(update={"hidden": True})
            self.foreign(process, self.firm.chats, (binding, messages | {ref: hidden}))
            self.oracle.hidden.add(ref)

    def reads(self, process: Process) -> None:
        """Every process serves what the log says, and what was acknowledged."""
        process.memory.acting_as(self.caller()).records()
        served = process.memory.records(include_inactive=True)
        self.look(process)
        shown = sorted((read.record.model_dump(mode="json") for read in served), key=str)
        assert shown == sorted(self.oracle.values.values(), key=str)
        for operation, receipt in self.receipts.items():
            read = process.memory.operation(operation)
            assert self.oracle.agrees(read, operation)
            assert read.receipt.position == receipt.position
            assert read.receipt == receipt or read.receipt.record_id is None

    # -- what it must say -----------------------------------------------------------------------

    def open_operations(self) -> list[str]:
        return [each for each, name in self.oracle.names.items() if name in self.oracle.open]

    def heard(self, process: Process, operations: list[str], answers: Iterable[Answer]) -> None:
        """An answer is what the log says of this action; one in six never reaches the caller."""
        self.look(process)
        receipts = [(op, it) for op, it in zip(operations, answers, strict=True)
                    if isinstance(it, Receipt | AbortReceipt)]  # fmt: skip
        fresh = {it.position for _, it in receipts if isinstance(it, Receipt) and not it.replayed}
        assert process.committed <= fresh, "what was committed is what was answered"
        for operation, receipt in receipts:
            if operation not in self.oracle.names:
                # One batch has said it and forgotten it; the log keeps no name of it.
                assert receipt.position in self.oracle.ended.values()
                continue
            assert receipt.position == self.oracle.end_of(operation)
            kept = plain(receipt).model_copy(update={"replayed": False})
            if operation in self.receipts or not self.chance(0.16):
                first = self.receipts.setdefault(operation, kept)
                assert kept == first or kept.record_id is None

    def end(self) -> str:
        """Writers stop, a minute passes, and the person settles what is open."""
        self.world.at_step = lambda _: None
        head = self.alive[0].memory._parts.log.head()
        for process in self.alive:
            self.close(process)
        self.world.moment = max(self.world.moment, moment_of(head.recorded_at))
        self.passes(self.window_hours * 3600 + 61)
        last = Process("local", EMBEDDED)
        self.processes = [last]
        self.act(last, self.restart)
        for operation in self.open_operations():
            first = self.settle(last, operation)
            assert isinstance(first, AbortReceipt)
            assert self.settle(last, operation) == first
        # A first reading beyond every window, and a second one a whole window later.
        last.memory.finish_forgets()
        self.passes(self.window_hours * 3600)
        last.memory.finish_forgets()
        self.look(last)
        assert not self.oracle.open
        assert not self.oracle.held
        assert not self.oracle.kept
        self.reads(last)
        self.nothing_is_half_there(last.memory)
        assert last.memory.audit.verify().findings == ()
        chain = last.memory._parts.log.head().chain
        last.memory.close()
        if self.copy_made:
            self.comes_back(self.copy_made)
        return chain.hex()

    def close(self, process: Process) -> None:
        """A closing finishes what is owed; here, while somebody can see who appended it."""
        with suppress(RefusedError):
            process.memory._finish_forgets()
        self.look(process)
        process.memory.close()
        process.memory = None
        if self.alive:  # what others held up until now is finished by the closing itself
            self.look(process)

    def comes_back(self, copy: LogCopy) -> None:
        """On an empty machine: all that had ended by then, and nothing of what is gone since."""
        machine = self.root / "machine"
        where = {"data": machine / "data", "state": machine / "state", "home": machine}
        settings, asked = load_settings(space="us_alice", **where), Asked(code=self.code)
        report = restore(settings, self.world.stamps, self.root / "away", asked)
        assert (report.position, report.findings, report.is_served) == (copy.position, (), True)
        with open_memory("us_alice", **where, stamps=self.world.stamps, create=False) as memory:
            self.nothing_is_told(memory, self.oracle.fallen)
            for operation, receipt in self.receipts.items():
                if receipt.position <= copy.position:
                    assert memory.operation(operation).receipt.position == receipt.position
            values = [it for it in self.oracle.values.values() if it]
            forgotten = {it["id"] for it in values if it["status"] == "forgotten"}
            for read in memory.records(include_inactive=True):
                assert read.record.id not in forgotten or read.record.status == "forgotten"

    def nothing_is_half_there(self, memory: Memory) -> None:
        """Every operation is complete or absent, and no body says what is gone."""
        for _, request in self.sent:
            operation = request["operation_id"]
            read = memory.operation(operation)
            if operation in self.oracle.names:
                assert self.oracle.agrees(read, operation)
            else:
                assert isinstance(read, Refused) or read.intent is None
        self.nothing_is_told(memory, self.oracle.gone)

    def nothing_is_told(self, memory: Memory, gone: set[str]) -> None:
        with memory._parts.log.reading() as store:
            bodies = [event.body(Value) for event in store.page(0, 10_000)]
        kept = " ".join(body.model_dump_json() for body in bodies if body)
        assert not [text for text in gone if text in kept]


def drop(memory: Memory) -> None:
    """What a kill does to a process: its files are closed, and nothing is written any more."""
    parts = memory._parts
    recorder = parts.log._recorder
    if isinstance(recorder, SQLiteRecorder):
        recorder._reader.close()
        recorder._writer.close()
    else:
        recorder.close()
    parts.log._keyring._connection.close()
    parts.views._connection.close()


def hired(trouble: Callable[[], None]) -> Company:
    """The providers of a host that owns conversations, tasks and authorizations."""
    firm = company()
    messages = {
        ref_of((session, seq)): Message(
            session_id=session, seq=seq, role="user", text=f"{session} {seq}",
            occurred_at="2026-10-05T00:00:00Z", origin="user",
        )
        for session, seq in SAID
    }  # fmt: skip
    firm.chats.state = (None, messages)
    firm.tasks.state, firm.leaves.state = {}, {}
    for provider in firm.all:
        provider.lock, provider.before = Impatient(), trouble
    return firm


def ref_of(place: tuple[str, int]) -> str:
    return f"personal-message:{place[0]}:{place[1]}"


def without_name(request: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in request.items() if field != "name"}
