"""Names of a package that are imported when they are first asked for: torch alone takes seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import ModuleType


class _Package(ModuleType):
    """A package whose names are those of its modules.

    Safe in any number of threads: whoever comes second sets what is there.
    """

    _home_of: Mapping[str, str]

    def __getattr__(self, name: str) -> object:
        if name not in self._home_of:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value: object = getattr(import_module(self._home_of[name]), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        # Python sets a module in its package once it is imported. Where a function of that name is in it, the
        # name is the function's: test_public.py::test_a_function_hides_the_module_of_its_name.
        if isinstance(value, ModuleType) and self._home_of.get(name) == value.__name__:
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *self._home_of})


def names_from(package: str, homes: Mapping[str, Iterable[str]]) -> None:
    """Have a package import its names when they are asked for. To be called in its ``__init__``.

    Args:
        package: its full name.
        homes: names, by the module in it that they come from.
    """
    module = sys.modules[package]
    vars(module)["_home_of"] = {name: f"{package}.{home}" for home, names in homes.items() for name in names}
    module.__class__ = _Package
