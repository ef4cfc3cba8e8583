"""Stand-ins for `adb` and `ssh`: they join their words with blanks and give them to a shell, as the real ones do.

Which one this is says its name. FAKE_DEVICE in the environment has words: `old` (as old Android: the exit code is
always 0, both outputs come together, lines end with CR LF), `gone` (no such device), `no-pull` (copying fails).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

WORDS = frozenset(os.environ.get("FAKE_DEVICE", "").split(","))


def shell(words: list[str]) -> int:
    """Run the joined words in a shell."""
    if "old" not in WORDS:
        return subprocess.run(["sh", "-c", " ".join(words)], check=False).returncode % 256
    done = subprocess.run(["sh", "-c", " ".join(words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    sys.stdout.buffer.write(done.stdout.replace(b"\n", b"\r\n"))
    return 0


def adb(words: list[str]) -> int:
    if words[:1] == ["-s"]:
        words = words[2:]
    if "gone" in WORDS:
        print("adb: no devices/emulators found", file=sys.stderr)
        return 1
    if words[0] == "shell":
        return shell(words[1:])
    assert words[0] == "pull"
    if "no-pull" in WORDS:
        print("adb: error: failed to copy: connection reset", file=sys.stderr)
        return 1
    if not Path(words[1]).is_file():
        print(f"adb: error: failed to stat remote object '{words[1]}': No such file or directory", file=sys.stderr)
        return 1
    shutil.copyfile(words[1], words[2])
    return 0


def ssh(words: list[str]) -> int:
    while words[0].startswith("-"):
        words = words[2 if words[0] in ("-p", "-i", "-o") else 1 :]
    if "gone" in WORDS:
        print("ssh: connect to host board port 22: Connection refused", file=sys.stderr)
        return 255
    return shell(words[1:])


if __name__ == "__main__":
    sys.exit({"adb": adb, "ssh": ssh}[Path(sys.argv[0]).name](sys.argv[1:]))
