"""Falsify the texts: change one number, operator or polarity at a time, and see whether the tests notice.

    python tests/red_team_documents.py              30 edits, drawn at random with a fixed seed
    python tests/red_team_documents.py --edits 200 --seed 7

Each edit runs that document's blocks again, from the edited one on, and the checks that every number of the prose has a
source and was checked, and every equation is a known one. Edits are drawn from code, outputs, prose and equations alike. Free choices
are left alone, since another value is as true: seeds, sizes of layers and of random data, token ids of an example,
tolerances; and numbers inside links and generated parts (the latter have a test of their own).
"""

import argparse
import ast
import contextlib
import os
import re
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np                                                                                   # noqa: E402

import documents                                                                                     # noqa: E402
import test_documents                                                                                # noqa: E402
from documents import ROOT                                                                           # noqa: E402

PATHS = ("README.md", "paper_notes.md", "CHEATSHEET.md", "exercises/README.md")
SWAPS = {" + ": " - ", " - ": " + ", " * ": " / ", " / ": " * ", " < ": " >= ", " > ": " <= ", " == ": " != ",
         " and ": " or ", "True": "False", "False": "True", "np.sin": "np.cos", "np.cos": "np.sin", "max(": "min(",
         "min(": "max(", "argmax": "argmin", " ** -": " ** ", ".sum(": ".mean(", ".mean(": ".sum(", " >> ": " << ",
         " | ": " & ", "~": "", " @ ": " * ", r"\sqrt": "", r"\sin": r"\cos", r"\cos": r"\sin", r"\max": r"\min"}
SWAP = re.compile("|".join(map(re.escape, SWAPS)))
SAID = {"True": "False", "hidden": "visible", "²": "³", " − ": " + ", " / ": " · ", " · ": " / "}     # in prose
NUMBER = re.compile(r"(?<![\w.#^])\d[\d,_]*(?:\.\d+)?(?:e-?\d+)?(?![\w])")
FREE = re.compile(r"rng=\d+|default_rng\([\d_]*\)|size=\([^)]*\)|(?:dropout_p|max_len|eps)=[\d.e-]+|"
                  r"(?:d_model|n_heads|d_ff|n_encoder_layers|n_decoder_layers)=\d+|"
                  r"(?:LayerNorm|AddNorm|Block|Attention|Embedding|Transformer|FeedForward|Dropout)\([\d., ]*|"
                  r"rng\.normal\(size=\d+\) \* \[.*?\]|"
                  r"for \w+ in [\d, ]+:|order = .*|\[:, 0\]|dgamma\[\.\.\.\] = \[.*|"
                  r"< 1e-\d+|reshape\(-1|reshape\(n, -1|x\.shape\[2\], -1|argmax\(axis=-1\)|"
                  r"np\.(?:ones|zeros)\(\([^)]*\)|np\.array\(\[\[[\d, \[\]]*\]\]\)|"
                  r"atol=[\d.e-]+|rtol=[\d.e-]+|strict=True|#.*")
SKIPPED = re.compile(r"\]\([^)]*\)|https?://\S+|<!-- ([\w-]+): begin -->.*?<!-- \1: end -->|"
                     r"`[^`\n]*`|<[^>]*>|^#.*?$|^\| 20.*?$", re.S | re.M)


def changed_number(match):
    """Another number of the same kind: one digit, not the first unless it is alone, goes up by one."""
    text = match[0]
    place = [i for i, character in enumerate(text.split("e")[0]) if character.isdigit()][-1]
    digit = str((int(text[place]) + 1) % 10)
    return text[:place] + digit + text[place + 1:]


def candidates(path):
    """(start, end, replacement, kind) of every edit that makes the document say something else."""
    text, found = documents.read(path), []
    blocks = [(match.start(4), match.end(4), match[3]) for match in documents.FENCE.finditer(text)]
    generated = [(match.start(), match.end()) for match in documents.GENERATED.finditer(text)]
    inside = lambda place, spans: any(start <= place < end for start, end, *_ in spans)              # noqa: E731
    free = [(match.start(), match.end()) for match in FREE.finditer(text) if inside(match.start(), blocks)]
    equations = [(match.start(), match.end()) for match in re.finditer(r"\$\$.*?\$\$", text, re.S)]
    skipped = [(match.start(), match.end()) for match in SKIPPED.finditer(text) if not inside(match.start(), blocks)]
    for match in NUMBER.finditer(text):
        in_block = inside(match.start(), blocks)
        if inside(match.start(), [*free, *generated]) or (not in_block and inside(match.start(), skipped)):
            continue
        digits = re.sub(r"\D", "", match[0])
        worth = in_block or inside(match.start(), equations) or (
            not re.fullmatch(r"(19|20)\d\d", digits) and test_documents.normal(match[0]) not in test_documents.SECTIONS)
        if worth:
            found.append((match.start(), match.end(), changed_number(match), "block" if in_block else "prose"))
    for match in SWAP.finditer(text):
        if (inside(match.start(), [b for b in blocks if b[2] == "python"]) or inside(match.start(), equations)) \
                and not inside(match.start(), [*free, *generated]):
            found.append((match.start(), match.end(), SWAPS[match[0]], "operator"))
    for match in re.finditer(r"\bTrue`? (?:means|=) hidden|^\*\*[A-Z].*?\n\n|^\| [^|\n]* \| O\(.*?$", text, re.M | re.S):
        formula = path == "CHEATSHEET.md" and text.find("## Formulas") < match.start() < text.find("## Shapes")
        for said in re.finditer("|".join(SAID), match[0]) if formula or match[0][0] != "*" else ():
            place = match.start() + said.start()
            if not inside(place, [*blocks, *generated]):
                found.append((place, place + len(said[0]), SAID[said[0]], "prose"))
    return [edit for edit in found if not is_inside_a_bash_block(edit, blocks)]


