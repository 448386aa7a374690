"""Make the gallery of this folder: every figure of visualization.py for one sequence of a committed checkpoint.

    python visualizations/make_gallery.py            write the figures
    python visualizations/make_gallery.py --check    exit status 1 when one of them is missing or looks different

A picture notes the version of matplotlib that drew it. Another version sets text a little differently, and another
processor rounds differently: --check compares what is seen, closely under the same version, loosely under another.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, PngImagePlugin

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from train_minimal import load_checkpoint  # noqa: E402
from visualization import FIGURES, Example, replacing, save_figure  # noqa: E402

CHECKPOINT, TOKENS, DPI = HERE / "checkpoints" / "reverse.npz", [5, 3, 9, 9, 4, 11], 120
SAME_VERSION, OTHER_VERSION = 0.002, 0.03         # what pictures may differ by: mean over pixels, 1 is white for black


def draw(folder):
    """Write every figure to ``folder`` as a PNG of at most 256 colours, and return the paths."""
    example, paths = Example.of(load_checkpoint(CHECKPOINT), TOKENS), []
    note = PngImagePlugin.PngInfo()
    note.add_text("Software", f"matplotlib {matplotlib.__version__}")
    for name, (figure_of, _) in FIGURES.items():
        path = Path(folder) / f"{name}.png"
        save_figure(figure_of(example), path, DPI)
        picture = Image.open(path).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        with replacing(path) as beside:
            picture.save(beside, format="PNG", optimize=True, pnginfo=note)
        paths.append(path)
    return paths


def same(one, other):
    """Whether two pictures look alike. A missing file looks like nothing else."""
    if not (one.exists() and other.exists()):
        return False
    with Image.open(one) as first, Image.open(other) as second:
        limit = SAME_VERSION if first.info.get("Software") == second.info.get("Software") else OTHER_VERSION
        if max(abs(a - b) for a, b in zip(first.size, second.size)) > (0 if limit == SAME_VERSION else 4):
            return False
        pixels = [np.asarray(picture.convert("RGB").resize(second.size), dtype=float) for picture in (first, second)]
    return np.abs(pixels[0] - pixels[1]).mean() / 255 <= limit


def check():
    """The names of the figures that do not look as they would if they were drawn now."""
    with tempfile.TemporaryDirectory() as folder:
        return [path.stem for path in draw(folder) if not same(path, HERE / path.name)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 when the gallery is stale")
    if not parser.parse_args().check:
        paths = draw(HERE)
        print(f"{len(paths)} figures, {sum(path.stat().st_size for path in paths):,} bytes")
        return 0
    stale = check()
    if stale:
        print(f"not as they would be drawn now: {', '.join(stale)}; run python visualizations/make_gallery.py",
              file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
