"""Seals: hiding commitments, sealed bodies bound to their event, blind tags.

The construction is DESIGN 5. What is chained is the commitment, never the ciphertext, so a body can
be removed without touching history.
"""

import hmac
import zlib
from base64 import urlsafe_b64encode
from struct import pack

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from memoranda.ledger.chain import framed
from memoranda.ledger.errors import IntegrityFault

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
SALT_BYTES = 32
SEAL_ENTROPY_BYTES = SALT_BYTES + NONCE_BYTES
SEAL_TO_ENTROPY_BYTES = KEY_BYTES + NONCE_BYTES
_SEAL_TO = "seal-to/v1"
BODY_BYTES_MAX = 8 * 1024 * 1024
"""No body opens to more, so that a crafted one cannot fill the memory."""


PRIMER = (
    b'{"authorization_id":"item_id":"role":"item","role":"client","agent_id":"person","session_id":'
    b'"person-client"},"evidence":"inference","conflicts_with":["expected_revision":"record_id":"'
    b'"inspected_revision":"reason":""tier":"core","status":"candidate"status":"retired"'
    b'{"session_id":"","seq":1,"role":"user","text":"","occurred_at":"2026-01-01T00:00:00Z",'
    b'"origin":"user"}"role":"assistant""origin":"host""hidden":true,"generated":true'
    b'{"operation_id":"op-","actor":{"role":"primary","agent_id":"agent-main","session_id":"'
    b'","binding_id":"bind-"},"command":{"name":"publish","key":"preference/","content":"'
    b'","sources":[{"kind":"personal_message","ref":"personal-message:#0-"}]},"key":"profile/'
    b'","expected":null,"value":{"id":"mem_","revision":1,"product_domain":"personal",'
    b'"user_space_id":"","status":"accepted","tier":"detail","content":"","evidence":"explicit",'
    b'"effective_at":null,"expires_at":null,"contributor_agent_id":"","updated_by_agent_id":"'
    b'","sources":[{"kind":"user_edit","ref":"op-","occurred_at":"2026-01-01T00:00:00Z"}],'
    b'"contributions":[{"agent_id":"","executor_session_id":"","revision":1}],"rejections":[],'
    b'"blocked_sources":[]}}'
)
"""What most bodies have in common, known to the compressor: a short fact takes half the room.

It never changes, since every body ever sealed needs it to open; another one would be told apart by
the checksum that the compressed stream names.
"""

Cipher = AESGCM


def derive(secret: bytes, purpose: str) -> bytes:
    """A 32-byte key for one purpose."""
    return HKDF(SHA256(), KEY_BYTES, None, purpose.encode()).derive(secret)


def stretch(passphrase: bytes, salt: bytes, cost: tuple[int, int, int]) -> bytes:
    """A key from what a person can remember; `cost` is scrypt's log2 n, r and p."""
    log_n, block, lanes = cost
    return Scrypt(salt, KEY_BYTES, 1 << log_n, block, lanes).derive(passphrase)


class BodyKey:
    """One data key, ready to seal and open bodies."""

    __slots__ = ("_cipher", "key_id")

    def __init__(self, key_id: str, secret: bytes) -> None:
        self.key_id = key_id
        self._cipher = AESGCM(derive(secret, "body/v1"))

    def seal(self, identity: bytes, body: bytes, entropy: bytes) -> tuple[bytes, bytes]:
        """The hiding commitment and the sealed body; `entropy` is SEAL_ENTROPY_BYTES, used once."""
        salt, nonce = entropy[:SALT_BYTES], entropy[SALT_BYTES:]
        assert len(body) <= BODY_BYTES_MAX, "what could not be opened is never sealed"
        commitment = commit(salt, identity, body)
        compressor = zlib.compressobj(zdict=PRIMER)
        packed = compressor.compress(body) + compressor.flush()
        plain = salt + pack(">I", len(packed)) + packed
        plain += bytes(_padded_length(len(plain)) - len(plain))
        sealed = self._cipher.encrypt(nonce, plain, self._bound(identity, commitment))
        return commitment, nonce + sealed

    def resealed(
        self, other: "BodyKey", identity: bytes, commitment: bytes, sealed: bytes, nonce: bytes
    ) -> bytes:
        """The same body under another key; its commitment, and so the chain, stays."""
        plain = self._decrypt(identity, commitment, sealed)
        bound = other._bound(identity, commitment)  # noqa: SLF001  # one class, two keys
        return nonce + other._cipher.encrypt(nonce, plain, bound)  # noqa: SLF001

    def open(self, identity: bytes, commitment: bytes, sealed: bytes) -> bytes:
        """The body; raises IntegrityFault unless it is what was sealed for this identity."""
        plain = self._decrypt(identity, commitment, sealed)
        salt, length = plain[:SALT_BYTES], int.from_bytes(plain[SALT_BYTES : SALT_BYTES + 4])
        body = _decompressed(plain[SALT_BYTES + 4 :][:length])
        if not hmac.compare_digest(commit(salt, identity, body), commitment):
            raise IntegrityFault("a body does not match its commitment")
        return body

    def _decrypt(self, identity: bytes, commitment: bytes, sealed: bytes) -> bytes:
        nonce, rest = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, rest, self._bound(identity, commitment))
        except (InvalidTag, ValueError) as error:  # too short for a nonce is a ValueError
            raise IntegrityFault("a sealed body does not open under its key") from error

    def _bound(self, identity: bytes, commitment: bytes) -> bytes:
        return b"body/v1" + framed(identity, commitment, self.key_id.encode())


