"""The committed gallery holds every figure, is small, and looks as it would if it were drawn now."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import visualization as vis

FOLDER = Path(__file__).resolve().parent.parent / "visualizations"


@pytest.fixture(scope="module")
def gallery():
    spec = importlib.util.spec_from_file_location("make_gallery", FOLDER / "make_gallery.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_figure_is_there_and_in_the_index():
    assert {path.stem for path in FOLDER.glob("*.png")} == set(vis.FIGURES)
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[!\[[^]]+\]\((\S+)\.png\)\]\(\1\.png\) \| `\1`:", index, re.MULTILINE) == list(vis.FIGURES)


def test_it_is_small():
    assert sum(path.stat().st_size for path in FOLDER.glob("*.png")) < 1_500_000
    for path in FOLDER.glob("*.png"):
        with Image.open(path) as picture:
            picture.load()


def test_a_picture_that_changed_is_noticed(gallery, tmp_path):
    one, other = tmp_path / "one.png", tmp_path / "other.png"
    w = np.eye(5)
    vis.plot_attention_weights(w, save_path=one)
    assert gallery.same(one, one) and not gallery.same(one, other)
    for changed in (w[::-1], np.eye(6), np.where(np.arange(25).reshape(5, 5) == 3, 0.5, w)):
        vis.plot_attention_weights(changed, save_path=other)
        assert not gallery.same(one, other)


@pytest.mark.slow
def test_it_is_what_would_be_drawn_now(gallery):
    assert gallery.check() == []
