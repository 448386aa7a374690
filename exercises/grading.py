"""Grade one file: run its parts in a process of their own, compare here, name the mistake behind a difference."""

import ast
import re
import secrets
import time
from pathlib import Path

import numpy as np

from catalogue import candidates
from checks import FILES, TITLES, parts_of
from reference import (Outcome, agree, diagnose, expected, first_difference, hidden_names, library_without_answers)
from submission import INPUTS_KEPT, MEMORY_LIMIT, TIME_LIMIT, Stopped, Submission

EXERCISES = Path(__file__).resolve().parent


class Usage(Exception):
    """A wrong use of the command line; the text is one clear line."""


def exercise_of(path):
    """The exercise that a file belongs to by its name, or None."""
    found = re.search(r"exercise_0([1-5])", Path(path).name)
    return int(found[1]) if found else None


def grade_file(exercise, path, *, bonus=False, seed=None, time_limit=TIME_LIMIT, memory_limit=MEMORY_LIMIT):
    """The result of one file as a dict (what --json prints, and more). Inputs are drawn from seed."""
    started = time.perf_counter()
    seed = secrets.randbits(48) if seed is None else seed
    grading = Grading(exercise, bonus)
    with Submission(time_limit, memory_limit) as submission:
        try:
            source = Path(path).read_bytes()
            error = submission.load(path, source, library_without_answers(exercise), hidden_names(exercise))
            if error:
                grading.stop("error", load_error(error))
        except OSError as problem:
            why = "there is no such file" if isinstance(problem, FileNotFoundError) else problem.strerror
            grading.stop("error", f"{Path(path).name}: {why} (grade.py --reset {exercise} makes a new one)")
        except Stopped as stopped:
            grading.stop(stopped.status, str(stopped))
        grading.run(parts_of(exercise, seed), submission.run)
    return grading.result() | {"notes": submission.notes, "printed": submission.output, "file": str(path), "seed": seed,
                               "seconds": round(time.perf_counter() - started, 3)}


def load_error(error):
    """Why a file could not be loaded, in one line."""
    where = f"line {error['line']}: " if error["line"] else ""
    if error["left"]:
        return f"{where}the file ends the program while it is being loaded ({error['type']}); it should only define"
    if error["type"] in ("SyntaxError", "IndentationError", "TabError") and "codec can't decode" in error["text"]:
        return f"the file is not UTF-8 text: {error['text']}"
    code = f"\n    {error['code']}" if error["code"] else ""
    return f"the file cannot be loaded: {where}{error['type']}: {error['text']}{code}"


