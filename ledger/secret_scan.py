"""Owns the finding of secrets in text about to be kept: their kind and place, never their value."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import import_module
from typing import Literal


@dataclass(frozen=True, slots=True)
class Secret:
    """Where a secret stands, in code points of the text, and deliberately not what it is."""

    kind: str
    start: int
    end: int


# How far a name is believed to introduce a secret: `password:` most, `my password is` least.
_Claim = Literal["loud", "quiet", "stated"]

# Expressions are compiled at their first use, so importing stays cheap. Every repetition in them is
# bounded, or starts where a run starts, or cannot fail after a long run: that keeps hostile texts
# linear. `\b` is of no use, as Chinese characters (which need no blanks) are word characters.
_WORD = r"(?<![A-Za-z0-9])"
_DIGIT_AHEAD = r"(?=[A-Za-z_.~+/=-]{0,200}\d)"
# The kinds whose first characters tell them, sought in one pass.
_PREFIXED = {
    "json_web_token": r"(?<![_-])eyJ[\w-]{5,}\.[\w-]{8,}\.[\w-]{8,}",
    # Asia is also a word: in capitals, only the exact length of a key makes it one.
    "aws_access_key": r"A(?:KI|BI|CC)A[A-Z0-9]{16,}|ASIA[A-Z0-9]{16}(?![A-Za-z0-9])",
    "github_token": r"(?:gh[opusr]|github_pat)_[A-Za-z0-9_]{20,}",
    "gitlab_token": r"glpat-[\w.-]{19,}\w",
    "slack_token": r"(?:xox(?:[a-np-z]-|o-(?=[a-z-]{0,80}\d))|xapp-\d)[A-Za-z0-9-]{10,}",
    "google_api_key": r"AIza[\w-]{30,}",
    "npm_token": r"npm_[A-Za-z0-9]{30,}",
    "stripe_key": rf"(?:[sr]k_(?:live|test)_|pk_live_|whsec_){_DIGIT_AHEAD}[\w+/=]{{16,}}",
    "model_api_key": rf"sk-(?!ecdsa-){_DIGIT_AHEAD}[\w-]{{16,}}",
    "telegram_token": r"\d{8,10}:AA[\w-]{33,}",
    "discord_token": r"[MNO](?=[\w-]{0,24}\d)[\w-]{23,25}\.[\w-]{6}\.[\w-]{27,}",
    "private_key": r"AGE-SECRET-KEY-1[0-9A-Z]{40,}",
    "service_token": r"(?:(?:hf|do[op]_v1|dckr_pat|shpat|shpss|glsa|figd|gsk|ntn|r8|sbp|lin_api)_"
    rf"|sntrys_|hvs\.|ya29\.|xai-|nvapi-|tskey-|PMAK-|pplx-|GOCSPX-|ATATT3|AKCp){_DIGIT_AHEAD}"
    r"[\w=-]{24,}",
}
_PREFIXED_WORD = f"{_WORD}(?:{'|'.join(f'(?P<{kind}>{it})' for kind, it in _PREFIXED.items())})"
# Where its end is missing, a key is its header and the lines after it that can only be key. No
# possessive repetition of a group: Python 3.11.2 stops such a one too early.
_PEM_KEY = (
    r"-{4,5} ?BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)? ?-{4,5}"
    r"(?:[^-]*(?:-(?!---)[^-]*)*-{4,5} ?END [A-Z0-9 ]{1,48}-{4,5}"
    r"|(?:(?:\s|\\[nr]){1,8}[A-Za-z0-9+/=]{16,})*)"
)
_SEED_PHRASE = (
    r"(?i)(?:seed|recovery|backup|secret|mnemonic) phrase(?: is| ?[:=]) ?"
    r"((?:[a-z]{3,8} ){11,23}[a-z]{3,8})(?![a-z])"
)
# Kind, needle (a hundred times cheaper to look for), expression with the secret as its group.
_SHAPES = (
    ("private_key", "private key", _PEM_KEY),
    ("private_key", "putty-user", r"PuTTY-User-Key-File-\d:.*(?:\n(?!PuTTY-).+){0,80}"),
    # An `@` may stand in a password, a `/` may not: it ends the part of a URL that can hold one.
    ("connection_string", "://", r"://[^\s/:@\x00]{0,128}:([^\s/\x00]{1,256})@(?=[\w\[])"),
    ("basic_auth", "basic ", r"(?i)authorization\W{1,4}basic ([A-Za-z0-9+/=]{8,})"),
    ("bearer_token", "bearer", rf"(?i){_WORD}bearer\s{{1,4}}{_DIGIT_AHEAD}([\w.~+/=-]{{16,}})"),
    ("signed_url", "sig", r"(?i)[?&](?:x-\w{3,4}-signature|sig)=([\w%+/-]{30,})"),
    ("seed_phrase", "phrase", _SEED_PHRASE),
)
# Of detect-secrets, what takes linear time, takes no words for secrets and is not covered above.
_LIBRARY = (
    ("gitlab_token", "gitlab_token", "GitLabTokenDetector"),
    ("mailchimp_key", "mailchimp", "MailchimpDetector"),
    ("pypi_token", "pypi_token", "PypiTokenDetector"),
    ("sendgrid_key", "sendgrid", "SendGridDetector"),
    ("slack_token", "slack", "SlackDetector"),
    ("square_secret", "square_oauth", "SquareOAuthDetector"),
)
# One of these is in all that they match; loading them takes 0.1 s, so not for words and our ids.
_LIBRARY_HINT = r"gl[a-z]{2,5}-[\w-]{19}|GR13|-us\d|pypi-|SG\.|(?i:hooks\.slack|xox\w-\d)|sq0csp-"
_LOCAL_NAMES = "密码|密碼|口令|密钥|密鑰|令牌|パスワード|비밀번호|contraseña|пароль"
_NAME_NEEDLES = f"pass|pw|kennwort|contrasena|senha|key|token|secret|{_LOCAL_NAMES}".split("|")
_ASSIGNED = (
    rf"(?i)((?<![A-Za-z0-9_-])[\w-]{{2,80}}|{_LOCAL_NAMES})"
    r"[\"'`*\])]{0,3}(?: ?\([^()\n]{1,24}\))?[ \t]{0,8}"
    r"(?::=|=>|={1,3}|:(?!//)|>(?=[^<>\s]{1,256}</))(?:\*\*)?\s{0,8}"
)
_STATED = (
    r"(?i)(?<![a-z0-9_])(passwor[dt]|passwd|passphrase|passcode|pwd|kennwort|mot de passe|senha"
    rf"|(?:api|access|secret|private) key|token|secret|{_LOCAL_NAMES})"
    r"(?: (?:for|of|to|on|in|at|from|fürs?|vom|zum|pour|del?|du|da)(?: [^\s:=]{1,30}){1,6}?)?"
    r"(?: (?:is|was|to|ist|lautet|war|est|es|è|é):? (?:now )?| ?[:=] ?| [–—-] | (?=[\"'`“]))"
    rf"|({_LOCAL_NAMES}) ?(?:就?是|叫|为|為|[改换换设設](?:成了?|为|為)|设置为|は|는|은) ?"
    # With no word between, only what ends the sentence is a value: 密码 iPhone15 上有 has none.
    rf"|({_LOCAL_NAMES}) ?(?=[!-~]{{6,64}} ?(?:$|[\n,.;。、]))"
    r"|--(password|passwd|token|api-key|secret) "
)
_QUOTED = r"([\"'`])([^\n]{1,256}?)\1|[“「『]([^\n“”「」『』]{1,256}?)[”」』]"
# A value ends where a tag or the next setting of a connection string or query begins; its first 128
# characters decide, as else thousands of long values that are none would take long.
_BARE = r"(?:(?!</|[;&,][A-Za-z][\w ]{0,40}=)[!-~]){1,128}"
_LOUD_NAME = (
    r"_(?:(?:pg)?pass(?:wor[dt]|wd|phrase|code)|pwd?|kennwort|contrasena|(?:db|user|root|smtp)_?pass"
    rf"|(?:api|access|secret|private)_?key|client_?secret|access_?token|{_LOCAL_NAMES})_"
)
_QUIET_NAME = r"_(?:secret|token|(?:account|auth|encryption|signing|master|service)_key)_"
_HARMLESS_NAME = r"_(?:limit|count|size|type|policy|length|manager|path|file|url|uri|name|field)_$"
_PLACEHOLDER = (
    r"(?i)<[a-z][\w .-]*(?:>.*)?|\$[{(].*|\{\{.*|%\w+%|[*•x.#_-]{3,}|your[_-].*|\[redacted\b.*"
    r"|\$(?:(?-i:[A-Z_][A-Z0-9_]*)|\w*(?:pass|pwd|secret|token|key)\w*)|[\x00\s]*"
    r"|(?:required|optional|undefined|disabled|forgotten|secret(?:str|bytes))(?:[^\w]*|\[.*)"
)
# Where the secret is, not what it is: a manager, a path, a variable, a call, an id of ours.
_REFERENCE = (
    rf"{_PLACEHOLDER}|(?:bitwarden|1password|lastpass|keepassxc|dashlane|keychain)[^\w]*"
    r"|https?://.*|[~.]{1,2}/.*|(?-i:(?:/[a-z0-9._-]+){2,}/?)|[a-z_.]+[(\[].*"
    r"|mem_[0-9a-f]{64}|[a-z]{2,12}-[0-9a-f]{24}"
    r"|(?:[a-z_]+\.)*(?:[a-z]+_)*(?:password|passwd|pwd|token|secret|key)(?:_[a-z]+)*[^\w]*"
)
# What people write with a digit or a sign after 'my password is' without giving it away.
_REMARK = (
    r"(?i)\d+(?:st|nd|rd|th)?-?(?:char|digit|letter|word|bit|byte|day|week|month|year|hour|min)\w*"
    r"|[\w.+-]+@[\w-]+\.[\w.-]+|.*-(?:\w+(?:ed|ble)|only)|v?\d+(?:[.:/-]\d+)+|(?:sha|base|argon)-?\d\w*"
)
_LONG_RUN = r"(?<![\w+/-])[A-Za-z0-9+/_-]{20,}={0,2}"
_NEARBY = (
    r"(?i)(?P<harmless>public[ _-]?keys?|公钥|ssh-\w+|ecdsa-|(?<![a-z])(?:ids?|cid)(?![a-z])|sha\d"
    r"|hash|commit|digest|checksum|fingerprint|address|wallet|channel|playlist|document|folder|etag)"
    r"|(?P<telling>key|token|secret|passw|pwd|credential|auth|密码|密碼|密钥|密鑰|令牌|口令)"
)
_PUBLIC_NUMBER = r"0x[0-9A-Fa-f]+|[13][1-9A-HJ-NP-Za-km-z]{25,34}"  # Ethereum, Bitcoin
_HARMLESS = (
    r"\[(?:redacted: [a-z_]{1,40}|REDACTED)\]"
    r"|-----BEGIN (?![A-Z0-9 ]{0,48}PRIVATE)[A-Z0-9 ]{1,48}-----"
    r"[^-]*(?:-(?!----)[^-]*)*-----END [A-Z0-9 ]{1,48}-----"
)


def find_secrets(text: str) -> tuple[Secret, ...]:
    """Every secret in order of place, none overlapping another."""
    # Earlier redactions and public PEM blocks become as many characters that no rule takes.
    text = _compiled(_HARMLESS).sub(lambda match: "\x00" * len(match[0]), text)
    readable, places = _readable(text)
    return _without_overlap(
        Secret(found.kind, places[found.start], places[found.end - 1] + 1)
        for found in _found(readable)
    )


def redact(text: str) -> str:
    """The text with `[redacted: <kind>]` for each secret; redacting twice changes nothing more."""
    # A replacement moves words closer together, so something new may look like a secret. Every
    # round takes at least one character into a marker and none out of one, so the rounds end.
    while secrets := find_secrets(text):
        parts, position = [], 0
        for secret in secrets:
            parts += [text[position : secret.start], f"[redacted: {secret.kind}]"]
            position = secret.end
        text = "".join((*parts, text[position:]))
    return text


def _readable(text: str) -> tuple[str, Sequence[int]]:
    """The text as it is read (NFKC, nothing invisible), and the place of each of its characters."""
    if text.isascii():
        return text, range(len(text))
    folded = tuple(map(_folded, text))
    places = [place for place, character in enumerate(folded) if character]
    return "".join(folded), places


@lru_cache(maxsize=8192)
def _folded(character: str) -> str:
    if unicodedata.category(character) == "Cf" or character in "\u034f\ufe0e\ufe0f":
        return ""
    folded = unicodedata.normalize("NFKC", character)
    # Ligatures keep their shape: places stay one to one, and no secret hides in them.
    return folded if len(folded) == 1 else character


def _without_overlap(secrets: Iterable[Secret]) -> tuple[Secret, ...]:
    """One secret for each touched stretch of text; of two that start alike, the first names it."""
    merged: list[Secret] = []
    for secret in sorted(secrets, key=lambda secret: secret.start):
        if merged and secret.start < merged[-1].end:
            merged[-1] = replace(merged[-1], end=max(merged[-1].end, secret.end))
        else:
            merged.append(secret)
    return tuple(merged)


def _found(text: str) -> Iterator[Secret]:
    """By precedence: telling shapes, the library's, what a name claims, sheer randomness."""
    lowered = text.lower()
    for match in _compiled(_PREFIXED_WORD).finditer(text):
        yield Secret(match.lastgroup or "", *match.span())
    runs = tuple(_compiled(_LONG_RUN).finditer(text))
    shapes = [(kind, _compiled(shape)) for kind, needle, shape in _SHAPES if needle in lowered]
    if _compiled(_LIBRARY_HINT).search(text):
        shapes += _library()
    for kind, pattern in shapes:
        for match in pattern.finditer(text):
            if not _compiled(_PLACEHOLDER).fullmatch(match[match.lastindex or 0]):
                yield Secret(kind, *match.span(match.lastindex or 0))
    if any(needle in lowered for needle in _NAME_NEEDLES):
        yield from _claimed(text)
    yield from (Secret("high_entropy_string", *run.span()) for run in runs if _is_unexplained(run))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


