"""OpenAI's Responses, of an upstream that has them."""

from fairlane.workers.adapters.dialects.responses.dialect import responses_call

__all__ = ["responses_call"]
