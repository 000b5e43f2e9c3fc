"""Samplers: which items are read."""
