"""A function of the user's as a grader."""

import math
from collections.abc import Callable
from importlib import import_module

from services.reward.scorer import Judgement, Rule


class CustomGraderError(Exception):
    """There is no such module or function."""


class CustomGrader:
    """A Grader that calls function(prompt=, response=, label=) of a module and takes the number it returns."""

    def __init__(self, path: str) -> None:
        """Imports the module.

        Args:
            path: package.module:function.

        Raises:
            CustomGraderError: it has no such function, or cannot be imported.
        """
        module_name, _, function_name = path.partition(":")
        try:
            module = import_module(module_name)
        except Exception as error:  # a module of the user's may raise anything; the recipe's reader has to know what
            raise CustomGraderError(
                f"grader {path}: cannot import {module_name} ({error!r}); is it on the PYTHONPATH?"
            ) from error
        function = getattr(module, function_name, None)
        if not callable(function):
            raise CustomGraderError(f"grader {path}: {module_name} has no function {function_name}")
        self._function: Callable[..., object] = function

    def grade(self, *, prompt: str, response: str, label: str) -> Judgement:
        """See Grader.grade."""
        value = self._function(prompt=prompt, response=response, label=label)
        if isinstance(value, bool | int | float) and math.isfinite(value):
            return Judgement(value=float(value), rule=Rule.CUSTOM)
        return Judgement(
            value=0.0, rule=Rule.ERROR, error=f"the function returned {value!r:.100}; wanted a finite number"
        )
