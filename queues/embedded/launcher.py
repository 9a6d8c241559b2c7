"""Run as a script by `child.py`: ties this process to its parent's life, then becomes the given command.

    launcher.py <prctl | watch> <parent's process id> <read end of the parent's pipe> <command> <argument>…

It imports little, because it stands in the way of every start.
"""

import ctypes
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PARENT_GONE = 121
_NOT_STARTED = 127
_FDS = 65_536


def _become(guard: str, parent: int, pipe: int, argv: list[str]) -> None:
    """Arrange the end, then turn into the command. Does not return."""
    if guard == "prctl":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the kernel knew of our wish
            os._exit(_PARENT_GONE)
    elif os.fork() == 0:
        _watch(os.getppid(), pipe)
    os.close(pipe)
    try:
        os.execv(argv[0], argv)  # noqa: S606 (no shell is wanted)
    except OSError as problem:
        print(f"cannot run {argv[0]}: {problem}", file=sys.stderr, flush=True)
        os._exit(_NOT_STARTED)


def _watch(child: int, pipe: int) -> None:
    """The watcher, a child of the child: ends with it, and ends it when the pipe ends."""
    os.closerange(0, pipe)  # above all the descriptors of locks, which must not outlive the child
    os.closerange(pipe + 1, _FDS)
    while os.getppid() == child:
        parent_ended = bool(select.select([pipe], [], [], 1.0)[0])
        if parent_ended and os.getppid() == child:
            os.kill(child, signal.SIGTERM)
            break
    os._exit(0)


if __name__ == "__main__":
    _become(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
