"""Measure the grader: python tests/measure_grader.py [--quick] [--write]

Grades the stubs, the solutions, every mistake of the catalogue as a file, wrong answers that share no code with the
catalogue, wrong answers that are no known mistake, right answers in other words, and files that break or cheat; prints
the rates as a table. --write puts the table into exercises/README.md. --quick grades in this process, which is as exact
and much faster, but leaves out the files that break or cheat.
"""

import argparse
import ast
import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
EXERCISES = ROOT / "exercises"
DATA = HERE / "exercises_submissions"
README = EXERCISES / "README.md"
sys.path[:0] = [str(ROOT), str(EXERCISES)]

import grade
import grading
import implementation
from catalogue import CATALOGUE
from checks import FILES, parts_of
from reference import (WRITTEN, changed_source, expected, hidden_names, library_without_answers)
from submission import describe, execute, prepare_library


# ------------------------------------------------------------------------------------------- making submissions


def solution_text(exercise):
    return (EXERCISES / "solutions" / FILES[exercise].replace("exercise_", "solution_")).read_text(encoding="utf-8")


def spliced(text, fragment):
    """A file's text with the functions, methods and whole classes of a fragment in place of its own."""
    tree, new = ast.parse(text), ast.parse(fragment)
    lines, fragment_lines = text.splitlines(), fragment.splitlines()
    edits, front, end = [], [], []

    def source(node):
        return fragment_lines[node.lineno - 1:node.end_lineno]

    def by_name(body):
        return {node.name: node for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}

    top = by_name(tree.body)
    for node in new.body:
        old = top.get(getattr(node, "name", None))
        if old is None:
            (front if isinstance(node, (ast.Import, ast.ImportFrom)) else end).append(source(node))
        elif isinstance(node, ast.ClassDef) and not node.bases:
            methods = by_name(old.body)
            for method in node.body:
                place = methods.get(method.name)
                edits.append((place.lineno - 1, place.end_lineno, source(method)) if place
                             else (old.end_lineno, old.end_lineno, ["", *source(method)]))
        else:
            edits.append((old.lineno - 1, old.end_lineno, source(node)))
    for first, last, replacement in sorted(edits, key=lambda edit: edit[:2], reverse=True):
        lines[first:last] = replacement
    after_imports = max(node.end_lineno for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)))
    lines[after_imports:after_imports] = sum(front, [])
    return "\n".join(lines + sum(([""] + part for part in end), [])) + "\n"


def fragments(name):
    """[(words of the heading, text)] of a data file."""
    text = (DATA / f"{name}.py").read_text(encoding="utf-8")
    pieces = re.split(r"^#: (.*)\n", text, flags=re.MULTILINE)[1:]
    return [([word.strip() for word in heading.split("|")], body) for heading, body in zip(pieces[::2], pieces[1::2])]


def catalogue_submissions():
    """(name, exercise, text, ids) for every spelling of every mistake, made from the library's own text."""
    for mistake in CATALOGUE.values():
        exercise = mistake.exercise
        for number, changes in enumerate(mistake.spellings):
            names = [name for name in dir(implementation) if name not in hidden_names(exercise) and name[0] != "_"]
            text = "import math\nimport numpy as np\nfrom implementation import (" + ", ".join(names) + ")\n"
            text += "\n\n" + "\n\n".join(changed_source(name, changes) for name in WRITTEN[exercise])
            yield f"{mistake.id}_{number}", exercise, text, {mistake.id}


def independent_submissions():
    for exercise in FILES:
        for (name, ids), body in fragments(f"wrong_{exercise}"):
            yield name, exercise, spliced(solution_text(exercise), body), set(ids.split())


def other_submissions(kind):
    """(name, exercise, text) of right answers in other words, or of unknown mistakes."""
    for (name, exercise), body in fragments(kind):
        yield name, int(exercise), spliced(solution_text(int(exercise)), body)


def hostile_submissions():
    """(name, exercise, text, status, words of the verdict)."""
    for (name, exercise, status, words, *alone), body in fragments("hostile"):
        body = body.replace("PROJECT", repr(str(ROOT)))
        text = body if alone else spliced(solution_text(int(exercise)), body)
        yield name, int(exercise), text, status, words
    latin = solution_text(1).replace("Every query", "Jede Anfrage f\u00fcr").encode("latin-1")
    yield "wrong_encoding", 1, latin, "error", "UTF-8"


# -------------------------------------------------------------------------------------------------- grading them


