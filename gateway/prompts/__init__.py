"""Prompts that are made of templates. Pure."""
