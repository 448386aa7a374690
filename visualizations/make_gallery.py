"""Make the gallery of this folder: every figure of visualization.py for one sequence of a committed checkpoint.

    python visualizations/make_gallery.py            write the figures
    python visualizations/make_gallery.py --check    exit status 1 when one of them is missing or looks different

Bytes depend on the versions of matplotlib and of its font renderer, so --check compares what is seen.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from visualization import FIGURES, Example, replacing, save_figure  # noqa: E402
from train_minimal import load_checkpoint  # noqa: E402

CHECKPOINT, TOKENS = HERE / "checkpoints" / "reverse.npz", [5, 3, 9, 9, 4, 11]
DPI = 120
MOST_DIFFERENT = 0.02                # share of the full range, mean over all pixels, that other versions may differ by


def draw(folder):
    """Write every figure to ``folder`` as a PNG of at most 256 colours, and return the paths."""
    example, paths = Example.of(load_checkpoint(CHECKPOINT), TOKENS), []
    for name, (figure_of, _) in FIGURES.items():
        path = Path(folder) / f"{name}.png"
        save_figure(figure_of(example), path, DPI)
        picture = Image.open(path).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        with replacing(path) as beside:
            picture.save(beside, format="PNG", optimize=True)
        paths.append(path)
    return paths


def difference(one, other):
    """The mean difference of two pictures as a share of the full range; 1.0 for other sizes or a missing file."""
    if not (one.exists() and other.exists()):
        return 1.0
    one, other = (np.asarray(Image.open(path).convert("RGB"), dtype=float) for path in (one, other))
    return float(np.abs(one - other).mean() / 255) if one.shape == other.shape else 1.0


def check():
    """The names of the figures that do not look as they would if they were drawn now."""
    with tempfile.TemporaryDirectory() as folder:
        return [path.stem for path in draw(folder) if difference(path, HERE / path.name) > MOST_DIFFERENT]


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
