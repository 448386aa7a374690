"""Grade the exercises: python exercises/grade.py [N ...]

Without a number all five are graded. Exit status 0 when all that was asked for is right, 1 when it is not, 2 for wrong
usage. Each file runs in a process of its own, with a time and a memory limit; see exercises/README.md.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))            # implementation.py lies one folder up

try:
    import grading
    from checks import FILES, TITLES
    from grading import Usage
    from hints import HINTS
except (SyntaxError, ImportError) as problem:               # in the library, not in an exercise
    print(f"grade.py: the library cannot be loaded: {problem}", file=sys.stderr)
    sys.exit(2)

SHOWN = {"right": ("right", "32"), "wrong": ("wrong", "31"), "todo": ("todo ", "33"), "waits": ("later", "33")}
LEVELS = ("a question", "the idea", "the first line")


# -------------------------------------------------------------------------------------------------- the report


def colour(text, code):
    wanted = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return f"\033[{code}m{text}\033[0m" if wanted else text


def indented(text, by=17, width=100):
    """Text moved to the right, long lines wrapped; drawings and code stay as they are."""
    lines = text.splitlines()
    if width:
        lines = [piece for line in lines for piece in textwrap.wrap(line, width) or [""]]
    return "\n".join(" " * by + line for line in lines)


def show(result, bonus=False):
    """Print one graded exercise."""
    words = {"pass": "done", "todo": "not started", "fail": "in progress", "timeout": "out of time"}
    started = any(row["state"] != "todo" for row in result["checks"] if row["bonus"] and row["state"] != "waits")
    more = f"{result['bonus_score']} of {result['max_bonus']}" if started else "not started"
    print(f"Exercise {result['id']}: {result['title']}")
    print(f"  {words.get(result['status'], result['status'])}: {result['score']} of {result['max_score']} points, "
          f"bonus {more}")
    if result["message"]:
        print(colour(f"  {result['message']}", "31"))
    if result["status"] not in ("todo", "error") or any(row["passed"] for row in result["checks"]):
        said = set()
        for row in result["checks"]:
            if row["bonus"] and not started and not bonus:
                continue
            show_check(row, said)
    for note in result["notes"]:
        print(f"  note: {note}")
    if result["printed"]:
        print("  your file printed:")
        print(indented("\n".join(result["printed"].splitlines()[-8:]), 4, None))
    print(f"  next: {next_step(result, bonus)}\n")


def show_check(row, said):
    word, code = SHOWN[row["state"]]
    label = f"bonus: {row['name']}" if row["bonus"] else row["name"]
    print(f"  {colour(word, code)}  {row['points']} / {row['max_points']}  {label}")
    if row["state"] != "wrong":
        return
    key = (row["message"], row["why"])
    if row["misconceptions"] and key in said:
        print(indented("the same"))
        return
    error = re.match(r"line \d+: \w+", row["message"])
    if error and (row["part"], error[0]) in said:
        print(indented(f"{error[0]}, as above"))
        return
    said |= {key, (row["part"], error and error[0])}
    print(indented(colour(row["message"], "1") if row["misconceptions"] else row["message"]))
    if row["difference"]:
        print(indented(f"({row['difference']})"))
    if row["why"]:
        print(indented(row["why"]))
    if row["detail"] and row["part"] not in said and (not row["misconceptions"] or "X" in row["detail"]):
        said.add(row["part"])                               # one drawing a part is enough
        print(indented(row["detail"], width=None))


def unsolved(result, bonus=False):
    """The first check that is to be done, or None."""
    rows = [row for row in result["checks"] if not row["passed"]]
    return next((row for row in rows if bonus or not row["bonus"]), None)


def next_step(result, bonus=False):
    row = unsolved(result, bonus)
    beyond = (f"exercise {result['id'] + 1}" if result["id"] < 5
              else "python train_minimal.py --task copy --with-exercises")
    if row is None:
        spare = unsolved(result, True)
        if spare:
            return f"the bonus, {spare['part']}; or {beyond}"
        return beyond
    line = grading.line_of(result["file"], row["part"])
    where = f"{Path(result['file']).name}{f', line {line}' if line else ''}"
    return f"{row['part']} ({where}); --hint helps"


def show_progress(results, bonus=False):
    """A bar over the points of all results."""
    got = sum(r["score"] + bonus * r["bonus_score"] for r in results)
    of = sum(r["max_score"] + bonus * r["max_bonus"] for r in results)
    done = sum(r["status"] == "pass" for r in results)
    full = got * 30 // of
    print(f"Progress [{'#' * full}{'-' * (30 - full)}] {done} of {len(results)} exercises, {got} of {of} points")


def show_hint(result, level, bonus=False):
    row = unsolved(result, bonus) or unsolved(result, True)
    print(f"Exercise {result['id']}: {result['title']}")
    if row is None:
        print("  all is right, there is nothing to hint at\n")
        return
    print(f"  {row['part']}, hint {level} of 3, {LEVELS[level - 1]}:")
    print(indented(HINTS[row["part"]][level - 1], 4))
    print("" if level == 3 else f"  (more: --hint {level + 1})\n")


# ------------------------------------------------------------------------------------------------- the commands


def watch(grade, path, changed=None):
    """Grade now and whenever the file is saved, until interrupted. Stays on this file, solved or not."""
    changed = changed or (lambda before: _wait_for_change(path, before))
    result, before = grade(), stamp(path)
    print(f"watching {Path(path).name}; Ctrl-C ends")
    try:
        while (before := changed(before)) is not None:
            print("-" * 60)
            result = grade()
    except KeyboardInterrupt:
        print()
    return result


def stamp(path):
    try:
        status = os.stat(path)
        return status.st_mtime_ns, status.st_size
    except OSError:
        return ()


def _wait_for_change(path, before):
    while stamp(path) in (before, ()):                       # an editor may take the file away while it saves
        time.sleep(0.3)
    return stamp(path)


def reset(exercise):
    """Put a fresh stub in place of an exercise, after asking, and keep a backup."""
    path = grading.exercise_path(exercise)
    stub = fresh_stub(exercise)
    if path.exists() and path.read_text(encoding="utf-8", errors="replace") == stub:
        print(f"{path.name} is untouched; nothing to do")
        return
    print(f"Replace {path.name} by a fresh stub? A backup is kept. [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Usage("nothing was changed")
    if path.exists():
        number = 1
        while (backup := path.with_name(f"{path.name}.backup-{number}")).exists():
            number += 1
        shutil.copy2(path, backup)
        print(f"backup: {backup.name}")
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(stub, encoding="utf-8")
    os.replace(fresh, path)
    print(f"{path.name} is a fresh stub")


def fresh_stub(exercise):
    from make_stubs import make_stub
    solution = grading.EXERCISES / "solutions" / FILES[exercise].replace("exercise_", "solution_")
    if solution.exists():
        return make_stub(solution.read_text(encoding="utf-8"))
    try:
        return subprocess.run(["git", "show", f"HEAD:./{FILES[exercise]}"], cwd=grading.EXERCISES, check=True,
                              capture_output=True).stdout.decode("utf-8")
    except (OSError, subprocess.CalledProcessError):
        raise Usage(f"no fresh stub: neither {solution.name} nor a git checkout is there") from None


def this_file():
    """Called by an exercise that is run as a program: grades that file, with the options given to it."""
    sys.exit(main(["--submission", sys.modules["__main__"].__file__, *sys.argv[1:]]))


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Usage(message)


def parse(arguments):
    parser = Parser(prog="grade.py", description="Grade the exercises and name the mistakes in them.")
    parser.add_argument("numbers", metavar="N", nargs="*", type=int, help="exercises to grade, 1 to 5 (default: all)")
    parser.add_argument("--bonus", action="store_true", help="ask for the bonus, the gradients, as well")
    parser.add_argument("--hint", metavar="LEVEL", nargs="?", const=1, type=int, choices=(1, 2, 3),
                        help="1 a question (default), 2 the idea, 3 the first line of the first unsolved part")
    parser.add_argument("--watch", action="store_true", help="grade whenever the file is saved; stays on one exercise")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--submission", metavar="FILE", help="grade this file instead of the one in exercises/")
    parser.add_argument("--submissions", metavar="DIR",
                        help="grade a class: DIR/<student>/exercise_0N*.py or flat names")
    parser.add_argument("--csv", metavar="OUT", help="with --submissions: one row a file; unchanged files are skipped")
    parser.add_argument("--jobs", metavar="J", type=int, default=1,
                        help="with --submissions: files at a time (default 1)")
    parser.add_argument("--reset", metavar="N", type=int, choices=tuple(TITLES),
                        help="a fresh stub; asks, keeps a backup")
    parser.add_argument("--seed", type=int, help="draw the inputs from this seed, to repeat a grading exactly")
    parser.add_argument("--time-limit", metavar="S", type=float, default=grading.TIME_LIMIT,
                        help="seconds for loading and for each request (default %(default)g)")
    options = parser.parse_args(arguments)
    if wrong := [n for n in options.numbers if n not in TITLES]:
        raise Usage(f"there is no exercise {wrong[0]}; they are 1 to 5")
    if options.time_limit <= 0 or options.jobs < 1:
        raise Usage("--time-limit and --jobs must be positive")
    if bool(options.submissions) != bool(options.csv):
        raise Usage("--submissions DIR and --csv OUT go together")
    if options.json and (options.watch or options.hint):
        raise Usage("--json prints results alone: it goes with neither --watch nor --hint")
    if options.seed is not None and options.seed < 0:
        raise Usage("--seed must not be negative")
    return options


def files_to_grade(options):
    """[(exercise, path)] as asked for."""
    if not options.submission:
        return [(n, grading.exercise_path(n)) for n in options.numbers or TITLES]
    path = Path(options.submission)
    if not path.is_file():
        raise Usage(f"there is no file {path}")
    if len(options.numbers) > 1:
        raise Usage("--submission takes one exercise")
    number = options.numbers[0] if options.numbers else grading.exercise_of(path)
    if number is None:
        raise Usage(f"which exercise is {path.name}? Give its number, or exercise_0N in its name")
    return [(number, path)]


def run(options):
    if options.reset:
        reset(options.reset)
        return 0
    if options.submissions:
        from classroom import grade_class
        return grade_class(options)

    def grade(number, path):
        result = grading.grade_file(number, path, bonus=options.bonus, seed=options.seed, time_limit=options.time_limit)
        if options.hint:
            show_hint(result, options.hint, options.bonus)
        elif not options.json:
            show(result, options.bonus)
        return result

    files = files_to_grade(options)
    if options.watch:
        open_files = (f for f in files if len(files) == 1 or grading.grade_file(*f)["status"] != "pass")
        number, path = next(open_files, files[-1])
        results = [watch(lambda: grade(number, path), path)]
    else:
        results = [grade(number, path) for number, path in files]
    if options.json:
        print(json.dumps({"exercises": results}, indent=2))
    elif len(results) > 1 and not options.hint:
        show_progress(results, options.bonus)
    return 0 if all(result["status"] == "pass" for result in results) else 1


def main(arguments=None):
    try:
        return run(parse(arguments))
    except Usage as problem:
        print(f"grade.py: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:                                  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as problem:                               # a full disk, a folder that may not be written
        print(f"grade.py: {problem.filename or 'writing'}: {problem.strerror}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
