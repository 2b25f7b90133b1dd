"""Qwen-Bailian JSON lines: float seconds, blocks of 16 tokens, chats linked by parent_chat_id."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from traces.intake import Intake
from traces.reader import Reader, has_keys
from traces.readers.json_rows import jsonl_batches
from traces.readers.values import block_ids, text, whole
from traces.row import TraceRow
from traces.stamps import NS_PER_S, json_count, number_ns

BLOCK_TOKENS = 16
REMEMBERED_CHATS = 1 << 18
"""How many latest chats keep their session's root; an older parent's child starts a session anew."""


def read(intake: Intake) -> Iterator[list[TraceRow]]:
    """Rows; the session is the root chat's id, the type (text, search, image, file) is the class."""
    roots: OrderedDict[str, str] = OrderedDict()

    def session_of(chat: str | None, parent: str | None) -> str | None:
        if chat is None:
            return None
        root = chat
        if parent is not None and parent != "-1":
            if parent not in roots:
                intake.accounting.note("orphan_turns")
            root = roots.get(parent, parent)
        roots[chat] = root
        if len(roots) > REMEMBERED_CHATS:
            roots.popitem(last=False)
        return root

    def parse(seq: int, obj: dict[str, Any]) -> TraceRow:
        t_ns = number_ns(obj["timestamp"], NS_PER_S)
        n_input, n_output = json_count(obj["input_length"]), json_count(obj["output_length"])
        hash_ids = block_ids(obj["hash_ids"])
        if not n_input // BLOCK_TOKENS <= len(hash_ids) <= -(-n_input // BLOCK_TOKENS):
            intake.accounting.note("blocks_do_not_cover_prompt")
        turn, kind = whole(obj.get("turn")), text(obj.get("type"))
        session = session_of(text(obj["chat_id"]), text(obj["parent_chat_id"]))
        return TraceRow(
            seq, t_ns, n_input, n_output, kind, session, turn, None, hash_ids, BLOCK_TOKENS, None, None
        )

    return jsonl_batches(intake, parse)


BAILIAN = Reader(
    summary="Qwen-Bailian JSON lines: timestamp in s, chat_id, parent_chat_id, blocks of 16 tokens",
    matches=has_keys("chat_id", "parent_chat_id", "timestamp", "turn", "type", "hash_ids[]"),
    read=read,
)
