"""Seals: what goes in comes out, nothing else does, and nothing readable stands in any file."""

import hashlib
import zlib
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memoranda.ledger.authority import ModelSession
from memoranda.ledger.errors import IntegrityFault
from memoranda.ledger.sealing import (
    BODY_BYTES_MAX,
    KEY_BYTES,
    NONCE_BYTES,
    PRIMER,
    SALT_BYTES,
    SEAL_ENTROPY_BYTES,
    BodyKey,
    blind,
    commit,
    derive,
    unwrap,
    wrap,
)

SECRET = bytes(range(KEY_BYTES))
ENTROPY = bytes(range(100, 100 + SEAL_ENTROPY_BYTES))
KEY = BodyKey("key-1", SECRET)
IDENTITY = b"us_alice, position 7"
AUTHENTICATION_BYTES = 16


# -- round trip -----------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None, derandomize=True)
@given(body=st.binary(max_size=5000), identity=st.binary(max_size=100))
def test_what_is_sealed_opens_to_itself(body, identity):
    commitment, sealed = KEY.seal(identity, body, ENTROPY)

    assert KEY.open(identity, commitment, sealed) == body
    assert len(commitment) == 32


@settings(max_examples=100, deadline=None, derandomize=True)
@given(text=st.text(min_size=8, max_size=300))
def test_no_part_of_a_body_stands_in_its_seal(text):
    body = text.encode(errors="surrogatepass")

    commitment, sealed = KEY.seal(IDENTITY, body, ENTROPY)

    assert body not in sealed
    assert body[:8] not in commitment + sealed
    assert zlib.compress(body) not in sealed


def test_equal_bodies_under_fresh_entropy_have_nothing_in_common():
    one, other = (KEY.seal(IDENTITY, b"the same", bytes([n]) * SEAL_ENTROPY_BYTES) for n in (1, 2))

    assert one[0] != other[0]
    assert one[1][NONCE_BYTES:] != other[1][NONCE_BYTES:]


# -- lengths --------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(size=st.integers(1024, 100_000))
def test_padding_adds_at_most_twelve_percent_above_a_kibibyte(size):
    body = hashlib.shake_256(str(size).encode()).digest(size)
    packed = zlib.compressobj(zdict=PRIMER)
    compressed = len(packed.compress(body) + packed.flush())

    _, sealed = KEY.seal(IDENTITY, body, ENTROPY)

    plain = len(sealed) - NONCE_BYTES - AUTHENTICATION_BYTES
    needed = SALT_BYTES + 4 + compressed
    assert needed <= plain <= needed * 1.12


def test_sealed_bodies_have_few_distinct_lengths():
    noise = hashlib.shake_256(SECRET).digest(4096)

    lengths = {
        len(KEY.seal(IDENTITY, noise[:size], ENTROPY)[1]) for size in range(1024, len(noise))
    }

    assert len(lengths) <= 40


# -- refusals -------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, derandomize=True)
@given(at=st.integers(0, 400), bit=st.integers(0, 7), body=st.binary(max_size=300))
def test_a_changed_bit_of_a_sealed_body_is_refused(at, bit, body):
    commitment, sealed = KEY.seal(IDENTITY, body, ENTROPY)
    changed = bytearray(sealed)
    changed[at % len(sealed)] ^= 1 << bit

    with pytest.raises(IntegrityFault):
        KEY.open(IDENTITY, commitment, bytes(changed))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 11, 12, 13, 27, 28, 60])
def test_a_sealed_body_cut_short_is_refused(size):
    commitment, sealed = KEY.seal(IDENTITY, b"body", ENTROPY)

    with pytest.raises(IntegrityFault, match="does not open"):
        KEY.open(IDENTITY, commitment, sealed[:size])


def test_another_identity_commitment_or_key_is_refused():
    commitment, sealed = KEY.seal(IDENTITY, b"body", ENTROPY)
    other_commitment = commit(b"s" * SALT_BYTES, IDENTITY, b"body")

    for key, identity, said in (
        (KEY, IDENTITY + b"0", commitment),
        (KEY, b"", commitment),
        (KEY, IDENTITY, other_commitment),
        (KEY, IDENTITY, commitment[:-1] + bytes([commitment[-1] ^ 1])),
        (KEY, IDENTITY, b""),
        (BodyKey("key-2", SECRET), IDENTITY, commitment),
        (BodyKey("key-1", SECRET[::-1]), IDENTITY, commitment),
    ):
        with pytest.raises(IntegrityFault):
            key.open(identity, said, sealed)


