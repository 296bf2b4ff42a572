"""The command line as a person and a script meet it: answers, exit codes, and hostile input."""

import hashlib
import json
import os
import pty
import resource
import signal
import sqlite3
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.tables import Folders, Tables
from typer.main import get_command
from typer.testing import CliRunner

from memoranda.ledger.authority import BackgroundItem, ModelSession
from memoranda.ledger.errors import Refused
from memoranda.ledger.receipts import Receipt
from memoranda.ledger.stamps import Stamps
from memoranda.tools.cli import application, main
from memoranda.tools.cli_capture import LINE_BYTES_MAX
from memoranda.tools.memory import Memory, open_memory

PROGRAM = str(Path(sys.executable).with_name("memoranda"))
HOSTILE = "\x1b]0;gone\x07 [red]x[/red] \u202eabc\u2066 :smile:\n\x9bsecond"
WORDS = "I'll be in Kyoto from 12 to 20 November."


@dataclass(frozen=True)
class Said:
    """What one run said."""

    code: int
    out: str
    err: str

    @property
    def answer(self) -> dict[str, Any]:
        """The one JSON object on standard output."""
        assert self.out.count("\n") == 1
        answer = json.loads(self.out)
        assert isinstance(answer, dict)
        assert answer["ok"] == (self.code == 0)
        assert ("error" in answer) == (self.code != 0)
        return answer

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.answer["error"]
        return error


