"""Ask the model for one user of the application: python ask.py USER TIER QUESTION"""

import os
import sys

from openai import OpenAI

user, tier, question = sys.argv[1:]
client = OpenAI(
    base_url=os.environ.get("FAIRLANE_GATEWAY", "http://127.0.0.1:8080") + "/v1",
    api_key=os.environ["SITE"],
    default_headers={"X-Fairlane-User": user, "X-Fairlane-Tier": tier},
)
stream = client.chat.completions.create(
    model="qwen3", messages=[{"role": "user", "content": question}], stream=True
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
