"""Running a program: its words are kept within a limit, and nothing of it outlives the call."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edgewright.errors import ToolError
from edgewright.targets.external.process import find_program, run_program

_TWO = (
    "import os, subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', {child!r}]);"
    "open('pids', 'w').write(f'{{os.getpid()}} {{child.pid}}'); {then}"
)
_SLEEP = "import time; time.sleep(600)"
_STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def run(code: str, folder: Path, **options: object) -> object:
    more = {"environment": {}, "timeout_s": 60.0, "limit": 1 << 16, **options}
    return run_program([sys.executable, "-c", code], folder, **more)  # type: ignore[arg-type]


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it never happened")


def gone(folder: Path) -> bool:
    """Tell whether the processes that wrote their numbers are there no more (a zombie is not)."""
    for pid in (folder / "pids").read_text().split():
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            return False
    return True


def test_words_code_and_surroundings(tmp_path: Path) -> None:
    code = (
        "import os, sys; print(os.getcwd(), os.environ['MORE'], sys.stdin.read() == '');"
        "print('wrong', file=sys.stderr); sys.exit(7)"
    )
    ended = run_program(
        [sys.executable, "-c", code], tmp_path, environment={"MORE": "x y"}, timeout_s=60.0, limit=1 << 16
    )
    assert (ended.code, ended.stdout, ended.stderr) == (7, f"{tmp_path} x y True\n", "wrong\n")


def test_long_words_are_cut_in_the_middle(tmp_path: Path) -> None:
    code = "import sys; sys.stdout.write('a' * 3000 + 'b' * 3_000_000 + 'c' * 3000)"
    ended = run_program([sys.executable, "-c", code], tmp_path, environment={}, timeout_s=60.0, limit=1000)
    assert ended.stdout == "a" * 500 + "\n[3005000 bytes are left out]\n" + "c" * 500
    assert (ended.code, ended.stderr) == (0, "")


def test_words_that_are_no_text(tmp_path: Path) -> None:
    ended = run_program(
        [sys.executable, "-c", r"import sys; sys.stdout.buffer.write(b'\xff\x00ok')"],
        tmp_path,
        environment={},
        timeout_s=60.0,
        limit=100,
    )
    assert ended.stdout == "\ufffd\0ok"


@pytest.mark.parametrize("child", [_SLEEP, _STUBBORN])
def test_time_that_is_up_ends_all_of_it(child: str, tmp_path: Path) -> None:
    ended = run(_TWO.format(child=child, then="time.sleep(600)"), tmp_path, timeout_s=1.0)
    assert ended.code is None
    wait_for(lambda: gone(tmp_path))


def test_what_a_program_leaves_running_is_ended(tmp_path: Path) -> None:
    ended = run(_TWO.format(child=_SLEEP, then="print('done')"), tmp_path)
    assert (ended.code, ended.stdout) == (0, "done\n")
    wait_for(lambda: gone(tmp_path))


def test_an_interrupt_ends_all_of_it(tmp_path: Path) -> None:
    def press() -> None:
        wait_for((tmp_path / "pids").is_file)
        wait_for(lambda: len((tmp_path / "pids").read_text().split()) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(_TWO.format(child=_SLEEP, then="time.sleep(600)"), tmp_path)
    thread.join()
    wait_for(lambda: gone(tmp_path))


def test_programs_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        ToolError, match="X needs the program no-such-cc, which is not there: install it, and put it on"
    ):
        find_program("no-such-cc", "X")
    with pytest.raises(ToolError, match="which is not there: it comes with Y"):
        find_program("no-such-cc", "X", "it comes with Y")
    path = tmp_path / "cc"
    path.write_bytes(b"\x7fELF nonsense")
    path.chmod(0o755)
    with pytest.raises(ToolError, match=r"The program .*cc can't be started"):
        run_program([str(path)], tmp_path, environment={}, timeout_s=9.0, limit=100)