class Grading:
    """The state of one grading: what came, what was right, which mistakes explain the rest."""

    def __init__(self, exercise, bonus=False):
        self.exercise, self.bonus = exercise, bonus
        self.stopped = None                                   # (status, sentence) once the process is gone
        self.states, self.found = {}, {}                      # by part: "right", "todo" or "wrong"; its mistakes
        self.unknown, self.rows = set(), []                   # parts that are wrong in an unknown way; the checks

    def stop(self, status, sentence, bonus=False):
        self.stopped = self.stopped or (status, sentence, bonus)

    def run(self, parts, ask):
        """Grade the parts in order. ask(request, arrays) gives (arrays, error) and may raise Stopped."""
        outcomes = {}
        for part in sorted(parts, key=lambda part: part.bonus):
            waiting = [name for name in part.rests_on if self.states[name] != "right"] if part.bonus else []
            for check in part.checks:
                if check.case not in outcomes and not self.stopped and not waiting:
                    try:
                        outcomes[check.case] = Outcome(*ask(check.case.request, check.case.arrays))
                    except Stopped as stopped:
                        self.stop(stopped.status, str(stopped), part.bonus)
            self.judge(part, outcomes, waiting)

    def judge(self, part, outcomes, waiting):
        observed = [(check, outcomes[check.case]) for check in part.checks if check.case in outcomes]
        right = [agree(outcome, expected(check.case, self.exercise), check.results, check.exact_zeros)
                 for check, outcome in observed]
        todo = [bool(outcome.error and outcome.error["todo"]) for _, outcome in observed]
        if len(observed) < len(part.checks):
            self.states[part.name] = "wrong"
        else:
            self.states[part.name] = "right" if all(right) else "todo" if all(todo) else "wrong"
        inherited, mistakes, guilty = (), (), []
        if self.states[part.name] == "wrong":
            guilty = [name for name in part.rests_on if self.states[name] == "wrong"]
            inherited = tuple(change for name in part.rests_on for _, changes in self.found.get(name, ())
                              for change in changes)
            # What rests on unknown numbers cannot be explained.
            own = () if self.unknown & set(guilty) else candidates(self.exercise, part.code)
            mistakes = diagnose(self.exercise, observed, own, inherited)
            if mistakes is None and inherited:                 # or this part does not use the part that is wrong
                mistakes = diagnose(self.exercise, observed, own)
                inherited = inherited if mistakes is None else ()
            if mistakes is None:
                mistakes = ()
                if not any(right) or any(not good and not outcome.error for good, (_, outcome) in zip(right, observed)):
                    self.unknown.add(part.name)                # else it is right, or it stops
        self.found[part.name] = mistakes
        for check, outcome, good, unwritten in zip(*zip(*observed), right, todo) if observed else ():
            if good:
                self.add(part, check, "right")
            elif unwritten:
                self.add(part, check, "todo", message="not started" if part.bonus else "not written yet")
            else:
                self.explain(part, check, outcome, mistakes, inherited, guilty)
        for check in part.checks[len(observed):]:
            if waiting:
                self.add(part, check, "waits", message=f"not started: waits until {waiting[0]} is right")
            else:
                self.add(part, check, "wrong", message=self.stopped[1].partition("\n")[0])

    def explain(self, part, check, outcome, mistakes, inherited, guilty):
        """Add the row of a check that failed."""
        want = expected(check.case, self.exercise)
        message, detail = difference(check, outcome, want)

        def explained(changes):
            got = expected(check.case, self.exercise, changes)
            return got is not None and agree(outcome, got, check.results, check.exact_zeros)

        if inherited and explained(inherited):
            names = [name for name in part.rests_on if self.found.get(name)]
            ids = [mistake.id for name in names for mistake, _ in self.found[name]]
            sentence = f"follows from the mistake in {' and '.join(names)}"
            self.add(part, check, "wrong", sentence, detail, ids=ids, said=message)
            return
        for group in [[m] for m in mistakes] + [list(mistakes)]:
            if group and explained((*inherited, *(change for _, changes in group for change in changes))):
                alike = "Your code stops exactly as it does" if outcome.error else "Your output is exactly what you get"
                sentence = f"{alike} when " + ", and ".join(m.says for m, _ in group) + "."
                self.add(part, check, "wrong", sentence, detail, ids=[m.id for m, _ in group], said=message,
                         why=" ".join(m.why for m, _ in group))
                return
        unknown = f"{message}. Not a mistake I know" if not outcome.error else message
        if guilty:
            unknown = f"{unknown}; it rests on {guilty[0]}, which is not right yet"
            detail = detail if outcome.error else ""
        self.add(part, check, "wrong", unknown, detail)

    def add(self, part, check, state, message="", detail="", ids=(), said="", why=""):
        self.rows.append({"name": check.name, "passed": state == "right", "points": check.points * (state == "right"),
                          "misconception": ids[0] if ids else None, "message": message, "max_points": check.points,
                          "part": part.name, "bonus": part.bonus, "state": state, "misconceptions": list(ids),
                          "difference": said, "why": why, "detail": detail})

    def result(self):
        main = [row for row in self.rows if not row["bonus"]]
        more = [row for row in self.rows if row["bonus"]]
        asked = main + more if self.bonus else main
        if self.stopped and (self.bonus or not self.stopped[2]):
            status = self.stopped[0]
        elif all(row["passed"] for row in asked):
            status = "pass"
        elif not any(row["state"] == "wrong" for row in asked) and not any(row["passed"] for row in (
                more if self.bonus and all(row["passed"] for row in main) else asked)):
            status = "todo"
        else:
            status = "fail"
        return {"id": self.exercise, "title": TITLES[self.exercise], "status": status,
                "score": sum(row["points"] for row in main), "max_score": sum(row["max_points"] for row in main),
                "bonus_score": sum(row["points"] for row in more), "max_bonus": sum(row["max_points"] for row in more),
                "message": self.stopped[1] if self.stopped else "", "checks": self.rows, "notes": [], "printed": ""}


