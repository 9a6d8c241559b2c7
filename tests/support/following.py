"""A reader of a task's events who comes back, as the documentation asks for, whatever is cut meanwhile."""

from tests.support.streams import Frame


class Follower:
    """Keeps what it has read and the last id, and honours `restart`."""

    def __init__(self) -> None:
        self.last = ""
        self.frames: list[Frame] = []
        self.restarts = 0

    def take(self, frame: Frame) -> None:
        name, id_ = frame.event, frame.id
        if name == "restart":
            self.restarts += 1
            self.frames = []
        elif id_ is not None:
            self.frames.append(frame)
        if id_ is not None:
            self.last = id_

    @property
    def ended(self) -> bool:
        return bool(self.frames) and self.frames[-1].event in ("done", "error", "cancelled")

    @property
    def texts(self) -> list[str]:
        return [frame.data["delta"] for frame in self.frames if frame.event == "chunk"]
