"""The recovery code as a person writes it down: in groups of four, and with a mistype told."""

import base64
import hashlib

from memoranda.ledger.sealing import derive

CODE_BYTES = 20
_CHECK_CHARACTERS = 4


def code_of(raw: bytes) -> str:
    """The code that stands for CODE_BYTES of entropy."""
    text = base64.b32encode(raw).decode() + _check_characters(raw)
    return "-".join(text[at : at + 4] for at in range(0, len(text), 4))


def read_code(code: object) -> bytes | None:
    """What a code stands for, however it is spaced; None for a mistyped one, or none at all."""
    if not isinstance(code, str):
        return None
    text = "".join(code.split()).replace("-", "").upper()
    body, check = text[:-_CHECK_CHARACTERS], text[-_CHECK_CHARACTERS:]
    try:
        raw = base64.b32decode(body)
    except ValueError:
        return None
    return raw if len(raw) == CODE_BYTES and _check_characters(raw) == check else None


def key_of(raw: bytes) -> bytes:
    """The private key that opens what was sealed for the code."""
    return derive(raw, "recovery/v1")


def _check_characters(raw: bytes) -> str:
    digest = hashlib.sha256(b"recovery-check" + raw).digest()
    return base64.b32encode(digest).decode()[:_CHECK_CHARACTERS]
