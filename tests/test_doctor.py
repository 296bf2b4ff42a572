"""The doctor: each thing that could go wrong is found, and named in words."""

import shutil
import sqlite3
from contextlib import closing

import pytest

from memoranda.ledger import sqlite_files
from memoranda.ledger.errors import RefusedError
from memoranda.tools.doctoring import examined
from memoranda.tools.memory import open_memory

SPACE = "us_alice"


def findings(memory) -> dict[str, str]:
    return {it.name: it.message for it in memory.doctor() if it.level == "finding"}


@pytest.fixture
def healthy(opened, tmp_path):
    memory = opened()
    memory.forget(memory.remember("gone").record_id, 1)
    memory.remember("stays")
    memory.backup(tmp_path / "away")
    assert findings(memory) == {}
    return memory


def test_a_ledger_without_a_backup_is_a_finding(opened):
    assert set(findings(opened())) == {"recovery"}


def test_a_bundle_older_than_the_last_rotation_is_a_finding(healthy, tmp_path):
    (tmp_path / "away").rename(tmp_path / "drawer")
    healthy.rotate_keys()

    found = findings(healthy)

    assert set(found) == {"backup", "recovery"}
    assert "missing" in found["backup"]


def test_a_backup_without_a_whole_copy_of_the_log_is_a_finding(healthy, tmp_path):
    inner = tmp_path / "away" / SPACE
    healthy.remember("more")
    healthy.backup(tmp_path / "away")
    older, newest = sorted(inner.glob("log-*.db"))
    bundle = (inner / "keys.bundle").read_bytes()

    def told() -> str:
        found = findings(healthy)
        assert set(found) == {"backup", "recovery"}
        return found["backup"]

    older.unlink()
    assert older.name in told()
    newest.write_bytes(newest.read_bytes()[:4096])
    older.write_bytes(b"")
    assert "damaged" in told()
    (inner / "manifest.json").write_text("{}")
    assert "manifest.json is damaged" in told()
    (inner / "manifest.json").unlink()
    assert "no copy of the log is there" in told()
    (inner / "keys.bundle").write_bytes(bundle.replace(b'"data_set": "', b'"data_set": "0'))
    assert "another ledger's" in told()
    (inner / "keys.bundle").unlink()
    healthy.backup(tmp_path / "away")
    assert findings(healthy) == {}


def test_another_ledgers_bundle_is_none_of_this_one(healthy, opened, elsewhere, tmp_path):
    shutil.rmtree(tmp_path / "away")
    with opened(**elsewhere) as other:
        while other.status().key_epoch < healthy.status().key_epoch:
            other.rotate_keys()
        other.backup(tmp_path / "away")

    found = findings(healthy)

    assert set(found) == {"backup", "recovery"}
    assert "another ledger's" in found["backup"]


def test_of_a_bundle_of_another_version_the_doctor_says_what_a_backup_there_would(
    healthy, tmp_path
):
    bundle = tmp_path / "away" / SPACE / "keys.bundle"
    bundle.write_bytes(bundle.read_bytes().replace(b"memoranda-keys/1", b"memoranda-keys/2"))

    refused = healthy.backup(tmp_path / "away").message

    assert "another version's" in refused
    told = findings(healthy)["backup"]
    assert told.endswith(f"; {refused}")
    assert "`memoranda backup" not in told


def test_files_that_others_may_read_are_a_finding(healthy, folder):
    (folder["data"] / SPACE / "keys.db").chmod(0o644)

    assert "keys.db" in findings(healthy)["permissions"]


def test_a_state_folder_inside_a_backup_is_a_finding(tmp_path, world):
    folders = {"data": tmp_path / "data", "state": tmp_path / "disk" / "state"}
    with open_memory(SPACE, **folders, stamps=world.stamps) as memory:
        memory.backup(tmp_path / "disk")

        assert str(tmp_path / "disk") in findings(memory)["state"]


def test_a_journal_that_lost_a_forget_is_a_finding(healthy, folder):
    (folder["state"] / SPACE / "forgotten").write_text("")

    assert findings(healthy)["journal"].startswith("1 of 1")


def test_open_operations_and_open_erasures_are_findings(healthy, folder):
    healthy.prepare({"name": "publish", "operation_id": "op-1", "key": "k", "content": "x"})
    keys = folder["data"] / SPACE / "keys.db"
    made = healthy.remember("held up")
    with closing(sqlite3.connect(f"{keys.as_uri()}?mode=ro", uri=True)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM keys").fetchone()
        healthy.forget(made.record_id, 1)

        assert {"operations", "erasures"} <= set(findings(healthy))


def test_everything_that_was_looked_at_is_told(healthy):
    names = [check.name for check in examined(healthy._parts)]

    assert names == [
        "sqlite", "pragmas", "permissions", "anchor", "journal", "erasures", "key rotation",
        "operations", "backup", "state",
    ]  # fmt: skip


# -- schemas --------------------------------------------------------------------------------------

FILES = [pytest.param("ledger.db", marks=pytest.mark.sqlite("the log's own file")), "keys.db"]
OLD = "CREATE TABLE things (name TEXT);"


def made(path, number: int = 1):
    return sqlite_files.connect(path, schema=OLD, schema_number=number)


def test_a_schema_upgrade_copies_the_file_first(tmp_path, monkeypatch):
    path = tmp_path / "a.db"
    with closing(made(path)) as connection:
        connection.execute("INSERT INTO things VALUES ('kept')")
    script = "ALTER TABLE things ADD COLUMN size INTEGER;"
    monkeypatch.setitem(sqlite_files.UPGRADES, ("a.db", 1), script)

    with closing(made(path, 2)) as connection:
        assert connection.execute("SELECT * FROM things").fetchall() == [("kept", None)]
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)

    copy = tmp_path / "a.db.schema-1"
    assert copy.stat().st_mode & 0o077 == 0
    with closing(sqlite3.connect(copy)) as kept:
        assert kept.execute("SELECT * FROM things").fetchall() == [("kept",)]
        assert kept.execute("PRAGMA user_version").fetchone() == (1,)


def test_an_upgrade_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "a.db"
    made(path).close()
    script = "ALTER TABLE things ADD COLUMN size INTEGER; NONSENSE;"
    monkeypatch.setitem(sqlite_files.UPGRADES, ("a.db", 1), script)

    with pytest.raises(sqlite_files.StorageFault):
        made(path, 2)

    with closing(made(path)) as connection:
        assert len(connection.execute("PRAGMA table_info(things)").fetchall()) == 1


def test_a_schema_that_no_version_can_upgrade_is_a_fault(tmp_path):
    made(tmp_path / "a.db").close()

    with pytest.raises(sqlite_files.StorageFault, match="cannot upgrade"):
        made(tmp_path / "a.db", 3)


@pytest.mark.parametrize("name", FILES)
def test_a_newer_schema_is_refused_untouched(opened, folder, name):
    memory = opened()
    memory.remember("something")
    memory.close()
    path = folder["data"] / SPACE / name
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA user_version=2")
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = path.read_bytes()

    with pytest.raises(RefusedError, match="newer"):
        opened()

    assert path.read_bytes() == before