def crafted(plain: bytes, commitment: bytes) -> bytes:
    """What a holder of the key could seal, past the door that checks."""
    nonce = ENTROPY[SALT_BYTES:]
    return nonce + KEY._cipher.encrypt(nonce, plain, KEY._bound(IDENTITY, commitment))


def packed(body: bytes) -> bytes:
    compressor = zlib.compressobj(zdict=PRIMER)
    return compressor.compress(body) + compressor.flush()


def opened_from(content: bytes, *, says: bytes = b"body", length: int | None = None) -> bytes:
    """Opens a body sealed by hand under the commitment of `says`."""
    salt = ENTROPY[:SALT_BYTES]
    commitment = commit(salt, IDENTITY, says)
    plain = salt + pack(">I", len(content) if length is None else length) + content
    return KEY.open(IDENTITY, commitment, crafted(plain, commitment))


def test_a_body_sealed_by_hand_opens_only_when_it_is_whole_and_committed_to():
    assert opened_from(packed(b"body")) == b"body"

    with pytest.raises(IntegrityFault, match="commitment"):
        opened_from(packed(b"another body"))
    with pytest.raises(IntegrityFault, match="cut short"):
        opened_from(packed(b"body"), length=6)
    with pytest.raises(IntegrityFault, match="cut short"):
        opened_from(b"")
    with pytest.raises(IntegrityFault, match="does not decompress"):
        opened_from(b"no stream of ours")
    with pytest.raises(IntegrityFault, match="does not decompress"):
        opened_from(zlib.compressobj(zdict=b"another primer").flush())


def test_plain_text_too_short_for_its_form_is_refused():
    commitment = commit(b"", IDENTITY, b"body")

    for size in (0, 5, 31, 32, 35):
        with pytest.raises(IntegrityFault):
            KEY.open(IDENTITY, commitment, crafted(bytes(size), commitment))


def test_a_body_that_would_fill_the_memory_is_refused_at_the_limit():
    bomb = bytes(BODY_BYTES_MAX + 1)

    assert len(packed(bomb)) < 20_000
    with pytest.raises(IntegrityFault, match=f"more than {BODY_BYTES_MAX} bytes"):
        opened_from(packed(bomb), says=bomb)
    with pytest.raises(IntegrityFault, match=f"more than {BODY_BYTES_MAX} bytes"):
        opened_from(packed(bomb), says=bomb[:BODY_BYTES_MAX])
    largest = bomb[:BODY_BYTES_MAX]
    assert opened_from(packed(largest), says=largest) == largest


def test_what_could_not_be_opened_is_never_sealed():
    with pytest.raises(AssertionError, match="never sealed"):
        KEY.seal(IDENTITY, bytes(BODY_BYTES_MAX + 1), ENTROPY)


# -- wraps, derivations, blind tags ---------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(secret=st.binary(min_size=32, max_size=32), place=st.binary(max_size=40))
def test_a_wrapped_key_opens_at_its_place_only(secret, place):
    wrapped = wrap(SECRET, secret, place, bytes(NONCE_BYTES))

    assert unwrap(SECRET, wrapped, place) == secret
    assert secret not in wrapped
    for key, content, where in (
        (SECRET, wrapped, place + b"x"),
        (SECRET[::-1], wrapped, place),
        (SECRET, wrapped[:-1], place),
        (SECRET, wrapped[:11], place),
        (SECRET, b"", place),
    ):
        with pytest.raises(IntegrityFault, match="does not unwrap"):
            unwrap(key, content, where)


def test_keys_derived_for_different_purposes_have_nothing_in_common():
    purposes = ("tags/v1", "bodies/v1", "body/v1", "recovery/v1")

    derived = {derive(SECRET, purpose) for purpose in purposes}

    assert len(derived) == len(purposes)
    assert all(len(key) == KEY_BYTES for key in derived)


