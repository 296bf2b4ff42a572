"""What the ledger does with secrets in text that is about to be kept: refuse it, or redact it."""

from collections.abc import Mapping
from typing import Literal

from memoranda.ledger.errors import Refusal, Refused
from memoranda.ledger.secret_scan import find_secrets, redact

SecretPolicy = Literal["refuse", "redact"]


def screen(texts: Mapping[str, str], policy: SecretPolicy) -> dict[str, str] | Refused:
    """The texts as they may be kept, by field; F37 names kind and place, never the value."""
    if policy == "redact":
        return {field: redact(text) for field, text in texts.items()}
    for field, text in texts.items():
        if secrets := find_secrets(text):
            found = ", ".join(f"{s.kind} at {s.start}-{s.end}" for s in secrets)
            return Refused(Refusal.SECRET_DETECTED, field, f"holds {found}")
    return dict(texts)
