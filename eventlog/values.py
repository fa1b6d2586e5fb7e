"""The base of every fact: frozen, closed, equal by content."""

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=False,
        ser_json_inf_nan="strings",
        # A cache of short strings would be strewn over all memory that a long log took while it was read, and hold it.
        cache_strings="none",
    )