def test_blind_tags_tell_kinds_names_and_spaces_apart_and_nothing_else():
    tag = blind(SECRET, "personal:op", "op-1")

    assert tag == blind(SECRET, "personal:op", "op-1")
    assert tag.startswith("op:")
    others = {
        blind(SECRET, "personal:op", "op-2"),
        blind(SECRET, "artifact:op", "op-1"),
        blind(SECRET, "personal:rec", "op-1"),
        blind(SECRET[::-1], "personal:op", "op-1"),
        blind(SECRET, "personal:opo", "p-1"),
    }
    assert len(others) == 5
    assert tag not in others
    assert "op-1" not in tag


# -- nothing readable in any file -----------------------------------------------------------------

PLAIN = {
    "session": "s-private-session",
    "agent": "agent-private-name",
    "client": "op-private-client",
    "operation": "op-private-operation",
    "key": "preference/private-language",
    "content": "Answer me in Cornish, privately",
    "said": "Could you speak Cornish to me",
    "corrected": "Answer me in Breton, privately",
    "reason": "privately reconsidered",
    "task": "task-private-item",
    "leave": "ea-private-leave",
    "forgotten": "a plan that was forgotten",
    "file": "/home/private/notes.txt",
}


def told(memory) -> list[str]:
    """Tells a ledger everything private through every door; the ids that came of it."""
    memory.host.bind_primary(PLAIN["session"])
    message = {"session": PLAIN["session"], "seq": 1, "role": "user", "text": PLAIN["said"]}
    (captured,) = memory.capture([message])
    memory.host.open_task(item_id=PLAIN["task"], captured_ref=captured.ref)
    memory.host.authorize(
        authorization_id=PLAIN["leave"],
        item_id=PLAIN["task"],
        requirement_revision=1,
        executor_session_id=PLAIN["session"],
    )
    primary = memory.acting_as(ModelSession(PLAIN["session"], PLAIN["agent"]))
    proposed = primary.propose(
        PLAIN["key"], PLAIN["content"], sources=[captured.ref], operation_id=PLAIN["operation"]
    )
    other = memory.publish("home", PLAIN["forgotten"], operation_id=PLAIN["client"])
    conflict = primary.open_conflict(proposed.record_id, other.record_id, PLAIN["reason"])
    assert primary.accept(proposed.record_id, 1).refusal.number == "F27"
    assert memory.resolve_conflict(conflict.conflict_id, "keep_both", PLAIN["reason"])
    assert primary.accept(proposed.record_id, 1).to_revision == 2
    corrected = memory.correct(
        proposed.record_id, 2, PLAIN["corrected"], sources=[{"kind": "file", "ref": PLAIN["file"]}]
    )
    assert memory.retire(proposed.record_id, 3, PLAIN["reason"]).to_revision == 4
    assert memory.forget(other.record_id, 1).status == "forgotten"
    assert len(memory.records(include_inactive=True)) == 2
    return [
        proposed.record_id,
        other.record_id,
        conflict.conflict_id,
        captured.ref,
        corrected.operation_id,
    ]


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
def test_nothing_a_person_or_host_says_stands_readable_in_any_file(opened, folder, tables, is_open):
    memory = opened()

    ids = told(memory)
    if not is_open:
        memory.close()

    files = [path for root in folder.values() for path in root.rglob("*") if path.is_file()]
    content = {path.name: path.read_bytes() for path in files} | tables.files()
    assert {"keys.db", "views.db", "slots"} <= set(content)
    assert len({"ledger.db", "the server's tables"} & set(content)) == 1
    assert ("keys.db-wal" in content) == is_open
    for name, text in [*PLAIN.items(), *(("id", one) for one in ids)]:
        # Suffixes too: an index compresses what its entries begin with.
        for part in (text, text[3:], text[: len(text) // 2]):
            for encoding in ("utf-8", "utf-16-le", "utf-16-be"):
                where = [
                    file for file, bytes_ in content.items() if part.encode(encoding) in bytes_
                ]
                assert not where, (name, part, encoding)
