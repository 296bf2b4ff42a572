"""Exports and imports: readable, complete, and never a way back for what was forgotten."""

import fcntl
import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

import pytest
from tests.sites import Site

from memoranda.ledger.errors import RefusedError
from memoranda.ledger.locks import flocked
from memoranda.ledger.receipts import Receipt
from memoranda.ledger.stamps import Stamps
from memoranda.ledger.takeover import MigrationReport
from memoranda.projections import exporting as projection
from memoranda.projections import feed
from memoranda.tools import exporting
from memoranda.tools.exporting import ExportReport
from memoranda.tools.memory import Memory, open_memory
from memoranda.tools.restore import restore
from memoranda.tools.settings import load_settings

SPACE = "us_alice"
REF = "personal-message:s-main-1:"
FACT = "Peanuts make Alice ill."
OTHER = "Alice drinks green tea."
HOSTILE = "# no heading\n<script>x</script> [a](b) \x1b[31m"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "export.jsonl"


@pytest.fixture
def elsewhere(tmp_path: Path, world) -> Memory:
    """Another, empty ledger of the same person."""
    folders = {"data": tmp_path / "new" / "data", "state": tmp_path / "new" / "state"}
    with open_memory(SPACE, **folders, stamps=world.stamps) as memory:
        yield memory


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def facts(memory: Memory, **more: object) -> list[str]:
    return sorted(read.record.content for read in memory.records(**more))


@pytest.fixture
def life(memory, primary) -> Memory:
    """Records of every status, an open conflict, and something forgotten."""
    tea = primary.publish("drink/tea", OTHER, sources=[f"{REF}42#0-6"])
    memory.choose_tier(tea.record_id, 1, "core")
    memory.retire(memory.remember("Once.").record_id, 1, "over")
    candidate = primary.propose("home/city", "Kyoto", sources=[f"{REF}50#11-17"])
    memory.open_conflict(candidate.record_id, tea.record_id, "cannot both be so")
    rejected = primary.propose("home/street", "Gojo", sources=[f"{REF}50#20-22"])
    memory.reject(rejected.record_id, 1, "not said")
    gone = primary.publish("health/peanuts", FACT, sources=[f"{REF}50#0-9"])
    memory.forget(gone.record_id, 1)
    return memory


def test_an_export_holds_every_record_and_nothing_forgotten(life, file):
    report = life.export(file)

    assert isinstance(report, ExportReport)
    assert report.records == {
        "accepted": 1, "candidate": 1, "forgotten": 1, "rejected": 1, "retired": 1,
    }  # fmt: skip
    assert (report.conflicts, report.blocked) == (1, 0)
    kept = lines(file)
    assert [it["kind"] for it in kept].count("record") == 5
    assert kept[0]["position"] == life.status().position
    assert FACT not in file.read_text()
    assert "peanuts" not in file.read_text()
    assert [it["reason"] for it in kept if it["kind"] == "conflict"] == ["cannot both be so"]
    assert file.stat().st_mode & 0o077 == 0
    assert [path.name for path in file.parent.iterdir() if path.name.startswith("export")] == [
        file.name
    ]


def test_an_import_into_an_empty_ledger_brings_every_record_and_every_tombstone(
    life, file, elsewhere
):
    life.export(file)

    report = elsewhere.import_file(file)

    assert isinstance(report, MigrationReport)
    assert (report.imported, report.conflicts, report.refused) == (5, 1, {})
    assert facts(elsewhere) == facts(life)
    assert {it.key for it in elsewhere.records()} == {it.key for it in life.records()}
    assert elsewhere.status().records == life.status().records
    assert elsewhere.audit.verify(with_index=True).findings == ()


def test_an_import_is_idempotent(life, file, elsewhere):
    life.export(file)
    elsewhere.import_file(file)
    position = elsewhere.status().position

    again, own = elsewhere.import_file(file), life.import_file(file)

    assert (again.imported, again.already_there) == (0, 6)
    assert (own.imported, own.already_there) == (0, 6)
    assert elsewhere.status().position == position


def test_an_export_from_before_a_forget_brings_nothing_back(memory, primary, file):
    gone = primary.publish("health/peanuts", FACT, sources=[f"{REF}50#0-9"])
    memory.export(file)
    memory.forget(gone.record_id, 1)

    report = memory.import_file(file)

    assert (report.imported, report.suppressed) == (0, 1)
    assert memory.search("peanuts") == ()
    assert facts(memory, include_inactive=False) == []
    assert memory.remnants(FACT).remnants == ()


