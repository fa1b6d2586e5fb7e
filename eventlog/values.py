"""The base of every fact: frozen, closed, equal by content."""

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, ser_json_inf_nan="strings")
