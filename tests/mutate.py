"""Break the code in many small ways and count what the tests notice.

    python tests/mutate.py --kept            the wrong lines of mutants.py, all of which must be killed
    python tests/mutate.py                   every small change of the syntax tree; writes mutation_report.md
    python tests/mutate.py --match softmax   only those whose place or text contains the word; writes nothing

Each mutant stands in a copy of the code of its own and meets the tests marked ``mutants``, which stop at the first
failure. The automatic pass changes signs, operators, comparisons, conditions, constants, axes, transposes and
functions, and drops statements, all over the model, the loss, Adam, the schedule and decoding. A mutant that survives
must stand in SURVIVORS with the reason why no test can or should notice it; at least 95 % must be killed.
"""

import argparse
import ast
import contextlib
import copy
import importlib
import inspect
import itertools
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy                                                     # noqa: F401  imported once for all the forked children
import pytest
import threadpoolctl
import tqdm                                                      # noqa: F401

from mutants import MUTANTS

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "tests" / "mutation_report.md"
AUTOMATIC = ["implementation.py", "optimisation.py", "decoding.py"]
SECONDS = 60                                                     # of a processor: who needs more loops for ever
BYTES = 6 * 2**30

# The tests marked ``mutants`` live in these files. Each mutant meets those that can notice it, the keenest first.
TESTS = ["test_golden.py", "test_pitfalls.py", "test_contract.py", "test_gradients.py", "test_paper.py",
         "test_optimisation.py", "test_decoding.py"]
TESTS_OF = {
    "implementation.py": TESTS,
    "optimisation.py": ["test_optimisation.py", "test_contract.py", "test_pitfalls.py", "test_decoding.py",
                        "test_gradients.py"],
    "decoding.py": ["test_decoding.py", "test_contract.py"],
    "training_data.py": ["test_contract.py", "test_pitfalls.py"],
    "checkpoints.py": ["test_optimisation.py", "test_contract.py"],
    "train_minimal.py": ["test_optimisation.py", "test_contract.py"],
}

# (place, a piece of the changed line, why it is no fault of the tests that this change goes unnoticed)
SPEED = "the same numbers by another way: only time or memory differ"
TWICE = "what is inside checks the same again, and refuses it in the same words"
DEFAULT = "what was left out is the default"
FLOAT = "a whole number to the power of a negative fraction is a float by itself"
FACTOR = "a factor common to all scores changes no comparison"
SURVIVORS = [
    ("implementation.py, row_max", "if x.shape[-1]", SPEED),
    ("implementation.py, row_max", "if not x.shape[-1]", SPEED),
    ("implementation.py, row_max", "keepdims=True) -> (dropped)", SPEED),
    ("implementation.py, Dropout.__init__", "integers(2 * 63)", "one seed is as good as another"),
    ("implementation.py, Dropout.forward", "2 ** 16 - 2",
     "differs for probabilities above 0.99998 alone, and the scale follows what is drawn"),
    ("implementation.py, heads_product", "return np.matmul(a, b)", SPEED),
    ("implementation.py, Transformer.__init__", "check_sizes(", TWICE),
    ("optimisation.py, CrossEntropyLoss.forward", "log_p.mean()", "the mean over all is the mean of the rows' means"),
    ("optimisation.py, warmup_schedule", "-> return d_model ** ", FLOAT),
    ("optimisation.py, warmup_schedule", "min(step ** ", FLOAT),
    ("optimisation.py, warmup_schedule", "step * warmup_steps ** ", FLOAT),
    ("optimisation.py, Adam", "block_size = 65537", SPEED),
    ("optimisation.py, Adam.__init__", "piece[2] + cut > ",
     "cut is 0 in the first piece of an array, and the piece before a later one has filled its block"),
    ("optimisation.py, Adam.step", "len(parts) >= 1", SPEED),
    ("decoding.py, greedy_decode", "src = check_tokens(src) -> (dropped)", TWICE),
    ("decoding.py, beam_search", "src = check_tokens(src) -> (dropped)", TWICE),
    ("decoding.py, beam_search.penalty", "return ((5 + n) * 6)", FACTOR),
    ("decoding.py, beam_search.penalty", "return ((5 + n) / 7)", FACTOR),
    ("decoding.py, beam_search", "k * V), kind='stable')", DEFAULT),
    ("decoding.py, beam_search", "k * V), chosen)", DEFAULT),
]


