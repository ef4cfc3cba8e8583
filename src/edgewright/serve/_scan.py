"""Counts what a msgpack message holds before anything of it is made.

The library bounds each container by itself. The sum is what hurts: 16 MiB of nested empty lists become a gigabyte of
objects. So the tags are walked first; data between them are stepped over.
"""

from __future__ import annotations

from edgewright.serve.errors import MessageError

#: Bytes after a tag whose value has a fixed width: floats, then unsigned and signed integers.
_WIDTHS = {0xCA: 4, 0xCB: 8, **{0xCC + i: 1 << i for i in range(4)}, **{0xD0 + i: 1 << i for i in range(4)}}
_BYTES, _TEXT, _LIST, _MAP = range(4)
#: What follows a tag with a length, and how wide that length is.
_SIZED = {
    **{0xC4 + i: (_BYTES, 1 << i) for i in range(3)},
    **{0xD9 + i: (_TEXT, 1 << i) for i in range(3)},
    **{0xDC + i: (_LIST, 2 << i) for i in range(2)},
    **{0xDE + i: (_MAP, 2 << i) for i in range(2)},
}
_EXTENSIONS = frozenset({*range(0xC7, 0xCA), *range(0xD4, 0xD9)})
_UNUSED = 0xC1


def scan(message: bytes, *, items: int, depth: int, text_bytes: int) -> None:
    """Check that `message` is exactly one msgpack value within the limits.

    `items` bounds all values and keys together, `depth` the nesting of lists and maps, `text_bytes` one string.
    Raises MessageError, also for extension types. Takes time in proportion to the items, at most `items`.
    """
    at, seen = 0, 0
    left = [1]  # values still to come, per open container
    while left:
        if not left[-1]:
            left.pop()
            continue
        left[-1] -= 1
        seen += 1
        if seen > items:
            raise MessageError(
                f"The message holds more than {items:,} values, so it was refused: send numbers as arrays."
            )
        kind, count, at = _head(message, at)
        if kind in (_BYTES, _TEXT):
            if kind == _TEXT and count > text_bytes:
                raise MessageError(f"The message holds a text of {count:,} bytes; at most {text_bytes:,} are taken.")
            at += count
        else:
            if len(left) > depth and count:
                raise MessageError(f"The message nests lists and maps more than {depth} deep, so it was refused.")
            left.append(count * (2 if kind == _MAP else 1))
        if at > len(message):
            raise _broken("it ends within a value")
    if at != len(message):
        raise _broken("something follows its end")


def _head(message: bytes, at: int) -> tuple[int, int, int]:
    """Return what begins at a position, its length, and where its content begins; plain values are empty lists."""
    if at >= len(message):
        raise _broken("it ends within a value")
    tag, at = message[at], at + 1
    if tag < 0x80 or tag >= 0xE0 or tag in (0xC0, 0xC2, 0xC3):
        return _LIST, 0, at
    if tag < 0xC0:
        kind, count = (_MAP, tag & 15) if tag < 0x90 else (_LIST, tag & 15) if tag < 0xA0 else (_TEXT, tag & 31)
        return kind, count, at
    if tag in _WIDTHS:
        return _BYTES, _WIDTHS[tag], at
    if tag in _EXTENSIONS:
        raise MessageError(
            "The message holds a msgpack extension type, which is not taken: send arrays as openpi does."
        )
    if tag == _UNUSED:
        raise _broken("it has a byte that no value begins with")
    kind, width = _SIZED[tag]
    if at + width > len(message):
        raise _broken("it ends within a value")
    return kind, int.from_bytes(message[at : at + width], "big"), at + width


def _broken(why: str) -> MessageError:
    return MessageError(f"The message is not valid msgpack ({why}): send what the client library packs.")
