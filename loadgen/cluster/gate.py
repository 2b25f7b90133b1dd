"""The master's door: a challenge to whoever says hello, and no word of the run before it has been met."""

from __future__ import annotations

from loadgen.cluster.hello import MASTER, WORKER, new_nonce, proof, proves
from loadgen.cluster.messages import VERSION, Json

MOST_WAITING = 10_000
"""Strangers whose answer is awaited; beyond it the oldest must say hello again."""


class Gate:
    """Keeps what was asked of each stranger until it answers."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._waiting: dict[str, tuple[bytes, bytes, Json]] = {}

    def answer(self, peer: str, message: Json) -> tuple[Json | None, Json | None]:
        """(what to tell the stranger, its facts once it has proved to know the token)."""
        if message.get("m") == "hello":
            return self._challenge(peer, message), None
        if message.get("m") != "answer" or peer not in self._waiting:
            return None, None
        mine, theirs, facts = self._waiting.pop(peer)
        if proves(message.get("proof"), self._token, WORKER, theirs, mine):
            return None, facts
        return {"m": "refused", "words": "the master has another cluster token"}, None

    def _challenge(self, peer: str, message: Json) -> Json:
        theirs = message.get("nonce")
        if message.get("version") != VERSION or not isinstance(theirs, bytes) or len(theirs) < 16:
            return {"m": "refused", "words": f"the master speaks version {VERSION}"}
        known = self._waiting.get(peer)  # a hello that was repeated must not make its first answer wrong
        mine = known[0] if known is not None and known[1] == theirs else new_nonce()
        while len(self._waiting) >= MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[peer] = (mine, theirs, dict(message.get("facts") or {}))
        return {"m": "challenge", "nonce": mine, "proof": proof(self._token, MASTER, mine, theirs)}
