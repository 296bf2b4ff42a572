"""What tests share: a ledger in a temporary folder, and an injected clock and entropy."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from tests.sites import Site
from tests.tables import TABLES, Folders, Tables

from memoranda.ledger.authority import BackgroundItem, ModelSession
from memoranda.ledger.postgres_log import PostgresSpace
from memoranda.ledger.stamps import Stamps
from memoranda.tools.memory import Memory, open_memory
from memoranda.tools.postgres_server import PostgresServer, as_owner

MAIN = "s-main-1"
RAM = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
T0 = datetime(2026, 10, 6, 12, 0, tzinfo=UTC)
MESSAGES = (
    (42, "Please answer me in Chinese from now on", "2026-10-05T09:00:00Z"),
    (50, "我对花生过敏🥜。I moved to Kyoto.", "2026-10-05T10:00:00Z"),
    (88, "Chinese replies again, please", "2026-10-06T11:00:00Z"),
)


@dataclass
class World:
    """The injected outside: a clock that stands until moved, and repeatable entropy."""

    moment: datetime = T0
    drawn: int = 0
    steps: list[str] = field(default_factory=list)
    at_step: Callable[[str], None] = lambda _: None

    def move(self, **by: float) -> None:
        self.moment += timedelta(**by)

    def entropy(self, count: int) -> bytes:
        self.drawn += 1
        return hashlib.shake_256(str(self.drawn).encode()).digest(count)

    def step(self, name: str) -> None:
        self.steps.append(name)
        self.at_step(name)

    @property
    def stamps(self) -> Stamps:
        return Stamps(now=lambda: self.moment, entropy=self.entropy, step=self.step)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """The PostgreSQL server of this run, in memory where the machine has such a folder."""
    with PostgresServer.passing(RAM) as server:
        yield server


@pytest.fixture(scope="session")
def fresh(server: PostgresServer) -> Iterator[Callable[[], str]]:
    """Makes a place for tables apart from all others, which lasts as long as the run; its URL."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(server.schema())


@pytest.fixture(scope="session")
def shared(fresh: Callable[[], str]) -> Iterator[tuple[str, Callable[[], None]]]:
    """Tables on the server that every test finds empty, and how to empty them.

    To make them anew would take longer than most tests.
    """
    url = fresh()
    PostgresSpace(url, "us_alice").exists()  # makes them
    with psycopg.connect(as_owner(url), autocommit=True) as owner:
        yield url, lambda: owner.execute("".join(f"DELETE FROM {it};" for it in TABLES))


@pytest.fixture(params=["sqlite", "postgres"])
def empty_engine(request: pytest.FixtureRequest) -> Callable[[], dict[str, str]]:
    """Gives the place of the test's log, as an argument of `open_memory`, with nothing in it."""

    def emptied() -> dict[str, str]:
        if request.param == "sqlite":
            return {}
        url, empty = request.getfixturevalue("shared")
        empty()
        return {"engine": url}

    return emptied


@pytest.fixture
def engine(empty_engine: Callable[[], dict[str, str]]) -> dict[str, str]:
    """Where the log of the test is kept, as an argument of `open_memory`."""
    return empty_engine()


@pytest.fixture
def folder(tmp_path: Path, engine: dict[str, str]) -> dict[str, Path | str]:
    """The two folders of a ledger and its engine, as arguments of `open_memory`."""
    return Folders({"data": tmp_path / "data", "state": tmp_path / "state", **engine})


@pytest.fixture
def elsewhere(
    request: pytest.FixtureRequest, folder: dict[str, Path | str], tmp_path: Path
) -> Folders:
    """Where another ledger is, on the same engine."""
    engine = {"engine": request.getfixturevalue("fresh")()} if "engine" in folder else {}
    return Folders({"data": tmp_path / "data 2", "state": tmp_path / "state 2", **engine})


@pytest.fixture
def tables(request: pytest.FixtureRequest, folder: dict[str, Path | str]) -> Tables:
    """The tables of the test's log, behind its ledger's back."""
    return Tables(folder, request.getfixturevalue("fresh") if "engine" in folder else None)


@pytest.fixture
def site(tmp_path: Path, engine: dict[str, str]) -> Iterator[Site]:
    """A ledger for several processes; those that a test leaves behind are killed."""
    site = Site(tmp_path, engine)
    site.open().close()
    yield site
    site.kill_all()


@pytest.fixture
def ram_site(engine: dict[str, str]) -> Iterator[Site]:
    """The same in memory, where the machine has such a folder: for tests that write a lot."""
    with TemporaryDirectory(dir=RAM) as name:
        site = Site(Path(name), engine)
        yield site
        site.kill_all()


@pytest.fixture
def opened(world: World, folder: dict[str, Path]) -> Iterator[Callable[..., Memory]]:
    """Opens (and reopens) the test's space; what is open at the end is closed."""
    memories: list[Memory] = []

    def open_again(space: str = "us_alice", **more: object) -> Memory:
        memory = open_memory(space, **folder | {"stamps": world.stamps} | more)
        memories.append(memory)
        return memory

    yield open_again
    for memory in memories:
        memory.close()


@pytest.fixture
def memory(opened: Callable[..., Memory]) -> Memory:
    """The person's own client on the fixture of PM section 10."""
    memory = opened()
    memory.host.bind_primary(MAIN)
    messages = [
        {"session": MAIN, "seq": seq, "role": "user", "text": text, "at": at}
        for seq, text, at in MESSAGES
    ]
    assert all(hasattr(answer, "position") for answer in memory.capture(messages))
    for item, executor, leave, seq in (
        ("task-7", "s-bg-7", "ea-1", 42),
        ("task-9", "s-bg-9", "ea-9", 50),
    ):
        memory.host.open_task(item_id=item, captured_ref=f"personal-message:{MAIN}:{seq}")
        memory.host.authorize(
            authorization_id=leave,
            item_id=item,
            requirement_revision=1,
            executor_session_id=executor,
        )
    memory.host.open_task(item_id="task-8", captured_ref=f"personal-message:{MAIN}:88")
    return memory


@pytest.fixture
def primary(memory: Memory) -> Memory:
    """The bound primary session."""
    return memory.acting_as(ModelSession(MAIN, "agent-main"))


@pytest.fixture
def task_7(memory: Memory) -> Memory:
    """Background item task-7 under its authorization, captured source `:42`."""
    return memory.acting_as(BackgroundItem("task-7", 1, "s-bg-7", "agent-bg", "ea-1"))


@pytest.fixture
def task_9(memory: Memory) -> Memory:
    """Background item task-9 under its authorization, captured source `:50`."""
    return memory.acting_as(BackgroundItem("task-9", 1, "s-bg-9", "agent-bg", "ea-9"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--exhaustive", action="store_true", help="higher counts, for nights and releases"
    )


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """The library to preload that sees and spoils writes and flushes; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    shim = tmp_path_factory.mktemp("shim") / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", shim, source], check=True)
    return shim


@pytest.fixture
def exhaustive(request: pytest.FixtureRequest) -> bool:
    """Whether this run may take its time."""
    return bool(request.config.getoption("--exhaustive"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test runs on both engines, but for what is said to be of SQLite alone.

    What has run on one engine is not traced on the other again.
    """
    items[:] = [it for it in items if not (it.get_closest_marker("sqlite") and on_postgres(it))]
    for item in filter(on_postgres, items):
        item.add_marker("untraced")


def on_postgres(item: pytest.Item) -> bool:
    """Whether a test runs with its log on the server."""
    return isinstance(item, pytest.Function) and "postgres" in item.name.partition("[")[2]
