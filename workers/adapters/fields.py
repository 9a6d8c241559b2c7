"""What clients can send to a server with OpenAI's API: members of a request, types of tools, parts of messages. Pure.

Servers read more from a body than what an answer is: another server, key, model or price (LiteLLM, OpenRouter), the address of a
cache or a place in the queue (vLLM, SGLang), and OpenAI what costs more than tokens or names what the operator's account holds.
So the lists below hold what OpenAI documents of an answer, and the sampling fields of vLLM and SGLang. Any other member is not
sent; if the client would then get an answer to another question, the task is rejected. The quirk `NAME=allow` sends a member.
"""

import logging
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw

from fairlane.workers import tasktypes
from fairlane.workers.adapters.lenient import given_members
from fairlane.workers.adapters.quirks import ALLOW, Quirks
from fairlane.workers.sdk.errors import TaskError

log = logging.getLogger("fairlane.worker")
_Members = dict[str, Raw]


def _names(*texts: str) -> frozenset[str]:
    return frozenset(" ".join(texts).split())


_SAMPLING = """
    model stream stream_options frequency_penalty logit_bias logprobs max_tokens n presence_penalty response_format seed stop
    temperature top_p user top_k min_p min_tokens repetition_penalty length_penalty best_of use_beam_search stop_token_ids
    stop_regex include_stop_str_in_output no_stop_trim ignore_eos skip_special_tokens spaces_between_special_tokens
    add_special_tokens truncate_prompt_tokens allowed_token_ids bad_words prompt_logprobs return_token_ids
    return_tokens_as_token_ids echo structured_outputs guided_json guided_regex guided_choice guided_grammar regex ebnf
    json_schema
"""
_AUDIO = "model file stream response_format temperature prompt language"
_IMAGES = """
    model prompt n size quality style background moderation output_format output_compression response_format user seed
    negative_prompt num_inference_steps guidance_scale
"""
FIELDS = {
    "openaiLike": _names(
        _SAMPLING,
        """
        messages audio function_call functions max_completion_tokens modalities parallel_tool_calls prediction
        reasoning_effort safety_identifier tool_choice tools top_logprobs verbosity add_generation_prompt
        continue_final_message chat_template_kwargs documents reasoning include_reasoning separate_reasoning
        stream_reasoning thinking enable_thinking thinking_budget anthropic
        """,
    ),
    "openaiCompletion": _names(_SAMPLING, "prompt suffix"),
    "openaiEmbedding": _names(
        "model input dimensions encoding_format user truncate_prompt_tokens input_type truncate normalize"
    ),
    tasktypes.MODERATION: _names("model input"),
    tasktypes.TRANSCRIPTION: _names(
        _AUDIO,
        "timestamp_granularities include chunking_strategy known_speaker_names known_speaker_references hotwords vad_filter",
    ),
    tasktypes.TRANSLATION: _names(_AUDIO),
    tasktypes.SPEECH: _names("model input voice instructions response_format speed stream_format language"),
    tasktypes.IMAGE: _names(_IMAGES),
    tasktypes.IMAGE_EDIT: _names(_IMAGES, "image mask input_fidelity strength"),
    tasktypes.IMAGE_VARIATION: _names(_IMAGES, "image"),
}
"""Members of each type of task that are sent."""
REJECTED = _names(
    """
    api_base api_key base_url organization model_list models fallbacks deployment_id custom_llm_provider route provider preset
    lora_path plugins web_search_options data_sources chat_template custom_logit_processor logits_processors session_params
    grammar mock_response prompt_embeds
    """
)
"""Members that ask for another server, key, model, tool or source: an answer without them is to another question."""
TOOLS = frozenset({"function", "custom"})
"""Tools that the client runs; the server runs any other, at its operator's cost."""
PARTS = _names(
    "text image_url input_audio file refusal video_url audio_url thinking redacted_thinking reasoning"
)
_WEB = ("https://", "http://", "data:")
_Object = dict[str, Any]
_objects = msgspec.json.Decoder(list[_Object])
_object = msgspec.json.Decoder(_Object)


def sent_on(members: _Members, task_type: str, quirks: Quirks) -> _Members:
    """Return the members that are sent, without those that say nothing. Raise `TaskError` (BAD_REQUEST) for a request that asks
    for what clients cannot have, and `ValueError` for messages and tools that cannot be read."""
    known = FIELDS[task_type]
    sent, dropped = {}, []
    for name, raw in given_members(members).items():
        if name in known or quirks.get(name, "") == ALLOW:
            sent[name] = raw
        elif name in REJECTED:
            raise _refused(name, "selects another server, model or source", name)
        else:
            dropped.append(name)
    if "tools" in members.keys() - sent.keys():  # servers reject what chooses among none
        dropped += [name for name in ("tool_choice", "parallel_tool_calls") if sent.pop(name, None)]
    if dropped:
        log.debug("members that are not sent to the upstream: %s", ", ".join(dropped)[:500])
    for number, tool in enumerate(_objects.decode(sent["tools"]) if "tools" in sent else ()):
        kind = _kind(tool) or ("function" if "function" in tool else "")
        if kind not in TOOLS and quirks.get(f"tools.{kind}") != ALLOW:
            raise _refused(
                f"tools[{number}]: {kind[:100]!r}",
                "runs at the server, at its operator's cost",
                f"tools.{kind}",
            )
    for number, message in enumerate(_objects.decode(sent["messages"]) if "messages" in sent else ()):
        for at, part in _parts(message.get("content")):
            _check_part(part, f"messages[{number}].content{at}", quirks)
    for name in _object.decode(sent.get("chat_template_kwargs", b"{}")):
        if name in REJECTED:
            raise _refused(f"chat_template_kwargs.{name}", "replaces the model's own", name)
    return sent


def _parts(content: Any) -> Iterator[tuple[str, _Object]]:
    """Yield the parts of a message's content, a list or one by itself, each with its place."""
    if isinstance(content, dict):
        yield "", content
    for number, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict):
            yield f"[{number}]", part


def _check_part(part: _Object, place: str, quirks: Quirks) -> None:
    kind = _kind(part)
    if kind and kind not in PARTS and quirks.get(f"content.{kind}") != ALLOW:
        raise _refused(f"{place}: {kind[:100]!r}", "is not supported as a part", f"content.{kind}")
    for found in (part, *(value for value in part.values() if isinstance(value, dict))):
        if found.get("file_id") is not None and quirks.get("file_id") != ALLOW:
            raise _refused(
                f"{place}.file_id", "is a file of the provider's account; send the data itself", "file_id"
            )
    for name in {kind, *part}:  # servers infer the type of a part that has none
        value = part.get(name)
        url = value.get("url") if isinstance(value, dict) else value
        if not name.endswith("_url") or (name != kind and url is None):
            continue
        if not isinstance(url, str) or not url[:8].lower().startswith(_WEB):
            raise _refused(f"{place}.{name}", "is neither a data URL nor one of the web", "")


def _kind(found: _Object) -> str:
    kind = found.get("type") or ""
    if not isinstance(kind, str):
        raise ValueError("a type that is not a string")
    return kind


def _refused(what: str, why: str, allowed: str) -> TaskError:
    hint = f" (an operator can allow {allowed[:100]})" if allowed else ""
    return TaskError("BAD_REQUEST", f"{what} {why}: leave it out{hint}.")
