"""The main job on a small dataset: a simulated arm, a network that learns from it, and the figures."""
