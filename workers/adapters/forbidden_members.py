"""Members of a request's body that would steer an upstream elsewhere: to another server, key, account or model. Pure.

Gateways behind us read more from a body than OpenAI does (litellm its own call's arguments, OpenRouter its routing, vLLM the
address of another server's cache). A caller could so have the upstream's keys sent to a server of their own, pay with another
user's account, or use a model that their key does not cover. Such a body is rejected, not fixed: a request for another key or a
fallback would else get an answer to something they did not ask.

Upstreams written in Go (Ollama, LocalAI) take a member's name in any case, and of several the last: `Model` next to `model`. So
names are looked at without their case, and what the adapter sets itself is taken in its own spelling only.
"""

import re
from collections.abc import Mapping

from msgspec import Raw

STEERING = re.compile(
    r"(?:api|aws|azure|vertex|litellm|langfuse|watsonx)_\w+"  # litellm: servers, keys, accounts
    r"|base_url|headers|extra_(?:headers|body|query)|default_headers|ssl_verify|organization|user_config"
    r"|custom_llm_provider|deployment_id|model_list|fallbacks|\w+_fallbacks"
    r"|models|route|provider"  # OpenRouter: other models, other servers
    r"|kv_transfer_params"  # vLLM: the server to fetch a cache from
)
"""Names of members that are refused, as a whole; in any case."""
OURS = frozenset({"model", "stream", "stream_options", "n"})
"""What the adapter sets, or the gateway has looked at: another spelling would be added to it."""


def forbidden_member(members: Mapping[str, Raw], quirks: Mapping[str, str]) -> str | None:
    """Return the first member that a client may not set, or None. A null member is let through."""
    for name, value in members.items():
        folded = name.casefold()
        if quirks.get(name) == "allow":
            continue
        if (folded in OURS and name != folded) or (STEERING.fullmatch(folded) and bytes(value) != b"null"):
            return name
    return None
