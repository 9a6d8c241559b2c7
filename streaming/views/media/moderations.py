"""OpenAI's moderations."""

from fairlane.streaming.jsontext import join_object, json_string, kind_of, members
from fairlane.streaming.views.media.typed import JSON, MediaBodyView


class ModerationBodyView(MediaBodyView):
    """The judgements of a completed task: a result with a list of `results`, or that list itself. Id and model are the task's
    where the worker names none. Raises ResultShapeError for anything else."""

    def body(self) -> tuple[bytes, bytes]:
        result = self.result
        found = members(result)
        if found is not None and kind_of(found.get("results")) == "[":
            told = {name: bytes(value) for name, value in found.items()}
        elif result is not None and kind_of(result) == "[":
            told = {"results": result}
        else:
            raise self.misfit("moderations")
        own = {"id": json_string(f"modr-{self.info.task_id}"), "model": json_string(self.info.model)}
        if kind_of(told.get("id")) == kind_of(told.get("model")) == '"' and not self.info.has_fallback:
            return JSON, result or b""
        told = own | {name: value for name, value in told.items() if kind_of(value)}
        if self.info.has_fallback:  # its caller named a route: the answer has the gateway's name of the model
            told["model"] = own["model"]
        return JSON, join_object(told.items())
