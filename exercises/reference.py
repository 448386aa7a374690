"""What is right, and what each known mistake would have given: the library as it is, or with a few lines changed.

A mistake of the catalogue is a difference to the text of ``implementation.py``. Carried out, it gives on any input
exactly what a learner gets who makes that mistake, however the learner wrote it.
"""

import ast
import functools
import itertools
import textwrap
from pathlib import Path

import numpy as np

import implementation
from submission import INPUTS_KEPT, execute

LIBRARY = Path(implementation.__file__)

# What the learner writes in each exercise, under the library's names.
WRITTEN = {
    1: ("softmax", "softmax_backward", "ScaledDotProductAttention"),
    2: ("MultiHeadAttention",),
    3: ("TokenEmbedding", "PositionalEncoding"),
    4: ("LayerNorm", "AddNorm", "FeedForward", "EncoderBlock"),
    5: ("create_padding_mask", "create_causal_mask", "shift_target", "DecoderBlock", "Transformer"),
}

TOLERANCE = 1e-4        # of the largest entry expected: float32 stays below a hundredth of it, mistakes lie far above
EXACT = 1e-9            # where the answer is exactly 0


# ------------------------------------------------------------------------------------------- the library's text


@functools.cache
def definitions():
    """{name: (source, tree)} of every class and function of the library, and of shift_target."""
    found = {}
    for path, wanted in ((LIBRARY, None), (LIBRARY.with_name("train_minimal.py"), {"shift_target"})):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines(keepends=True)
        for node in ast.parse(text).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and (wanted is None or node.name in wanted):
                found[node.name] = ("".join(lines[node.lineno - 1:node.end_lineno]), node)
    return found


@functools.cache
def hidden_names(exercise):
    """What the learner is to write, and all of the library that rests on it."""
    uses = {name: {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            for name, (_, tree) in definitions().items()}
    hidden = set(WRITTEN[exercise])
    while more := {name for name, used in uses.items() if used & hidden} - hidden:
        hidden |= more
    return frozenset(hidden)


@functools.cache
def library_without_answers(exercise):
    """The text of implementation.py with blank lines where the hidden names were defined."""
    lines = LIBRARY.read_text(encoding="utf-8").splitlines()
    for name in hidden_names(exercise):
        _, node = definitions().get(name, (None, None))
        if node is not None and name != "shift_target":
            lines[node.lineno - 1:node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(lines)


def split_class(name):
    """The source of a definition in pieces: [(method or None, text), ...]."""
    source, node = definitions()[name]
    if not isinstance(node, ast.ClassDef):
        return [(name, source)]
    lines = source.splitlines(keepends=True)
    pieces, at = [], 0
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            first, last = item.lineno - node.lineno, item.end_lineno - node.lineno + 1
            pieces += [(None, "".join(lines[at:first])), (item.name, "".join(lines[first:last]))]
            at = last
    return pieces + [(None, "".join(lines[at:]))]


class DoesNotApply(ValueError):
    """The library has no such line (any more)."""


def changed_source(name, changes):
    """The source of a definition after changes (where, old, new): old stands there once, or is None for the start."""
    pieces = split_class(name)
    for where, old, new in changes:
        top, _, method = where.partition(".")
        if top != name:
            continue
        for i, (piece, text) in enumerate(pieces):
            if piece == (method or name):
                break
        else:
            raise DoesNotApply(where)
        if old is None:
            old = first_statement(text)
            new = f"{new}\n{old}"
        if text.count(old) != 1:
            raise DoesNotApply(f"{where}: {old!r} is there {text.count(old)} times")
        line_start = text.rfind("\n", 0, text.index(old)) + 1
        indent = " " * (len(text[line_start:]) - len(text[line_start:].lstrip()))
        pieces[i] = (piece, text.replace(old, textwrap.indent(new, indent).strip() if "\n" in new else new))
    return "".join(text for _, text in pieces)


def first_statement(function):
    """The first line of a function's body that is no docstring."""
    body = ast.parse(textwrap.dedent(function)).body[0].body
    line = next(node.lineno for node in body
                if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)))
    return function.splitlines()[line - 1].strip()


@functools.lru_cache(maxsize=4096)
def namespace(exercise, changes=()):
    """The names of implementation, those of the exercise defined anew with the changes carried out."""
    names = dict(vars(implementation))
    for name in WRITTEN[exercise]:
        source = changed_source(name, changes)
        exec(_compiled(source, name), names)
    return names


@functools.lru_cache(maxsize=4096)
def _compiled(source, name):
    return compile(source, f"<{name}>", "exec")


# --------------------------------------------------------------------------------------------------- outcomes


class Outcome:
    """What a request gave: named arrays, or an error (a dict with type and text)."""

    def __init__(self, arrays, error=None):
        self.arrays, self.error = arrays, error


def expected(case, exercise, changes=()):
    """The outcome of the library on a case, with the changes carried out; None when they do not apply."""
    changes = tuple(changes)
    if changes not in case.outcomes:
        case.outcomes[changes] = _compute(case, exercise, changes)
    return case.outcomes[changes]


