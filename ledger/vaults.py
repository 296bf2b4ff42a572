"""How the wrapping keys are kept: in their slot, under a passphrase over it, or in a vault.

The slots say of every key epoch how its key is kept. So an unfinished rotation is seen and ended
alike whatever keeps the two keys, and another passphrase or vault is nothing but a rotation.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, assert_never, runtime_checkable

from memoranda.ledger.chain import framed
from memoranda.ledger.errors import (
    IntegrityFault,
    Refusal,
    Refused,
    RefusedError,
    StorageFault,
)
from memoranda.ledger.sealing import KEY_BYTES, NONCE_BYTES, TAG_BYTES, stretch, unwrap, wrap
from memoranda.ledger.slots import SLOT_BYTES, SlotFile
from memoranda.ledger.stamps import Stamps

SLOTS = "slots"
SCRYPT_COST = (16, 8, 1)
"""log2 n, r and p: 64 MiB and 0.1 to 0.3 s for every guess, and once for an opening."""

SCRYPT_LOG_N_MAX, SCRYPT_BLOCKS_MAX = 20, 32
"""A slot that asks for more is an attempt to fill the memory."""

PASSPHRASE_CHARACTERS_MAX = 1024
_VAULT_NAME = re.compile(r"[a-z0-9_-]{1,64}")
T = TypeVar("T")
_SALT_BYTES = 16
_LEDGER_ID_BYTES = 8
_UNDER_PASSPHRASE, _IN_VAULT = b"\1", b"\2"
_HEADER_BYTES = 1 + len(SCRYPT_COST) + _SALT_BYTES
_WRAPPED_BYTES = NONCE_BYTES + KEY_BYTES + TAG_BYTES


@runtime_checkable
class KeyVault(Protocol):
    """A place for wrapping keys outside the slot file: a system's keyring, a key service.

    It keeps at most two keys of a ledger, one of an even and one of an odd key epoch; `ledger_id`
    tells the ledger from all others. A read sees the write or destruction before it. Raises
    RefusedError (F1) while it cannot be used; whatever else it raises is a StorageFault, and so is
    an answer that the next one contradicts.
    """

    @property
    def name(self) -> str:
        """What the setting and the slots call it, for ever."""
        ...

    def read(self, ledger_id: str, key_epoch: int) -> bytes | None:
        """The key of that epoch; None when it is not, or no longer, kept."""
        ...

    def write(self, ledger_id: str, key_epoch: int, wrapping_key: bytes) -> None:
        """Keeps the key of an epoch durably, in place of the one two epochs before."""
        ...

    def destroy(self, ledger_id: str, key_epoch: int, noise: bytes) -> None:
        """Makes the key of an epoch unreadable for ever; one that is gone is fine.

        `noise` is KEY_BYTES long, for a place that is overwritten before it is given up.
        """
        ...


@dataclass(frozen=True, slots=True)
class InSlot:
    """In its slot as it is: who can read the file has the key."""


@dataclass(frozen=True, slots=True)
class UnderPassphrase:
    """In its slot, wrapped under a key that scrypt derives from a passphrase."""

    cost: tuple[int, int, int]
    salt: bytes

    @property
    def header(self) -> bytes:
        """What a slot says of it before the wrapped key."""
        return _UNDER_PASSPHRASE + bytes(self.cost) + self.salt

    def stretched(self, passphrase: str) -> bytes:
        """The key that the passphrase gives; however the letters were typed, the same."""
        given: object = passphrase
        if not (isinstance(given, str) and 1 <= len(given) <= PASSPHRASE_CHARACTERS_MAX):
            message = f"is a text of 1 to {PASSPHRASE_CHARACTERS_MAX} characters"
            raise RefusedError(_wrong_passphrase(message))
        text = unicodedata.normalize("NFC", passphrase)
        return stretch(text.encode(errors="surrogatepass"), self.salt, self.cost)


@dataclass(frozen=True, slots=True)
class InVault:
    """In a vault, under the ledger's id there; the slot holds no key."""

    vault: str
    ledger_id: str


Keeping = InSlot | UnderPassphrase | InVault
Passphrase = str | Callable[[], str | None] | None


@dataclass(frozen=True, slots=True)
class Unlocking:
    """How an opening gets at the wrapping key: the vault it counts on, and the passphrase.

    A callable is asked only when the ledger needs a passphrase; a new ledger is put under one
    that is given as text.
    """

    vault: str = SLOTS
    vaults: Mapping[str, KeyVault] = field(default_factory=dict)
    passphrase: Passphrase = field(default=None, repr=False)


