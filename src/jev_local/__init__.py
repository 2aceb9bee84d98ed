"""jev-local: a local System One server in front of llama-server."""

__version__ = "0.1.0"
