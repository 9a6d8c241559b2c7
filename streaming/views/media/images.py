"""OpenAI's images, the whole answer or one event for each image, and moderations."""

from msgspec import Raw

from fairlane.streaming.events import Event, read_done
from fairlane.streaming.jsontext import items, join_object, json_string, kind_of, members
from fairlane.streaming.views.choice import others
from fairlane.streaming.views.media.typed import MediaStreamView, frame
from fairlane.streaming.views.result import ResultView, misfit
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import media_usage

_OF_ALL = ("background", "output_format", "quality", "size")
"""Members of the answer that stand in the event of each of its images."""


class ImageBodyView(ResultView):
    """The images of a completed task: a result with a list of `data`, or that list. Raises ResultShapeError for anything else."""

    def body(self) -> bytes:
        found, result = _with_list(self.result, "data"), self.result or b""
        if found is None:
            raise self.misfit("images")
        if not kind_of(found.get("created")):
            found = {**found, "created": Raw(b"%d" % self.info.created)}
            result = join_object(found.items())
        return self.with_usage(result, found, media_usage)


class ImageStreamView(MediaStreamView):
    """Events of images that are made (`image_generation`) or edited (`image_edit`)."""

    def __init__(self, info: TaskInfo, kind: str = "image_generation") -> None:
        super().__init__(info)
        self._kind = kind.encode()

    def _done(self, event: Event) -> bytes:
        done = read_done(event.data)
        found = _with_list(done.result, "data")
        if found is None:
            raise misfit(done.result, "images")
        shared = [(name, bytes(found[name])) for name in _OF_ALL if kind_of(found.get(name))]
        shared += self._end_pairs(done)
        created = ("created_at", b"%d" % self._info.created)
        images = [others(members(image) or {}, frozenset()) for image in items(found["data"]) or ()]
        return b"".join(
            [frame(b"%b.completed" % self._kind, [created, *image.items(), *shared]) for image in images]
        )


class ModerationBodyView(ResultView):
    """The judgements of a completed task: a result with a list of `results`, or that list itself. Id and model are the task's
    where the worker names none, and the model also where its caller named a route. Raises ResultShapeError for anything else."""

    def body(self) -> bytes:
        found = _with_list(self.result, "results")
        if found is None:
            raise self.misfit("moderations")
        own = {"id": json_string(f"modr-{self.info.task_id}"), "model": json_string(self.info.model)}
        for name in own:
            if kind_of(found.get(name)) and not (name == "model" and self.info.has_fallback):
                own[name] = bytes(found[name])
        return join_object({**found, **own}.items())


def _with_list(result: bytes | None, name: str) -> dict[str, Raw] | None:
    """The members of a result with this list, or with it alone where the result is a list; None for any other result."""
    found = members(result)
    if found is None and result is not None:
        found = {name: Raw(result)}
    return found if found and kind_of(found.get(name)) == "[" else None
