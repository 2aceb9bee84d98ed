from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from jev_local.core.plan import common, share

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=12).map(tuple)


@given(TOKENS, st.lists(TOKENS, min_size=2, max_size=6))
def test_the_prefix_is_common_leaves_a_token_and_is_the_longest(
    stem: tuple[int, ...], rests: list[tuple[int, ...]]
) -> None:
    plan = share(stem, rests)
    prompts = [plan.prompt(i) for i in range(len(rests))]
    assert prompts == [stem + rest for rest in rests]
    assert all(prompt[: plan.prefix] == prompts[0][: plan.prefix] for prompt in prompts)
    assert all(len(prompt) > plan.prefix for prompt in prompts)
    one_more = {prompt[: plan.prefix + 1] for prompt in prompts}
    assert len(one_more) > 1 or any(len(prompt) == plan.prefix + 1 for prompt in prompts)
    assert plan.longest == max(map(len, prompts))


def test_one_prompt_shares_nothing() -> None:
    assert share((1,), [(2, 3)]).prefix == 0


def test_equal_prompts_keep_one_token_each() -> None:
    assert share((1,), [(2, 3), (2, 3)]).prefix == 2


def test_common_respects_its_limit() -> None:
    assert (common((1, 2, 3), (1, 2, 4)), common((1, 2), (1, 2, 3), limit=1), common((), (1,))) == (2, 1, 0)


def test_a_thousand_questions_do_not_hold_a_thousand_states() -> None:
    stem = tuple(range(30_000))
    rests = [(i, i + 1) for i in range(1_000)]
    tracemalloc.start()
    plan = share(stem, rests)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert plan.prefix == len(stem)
    assert size < 1_000_000
