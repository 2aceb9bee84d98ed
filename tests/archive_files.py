"""Archives for tests that unpack some."""

import io
import tarfile
from pathlib import Path


def pack(path: Path, *entries: tuple[str, str | bytes], **attributes: object) -> Path:
    """`entries`: a name with a file's content, or with the target (text) of a symbolic link. The last one gets the
    `attributes`."""
    with tarfile.open(path, "w:gz") as tar:
        for number, (name, content) in enumerate(entries, start=1):
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
                continue
            info.size, info.mode = len(content), 0o755
            for attribute, value in attributes.items() if number == len(entries) else ():
                setattr(info, attribute, value)
            tar.addfile(info, io.BytesIO(content))
    return path
