"""Replaces a command's process: `launch.py SOCKET ARGUMENT...`. Imports only modules that load in a moment.

A server is started as it is without all this: tests kill servers, and a launcher's command outlives it for a moment.
"""

import _socket
import marshal
import os
import signal
import sys

PASSED_ON = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGWINCH")


def main() -> None:
    if sys.argv[2:3] == ["serve"]:
        os.execv(sys.executable, [sys.executable, "-m", "millrace.cli.main", *sys.argv[2:]])
    source = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    source.connect(sys.argv[1])
    numbers = [int(getattr(signal, name)) for name in PASSED_ON]  # marshal knows no enumerations
    ignored = [number for number in numbers if signal.getsignal(number) == signal.SIG_IGN]
    body = marshal.dumps((sys.argv[2:], dict(os.environ), os.getcwd(), ignored))
    descriptors = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)]
    source.sendmsg([len(body).to_bytes(8, "big")], rights)
    source.sendall(body)
    for number in numbers:
        if number not in ignored:
            signal.signal(number, lambda number, _: source.sendall(bytes([number])))
    said = b""
    while len(said) < 4:
        part = source.recv(4 - len(said))
        if not part:
            sys.exit("the process that imports Millrace for the tests has ended")
        said += part
    code = int.from_bytes(said, "big", signed=True)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
