"""Open X-Embodiment: robot episodes read from their published formats."""
