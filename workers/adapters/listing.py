"""Reads an upstream's list of models. Pure."""

from typing import Any

import msgspec

from fairlane.workers.protocol import ModelInfo

_LENGTHS = ("max_model_len", "context_length", "context_window", "max_context_length")
"""vLLM and SGLang; OpenRouter; Groq; Mistral. llama.cpp's is `n_ctx` of the member `meta`."""


class _Listed(msgspec.Struct):
    """One of OpenAI's list."""

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


class _Google(msgspec.Struct, rename="camel"):
    """An entry of Gemini's list, whose names begin with `models/`."""

    name: str
    input_token_limit: Any = None
    output_token_limit: Any = None

    @property
    def id(self) -> str:
        return self.name.removeprefix("models/")

    def info(self) -> dict[str, Any]:
        limits = [
            limit for limit in (self.input_token_limit, self.output_token_limit) if isinstance(limit, int)
        ]
        return {"contextLength": sum(limits) or None, "ownedBy": "google"}


class _List(msgspec.Struct):
    data: list[msgspec.Raw] | None = None
    models: list[msgspec.Raw] | None = None


_listed = msgspec.json.Decoder(_Listed).decode
_googles = msgspec.json.Decoder(_Google).decode


def read_models(body: bytes) -> dict[str, ModelInfo]:
    """Return the listed models by the upstream's names. Unexpected entries are left out."""
    try:
        lists = msgspec.json.decode(body, type=_List)
    except (msgspec.DecodeError, RecursionError):
        return {}
    told = {}
    for row in (lists.data if lists.models is None else lists.models) or ():
        try:
            listed: _Listed | _Google = _listed(row) if lists.models is None else _googles(row)
            told[listed.id] = msgspec.convert(listed.info(), ModelInfo)
        except msgspec.DecodeError:
            continue
    return told
