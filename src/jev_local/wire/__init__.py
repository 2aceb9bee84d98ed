"""The public contract, shared by server and client."""