def grade_text(exercise, text, **options):
    """Grade a text as a file, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILES[exercise]
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return grading.grade_file(exercise, path, **options)


def grade_here(exercise, text, seed=None):
    """Grade a text in this process: for many harmless submissions, with the same checks and the same judgement."""
    prepared = sys.modules["implementation"]
    try:
        prepare_library(library_without_answers(exercise), hidden_names(exercise))
        names = {"__name__": "submission"}
        exec(compile(text, "submission.py", "exec"), names)
    finally:
        sys.modules["implementation"] = prepared

    def ask(request, arrays):
        try:
            with np.errstate(all="ignore"):
                return execute(request, names, arrays), None
        except Exception as problem:
            return {}, describe(problem, "submission.py")
    judged = grading.Grading(exercise)
    judged.run(parts_of(exercise, seed), ask)
    return judged.result()


def named(result):
    """The ids of the mistakes that a result names."""
    return {id for row in result["checks"] for id in row["misconceptions"]}


def rejected(result):
    """Whether anything of the main part, or of the bonus when that is where the mistake sits, was found wrong."""
    return any(row["state"] == "wrong" for row in result["checks"])


# ------------------------------------------------------------------------------------------------------ the table


class Tally:
    """How many wrong answers were rejected, named rightly, named wrongly."""

    def __init__(self):
        self.total = self.rejected = self.right = self.wrong = 0
        self.remarks = []

    def add(self, name, result, ids):
        found = named(result)
        self.total += 1
        self.rejected += rejected(result)
        self.right += found == ids
        self.wrong += bool(found - ids)
        if found != ids or not rejected(result):
            self.remarks.append(f"{name}: expected {sorted(ids)}, named {sorted(found)}, rejected {rejected(result)}")

    def row(self, title, ids=True):
        def rate(count):
            share = 100 * count / self.total
            return f"{count} of {self.total} ({share:.{0 if share == round(share) else 1}f} %)"
        return [title, rate(self.rejected), rate(self.right) if ids else "-", rate(self.wrong)]


def tally(submissions, judge):
    result = Tally()
    for name, exercise, text, ids in submissions:
        result.add(f"{exercise} {name}", judge(exercise, text), ids)
    return result


def margins(seeds=range(5)):
    """(largest deviation of a right float32 answer, smallest of a mistake), as shares of the largest entry."""
    right, wrong = 0.0, np.inf
    for seed in seeds:
        for exercise in FILES:
            for part in parts_of(exercise, seed):
                for check in part.checks:
                    want = expected(check.case, exercise)
                    if want.error or check.case.request["new"] is None:
                        continue
                    small = {n: a.astype(np.float32 if a.dtype == np.float64 else a.dtype)
                             for n, a in check.case.arrays.items()}
                    name, kwargs = check.case.request["new"]
                    request = {**check.case.request, "new": [name, {**kwargs, "dtype": "float32"}]}
                    if "large the scores" not in check.name and "tiny" not in check.name:
                        got = execute(request, vars(implementation), small)
                        right = max([right] + [deviation(got[n], want.arrays[n]) for n in check.results])
            for mistake in CATALOGUE.values():
                if mistake.exercise == exercise:
                    for changes in mistake.spellings:
                        wrong = min(wrong, largest_deviation(exercise, changes, seed))
    return right, wrong


def deviation(got, want):
    if got.shape != want.shape or bool in (got.dtype, want.dtype):
        return np.inf
    scale = np.abs(want[np.isfinite(want)]).max(initial=0) or 1.0
    difference = np.abs(got.astype(float) - want)
    return np.inf if np.isnan(difference).any() else float(difference.max(initial=0)) / scale


def largest_deviation(exercise, changes, seed):
    parts = [part for part in parts_of(exercise, seed) if all(where in part.code for where, _, _ in changes)]
    largest = 0.0
    for check in parts[0].checks:
        want, got = expected(check.case, exercise), expected(check.case, exercise, changes)
        if want.error or got.error:
            largest = np.inf
        else:
            largest = max([largest] + [deviation(got.arrays[n], want.arrays[n]) for n in check.results]
                          + [np.inf] * (not np.array_equal(got.arrays["inputs kept"], want.arrays["inputs kept"])))
    return largest


def table(rows, heads):
    rows = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def graded(judge):
    """The tallies of wrong answers (known, by other hands, unknown), the right answers' results, and remarks."""
    tallies = [tally(submissions, judge) for submissions in (
        catalogue_submissions(), independent_submissions(),
        ((n, e, t, set()) for n, e, t in other_submissions("unknown")))]
    right = [(f"{e} {n}", judge(e, t)) for n, e, t in other_submissions("right")]
    remarks = sum((t.remarks for t in tallies), [])
    remarks += [f"{n}: {[c['message'] for c in r['checks'] if c['state'] == 'wrong']}" for n, r in right
                if r["status"] != "pass" or any(c["state"] == "wrong" for c in r["checks"])]
    return *tallies, right, remarks


def graded_again(seeds):
    """(number of gradings, remarks) of all wrong and right answers on the inputs of each seed, in this process."""
    gradings, remarks = 0, []
    for seed in seeds:
        *tallies, right, wrong = graded(lambda exercise, text: grade_here(exercise, text, seed))
        gradings += sum(t.total for t in tallies) + len(right)
        remarks += [f"seed {seed}: {remark}" for remark in wrong]
    return gradings, remarks


