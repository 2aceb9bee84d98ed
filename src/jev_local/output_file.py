"""A file that is written whole or not at all."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path


class UnusableFile(Exception):
    """Nothing can be written there; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file to come. Raises UnusableFile where writing could only fail, before anyone has waited for the content."""

    path: str
    _target: Path = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # A link keeps pointing where it does: what is replaced is the file behind it.
        target = Path(os.path.realpath(self.path))
        if not self.path or target.is_dir():
            raise UnusableFile(f"--output wants a file, {self.path or 'an empty name'} is not one")
        if not target.parent.is_dir():
            raise UnusableFile(f"--output: there is no folder {Path(self.path).parent}")
        if not os.access(target if self._is_special(target) else target.parent, os.W_OK):
            raise UnusableFile(f"--output: no permission to write {self.path}")
        object.__setattr__(self, "_target", target)

    def write(self, text: str) -> None:
        """Raises OSError; then what was there before is still there."""
        if self._is_special(self._target):
            # /dev/null, a named pipe: renaming a file over it would take it away from everybody.
            self._target.write_text(text, encoding="utf-8")
            return
        temporary = self._target.with_name(f".{secrets.token_hex(8)}.tmp")
        try:
            # Not tempfile: its files are for the owner alone, while this one's mode is what the umask says.
            with open(temporary, "x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    @staticmethod
    def _is_special(target: Path) -> bool:
        return target.exists() and not target.is_file()