@cache
def _library() -> tuple[tuple[str, re.Pattern[str]], ...]:
    # Its detectors answer with values, its expressions with places; alone they match inside words.
    return tuple(
        (kind, re.compile(f"{_WORD}({pattern.pattern})", pattern.flags))
        for kind, module, name in _LIBRARY
        for pattern in getattr(import_module(f"detect_secrets.plugins.{module}"), name).denylist
    )


def _claimed(text: str) -> Iterator[Secret]:
    """What follows a name: `password: ...`, `API_KEY=...`, `my password is ...`."""
    for pattern in (_ASSIGNED, _STATED):
        covered = 0
        for match in _compiled(pattern).finditer(text):
            name = match[match.lastindex or 0]
            if match.end() < covered:
                continue
            claim = _claim_of(name) if pattern is _ASSIGNED else "stated"
            # After a line break, as after words, a value must look like one by itself.
            claim = "stated" if claim and "\n" in match[0] else claim
            for secret in _values(text, match.end(), name, claim) if claim else ():
                covered = secret.end
                yield secret


def _claim_of(name: str) -> _Claim | None:
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_]+", name)
    joined = f"_{'_'.join(parts).lower()}_"
    if _compiled(_HARMLESS_NAME).search(joined):
        return None
    if _compiled(_LOUD_NAME).search(joined):
        return "loud"
    return "quiet" if _compiled(_QUIET_NAME).search(joined) else None


