from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jev_local.core.plan import common, share

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=12).map(tuple)


@given(st.lists(TOKENS, min_size=2, max_size=6))
def test_the_prefix_is_common_leaves_a_token_and_is_the_longest(branches: list[tuple[int, ...]]) -> None:
    plan = share(branches)
    assert all(branch[: plan.prefix] == branches[0][: plan.prefix] for branch in branches)
    assert all(len(branch) > plan.prefix for branch in branches)
    one_more = {branch[: plan.prefix + 1] for branch in branches}
    assert len(one_more) > 1 or any(len(branch) == plan.prefix + 1 for branch in branches)


def test_one_branch_shares_nothing() -> None:
    assert share([(1, 2, 3)]).prefix == 0


def test_equal_branches_keep_one_token_each() -> None:
    assert share([(1, 2, 3), (1, 2, 3)]).prefix == 2


def test_common_respects_its_limit() -> None:
    assert (common((1, 2, 3), (1, 2, 4)), common((1, 2), (1, 2, 3), limit=1), common((), (1,))) == (2, 1, 0)
