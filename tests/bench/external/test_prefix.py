"""The words before the flags: quoting for other shells, how profiles come back, and runners that can't be used."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewright.bench.case.spec import RunnerSpec
from edgewright.bench.external.prefix import Prefix
from edgewright.errors import UsageError

HOSTILE = ["a b", "it's", '"', "; touch x", "$(touch x)", "`id`", "", "*", "~", "#", "\\", "a\nb", "&&", "-p", "é", "|"]
ECHO = (sys.executable, "-I", "-S", "-c", "import sys; sys.stdout.write(chr(0).join(sys.argv[1:]))")


def prefix(command: str, **fields: object) -> Prefix:
    return Prefix(RunnerSpec(command=tuple(shlex.split(command)), **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "shells"),
    [
        ("./genie-t2t-run", 0),
        ("env LD_LIBRARY_PATH=. ./genie-t2t-run", 0),
        ("adb shell ./genie-t2t-run", 1),
        ("/opt/platform-tools/adb -s 1234 shell cd /data/g '&&' ./genie-t2t-run", 1),
        ("ssh me@board ./genie-t2t-run", 1),
        ("ssh -p 22 -vi key -oUser=me board -- ./genie-t2t-run", 1),
        ("nice ssh board ./genie-t2t-run", 1),
        ("ssh lab adb shell /data/genie-t2t-run", 2),
        ("adb.exe exec-out ./genie-t2t-run", 1),
        ("adb devices", 0),
        ("ssh -p", 0),
        ("sudo -u adb adb shell ./g", 1),
        ("ssh board -p 22 ./g", 1),
        ("ssh -p 22", 0),
    ],
)
def test_shells(command: str, shells: int) -> None:
    assert Prefix(RunnerSpec(command=tuple(shlex.split(command)))).shells == shells


def test_local_words_are_not_quoted() -> None:
    one = prefix("./genie-t2t-run --log error")
    assert one.argv(HOSTILE) == ["./genie-t2t-run", "--log", "error", *HOSTILE]
    assert not one.remote
    assert one.profile_dir is None


@pytest.mark.parametrize("words", [HOSTILE, ["one"], []])
def test_a_remote_shell_gets_every_word_back(words: list[str]) -> None:
    argv = prefix("adb shell prog").argv(words)
    assert argv[:3] == ["adb", "shell", "prog"]
    joined = " ".join(shlex.quote(word) for word in ECHO) + "".join(f" {word}" for word in argv[3:])
    done = subprocess.run(["sh", "-c", joined], capture_output=True, check=True)
    assert done.stdout.decode().split("\0") == (words or [""])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), max_size=5))
def test_two_shells_take_apart_what_was_joined_twice(words: list[str]) -> None:
    argv = prefix("ssh lab adb shell prog").argv(words)
    once = shlex.split(" ".join(argv[2:]))
    assert shlex.split(" ".join(once[2:])) == ["prog", *words]


def test_the_prefix_is_sent_as_it_is() -> None:
    one = prefix("adb shell cd '$PWD/x' '&&' ./g")
    assert one.argv(["-p", "a b"]) == ["adb", "shell", "cd", "$PWD/x", "&&", "./g", "-p", "'a b'"]


@pytest.mark.parametrize(
    ("command", "copy"),
    [
        ("ssh board -p 22 -v ./g --shell", "ssh board -p 22 -v cat R"),
        ("ssh board -vp 22 -- ./g", "ssh board -vp 22 -- cat R"),
        ("ssh -- board ./g", "ssh -- board cat R"),
        ("ssh board -oA=b", "ssh board -oA=b cat R"),
        ("adb -s shell -H exec-out shell ./g", "adb -s shell -H exec-out pull R L"),
        ("adb wait-for-device shell ./g", "adb wait-for-device pull R L"),
        ("ssh lab adb -s shell shell ./g", "ssh lab adb -s shell shell cat R"),
    ],
)
def test_the_words_that_reach_a_device(command: str, copy: str) -> None:
    assert prefix(command).pull("R", "L")[0] == copy.split()


def test_how_profiles_come_back() -> None:
    assert prefix("adb -s 1 shell ./g").pull("/d/p.json", "/r/p.json") == (
        ["adb", "-s", "1", "pull", "/d/p.json", "/r/p.json"],
        False,
    )
    assert prefix("ssh -p 22 board cd x '&&' ./g").pull("/d/p", "l") == (
        ["ssh", "-p", "22", "board", "cat", "/d/p"],
        True,
    )
    assert prefix("ssh board -- ./g").pull("/d/p", "l") == (["ssh", "board", "--", "cat", "/d/p"], True)
    assert prefix("ssh lab adb shell ./g").pull("/d/p", "l") == (["ssh", "lab", "adb", "shell", "cat", "/d/p"], True)
    own = prefix("ssh board ./g", pull=("scp", "-P", "22", "board:{remote}", "{local}"))
    assert own.pull("/d/p", "/l/p") == (["scp", "-P", "22", "board:/d/p", "/l/p"], False)


def test_where_profiles_are_written() -> None:
    assert prefix("adb shell ./g").profile_dir == "/data/local/tmp"
    assert prefix("ssh board ./g").profile_dir == "/tmp"
    assert prefix("ssh board ./g", profile_dir="/data/x/").profile_dir == "/data/x"
    assert prefix("ssh board ./g", profile_dir="/").profile_dir == "/"
    assert prefix("docker exec c ./g", pull=("docker", "cp", "c:{remote}", "{local}")).profile_dir == "/tmp"


def test_shells_can_be_said() -> None:
    assert (
        prefix("hdc shell ./g", shells=1, pull=("hdc", "file", "recv", "{remote}", "{local}")).argv(["a b"])[-1]
        == "'a b'"
    )
    assert prefix("adb shell ./g", shells=0, pull=("p", "{remote}")).argv(["a b"])[-1] == "a b"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"command": ()}, "no command"),
        ({"command": ("",)}, "no command"),
        ({"command": ("a\0b",)}, "no command"),
        ({"command": ("g",), "shells": -1}, "shells"),
        ({"command": ("g",), "profile_dir": "/tmp"}, "leave profile_dir out"),
        ({"command": ("adb", "shell", "g"), "profile_dir": "relative"}, "absolute"),
        ({"command": ("adb", "shell", "g"), "profile_dir": "/a b"}, "absolute"),
        ({"command": ("adb", "shell", "g"), "profile_dir": "/a;rm"}, "absolute"),
        ({"command": ("adb", "shell", "g"), "profile_dir": "/a\n"}, "absolute"),
        ({"command": ("adb", "shell", "g"), "pull": ("adb", "pull")}, "{remote}"),
        ({"command": ("hdc", "shell", "g"), "shells": 1}, "pull command"),
    ],
)
def test_runners_that_cant_be_used(fields: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Prefix(RunnerSpec(**fields))  # type: ignore[arg-type]