def _values(text: str, position: int, name: str, claim: _Claim) -> Iterator[Secret]:
    """The value that begins here, if one does."""
    quoted = _compiled(_QUOTED).match(text, position)
    match = quoted or _compiled(_BARE).match(text, position)
    if match is None or _compiled(_REFERENCE).fullmatch(match[match.lastindex or 0]):
        return
    start, end = match.span(match.lastindex or 0)
    if not quoted:
        end = start + len(text[start:end].rstrip("\"'`.,;:()[]{}<>"))
        start = end - len(text[start:end].lstrip("\"'`("))
    kind = "key" if re.search(r"(?i)key|token|secret|密钥|密鑰|令牌", name) else "password"
    if _is_value(text[start:end], text[end : end + 2], kind, claim):
        is_cut = match.end() - position == 128
        rest = _compiled(r"[!-~]+").match(text, match.end()) if is_cut else None
        yield Secret(f"{kind}_assignment", start, rest.end() if rest else end)


def _is_value(value: str, following: str, kind: str, claim: _Claim) -> bool:
    has_digit = re.search(r"\d", value) is not None
    if len(value) >= 8 and (claim == "loud" or (claim == "quiet" and has_digit)):
        return True
    if value.isdigit():
        # Four or five digits may be a year or the number of something: then a word follows.
        return kind == "password" and len(value) >= (6 if following.strip().isalpha() else 4)
    length_min, marks = (12, r"\d") if kind == "key" else (6, r"[\d!@#$%^&*+=?~]")
    if len(value) < length_min or _compiled(_REMARK).fullmatch(value):
        return False
    return re.search(marks, value) is not None and re.search(r"[A-Za-z]", value) is not None