@dataclass
class Terminal:
    """One person's command line, with the three folders of its own."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    engine: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for url in self.engine.values():
            self.env["MEMORANDA_ENGINE"] = url
        for name in ("data", "state", "home"):
            self.env[f"MEMORANDA_{name.upper()}"] = str(self.folder / name)

    def __call__(self, *arguments: str, given: str | bytes = b"") -> Said:
        """One run inside this process."""
        with CliRunner().isolation(given, {"NO_COLOR": "1", **self.env}) as (out, err, _):
            code = main(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
            return Said(code, out.getvalue().decode(), err.getvalue().decode())

    def start(self, *arguments: str, **more: Any) -> "subprocess.Popen[bytes]":
        """One run in a process of its own."""
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen([PROGRAM, *arguments], env=self.env, **{**streams, **more})

    def memory(self) -> Memory:
        """The same ledger from Python."""
        return open_memory("me", **self.folders)

    @property
    def folders(self) -> Folders:
        return Folders({it: self.folder / it for it in ("data", "state", "home")} | self.engine)

    def remembered(self, text: str, *more: str) -> str:
        """The id of a fact that is remembered now."""
        return str(self("remember", text, *more, "--json").answer["receipt"]["record_id"])

    def proposed(self, content: str = "Lin will be in Kyoto.", text: str = WORDS) -> str:
        """The id of a candidate that a background item proposed from the first message."""
        said = {"session": "s", "seq": 1, "role": "user", "text": text, "at": "2024-09-22"}
        with self.memory() as memory:
            _ = list(memory.capture([said]))
            memory.host.bind_primary("s")
            memory.host.open_task(item_id="i", captured_ref="personal-message:s:1")
            memory.host.authorize(
                authorization_id="l", item_id="i", requirement_revision=1, executor_session_id="x"
            )
            item = memory.acting_as(BackgroundItem("i", 1, "x", "agent", "l"))
            receipt = item.propose("travel/kyoto", content, sources=["personal-message:s:1#0-4"])
        assert isinstance(receipt, Receipt)
        return str(receipt.record_id)


@pytest.fixture
def run(tmp_path: Path, engine: dict[str, str]) -> Terminal:
    return Terminal(tmp_path, engine=engine)


def lines(*messages: object) -> str:
    return "".join(json.dumps(message) + "\n" for message in messages)


def left_open(run: Terminal, operation_id: str = "op-left") -> str:
    """The id of an operation that was prepared, and has no end."""
    with run.memory() as memory:
        request = {"name": "publish", "operation_id": operation_id, "key": "tea", "content": WORDS}
        assert not isinstance(memory.prepare(request), Refused)
    return operation_id


# -- what a crash left open -----------------------------------------------------------------


def test_who_meets_a_record_that_is_held_is_told_which_operation_holds_it(run: Terminal) -> None:
    left_open(run)

    for more in ([], ["--json"]):
        held = run("remember", WORDS, "--key", "tea", "--operation", "op-mine", *more)
        assert held.code == 3
        assert "another operation holds the record" in held.out + held.err
        assert "`memoranda operations op-left`" in held.out + held.err

    run("reconcile", "op-left", "--writers-stopped", "--reason", "nobody writes it")
    assert run("remember", WORDS, "--key", "tea", "--operation", "op-mine").code == 0


def test_an_operation_without_an_end_is_listed_shown_and_settled(run: Terminal) -> None:
    left_open(run)

    listed, shown = run("operations"), run("operations", "op-left")
    assert "prepared" in listed.out
    assert "memoranda reconcile op-left --writers-stopped" in listed.out
    assert WORDS not in listed.out
    assert WORDS in shown.out
    assert "1: `memoranda operations`" in run("status").out

    settled = run("reconcile", "op-left", "--writers-stopped", "--reason", "host crashed", "--json")
    assert settled.code == 0
    assert settled.answer["receipt"]["outcome"] == "aborted"
    (line,) = run("operations", "--json").answer["operations"]
    assert (line["operation_id"], line["state"]) == ("op-left", "aborted")
    assert "host crashed" in run("operations", "op-left").out
    assert run("status", "--json").answer["unfinished"] == 0
    assert run("audit", "verify").code == 0


def test_reconcile_says_what_it_needs_and_changes_nothing_without(run: Terminal) -> None:
    left_open(run)

    for words in ([], ["--writers-stopped"], ["--reason", "x"]):
        refused = run("reconcile", "op-left", *words)
        assert refused.code == 1
        assert refused.err.startswith("reconcile_refused: ")
        assert "--writers-stopped --reason TEXT" in refused.err
    unknown = run("reconcile", "op-nowhere", "--writers-stopped", "--reason", "x")
    assert unknown.err.startswith("not_found: ")
    assert run("status", "--json").answer["unfinished"] == 1


def test_reconciling_what_was_committed_keeps_its_receipt(run: Terminal) -> None:
    receipt = run("remember", WORDS, "--operation", "op-1", "--json").answer["receipt"]

    settled = run("reconcile", "op-1", "--writers-stopped", "--reason", "late", "--json")

    assert settled.answer["receipt"] == receipt


def test_there_may_be_no_operations_and_a_state_must_exist(run: Terminal) -> None:
    run("init")

    assert "There are none." in run("operations").out
    assert run("operations", "--state", "lost").code == 1
    assert run("operations", "op-nowhere").err.startswith("not_found: ")


# -- the space ------------------------------------------------------------------------------


def test_init_creates_the_space_and_shows_the_recovery_code_this_once(run: Terminal) -> None:
    first, second = run("init"), run("init")

    assert (first.code, second.code) == (0, 0)
    assert "is ready" in first.out
    assert "recovery code" in first.err
    assert "exists already" in second.out
    assert second.err == ""


def test_init_answers_programs_with_the_recovery_code_as_a_field(run: Terminal) -> None:
    first, second = run("init", "--json"), run("--json", "init")

    assert first.answer["created"] is True
    assert second.answer["created"] is False
    assert "recovery_code" not in second.answer
    code = str(first.answer["recovery_code"])
    checked = run("keys", "recovery", "--check", given=f"{code}\n")
    assert (first.err, checked.code) == ("", 0)


def test_a_recovery_code_is_shown_even_when_the_first_write_is_refused(run: Terminal) -> None:
    refused = run("remember", "my password: hunter2secret9")

    assert refused.code == 1
    assert refused.err.startswith("secret_detected: ")
    assert "recovery code" in refused.err
    again = run("--space", "other", "remember", "my password: hunter2secret9", "--json")
    assert again.answer["recovery_code"]
    assert "hunter2" not in refused.out + refused.err


@pytest.mark.parametrize(
    "command", ["list", "candidates", "status", "audit verify", "keys rotate", "show mem_123456"]
)
def test_an_unknown_space_is_refused_and_nothing_is_created(run: Terminal, command: str) -> None:
    refused = run(*command.split())

    assert refused.code == 1
    assert refused.err.startswith("space_unknown: ")
    assert "memoranda init" in refused.err
    assert not (run.folder / "data").exists()


def test_options_win_over_variables_and_variables_over_the_file(run: Terminal) -> None:
    (run.folder / "home").mkdir()
    (run.folder / "home" / "config.toml").write_text('space = "from-file"\n')

    by_file = run("init", "--json").answer["space"]
    run.env["MEMORANDA_SPACE"] = "from-variable"
    by_variable = run("init", "--json").answer["space"]
    by_option = run("--space", "from-option", "init", "--json").answer["space"]

    assert (by_file, by_variable, by_option) == ("from-file", "from-variable", "from-option")


def test_a_setting_that_does_not_fit_is_refused_by_its_name(run: Terminal) -> None:
    refused = run("--space", "a/b", "init", "--json")

    assert refused.code == 1
    assert (refused.error["code"], refused.error["field"]) == ("invalid_request", "space")


def test_status_counts_and_says_nothing_personal(run: Terminal) -> None:
    run.remembered("Lin takes her tea without milk", "--key", "drink/tea")
    run.proposed()

    answer, words = run("status", "--json").answer, run("status").out

    assert answer["records"] == {"accepted": 1, "candidate": 1}
    assert answer["candidates"] == 1
    assert str(run.folder / "data" / "me") in words
    assert "tea" not in words + json.dumps(answer)


# -- facts ----------------------------------------------------------------------------------


def test_a_fact_is_remembered_listed_and_shown(run: Terminal) -> None:
    record_id = run.remembered("我家猫叫汤圆", "--key", "pet/cat", "--expires", "2999-01-01")

    listed, shown = run("list"), run("show", record_id)

    assert f"{record_id[:14]}  1    accepted  detail" in listed.out
    assert listed.out.splitlines()[1].endswith("我家猫叫汤圆")
    assert "expires     2999-01-01 00:00 UTC" in shown.out
    assert run("show", "--key", " Pet/Cat ").out == shown.out
    assert run("show", record_id, "--json").answer["key"] == "pet/cat"
    (entry,) = run("list", "--json").answer["records"]
    assert entry["record"]["id"] == record_id


def test_what_is_piped_is_neither_cut_nor_padded_nor_coloured(run: Terminal) -> None:
    run.remembered("long " * 400, "--key", "long")

    listed = run("list").out

    assert ("long " * 400).strip() in listed
    assert all(row == row.rstrip() for row in listed.splitlines())
    assert "\x1b" not in listed


def test_a_fact_can_come_from_a_pipe_so_that_no_shell_keeps_it(run: Terminal) -> None:
    assert run("remember", "-", given="Lin has a sister\n").code == 0
    assert run("list").out.endswith("Lin has a sister\n")


def test_bytes_that_are_no_text_are_refused_by_name(run: Terminal) -> None:
    process = run.start("remember", "-", "--json")
    out, err = process.communicate(b"caf\xe9")

    assert (process.returncode, err) == (1, b"")
    assert json.loads(out)["error"]["field"] == "content"


def test_a_fact_that_is_known_already_names_its_record(run: Terminal) -> None:
    record_id = run.remembered("Lin takes her tea without milk")

    refused = run("remember", "Lin takes her  TEA without milk")

    assert refused.code == 1
    assert refused.err.startswith("revision_conflict: ")
    assert f"memoranda correct {record_id[:14]}" in refused.err


def test_a_retried_operation_answers_with_its_first_receipt(run: Terminal) -> None:
    record_id = run.remembered("Lin is well", "--operation", "op-1")
    corrected = ("correct", record_id, "Lin is very well", "--operation", "op-2", "--json")
    first = run(*corrected).answer["receipt"]

    again = run(*corrected).answer["receipt"]
    other = run("correct", record_id, "Lin is ill", "--operation", "op-2", "--json")

    assert again == {**first, "replayed": True}
    assert other.code == 1
    assert (other.error["code"], other.answer["operation_id"]) == ("operation_conflict", "op-2")
    assert "Done before" in run(*corrected[:-1]).out


def test_a_fresh_operation_id_is_printed(run: Terminal) -> None:
    assert "\nOperation op-" in run("remember", "Lin is well").out


# -- decisions ------------------------------------------------------------------------------


def test_a_record_goes_through_its_whole_life(run: Terminal) -> None:
    name = run.remembered("Lin lives in Chengdu", "--key", "home")[:14]

    steps = [
        run("correct", name, "Lin lives in Lisbon", "--effective", "2024-03-01"),
        run("core", "add", name),
        run("core", "drop", name),
        run("retire", name, "--reason", "for the test"),
        run("reactivate", name),
        run("correct", name, "Lin lives in Porto", "--effective", "none", "--expect", "6"),
    ]
    history = run("show", name, "--history").out
    forgotten = run("forget", name)

    assert [step.code for step in (*steps, forgotten)] == [0] * 7
    for deed in ("published", "corrected", "moved to core", "moved to detail", "retired"):
        assert deed in history
    assert history.count("you") == 7
    assert "effective" not in history
    assert "Lisbon" not in run("show", name, "--history").out
    assert run("list").out == "Nothing is remembered yet: `memoranda remember TEXT` keeps a fact.\n"
    assert f"{name}  8    forgotten" in run("list", "--all").out


def test_what_a_model_forgot_is_listed_taken_back_or_let_go_of(run: Terminal) -> None:
    run.env["MEMORANDA_FORGET_WINDOW_HOURS"] = "24"
    record_id = run.proposed()
    named = {"expected_revision": 1, "reason": "wrong"}
    with open_memory("me", **run.folders, forget_window_hours=24) as memory:
        primary = memory.acting_as(ModelSession("s", "agent-main"))
        assert primary.forget(record_id, **named).erased_at is None

    listed, finished = run("forgotten", "list").out, run("forgotten", "finish").out
    assert "wrong, by session s (agent-main), revision 1 held for you until 20" in listed
    assert "memoranda forgotten take-back RECORD" in listed
    assert "Not erased yet: held for the person until 20" in finished
    assert "held  position" in run("forgotten", "prove", "Lin will be").out
    assert run("doctor").out.count("can be taken back") == 1
    back = run("forgotten", "take-back", record_id[:14], "--json")
    assert back.answer["receipt"]["status"] == "accepted"
    assert run("forgotten", "take-back", record_id, "--held", "1").out.startswith("Taken back:")
    assert run("forgotten", "take-back", record_id, "--held", "7").err.startswith("invalid_trans")
    assert "erased from every file" in run("forgotten", "finish", "--now").out
    assert run("forgotten", "take-back", record_id).code == 1
    assert run("forget", record_id, "--reason", "no such").code == 2
    assert run("forget", record_id, "--reason", "requested").code == 0
    assert "requested, by you" in run("forgotten", "list").out
    assert run("audit", "verify").code == 0


def test_a_stale_revision_is_refused_with_the_current_one(run: Terminal) -> None:
    record_id = run.remembered("Lin is well")
    run("core", "add", record_id)

    refused = run("retire", record_id, "--expect", "1")

    assert refused.code == 1
    assert f"memoranda show {record_id[:14]}" in refused.err
    assert "--expect 2" in refused.err
    assert run("retire", record_id, "--expect", "1", "--json").error["current_revision"] == 2


def test_a_candidate_is_shown_with_its_evidence_and_accepted_as_inspected(run: Terminal) -> None:
    record_id = run.proposed()

    waiting, evidence = run("candidates"), run("evidence", record_id)
    accepted = run("accept", record_id, "--expect", "1")

    assert "Lin will be in Kyoto." in waiting.out
    assert WORDS in evidence.out
    assert "Cited: I'll" in evidence.out
    assert "--expect 1" in evidence.out
    assert accepted.out.startswith(f"Accepted {record_id[:14]}, revision 2.")
    assert run("candidates", "--json").answer["candidates"] == []


def test_a_retried_acceptance_needs_no_revision_again(run: Terminal) -> None:
    record_id = run.proposed()
    run("accept", record_id, "--expect", "1", "--operation", "op-a")

    again = run("accept", record_id, "--operation", "op-a", "--json")

    assert again.answer["receipt"]["replayed"] is True


def test_evidence_says_which_source_does_not_hold_any_more(run: Terminal) -> None:
    record_id = run.proposed()
    hidden = {"session": "s", "seq": 1, "role": "user", "text": WORDS, "at": "2024-09-22"}
    run("capture", given=lines({**hidden, "hidden": True}))

    evidence = run("evidence", record_id)

    assert "source_rejected" in evidence.out
    assert WORDS not in evidence.out


def test_accepting_without_a_terminal_needs_the_inspected_revision(run: Terminal) -> None:
    record_id = run.proposed()

    asked, asked_json = run("accept", record_id), run("accept", record_id, "--json")

    assert (asked.code, asked_json.code) == (2, 2)
    assert "--expect" in asked.err
    assert asked_json.error["code"] == "usage"
    assert len(run("candidates", "--json").answer["candidates"]) == 1


@pytest.mark.parametrize(("typed", "code", "status"), [("y\n", 0, "accepted"), ("n\n", 1, "candi")])
def test_on_a_terminal_the_evidence_is_shown_and_the_person_asked(
    run: Terminal, typed: str, code: int, status: str
) -> None:
    record_id = run.proposed()
    ours, theirs = pty.openpty()

    process = run.start("accept", record_id, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, typed.encode())
    shown = _read_all(ours)

    assert process.wait() == code
    assert WORDS.encode()[4:] in shown
    assert b"Accept it?" in shown
    assert status in run("list", "--all").out


def _read_all(terminal: int) -> bytes:
    """Everything until the other side hangs up, which Linux tells as an error."""
    shown = b""
    try:
        while part := os.read(terminal, 65_536):
            shown += part
    except OSError:
        pass
    finally:
        os.close(terminal)
    return shown


def test_a_rejected_candidate_keeps_its_reason(run: Terminal) -> None:
    record_id = run.proposed()

    rejected = run("reject", record_id, "--reason", "only a dream")

    assert rejected.code == 0
    assert "only a dream" in run("show", record_id).out
    assert "only a dream" in run("audit", "explain", record_id).out


def test_a_beginning_names_a_record_only_while_no_other_begins_so(run: Terminal) -> None:
    one, other = _two_keys_whose_ids_begin_alike()
    record_id = run.remembered("one", "--key", one)
    by_beginning = run("show", record_id[:10])
    run.remembered("other", "--key", other)

    ambiguous, longer = run("show", record_id[:10], "--json"), run("show", record_id[:16])

    assert by_beginning.code == longer.code == 0
    assert ambiguous.error["code"] == "not_found"
    assert "more digits" in str(ambiguous.error["message"])


def _two_keys_whose_ids_begin_alike() -> tuple[str, str]:
    seen: dict[str, str] = {}
    for number in range(100_000):
        key = f"key/{number}"
        beginning = hashlib.sha256(key.encode()).hexdigest()[:6]
        if beginning in seen:
            return seen[beginning], key
        seen[beginning] = key
    raise AssertionError("among 100,000 ids some begin alike")


@pytest.mark.parametrize("name", ["mem_12345", "mem_XYZXYZ", "123456", "", "mem_" + "0" * 65])
def test_what_is_no_record_id_is_refused(run: Terminal, name: str) -> None:
    run("init")

    assert run("show", name, "--json").error["field"] == "record"


@pytest.mark.parametrize("name", ["mem_123456", "mem_" + "0" * 64])
def test_a_record_that_is_not_there_is_not_found(run: Terminal, name: str) -> None:
    run("init")

    assert run("forget", name, "--json").error["code"] == "not_found"


# -- capture --------------------------------------------------------------------------------


def test_capturing_the_same_lines_again_changes_nothing(run: Terminal) -> None:
    given = lines(*({"role": "user", "text": f"message {n}"} for n in range(150)))

    first, second = run("capture", given=given), run("capture", "--json", given=given)

    assert first.out == "Captured 150, already there 0, refused 0.\n"
    assert (second.answer["captured"], second.answer["already_there"]) == (0, 150)


def test_lines_have_their_place_in_their_session_unless_they_say_so(run: Terminal) -> None:
    given = lines(
        {"role": "user", "text": "first"},
        {"role": "user", "text": "elsewhere", "session": "b"},
        {"role": "user", "text": "second"},
        {"role": "user", "text": "seventh", "seq": 7},
    )
    run("capture", "--session", "a", "--primary", given=given)

    with run.memory() as memory:
        found = {
            ref: not hasattr(memory.source(f"personal-message:{ref}"), "refusal")
            for ref in ("a:1", "a:2", "a:3", "a:7")
        }
        elsewhere = memory.source("personal-message:b:1")

    assert found == {"a:1": True, "a:2": True, "a:3": False, "a:7": True}
    assert elsewhere.code == "source_not_bound"


def test_a_refused_line_is_named_and_the_others_go_on(run: Terminal) -> None:
    deep = "[" * 100_000
    given = lines({"role": "user", "text": "good"}) + "\n" + "{broken\n" + deep + "\n[1]\n"
    given += lines({"role": "user", "text": "x", "colour": "red"}, {"role": "user", "text": "end"})

    words, answer = run("capture", given=given), run("capture", "--json", given=given).answer

    assert words.code == 1
    assert words.out == "Captured 2, already there 0, refused 4.\n"
    assert words.err.startswith("line 3: invalid_request: is not JSON, or names a field twice\n")
    assert "line 6: invalid_request: colour: is not a parameter of this call" in words.err
    refusals = answer["refusals"]
    assert [refusal["line"] for refusal in refusals] == [3, 4, 5, 6]


def test_mending_a_refused_line_moves_no_other_message(run: Terminal) -> None:
    run("capture", given="{broken\n" + lines({"role": "user", "text": "second"}))

    mended = run(
        "capture",
        "--json",
        given=lines({"role": "user", "text": "first"}, {"role": "user", "text": "second"}),
    ).answer

    assert (mended["captured"], mended["already_there"]) == (1, 1)


def test_a_line_without_end_is_refused_and_not_held(run: Terminal) -> None:
    given = b'{"role": "user", "text": "' + b"x" * (2 * LINE_BYTES_MAX) + b'"}\n'
    given += lines({"role": "user", "text": "good"}).encode()

    answer = run("capture", "--json", given=given).answer

    assert (answer["captured"], answer["refused"]) == (1, 1)
    assert answer["error"]["code"] == "limit_exceeded"


def test_a_file_can_be_captured_and_a_missing_one_is_usage(run: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "said.jsonl"
    path.write_text(lines({"role": "user", "text": "hello", "session": "s-1"}))

    captured, missing = run("capture", str(path), "--primary"), run("capture", "nowhere")

    assert captured.out.endswith("The primary session is now s-1.\n")
    assert missing.code == 2


# -- keys and proof -------------------------------------------------------------------------


def test_a_recovery_code_can_be_renewed_and_checked(run: Terminal) -> None:
    old = str(run("init", "--json").answer["recovery_code"])

    new = str(run("keys", "recovery", "--json").answer["recovery_code"])
    right = run("keys", "recovery", "--check", given=new.lower() + "\n")
    wrong = run("keys", "recovery", "--check", "--json", given=old + "\n")

    assert right.code == 0
    assert (wrong.code, wrong.answer["is_valid"]) == (1, False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["words", "json"])
def test_a_new_recovery_code_that_nobody_sees_leaves_the_one_before_in_force(
    run: Terminal, form: list[str]
) -> None:
    old = str(run("init", "--json").answer["recovery_code"])

    with Path("/dev/full").open("wb") as full:
        nowhere = run.start("keys", "recovery", *form, stdout=full)
        nowhere.communicate()
    closed = run.start("keys", "recovery", *form, preexec_fn=lambda: os.close(1))
    closed.communicate()

    assert (nowhere.returncode, closed.returncode) == (5, 5)
    assert run("keys", "recovery", "--check", given=f"{old}\n").code == 0


def test_keys_rotate_puts_the_next_epoch_in_force(run: Terminal) -> None:
    run.remembered("Lin is well")

    assert "Key epoch 2" in run("keys", "rotate").out
    assert run("status", "--json").answer["key_epoch"] == 2
    assert "Lin is well" in run("list").out


def test_a_whole_log_is_verified_with_what_was_checked(run: Terminal) -> None:
    run.remembered("Lin is well")

    verified = run("audit", "verify")
    report = run("audit", "verify", "--json").answer["report"]

    assert verified.code == 0
    assert "The log is whole" in verified.out
    assert (report["events"], report["findings"]) == (2, [])


def test_a_changed_log_is_an_integrity_finding_by_its_position(run: Terminal) -> None:
    record_id = run.remembered("Lin is well")
    log = Tables(run.folders, space="me")
    log.change("UPDATE bodies SET sealed = ? WHERE position = 2", bytes(60))

    words, answer = run("audit", "verify"), run("audit", "verify", "--json")
    read = run("show", record_id, "--json")

    assert (words.code, answer.code, read.code) == (4, 4, 4)
    assert words.err.startswith("integrity_finding: ")
    assert "seal" in words.out
    assert answer.answer["report"]["findings"][0]["position"] == 2
    assert read.error["code"] == "integrity_fault"


# -- what nobody may do to a terminal -------------------------------------------------------


def test_stored_text_reaches_no_terminal_raw(run: Terminal) -> None:
    record_id = run.proposed(HOSTILE, HOSTILE)
    run.remembered(HOSTILE)
    run("reject", record_id, "--reason", HOSTILE)
    commands = ["list --all", f"show {record_id} --history", f"audit explain {record_id}"]

    said = [run(*command.split(), *more) for command in commands for more in ((), ("--json",))]

    for out in (it.out for it in said):
        assert not {"\x1b", "\x07", "\x9b", "\u202e", "\u2066"}.intersection(out)
    assert "[red]x[/red]" in said[0].out
    assert ":smile:" in said[0].out
    assert r"\x1b]0;gone\x07" in said[0].out
    assert said[3].answer["record"]["content"] == HOSTILE


def test_evidence_escapes_both_the_candidate_and_the_message(run: Terminal) -> None:
    evidence = run("evidence", run.proposed(HOSTILE, HOSTILE)).out

    assert not {"\x1b", "\x07", "\x9b", "\u202e"}.intersection(evidence)
    assert evidence.count(r"\u202e") == 2


def test_words_and_emoji_stay_what_they_are(run: Terminal) -> None:
    text = "家\u3000人 👨\u200d👩\u200d👧 café"

    run.remembered(text)

    assert text in run("list").out
    assert text in run("list", "--json").out


def test_hostile_arguments_are_escaped_in_refusals(run: Terminal) -> None:
    refused = run("--\x1b[31mx")

    assert refused.code == 2
    assert "\x1b" not in refused.err


def test_an_encoding_that_knows_no_chinese_still_gets_valid_answers(run: Terminal) -> None:
    run.remembered("我家猫叫汤圆 😀", "--key", "猫")
    run.env["PYTHONIOENCODING"] = "ascii"

    words, _ = run.start("list").communicate()
    answer, _ = run.start("list", "--json").communicate()

    assert rb"\u6211" in words
    assert json.loads(answer.decode("ascii"))["records"][0]["key"] == "猫"


# -- usage, faults, signals -----------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "bogus",
        "core",
        "core bogus",
        "--bogus",
        "show",
        "list --limit 0",
        "retire",
        "init extra",
    ],
)
def test_a_usage_error_is_told_to_people_and_programs(run: Terminal, arguments: str) -> None:
    words, answer = run(*arguments.split()), run("--json", *arguments.split())

    assert (words.code, answer.code) == (2, 2)
    assert answer.error["code"] == "usage"
    assert "--help" in words.out + words.err


def test_the_version_is_told(run: Terminal) -> None:
    assert run("--version").out.startswith("memoranda ")
    assert run("--version", "--json").answer["version"]


def test_every_command_takes_json_and_every_writing_one_an_operation() -> None:
    on_records = {"accept", "reject", "correct", "add", "drop", "retire", "reactivate", "forget"}
    on_records.add("take-back")

    options = dict(_options_by_command(get_command(application())))

    assert len(options) == 40
    assert all("--json" in known for known in options.values())
    assert {name for name, known in options.items() if "--operation" in known} == {
        "remember",
        "undo",
        *on_records,
    }
    assert {name for name, known in options.items() if "--expect" in known} == on_records


def _options_by_command(command: object) -> list[tuple[str, set[str]]]:
    inner: dict[str, object] = getattr(command, "commands", {})
    if inner:
        return [found for one in inner.values() for found in _options_by_command(one)]
    parameters: list[object] = getattr(command, "params", [])
    names = {name for parameter in parameters for name in getattr(parameter, "opts", [])}
    return [(str(getattr(command, "name", "")), names)]


def test_verbose_says_one_line_per_operation_and_no_content(run: Terminal) -> None:
    said = run("--verbose", "remember", "Lin is well")
    silent = run("remember", "Lin is very well")

    assert "event='publish' outcome='committed'" in said.err
    assert "Lin" not in said.err
    assert silent.err == ""


def test_help_does_not_wait_for_the_ledger() -> None:
    statement = "import sys, memoranda.tools.cli; sys.exit('pydantic' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", statement], check=False).returncode == 0


def _file_limit(size: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_disk_that_takes_nothing_is_a_fault(run: Terminal) -> None:
    run("init")

    process = run.start("remember", "Lin is well", "--json", preexec_fn=_file_limit(8192))
    out, err = process.communicate()

    assert (process.returncode, err) == (5, b"")
    assert json.loads(out)["error"]["code"] == "fault"


@pytest.mark.sqlite("a file that may not grow")
def test_a_fault_at_the_durable_write_is_an_unknown_outcome(run: Terminal) -> None:
    run("init")
    # Large and without pattern, so that the write-ahead log outgrows what the disk takes.
    text = "".join(hashlib.sha256(str(number).encode()).hexdigest() for number in range(3000))
    given = lines({"role": "user", "text": text}).encode()

    process = run.start("capture", preexec_fn=_file_limit(48 * 1024))
    _, err = process.communicate(given)
    again = run("capture", given=given)

    assert process.returncode == 3
    assert err.startswith(b"outcome_unknown: ")
    assert b"again" in err
    assert again.code == 0


def test_a_reader_that_goes_away_ends_the_run_quietly(run: Terminal) -> None:
    run.remembered("long " * 1000)

    reading, writing = os.pipe()

    process = run.start("list", stdout=writing)
    os.close(writing)
    os.close(reading)
    _, err = process.communicate()

    assert (process.returncode, err) == (130, b"")


def test_an_answer_that_nobody_can_read_names_its_operation(run: Terminal) -> None:
    with Path("/dev/full").open("wb") as full:
        process = run.start("remember", "Lin is well", "--operation", "op-1", stdout=full)
        _, err = process.communicate()

    assert process.returncode == 3
    assert b"outcome_unknown" in err
    assert b"memoranda operations op-1" in err
    assert run("operations", "op-1").code == 0


def test_an_interrupt_ends_the_run_quietly(run: Terminal) -> None:
    run("init")
    # Who runs the tests in the background has interrupts ignored, and children inherit that.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = run.start("capture", preexec_fn=heed)
    assert process.stdin is not None
    process.stdin.write(lines({"role": "user", "text": "x"}).encode() * 64)
    process.stdin.flush()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and run("status", "--json").answer["position"] == 1:
        time.sleep(0.05)

    process.send_signal(signal.SIGINT)
    _, err = process.communicate()

    assert (process.returncode, err) == (130, b"")


def test_a_process_without_streams_ends_like_any_other(run: Terminal) -> None:
    run("init")

    process = run.start("status", preexec_fn=lambda: os.closerange(0, 3))
    process.communicate()

    assert process.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
def test_an_answer_that_cannot_be_written_is_a_fault(run: Terminal) -> None:
    run("init")
    with Path("/dev/full").open("w") as full:
        process = run.start("status", stdout=full)
    _, err = process.communicate()

    assert process.returncode == 5
    assert err == b"fault: the answer could not be written: No space left on device\n"


# -- recall ---------------------------------------------------------------------------------


def test_recall_shows_each_zone_with_its_meter_and_one_block_for_a_model(run: Terminal) -> None:
    run.remembered("Lin lives in Lisbon")

    words, answer = run("recall", "lisbon"), run("recall", "lisbon", "--step", "s", "--json")
    block = run("recall", "lisbon", "--render", "400", "--json")

    assert "recent [" in words.out
    assert "19 of 1,500 bytes, 1 facts" in words.out
    assert [zone["name"] for zone in answer.answer["zones"]] == ["core", "recent", "detail"]
    assert answer.answer["step"] == "s"
    assert len(block.answer["text"].encode()) <= 400
    assert "<memory>" in run("recall", "--render", "400").out


def test_search_and_query_find_by_words_and_by_filters_page_by_page(run: Terminal) -> None:
    ids = [run.remembered(f"Lin 喝茶 number {number}") for number in range(3)]

    found = run("search", "喝茶", "--json").answer["found"]
    page = run("query", "--limit", "2", "--json").answer
    rest = run("query", "--limit", "2", "--cursor", page["next_cursor"], "--json").answer
    stale = run("query", "--tier", "core", "--cursor", page["next_cursor"], "--json")

    assert sorted(it["found"]["record"]["id"] for it in found) == sorted(ids)
    assert [len(page["records"]), len(rest["records"])] == [2, 1]
    assert (stale.code, stale.error["code"]) == (1, "cursor_invalid")
    assert "Nothing matches." in run("search", "coffee").out
    assert "--cursor" in run("query", "--limit", "2").out


def test_what_a_forget_of_one_takes_is_shown_first_when_asked(run: Terminal) -> None:
    record = run.remembered("Ann plays the cello")

    assert "Ann plays the cello" in run("forget", record, "--dry-run").out
    answer = run("forget", record, "--dry-run", "--json").answer["would_fall"]

    assert [it["record_id"] for it in answer["records"]] == [record]
    assert "Ann plays the cello" in run("list").out
    assert run("forget", record, "--everything", "--dry-run").code == 2
    mistyped = run("forget", "--source", "personal-mesage:main:1", "--dry-run")
    assert "Is it spelled as stored?" in mistyped.out


def test_a_file_that_cannot_be_written_or_read_is_not_blamed_on_the_ledgers_folders(
    run: Terminal,
) -> None:
    run.remembered("Lin is well")
    nowhere = str(run.folder / "nowhere" / "file")
    (run.folder / "in the way").write_text("")

    for command in (
        ("export", nowhere), ("import", nowhere), ("backup", str(run.folder / "in the way")),
    ):  # fmt: skip
        error = run(*command, "--json").error
        assert "data and state" not in error["rule"]
        assert "earlier store" not in error["rule"]
        assert error["field"] in {"path", "file", "destination"}


def test_an_interrupted_forget_of_many_says_how_far_it_is_and_goes_on(run: Terminal) -> None:
    with run.memory() as memory:
        memory.commit_many(
            {"name": "publish", "operation_id": f"op-{n}", "key": f"k{n}", "content": f"Fact {n}"}
            for n in range(400)
        )
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        with run.start("forget", "--everything", "--yes", preexec_fn=heed) as process:
            while not memory.status().records.get("forgotten"):
                assert process.poll() is None, process.communicate()
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            err = process.communicate()[1].decode()
        left = memory.status().records["accepted"]

    assert process.returncode == 130
    assert "of 400 records were forgotten for good" in err
    assert "again" in err
    assert 0 < left < 400
    again = run("forget", "--everything", "--yes", "--json").answer["report"]
    assert (again["forgotten"], again["pending"]) == (left, [])


def test_what_is_held_past_its_window_by_a_host_that_is_away_is_told(run: Terminal) -> None:
    stamps = Stamps(now=lambda: Stamps().now() - timedelta(hours=30))
    away = {**run.folders, "host": "server", "forget_window_hours": 24}
    with open_memory("me", stamps=stamps, **away) as memory:
        memory.host.bind_primary("s")
        made = memory.remember("Lin had a secret garden")
        memory.acting_as(ModelSession("s", "agent")).forget(made.record_id, 1)

    for command in (["status"], ["forgotten", "list"]):
        assert run(*command, "--json").answer["overdue"] == 1
        shown = " ".join(run(*command).out.split())
        assert "1 held past the window" in shown
        assert "memoranda forgotten finish --now" in shown

    assert run("forgotten", "finish", "--now").code == 0
    for command in (["status"], ["forgotten", "list"]):
        assert run(*command, "--json").answer["overdue"] == 0
        assert "past the window" not in run(*command).out


def test_a_forget_is_proven_by_searching_everything(run: Terminal) -> None:
    record = run.remembered("Lin had a secret garden")
    before = run("forgotten", "prove", "secret garden", "--json").answer["remnants"]
    assert [it["kind"] for it in before] == ["record"]

    assert run("forget", record, "--with-sources").code == 0

    assert run("forgotten", "prove", "caf\udce9").code == 1
    assert "found nowhere" in run("forgotten", "prove", "-", given="secret garden\n").out
    (tombstone,) = run("forgotten", "list", "--json").answer["records"]
    assert tombstone["record"]["id"] == record
    assert run("rebuild", "--json").answer["events"] > 2
    assert run("forgotten", "prove", "").code == 1


def test_a_short_id_is_found_among_many_records(run: Terminal) -> None:
    with run.memory() as memory:
        ids = [memory.remember(f"fact {number}").record_id for number in range(150)]

    shown = [run("show", f"{ids[at][:20]}", "--json") for at in (0, 149)]

    assert [it.answer["record"]["id"] for it in shown] == [ids[0], ids[149]]


def test_capture_follows_a_growing_file_until_it_is_gone(run: Terminal) -> None:
    file = run.folder / "chat.jsonl"
    file.write_text(lines({"role": "user", "text": "one"}) + '{"role": "us')
    following = run.start("capture", "--follow", str(file), "--json")
    with run.memory() as memory:
        _wait_for(lambda: memory.status().position >= 2)
        with file.open("a") as stream:
            stream.write('er", "text": "two"}\n')
        _wait_for(lambda: memory.status().position >= 3)

    file.unlink()

    out, _ = following.communicate(timeout=10)
    assert json.loads(out)["captured"] == 2
    assert run("capture", "--follow").code == 2


def _wait_for(is_so: "Callable[[], bool]") -> None:
    for _ in range(200):
        if is_so():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen in ten seconds")


# -- copies ---------------------------------------------------------------------------------


def elsewhere(run: Terminal, name: str = "new") -> Terminal:
    """The same person on an empty machine."""
    return Terminal(run.folder / name)


def test_a_ledger_is_backed_up_lost_and_restored_with_the_code(run: Terminal) -> None:
    code = run("init", "--json").answer["recovery_code"]
    gone, away = run.remembered("Lin likes plums"), str(run.folder / "away")
    run.remembered("Lin is well")
    made = run("backup", away, "--keep", "3")
    assert made.code == 0
    assert "verified" in made.out
    assert run("forget", gone).code == 0
    empty = elsewhere(run)

    assert empty("restore", away, "--json").error["field"] == "recovery"
    wrong = empty("restore", away, "--recovery", "--json", given="AAAA-BBBB\n")
    assert wrong.error["field"] == "recovery"
    assert "AAAA" not in wrong.out + wrong.err
    said = empty("restore", away, "--recovery", given=f"{code}\n")

    assert said.code == 0, said
    assert "Forgotten again, since the copy was made: 1." in said.out
    assert "Gone: at least" in said.out
    assert "Lin is well" in empty("list").out
    assert empty("search", "plums", "--json").answer["found"] == []
    again = empty("restore", away, "--json")
    assert again.error["field"] == "force"
    forced = empty("restore", away, "--force", "--json").answer["restored"]
    assert (forced["forgotten_again"], forced["is_served"]) == (1, True)


def test_on_a_terminal_the_recovery_code_is_asked_for_and_not_shown(run: Terminal) -> None:
    code = run("init", "--json").answer["recovery_code"]
    run("backup", str(run.folder / "away"))
    empty = elsewhere(run)
    ours, theirs = pty.openpty()

    process = empty.start(
        "restore", str(run.folder / "away"), "--recovery", stdin=theirs, stdout=theirs,
        stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    asked = os.read(ours, 65_536)
    # What is typed while the echo is on would be thrown away when it goes off.
    deadline = time.monotonic() + 20
    while termios.tcgetattr(ours)[3] & termios.ECHO and time.monotonic() < deadline:
        time.sleep(0.01)
    os.write(ours, f"{code}\n".encode())
    shown = asked + _read_all(ours)

    assert process.wait() == 0
    assert b"Recovery code" in shown
    assert code.encode() not in shown


@pytest.mark.sqlite("the log's own file")
def test_a_restored_log_with_findings_is_not_served_unless_forced(run: Terminal) -> None:
    code = run("init", "--json").answer["recovery_code"]
    run.remembered("Lin is well")
    lose_a_body(run.folder / "data" / "me" / "ledger.db")
    run("backup", str(run.folder / "away"))
    empty = elsewhere(run)

    said = empty("restore", str(run.folder / "away"), "--recovery", given=f"{code}\n")

    assert said.code == 4
    assert "not served" in said.err
    assert "a restore has not ended" in empty("list").err
    assert empty("restore", str(run.folder / "away"), "--force").code == 4
    assert empty("list").code == 0


def lose_a_body(log: Path) -> None:
    with closing(sqlite3.connect(log)) as raw:
        raw.execute("DELETE FROM bodies WHERE position = 2")
        raw.commit()


def test_a_copy_that_was_damaged_is_restored_by_force_alone(run: Terminal) -> None:
    code = run("init", "--json").answer["recovery_code"]
    run.remembered("Lin is well")
    run("backup", str(run.folder / "away"))
    (copy,) = (run.folder / "away" / "me").glob("log-*.db")
    lose_a_body(copy)
    empty, words = elsewhere(run), ("restore", str(run.folder / "away"), "--recovery")

    said = empty(*words, given=f"{code}\n")

    assert (said.code, "--force" in said.err) == (1, True)
    assert not (empty.folder / "data" / "me").exists()
    assert empty(*words, "--force", given=f"{code}\n").code == 4
    assert empty("list").code == 0


def test_an_import_that_refuses_a_line_does_not_end_as_if_all_was_well(run: Terminal) -> None:
    run.remembered("Lin is well")
    run.remembered("Ann is ill")
    file = run.folder / "export"
    run("export", str(file))
    file.write_text(file.read_text().replace("Lin is well", ""))

    said = elsewhere(run)("import", str(file), "--json")

    assert (said.code, said.answer["imported"]) == (1, 1)
    assert said.error["code"] == "invalid_value"
    assert (said.error["line"], said.error["field"]) == (2, "value.content")
    assert "line 2: invalid_value" in elsewhere(run)("import", str(file)).err


def test_a_new_key_or_code_names_the_backups_that_it_did_not_reach(run: Terminal) -> None:
    run.remembered("Lin is well")
    away, near = run.folder / "away", run.folder / "near"
    for folder in (away, near):
        run("backup", str(folder))
    away.rename(run.folder / "unplugged")

    for command in (("keys", "rotate"), ("keys", "recovery")):
        assert run(*command, "--json").answer["pending"] == [str(away)]
        assert f"Has an old key bundle still: {away}." in run(*command).out
    (run.folder / "unplugged").rename(away)
    assert run("keys", "rotate", "--json").answer["pending"] == []


def test_a_schedule_is_printed_and_nothing_is_backed_up(run: Terminal) -> None:
    away = run.folder / "my 50% disk"

    said = run("--space", "me", "backup", str(away), "--keep", "5", "--schedule")

    assert f"17 3 * * *  memoranda --space me backup '{run.folder}/my 50\\% disk'" in said.out
    assert "50%% disk' --keep 5" in said.out
    assert "OnCalendar=daily" in said.out
    assert not away.exists()
    assert not (run.folder / "data").exists()


def test_an_export_is_written_and_imported(run: Terminal) -> None:
    run.remembered("Lin is well")
    file = str(run.folder / "export")

    assert "1 accepted" in run("export", file).out
    assert run("export", file, "--json").error["field"] == "path"
    assert run("export", file, "--markdown", "--replace").code == 0
    assert "> Lin is well" in Path(file).read_text()
    assert run("import", file, "--json").error["code"] == "migration_failed"
    run("export", file, "--replace")

    assert "already there 1" in run("import", file).out
    report = elsewhere(run)("import", file, "--json").answer
    assert (report["imported"], report["suppressed"]) == (1, 0)


def test_a_forget_names_no_copy_that_was_said_to_be_gone(run: Terminal) -> None:
    record_id = run.remembered("Lin likes plums")
    away, file = run.folder / "away", run.folder / "export"
    run("backup", str(away))
    run("export", str(file))
    away.rename(run.folder / "lost")

    assert "is still there" in run("export", str(file), "--gone").err
    file.unlink()
    assert f"No forget names {file} from here on." in run("export", str(file), "--gone").out
    assert run("backup", str(away), "--gone", "--json").answer["left"] == []

    said = run("forget", record_id)
    assert said.code == 0
    assert str(run.folder) not in said.out
    assert not away.exists()


def test_options_that_say_how_to_write_are_refused_beside_one_that_writes_nothing(
    run: Terminal,
) -> None:
    run("init")
    path = str(run.folder / "away")

    for command, options in (
        ("backup", ["--keep", "3"]),
        ("backup", ["--schedule"]),
        ("export", ["--markdown"]),
        ("export", ["--replace"]),
    ):
        said = run(command, path, "--gone", *options)
        assert said.code == 2
        assert f"leave {options[0]} out" in said.err


def test_an_empty_path_is_no_folder_and_no_file(
    run: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("init")
    (run.folder / "here").mkdir()
    monkeypatch.chdir(run.folder / "here")

    for command, name in (
        (["backup"], "destination"),
        (["backup", "--schedule"], "destination"),
        (["backup", "--gone"], "path"),
        (["restore"], "backup"),
        (["export"], "path"),
        (["export", "--gone"], "path"),
    ):
        said = run(*command, "", "--json")
        assert (said.code, said.error["field"]) == (1, name), command
    assert list(Path().iterdir()) == []


def test_the_last_command_is_taken_back(run: Terminal) -> None:
    record_id = run.remembered("Lin is well")

    assert "Taken back:" in run("undo").out
    assert "Lin is well" not in run("list").out
    run("forget", record_id)
    refused = run("undo", "--json").error
    assert (refused["code"], refused["field"]) == ("invalid_transition", "operation")


def test_the_doctor_says_what_is_missing_and_when_all_is_well(run: Terminal) -> None:
    run.remembered("Lin is well")

    ill = run("doctor")
    run("backup", str(run.folder / "away"))
    well = run("doctor", "--json")

    assert ill.code == 4
    assert "recovery: no backup is whole" in ill.out
    assert well.code == 0
    assert {check["level"] for check in well.answer["checks"]} <= {"fine", "note"}
