"""Settings, read once: `config.toml` in the home, then `MEMORANDA_…` variables, then arguments."""

from pathlib import Path
from typing import Any, Literal

from platformdirs import user_data_path, user_state_path
from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from memoranda.ledger.errors import Refusal, Refused, RefusedError
from memoranda.ledger.places import path_of
from memoranda.ledger.screening import SecretPolicy
from memoranda.ledger.sealed_store import LOCAL_HOST

FORGET_WINDOW_HOURS_MAX = 24 * 366


class Settings(BaseSettings):
    """Where one person's ledger lives and how it treats what comes in."""

    model_config = SettingsConfigDict(env_prefix="MEMORANDA_", extra="forbid", frozen=True)

    home: Path = Field(Path("~/.memoranda"), description="Folder of config.toml")
    data: Path = Field(
        default_factory=lambda: user_data_path("memoranda"),
        description="Folder of the ledgers: log, keys, views",
    )
    state: Path = Field(
        default_factory=lambda: user_state_path("memoranda"),
        description="Folder of the wrapping keys; keep it out of every backup of the data",
    )
    engine: str | None = Field(
        None,
        pattern=r"^postgresql://",
        repr=False,
        description="PostgreSQL server that keeps the log, as postgresql://…",
    )
    space: str = Field("me", description="Whose ledger: one person, one space")
    host: str = Field(
        LOCAL_HOST,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        description="Which host this is: the first write as another host fences the one before",
    )
    vault: Literal["slots", "keyring"] = Field(
        "slots", description="What keeps the wrapping key: the slot file, or the system's keyring"
    )
    passphrase_file: Path | None = Field(
        None, description="File with the passphrase over the slots; 0600 and the user's own"
    )
    secrets: SecretPolicy = Field("refuse", description="What happens to text with a secret in it")
    forget_window_hours: int = Field(
        0,
        ge=0,
        le=FORGET_WINDOW_HOURS_MAX,
        description="How long you can take back what a model's session forgets; 0 erases at once",
    )
    legacy: Path | None = Field(
        None, description="File of an earlier store, migrated before anything is served"
    )

    @field_validator("data", "state", "passphrase_file", "legacy")
    @classmethod
    def _leads_somewhere(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is not None:
            path_of(path, str(info.field_name))
        return path

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # the library's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        home = {**env_settings(), **init_settings()}.get("home", "~/.memoranda")
        file = TomlConfigSettingsSource(settings_cls, path_of(home, "home") / "config.toml")
        return init_settings, env_settings, file


def load_settings(**given: Any) -> Settings:
    """The settings in force; arguments that are None are left to the variables and the file.

    Raises RefusedError with the setting's name for a value or key that does not fit.
    """
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(str(part) for part in fault["loc"])
        raise RefusedError(Refused(Refusal.INVALID_REQUEST, name, fault["msg"])) from error
    except OSError as error:
        raise RefusedError(
            Refused(Refusal.READ_ONLY, "home", "config.toml cannot be read")
        ) from error
    except ValueError as error:
        raise RefusedError(
            Refused(Refusal.INVALID_REQUEST, "config.toml", "is not valid TOML")
        ) from error
