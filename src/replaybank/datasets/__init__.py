"""Datasets: stored experience, ready to be sampled."""
