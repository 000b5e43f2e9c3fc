"""The trajectory index, and splitting batches into trajectories."""
