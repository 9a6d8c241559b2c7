"""The web pages: the playground at `/`, the dashboard at `/dashboard`. They use the documented calls and nothing else."""
