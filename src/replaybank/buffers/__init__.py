"""Replay buffers: a storage, a sampler, a writer and transforms, conducted by one object."""
