"""The checksum of Unitree's low-level messages: CRC-32/MPEG-2 over 32-bit words, most significant bit first."""

from __future__ import annotations

import zlib

import numpy as np

_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
"""Each byte with its bits in reverse order."""


def crc32(words: bytes) -> int:
    """Return the checksum of little-endian words: polynomial 0x04C11DB7, initial value 0xFFFFFFFF, no final XOR.

    zlib computes the same polynomial least significant bit first, so the bits go in and come out mirrored: 2 us for a
    LowCmd, where a table in Python takes 90.
    """
    mirrored = np.frombuffer(words, "<u4").byteswap().tobytes().translate(_MIRRORED)
    plain = zlib.crc32(mirrored) ^ 0xFFFFFFFF
    return int.from_bytes(plain.to_bytes(4, "little").translate(_MIRRORED), "big")
