"""Entry of the server's process: take the ports, go into the background, serve."""

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from pushops.sandbox.folders import write_private
from pushops.sandbox.push.config import read, read_or_make
from pushops.sandbox.push.process import PID_FILE
from pushops.sandbox.push.server import BACKLOG, bind, serve


def main(arguments: list[str]) -> int:
    """Return in the parent when the child can be reached: both sockets listen before there is a child."""
    folder = Path(arguments[arguments.index("--folder") + 1])
    config = read(folder)
    listening, control = _take(config.port), _take(config.control_port)
    for each in (listening, control):
        each.listen(BACKLOG)
    config = read_or_make(folder, port=listening.getsockname()[1], control_port=control.getsockname()[1])
    child = os.fork()
    if child:
        write_private(folder / PID_FILE, f"{child}\n")
        return 0
    _detach(folder / "server.log", listening, control)
    serve(folder, config, listening, control)
    return 0


def _take(port: int) -> socket.socket:
    """The port it had, or another if somebody has that now."""
    with suppress(OSError):
        found = bind(port)
        found.listen(BACKLOG)
        return found
    return bind(0)


def _detach(log: Path, *kept: socket.socket) -> None:
    """Leave the session, and every descriptor of the parent's: one may be a lock."""
    os.setsid()
    lowest, highest = sorted(each.fileno() for each in kept)
    for begin, end in ((3, lowest), (lowest + 1, highest), (highest + 1, 4096)):
        os.closerange(begin, end)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
