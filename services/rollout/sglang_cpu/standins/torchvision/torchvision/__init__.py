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

    __path__: list[str] = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        placeholder = _Placeholder(name, (), {})
        setattr(self, name, placeholder)
        return placeholder


def _module(name: str) -> _PlaceholderModule:
    module = _PlaceholderModule(name)
    sys.modules[name] = module
    return module


io = _module("torchvision.io")
ops = _module("torchvision.ops")
transforms = _module("torchvision.transforms")
transforms.functional = _module("torchvision.transforms.functional")
transforms.v2 = _module("torchvision.transforms.v2")
transforms.v2.functional = _module("torchvision.transforms.v2.functional")
