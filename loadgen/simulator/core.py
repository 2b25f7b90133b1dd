"""The engine as a discrete-event model: no sockets, no clock; the caller says what time it is.

Continuous batching as vLLM's scheduler does it. Each step first serves what runs (one token for each
sequence that decodes, a piece of prompt for each that prefills), within a token budget; when KV blocks run
out the policy's victim is preempted and recomputed later. Then, unless somebody was preempted, waiting
requests enter while there are seats, budget and blocks, skipping what the prefix cache holds. The caller
alternates `begin` and `complete`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from loadgen.simulator.blocks import BlockPool
from loadgen.simulator.config import EngineConfig
from loadgen.simulator.cost import Noise, StepLoad
from loadgen.simulator.counters import Counters
from loadgen.simulator.decoding import DecodeGroup
from loadgen.simulator.outages import Outages
from loadgen.simulator.policies import POLICIES
from loadgen.simulator.request import End, EngineRequest


@dataclass(slots=True)
class Step:
    """One step: prompt pieces (request, tokens), and after `Engine.complete` who produced and who ended."""

    number: int
    start_ns: int
    end_ns: int
    pieces: list[tuple[EngineRequest, int]]
    is_crash: bool = False
    first: list[EngineRequest] = field(default_factory=list)
    ended: list[EngineRequest] = field(default_factory=list)


class Engine:
    """Waiting queue, running batch, KV blocks. ``keep_steps``: remember when each step ended."""

    def __init__(self, config: EngineConfig, start_ns: int = 0, *, keep_steps: bool = False) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks, config.block_size, caching=config.prefix_caching)
        self.policy = POLICIES[config.policy](config.slo)
        self.counters = Counters()
        self.outages = Outages(config.faults, start_ns)
        self.running: dict[EngineRequest, None] = {}
        self.decoding = DecodeGroup(config.block_size, reserved=config.reserve_max_len)
        self.step_ends_ns: list[int] = []
        self._first_kept = 0
        self._keep_steps = keep_steps
        self._prefilling: dict[EngineRequest, None] = {}
        self._queue: list[EngineRequest] = []
        self.n_waiting = 0
        self.waiting_input = 0
        self._next = 0
        self._done = -1
        self._allocated = -1
        self._seq = 0
        self._static_size = 0
        self._noise = Noise(config.noise, config.seed)
        self._load = StepLoad()

    @property
    def n_in_system(self) -> int:
        """Requests inside."""
        return self.n_waiting + len(self.running)

    def add(self, request: EngineRequest, now_ns: int) -> bool:
        """A new request, considered when the next step begins. False: refused (queue full, or down)."""
        limit = self.config.faults.max_num_queued_reqs
        if self.outages.is_down(now_ns) or (limit is not None and self.n_in_system >= limit):
            request.end, request.end_ns = End.REJECTED, now_ns
            self.counters.rejected += 1
            return False
        request.seq = self._seq
        self._seq += 1
        self._enqueue(request, 0)
        return True

    def abort(self, request: EngineRequest, now_ns: int) -> None:
        """The client has left."""
        if request.end is None:
            self._end(request, End.ABORTED, now_ns)

    def begin(self, now_ns: int) -> Step | None:
        """Plan the step that starts now; None when there is nothing to do."""
        if not self.running and not self.n_waiting:
            return None
        number = self._next
        preempted = self.counters.preemptions
        self._allocate_decodes(number)
        budget = self.config.max_num_batched_tokens - len(self.decoding.members)
        pieces = self._continue_prefills(budget)
        budget = self.config.max_num_batched_tokens - len(self.decoding.members) - sum(n for _, n in pieces)
        if self.counters.preemptions == preempted:
            self._admit(pieces, budget, now_ns)
        pieces = [(request, n) for request, n in pieces if request in self.running]
        load = self._load
        load.reset(len(self.decoding.members), self.decoding.context)
        for request, n in pieces:
            load.add_prefill(n, request.computed)
        if self._static_size and not pieces:
            load.decodes = self._static_size
        if not load.sequences:
            self._stuck()
            return None
        duration = self.config.cost.step_ns(load) * self._noise.factor() * self._slowdown()
        end, is_crash = self.outages.end_of(now_ns, now_ns + max(1, round(duration)))
        self._next += 1
        self.counters.planned(load, self.config.cost.work(load))
        return Step(number, now_ns, end, pieces, is_crash)

    def complete(self, step: Step) -> Step:
        """Apply a step that has ended; fills ``first`` (its prefill ended) and ``ended``."""
        now = step.end_ns
        self.counters.stepped(step.end_ns - step.start_ns)
        if self._keep_steps:
            self.step_ends_ns.append(now)
        if step.is_crash:
            return self._crash(step)
        self.counters.generation_tokens += len(self.decoding.members)
        finished = self.decoding.passed(step.number)
        self._done = step.number
        for request in finished:
            self._end(request, End.DONE, now)
            step.ended.append(request)
        for request, n in step.pieces:
            if request.end is None:
                self._computed(request, n, step)
        if self.outages.leak(sum(n for _, n in step.pieces), now):
            return self._crash(step)
        return step

    def _slowdown(self) -> float:
        """What every step is longer by, once so many tokens were served."""
        served = self.counters.prefill_tokens + self.counters.generation_tokens
        return 1 + self.config.faults.slowdown_per_million_tokens * served / 1e6

    def token_ns(self, request: EngineRequest) -> list[int]:
        """The instants of the request's tokens; needs ``keep_steps``."""
        base, ends = self._first_kept, self.step_ends_ns
        if len(request.segments) == 1:
            start, count = request.segments[0]
            return ends[start - base : start - base + count]
        return [t for start, count in request.segments for t in ends[start - base : start - base + count]]

    def forget_steps(self) -> None:
        """Drop the ends of steps in which nobody inside has produced a token."""
        waiting = (r for r in self._queue if r.end is None)
        needed = [r.segments[0][0] for r in (*self.running, *waiting) if r.segments]
        keep = min(needed, default=self._done + 1)
        del self.step_ends_ns[: keep - self._first_kept]
        self._first_kept = keep

    # --- the queue

    def _enqueue(self, request: EngineRequest, preempted: int) -> None:
        request.order = self.policy.order(request, preempted)
        heapq.heappush(self._queue, request)
        self.n_waiting += 1
        self.waiting_input += request.n_input

    def _head(self) -> EngineRequest | None:
        while self._queue and self._queue[0].end is not None:
            heapq.heappop(self._queue)
        return self._queue[0] if self._queue else None

    def _dequeue(self) -> EngineRequest:
        request = heapq.heappop(self._queue)
        self.n_waiting -= 1
        self.waiting_input -= request.n_input
        return request

    # --- what runs

    def _allocate_decodes(self, number: int) -> None:
        while self.decoding.needing(number) > self.pool.free:
            self._preempt(self.policy.victim(self.running))
        self.pool.take(self.decoding.needing(number))
        self._allocated = number

    def _continue_prefills(self, budget: int) -> list[tuple[EngineRequest, int]]:
        pieces = []
        for request in list(self._prefilling):
            if request not in self._prefilling:
                continue  # preempted by one before it
            n = self._piece(request.target - request.computed, budget)
            if n and self._make_room(request, n):
                self._take_piece(request, n)
                pieces.append((request, n))
                budget -= n
        return pieces

    def _piece(self, wanted: int, budget: int) -> int:
        cap = self.config.long_prefill_tokens
        if cap and self.n_in_system > 1:
            wanted = min(wanted, cap)
        return min(wanted, budget)

    def _make_room(self, request: EngineRequest, n: int) -> bool:
        while self._blocks_for(request.computed + n) - request.blocks > self.pool.free:
            victim = self.policy.victim(self.running)
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _blocks_for(self, tokens: int) -> int:
        if self.config.reserve_max_len:
            tokens = max(tokens, self.config.max_model_len)
        return -(-tokens // self.config.block_size)

    def _take_piece(self, request: EngineRequest, n: int) -> None:
        """Blocks for *n* more tokens of prompt; full ones become findable at once, as vLLM has it."""
        need = self._blocks_for(request.computed + n) - request.blocks
        if need > 0:
            self.pool.take(need)
            request.blocks += need
        full = (request.computed + n) // self.config.block_size
        while self.pool.caching and request.held < request.n_keyed_input:
            key = request.keys[request.held]
            if request.held_blocks + key.blocks > full:
                return
            self.pool.register(key)
            request.held += 1
            request.held_blocks += key.blocks

    # --- who enters

    def _admit(self, pieces: list[tuple[EngineRequest, int]], budget: int, now_ns: int) -> None:
        if self.policy.is_static and self.running:
            return
        self._static_size = 0
        while budget > 0 and (head := self._head()) is not None:
            n = self._try_admit(head, budget)
            if not n:
                victim = self.policy.interrupt(head, self.running, now_ns)
                if victim is None:
                    break
                self._preempt(victim)
                self.counters.interruptions += 1
                budget = self.config.max_num_batched_tokens - len(self.decoding.members)
                budget -= sum(n for request, n in pieces if request in self.running)
                continue
            if head.first_scheduled_ns is None:
                # In real time a step that should have begun already takes in what has come since.
                head.first_scheduled_ns = max(now_ns, head.arrival_ns)
            pieces.append((head, n))
            budget -= n
        if self.policy.is_static:
            self._static_size = len(self.running)

    def _try_admit(self, request: EngineRequest, budget: int) -> int:
        """Seat the queue's head; the prompt tokens of its first piece, or 0 when there is no room."""
        if len(self.running) >= self.config.max_num_seqs:
            return 0
        pool, size = self.pool, self.config.block_size
        request.target = request.n_input + request.produced
        hit_keys = request.keys[: pool.hits(request.keys[: request.n_keyed_input])]
        blocks = keyed = sum(key.blocks for key in hit_keys)
        run = pool.run_of(request.seq) if len(hit_keys) == request.n_keyed_input else 0
        blocks += run
        computed = min(blocks * size, (request.target - 1) // size * size)
        n = self._piece(request.target - computed, budget)
        if not self.config.chunked_prefill and n < request.target - computed:
            return 0
        full = request.target if self.config.reserve_full_prompt else computed + n
        if self._blocks_for(full) - blocks > pool.free - pool.idle_among(hit_keys) - run:
            return 0
        self._dequeue()
        pool.touch(hit_keys)
        if run:
            pool.retake_run(request.seq)
        request.held, request.held_blocks, request.blocks = len(hit_keys), keyed, blocks
        request.computed = computed
        if not request.preemptions:
            request.n_cached = computed
            self.counters.looked_up(request.n_input, computed)
        self.running[request] = None
        self._prefilling[request] = None
        self._take_piece(request, n)
        return n

    # --- what ends

    def _computed(self, request: EngineRequest, n: int, step: Step) -> None:
        request.computed += n
        if request.computed < request.target:
            return
        del self._prefilling[request]
        self.counters.generation_tokens += 1
        if request.first_ns is None:
            request.first_ns = step.end_ns
            self.counters.prefilled(request.n_input, request.n_cached)
        request.produced += 1
        request.segments.append((step.number, 1))
        step.first.append(request)
        if request.produced >= request.n_output:
            self._end(request, End.DONE, step.end_ns)
            step.ended.append(request)
        else:
            self.decoding.join(request, step.number)

    def _release(self, request: EngineRequest) -> None:
        """Take a running request out of the batch and give its blocks back."""
        del self.running[request]
        self._prefilling.pop(request, None)
        if request.decode_step is not None:
            request.segments[-1] = (request.decode_step, 1 + self._done - request.decode_step)
            self.decoding.leave(request, self._done, self._allocated)
        full = request.computed // self.config.block_size
        self.pool.release(request.keys[: request.held])
        run = max(0, full - request.held_blocks) if request.held == request.n_keyed_input else 0
        blank = request.blocks - request.held_blocks - run
        self.pool.give_back(blank, request.seq, run)
        request.blocks = request.held = request.held_blocks = 0

    def _preempt(self, request: EngineRequest) -> None:
        self._release(request)
        request.computed = 0
        request.preemptions += 1
        self.counters.preemptions += 1
        self._enqueue(request, self.counters.preemptions)

    def _end(self, request: EngineRequest, end: End, now_ns: int) -> None:
        if request in self.running:
            held = request.held
            self._release(request)
            if end is End.DONE:
                self._publish(request, held)
        else:
            self.n_waiting -= 1
            self.waiting_input -= request.n_input
        request.end, request.end_ns = end, now_ns
        self.counters.ended[end] += 1

    def _publish(self, request: EngineRequest, held: int) -> None:
        """An answer whose text is known can be found by the next turn: its run gets the keys."""
        keys, left = [], self.pool.run_of(request.seq)
        for key in request.keys[held:]:
            if key.blocks > left:
                break
            keys.append(key)
            left -= key.blocks
        if keys:
            run = self.pool.retake_run(request.seq)
            self.pool.give_back(0, request.seq, run - self.pool.publish(keys))

    def _crash(self, step: Step) -> Step:
        for request in [*self.running, *(r for r in self._queue if r.end is None)]:
            self._end(request, End.CRASHED, step.end_ns)
            step.ended.append(request)
        self._queue.clear()
        self.pool = BlockPool(
            self.config.num_blocks, self.config.block_size, caching=self.config.prefix_caching
        )
        self.outages.crashed(step.end_ns)
        return step

    def _stuck(self) -> None:
        """Nothing runs and the head does not fit: only possible for a request larger than the whole cache."""
        head = self._head()
        if head is not None:
            size = head.n_input + head.produced
            raise ValueError(f"a request of {size} tokens does not fit {self.pool.num_blocks} blocks")
