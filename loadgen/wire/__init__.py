"""Sans-IO protocol code: bytes in, events out."""
