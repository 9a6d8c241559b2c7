"""Requests for audio, images and moderations as payloads of tasks. Pure."""
