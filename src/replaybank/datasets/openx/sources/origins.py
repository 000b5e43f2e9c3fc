"""Where the datasets of the catalog are published, as URLs."""

from __future__ import annotations

import os
import re
from typing import Final

from replaybank.datasets.openx.catalog import DatasetFacts

RLDS_URL: Final = "https://storage.googleapis.com/gresearch/robotics"
"""The bucket ``gs://gresearch/robotics``, which needs no account this way."""
RLDS_BUCKET: Final = "gs://gresearch/robotics"
RLDS_VARIABLE: Final = "REPLAYBANK_RLDS_URL"
"""Environment variable with another place for it: a mirror."""
HUB_URL: Final = "https://huggingface.co"
HUB_VARIABLE: Final = "HF_ENDPOINT"
"""The hub's own environment variable for a mirror."""
HUB_REPOSITORY: Final = "jxu124/OpenX-Embodiment"
ORIGINS: Final = ("rlds", "hub", "lerobot")
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)


def rlds_base() -> str:
    """The folder of all RLDS datasets."""
    return (os.environ.get(RLDS_VARIABLE) or RLDS_URL).rstrip("/")


def url_of(facts: DatasetFacts, origin: str) -> str:
    """The folder of a dataset at one of its origins.

    Args:
        facts: the dataset.
        origin: ``"rlds"`` or ``"hub"``.

    Raises:
        ValueError: there is no such origin, or nobody has published the dataset there.

    >>> from replaybank.datasets.openx.catalog import facts_of
    >>> url_of(facts_of("bridge"), "rlds")
    'https://storage.googleapis.com/gresearch/robotics/bridge/0.1.0'
    >>> url_of(facts_of("bridge"), "hub")
    'https://huggingface.co/datasets/jxu124/OpenX-Embodiment/resolve/main/bridge'
    """
    if origin == "rlds":
        return f"{rlds_base()}/{facts.id}/{facts.version}"
    if origin == "hub":
        return _hub_file(HUB_REPOSITORY, facts.id)
    if origin == "lerobot":
        raise ValueError(
            f"the catalog knows no LeRobot copy of {facts.id}: give the path or URL of one as source=, or "
            "its repository ('user/name') as dataset_id="
        )
    raise ValueError(f"the origin must be one of {', '.join(ORIGINS)}, got {origin!r}")


def public_url(path: str) -> str:
    """The same place over HTTPS where a path is in the public bucket; any other path as it is.

    >>> public_url("gs://gresearch/robotics/bridge/0.1.0")
    'https://storage.googleapis.com/gresearch/robotics/bridge/0.1.0'
    """
    if path == RLDS_BUCKET or path.startswith(RLDS_BUCKET + "/"):
        return rlds_base() + path[len(RLDS_BUCKET) :]
    return path


def is_repository(name: str) -> bool:
    """Whether ``name`` may be a repository of the hub; ids of the catalog are none.

    >>> is_repository("lerobot/pusht"), is_repository("bridge"), is_repository("../pusht")
    (True, False, False)
    """
    return _REPOSITORY.fullmatch(name) is not None


def repository_url(name: str) -> str:
    """The folder of the files of a dataset repository on the hub.

    >>> repository_url("lerobot/pusht")
    'https://huggingface.co/datasets/lerobot/pusht/resolve/main'
    """
    return _hub_file(name, "README.md").rpartition("/")[0]


def _hub_file(repository: str, name: str) -> str:
    endpoint = (os.environ.get(HUB_VARIABLE) or HUB_URL).rstrip("/")
    try:
        from huggingface_hub import hf_hub_url
    except ImportError:  # the form of these addresses is documented
        return f"{endpoint}/datasets/{repository}/resolve/main/{name}"
    return hf_hub_url(repository, name, repo_type="dataset", endpoint=endpoint)
