"""Use cases of tasks: submit, wait, poll, cancel. They know nothing of HTTP; `api/` parses and answers."""