# ------------------------------------------------------------------------------------------- what differs, drawn


def difference(check, outcome, want):
    """(sentence, drawing) on how an outcome differs from what is expected."""
    error = outcome.error
    if error:
        where = f"line {error['line']}: " if error.get("line") else ""
        if error.get("memory"):
            return f"{where}asked for more memory than the limit allows ({error['text']})", ""
        if error.get("left"):
            return f"{where}called {error['type']}: a layer returns its result and goes on", ""
        return f"{where}{error['type']}: {error['text']}".rstrip(": "), error.get("code") or ""
    if want.error:
        return f"{want.error['type']} was to be raised, and was not", ""
    for name in check.results:
        found = first_difference(outcome.arrays[name], want.arrays[name], check.exact_zeros)
        if found:
            index, sentence = found
            many = len(check.results) > 1
            return (f"{name} {sentence}" if many else sentence), draw(outcome.arrays[name], want.arrays[name], index)
    kept = outcome.arrays[INPUTS_KEPT]
    arguments = [name for call in check.case.request["calls"] for name in call[1] if isinstance(name, str)]
    changed = [name for name, same in zip(dict.fromkeys(arguments), kept) if not same]
    return f"the result is right, but the caller's array {' and '.join(changed)} was changed in place", ""


def draw(got, want, index, limit=6):
    """The matrix round the first difference, expected beside what came; entries that differ have a star."""
    if index is None or want.ndim < 2 or got.shape != want.shape:
        return ""
    *front, row, column = index
    rows = slice(max(0, min(row - limit // 2, want.shape[-2] - limit)), None)
    columns = slice(max(0, min(column - limit // 2, want.shape[-1] - limit)), None)
    window = (*front, slice(rows.start, rows.start + limit), slice(columns.start, columns.start + limit))
    want, got = want[window], got[window]

    def cell(value, other):
        if want.dtype == bool:
            return (" X" if value else " .") + ("*" if value != other else " ")
        text = f"{value:8.3f}" if abs(value) < 1000 else f"{value:8.1e}"
        return text + ("*" if not np.isclose(value, other, rtol=1e-4, atol=1e-7, equal_nan=True) else " ")

    left = ["".join(cell(a, a) for a in line) for line in want]
    right = ["".join(cell(b, a) for a, b in zip(*pair)) for pair in zip(want, got)]
    place = ", ".join([*map(str, front), f"rows from {window[-2].start}", f"columns from {window[-1].start}"])
    title = f"{'expected':<{len(left[0])}}   came [{place}]"
    return "\n".join([title, *(f"{a} | {b}" for a, b in zip(left, right))])


def line_of(path, part_name):
    """The line on which a part begins in a file, or None."""
    owner, _, method = part_name.rpartition(".")
    try:
        body = ast.parse(Path(path).read_bytes()).body
        if owner:
            body = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == owner).body
        return next(node.lineno for node in body if isinstance(node, ast.FunctionDef) and node.name == method)
    except (OSError, SyntaxError, ValueError, StopIteration):
        return None


def exercise_path(exercise):
    return EXERCISES / FILES[exercise]