def test_a_forget_names_the_exports_that_may_still_tell_of_it(memory, tables, file):
    made = memory.remember(FACT)
    memory.export(file)

    copies = memory.forget(made.record_id, 1).copies

    assert copies == (f"the export {file}, if the record was in it", *tables.leftover)


def test_an_export_is_the_persons_alone(primary, task_7, file):
    for caller in (primary, task_7):
        assert caller.export(file).code == "not_authorized"
    assert not file.exists()


def test_a_file_that_is_there_is_replaced_only_when_asked(life, file):
    file.write_text("mine")

    assert life.export(file).field == "path"
    assert file.read_text() == "mine"
    assert isinstance(life.export(file, replace=True), ExportReport)


def test_no_export_takes_the_place_of_a_file_of_the_ledgers_own(life, folder, tmp_path):
    (tmp_path / "link").symlink_to(folder["state"] / "us_alice")
    slots = folder["state"] / "us_alice" / "slots"
    before = slots.read_bytes()

    for path in (slots, tmp_path / "link" / "slots", folder["data"] / "us_alice" / "new"):
        answer = life.export(path, replace=True)
        assert (answer.code, answer.field) == ("invalid_request", "path")

    assert slots.read_bytes() == before


def test_no_copy_is_put_into_the_folders_of_another_space(life, folder, opened):
    opened("us_bob").close()
    slots = folder["state"] / "us_bob" / "slots"
    before = slots.read_bytes()

    for path in (slots, folder["data"] / "us_bob" / "new"):
        assert life.export(path, replace=True).field == "path"
        assert life.backup(path).field == "destination"

    assert slots.read_bytes() == before
    assert isinstance(life.export(folder["data"] / "export.jsonl"), ExportReport)


def test_no_export_takes_the_place_of_a_file_of_any_backup(life, opened, tmp_path):
    away, theirs = tmp_path / "away", tmp_path / "theirs"
    life.backup(away)
    with opened("us_bob") as bob:
        bob.backup(theirs)
    (tmp_path / "link").symlink_to(away)
    bundle = away / "us_alice" / "keys.bundle"
    files = [*(away / "us_alice").iterdir(), *(theirs / "us_bob").iterdir()]
    assert len(files) == 6

    for path in (*files, tmp_path / "link" / "us_alice" / bundle.name):
        answer = life.export(path, replace=True)
        assert (answer.code, answer.field) == ("invalid_request", "path"), path
    bundle.unlink()
    assert life.export(bundle, replace=True).field == "path"

    assert isinstance(life.export(away / "export.jsonl"), ExportReport)
    life.backup(away)
    assert {it.level for it in life.doctor() if it.name == "backup"} == {"fine"}


def test_while_an_export_is_written_others_open_read_and_commit(life, file, opened, monkeypatch):
    written = exporting._put
    others = []

    def beside(*line: object) -> None:
        written(*line)
        if not others:
            others.append(opened())
            others[0].remember("Said in the meantime.")
            assert others[0].search("meantime")

    monkeypatch.setattr(exporting, "_put", beside)

    report = life.export(file)

    assert isinstance(report, ExportReport), report
    assert "meantime" not in file.read_text()
    assert report.position < others[0].status().position


def test_what_is_forgotten_while_an_export_is_begun_is_not_in_it(life, file, monkeypatch):
    tea = life.search("tea")[0].found.record.id

    @contextmanager
    def then_forget(*wanted: object) -> Iterator[object]:
        with feed.current(*wanted) as found:
            yield found
        assert life.forget(tea, 2).forgotten_at

    monkeypatch.setattr(projection, "current", then_forget)

    assert isinstance(life.export(file), ExportReport)
    assert OTHER not in file.read_text()


@pytest.mark.parametrize("moment", ["before it ends", "once it was read"])
def test_a_forget_at_any_moment_of_an_export_names_the_file_that_tells_of_it(
    memory, file, opened, monkeypatch, moment
):
    made, other = memory.remember(FACT), opened()
    reading, told = memory._parts.export.reading, []

    def forget_then(at: str) -> None:
        if moment == at:
            told.extend(other.forget(made.record_id, 1).copies)

    @contextmanager
    def with_a_forget(caller: object) -> Iterator[object]:
        with reading(caller) as readable:
            yield readable
            forget_then("before it ends")
        forget_then("once it was read")

    monkeypatch.setattr(memory._parts.export, "reading", with_a_forget)

    report = memory.export(file)

    assert isinstance(report, ExportReport), report
    assert FACT in file.read_text()
    assert f"the export {file}, if the record was in it" in told
    assert memory._parts.log.copies.read().paths == (str(file),)
    later = other.remember(OTHER)
    assert f"the export {file}, if the record was in it" in other.forget(later.record_id, 1).copies


