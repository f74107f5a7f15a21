"""What all sections of the settings have in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of the settings: immutable, without unknown names, described by its docstrings."""

    model_config = ConfigDict(
        extra="forbid",
        populate_by_name=True,
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )
