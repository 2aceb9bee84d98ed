"""The only room that knows llama-server."""
