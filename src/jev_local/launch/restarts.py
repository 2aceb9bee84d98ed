"""When to start a dead backend again. Pure: no clock, no process."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """At most `limit` restarts within `window` seconds, after a pause that doubles with each of them.

    Immutable: `after_death` returns the policy to go on with and the pause before the restart, or None to give up.
    """

    limit: int = 3
    window: float = 60.0
    first_pause: float = 0.5
    restarts: tuple[float, ...] = ()

    def after_death(self, at: float) -> tuple[RestartPolicy, float | None]:
        """`at`: when it died, in seconds on any clock that only moves forward."""
        recent = tuple(moment for moment in self.restarts if at - moment < self.window)
        if len(recent) >= self.limit:
            return replace(self, restarts=recent), None
        return replace(self, restarts=(*recent, at)), self.first_pause * 2 ** len(recent)
