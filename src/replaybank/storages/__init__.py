"""Storages: the data, and the log of what was written."""
