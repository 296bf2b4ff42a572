"""Settings: the file, then the environment, then arguments; what does not fit is named."""

from pathlib import Path

import pytest

from memoranda.ledger.errors import Refusal, Refused, RefusedError
from memoranda.ledger.receipts import Receipt
from memoranda.tools.memory import open_memory
from memoranda.tools.settings import Settings, load_settings

SECRET = "aws key AKIAIOSFODNN7EXAMPLQ"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's home without any settings of the machine."""
    for name in Settings.model_fields:
        monkeypatch.delenv(f"MEMORANDA_{name.upper()}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg-data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg-state"))
    (tmp_path / ".memoranda").mkdir()
    return tmp_path


def write(home: Path, text: str) -> None:
    (home / ".memoranda" / "config.toml").write_text(text)


def refused_by(**given: object) -> Refused:
    with pytest.raises(RefusedError) as refused:
        load_settings(**given)
    return refused.value.refused


# -- precedence -----------------------------------------------------------------------------------


def test_without_any_setting_the_defaults_hold(home):
    settings = load_settings()

    assert settings.home.expanduser() == home / ".memoranda"
    assert settings.data == home / "xdg-data" / "memoranda"
    assert settings.state == home / "xdg-state" / "memoranda"
    assert (settings.space, settings.secrets) == ("me", "refuse")


def test_the_environment_wins_over_the_file_and_arguments_over_both(home, monkeypatch):
    write(home, 'space = "file"\ndata = "/file"\nstate = "/file"\nsecrets = "redact"\n')
    monkeypatch.setenv("MEMORANDA_DATA", "/environment")
    monkeypatch.setenv("MEMORANDA_STATE", "/environment")

    settings = load_settings(state="/argument", space=None)

    assert settings.secrets == "redact"
    assert settings.space == "file"
    assert settings.data == Path("/environment")
    assert settings.state == Path("/argument")


@pytest.mark.parametrize("how", ["environment", "argument"])
def test_the_file_lies_in_the_home_that_is_named(home, monkeypatch, how):
    write(home, 'space = "wrong"\n')
    (home / "other").mkdir()
    (home / "other" / "config.toml").write_text('space = "right"\n')
    given = {}
    if how == "environment":
        monkeypatch.setenv("MEMORANDA_HOME", "~/other")
    else:
        given["home"] = "~/other"

    assert load_settings(**given).space == "right"


@pytest.mark.usefixtures("home")
def test_other_variables_mean_nothing(monkeypatch):
    monkeypatch.setenv("SPACE", "other")
    monkeypatch.setenv("DATA", "/other")
    monkeypatch.setenv("MEMORANDA_UNHEARD_OF", "other")

    assert load_settings().space == "me"


@pytest.mark.usefixtures("home")
def test_settings_do_not_change_once_read():
    settings = load_settings()

    with pytest.raises(ValueError, match="frozen"):
        settings.space = "other"


# -- what does not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize("line", ['spcae = "me"', "[memory]\nsize = 3"])
def test_an_unknown_key_in_the_file_is_refused_by_its_name(home, line):
    write(home, line)

    refused = refused_by()

    assert refused.refusal is Refusal.INVALID_REQUEST
    assert refused.field == line.strip("[").split()[0].rstrip("]")


@pytest.mark.usefixtures("home")
def test_an_unknown_argument_is_refused_by_its_name():
    assert refused_by(colour="blue").field == "colour"


@pytest.mark.parametrize(
    "text", ["space = ", "= 1", '"', "\x00", "space = me", "[", "a = 1\na = 2"]
)
def test_a_file_that_is_no_toml_is_refused(home, text):
    write(home, text)

    refused = refused_by()

    assert (refused.refusal, refused.field) == (Refusal.INVALID_REQUEST, "config.toml")
    assert "TOML" in refused.message


def test_a_file_that_is_no_text_is_refused(home):
    (home / ".memoranda" / "config.toml").write_bytes(b"space = '\xff'\n")

    assert refused_by().field == "config.toml"


