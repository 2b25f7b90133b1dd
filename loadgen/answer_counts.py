"""Tokens of answers for which the server stated none: one count over each answer's joined text, after the run.

Where a server can count without generating (``/tokenize``) and states no usage, the answers' texts are kept beside the
records while the run lasts, and counted when its last answer is in: the load is not disturbed, and no text is split
into chunks to be counted with special tokens each. ``counts-<worker>.jsonl`` holds ``{"id", "n_output"}``; the texts
are deleted then. Answers with reasoning, whose text is not all there, stay counts of chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson

from loadgen.endpoint import Prober
from loadgen.record import Outcome, Record
from loadgen.spool import Spool

Count = Callable[[str], int | None]


class AnswerTexts:
    """The texts of one worker's uncounted answers, on their way to the disk."""

    def __init__(self, directory: Path, worker: str = "0") -> None:
        self._texts = Spool(directory / f"texts-{worker}.jsonl")
        self._counts = directory / f"counts-{worker}.jsonl"
        self._open = False

    def keep(self, record: Record, text: str) -> None:
        """Keep *text* if it is all that *record*'s answer said, and nobody has counted it."""
        if record.outcome is not Outcome.OK or record.n_output_source != "chunks":
            return
        if not text or record.first_output_ns is not None:
            return
        if not self._open:
            self._texts.open({})
            self._open = True
        self._texts.event("said", id=record.id, text=text)

    def flush(self) -> None:
        """Have what is queued written."""
        if self._open:
            self._texts.flush()

    def count(self, count: Count) -> int:
        """Count all that was kept, write the counts, delete the texts; how many were counted. Raises OSError."""
        if not self._open:
            return 0
        self._texts.close("complete", 0)
        counted = 0
        with self._texts.path.open("rb") as lines, self._counts.open("xb") as out:
            for line in lines:
                row = orjson.loads(line)
                tokens = count(row["text"]) if row.get("event") == "said" else None
                if tokens is not None:
                    out.write(orjson.dumps({"id": row["id"], "n_output": tokens}) + b"\n")
                    counted += 1
        self._texts.path.unlink()
        return counted


def counter(prober: Prober, model: str) -> Count:
    """Asks the server: the number of tokens in a text, without special ones; None where it will not say."""

    def count(text: str) -> int | None:
        asked = {"model": model, "prompt": text, "add_special_tokens": False}
        status, found = prober.ask_json("POST", "/tokenize", asked)
        tokens = found.get("count") if status == 200 and isinstance(found, dict) else None
        return tokens if isinstance(tokens, int) else None

    return count
