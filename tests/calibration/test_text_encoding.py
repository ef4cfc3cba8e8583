"""Files that are not UTF-8 are named, with the byte, a good guess, and the command that converts them."""

from __future__ import annotations

import codecs
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewright.calibration.encoding import decode_text
from edgewright.errors import CalibrationDataError

CHINESE = "今天我们在这里开会，讨论的是这个问题。大家都说这是一个不好的时候，有的人来了，有的人没有来。"
TRADITIONAL = "今天我們在這裡開會，討論的是這個問題。大家都說這是一個不好的時候，有的人來了，有的人沒有來。"
JAPANESE = "これは日本語の文章です。私たちはここでその問題について話しているのです。それがとても大切だと思いました。"
KOREAN = "이것은 한국어로 쓴 글이다. 우리는 여기에서 그 문제를 이야기하고 있다. 사람들은 아직 오지 않았다."
RUSSIAN = "Это русский текст, в котором мы говорим о том, что происходит сегодня на улице и дома."
FRENCH = "Voilà un texte français où l'été déjà passé a été décrit à l'élève, très étonnée."


@given(st.text())
def test_every_utf8_text_is_read(text: str) -> None:
    clean = text.replace("\0", "").removeprefix("\ufeff")
    assert decode_text(clean.encode("utf-8"), "a.txt") == clean
    assert decode_text(codecs.BOM_UTF8 + clean.encode("utf-8"), "a.txt") == clean


@given(st.binary(max_size=200))
def test_any_bytes_are_text_or_a_named_error(data: bytes) -> None:
    try:
        text = decode_text(data, "odd.txt")
    except CalibrationDataError as error:
        text = str(error)
        if not text.startswith("odd.txt "):
            raise
    assert isinstance(text, str)


@pytest.mark.parametrize(
    ("text", "encoding", "guessed"),
    [
        (CHINESE, "gb18030", "GB18030"),
        (TRADITIONAL, "big5", "BIG5"),
        (JAPANESE, "shift_jis", "SHIFT_JIS"),
        (JAPANESE, "euc_jp", "EUC-JP"),
        (KOREAN, "euc_kr", "EUC-KR"),
        (RUSSIAN, "cp1251", "WINDOWS-1251"),
        (RUSSIAN, "koi8_r", "KOI8-R"),
        (FRENCH, "cp1252", "WINDOWS-1252"),
        (FRENCH, "latin-1", "WINDOWS-1252"),
        (CHINESE, "utf-16", "UTF-16"),
        (FRENCH, "utf-32", "UTF-32"),
        (FRENCH, "utf-16-le", "UTF-16LE"),
        (FRENCH, "utf-16-be", "UTF-16BE"),
    ],
)
def test_the_guess_and_its_command_are_right(text: str, encoding: str, guessed: str) -> None:
    data = text.encode(encoding)
    with pytest.raises(CalibrationDataError, match=rf"^notes\.txt .*looks like {guessed}:") as caught:
        decode_text(data, "notes.txt")
    command = str(caught.value).split("`")[1].removesuffix(" OLD > NEW").split()
    assert command[0] == "iconv"
    converted = subprocess.run(command, input=data, capture_output=True, check=True).stdout
    assert converted.decode("utf-8").removeprefix("\ufeff") == text


def test_the_first_wrong_byte_is_named() -> None:
    with pytest.raises(CalibrationDataError, match=r"notes\.txt is not UTF-8 text at byte 4;"):
        decode_text(b"abcd\xe9f", "notes.txt")


def test_something_else_than_text() -> None:
    with pytest.raises(CalibrationDataError, match=r"x\.txt has a zero byte at byte 2, .* so it is no text file"):
        decode_text(b"ab\0" + bytes(range(256)) * 4, "x.txt")
