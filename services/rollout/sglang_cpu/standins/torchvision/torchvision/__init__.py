"""Stand-in for torchvision, whose wheel replaces a CPU torch: every name exists and fails when it is called.

SGLang and transformers need its names when they are imported, and nothing of it for text models.
"""

import sys
from types import ModuleType

__version__ = "0.0.0"


class _Placeholder(type):
    """A class whose every attribute is its own name and which cannot be instantiated."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name

    def __call__(cls, *arguments: object, **named: object) -> object:
        raise RuntimeError(f"torchvision.{cls.__name__} was called, but torchvision is not installed here")


class _PlaceholderModule(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        placeholder = _Placeholder(name, (), {})
        setattr(self, name, placeholder)
        return placeholder


def _add_module(name: str) -> None:
    """Makes the module importable under its full name and an attribute of its parent."""
    module = _PlaceholderModule(name)
    module.__path__ = []
    sys.modules[name] = module
    parent, _, own_name = name.rpartition(".")
    setattr(sys.modules[parent], own_name, module)


for _name in ("io", "ops", "transforms", "transforms.functional", "transforms.v2", "transforms.v2.functional"):
    _add_module(f"torchvision.{_name}")