def measure(quick=False, seeds=()):
    """(the tables as Markdown, remarks on everything that was not as it should be)."""
    judge = grade_here if quick else grade_text
    known, independent, unknown, right, remarks = graded(judge)
    full = sum(r["status"] == "pass" for _, r in right)
    stubs = [judge(n, grading.exercise_path(n).read_text(encoding="utf-8")) for n in FILES]
    solved = [judge(n, solution_text(n)) for n in FILES]
    whole = sum(r["score"] == r["max_score"] and r["bonus_score"] == r["max_bonus"] for r in solved)
    text = [table([known.row("every mistake of the catalogue, in every spelling"),
                   independent.row("wrong answers that share no code with the catalogue"),
                   unknown.row("wrong answers that are no known mistake", ids=False)],
                  ["wrong answers", "rejected", "named by the right id", "named by a wrong id"]), ""]
    other = [["right answers in other words", f"{full} of {len(right)} get full marks"],
             ["solutions", f"{whole} of {len(solved)} get full marks, bonus included"],
             ["untouched stubs", f"{sum(r['status'] == 'todo' for r in stubs)} of {len(stubs)} read \"not started\""]]
    if seeds:
        gradings, wrong = graded_again(seeds)
        remarks += wrong
        other.insert(1, [f"wrong and right answers again, on {len(seeds)} other draws of the inputs",
                         f"{gradings - len(wrong):,} of {gradings:,} judged and named as they should be"])
    if not quick:
        hostile, wrong = 0, []
        for name, exercise, content, status, words in hostile_submissions():
            result = grade_text(exercise, content, time_limit=2 if status == "timeout" else 20)
            said = verdict(result)
            good = result["status"] == status and words in said
            hostile += good
            wrong += [] if good else [f"{name}: expected {status} {words!r}, got {result['status']}: {said[:300]}"]
        remarks += wrong
        other.append(["files that break, cheat or misbehave",
                      f"{hostile} of {hostile + len(wrong)} get the verdict they should"])
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / FILES[n] for n in FILES]
            for n, path in zip(FILES, paths):
                path.write_text(solution_text(n), encoding="utf-8")
            before = os.times()
            for n, path in zip(FILES, paths):
                grading.grade_file(n, path)
            after = os.times()
            busy = sum(after[:4]) - sum(before[:4])
            other.append(["five solved exercises", f"{after.elapsed - before.elapsed:.1f} s, {busy:.1f} s of them "
                                                   "processor time"])
    near, far = margins()
    other.append(["a right answer in float32 is off by at most", f"{near:.0e} of the largest entry"])
    other.append(["a mistake of the catalogue is off by at least", f"{far:.0e} of it; the tolerance is {1e-4:.0e}"])
    return "\n".join([*text, table(other, ["what else", "measured"])]), remarks


def verdict(result):
    """All that a result says in words."""
    return " ".join([result["message"], *result["notes"], *(row["message"] for row in result["checks"])])


def example():
    """What the grader says to one wrong submission, as a text block."""
    wrong = solution_text(2).replace("x.transpose(0, 2, 1, 3).reshape(B, T, h * d_k)", "x.reshape(B, T, h * d_k)")
    result = grade_here(2, wrong, seed=1) | {"file": str(grading.exercise_path(2))}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        grade.show(result)
    return f"```text\n{printed.getvalue().rstrip()}\n```"


def count():
    return f"{len(CATALOGUE)} mistakes"


def with_part(page, name, text):
    """A page with the text between the marks of a part replaced."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = page.split(begin)
    return f"{before}{begin}{text}{end}{rest.split(end)[1]}"


def part_of(page, name):
    return page.split(f"<!-- {name}: begin -->")[1].split(f"<!-- {name}: end -->")[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="grade in this process, harmless files only")
    parser.add_argument("--seeds", metavar="N", type=int, default=40,
                        help="grade all wrong and right answers on this many more draws of the inputs (default 40)")
    parser.add_argument("--write", action="store_true", help="put the tables into exercises/README.md")
    options = parser.parse_args()
    text, remarks = measure(options.quick, range(1, options.seeds + 1))
    print(text)
    for remark in remarks:
        print(f"not as it should be: {remark}")
    if options.write:
        page = README.read_text(encoding="utf-8")
        page = with_part(with_part(page, "count", count()), "example", f"\n{example()}\n")
        page = with_part(page, "grader", f"\n{text}\n")
        fresh = README.with_name(".README.md.new")
        fresh.write_text(page, encoding="utf-8")
        os.replace(fresh, README)
    sys.exit(1 if remarks else 0)


if __name__ == "__main__":
    main()
