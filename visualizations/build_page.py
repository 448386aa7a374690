"""Build transformer_interactive.html from page/ and the checkpoints of the two tasks.

    python visualizations/build_page.py            write the page
    python visualizations/build_page.py --check    exit 1 unless the page is what it would write

The checkpoints (copy and reverse; both write each of the 1,000 test sequences without a mistake) come from

    python train_minimal.py --task reverse --d-model 32 --n-heads 4 --warmup 1000

of an earlier version, which stopped after two perfect validations and did not average. Today the command reaches
100 % for both tasks as well, with other weights.

The page is one file: the style, the model and the page's own script are put into page/template.html, and so are the
weights, as base64 of their float32 bytes. The same checkpoints always give the same bytes.
"""

import argparse
import base64
import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from train_minimal import CheckpointError, load_checkpoint, replacing

TASKS = ("copy", "reverse")
PAGE = HERE / "transformer_interactive.html"
SCRIPTS = ("state", "drawing", "machine", "views", "page")
SETTINGS = ("seq_len", "vocab_size", "d_model", "n_heads", "n_layers")


def stored_model(task, path):
    """What the page needs of a checkpoint. CheckpointError when it is of another kind than the page can run."""
    checkpoint = load_checkpoint(path)
    if checkpoint.settings.get("task") != task or checkpoint.vocabulary is not None:
        raise CheckpointError(f"{path} was not trained on the {task} task")
    if checkpoint.settings["tie_embeddings"]:
        raise CheckpointError(f"{path} has tied embeddings; the page draws three separate matrices")
    weights = checkpoint.model.named_parameters()
    values = np.concatenate([weight.ravel() for weight in weights.values()]).astype("<f4")
    return {
        "settings": {name: int(checkpoint.settings[name]) for name in SETTINGS},
        "facts": {"steps": int(checkpoint.step), "parameters": int(values.size)},
        "shapes": [[name, list(weight.shape)] for name, weight in weights.items()],
        "base64": base64.b64encode(values.tobytes()).decode("ascii"),
    }


def build(checkpoints):
    """The page as text, for checkpoints in the folder ``checkpoints``."""
    models = {task: stored_model(task, Path(checkpoints) / f"{task}.npz") for task in TASKS}
    parts = {
        "/* style.css */": (HERE / "page" / "style.css").read_text(encoding="utf-8"),
        "/* checkpoints */": json.dumps(models, separators=(",", ":")).replace("<", "\\u003c"),
        "/* model.js */": (HERE / "page" / "model.js").read_text(encoding="utf-8"),
        "/* page.js */": "\n".join((HERE / "page" / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS),
    }
    page = (HERE / "page" / "template.html").read_text(encoding="utf-8")
    for place, part in parts.items():
        before, after = page.split(place)
        page = before + part.strip() + after
    return page


def main(argv=None):
    parser = argparse.ArgumentParser(description="Build the interactive page from the committed checkpoints.")
    parser.add_argument("--checkpoints", type=Path, default=HERE / "checkpoints", metavar="DIR",
                        help="folder that holds copy.npz and reverse.npz (default: beside this script)")
    parser.add_argument("--out", type=Path, default=PAGE, metavar="FILE", help=f"the page (default: {PAGE.name})")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when FILE would change")
    args = parser.parse_args(argv)
    try:
        page = build(args.checkpoints).encode("utf-8")
        if args.check:
            same = args.out.read_bytes() == page
            print(f"{args.out.name} is {'up to date' if same else 'not what build_page.py writes'}")
            return 0 if same else 1
        with replacing(args.out) as beside:
            beside.write_bytes(page)
    except (CheckpointError, OSError) as error:
        print(f"build_page.py: {error}", file=sys.stderr)
        return 2
    print(f"{args.out.name}: {len(page):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
