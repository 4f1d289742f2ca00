"""GPT-2's table between bytes and printable characters (Radford et al. 2019, `encoder.py`: bytes_to_unicode).

Byte-level vocabularies are stored as text: each byte is written as one printable character. Bytes that are printable
in Latin-1 are written as themselves; the 68 others are numbered from U+0100, so that a space is 'Ġ' and a newline 'Ċ'.
"""

from __future__ import annotations

from collections.abc import Container


def _table() -> dict[int, str]:
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}


BYTE_TO_CHARACTER = _table()
CHARACTER_TO_BYTE = {character: byte for byte, character in BYTE_TO_CHARACTER.items()}
# UTF-8 never contains these bytes (RFC 3629), so a vocabulary may lack them (StarCoder's does)
NOT_IN_UTF8 = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))


def missing_bytes(vocabulary: Container[str]) -> list[int]:
    """The bytes of UTF-8 that a byte-level vocabulary cannot write."""
    return [byte for byte, char in BYTE_TO_CHARACTER.items() if byte not in NOT_IN_UTF8 and char not in vocabulary]


def piece_bytes(piece: str) -> bytes:
    """The bytes of a byte-level vocabulary string: 'âĢ' is b'\\xe2\\x80'.

    A piece with a character outside the table (an added token with a space in it) is encoded in UTF-8 as it is, the
    rule of the ByteLevel decoder in `tokenizers`.
    """
    if all(character in CHARACTER_TO_BYTE for character in piece):
        return bytes(CHARACTER_TO_BYTE[character] for character in piece)
    return piece.encode("utf-8")


def readable(data: bytes) -> str:
    """UTF-8 text; bytes that are not a complete character are shown as '<0xE2>'."""
    # Valid UTF-8 holds no surrogates, so every one that surrogateescape inserts marks a stray byte.
    text = data.decode("utf-8", errors="surrogateescape")
    return "".join(f"<0x{ord(c) - 0xDC00:02X}>" if "\udc80" <= c <= "\udcff" else c for c in text)
