"""OpenAI's embeddings: the worker's vectors in the encoding that the caller asked for."""

import base64
import binascii
import sys
from array import array

import msgspec

from fairlane.streaming.jsontext import items, join_object, json_string, kind_of, members, string_or_none
from fairlane.streaming.views.choice import what_came
from fairlane.streaming.views.result import ResultShapeError, ResultView
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import openai_usage, with_usage

_floats = msgspec.json.Decoder(list[float])


class EmbeddingBodyView(ResultView):
    """The embeddings body of a completed task: vectors as lists, or as base64 of little-endian float32."""

    def __init__(self, info: TaskInfo, encoding_format: str = "float") -> None:
        super().__init__(info)
        self._base64 = encoding_format == "base64"

    def body(self) -> bytes:
        """OpenAI's embeddings object. Raises ResultShapeError.

        1. A result with a list of `data` passes through in the order of `index`, or numbered without one, byte for
           byte if its vectors have the asked order and encoding and it has its usage.
        2. A list of numbers is one vector, a list of lists several.
        3. Anything else is no embedding.
        """
        result = self.result
        if result is None:
            raise ResultShapeError(
                f"The worker answered with {'text' if self.has_chunks else 'nothing'}, not with embeddings"
            )
        found = members(result)
        data = items(found.get("data")) if found is not None else None
        if found is not None and data is not None:
            return self._converted(result, dict(found), data)
        if kind_of(result) != "[":
            raise self._misfit(result)
        one = kind_of(bytes(memoryview(result)[:64]).lstrip()[1:]) not in ("[", "]")
        vectors = [result] if one else items(result)
        if not vectors:
            raise self._misfit(result)
        encoded = []
        for vector in vectors:
            one_encoded = (
                _to_base64(vector) if self._base64 else vector if _unpacked(vector) is not None else None
            )
            if one_encoded is None:
                raise self._misfit(result)
            encoded.append(one_encoded)
        return self._object(encoded)

    def _converted(self, result: bytes, found: dict[str, bytes], data: list[bytes]) -> bytes:
        entries = [dict(members(entry) or {}) for entry in data]
        given = [bytes(entry.get("index", b"")) for entry in entries]
        places = [b"%d" % place for place in range(len(entries))]
        if given != places and sorted(given) == sorted(places):  # clients go by position
            entries.sort(key=lambda entry: int(entry["index"]))
        changed = given != places
        for place, entry in zip(places, entries, strict=True):
            vector = self._encoded(entry.get("embedding"))
            if vector is None:
                raise ResultShapeError("The worker answered with data that are no embeddings")
            changed = changed or vector != bytes(entry["embedding"])
            entry |= {"index": msgspec.Raw(place), "embedding": msgspec.Raw(vector)}
        if not entries:
            raise ResultShapeError("The worker answered with an empty list of embeddings")
        if not changed:
            return with_usage(result, self.usage)
        found["data"] = b"[%b]" % b",".join([join_object(entry.items()) for entry in entries])
        return with_usage(join_object(found.items()), self.usage)

    def _misfit(self, result: bytes) -> ResultShapeError:
        return ResultShapeError(f"The worker answered with {what_came(result)}, not with embeddings")

    def _object(self, vectors: list[bytes]) -> bytes:
        entries = [
            b'{"object":"embedding","index":%d,"embedding":%b}' % (index, vector)
            for index, vector in enumerate(vectors)
        ]
        usage = openai_usage(self.usage) or b'{"prompt_tokens":0,"total_tokens":0}'
        return join_object(
            [
                ("object", b'"list"'),
                ("data", b"[%b]" % b",".join(entries)),
                ("model", json_string(self.info.model)),
                ("usage", usage),
            ]
        )

    def _encoded(self, vector: bytes | None) -> bytes | None:
        """The vector in the asked encoding, itself if it already is; None when it is no vector."""
        if kind_of(vector) == "[":
            return _to_base64(vector or b"") if self._base64 else bytes(vector or b"")
        text = string_or_none(vector)
        if text is None or self._base64:
            return text
        return _from_base64(text)


def _unpacked(vector: bytes) -> list[float] | None:
    try:
        return _floats.decode(vector)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _to_base64(vector: bytes) -> bytes | None:
    floats = _unpacked(vector)
    if floats is None:
        return None
    packed = array("f", floats)
    if sys.byteorder == "big":
        packed.byteswap()
    return b'"%b"' % base64.b64encode(packed.tobytes())


def _from_base64(text: bytes) -> bytes | None:
    unpacked = array("f")
    try:
        unpacked.frombytes(base64.b64decode(msgspec.json.decode(text, type=str), validate=True))
    except (msgspec.MsgspecError, binascii.Error, ValueError):
        return None
    if sys.byteorder == "big":
        unpacked.byteswap()
    return msgspec.json.encode(unpacked.tolist())
