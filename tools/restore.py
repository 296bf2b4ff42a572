"""Restoring a backup: put in place, forgotten again, audited, and only then served."""

from functools import partial
from pathlib import Path

from memoranda.ledger.errors import Refusal, Refused, RefusedError
from memoranda.ledger.places import path_of
from memoranda.ledger.restoring import Asked, Restored, Restoring
from memoranda.ledger.stamps import Stamps
from memoranda.ledger.vaults import KeptKey, KeyVault, Passphrase
from memoranda.projections.audit import Finding
from memoranda.tools.memory import Memory, assemble, place_of, unlocking_of
from memoranda.tools.settings import Settings

PLAINLY = Asked()


class RestoreReport(Restored):
    """A restored ledger; while the audit finds something, it is not served.

    `kept_key` is why the wrapping key of before is not destroyed yet, if so.
    """

    findings: tuple[Finding, ...]
    is_served: bool
    kept_key: str | None = None


def restore(
    settings: Settings,
    stamps: Stamps,
    folder: Path | str,
    asked: Asked = PLAINLY,
    *,
    passphrase: Passphrase = None,
    key_vault: KeyVault | None = None,
) -> RestoreReport | Refused:
    """Brings a space back from a backup folder; repeatable after a crash at any step.

    Forced, it is served whatever the audit finds. In the end the wrapping key is kept by the vault
    that the settings name, or by a host's own `key_vault`.
    """
    try:
        backup = path_of(folder, "backup")
        unlocking = unlocking_of(settings, passphrase, key_vault)
    except RefusedError as error:
        return error.refused
    if asked.position is not None and type(asked.position) is not int:
        return Refused(Refusal.INVALID_REQUEST, "position", "is a position of the log")
    restoring = Restoring(place_of(settings), stamps, settings.host, unlocking)
    restored = restoring.begin(backup, asked)
    if isinstance(restored, Refused):
        return restored
    opened = partial(assemble, create=False, is_restoring=True)
    try:
        with opened(settings, stamps, passphrase=passphrase, key_vault=key_vault) as memory:
            key_epoch, kept_key = _rotated(memory, restored.key_epoch)
            findings = memory.audit.verify().findings
    except RefusedError as error:  # another restore has put another log there meanwhile
        return error.refused
    is_served = asked.force or not findings
    if is_served:
        restoring.finish()
    fields = {**dict(restored), "key_epoch": key_epoch, "kept_key": kept_key}
    return RestoreReport(**fields, findings=findings, is_served=is_served)


def _rotated(memory: Memory, key_epoch: int) -> tuple[int, str | None]:
    """The epoch in force, later than a given one, and why the key of before is still kept."""
    while True:
        try:
            # Whatever opened the backup until now opens nothing that is written from here on.
            if (new := memory.rotate_keys()) > key_epoch:
                return new, None
        except KeptKey as fault:
            if fault.key_epoch <= key_epoch:
                # One of before was kept already, and there is no room for the next.
                message = f"{fault}; the backup is in place and not served, until it is gone and"
                raise KeptKey(f"{message} `memoranda restore` has run again") from fault
            return fault.key_epoch, str(fault)
