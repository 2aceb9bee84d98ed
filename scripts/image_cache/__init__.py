"""Builds llama-server with the image-embedding cache: source, tools, compilation, product."""
