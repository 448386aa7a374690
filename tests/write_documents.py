"""Write the parts of the texts that come from code, between their begin and end marks.

    python tests/write_documents.py             writes them
    python tests/write_documents.py --check     exit status 1 where a text differs from what would be written
    python tests/write_documents.py --measure   first trains the tasks, measures the gradients and stores the results
    python tests/write_documents.py --notebook  runs notebook.text.py and stores it with its outputs as notebook.ipynb
    python tests/write_documents.py --numbers   lists the numbers of all prose in tests/prose_numbers.json: look at its
                                                diff, and at the source of each number that has changed

The results stand in benchmarks/results.json under "training", with the machine, the versions and the commit.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np                                                                                   # noqa: E402

import documents                                                                                     # noqa: E402
import table3                                                                                        # noqa: E402
from checkpoints import replacing                                                                    # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results.json"
TASKS = {"copy": ["--task", "copy"], "reverse": ["--task", "reverse"],
         "words": ["--task", "reverse", "--data", "words.txt", "--max-steps", "2000"]}


# ---------------------------------------------------------------------------------------------------- what is written


def write_table3():
    """By the formula, which test_paper.py holds equal to num_parameters(): counting large arrays takes seconds."""
    rows = [f"| {row} | {table3.written_from_the_paper(**table3.BASE | change):,} | {paper or 65} | "
            f"{table3.written_from_the_paper(**table3.BASE | change) / 1e6 - (paper or 65):+.1f} |"
            for row, change, paper in table3.ROWS]
    return "\n".join(["| row of table 3 | weights here | the paper, million | difference, million |",
                      "| --- | ---: | ---: | ---: |", *rows]) + "\n"


def write_models():
    """Base and big, as the paper has them (table 3, 5.2, 5.3), with the weights counted here."""
    rows = []
    for name, paper, P_drop, steps in ("base", 65, 0.1, 100_000), ("big", 213, 0.3, 300_000):
        sizes = table3.BASE | next(change for row, change, _ in table3.ROWS if row == name)
        N, d_model, d_ff, h = (sizes[key] for key in ("N", "d_model", "d_ff", "h"))
        rows.append(f"| {name} | {N} | {d_model} | {d_ff} | {h} | {d_model // h} | {P_drop} | 0.1 | {steps:,} | 4000 | "
                    f"{paper} million | {table3.written_from_the_paper(**sizes):,} |")
    return "\n".join([
        "| | N | d_model | d_ff | h | d_k | P_drop | eps_ls | steps | warm-up | weights, paper | weights, here |",
        "| --- |" + " ---: |" * 11, *rows]) + "\n"


def write_sizes():
    """About how long the files are that a reader reads, to the next 50 lines."""
    files = {"implementation.py": "the model, forward and backward", "optimisation.py": "loss, Adam, schedule",
             "decoding.py": "greedy decoding, beam search", "training_data.py": "the two tasks, on numbers and on text",
             "checkpoints.py": "saving, loading, averaging", "train_minimal.py": "training, command line",
             "visualization.py": "pictures"}
    rows = [f"| [`{file}`]({file}) | {what} | {round(len(documents.read(file).splitlines()) / 50) * 50:,} |"
            for file, what in files.items()]
    return "\n".join(["| file | what | lines, about |", "| --- | --- | ---: |", *rows]) + "\n"


def write_help():
    """What train_minimal.py --help prints, 100 columns wide. Versions of Python break its lines differently."""
    printed = subprocess.run([sys.executable, ROOT / "train_minimal.py", "--help"], capture_output=True, text=True,
                             check=True, env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}).stdout
    return f"```text\n{printed}```\n"


def training_results():
    return json.loads(RESULTS.read_text(encoding="utf-8")).get("training") if RESULTS.exists() else None


def write_results():
    results = training_results()
    if results is None:
        return "(not measured yet)\n"
    where, rows = results["where"], []
    for task in ("copy", "reverse"):
        run = results["tasks"][task]
        rows.append(f"| `python train_minimal.py --task {task}` | {run['steps']:,} | {run['seconds']:.0f} | "
                    f"{run['weights']:,} | {run['test_exact_match']:.1%} |")
    gradients = results["gradients"]
    return "\n".join([
        "| command | steps | seconds | weights | exact match, 1,000 held-out sequences |",
        "| --- | ---: | ---: | ---: | ---: |", *rows, "",
        f"Gradients of the whole model in float64: relative error {gradients['directional']:.1e} against central "
        f"differences, {gradients['torch']:.1e} against PyTorch.", "",
        f"Measured on {where['machine']}, Python {where['python']}, NumPy {where['numpy']}, commit `{where['commit']}`."
    ]) + "\n"


def write_words():
    results = training_results()
    if results is None:
        return "(not measured yet)\n"
    run = results["tasks"]["words"]
    return (f"It learns from {run['train_lines']:,} words; of {run['test_lines']:,} words that it has never seen it "
            f"spells {run['test_exact_match']:.1%} backwards without a mistake, after {run['steps']:,} steps and "
            f"{run['seconds'] / 60:.1f} minutes (same machine as [below](#results)).\n")


PARTS = {
    "README.md": {"results": write_results, "words": write_words, "help": write_help, "sizes": write_sizes},
    "paper_notes.md": {"table3": write_table3},
    "CHEATSHEET.md": {"models": write_models},
}


def rewritten(path):
    """The text at path with every part written anew; a part that differs in white space only stays as it is."""
    text = documents.read(path)
    stored = documents.generated_parts(text)
    if missing := PARTS[path].keys() - stored.keys():
        raise ValueError(f"{path} has no begin and end marks for {missing}")
    for name, write in PARTS[path].items():
        new = write()
        if new.split() != stored[name].split():
            mark = f"<!-- {name}: begin -->\n"
            text = text.replace(mark + stored[name], mark + new)
    return text


# --------------------------------------------------------------------------------------------------- what is measured


def readme_command(beginning):
    """The command of the README that begins so: what is measured is what the page shows."""
    for language, body in documents.fences(documents.read("README.md")):
        for line in body.splitlines():
            if language == "bash" and line.startswith(beginning):
                return line
    raise ValueError(f"README.md has no command that begins with {beginning}")


def train(options, folder):
    """One run of the command line: its last line of metrics, and the number of weights."""
    from train_minimal import load_checkpoint

    checkpoint, metrics = folder / "model.npz", folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    subprocess.run([sys.executable, ROOT / "train_minimal.py", *options, "--checkpoint", checkpoint,
                    "--metrics-file", metrics], cwd=folder, check=True)
    final = json.loads(metrics.read_text(encoding="utf-8").splitlines()[-1])
    return {"steps": final["steps"], "seconds": round(final["seconds"], 1),
            "test_exact_match": final["test_exact_match"],
            "weights": int(load_checkpoint(checkpoint).model.num_parameters())}


def gradient_results():
    """The largest relative error over all weights of a small model, against differences and against PyTorch."""
    from gradient_check import gradient_errors, shake
    from implementation import Transformer, create_causal_mask, create_padding_mask
    from torch_bridge import largest_differences

    rng = np.random.default_rng(0)
    src, tgt = np.array([[3, 4, 4, 5, 0], [6, 3, 7, 4, 5]]), np.array([[1, 5, 3, 0], [1, 6, 6, 4]])
    masks = create_padding_mask(src), create_padding_mask(tgt) | create_causal_mask(4)

    def model(dropout_p):
        sizes = dict(d_model=16, n_heads=4, n_encoder_layers=2, n_decoder_layers=2, d_ff=24, max_len=9)
        return shake(Transformer(9, 8, dropout_p=dropout_p, rng=1, dtype=np.float64, **sizes), rng, 0.1)

    differences = gradient_errors(model(0.1), (), (src, tgt, *masks), rng)
    shaken = model(0)
    _, by_weight = largest_differences(shaken, src, tgt, *masks, rng.normal(size=(2, 4, 8)))
    gradients = shaken.named_gradients()
    relative = max(error / np.abs(gradients[name]).max() for name, error in by_weight.items())
    return {"directional": float(max(differences.values())), "torch": float(relative)}


def where_measured():
    model = platform.processor() or platform.machine()
    try:
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())[1]
    except (OSError, TypeError):
        pass
    commit = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {"machine": f"{model}, {os.cpu_count()} cores", "python": platform.python_version(), "numpy": np.__version__,
            "commit": commit.stdout.strip()}


def measure():
    from train_minimal import TextLines

    results = {"where": where_measured(), "gradients": gradient_results(), "tasks": {}}
    with tempfile.TemporaryDirectory() as folder:
        command = readme_command(".venv/bin/python -c").replace(".venv/bin/python", f'"{sys.executable}"')
        subprocess.run(command, shell=True, cwd=folder, check=True)
        for task, options in TASKS.items():
            results["tasks"][task] = train(options, Path(folder))
        lines = TextLines(Path(folder) / "words.txt").lines
        results["tasks"]["words"] |= {"train_lines": len(lines["train"]), "test_lines": len(lines["test"])}
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    write_file(RESULTS, json.dumps({**stored, "training": results}, indent=1) + "\n")


def store_notebook():
    """notebook.text.py, run from the root, with its outputs. Cells are numbered, so that a diff shows what changed."""
    import jupytext
    import nbformat
    from nbclient import NotebookClient

    notebook = jupytext.read(ROOT / "notebook.text.py")
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02}"
        cell.metadata.pop("execution", None)                            # times
    notebook.metadata["language_info"] = {"name": "python"}
    write_file(ROOT / "notebook.ipynb", nbformat.writes(notebook) + "\n")


def store_numbers():
    numbers = {path: documents.prose_numbers(documents.read(path)) for path in documents.TEXTS}
    write_file(documents.LEDGER, json.dumps(numbers, indent=1, ensure_ascii=False) + "\n")


def write_file(path, text):
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 where something would change")
    parser.add_argument("--measure", action="store_true", help="train and measure first")
    parser.add_argument("--notebook", action="store_true", help="run the notebook and store its outputs")
    parser.add_argument("--numbers", action="store_true", help="accept the numbers of the prose as they now are")
    arguments = parser.parse_args(argv)
    if arguments.measure:
        measure()
    if arguments.notebook:
        store_notebook()
    if arguments.numbers:
        store_numbers()
    stale = [path for path in PARTS if rewritten(path) != documents.read(path)]
    if arguments.check:
        for path in stale:
            print(f"{path} is not what tests/write_documents.py writes", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        write_file(ROOT / path, rewritten(path))
        print(f"{path} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
