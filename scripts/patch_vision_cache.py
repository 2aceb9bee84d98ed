"""Puts the image-embedding cache into an unpacked llama.cpp tree of b11042, or takes it out again.

    python3 scripts/patch_vision_cache.py TREE
    python3 scripts/patch_vision_cache.py TREE --undo

One file is edited (tools/mtmd/mtmd.cpp) and one is added (tools/mtmd/vision_embedding_cache.h). Both are private to
libmtmd: nothing else in the tree changes, no interface and no build file.

Every file that the edit relies on has to have the SHA-256 that native/source.json gives, because a cache in front of
code that changed answers wrongly without a sign of it. b11040 and b11046 have the same bytes there, and are taken too.

A tree that has the patch is left as it is (exit 0). Anything else is refused with a reason, and nothing is written
(exit 1).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NATIVE = Path(__file__).resolve().parents[1] / "native"


class Refused(Exception):
    """One line: what is wrong with the tree."""


@dataclass(frozen=True, slots=True)
class Edit:
    """`old` stands in the file exactly once, and becomes `new`."""

    old: str
    new: str


INCLUDE = Edit(
    old='#include "mtmd-image.h"\n#include "debug/mtmd-debug.h"\n',
    new='#include "mtmd-image.h"\n#include "debug/mtmd-debug.h"\n#include "vision_embedding_cache.h"\n',
)

MEMBER = Edit(
    old="    // batching\n    int32_t batch_max_tokens;\n",
    new="""\
    // batching
    int32_t batch_max_tokens;

    // jev-local: embeddings of pictures seen before; they come and go with this context. A limit that cannot be read
    // throws here, and the context is not made. Warnings, because llama-server shows nothing below them by default.
    jev::vision_embedding_cache image_cache{
        jev::limit_in_bytes(std::getenv("JEV_IMAGE_CACHE_MIB")),
        [](jev::lookup what, const jev::cache_use & use) { LOG_WRN("%s", jev::log_line(what, use).c_str()); }};
""",
)

LOOKUP = Edit(
    old="""\
    bool ok = clip_image_batch_encode(
        ctx_clip,
        ctx->n_threads,
        &image_tokens->batch_f32,
        out_embd);

    return ok ? 0 : 1;
""",
    new="""\
    auto encode = [&] {
        return clip_image_batch_encode(
            ctx_clip,
            ctx->n_threads,
            &image_tokens->batch_f32,
            out_embd);
    };

    // jev-local: what the encoder of LFM2 gives depends on the fields below and, within one context, on nothing else.
    // That was read for this one projector and for one picture at a time; everything else goes the old way.
    const auto & batch = image_tokens->batch_f32;
    if (!ctx->image_cache.is_on() || ctx->proj_type_v() != PROJECTOR_TYPE_LFM2 ||
            batch.is_audio || batch.entries.size() != 1) {
        return encode() ? 0 : 1;
    }
    const clip_image_f32 & image = batch.entries[0];
    static_assert(sizeof(clip_image_f32) == 56, "a field was added to clip_image_f32: see whether the key needs it");
    jev::cache_key key(image.get_ro_buf().size() * sizeof(float), 32);
    key.add(1) // of this list
        .add(PROJECTOR_TYPE_LFM2).add(n_embd_out).add(n_tokens_out)
        .add(image_tokens->nx).add(image_tokens->ny).add(image_tokens->pos)
        .add(image_tokens->image_idx).add(image_tokens->n_temporal_merge)
        .add(image.nx()).add(image.ny()).add(image.add_viewsep).add(image.add_newline).add(image.lead_pad)
        .add(image.anyres.grid_x).add(image.anyres.grid_y).add(image.anyres.orig_nx).add(image.anyres.orig_ny)
        .add(image.get_ro_buf());
    return ctx->image_cache.get_or_compute(key.take(), out_embd, encode) ? 0 : 1;
