"""Batches: files of requests, each line a task of its caller, whose answers come together in a file."""