def refuse_odd_keys(passphrase: object, key_vault: object) -> None:
    """Raises RefusedError (F36) for what an opening cannot be given as its passphrase or vault."""
    if not (passphrase is None or isinstance(passphrase, str) or callable(passphrase)):
        raise RefusedError(_wrong_passphrase("is a text, or gives one when it is called"))
    if key_vault is not None and not (
        isinstance(key_vault, KeyVault) and _VAULT_NAME.fullmatch(str(key_vault.name))
    ):
        message = "reads, writes and destroys keys, under a name of 1 to 64 of a-z 0-9 _ -"
        raise RefusedError(Refused(Refusal.INVALID_REQUEST, "key_vault", message))


class KeptKey(StorageFault):
    """The key of before is not destroyed yet: an erasure waits for it, and nothing else need.

    `key_epoch` is the one in force all the same, where a rotation has come so far.
    """

    def __init__(self, message: str, key_epoch: int = 0) -> None:
        super().__init__(message)
        self.key_epoch = key_epoch


class WrappingKeys:
    """The wrapping keys of one space by key epoch, however they are kept.

    What was derived from a passphrase is held, so that rotations stay under it without asking;
    the passphrase itself is held during the opening only.
    """

    def __init__(self, slots: SlotFile, space: str, stamps: Stamps, unlocking: Unlocking) -> None:
        self._slots = slots
        self._space = space
        self._stamps = stamps
        self._expected, self._vaults = unlocking.vault, unlocking.vaults
        self._passphrase = unlocking.passphrase
        self._derived: dict[UnderPassphrase, bytes] = {}

    # -- opening ----------------------------------------------------------------------------

    def unlock(self) -> None:
        """Asks for the passphrase if the slots need one; deriving takes scrypt's time."""
        for it in self._kept():
            if isinstance(it, UnderPassphrase) and it not in self._derived:
                self._derive(it)

    def refuse_another(self) -> None:
        """Raises RefusedError when another vault than the one counted on keeps the key.

        During an unfinished move both are right.
        """
        vaults = [_vault_of(it) for it in self._kept()]
        if vaults and self._expected not in vaults:
            message = f"the wrapping key of this ledger is kept by {vaults[-1]}: set vault to it"
            raise RefusedError(Refused(Refusal.INVALID_REQUEST, "vault", message))

    def _kept(self) -> list[Keeping]:
        return [_keeping(content) for _, content in sorted((self._slots.look() or {}).items())]

    def _derive(self, kept: UnderPassphrase) -> None:
        if callable(self._passphrase):
            self._passphrase = self._passphrase()
        if self._passphrase is not None:
            self._derived[kept] = kept.stretched(self._passphrase)

    def drop_passphrase(self) -> None:
        """Ends the opening: what the passphrase gave is enough from here on."""
        self._passphrase = None

    def create_first(self, key_epoch: int) -> None:
        """Makes the slots and the first key of a new space, unless an earlier try has."""
        made = self._slots.look()
        if made is None:
            self._slots.create(self._stamps.entropy(2 * SLOT_BYTES))
        if made:
            return
        if self._expected == SLOTS and isinstance(self._passphrase, str):
            keeping: Keeping = self.under(self._passphrase)
        else:
            keeping = self.in_vault(self._expected)
        self.write(key_epoch, self._stamps.entropy(KEY_BYTES), keeping)

    # -- ways of keeping --------------------------------------------------------------------

    @property
    def keeping(self) -> Keeping:
        """How the newest key is kept."""
        contents = self._slots.read()
        return _keeping(contents[max(contents)])

    def under(self, passphrase: str) -> UnderPassphrase:
        """A way of keeping keys under a passphrase; takes scrypt's time."""
        kept = UnderPassphrase(SCRYPT_COST, self._stamps.entropy(_SALT_BYTES))
        self._derived[kept] = kept.stretched(passphrase)
        return kept

    def put_under(self, passphrase: str | None) -> InSlot | UnderPassphrase:
        """A way of keeping keys in the slots, under a passphrase or none; not out of a vault."""
        if isinstance(self.keeping, InVault):
            message = "goes over the slots, and a vault keeps the key; `keys move slots` first"
            raise RefusedError(_wrong_passphrase(message))
        return InSlot() if passphrase is None else self.under(passphrase)

    def moved_to(self, vault: str) -> InSlot | InVault:
        """A way of keeping keys in another vault than the newest one, or in the slots."""
        if _vault_of(self.keeping) == vault:
            message = f"{vault} keeps the wrapping key already"
            raise RefusedError(Refused(Refusal.INVALID_REQUEST, "vault", message))
        return self.in_vault(vault)

    def counted_on(self) -> InSlot | InVault | None:
        """A way of keeping keys in the vault counted on; None where it keeps the newest one.

        Raises RefusedError or StorageFault while that vault does not answer.
        """
        if self._slots.look() and _vault_of(self.keeping) == self._expected:
            return None
        keeping = self.in_vault(self._expected)
        if isinstance(keeping, InVault):
            self._in_vault(keeping.vault, keeping.ledger_id, 0)
        return keeping

    def in_vault(self, vault: str) -> InSlot | InVault:
        """A way of keeping keys in a vault, or in the slots."""
        if vault == SLOTS:
            return InSlot()
        if vault not in list(self._vaults):
            raise RefusedError(Refused(Refusal.INVALID_REQUEST, "vault", "is no vault known here"))
        return InVault(vault, self._stamps.entropy(_LEDGER_ID_BYTES).hex())

    # -- keys -------------------------------------------------------------------------------

    def epochs(self) -> set[int]:
        """The key epochs that the slots name: one, or two while a rotation is unfinished."""
        return set(self._slots.read())

    def read(self) -> dict[int, bytes]:
        """The keys that can be had, by key epoch; `missing` says why one cannot."""
        opened = {epoch: self.key(epoch) for epoch in self.epochs()}
        return {epoch: key for epoch, key in opened.items() if key is not None}

    def key(self, key_epoch: int) -> bytes | None:
        """One of them alone: a vault that was moved out of may be gone for good."""
        content = self._slots.read().get(key_epoch)
        return None if content is None else self._open(key_epoch, content)

    def missing(self, key_epoch: int) -> Exception:
        """Why the key of an epoch cannot be had."""
        contents = self._slots.read()
        kept = _keeping(contents[key_epoch]) if key_epoch in contents else None
        if isinstance(kept, UnderPassphrase):
            message = self._why_locked(kept)
            if key_epoch < max(contents):
                message += "; a change of it was stopped, so the one before is in force"
            return RefusedError(_wrong_passphrase(message))
        if isinstance(kept, InVault):
            message = f"{kept.vault} does not have the wrapping key of this ledger"
            return RefusedError(Refused(Refusal.SPACE_UNKNOWN, "vault", message))
        return IntegrityFault("no slot holds the wrapping key of a key's epoch")

    def _why_locked(self, kept: UnderPassphrase) -> str:
        if kept in self._derived:
            return "is not the one of this ledger"
        if self._derived:
            return "was changed since; open the ledger again with the new one"
        return "is needed to open this ledger"

    def write(self, key_epoch: int, wrapping_key: bytes, keeping: Keeping | None = None) -> None:
        """Makes the key of an epoch durable, kept like the newest one unless told how.

        Raises StorageFault for what is not there afterwards: some take everything and keep nothing.
        """
        keeping = keeping or self.keeping
        match keeping:
            case InSlot():
                content = wrapping_key
            case UnderPassphrase():
                if keeping not in self._derived:
                    raise self.missing(max(self.epochs()))
                nonce = self._stamps.entropy(NONCE_BYTES)
                bound = self._bound(key_epoch, keeping)
                content = keeping.header + wrap(self._derived[keeping], wrapping_key, bound, nonce)
            case InVault(vault=vault, ledger_id=ledger_id):
                # The slot goes second: it never names a key that is not there.
                self._asked(vault, lambda it: it.write(ledger_id, key_epoch, wrapping_key))
                if self._in_vault(vault, ledger_id, key_epoch) != wrapping_key:
                    raise StorageFault(f"{vault} did not keep a key that it was given")
                self._stamps.step("vault:written")
                content = _IN_VAULT + bytes.fromhex(ledger_id) + vault.encode()
            case _:
                assert_never(keeping)
        self._slots.write(key_epoch, content)
        if not self._slots.read().get(key_epoch, b"").startswith(content):
            raise StorageFault("the slot file did not keep a key that it was given")

    def leave(self) -> tuple[str, ...]:
        """Destroys what vaults keep, before other slots come; those that could not be told to."""
        left = []
        for key_epoch, content in self._slots.read().items():
            if isinstance(kept := _keeping(content), InVault):
                try:
                    self.destroy(key_epoch)
                except KeptKey:
                    left.append(kept.vault)
        return tuple(dict.fromkeys(left))

    def destroy(self, key_epoch: int) -> None:
        """Destroys the key of an epoch, wherever it is kept, and its slot.

        Raises KeptKey unless its vault says so and has it no more.
        """
        content = self._slots.read().get(key_epoch)
        if content and isinstance(kept := _keeping(content), InVault):
            # The slot goes second here too, or nobody would know of a key that is still there.
            noise = self._stamps.entropy(KEY_BYTES)
            try:
                self._asked(kept.vault, lambda it: it.destroy(kept.ledger_id, key_epoch, noise))
                is_there = self._in_vault(kept.vault, kept.ledger_id, key_epoch) is not None
            except (StorageFault, RefusedError) as error:
                raise KeptKey(f"{kept.vault} could not destroy a key: {error}") from error
            if is_there:
                raise KeptKey(f"{kept.vault} still has a key that it was to destroy")
            self._stamps.step("vault:destroyed")
        self._slots.destroy(key_epoch, self._stamps.entropy(SLOT_BYTES))

    def destroy_all(self) -> None:
        """Destroys every key that the slots name; when there are none left, nothing."""
        for key_epoch in sorted(self._slots.look() or {}):
            self.destroy(key_epoch)

    def _open(self, key_epoch: int, content: bytes) -> bytes | None:
        match _keeping(content):
            case InSlot():
                return content
            case UnderPassphrase() as kept:
                wrapped = content[_HEADER_BYTES:][:_WRAPPED_BYTES]
                return self._unwrapped(key_epoch, kept, wrapped)
            case InVault(vault=vault, ledger_id=ledger_id):
                return self._in_vault(vault, ledger_id, key_epoch)

    def _unwrapped(self, key_epoch: int, kept: UnderPassphrase, wrapped: bytes) -> bytes | None:
        if kept not in self._derived:
            return None
        try:
            return unwrap(self._derived[kept], wrapped, self._bound(key_epoch, kept))
        except IntegrityFault:
            # The slot's digest is right, so it is not damaged: the passphrase is another.
            return None

    def _bound(self, key_epoch: int, kept: UnderPassphrase) -> bytes:
        return b"slot/v1" + framed(self._space.encode(), key_epoch.to_bytes(4), kept.header)

    def _in_vault(self, name: str, ledger_id: str, key_epoch: int) -> bytes | None:
        key: object = self._asked(name, lambda it: it.read(ledger_id, key_epoch))
        if key is None or (isinstance(key, bytes) and len(key) == KEY_BYTES):
            return key
        raise StorageFault(f"{name} gave something that is no wrapping key")

    def _asked(self, name: str, ask: Callable[[KeyVault], T]) -> T:
        """What a vault answers; raises StorageFault, in our words, for whatever it fails with."""
        if name not in self._vaults:
            message = f"the wrapping key is kept by {name}, which was not given"
            raise RefusedError(Refused(Refusal.SERVICE_UNAVAILABLE, "vault", message))
        try:
            return ask(self._vaults[name])
        except RefusedError:
            raise
        except Exception as error:  # a vault may fail in any way
            raise StorageFault(f"{name}, which keeps the wrapping key, failed") from error


def _keeping(content: bytes) -> Keeping:
    """What a slot's content says of how its key is kept."""
    if len(content) == KEY_BYTES:
        return InSlot()
    kind, rest = content[:1], content[1:]
    if kind == _UNDER_PASSPHRASE:
        log_n, block, lanes = rest[: len(SCRYPT_COST)]
        if log_n > SCRYPT_LOG_N_MAX or block * lanes > SCRYPT_BLOCKS_MAX:
            raise IntegrityFault("a slot asks for more than a passphrase may cost")
        return UnderPassphrase(
            (log_n, block, lanes), content[_HEADER_BYTES - _SALT_BYTES : _HEADER_BYTES]
        )
    if kind == _IN_VAULT:
        name = rest[_LEDGER_ID_BYTES:].rstrip(b"\0").decode(errors="replace")
        return InVault(name, rest[:_LEDGER_ID_BYTES].hex())
    raise RefusedError(Refused(Refusal.SCHEMA_NEWER, "state"))


def _vault_of(keeping: Keeping) -> str:
    return keeping.vault if isinstance(keeping, InVault) else SLOTS


def _wrong_passphrase(message: str) -> Refused:
    return Refused(Refusal.INVALID_REQUEST, "passphrase", message)
