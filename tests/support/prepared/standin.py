"""Lets the fork server run a command in place of this process: `standin.py ADDRESS ARGUMENTS_OF_PYTHON…`. See `__init__.py`.

It imports very little, so it starts in a hundredth of a second.
"""

import os
import signal
import socket
from array import array
from json import dumps
from sys import argv
from types import FrameType


def main() -> None:
    link = socket.socket(socket.AF_UNIX)
    link.connect(argv[1])
    text = dumps([argv[2:], dict(os.environ), os.getcwd(), False]).encode()
    descriptors = array("i", [0, 1, 2])
    link.sendmsg([len(text).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    link.sendall(text)
    pid = int(link.recv(16))

    def forward(number: int, _: FrameType | None) -> None:
        os.kill(pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, forward)
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    data = link.recv(16)
    status = int(data) if data else 1
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
