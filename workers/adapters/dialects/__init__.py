"""What providers speak: each turns a task into a request, and what comes back into deltas, usage and a result. Pure."""
