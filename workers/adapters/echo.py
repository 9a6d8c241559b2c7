"""Answers with the request's text: the smallest worker that behaves like a model."""

import re
from collections.abc import AsyncGenerator

from fairlane.workers.adapters.shapes import completion, embeddings, prompt_of, usage_for
from fairlane.workers.sdk import Context, Delta, Result, Task, Usage

_WORDS = re.compile(r"\S+\s*|\s+")


async def echo(task: Task, context: Context) -> AsyncGenerator[str | Delta | Usage | Result, None]:
    """Stream the last user message word by word, with usage; without a stream, give it as a completion.

    Embeddings get small vectors that depend on the text alone. Any other payload comes back as `{"echo":
    payload}`.
    """
    if task.type == "openaiEmbedding":
        answer = embeddings(task)
        context.set_usage(Usage(input_tokens=answer["usage"]["prompt_tokens"], output_tokens=0))
        yield Result(answer)
        return
    prompt = prompt_of(task.payload)
    if prompt is None:
        yield Result({"echo": task.payload})
        return
    words = _WORDS.findall(prompt)
    usage = usage_for(prompt, len(words))
    if task.stream:
        for word in words:
            yield word
        yield Delta(finish_reason="stop")
        yield usage
    else:
        yield usage
        yield Result(completion(task, prompt, "stop", usage))
