"""The public contract: all that the server reads and writes, and the names and limits that the client shares."""
