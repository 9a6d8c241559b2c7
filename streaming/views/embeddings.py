"""OpenAI's embeddings: the worker's vectors in the encoding that the caller asked for."""

import base64
import binascii
import sys
from array import array

import msgspec
from msgspec import Raw

from fairlane.streaming.jsontext import items, join_object, json_string, kind_of, members
from fairlane.streaming.views.result import ResultShapeError, ResultView
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import openai_usage

_floats = msgspec.json.Decoder(list[float])
_NO_VECTOR = (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError)


class EmbeddingBodyView(ResultView):
    """The embeddings body of a completed task: vectors as lists, or as base64 of little-endian float32."""

    def __init__(self, info: TaskInfo, encoding_format: str = "float") -> None:
        super().__init__(info)
        self._encode = _to_base64 if encoding_format == "base64" else _to_list

    def body(self) -> bytes:
        """OpenAI's embeddings object. Raises ResultShapeError.

        1. A result with a list of `data` passes through in the order of `index`, or numbered without one, byte for
           byte if its vectors have the asked order and encoding and it has its usage.
        2. A list of numbers is one vector, a list of lists several.
        3. Anything else is no embedding.
        """
        result, found = self.result, members(self.result)
        data = items((found or {}).get("data"))
        if result is not None and found is not None and data is not None:
            return self._converted(result, found, data)
        listed = items(result)
        if not result or not listed:
            raise self.misfit("embeddings")
        entries = []
        try:
            for index, vector in enumerate(listed if kind_of(listed[0]) == "[" else [result]):
                _floats.decode(vector)
                fields = index, self._encode(vector)
                entries.append(b'{"object":"embedding","index":%d,"embedding":%b}' % fields)
        except _NO_VECTOR:
            raise self.misfit("embeddings") from None
        pairs = [
            ("object", b'"list"'),
            ("data", b"[%b]" % b",".join(entries)),
            ("model", json_string(self.info.model)),
        ]
        usage = openai_usage(self.usage) or b'{"prompt_tokens":0,"total_tokens":0}'
        return join_object([*pairs, ("usage", usage)])

    def _converted(self, result: bytes, found: dict[str, Raw], data: list[bytes]) -> bytes:
        entries = [members(entry) or {} for entry in data]
        given = [bytes(entry.get("index", b"")) for entry in entries]
        places = [b"%d" % place for place in range(len(entries))]
        if given != places and sorted(given) == sorted(places):  # clients go by position
            entries.sort(key=lambda entry: int(bytes(entry["index"])))
        changed = given != places
        vectors = []
        for entry in entries:
            vector = bytes(entry.get("embedding", b""))
            try:
                encoded = self._encode(vector)
            except _NO_VECTOR:
                raise ResultShapeError("The worker answered with data that are no embeddings") from None
            changed = changed or encoded != vector
            vectors.append(Raw(encoded))
        if not entries:
            raise ResultShapeError("The worker answered with an empty list of embeddings")
        if changed:
            for place, entry, encoded in zip(places, entries, vectors, strict=True):
                entry |= {"index": Raw(place), "embedding": encoded}
            data_now = b"[%b]" % b",".join([join_object(entry.items()) for entry in entries])
            found = {**found, "data": Raw(data_now)}
            result = join_object(found.items())
        return self.with_usage(result, found)


def _to_base64(vector: bytes) -> bytes:
    """A vector as base64; one that is a string as it is. Raise one of _NO_VECTOR."""
    if kind_of(vector) == '"':
        return vector
    packed = array("f", _floats.decode(vector))
    if sys.byteorder == "big":
        packed.byteswap()
    return b'"%b"' % base64.b64encode(packed.tobytes())


def _to_list(vector: bytes) -> bytes:
    """A vector as a list; one that is a list as it is. Raise one of _NO_VECTOR."""
    if kind_of(vector) == "[":
        return vector
    unpacked = array("f")
    unpacked.frombytes(base64.b64decode(msgspec.json.decode(vector, type=str), validate=True))
    if sys.byteorder == "big":
        unpacked.byteswap()
    return msgspec.json.encode(unpacked.tolist())
