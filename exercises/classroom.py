"""Grade a class: one row of a CSV file for each submission, and a table of the mistakes that the class made."""

import collections
import concurrent.futures
import csv
import hashlib
import os
import re
import time
from pathlib import Path

import grading
from grading import Usage
from submission import digest

COLUMNS = ("student", "exercise", "status", "score", "bonus", "misconceptions", "seconds", "file", "digest")
TABLE_COLUMNS = ("misconception", "exercise", "students", "meaning")


def find(folder):
    """[(student, exercise, path)] in order, and the files that are no submission.

    DIR/<student>/.../exercise_0N*.py, or a flat name such as ada_exercise_02.py or exercise_02-ada.py.
    """
    found, unrecognised = [], []
    for path in sorted(p for p in Path(folder).rglob("*") if p.is_file()):
        inside = path.relative_to(folder)
        exercise = grading.exercise_of(path) if path.suffix == ".py" else None
        student = inside.parts[0] if len(inside.parts) > 1 else student_of(path.stem)
        if exercise is None or not student or any(part.startswith(".") for part in inside.parts):
            unrecognised.append(inside)
        else:
            found.append((student, exercise, path))
    return found, unrecognised


def student_of(stem):
    """The student in a flat name: what stands before exercise_0N, or else behind it."""
    before, _, after = re.sub(r"exercise_0([1-5])", "\n", stem).partition("\n")
    titles = {Path(name).stem[len("exercise_0N_"):] for name in grading.FILES.values()}
    after = after.strip("_- ")
    for title in titles:
        after = after.removeprefix(title)
    return before.strip("_- ") or after.strip("_- ")


def safe(value):
    """A cell that no spreadsheet takes for a formula."""
    text = str(value)
    return f"'{text}" if text[:1] in tuple("=+-@\t\r") else text


def grader_digest():
    """Changes when the grader does, so that rows of an older grader are not reused."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    own = [path for path in sources if not path.name.startswith("exercise_0")]
    text = "".join(digest(path) for path in (*own, Path(grading.__file__).parents[1] / "implementation.py"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def grade_one(student, exercise, path, options, mark):
    """The row of one submission; whatever happens, a row."""
    started = time.perf_counter()
    row = {"student": student, "exercise": exercise, "file": str(path.relative_to(options.submissions)), "digest": mark}
    try:
        result = grading.grade_file(exercise, path, bonus=options.bonus, seed=options.seed,
                                    time_limit=options.time_limit)
        ids = dict.fromkeys(id for check in result["checks"] for id in check["misconceptions"])
        row |= {"status": result["status"], "score": result["score"], "bonus": result["bonus_score"],
                "misconceptions": " ".join(ids), "seconds": f"{result['seconds']:.2f}"}
    except Exception as problem:                                # one bad file never stops the others
        row |= {"status": "error", "score": 0, "bonus": 0, "misconceptions": "",
                "seconds": f"{time.perf_counter() - started:.2f}"}
        print(f"{row['file']}: {type(problem).__name__}: {problem}")
    return row


def read_rows(path):
    """Rows of an earlier run by file name, {} when there is none."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return {row["file"].removeprefix("'"): {name: value.removeprefix("'") for name, value in row.items()}
                    for row in csv.DictReader(file) if row.keys() == set(COLUMNS)}
    except (OSError, AttributeError, UnicodeDecodeError, csv.Error):
        return {}


def write_table(path, columns, rows):
    """Write a CSV file beside its place and move it there."""
    fresh = path.with_name(f".{path.name}.new")
    with open(fresh, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([safe(row[name]) for name in columns] for row in rows)
    os.replace(fresh, path)


def misconceptions(rows):
    """The second table: how many students made which mistake, the most frequent first."""
    from catalogue import CATALOGUE
    students = collections.defaultdict(set)
    for row in rows:
        for id in row["misconceptions"].split():
            students[id].add(row["student"])
    return [{"misconception": id, "exercise": CATALOGUE[id].exercise, "students": len(who),
             "meaning": CATALOGUE[id].says}
            for id, who in sorted(students.items(), key=lambda item: (-len(item[1]), item[0])) if id in CATALOGUE]


def grade_class(options):
    """Grade all submissions below a folder. 0 when every file was graded, 130 when interrupted; 2 for wrong usage."""
    folder, out = Path(options.submissions), Path(options.csv)
    if not folder.is_dir():
        raise Usage(f"there is no folder {folder}")
    if not out.parent.is_dir():
        raise Usage(f"there is no folder {out.parent} to write {out.name} into")
    if out.is_dir():
        raise Usage(f"{out} is a folder; --csv takes the name of a file")
    table = out.with_name(f"{out.stem}-misconceptions.csv")
    found, unrecognised = find(folder)
    found = [item for item in found if not options.numbers or item[1] in options.numbers]
    unrecognised = [name for name in unrecognised if (folder / name).resolve() not in (out.resolve(), table.resolve())]
    earlier, grader = read_rows(out), f"{grader_digest()}{'-bonus' * options.bonus}"
    rows, todo = {}, []
    for student, exercise, path in found:
        name = str(path.relative_to(folder))
        try:
            mark = f"{digest(path)}-{grader}"
        except OSError:                                         # grading says what is wrong with it
            mark = ""
        if mark and earlier.get(name, {}).get("digest") == mark:
            rows[name] = earlier[name]
        else:
            todo.append((student, exercise, path, options, mark))
    skipped, status = len(rows), 0

    def save():
        done = [rows[name] for _, _, path in found if (name := str(path.relative_to(folder))) in rows]
        write_table(out, COLUMNS, done)
        write_table(table, TABLE_COLUMNS, misconceptions(done))
        return done

    pool = concurrent.futures.ThreadPoolExecutor(options.jobs)
    try:
        saved = time.monotonic()
        for future in concurrent.futures.as_completed([pool.submit(grade_one, *item) for item in todo]):
            row = future.result()
            rows[row["file"]] = row
            print(f"{row['student']:<20} exercise {row['exercise']}  {row['status']:<8} {row['score']:>2}  "
                  f"{row['misconceptions']}", flush=True)
            if time.monotonic() - saved > 1:
                save()
                saved = time.monotonic()
    except KeyboardInterrupt:
        status = 130
        print("interrupted: finished rows are kept, a second run goes on from here")
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        done = save()
    for name in unrecognised:
        print(f"unrecognised: {name}")
    print(f"{len(done)} files in {out.name} ({skipped} unchanged and skipped), {len(unrecognised)} unrecognised")
    for row in misconceptions(done):
        print(f"{row['students']:>4}  {row['misconception']}: {row['meaning']}")
    return status
