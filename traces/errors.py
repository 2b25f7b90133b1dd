"""What can be wrong with a trace, as one line that names the place."""

from __future__ import annotations


class TraceError(ValueError):
    """A trace that cannot be read as asked: the message names the file, the line and the choices."""
