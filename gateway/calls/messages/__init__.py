"""Requests of Anthropic's Messages API as requests of chat. Pure."""
