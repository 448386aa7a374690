"""How the Markdown files are read: every python block runs, and the text block right under it is what it prints.

A block without a text block under it prints nothing. State carries over from block to block within one file.
"""

import ast
import contextlib
import functools
import io
import json
import re
import sys
from pathlib import Path

from sybil import Document
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown.lexers import FencedCodeBlockLexer

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("README.md", "paper_notes.md", "CHEATSHEET.md", "exercises/README.md", "visualizations/README.md",
             "tests/mutation_report.md")

FENCE = re.compile(r"^( *)(`{3,})(\S*)[^\n]*\n(.*?)^\1\2[ ]*$", re.M | re.S)
TEXTS = (*DOCUMENTS[:-1], "notebook.text.py")            # what people have written
LEDGER = ROOT / "tests" / "prose_numbers.json"
GENERATED = re.compile(r"(<!-- (?P<name>[\w-]+): begin -->\n)(?P<body>.*?)(?=<!-- (?P=name): end -->)", re.S)


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def fences(text):
    """(language, body) of every fenced block."""
    return [(match[3], match[4]) for match in FENCE.finditer(text)]


def generated_parts(text):
    """Name and body of every part that a script writes between its begin and end marks."""
    return {match["name"]: match["body"] for match in GENERATED.finditer(text)}


NUMBERS = re.compile(r"\d+(?:[.,]\d+)*|[²³]|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|hundred|thousand|"
                     r"million|half|third|quarter|twice)\b", re.I)


def prose_numbers(text):
    """Section -> the numbers of its prose in their order, words and those of formulas among them."""
    if text.startswith("# ---\n"):                       # a notebook's text form: its Markdown cells
        text = "\n".join(re.sub(r"^# ?", "", cell.partition("\n")[2], flags=re.M)
                         for cell in text.split("# %%") if cell.startswith(" [markdown]"))
    for left_out in (r"<!-- ([\w-]+): begin -->.*?<!-- \1: end -->", FENCE.pattern, r"\]\([^)]*\)"):
        text = re.sub(left_out, " ", text, flags=re.M | re.S)
    found = {}
    for section in re.split(r"^(?=#)", text, flags=re.M):
        numbers = NUMBERS.findall(section)
        if numbers:
            found.setdefault(section.partition("\n")[0].strip("# "), []).extend(numbers)
    return {heading: " ".join(numbers) for heading, numbers in found.items()}


def checked_numbers(path):
    return json.loads(LEDGER.read_text(encoding="utf-8"))[path]


def parse_blocks(document):
    """The python regions of a document, each with the output that the text block under it promises."""
    texts = {region.start: region for region in FencedCodeBlockLexer("text")(document)}
    for region in FencedCodeBlockLexer("python")(document):
        below = re.compile(r"\s*").match(document.text, region.end).end()
        promised = texts.get(below)
        region.parsed = region.lexemes["source"]
        region.promised = promised.lexemes["source"] if promised else ""
        region.evaluator = evaluate_block
        yield region


def evaluate_block(example):
    """Run one block. The answer is None, or what it printed beside what the page shows."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        PythonEvaluator()(example)
    if printed.getvalue().rstrip() != example.region.promised.rstrip():
        return f"the page shows\n{example.region.promised}\nand the block printed\n{printed.getvalue()}"


def load(path, text=None):
    """The document at a path below the root, or another text in its place."""
    document = Document(read(path) if text is None else text, str(ROOT / path))
    for region in parse_blocks(document):
        document.add(region)
    return document


def run(document, stop=False):
    """The complaints of a document's blocks, each with its line; with stop, at most the first."""
    complaints = []
    with contextlib.chdir(ROOT):
        for example in document:
            try:
                example.evaluate()
            except Exception as error:                   # whatever a block raises is a complaint about that block
                complaints.append(f"{Path(document.path).name}, line {example.line}: {type(error).__name__}: {error}")
                if stop:
                    break
    return complaints


@functools.cache
def ran(path):
    """A document's complaints, and the names of the functions defined in it that were called."""
    called = set()

    def note_calls(frame, event, argument):
        if event == "call" and frame.f_code.co_filename == str(ROOT / path):
            called.add(frame.f_code.co_name)

    document, before = load(path), sys.getprofile()
    sys.setprofile(note_calls)
    try:
        return run(document), called
    finally:
        sys.setprofile(before)


def blocks(path):
    """The parsed source of each python block."""
    return [ast.parse(example.parsed) for example in load(path)]


def names_in(node):
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def compared_with_the_library(path):
    """The functions that an assertion puts beside something that comes from the library.

    What a name comes from is followed through assignments, loops and comprehensions, in the order of the page.
    """
    origins, compared = {}, set()                        # name -> the functions and library names it comes from

    def origin(node):
        return set().union(*(origins.get(name, set()) for name in names_in(node)))

    for block in blocks(path):
        for node in ast.walk(block):
            if isinstance(node, ast.ImportFrom) and (ROOT / f"{node.module}.py").exists():
                origins |= {alias.asname or alias.name: {"library"} for alias in node.names}
            elif isinstance(node, ast.FunctionDef):
                origins[node.name] = {node.name}
        for _ in range(2):                               # a loop's names may be set below where they are used
            for node in ast.walk(block):
                if isinstance(node, (ast.Assign, ast.AugAssign)):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    for name in set().union(*map(names_in, targets)):
                        origins[name] = origins.get(name, set()) | origin(node.value)
                elif isinstance(node, (ast.For, ast.comprehension)):
                    for name in names_in(node.target):
                        origins[name] = origins.get(name, set()) | origin(node.iter)
        for node in ast.walk(block):
            if isinstance(node, ast.Assert) and "library" in origin(node):
                compared |= origin(node) - {"library"}
    return compared


def defined_functions(path):
    return {node.name for block in blocks(path) for node in ast.walk(block) if isinstance(node, ast.FunctionDef)}