def test_an_export_that_fails_leaves_nothing_behind_and_nothing_on_the_list(
    life, file, monkeypatch
):
    life.export(file)
    listed, before = life._parts.log.copies.read(), file.read_text()
    life.remember(FACT)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(exporting._WRITERS, "jsonl", fail)

    assert life.export(file, replace=True).code == "read_only"
    assert life.export(file.with_name("new")).code == "read_only"

    assert life._parts.log.copies.read() == listed
    assert file.read_text() == before
    assert [it.name for it in file.parent.iterdir() if it.is_file()] == [file.name]


def killed_once_written(site: Site, file: Path) -> Path:
    """Lets a process export and dies with the file whole, but under no name of its own yet."""

    def work() -> None:
        written = exporting._WRITERS["jsonl"]

        def die(readable: object, to: TextIO, counts: object) -> None:
            written(readable, to, counts)
            to.flush()
            os.kill(os.getpid(), signal.SIGKILL)

        exporting._WRITERS["jsonl"] = die
        with site.open() as memory:
            memory.export(file, replace=True)

    assert site.end_of(site.start(work)) == -signal.SIGKILL
    (left,) = file.parent.glob(f"{file.name}.*")
    return left


def test_what_a_killed_export_has_left_goes_with_the_next_forget(site, file):
    with site.open() as memory:
        made = memory.remember(FACT)
    left = killed_once_written(site, file)
    assert FACT in left.read_text()

    with site.open() as memory:
        told = memory.forget(made.record_id, 1)

        assert [it for it in told.copies if "export" in it] == []
        assert memory._parts.log.copies.read().paths == ()
    assert not left.exists()
    assert not file.exists()


def test_what_a_killed_export_has_left_out_of_reach_is_named_until_it_goes_or_is_struck_off(
    site, tmp_path
):
    disk, unplugged = tmp_path / "disk", tmp_path / "unplugged"
    disk.mkdir()
    file = disk / "export"
    with site.open() as memory:
        made, other = memory.remember(FACT), memory.remember(OTHER)
        memory.export(file)
    left = killed_once_written(site, file)

    with site.open() as memory:
        disk.rename(unplugged)
        told = memory.forget(made.record_id, 1).copies
        unplugged.rename(disk)
        assert memory.copy_is_gone(left).message == "is still there; remove it first"
        left.rename(tmp_path / "kept")
        assert memory.copy_is_gone(file).message == "is still there; remove it first"
        (tmp_path / "kept").rename(left)
        report = memory.export(file, replace=True)
        after = memory.forget(other.record_id, 1).copies

    named = [f"the export {it}, if the record was in it" for it in (file, left)]
    assert [it for it in told if "export" in it] == named
    assert isinstance(report, ExportReport)
    assert [it for it in after if "export" in it] == named[:1]
    assert [it.name for it in disk.iterdir()] == [file.name]
    assert FACT not in file.read_text()


def test_an_export_that_is_at_its_place_is_told_of_whoever_holds_the_ledger(
    life, file, folder, monkeypatch
):
    written, held = exporting._put, ExitStack()
    tea = life.remember("Soon forgotten.")

    def beside(*line: object) -> None:
        written(*line)
        held.close()
        held.enter_context(flocked(folder["data"] / SPACE / "lock", fcntl.LOCK_EX, 1.0))

    monkeypatch.setattr(exporting, "_put", beside)
    monkeypatch.setattr(life._parts.log._lock, "_wait_s", 0.1)
    with held:
        report = life.export(file)

    assert isinstance(report, ExportReport)
    assert len(lines(file)) > 1
    assert any(str(file) in it for it in life.forget(tea.record_id, 1).copies)


def test_an_export_lets_another_one_end_first_and_leaves_its_file_alone(
    life, file, opened, monkeypatch
):
    written, answers, other = exporting._put, [], opened()

    def beside(*line: object) -> None:
        written(*line)
        if not answers:
            answers.append(other.export(file))

    monkeypatch.setattr(exporting, "_put", beside)
    monkeypatch.setattr(exporting, "BUSY_WAIT_S", 0.1)

    assert isinstance(life.export(file), ExportReport)
    assert answers[0].code == "busy"


