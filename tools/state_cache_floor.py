"""The floor: what no engine can do without, evaluating what all questions begin with once, and then the rest of each.

Two passes straight on the server, through the same connection code as the engine's: the prefix from nothing, then in
the same slot the prefix followed by what is left of every question, one behind the other. No probabilities are read,
nothing is saved or restored, and no question needs a pass of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from jev_local.backend.port import Backend
from jev_local.core.plan import PrefixPlan, Tokens
from tools.state_cache_cases import CannotMeasure

SLOT = 0


@dataclass(frozen=True, slots=True)
class Floor:
    """Milliseconds of both passes, and the tokens that were evaluated in each."""

    prefix_ms: float
    suffix_ms: float
    prefix_tokens: int
    suffix_tokens: int

    @property
    def ms(self) -> float:
        return self.prefix_ms + self.suffix_ms


def prompts(plan: PrefixPlan) -> tuple[Tokens, Tokens]:
    """The prefix, and the prefix followed by the rest of every question."""
    prefix = plan.prompt(0)[: plan.prefix]
    beyond = [token for i in range(len(plan.rests)) for token in plan.prompt(i)[plan.prefix :]]
    return prefix, (*prefix, *beyond)


async def floor(backend: Backend, plan: PrefixPlan) -> Floor:
    """Raises CannotMeasure where the server did not go on exactly from the prefix."""
    prefix, whole = prompts(plan)
    begun = perf_counter()
    first = await backend.evaluate(prefix, slot=SLOT, reuse=False)
    between = perf_counter()
    second = await backend.evaluate(whole, slot=SLOT, reuse=True)
    ended = perf_counter()
    if second.cached_tokens != len(prefix):
        raise CannotMeasure(
            f"There is no floor to compare with: the inference server went on from {second.cached_tokens} of the "
            f"{len(prefix)} tokens that it had just evaluated in the same slot. Does it serve anybody else?"
        )
    return Floor(
        prefix_ms=(between - begun) * 1000,
        suffix_ms=(ended - between) * 1000,
        prefix_tokens=first.processed_tokens,
        suffix_tokens=second.processed_tokens,
    )
