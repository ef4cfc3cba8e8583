"""A parameter that the checkpoint stores in another shape, or as part of another tensor."""

from __future__ import annotations

from edgewright.nn.module import Parameter


class StoredPart(Parameter):
    """`stored_shape` is the stored tensor's, which is seen in the parameter's own shape.

    With `columns` only those are taken, with `rows` those rows, in that order. `part` is the element of the
    parameter's path that the stored name does not have.
    """

    def __init__(
        self,
        *shape: int,
        stored_shape: tuple[int, ...],
        columns: slice | None = None,
        rows: tuple[int, ...] | None = None,
        part: str | None = None,
    ) -> None:
        super().__init__(*shape)
        self.stored_shape, self.columns, self.rows, self.part = stored_shape, columns, rows, part

    @property
    def stored_name(self) -> str:
        """The checkpoint's name of the tensor this is made of."""
        return self.name if self.part is None else self.name.replace(f".{self.part}.", ".")