def test_what_lies_beside_an_export_stays_as_it_is(life, file):
    beside = file.with_name(f"{file.name}.new")
    beside.write_text("mine")
    folder = file.with_name("folder")
    folder.with_name("folder.new").mkdir(parents=True)
    folder.mkdir()

    assert isinstance(life.export(file), ExportReport)

    assert beside.read_text() == "mine"
    for replace in (False, True):
        assert life.export(folder, replace=replace).field == "path"
    folder.rmdir()
    assert isinstance(life.export(folder), ExportReport)


@pytest.mark.parametrize("path", ["~nobody-here/x", "a\0b", "a\udcffb", 7, None])
def test_what_is_no_path_is_refused_by_every_verb_that_takes_one(life, folder, path):
    settings = load_settings(space=SPACE, **folder)

    answers = [life.export(path), life.backup(path), restore(settings, Stamps(), path)]
    answers.append(life.copy_is_gone(path))

    fields = [(it.code, it.field) for it in answers]
    assert fields == [("invalid_request", it) for it in ("path", "destination", "backup", "path")]


def test_what_else_no_export_or_backup_can_use_is_refused(life, file, tmp_path):
    assert life.export(tmp_path / ("x" * 300)).code == "read_only"
    assert life.export(file, form="xml").field == "form"
    assert life.export(file, form=[]).field == "form"
    for keep in ("3", 0, True, 1.5):
        assert life.backup(tmp_path / "away", keep=keep).field == "keep"
    assert not file.exists()


@pytest.mark.parametrize("name", ["home", "data", "state", "legacy", "passphrase_file"])
def test_a_setting_that_is_no_path_is_refused_by_its_name(folder, name):
    for path in ("~nobody-here/x", "a\0b"):
        with pytest.raises(RefusedError) as refused:
            open_memory(SPACE, **folder | {name: path})

        assert refused.value.refused.field == name


def test_a_place_that_cannot_be_written_is_refused(life, tmp_path):
    assert life.export(tmp_path / "nowhere" / "export").code == "read_only"


def test_an_export_of_another_space_is_refused(life, file, tmp_path, world):
    life.export(file)
    folders = {"data": tmp_path / "b" / "data", "state": tmp_path / "b" / "state"}

    with open_memory("us_bob", **folders, stamps=world.stamps) as bob:
        assert bob.import_file(file).field == "user_space_id"


def test_pages_for_people_quote_each_fact_and_obey_nothing_in_it(memory, tmp_path):
    memory.remember(HOSTILE, key="odd")
    memory.remember(OTHER)
    gone = memory.remember(FACT)
    memory.forget(gone.record_id, 1)

    report = memory.export(tmp_path / "pages.md", form="markdown")

    text = (tmp_path / "pages.md").read_text()
    assert report.records == {"accepted": 2, "forgotten": 1}
    assert f"> {OTHER}\n" in text
    assert "> \\# no heading\n> \\<script\\>" in text
    assert "\x1b" not in text
    assert FACT not in text
    assert "nothing is left to read: 1" in text


def test_a_migrated_block_is_exported_and_blocks_after_the_import(life, file, elsewhere, tmp_path):
    head = {"kind": "store", "format": "memoranda-export/1", "user_space_id": SPACE}
    marks = [head, {"kind": "forgotten_source", "ref": f"{REF}88"}]
    (tmp_path / "marks").write_text("".join(json.dumps(it) + "\n" for it in marks))
    assert life.import_file(tmp_path / "marks").blocked == 1

    assert life.export(file).blocked == 1

    assert elsewhere.import_file(file).blocked == 1


def test_a_key_that_does_not_name_its_record_is_left_behind(memory, file, elsewhere):
    memory.remember(OTHER, key="drink/tea")
    memory.export(file)
    for key in ("drink/coffee", "a\u0000b", 7):
        said = lines(file)
        said[1]["key"] = key
        file.write_text("".join(json.dumps(it) + "\n" for it in said))

        assert elsewhere.import_file(file, dry_run=True).imported == 1

    elsewhere.import_file(file)
    assert [read.key for read in elsewhere.records()] == [None]


def test_the_import_cannot_claim_the_persons_own_hand(memory, file, elsewhere):
    memory.remember(OTHER)
    memory.export(file)
    elsewhere.import_file(file)

    (read,) = elsewhere.records()

    assert [source.kind for source in read.record.sources] == ["legacy"]
    assert isinstance(elsewhere.correct(read.record.id, 1, "Black tea."), Receipt)
