from jev_local.launch.restarts import RestartPolicy


def pauses(*deaths: float) -> list[float | None]:
    policy, given = RestartPolicy(), []
    for at in deaths:
        policy, pause = policy.after_death(at)
        given.append(pause)
    return given


def test_the_pause_doubles_and_the_fourth_death_within_a_minute_is_the_last() -> None:
    assert pauses(0, 1, 2, 3) == [0.5, 1.0, 2.0, None]


def test_old_restarts_are_forgotten() -> None:
    assert pauses(0, 1, 2, 60, 61, 62, 63) == [0.5, 1.0, 2.0, 2.0, 2.0, 2.0, None]
    assert pauses(0, 100, 200, 300, 400) == [0.5] * 5


def test_never_more_than_three_restarts_in_any_minute() -> None:
    policy, restarts = RestartPolicy(), []
    for step in range(400):
        at = step * 7.0
        policy, pause = policy.after_death(at)
        if pause is not None:
            restarts.append(at)
    for begin in restarts:
        assert sum(begin <= at < begin + 60 for at in restarts) <= 3


def test_giving_up_changes_nothing() -> None:
    policy = RestartPolicy(restarts=(1.0, 2.0, 3.0))
    after, pause = policy.after_death(4.0)
    assert pause is None
    assert after == policy
