"""Owns time, waiting and files: decides in core, acts here."""
