"""The weight tree."""

from replaybank.weights.sum_tree import SumTree

__all__ = ["SumTree"]