def commit(salt: bytes, identity: bytes, body: bytes) -> bytes:
    """A commitment that hides the body while the salt is secret, and binds it for ever."""
    return hmac.digest(salt, b"commit/v1" + framed(identity, body), "sha256")


def wrap(wrapping_key: bytes | Cipher, secret: bytes, bound_to: bytes, nonce: bytes) -> bytes:
    """A key wrapped under another, bound to its place."""
    return nonce + cipher_of(wrapping_key).encrypt(nonce, secret, bound_to)


def unwrap(wrapping_key: bytes | Cipher, wrapped: bytes, bound_to: bytes) -> bytes:
    """The key inside; raises IntegrityFault when the wrapping key or the place is another."""
    nonce, rest = wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:]
    try:
        return cipher_of(wrapping_key).decrypt(nonce, rest, bound_to)
    except (InvalidTag, ValueError) as error:  # too short for a nonce is a ValueError
        raise IntegrityFault("a key does not unwrap here: foreign or damaged keys") from error


def cipher_of(key: bytes | Cipher) -> Cipher:
    """What works with a key; whoever has much to do with one makes it once."""
    return AESGCM(key) if isinstance(key, bytes) else key


def public_of(private: bytes) -> bytes:
    """What seals to the holder of a private key (X25519, any 32 bytes), and opens nothing."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def seal_to(public: bytes, secret: bytes, bound_to: bytes, entropy: bytes) -> bytes:
    """A secret that only the private key opens; `entropy` is SEAL_TO_ENTROPY_BYTES, used once."""
    once = X25519PrivateKey.from_private_bytes(entropy[:KEY_BYTES])
    sender = once.public_key().public_bytes_raw()
    shared = once.exchange(X25519PublicKey.from_public_bytes(public))
    key = derive(shared + sender + public, _SEAL_TO)
    return sender + wrap(key, secret, bound_to, entropy[KEY_BYTES:])


def open_sealed_to(private: bytes, sealed: bytes, bound_to: bytes) -> bytes:
    """The secret inside; raises IntegrityFault unless it was sealed to this key for this place."""
    sender, wrapped = sealed[:KEY_BYTES], sealed[KEY_BYTES:]
    try:
        own = X25519PrivateKey.from_private_bytes(private)
        shared = own.exchange(X25519PublicKey.from_public_bytes(sender))
    except ValueError as error:  # too short, or a point that nobody draws
        raise IntegrityFault("a key does not unwrap here: foreign or damaged keys") from error
    return unwrap(derive(shared + sender + public_of(private), _SEAL_TO), wrapped, bound_to)


def blind(tag_key: bytes, kind: str, name: str) -> str:
    """A tag that can be compared by who holds the tag key, and read by nobody.

    The kind stays in front: it follows from the event's type anyway.
    """
    digest = hmac.digest(tag_key, framed(kind.encode(), name.encode()), "sha256")[:16]
    return f"{kind.rpartition(':')[2]}:{urlsafe_b64encode(digest).decode().rstrip('=')}"


def token_of(index_key: bytes, word: str) -> bytes:
    """A word of the search index as 8 bytes that only the index key can compute."""
    return hmac.digest(index_key, word.encode(errors="surrogatepass"), "sha256")[:8]


def _decompressed(packed: bytes) -> bytes:
    decompressor = zlib.decompressobj(zdict=PRIMER)
    try:
        body = decompressor.decompress(packed, BODY_BYTES_MAX + 1)
    except zlib.error as error:
        raise IntegrityFault("a body does not decompress") from error
    if len(body) > BODY_BYTES_MAX:
        raise IntegrityFault(f"a body opens to more than {BODY_BYTES_MAX} bytes")
    if not decompressor.eof:
        raise IntegrityFault("a body does not decompress: it is cut short")
    return body


def _padded_length(length: int) -> int:
    """Padmé: at most 12 % more, and only a few lengths are possible, so the size tells little."""
    exponent = length.bit_length() - 1
    low_bits = exponent - exponent.bit_length()
    mask = (1 << low_bits) - 1
    return (length + mask) & ~mask
