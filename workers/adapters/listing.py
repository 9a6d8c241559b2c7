"""What an upstream's list of models says of them. Pure."""

from typing import Any

import msgspec

from fairlane.workers.protocol import ModelInfo

_LENGTHS = ("max_model_len", "context_length", "context_window", "max_context_length")
"""vLLM and SGLang; OpenRouter; Groq; Mistral. llama.cpp's is `n_ctx` of the member `meta`."""


class _Listed(msgspec.Struct):
    id: str
    owned_by: Any = None
    max_model_len: Any = None
    context_length: Any = None
    context_window: Any = None
    max_context_length: Any = None
    meta: Any = None

    def info(self) -> dict[str, Any]:
        meta = self.meta if isinstance(self.meta, dict) else {}
        lengths = [getattr(self, name) for name in _LENGTHS] + [meta.get("n_ctx")]
        return {
            "contextLength": next((number for number in lengths if number), None),
            "ownedBy": self.owned_by or None,
        }


class _List(msgspec.Struct):
    data: list[msgspec.Raw]


def read_models(body: bytes) -> dict[str, ModelInfo]:
    """By the upstream's name. Whatever is not as expected says nothing."""
    try:
        rows = msgspec.json.decode(body, type=_List).data
    except msgspec.DecodeError:
        return {}
    told = {}
    for row in rows:
        try:
            listed = msgspec.json.decode(row, type=_Listed)
            told[listed.id] = msgspec.convert(listed.info(), ModelInfo)
        except msgspec.DecodeError:
            continue
    return told
