"""The operating system's keyring as a vault: macOS Keychain, Secret Service, KWallet.

The `keyring` library is an extra, and comes into play only when this vault keeps the key.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from memoranda.ledger.errors import Refusal, Refused, RefusedError

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

SERVICE = "memoranda"


class SystemKeyring:
    """Two entries for a ledger, by the parity of the key epoch; each says which epoch it is of."""

    name = "keyring"

    def read(self, ledger_id: str, key_epoch: int) -> bytes | None:
        with _backend() as backend:
            said = backend.get_password(SERVICE, _entry(ledger_id, key_epoch)) or ""
        epoch, _, key = said.partition(":")
        return b64decode(key) if epoch == str(key_epoch) else None

    def write(self, ledger_id: str, key_epoch: int, wrapping_key: bytes) -> None:
        said = f"{key_epoch}:{b64encode(wrapping_key).decode()}"
        with _backend() as backend:
            backend.set_password(SERVICE, _entry(ledger_id, key_epoch), said)

    def destroy(self, ledger_id: str, key_epoch: int, noise: bytes) -> None:
        if self.read(ledger_id, key_epoch) is None:
            return
        entry = _entry(ledger_id, key_epoch)
        with _backend() as backend:
            backend.set_password(SERVICE, entry, b64encode(noise).decode())
            backend.delete_password(SERVICE, entry)


def _entry(ledger_id: str, key_epoch: int) -> str:
    return f"{ledger_id}:{'odd' if key_epoch % 2 else 'even'}"


@contextmanager
def _backend() -> "Iterator[KeyringBackend]":
    try:
        from keyring import get_keyring  # noqa: PLC0415  # an extra
        from keyring.errors import KeyringError  # noqa: PLC0415
    except ImportError as error:
        message = "needs a library that is not installed: `pip install 'memoranda[keyring]'`"
        raise RefusedError(Refused(Refusal.SERVICE_UNAVAILABLE, "vault", message)) from error
    try:
        yield get_keyring()
    except KeyringError as error:
        message = f"the system's keyring cannot be used ({type(error).__name__})"
        raise RefusedError(Refused(Refusal.SERVICE_UNAVAILABLE, "vault", message)) from error
