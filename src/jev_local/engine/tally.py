"""What one request cost: tokens and milliseconds, added up as it goes along."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from jev_local.backend.port import Completion
from jev_local.core.sharing import Strategy
from jev_local.engine.decision import STAGES, PrefixSource, StateCache, Trace, Usage


@dataclass(slots=True)
class Tally:
    """`asked` counts every question's prompt once; the other counts are what the server did, repeated reads included.
    `failed` has the questions that had to be evaluated again in full."""

    asked: int = 0
    cached: int = 0
    processed: int = 0
    generated: int = 0
    state_cache: StateCache = "off"
    prefix: int = 0
    source: PrefixSource = "none"
    strategy: Strategy = "plain"
    failed: set[int] = field(default_factory=set)
    _started: float = field(default_factory=perf_counter)
    _stages: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    def count(self, completions: Sequence[Completion], *, prepared: bool = False) -> None:
        """Add what `completions` cost. What was `prepared` for the questions is no prompt of any: what it found in
        the slot was reused by the first of them, which counts it."""
        for completion in completions:
            self.cached += 0 if prepared else completion.cached_tokens
            self.processed += completion.processed_tokens
            self.generated += completion.generated_tokens

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what happens inside as `name`. Slots that work at the same time add up."""
        begun = perf_counter()
        try:
            yield
        finally:
            self._stages[name] += (perf_counter() - begun) * 1000

    def usage(self) -> Usage:
        return Usage(input_tokens=self.asked, output_tokens=self.generated)

    def trace(self) -> Trace:
        self._stages["total"] = (perf_counter() - self._started) * 1000
        return Trace(
            state_cache=self.state_cache,
            prefix_tokens=self.prefix,
            cached_tokens=self.cached,
            processed_tokens=self.processed,
            source=self.source,
            strategy=self.strategy,
            reevaluated=len(self.failed),
            timings_ms=tuple(self._stages.items()),
        )
