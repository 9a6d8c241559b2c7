"""What the web application does for each question: names the user and the tier, and streams the answer.

    python ask.py ann paid "Why is the sky blue?"

Reads FAIRLANE_GATEWAY, FAIRLANE_KEY (the delegating key) and MODEL. Needs `pip install openai`.
"""

import os
import sys

from openai import OpenAI


def ask(user: str, tier: str, question: str) -> None:
    """Print the answer as it comes, and how long the user waited for its beginning."""
    client = OpenAI(
        base_url=os.environ.get("FAIRLANE_GATEWAY", "http://127.0.0.1:8080") + "/v1",
        api_key=os.environ.get("FAIRLANE_KEY", "none"),
        default_headers={"X-Fairlane-User": user, "X-Fairlane-Tier": tier},
    )
    stream = client.chat.completions.create(
        model=os.environ.get("MODEL", "qwen3-32b"),
        messages=[{"role": "user", "content": question}],
        stream=True,
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)  # empty while it waits in the queue
    print()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    ask(*sys.argv[1:])