def _is_unexplained(run: re.Match[str]) -> bool:
    """Whether this run is random, and nothing before it on its line says that it is public."""
    if len(run[0]) > 256 or not _looks_random(run[0]):
        return False
    line = re.split(r"[\n\x00]", run.string[max(0, run.start() - 256) : run.start()])[-1]
    is_file = "/" in run[0] and _compiled(r"\.[A-Za-z]").match(run.string, run.end())
    if is_file or re.search(r"://|^www\.|base64,", re.split(r"\s", line)[-1] + run[0][:3]):
        return False
    hints = [match.lastgroup for match in _compiled(_NEARBY).finditer(line[-64:])]
    # The nearest word decides. Without one, only what is longer than most public ids is taken.
    return hints[-1] == "telling" if hints else len(run[0]) >= 32


def _looks_random(token: str) -> bool:
    """Of random base64 runs this finds 70 % at 20 characters, 93 % at 32; of identifiers few."""
    if token in (token.lower(), token.upper()) or re.fullmatch(_PUBLIC_NUMBER, token):
        return False
    chunks = re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", token)
    is_chopped = sum(map(len, chunks)) < 2.6 * len(chunks) and len(re.findall(r"\d", token)) >= 2
    return is_chopped and max(map(len, re.split(r"[-_/+=]", token))) >= 12
