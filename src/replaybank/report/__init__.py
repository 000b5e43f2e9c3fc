"""One self-contained page about a dataset or a checkpointed buffer."""

from replaybank.report.write import write_report

__all__ = ["write_report"]
