"""OpenAI's images: the whole answer, or one event for each image."""

from fairlane.streaming.events import Event, read_done
from fairlane.streaming.jsontext import items, join_object, kind_of, members
from fairlane.streaming.views.choice import what_came
from fairlane.streaming.views.media.typed import JSON, MediaBodyView, MediaStreamView, frame, media_usage
from fairlane.streaming.views.sse import error_frame
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import with_usage

_OF_ALL = ("background", "output_format", "quality", "size")
"""Members of the answer that stand in the event of each of its images."""


class ImageBodyView(MediaBodyView):
    """The images of a completed task: a result with a list of `data`, or that list. Raises ResultShapeError for anything else."""

    def body(self) -> tuple[bytes, bytes]:
        result = self.result
        found = members(result)
        if result is not None and kind_of(result) == "[":
            result, found = b'{"data":%b}' % result, {}
        elif found is None or kind_of(found.get("data")) != "[":
            raise self.misfit("images")
        if not kind_of((found or {}).get("created")):
            told = {
                name: bytes(value) for name, value in (members(result) or {}).items() if name != "created"
            }
            result = join_object([("created", b"%d" % self.info.created), *told.items()])
        return JSON, with_usage(result or b"", self.usage, media_usage)


class ImageStreamView(MediaStreamView):
    """Events of images that are made (`image_generation`) or edited (`image_edit`)."""

    def __init__(self, info: TaskInfo, kind: str = "image_generation") -> None:
        super().__init__(info)
        self._kind = kind.encode()

    def done(self, event: Event) -> bytes:
        done = read_done(event.data)
        found = members(done.result) or {}
        listed = items(done.result) if kind_of(done.result) == "[" else items(found.get("data"))
        if listed is None:
            sentence = f"The worker answered with {what_came(done.result)}, not with images"
            return error_frame(sentence, "JSON_PARSE_FAILED")
        shared = [(name, bytes(found[name])) for name in _OF_ALL if kind_of(found.get(name))]
        usage = self.usage(done.usage, done.result)
        end = [("usage", usage)] if usage else []
        frames = []
        for image in listed:
            own = {name: bytes(value) for name, value in (members(image) or {}).items() if kind_of(value)}
            pairs = [("created_at", b"%d" % self.info.created), *own.items(), *shared, *end]
            frames.append(frame(b"%b.completed" % self._kind, pairs))
        return b"".join(frames)
