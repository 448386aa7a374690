"""What each mistake of --inject-bug does to training, and whether the grader sees it: the table of exercises/README.md.

    python exercises/measure_bugs.py             writes the table from the stored results
    python exercises/measure_bugs.py --check     exit status 1 where the page differs from what would be written
    python exercises/measure_bugs.py --measure [NAME ...]   first trains with every mistake (or the named ones)

The results stand in exercises/measured_bugs.json, with the setting, the versions and the commit.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

EXERCISES = Path(__file__).resolve().parent
sys.path[:0] = [str(EXERCISES.parent), str(EXERCISES)]

import numpy as np                                                                                   # noqa: E402
from threadpoolctl import threadpool_limits                                                          # noqa: E402

from catalogue import CATALOGUE                                                                      # noqa: E402
from checks import parts_of                                                                          # noqa: E402
from exercises.bugs import BUGS                                                                      # noqa: E402
from grading import Grading                                                                          # noqa: E402
from reference import expected                                                                       # noqa: E402
from train_minimal import DEFAULTS, Run, replacing                                                   # noqa: E402

RESULTS, PAGE = EXERCISES / "measured_bugs.json", EXERCISES / "README.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->"

SETTING = dict(d_model=48, n_layers=1, batch_size=64, warmup=200, lr=5e-3)
STEPS = 800
DEEPER = {"no_causal_mask, 2 + 2 layers": ("no_causal_mask", {"n_layers": 2})}      # where depth tells the story better
ROWS = ["none", *BUGS, *DEEPER]

# The catalogue's ids of each mistake, where they are not its name here.
IN_CATALOGUE = {
    "heads_split_without_transpose": ["split_without_transpose"],
    "heads_merged_without_transpose": ["merge_without_transpose"],
    "heads_without_transpose": ["split_without_transpose", "merge_without_transpose"],
    "no_sqrt_d_model": ["embedding_not_scaled"],
    "no_positions": ["positions_not_added"],
    "no_residual": ["norm_without_residual"],
    "pre_norm": ["pre_norm", "decoder_pre_norm"],
    "no_causal_mask": ["causal_hides_nothing"],
}


def changes_of(bug):
    """The mistakes of the catalogue behind a name, each with the spelling built in here: [(mistake, changes)]."""
    mistakes = [CATALOGUE[id] for id in IN_CATALOGUE.get(bug, [bug])]
    return [(mistake, mistake.spellings[-1 if bug == "memory_ignored" else 0]) for mistake in mistakes]


# --------------------------------------------------------------------------------------------------- what is measured


def train(bug, task, **other):
    """Teacher-forced token accuracy and free-running exact match on the test set after STEPS steps."""
    run = Run({**DEFAULTS, **SETTING, **other, "task": task, "inject_bug": bug})
    run.held_out["validation"] = run.held_out["validation"][:1]          # nothing here looks at validations
    for _ in range(STEPS):
        run.train_step()
    return {"teacher_forced": run.teacher_forced(run.held_out["test"])[1],
            "exact_match": float(run.exact(run.held_out["test"]).mean())}


def graded(bug):
    """The ids that the grader gives to answers with this mistake, exercise by exercise; None where it passes them."""
    by_exercise = {}
    for mistake, changes in changes_of(bug):
        by_exercise.setdefault(mistake.exercise, []).extend(changes)
    named = set()
    for exercise, changes in by_exercise.items():
        def answer(request, arrays, exercise=exercise, changes=changes):
            case = next(c.case for part in parts for c in part.checks if c.case.request is request)
            outcome = expected(case, exercise, changes)
            return outcome.arrays, outcome.error and {"todo": False, **outcome.error}

        parts, grading = parts_of(exercise, 0), Grading(exercise)
        grading.run(parts, answer)
        result = grading.result()
        if result["status"] == "pass":
            return None
        named |= {id for check in result["checks"] for id in check["misconceptions"]}
    return sorted(named)


def measure(rows):
    stored = load()
    commit = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], cwd=EXERCISES, capture_output=True, text=True)
    results = {name: row for name, row in stored.get("bugs", {}).items() if name in ROWS}
    with threadpool_limits(1, "blas"):
        for row in rows:
            started = time.perf_counter()
            bug, other = DEEPER.get(row, (None if row == "none" else row, {}))
            results[row] = {task: train(bug, task, **other) for task in ("copy", "reverse")}
            results[row]["named"] = [] if bug is None else graded(bug)
            print(f"{row:<32}{row_of(row, results[row])}  {time.perf_counter() - started:.0f} s", flush=True)
            write_file(RESULTS, json.dumps({
                "setting": SETTING, "steps": STEPS, "python": platform.python_version(), "numpy": np.__version__,
                "commit": commit.stdout.strip(), "bugs": results}, indent=1) + "\n")


# ---------------------------------------------------------------------------------------------------- what is written


def load():
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def percent(share):
    """Tenths of a percent; but 100 stands for every single one, and 0 for none."""
    return f"{min(max(round(1000 * share), int(share > 0)), 999 + (share == 1)) / 10:.4g} %"


def row_of(bug, row):
    cells = [percent(row[task][figure]) for task in ("copy", "reverse") for figure in ("teacher_forced", "exact_match")]
    if bug == "none":
        caught = ""
    elif row["named"] is None:
        caught = "no"
    else:
        caught = "yes: " + ", ".join(f"`{id}`" for id in row["named"]) if row["named"] else "yes, without a name"
    return " | ".join([*cells, caught])


def label(row):
    return "no mistake" if row == "none" else re.sub("^[a-z_]+", r"`\g<0>`", row)


def table():
    stored = load()
    if not stored:
        return "(not measured yet)\n"
    setting = stored["setting"]
    rows = [f"| {label(name)} | {row_of(name, stored['bugs'][name])} |" for name in ROWS if name in stored["bugs"]]
    return "\n".join([
        "| `--inject-bug` | copy, teacher-forced | copy, exact | reverse, teacher-forced | reverse, exact | "
        "caught by the grader |", "| --- | ---: | ---: | ---: | ---: | --- |", *rows, "",
        "Teacher-forced: share of right tokens when the decoder is fed the right tokens so far. Exact: share of whole "
        "sequences right when it writes alone.",
        f"Measured on 1,000 test sequences after {stored['steps']} steps with one seed: d_model {setting['d_model']}, "
        f"{DEFAULTS['n_heads']} heads, {setting['n_layers']} + {setting['n_layers']} layers, "
        f"batch {setting['batch_size']}, sequences of 1 to {DEFAULTS['seq_len']} numbers, "
        f"warm-up {setting['warmup']} steps, "
        f"peak rate {setting['lr']}.",
        f"Python {stored['python']}, NumPy {stored['numpy']}, commit `{stored['commit']}`."]) + "\n"


def rewritten(page):
    """The text of the page with the part between the marks written anew. ValueError without the marks."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"{PAGE.name} must have {BEGIN.strip()} and {END} once each")
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: BEGIN + table() + END, page, flags=re.S)


def write_file(path, text):
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 where the page would change")
    parser.add_argument("--measure", nargs="*", metavar="NAME", choices=ROWS, help="train first")
    arguments = parser.parse_args(argv)
    if arguments.measure is not None:
        measure(arguments.measure or ROWS)
    try:
        page = PAGE.read_text(encoding="utf-8")
        new = rewritten(page)
    except (OSError, ValueError) as error:
        print(f"measure_bugs.py: error: {error}", file=sys.stderr)
        return 2
    if arguments.check and new != page:
        print(f"{PAGE.name} is not what measure_bugs.py writes", file=sys.stderr)
        return 1
    if new != page:
        write_file(PAGE, new)
        print(f"{PAGE.name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
