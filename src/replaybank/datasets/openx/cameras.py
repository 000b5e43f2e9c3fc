"""Which cameras of a dataset are wanted.

A camera is called by its path, as ``("observation", "image")``, or by the last part of it, ``"image"``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from replaybank.datasets.openx.sources.base import Key


def camera_names(image_keys: Any) -> list[Key]:
    """The names of cameras as paths, perhaps of one part.

    Raises:
        TypeError: they are no list of strings and tuples of strings.

    >>> camera_names(["image", ("observation", "wrist_image")])
    [('image',), ('observation', 'wrist_image')]
    """
    if isinstance(image_keys, (str, bytes)) or not isinstance(image_keys, Collection):
        raise TypeError(f"image_keys={image_keys!r}: give a list of the cameras' names, such as ['image']")
    names = [(name,) if isinstance(name, str) else tuple(name) for name in image_keys]
    if not all(name and all(isinstance(part, str) for part in name) for name in names):
        raise TypeError(f"image_keys={image_keys!r}: a name is a string, or a tuple of strings")
    return names


def chosen_cameras(wanted: Sequence[Key], cameras: Collection[Key], dataset: str) -> set[Key]:
    """The cameras among those that a dataset has.

    Raises:
        ValueError: one is not there; those that are are named.
    """
    chosen = set()
    for name in wanted:
        found = {camera for camera in cameras if camera[-len(name) :] == name}
        if not found:
            raise ValueError(
                f"{dataset} has no camera {'/'.join(name)!r}: it has "
                f"{sorted('/'.join(camera) for camera in cameras)}"
            )
        chosen |= found
    return chosen
