"""Measures of this family."""

__all__: list[str] = []
HELPERS: tuple[str, ...] = ()
