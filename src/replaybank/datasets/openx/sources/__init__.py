"""Origins of episodes: each gives shards, and the episodes in them."""

from typing import TYPE_CHECKING

from replaybank import lazily

if TYPE_CHECKING:
    from replaybank.datasets.openx.sources.base import Episode, EpisodeSource, FieldSpec, Shard
    from replaybank.datasets.openx.sources.hub_tar import HubTarSource
    from replaybank.datasets.openx.sources.lerobot import LeRobotSource
    from replaybank.datasets.openx.sources.open import open_source
    from replaybank.datasets.openx.sources.rlds import RLDSSource
    from replaybank.datasets.openx.sources.rlds_writer import RLDSWriter

__all__ = [
    "Episode",
    "EpisodeSource",
    "FieldSpec",
    "HubTarSource",
    "LeRobotSource",
    "RLDSSource",
    "RLDSWriter",
    "Shard",
    "open_source",
]

lazily.names_from(
    __name__,
    {
        "base": ["Episode", "EpisodeSource", "FieldSpec", "Shard"],
        "hub_tar": ["HubTarSource"],
        "lerobot": ["LeRobotSource"],
        "open": ["open_source"],
        "rlds": ["RLDSSource"],
        "rlds_writer": ["RLDSWriter"],
    },
)
