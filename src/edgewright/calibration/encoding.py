"""Bytes of a text file to text: UTF-8 or nothing, with a guess at what a file is that isn't."""

from __future__ import annotations

import codecs

from edgewright.errors import CalibrationDataError

#: Byte order marks, the longer before the shorter that it begins with.
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
#: Encodings without a mark, by iconv's name, each with the commonest characters of a language that is written in it.
_FREQUENT = {
    "GB18030": "的一是不了在人有我他这个们中来上大为和国",
    "BIG5": "的一是不了在人有我他這個們中來上大為和國",
    "SHIFT_JIS": "のにはをたがでてとしれさいるもなんきまか",
    "EUC-JP": "のにはをたがでてとしれさいるもなんきまか",
    "EUC-KR": "이다는을의에가고하한지도를로은사기서리어",
    "WINDOWS-1251": "оеаинтсрвлкмдпуяыьгз",
    "KOI8-R": "оеаинтсрвлкмдпуяыьгз",
}
#: Those of them that have a byte for a character, and in whose texts most letters are foreign.
_SINGLE_BYTE = ("WINDOWS-1251", "KOI8-R")
_SAMPLE_BYTES = 1 << 16


def decode_text(data: bytes, name: str) -> str:
    """Return the text of UTF-8 bytes, without a byte order mark.

    Raises CalibrationDataError with file name, first wrong byte, the likely encoding and the command that converts it.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            raise _not_utf8(name, f"starts with the byte order mark of {encoding}", encoding)
    data = data.removeprefix(codecs.BOM_UTF8)
    zero = data.find(b"\0")
    if zero >= 0:
        raise _not_utf8(name, f"has a zero byte at byte {zero}, which no UTF-8 text has", _zeros(data))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(name, f"is not UTF-8 text at byte {error.start}", _guess(data)) from None


def _not_utf8(name: str, what: str, encoding: str | None) -> CalibrationDataError:
    if encoding is None:
        return CalibrationDataError(f"{name} {what}, so it is no text file: give UTF-8 text.")
    return CalibrationDataError(
        f"{name} {what}; it looks like {encoding}: convert it with `iconv -f {encoding} -t UTF-8 OLD > NEW`."
    )


def _zeros(data: bytes) -> str | None:
    """Return the UTF-16 without a mark whose high bytes the zeros would be, None if they are something else."""
    sample = data[:_SAMPLE_BYTES]
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if max(even, odd) * 4 < len(sample) // 2 or min(even, odd) * 8 > max(even, odd):
        return None
    return "UTF-16LE" if odd > even else "UTF-16BE"


def _guess(data: bytes) -> str:
    """Return the encoding in which the text has most of its language's commonest characters, else WINDOWS-1252."""
    sample = data[:_SAMPLE_BYTES]
    best, most = "WINDOWS-1252", 0.15
    for encoding, frequent in _FREQUENT.items():
        text = codecs.getincrementaldecoder(encoding)("replace").decode(sample)
        foreign = [c for c in text if ord(c) > 127]
        if encoding in _SINGLE_BYTE and len(foreign) * 2 < sum(map(str.isalpha, text)):
            continue
        share = sum(c in frequent for c in foreign) / max(len(foreign), 1)
        if share > most and text.count("�") * 20 <= len(foreign):
            best, most = encoding, share
    return best
