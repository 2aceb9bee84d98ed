"""Pictures that were looked into before: callers send the same file with request after request."""

from __future__ import annotations

import threading
from collections import OrderedDict

from jev_local.core.pictures import Picture
from jev_local.settings import MIB

ROOM = 32 * MIB
"""Bytes of the files that are remembered."""


class SeenPictures:
    """What came of a file, by its digest; the least recently used go first. Used by several threads."""

    def __init__(self, *, room: int = ROOM) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._pictures: OrderedDict[bytes, Picture] = OrderedDict()
        self._bytes = 0

    def find(self, digest: bytes) -> Picture | None:
        with self._lock:
            if digest in self._pictures:
                self._pictures.move_to_end(digest)
            return self._pictures.get(digest)

    def keep(self, digest: bytes, picture: Picture) -> None:
        """One that alone is larger than the room is not kept, and nothing goes for it."""
        with self._lock:
            if digest in self._pictures or len(picture.data) > self._room:
                return
            self._pictures[digest] = picture
            self._bytes += len(picture.data)
            while self._bytes > self._room:
                _, gone = self._pictures.popitem(last=False)
                self._bytes -= len(gone.data)
