"""Prints the dashboard as a terminal shows it, for the docs: python3 scripts/dashboard_screen.py SECONDS COMMAND...

Runs the command in a terminal of COLUMNS (120) and LINES (32) for so long, prints what is on the screen, stops the run with
`q`, and prints its last lines. Needs pyte, from PyPI."""

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time

import pyte

COLUMNS, LINES = (int(os.environ.get(name, size)) for name, size in [("COLUMNS", 120), ("LINES", 32)])

seconds, command = float(sys.argv[1]), sys.argv[2:]
pid, terminal = pty.fork()
if pid == 0:
    os.environ["TERM"] = "xterm-256color"
    os.execvp(command[0], command)
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
screen = pyte.Screen(COLUMNS, LINES)
stream = pyte.ByteStream(screen)
written = b""


def read(until):
    """Reads what the program writes; `False` once it has ended."""
    global written
    while (left := until - time.monotonic()) > 0:
        if select.select([terminal], [], [], min(left, 0.2))[0]:
            try:
                new = os.read(terminal, 65536)
            except OSError:
                return False
            written += new
            stream.feed(new)
    return True


if not read(time.monotonic() + seconds):
    sys.exit("the command ended too early")
print("\n".join(line.rstrip() for line in screen.display).rstrip())
os.write(terminal, b"q")
while read(time.monotonic() + 1):
    pass
os.waitpid(pid, 0)
LEAVE = b"\x1b[?1049l"  # the dashboard's screen
print(re.sub(r"\x1b\[[\d;?]*\w", "", written.rpartition(LEAVE)[2].decode()).replace("\r", ""))