""",
)


@dataclass(frozen=True, slots=True)
class Patch:
    """What is done to a tree, and the SHA-256 of every file that has to be as it was when this was written.

    Paths are relative to the tree. `before` and `after` are the digests of `file`, the only one that is edited.
    """

    file: str
    before: str
    after: str
    edits: tuple[Edit, ...]
    header: str
    header_bytes: bytes
    relied_on: Mapping[str, str]

    @property
    def header_digest(self) -> str:
        return sha256(self.header_bytes)

    def is_applied(self, tree: Path) -> bool:
        """Whether the tree has the patch. Refused if it is neither as it was before nor as it is afterwards.

        A header that nothing includes yet counts as before: that is what an interruption leaves.
        """
        for name, digest in self.relied_on.items():
            require(name, read(tree, name), digest)
        header = tree / self.header
        found = header.read_bytes() if header.exists() else None
        content = read(tree, self.file)
        if sha256(content) == self.after:
            if found != self.header_bytes:
                raise Refused(
                    f"{self.file} has the patch and {self.header} is {'missing' if found is None else 'another one'}: "
                    f"start again from a fresh tree"
                )
            return True
        require(self.file, content, self.before)
        if found not in (None, self.header_bytes):
            raise Refused(f"{self.header} is there already, and it is not ours: start again from a fresh tree")
        return False

    def apply(self, tree: Path) -> bool:
        """Whether something had to be written."""
        if self.is_applied(tree):
            return False
        patched = self._edited(tree, [(edit.old, edit.new) for edit in self.edits])
        require(self.file, patched, self.after, when="after the edits ")
        replace(tree / self.header, self.header_bytes)
        replace(tree / self.file, patched)
        return True

    def undo(self, tree: Path) -> bool:
        """Whether something had to be written."""
        header = tree / self.header
        if not self.is_applied(tree):
            found = header.exists()
            header.unlink(missing_ok=True)
            return found
        original = self._edited(tree, [(edit.new, edit.old) for edit in reversed(self.edits)])
        require(self.file, original, self.before, when="with the edits taken back ")
        replace(tree / self.file, original)
        header.unlink()
        return True

    def _edited(self, tree: Path, steps: list[tuple[str, str]]) -> bytes:
        text = read(tree, self.file).decode()
        for old, new in steps:
            count = text.count(old)
            if count != 1:
                raise Refused(f"{self.file} has {count} places that look like {old.strip().splitlines()[0]!r}, not one")
            text = text.replace(old, new)
        return text.encode()


def read(tree: Path, name: str) -> bytes:
    try:
        return (tree / name).read_bytes()
    except FileNotFoundError as error:
        raise Refused(f"{tree} has no {name}: is it an unpacked llama.cpp tree?") from error
    except OSError as error:
        raise Refused(f"cannot read {tree / name}: {error.strerror}") from error


def require(name: str, content: bytes, digest: str, *, when: str = "") -> None:
    found = sha256(content)
    if found == digest:
        return
    if b"\r\n" in content:
        raise Refused(f"{name} has Windows line ends: unpack the archive, or check out with core.autocrlf=false")
    raise Refused(
        f"{name} {when}has the SHA-256 {found} instead of {digest}: this patch is for llama.cpp b11042 "
        f"(b11040 and b11046 are the same here), unchanged"
    )


def replace(path: Path, content: bytes) -> None:
    """Whole or not at all, with the permissions of the file that was there."""
    draft = path.with_name(path.name + ".new")
    draft.write_bytes(content)
    if path.exists():
        draft.chmod(path.stat().st_mode & 0o777)
    os.replace(draft, path)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def pins() -> Any:
    """native/source.json."""
    return json.loads((NATIVE / "source.json").read_text())


def the_patch() -> Patch:
    """The one for b11042."""
    known = pins()
    return Patch(
        **known["patched"],
        edits=(INCLUDE, MEMBER, LOOKUP),
        header_bytes=(NATIVE / "vision_embedding_cache.h").read_bytes(),
        relied_on=known["relied_on"],
    )


def main(arguments: list[str]) -> int:
    """See the head of this file."""
    about = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(
        prog="patch_vision_cache.py",
        description=about[0],
        epilog="\n\n".join(about[2:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tree", type=Path, metavar="TREE", help="the folder with tools/mtmd/mtmd.cpp in it")
    parser.add_argument("--undo", action="store_true", help="take the patch out again")
    wishes = parser.parse_args(arguments)
    try:
        patch = the_patch()
        changed = patch.undo(wishes.tree) if wishes.undo else patch.apply(wishes.tree)
    except Refused as refusal:
        print(f"patch_vision_cache: {refusal}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"patch_vision_cache: cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    has = "has no image-embedding cache" if wishes.undo else "has the image-embedding cache"
    print(f"{wishes.tree} {'now' if changed else 'already'} {has}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
