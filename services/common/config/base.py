"""The base of every section and the value types they share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Port = Annotated[int, Field(ge=0, le=65535)]
"""A TCP port; 0 lets the system choose a free one."""


class Section(BaseModel):
    """A frozen section of the recipe; an unknown key is an error, and so is a number that is not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