def _compute(case, exercise, changes):
    try:
        with np.errstate(all="ignore"):
            return Outcome(execute(case.request, namespace(exercise, changes), case.arrays))
    except DoesNotApply:
        return None
    except Exception as problem:
        return Outcome({}, {"type": type(problem).__name__, "text": str(problem)})


def first_difference(got, want, exact_zeros=False):
    """Why two arrays differ as (index or None, sentence), or None where they agree within the tolerance."""
    if got.shape != want.shape:
        return None, f"the shape should be {want.shape}, it is {got.shape}"
    if want.size == 0:
        return None
    if (want.dtype == bool) != (got.dtype == bool):
        return None, (f"a mask must be boolean (True = hidden), this one is {got.dtype}" if want.dtype == bool
                      else f"numbers are due, not {got.dtype}")
    shown = "{!s}" if want.dtype == bool else "{:.6g}"
    entries = got, want
    got, want = got.astype(np.float64, copy=False), want.astype(np.float64, copy=False)
    finite = np.isfinite(want)
    scale = np.abs(want[finite]).max(initial=0.0) or 1.0
    with np.errstate(invalid="ignore"):
        wrong = np.where(finite, ~(np.abs(got - want) <= TOLERANCE * scale),
                         ~((got == want) | (np.isnan(got) & np.isnan(want))))
    if exact_zeros:
        wrong |= (want == 0) & ~(np.abs(got) <= EXACT * scale)
    if not wrong.any():
        return None
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    share = f"{int(wrong.sum())} of {wrong.size} entries differ" if wrong.size > 1 else "it differs"
    came, due = (shown.format(array[index]) for array in entries)
    return index, f"at {list(index)} expected {due}, came {came}; {share}"


def agree(got, want, names, exact_zeros=False):
    """Whether two outcomes agree in the named results, and in leaving the caller's arrays alone.

    Two errors agree when they are of one type.
    """
    if got.error or want.error:
        return bool(got.error and want.error) and got.error["type"] == want.error["type"]
    return all(name in got.arrays and name in want.arrays
               and first_difference(got.arrays[name], want.arrays[name], exact_zeros) is None
               for name in (*names, INPUTS_KEPT))


# --------------------------------------------------------------------------------------------------- diagnosis


def diagnose(exercise, observed, candidates, inherited=()):
    """The mistakes that explain what was observed, as a list of (mistake, changes); None when there is no explanation.

    observed: [(check, outcome)] of one part, in order. candidates: [(mistake, changes)] that may sit in this part.
    inherited: changes found in parts that this one rests on. One mistake that explains everything is preferred to two;
    failing both, checks are explained one after another, never against one that was explained before. Nothing is
    guessed: a mistake is named only where it gives the very numbers that came, and no other mistake does.
    """
    observed = [(check, outcome) for check, outcome in observed if not (outcome.error and outcome.error.get("todo"))]

    def explains(changes, pairs):
        for check, outcome in pairs:
            want = expected(check.case, exercise, (*inherited, *changes))
            if want is None or not agree(outcome, want, check.results, check.exact_zeros):
                return False
        return True

    def shows(changes, pairs):
        """At least one wrong number, or an error in the very same words where other checks are right, speaks for it."""
        right = [agree(outcome, expected(check.case, exercise, inherited), check.results, check.exact_zeros)
                 for check, outcome in pairs]
        wrong = [pair for pair, good in zip(pairs, right) if not good]
        return (any(not outcome.error for _, outcome in wrong)
                or any(right) and all(outcome.error["text"] == expected(
                    check.case, exercise, (*inherited, *changes)).error["text"] for check, outcome in wrong))

    def only(found):
        """The one answer, when all that explain are the same mistakes in other spellings."""
        kinds = {tuple(mistake.id for mistake, _ in group) for group in found}
        return list(found[0]) if len(kinds) == 1 else None

    if not observed or explains((), observed):
        return []
    singles = [[pair] for pair in candidates if explains(pair[1], observed) and shows(pair[1], observed)]
    if singles:
        return only(singles)
    pairs = [[a, b] for a, b in itertools.combinations(candidates, 2)
             if a[0].id != b[0].id and explains((*a[1], *b[1]), observed) and shows((*a[1], *b[1]), observed)]
    if pairs:
        return only(pairs)
    found, settled = [], []
    for check, outcome in observed:
        so_far = tuple(change for _, changes in found for change in changes)
        if not explains(so_far, [(check, outcome)]):
            fits = [[pair] for pair in candidates if not outcome.error
                    and explains((*so_far, *pair[1]), [*settled, (check, outcome)])
                    and not refuted((*so_far, *pair[1]), exercise, observed, inherited)]
            answer = only(fits) if fits else None
            if answer is None:
                continue
            found += answer
        settled.append((check, outcome))
    return found or None


def refuted(changes, exercise, observed, inherited):
    """Whether a check came out right that would be wrong under the changes."""
    for check, outcome in observed:
        right = expected(check.case, exercise, inherited)
        if agree(outcome, right, check.results, check.exact_zeros):
            wrong = expected(check.case, exercise, (*inherited, *changes))
            if wrong is None or not agree(outcome, wrong, check.results, check.exact_zeros):
                return True
    return False
