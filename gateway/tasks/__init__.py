"""What callers do with tasks: submit, wait, poll, cancel. Use cases that know nothing of HTTP; `api/` parses and answers."""