@pytest.mark.parametrize(
    ("name", "value"), [("secrets", "maybe"), ("secrets", "REFUSE"), ("space", 7), ("data", 7)]
)
def test_a_value_that_does_not_fit_is_refused_by_its_name(home, name, value):
    assert refused_by(**{name: value}).field == name
    write(home, f"{name} = {value!r}\n")
    assert refused_by().field == name


@pytest.mark.usefixtures("home")
def test_a_refused_setting_does_not_repeat_the_value(monkeypatch):
    monkeypatch.setenv("MEMORANDA_SECRETS", "hunter2-my-secret-value")

    with pytest.raises(RefusedError) as refused:
        load_settings()

    assert "hunter2" not in str(refused.value)
    assert refused.value.refused.field == "secrets"


# -- spaces ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", ["a", "me", "us_alice", "A.b-c_9", "0", "a" * 64, "a..b"])
def test_a_good_name_is_a_space_with_folders_of_its_own(home, space):
    with open_memory(space) as memory:
        assert memory.status().space == space

    assert (home / "xdg-data" / "memoranda" / space / "ledger.db").is_file()
    assert (home / "xdg-state" / "memoranda" / space / "slots").is_file()


@pytest.mark.parametrize(
    "space",
    [
        "", " ", ".", "..", ".hidden", "-x", "_x", "a/b", "../up", "a\\b", "a b", "a\n", "a\0b",
        "ä", "名", "a" * 65, "C:", "a:b", "~", "a\u202eb", "a" * 1000, "١",
    ],
)  # fmt: skip
def test_a_bad_name_is_refused_and_nothing_is_made(home, space):
    before = sorted(home.rglob("*"))

    with pytest.raises(RefusedError) as refused:
        open_memory(space)

    assert refused.value.refused.refusal is Refusal.INVALID_REQUEST
    assert refused.value.refused.field == "space"
    assert sorted(home.rglob("*")) == before


@pytest.mark.usefixtures("home")
def test_two_spaces_know_nothing_of_each_other():
    with open_memory("us_alice") as alice, open_memory("us_bob") as bob:
        first = alice.publish("home", "I live in Kyoto", operation_id="op-1")
        second = bob.publish("home", "I live in Bergen", operation_id="op-1")

        assert (first.position, first.replayed) == (second.position, second.replayed)
        assert first.record_digest != second.record_digest
        assert bob.read(first.record_id).record.content == "I live in Bergen"


# -- secrets --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("home")
def test_by_default_text_with_a_secret_is_refused():
    with open_memory() as memory:
        answer = memory.remember(SECRET)

    assert answer.refusal is Refusal.SECRET_DETECTED
    assert "AKIA" not in str(answer)


@pytest.mark.parametrize("how", ["file", "environment", "argument"])
def test_secrets_are_redacted_when_that_is_asked_for(home, monkeypatch, how):
    given = {}
    if how == "file":
        write(home, 'secrets = "redact"\n')
    elif how == "environment":
        monkeypatch.setenv("MEMORANDA_SECRETS", "redact")
    else:
        given["secrets"] = "redact"

    with open_memory(**given) as memory:
        receipt = memory.remember(SECRET)
        assert isinstance(receipt, Receipt)
        content = memory.read(receipt.record_id).record.content

    assert content.startswith("aws key ")
    assert "AKIA" not in content
    files = (path for path in home.rglob("*") if path.is_file())
    assert not any(b"AKIAIOSF" in path.read_bytes() for path in files)


def test_a_ledger_of_relative_folders_is_the_same_wherever_the_process_goes(
    folder, tmp_path, monkeypatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    relative = {**folder, "data": "data", "state": "state"}
    with open_memory("us_alice", **relative) as memory:
        monkeypatch.chdir(tmp_path / "elsewhere")

        made = memory.remember("I live in Kyoto")

        assert isinstance(made, Receipt)
        with open_memory("us_alice", **folder) as again:
            assert [it.record.content for it in again.records()] == ["I live in Kyoto"]
        assert memory.forget(made.record_id, 1).erased_at
    assert list((tmp_path / "elsewhere").iterdir()) == []
