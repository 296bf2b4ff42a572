"""The tour shows what it says, leaves nothing behind, and its last words work."""

import shlex
import tempfile
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memoranda.ledger.errors import MemorandaError, Refusal, Refused
from memoranda.tools import tour as tour_room
from memoranda.tools.cli import main
from memoranda.tools.tour import next_commands, tour


def told(*arguments: str, folder: Path) -> tuple[int, str]:
    names = ("data", "state", "home")
    env = {f"MEMORANDA_{name.upper()}": str(folder / name) for name in names}
    # The person's settings may not reach into the tour.
    env |= {"MEMORANDA_SPACE": "someone", "MEMORANDA_SECRETS": "redact"}
    with CliRunner().isolation(b"", env) as (out, _, _):
        return main(arguments), out.getvalue().decode()


def test_the_tour_shows_every_step_with_its_figures() -> None:
    facts = [step.wire() for step in tour()]

    titles = [str(fact.pop("title")) for fact in facts]
    assert len(titles) == len(set(titles)) == 11
    assert facts == [
        {
            "captured": 64,
            "already_there": 64,
            "marked": {"hidden": 1, "generated": 1, "truncated": 1},
        },
        {"published": 8},
        {
            "refused": {
                "message 31": "source_rejected",
                "message 36": "source_rejected",
                "message 48": "source_rejected",
                "message 54": "source_in_future",
            }
        },
        {"candidates": 2, "tried_to_publish": "background_candidate_only"},
        {"accepted": 1, "rejected": 1, "proposed_again": "candidate_rejected"},
        {"revision": 2},
        {"replayed": True, "other_content": "operation_conflict"},
        {"core": 0, "recent": 77, "detail": 87},
        {"left": ["message"]},
        {"events": 87},
        {"events": 87, "opened": 81, "records": 10, "findings": []},
    ]


def test_the_tour_is_the_same_each_time_and_takes_seconds() -> None:
    started = time.monotonic()

    first, second = list(tour()), list(tour())

    assert first == second
    assert (time.monotonic() - started) / 2 < 10


def test_the_tour_leaves_nothing_behind(tmp_path: Path) -> None:
    before = set(Path(tempfile.gettempdir()).glob("memoranda-tour-*"))

    code, _ = told("tour", folder=tmp_path)

    assert code == 0
    assert set(Path(tempfile.gettempdir()).glob("memoranda-tour-*")) == before
    assert list(tmp_path.iterdir()) == []


def test_the_tour_reads_as_a_page_and_answers_as_one_object(tmp_path: Path) -> None:
    code, page = told("tour", folder=tmp_path)
    _, answer = told("tour", "--json", folder=tmp_path)

    assert code == 0
    for step in tour():
        assert step.title in page
        assert all(cell in page for row in step.rows for cell in row)
    for refusal in (Refusal.SOURCE_REJECTED, Refusal.SOURCE_IN_FUTURE):
        assert f"{refusal.code}: {refusal.rule}" in page
    assert page.endswith("".join(f"   {command}\n" for command in next_commands()))
    assert answer.startswith('{"ok": true, "steps": [{"title": ')
    assert answer.count("\n") == 1


def test_the_three_commands_at_the_end_work(tmp_path: Path) -> None:
    codes = [told(*shlex.split(it)[1:], folder=tmp_path)[0] for it in next_commands()]

    assert codes == [0, 0, 0]


def test_a_step_that_does_not_happen_ends_the_tour() -> None:
    is_whole = False

    with pytest.raises(MemorandaError, match="not_found"):
        tour_room._done(Refused(Refusal.NOT_FOUND))
    with pytest.raises(MemorandaError, match="source_rejected"):
        tour_room._refused(Refused(Refusal.NOT_FOUND), Refusal.SOURCE_REJECTED)
    with pytest.raises(MemorandaError, match="whole"):
        tour_room._expect(is_whole, "the log is whole")