def is_inside_a_bash_block(edit, blocks):
    return any(start <= edit[0] < end and language == "bash" for start, end, language in blocks)


def noticed_without_running(path, text):
    """What notices the edited text before any block runs: a number, an equation, the grammar; else None."""
    if documents.prose_numbers(text) != documents.checked_numbers(path):
        return "a number that nobody has checked"
    if test_documents.documents_without_source(text):
        return "a number without a source"
    if set(test_documents.equations(text)) - set(test_documents.paper_facts.EQUATIONS):
        return "an unknown equation"
    if test_documents.formulas(text) not in ([], test_documents.paper_facts.FORMULAS):
        return "an unknown formula"
    if test_documents.table_1(text) not in (None, test_documents.paper_facts.TABLE_1):
        return "another table 1"
    if test_documents.polarities(text) - {("True", "hidden")}:
        return "the other polarity"
    try:
        for language, body in documents.fences(text):
            if language == "python":
                ast.parse(body)
    except SyntaxError:
        return "a syntax error"


def noticed_by_blocks(path, text, first, namespace):
    """The first complaint of the edited document's blocks from number ``first`` on; those before ran already."""
    document = documents.load(path, text)
    document.namespace.update(namespace)
    for _, region in document.regions[:first]:
        region.evaluator = lambda example: None
    complaints = documents.run(document, stop=True)
    return complaints[0].splitlines()[0][:90] if complaints else None


def in_a_child(function, *arguments):
    """The answer (a string or None) of a function that runs in a copy of this process and leaves this one as it was."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")                              # newer Pythons warn of threads at a fork
        child = os.fork()
    if child == 0:
        try:
            warnings.simplefilter("ignore")
            os.write(write, repr(function(*arguments)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        text = answer.read().decode()
    os.waitpid(child, 0)
    return ast.literal_eval(text) if text else "a crash"


def results(path, edits):
    """(edit, what noticed it) for each edit of a document. Each block runs once, and each edit from its block on."""
    text = documents.read(path)
    document, waiting = documents.load(path), sorted(edits)
    for number, (example, end) in enumerate(zip(document, [*(e.region.start for e in document), len(text)][1:])):
        while waiting and waiting[0][0] < end:
            start, stop, replacement, _ = edit = waiting.pop(0)
            edited = text[:start] + replacement + text[stop:]
            by = noticed_without_running(path, edited)
            if by is None:
                by = in_a_child(noticed_by_blocks, path, edited, number, document.namespace)
            print(".x"[by is None], end="", flush=True, file=sys.stderr)
            yield edit, by
        with contextlib.chdir(ROOT):
            example.evaluate()
    for start, stop, replacement, _ in waiting:          # a page without blocks
        yield (start, stop, replacement, _), noticed_without_running(path, text[:start] + replacement + text[stop:])


def attack(edits, seed):
    """A row for each edit: document, line, what was changed into what, and what noticed it (None: nothing)."""
    rng, rows = np.random.default_rng(seed), []
    for path in PATHS:
        text, pool = documents.read(path), candidates(path)
        size = min(len(pool), max(2, edits * (4 if path in ("paper_notes.md", "CHEATSHEET.md") else 1) // 10))
        chosen = [pool[i] for i in rng.choice(len(pool), size, replace=False)]
        for (start, end, replacement, kind), by in results(path, chosen):
            line = text[text.rfind("\n", 0, start) + 1:text.find("\n", end)].strip()[:100]
            rows.append((path, text.count("\n", 0, start) + 1, kind, text[start:end].strip(), replacement.strip(), by,
                         line))
    print(file=sys.stderr)
    return rows


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edits", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    rows = attack(arguments.edits, arguments.seed)
    for path, line, kind, before, after, by, source in rows:
        print(f"{path}:{line} {kind}: {before} -> {after}: {by or 'NOT NOTICED in: ' + source}")
    share = sum(row[5] is not None for row in rows) / len(rows)
    print(f"{share:.1%} of {len(rows)} edits noticed")
    return 0 if share >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
