"""Gzip streams of texts that repeat but for a number: packed once, and written again with other digits.

A deflate stream may be put together from pieces that end at a byte and refer to nothing before them [1]_. In a block of fixed codes a
character of the number is eight bits of its own where it stands for the first time, and is copied from there. So a piece becomes that of
another number by a few flipped bits. Its checksum follows too: it is linear in the bits of the text.

References
----------
.. [1] RFC 1951 and RFC 1952; zlib, `deflate` with `Z_FULL_FLUSH` and `Z_FIXED`, and `crc32_combine`.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np

WIDEST = 8  # digits of a number
DIGITS = b" 0123456789"
HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"  # of a file without name and date
POLYNOMIAL = 0xEDB88320
LITERAL = 0x30  # code of the character 0; those of a number have eight bits
FLUSHED = b"\x00\x00\xff\xff"  # end of a piece that ends at a byte


def mark(width: int) -> bytes:
    """What stands for a number of so many digits in a text: characters that are in no other place of JSON.

    >>> list(mark(3))
    [1, 2, 3]
    """
    return bytes(range(1, width + 1))


@dataclass(frozen=True, eq=False)
class RepeatedText:
    """A text with `mark` in the place of a number, which leading spaces fill up."""

    text: bytes
    width: int

    def plain(self, number: int) -> bytes:
        """The text with a number."""
        return self.text.replace(mark(self.width), b"%*d" % (self.width, number))

    @functools.cached_property
    def packed(self) -> PackedText:
        """The text as a piece of a stream."""
        return PackedText.of(self.text, self.width)


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedText:
    """A piece of a deflate stream with `mark` in the place of a number.

    Attributes
    ----------
    stream : the piece.
    size, crc : of its text.
    flips : by place of a digit and by digit, bytes of the stream with the bits to flip.
    changes : by place of a digit and by digit, what that changes of the checksum.
    shift : what the text behind it does to the checksum of a text, as a matrix of bits.
    """

    stream: bytes
    size: int
    crc: int
    flips: Sequence[dict[int, list[tuple[int, int]]]]
    changes: Sequence[dict[int, int]]
    shift: Sequence[int]

    @classmethod
    def of(cls, text: bytes, width: int) -> PackedText:
        """Pack a text."""
        packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_FIXED)
        stream = packer.compress(text) + packer.flush(zlib.Z_FULL_FLUSH)
        places = literals(stream, width)
        crc = zlib.crc32(text)
        flips = [{digit: _flips(places[at], at + 1, digit) for digit in DIGITS} for at in range(width)]
        changes = [{digit: crc ^ zlib.crc32(text.replace(bytes([at + 1]), bytes([digit]))) for digit in DIGITS} for at in range(width)]
        return cls(stream=stream, size=len(text), crc=crc, flips=flips, changes=changes, shift=shifted(len(text)))

    def numbered(self, number: int) -> tuple[bytearray, int]:
        """The piece with a number, and the checksum of its text."""
        made, crc = bytearray(self.stream), self.crc
        for at, digit in enumerate(b"%*d" % (len(self.flips), number)):
            for place, bits in self.flips[at][digit]:
                made[place] ^= bits
            crc ^= self.changes[at][digit]
        return made, crc


def _flips(places: Sequence[int], before: int, after: int) -> list[tuple[int, int]]:
    """Bytes of a stream with their bits that make another character of one at some places, first bit of the code first."""
    different = (LITERAL + before) ^ (LITERAL + after)
    bits = [place + i for place in places for i in range(8) if different >> (7 - i) & 1]
    return [(bit >> 3, 1 << (bit & 7)) for bit in bits]


def literals(stream: bytes, width: int) -> list[list[int]]:
    """Places of the codes of the characters of `mark` in a piece of fixed codes, by character. [bit]"""
    bits = np.unpackbits(np.frombuffer(stream, dtype=np.uint8), bitorder="little").astype(np.int16)
    padded = np.concatenate([bits, np.zeros(16, dtype=np.int16)])
    codes = np.zeros(len(bits), dtype=np.int16)  # the nine bits from each place on, the first one highest
    for i in range(9):
        codes = codes * 2 + padded[i : i + len(bits)]
    code, at = codes.data, 0
    found: list[list[int]] = [[] for _ in range(width)]
    while (kind := code[at + 1] >> 7) != 0:  # the two bits of the kind of a block, low one first
        if kind != 0b10:
            raise ValueError("a block without fixed codes")
        at += 3
        while (value := code[at]) >> 2:  # until the code of seven zeros, the end of the block
            at = _after(code, at, value, found)
        at += 7
    if stream[-len(FLUSHED) :] != FLUSHED:
        raise ValueError("a piece that does not end at a byte")
    return found


def _after(code: memoryview, at: int, value: int, found: list[list[int]]) -> int:
    """The place after a symbol, whose place is noted where it is a character of the mark."""
    if 96 <= value < 384:
        character = (value >> 1) - LITERAL
        if 0 < character <= len(found):
            found[character - 1].append(at)
        return at + 8
    if value >= 400:
        return at + 9
    symbol, at = (256 + (value >> 2), at + 7) if value < 96 else (280 + (value >> 1) - 192, at + 8)
    at += 0 if symbol < 265 or symbol == 285 else (symbol - 261) >> 2
    distance = code[at] >> 4
    return int(at + 5 + max((distance >> 1) - 1, 0))


def _times(matrix: Sequence[int], vector: int) -> int:
    """A matrix of bits times a vector: the columns of its bits that are set."""
    total = 0
    for column in matrix:
        if vector & 1:
            total ^= column
        vector >>= 1
    return total


def shifted(size: int) -> list[int]:
    """What so many zero bytes behind a text do to its checksum, as a matrix of bits."""
    step = [POLYNOMIAL, *(1 << i for i in range(31))]  # of one bit
    power, many = [1 << i for i in range(32)], 8 * size
    while many:
        if many & 1:
            power = [_times(step, column) for column in power]
        step = [_times(step, column) for column in step]
        many >>= 1
    return power


class GzipPieces:
    """A file of one gzip stream, into which ordinary and packed texts are written."""

    def __init__(self, out: IO[bytes], level: int) -> None:
        self._out, self._crc, self._size, self._open = out, 0, 0, False
        self._packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        out.write(HEAD)

    def write(self, text: bytes) -> None:
        """Write a text."""
        self._out.write(self._packer.compress(text))
        self._crc, self._size, self._open = zlib.crc32(text, self._crc), self._size + len(text), True

    def repeat(self, text: RepeatedText, number: int) -> None:
        """Write a text with a number."""
        if self._open:  # what follows refers to nothing before it
            self._out.write(self._packer.flush(zlib.Z_FULL_FLUSH))
            self._open = False
        stream, crc = text.packed.numbered(number)
        self._out.write(stream)
        self._crc, self._size = _times(text.packed.shift, self._crc) ^ crc, self._size + text.packed.size

    def close(self) -> None:
        """End the stream."""
        self._out.write(self._packer.flush(zlib.Z_FINISH))
        self._out.write(struct.pack("<II", self._crc & 0xFFFFFFFF, self._size & 0xFFFFFFFF))
