"""Make the stubs from the solutions: python exercises/make_stubs.py [--check]

A solution stands between ``# begin: what is to be done`` and ``# end``. In the stub one NotImplementedError with these
words takes its place; all else is the same, but for a few lines on how to begin. A stub that was written into is
overwritten too (`grade.py --reset N` keeps a backup). --check writes nothing and exits 1 when a stub differs.
"""

import argparse
import re
import sys
from pathlib import Path

EXERCISES = Path(__file__).resolve().parent

BLOCK = re.compile(r"^( *)# begin: (.+)\n(?:.*\n)*?\1# end\n", re.MULTILINE)

HOW_TO = """
Write what is marked TODO, then run this file: it grades itself, and --hint helps. The gradients are a bonus.
\"\"\"

if __name__ == "__main__":          # grades this file in a process of its own, and exits
    import grade
    grade.this_file()
"""


def solutions():
    return sorted((EXERCISES / "solutions").glob("solution_0*.py"))


def stub_path(solution):
    return EXERCISES / solution.name.replace("solution_", "exercise_")


def make_stub(text):
    """The text of the stub for the text of a solution."""
    docstring, rest = text.split('"""\n', 1)
    stub = f"{docstring}{HOW_TO}{rest}"
    return BLOCK.sub(r'\1raise NotImplementedError("TODO: \2")' + "\n", stub)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a stub differs")
    check = parser.parse_args().check
    stale = []
    for solution in solutions():
        stub = make_stub(solution.read_text(encoding="utf-8"))
        path = stub_path(solution)
        if path.exists() and path.read_text(encoding="utf-8") == stub:
            continue
        stale.append(path.name)
        if not check:
            path.write_text(stub, encoding="utf-8")
    if check and stale:
        sys.exit(f"not in step with their solutions: {', '.join(stale)}")
    print("all stubs are in step" if not stale else f"written: {', '.join(stale)}")


if __name__ == "__main__":
    main()
