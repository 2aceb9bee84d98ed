"""Pure: no async, no clock, no files, no HTTP. Everything here can be tested with plain values."""