# ------------------------------------------------------------------------------------------------- the automatic pass


OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
             ast.FloorDiv: ast.Div, ast.Mod: ast.FloorDiv, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr}
COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
               ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}
FUNCTIONS = {"maximum": "minimum", "max": "min", "min": "max", "argmax": "argmin", "argsort": "sort", "sin": "cos",
             "cos": "sin", "sum": "mean", "mean": "sum", "any": "all", "all": "any", "exp": "log", "log": "exp",
             "zeros": "ones", "ones": "zeros", "triu": "tril", "zeros_like": "ones_like", "sqrt": "abs",
             "uniform": "normal"}
STATEMENTS = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.Raise, ast.If, ast.For, ast.Break)


def replacements(node):
    """The nodes that may stand in the place of this one, each with a small error."""
    def changed(**fields):
        other = copy.copy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        return other

    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in OPERATORS:
        yield changed(op=OPERATORS[type(node.op)]())
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        yield changed(left=node.right, right=node.left)
    if isinstance(node, ast.AugAssign):
        yield ast.Assign(targets=[node.target], value=node.value, lineno=node.lineno)
    if isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield node.operand
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            yield changed(ops=[*node.ops[:i], COMPARISONS[type(op)](), *node.ops[i + 1:]])
    if isinstance(node, ast.BoolOp):
        yield changed(op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    if isinstance(node, (ast.If, ast.IfExp)):
        yield changed(test=ast.UnaryOp(op=ast.Not(), operand=node.test))
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield changed(value=not node.value)
        elif isinstance(node.value, (int, float)):
            yield changed(value=node.value + 1)
            if node.value > 2 or isinstance(node.value, float) and node.value:
                yield changed(value=-node.value)
    if isinstance(node, ast.Attribute):
        if node.attr == "T":
            yield node.value
        elif node.attr in FUNCTIONS and isinstance(node.ctx, ast.Load):
            yield changed(attr=FUNCTIONS[node.attr])
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        if name == "swapaxes":
            yield node.func.value
        elif isinstance(node.func, ast.Name) and name in FUNCTIONS:
            yield changed(func=ast.Name(id=FUNCTIONS[name], ctx=ast.Load()))
        elif name in ("reversed", "abs", "float"):
            yield node.args[0]
        for i, keyword in enumerate(node.keywords):
            if keyword.arg not in ("dtype", "rng", None) and not isinstance(keyword.value, ast.Constant):
                yield changed(keywords=[*node.keywords[:i], *node.keywords[i + 1:]])
    if isinstance(node, ast.Slice) and node.lower is None and node.upper is not None:
        yield changed(lower=node.upper, upper=None)
    if isinstance(node, STATEMENTS) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        yield ast.Pass()


def places(tree):
    """(function, statement, path of (field, index) from the root) of every node that may be changed."""
    def walk(node, path, function, statement):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            function = f"{function}.{node.name}" if function else node.name
            statement = None
        elif isinstance(node, ast.stmt):
            statement = node
        if isinstance(node, ast.JoinedStr) or isinstance(node, ast.Constant) and isinstance(node.value, str):
            return
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return
        caller = getattr(at(tree, path[:-1]), "func", None)
        if isinstance(node, ast.UnaryOp) and getattr(caller, "attr", "") == "reshape":
            return                                                     # NumPy takes any negative number here for -1
        yield function, statement, path
        for field, value in ast.iter_fields(node):
            if field in ("decorator_list", "bases", "annotation", "returns"):
                continue
            if isinstance(value, list):
                for i, item in enumerate(value):
                    if isinstance(item, ast.AST):
                        yield from walk(item, path + [(field, i)], function, statement)
            elif isinstance(value, ast.AST):
                yield from walk(value, path + [(field, None)], function, statement)

    yield from walk(tree, [], "", None)


def at(tree, path):
    for field, i in path:
        tree = getattr(tree, field) if i is None else getattr(tree, field)[i]
    return tree


def put(tree, path, node):
    parent, (field, i) = at(tree, path[:-1]), path[-1]
    if i is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[i] = node


def first_line(node):
    """A statement as one line of text, without the body of an if or a loop."""
    text = ast.unparse(ast.fix_missing_locations(node))
    if isinstance(node, (ast.If, ast.For, ast.With)):
        text = text.split("\n")[0]
    return " ".join(text.split())


def automatic_mutants(file):
    """(name, file, line, the whole wrong source) of every small change, without repetitions."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    parts = [ast.unparse(part) for part in tree.body]                   # only the part with the change is written anew
    for function, statement, path in places(tree):
        if not path or not function:
            continue
        original, number = at(tree, path), path[0][1]
        before = "signature" if statement is None else first_line(statement)
        seen = {parts[number]}
        for replacement in replacements(original):
            put(tree, path, replacement)
            wrong = ast.unparse(ast.fix_missing_locations(tree.body[number]))
            if original is statement:
                after = first_line(replacement)
            elif statement is not None:
                after = first_line(statement)
            else:
                after = f"{ast.unparse(original)} becomes {ast.unparse(replacement)}"
            put(tree, path, original)
            if wrong not in seen:
                seen.add(wrong)
                name = f"{file}, {function}: {before} -> {'(dropped)' if after == 'pass' else after}"
                whole = "\n\n".join([*parts[:number], wrong, *parts[number + 1:]])
                yield name, file, getattr(original, "lineno", 0), whole


def kept_mutants():
    for name, file, old, new in MUTANTS:
        source = (ROOT / file).read_text(encoding="utf-8")
        if source.count(old) != 1:
            raise SystemExit(f"mutants.py, {name!r}: its text stands {source.count(old)} times in {file}, not once")
        yield name, file, source[:source.index(old)].count("\n") + 1, source.replace(old, new)


# ------------------------------------------------------------------------------------------------------ the runner


def plain_cases(module):
    """(name, function, arguments) of the marked tests of a module that need no fixture, so that pytest can wait."""
    for name, function in list(vars(module).items()):
        if not name.startswith("test_") or not inspect.isfunction(function):
            continue
        marks = {mark.name: mark for mark in getattr(function, "pytestmark", [])}
        if "mutants" not in {*marks, getattr(module, "pytestmark", pytest.mark.none).name}:
            continue
        tables = []
        for mark in getattr(function, "pytestmark", []):
            if mark.name == "parametrize":
                names = mark.args[0].replace(" ", "").split(",")
                tables.append([dict(zip(names, row if len(names) > 1 else [row])) for row in mark.args[1]])
        wanted = set(inspect.signature(function).parameters)
        if marks.keys() <= {"parametrize", "mutants"} and wanted == {key for table in tables for key in table[0]}:
            for rows in itertools.product(*tables):
                yield name, function, {key: value for row in rows for key, value in row.items()}


class NotYetRun:
    """A pytest plugin that leaves out what has been run without pytest, and remembers which test failed first."""

    def __init__(self, already):
        self.already, self.name = already, None

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if (item.path.name, item.originalname) not in self.already]

    def pytest_runtest_logreport(self, report):
        if report.failed and self.name is None:
            self.name = report.nodeid.removeprefix("tests/")

    def pytest_collectreport(self, report):
        if report.failed and self.name is None:
            self.name = f"{report.nodeid.removeprefix('tests/')} (import)"


class Workplace:
    """A copy of the code and its tests, in which one mutant after another is tried."""

    def __init__(self, parent, number):
        self.path = Path(parent) / f"copy{number}"
        (self.path / "tests").mkdir(parents=True)
        self.right = {source.name: source.read_bytes() for source in [*ROOT.glob("*.py"), ROOT / "pyproject.toml"]}
        for name, content in self.right.items():
            (self.path / name).write_bytes(content)
        for source in (ROOT / "tests").glob("*.py"):
            if source.name in TESTS or not source.name.startswith("test_"):
                shutil.copy2(source, self.path / "tests")
        shutil.copytree(ROOT / "tests" / "golden", self.path / "tests" / "golden")

    def copied(self, number):
        """Another such place, with the compiled tests that this one has by now."""
        other = copy.copy(self)
        other.path = self.path.with_name(f"copy{number}")
        shutil.copytree(self.path, other.path)
        return other

    def run(self, mutant):
        """Fork a child that runs the tests on the mutant (or on the code as it is); its process number."""
        if mutant:
            _, file, _, wrong = mutant
            (self.path / file).write_text(wrong, encoding="utf-8")
        child = os.fork()
        if child == 0:
            self.in_child(mutant)
        return child

    def in_child(self, mutant):
        status = 3
        try:
            signal.alarm(30 * SECONDS)                                  # by the clock, for a mutant that only waits
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
            resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
            os.chdir(self.path)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1), os.dup2(nowhere, 2)
            sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() not in (ROOT, ROOT / "tests")]
            for module in ("mutants", "mutate"):
                sys.modules.pop(module, None)
            sys.dont_write_bytecode = bool(mutant)           # compiled tests are kept once, compiled mutants never
            by = self.first_failure(TESTS_OF[mutant[1]] if mutant else TESTS)
            status = 1 if by else 0
            Path("killed_by").write_text(by or "", encoding="utf-8")
        finally:
            os._exit(int(status))

    def first_failure(self, tests):
        """The name of the first test that fails, or None."""
        already = set()
        sys.path[:0] = [str(self.path), str(self.path / "tests")]
        for test in tests:
            with warnings.catch_warnings(), threadpoolctl.threadpool_limits(limits=1):
                warnings.simplefilter("ignore")
                try:
                    module = importlib.import_module(test.removesuffix(".py"))
                except BaseException:
                    return f"{test} (import)"
                for name, function, arguments in plain_cases(module):
                    already.add((test, name))
                    try:
                        function(**arguments)
                    except BaseException:
                        return f"{test}::{name}"
        for test in tests:
            sys.modules.pop(test.removesuffix(".py"))
        rest = NotYetRun(already)
        status = pytest.main(["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-m", "mutants and not slow",
                              *(f"tests/{test}" for test in tests)], plugins=[rest])
        passed = status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)      # all may have been run above
        return None if passed else rest.name or "the tests cannot be loaded"

    def finish(self, mutant, status):
        """(killed, by which test) after the child has ended with this wait status; puts the right code back."""
        report = self.path / "killed_by"
        by = report.read_text(encoding="utf-8") if report.exists() else ""
        report.unlink(missing_ok=True)
        if mutant:
            (self.path / mutant[1]).write_bytes(self.right[mutant[1]])
        for compiled in self.path.glob("__pycache__/*"):
            compiled.unlink()
        if os.WIFSIGNALED(status):
            slow = os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGXCPU, signal.SIGKILL)
            return True, "takes too long" if slow else "ends the program"
        killed = os.WEXITSTATUS(status) != 0
        return killed, (by or "ends the program") if killed else ""


def run_mutants(mutants, jobs, progress=lambda *_: None):
    """[(mutant, killed, by)] in the order given. The code as it is must pass first."""
    results = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as parent:
        free = [Workplace(parent, 0)]
        _, status = os.waitpid(free[0].run(None), 0)
        killed, by = free[0].finish(None, status)
        if killed:
            raise SystemExit(f"the tests fail without any change: {by}")
        free += [free[0].copied(number) for number in range(1, jobs)]
        busy, waiting = {}, list(enumerate(mutants))[::-1]
        try:
            while waiting or busy:
                while waiting and free:
                    place, (number, mutant) = free.pop(), waiting.pop()
                    busy[place.run(mutant)] = place, number, mutant
                child, status = os.wait()
                place, number, mutant = busy.pop(child)
                results[number] = (mutant, *place.finish(mutant, status))
                free.append(place)
                progress(len(results), results[number])
        finally:
            for child in busy:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    return [results[number] for number in sorted(results)]


# ------------------------------------------------------------------------------------------------------ the report


def why(name):
    """The reason given for a survivor, or None."""
    place, change = name.split(": ", 1)
    return next((reason for where, piece, reason in SURVIVORS if where == place and piece in change), None)


def shortened(change):
    """Before and after, without what both begin and end with, for the report's table."""
    before, after = change.split(" -> ", 1)
    if after != "(dropped)":
        start = max(0, len(os.path.commonprefix([before, after])) - 25)
        end = max(0, len(os.path.commonprefix([before[start:][::-1], after[start:][::-1]])) - 25)
        before, after = (("... " if start else "") + text[start:len(text) - end] + (" ..." if end else "")
                         for text in (before, after))
    return f"`{before}` becomes `{after}`".replace("|", "\\|")


def write_report(results, seconds):
    killed, total = Counter(), Counter()
    for (_, file, _, _), dead, _ in results:
        total[file] += 1
        killed[file] += dead
    lines = ["# What the tests notice", "",
             "Written by `python tests/mutate.py`: every small change of the syntax tree of these files, each met by "
             "the tests marked `mutants`.", "",
             "| file | mutants | killed | share |", "| --- | ---: | ---: | ---: |"]
    for file in total:
        lines.append(f"| `{file}` | {total[file]} | {killed[file]} | {killed[file] / total[file]:.1%} |")
    everything, dead = total.total(), killed.total()
    lines.append(f"| all | {everything} | {dead} | {dead / everything:.1%} |")
    lines += ["", f"The pass took {seconds / 60:.0f} minutes.", "", "## Survivors", "",
              "| where | change | why it survives |", "| --- | --- | --- |"]
    for (name, file, line, _), dead, _ in results:
        if not dead:
            place, change = name.split(": ", 1)
            lines.append(f"| `{place}`, line {line} | {shortened(change)} | {why(name) or 'not yet explained'} |")
    by = Counter(by.split("::")[0] for _, dead, by in results if dead)
    lines += ["", "## Who killed them", "", "The first to notice; the order is that of `TESTS` in `mutate.py`.", "",
              "| file | mutants |", "| --- | ---: |"]
    lines += [f"| `{name}` | {count} |" for name, count in by.most_common()]
    REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kept", action="store_true", help="the list of mutants.py instead of the automatic pass")
    parser.add_argument("--match", default="", help="only mutants whose name contains this text; writes no report")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time (default: all cores)")
    parser.add_argument("--json", metavar="PATH", help="write [[name, killed, by], ...] here")
    options = parser.parse_args(argv)

    mutants = list(kept_mutants() if options.kept else (m for file in AUTOMATIC for m in automatic_mutants(file)))
    mutants = [mutant for mutant in mutants if options.match in mutant[0]]
    start = time.monotonic()

    def progress(done, result):
        (name, _, line, _), dead, by = result
        if not dead:
            print(f"survives: {name} (line {line})", flush=True)
        if done % 50 == 0:
            print(f"{done} of {len(mutants)}, {time.monotonic() - start:.0f} s", flush=True)

    results = run_mutants(mutants, options.jobs, progress)
    dead = sum(killed for _, killed, _ in results)
    print(f"{dead} of {len(results)} mutants killed in {time.monotonic() - start:.0f} s")
    if options.json:
        Path(options.json).write_text(json.dumps([[m[0], killed, by] for m, killed, by in results]), encoding="utf-8")
    if options.kept:
        return 0 if dead == len(results) else 1
    if not options.match:
        write_report(results, time.monotonic() - start)
        unexplained = [m[0] for m, killed, _ in results if not killed and not why(m[0])]
        return 0 if dead >= 0.95 * len(results) and not unexplained else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
