"""API formats of providers: each turns a task into a request, and the answer into deltas, usage and a result. Pure."""
