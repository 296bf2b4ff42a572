"""What a terminal or page would obey, or hide: written out, so that a reader sees it."""

import json
import unicodedata

_JOINERS = "\u200c\u200d"
"""Format characters that belong to words and emoji; every other one is shown as its escape."""


def is_unseen(character: str) -> bool:
    """Whether a terminal would obey the character, or hide it, and not show it."""
    is_format = unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return is_format and character not in _JOINERS


def visible(text: str, *, keep: str = "") -> str:
    """The text with what a terminal would obey written out, like `\\x1b`; `keep` stays."""
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape", "surrogatepass").decode()
        if is_unseen(character) and character not in keep
        else character
        for character in text
    )


def escaped(text: str) -> str:
    """JSON text that means the same, with nothing in it that its reader does not see.

    A person is shown a fact in this form before accepting it, and a model gets it in the same.
    """
    if text.isprintable():
        return text
    return "".join(json.dumps(it)[1:-1] if is_unseen(it) else it for it in text)
