"""The README keeps its word: its examples run, and it names everything a person can meet."""

import doctest
import re
from pathlib import Path

import pytest

from memoranda.ledger.errors import Refusal
from memoranda.tools.cli import command_names
from memoranda.tools.settings import Settings

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_of_the_readme_run(folder: dict[str, Path]) -> None:
    known = {"data_folder": folder["data"], "state_folder": folder["state"]}

    results = doctest.testfile(str(README), module_relative=False, globs=known, encoding="utf-8")

    assert results.attempted > 10
    assert results.failed == 0


@pytest.mark.parametrize("code", sorted({refusal.code for refusal in Refusal}))
def test_the_readme_names_every_refusal(code: str) -> None:
    assert f"`{code}`" in README.read_text()


@pytest.mark.parametrize("name", Settings.model_fields)
def test_the_readme_names_every_setting(name: str) -> None:
    assert f"`MEMORANDA_{name.upper()}`" in README.read_text()


@pytest.mark.parametrize("name", command_names())
def test_the_readme_names_every_command(name: str) -> None:
    assert f"`memoranda {name}`" in README.read_text()


def test_every_test_that_the_readme_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", README.read_text()))

    sources = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]

    assert named
    assert not {name for name in named if not any(f"def {name}(" in text for text in sources)}
