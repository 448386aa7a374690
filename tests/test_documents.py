"""Nothing in the texts can rot: blocks run and print what is shown, names and links exist, numbers have a source."""

import ast
import io
import re
import subprocess
import tokenize

import pytest

import documents
import implementation
import paper_facts
import train_minimal
import write_documents
from documents import DOCUMENTS, ROOT, TEXTS

PROSE_OF = re.compile(r"```.*?```|<!--.*?-->|\$\$.*?\$\$|\]\([^)]*\)|<[^>]*>", re.S)

NOT_RUN = {                                              # first line of a block -> why no test of this file runs it
    "python3 -m venv .venv && .venv/bin/python -m pip install -q -e . && .venv/bin/python train_minimal.py --task copy":
        ".ci/run runs it, in a fresh clone",
    'python3 -m venv .venv && .venv/bin/python -m pip install -q -e ".[test]" && .venv/bin/python -m pytest':
        ".ci/run runs it, in a fresh clone",
}
NOT_OURS = {                                             # functions of a page that the library has no counterpart of
    "linearise": "the library has no trees; the block compares with the sequence written out",
}


# ----------------------------------------------------------------------------------------------------------- blocks


def test_no_markdown_file_is_forgotten():
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone, so nothing tells the project's files from others")
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(listed.stdout.split()) == set(DOCUMENTS)


@pytest.mark.parametrize("path", DOCUMENTS)
def test_every_block_runs_and_prints_what_the_page_shows(path):
    complaints, _ = documents.ran(path)
    assert not complaints, "\n\n".join(complaints)


@pytest.mark.parametrize("path", DOCUMENTS)
def test_every_fence_is_executed_or_listed(path):
    """Fences = executed blocks + their outputs + parts that a script writes + commands that are listed or checked."""
    text = documents.read(path)
    generated = [fence for part in documents.generated_parts(text).values() for fence in documents.fences(part)]
    examples = list(documents.load(path))
    outputs = [example.region.promised for example in examples if example.region.promised]
    unknown = documents.fences(text)
    for language, body in [*generated, *(("python", example.parsed) for example in examples),
                           *(("text", output) for output in outputs)]:
        unknown.remove((language, body))
    left = [body for language, body in unknown
            if language != "bash" or any(not (line in NOT_RUN or command_exists(line)) for line in commands(body))]
    assert not left, f"blocks that nothing runs:\n{left}"


def commands(body):
    """The command lines of a bash block, a line that ends in a backslash joined with the next."""
    return [line.strip() for line in body.replace("\\\n", " ").splitlines() if line.strip() and line[0] != "#"]


JUPYTER = re.compile(r"(?:\.venv/bin/)?jupyter lab (\S+\.ipynb)")
COMMAND = re.compile(r"""(?:\.venv/bin/)?python3?\ (?:
    -m\ pip\ install\ -q\ -e\ "\.\[(?P<extra>\w+)\]"
    | -c\ "(?P<code>.*)"(?:\ >.*)?
    | (?P<file>\S+\.py)(?P<rest>.*))""", re.X)


def command_exists(line):
    """A command of Python: its extra is declared, its code compiles, or its file and each option exist. Or Jupyter's."""
    if opened := JUPYTER.fullmatch(line):
        return (ROOT / opened[1]).exists()
    words = COMMAND.fullmatch(line)
    if not words:
        return False
    if words["extra"]:
        return re.search(rf"^{words['extra']} = \[", documents.read("pyproject.toml"), re.M) is not None
    if words["code"]:
        compile(words["code"].replace('\\"', '"'), "a command", "exec")
        return True
    options = re.findall(r"(?<!\S)--[\w-]+", words["rest"])
    source = documents.read(words["file"])
    return all(f'"{option}"' in source or f"'{option}'" in source for option in options)


@pytest.mark.parametrize("path", DOCUMENTS)
def test_every_function_is_called_and_compared_with_the_library(path):
    defined = documents.defined_functions(path)
    _, called = documents.ran(path)
    assert defined <= called, f"defined and never called: {defined - called}"
    alone = defined - documents.compared_with_the_library(path) - set(NOT_OURS)
    assert not alone, f"never compared with the library: {alone}"


def test_the_first_two_bash_blocks_of_the_readme_do_all_set_up():
    bash = [body for language, body in documents.fences(documents.read("README.md")) if language == "bash"]
    assert [block.strip() for block in bash[:2]] == list(NOT_RUN)


# ------------------------------------------------------------------------------------------------------ names, links


def code_files():
    return [path for path in ROOT.rglob("*.py") if not any(part.startswith(".") or part in ("build", "dist")
                                                           for part in path.relative_to(ROOT).parts)]


@pytest.fixture(scope="module")
def known_names():
    """Every name, and every word inside a string, of the project's Python code."""
    names = set()
    for path in code_files():
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if token.type == tokenize.NAME:
                names.add(token.string)
            elif token.type == tokenize.STRING:
                names.update(re.findall(r"\w+", token.string))
    return names


def inline_code(text):
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"```.*?```", "", text, flags=re.S))


@pytest.mark.parametrize("path", TEXTS)
def test_every_file_symbol_and_test_that_a_text_names_exists(path, known_names):
    text, missing = documents.read(path), []
    own_names = set().union(*map(documents.names_in, documents.blocks(path)))
    source_of_the_model = documents.read("implementation.py")
    for code in inline_code(text):
        if re.fullmatch(r"[\w./-]+\.(py|md|html|ipynb|npz|json|toml|txt)", code) or re.fullmatch(r"[\w./-]+/", code):
            found = any((ROOT / folder / code).exists()
                        for folder in ("", "tests", "exercises", (ROOT / path).parent.name))
        elif "::" in code:
            file, name = code.split("::")
            tree = ast.parse((ROOT / "tests" / file.removeprefix("tests/")).read_text(encoding="utf-8"))
            found = any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body)
        elif re.fullmatch(r"[A-Za-z_][\w.]*(\(.*\))?", code) and re.search(r"[._]|[a-z][A-Z]", code.split("(")[0]):
            first, *rest = code.split("(")[0].split(".")
            found = {first, *rest} <= known_names | own_names
            if rest and hasattr(implementation, first):
                found = hasattr(getattr(implementation, first), rest[0]) or f"self.{rest[0]} " in source_of_the_model
        else:
            continue
        if not found and code not in paper_facts.FOREIGN_NAMES:
            missing.append(code)
    assert not missing


def anchors(text):
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    slugs = [re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings]
    return {slug if not slugs[:i].count(slug) else f"{slug}-{slugs[:i].count(slug)}" for i, slug in enumerate(slugs)}


@pytest.mark.parametrize("path", TEXTS)
def test_every_link_and_picture_leads_somewhere(path):
    text = documents.read(path)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"""(?:src|srcset|href)=["']([^"'\s]+)["']""", text)
    assert targets
    for target in targets:
        if re.match(r"[a-z]+:", target):
            assert target.startswith("https://"), target
            continue
        file, _, anchor = target.partition("#")
        there = (ROOT / path).parent / file if file else ROOT / path
        assert there.exists(), f"{path} links to {target}"
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), f"{path} links to {target}"


# ---------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("path", write_documents.PARTS)
def test_the_generated_parts_are_what_their_script_writes(path):
    assert write_documents.rewritten(path) == documents.read(path), "run: python tests/write_documents.py"


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path != "tests/mutation_report.md"])
def test_every_number_of_the_prose_has_a_source(path):
    """A decimal, or a number of two digits or more, stands in a block of its page or in paper_facts.QUOTED."""
    unknown = documents_without_source(documents.read(path))
    assert not unknown, f"neither in a block nor quoted: {unknown}"


@pytest.mark.parametrize("path", TEXTS)
def test_the_numbers_of_the_prose_are_those_that_were_checked(path):
    """A number that no block prints cannot be computed here: each was held against its source once and is listed."""
    assert documents.prose_numbers(documents.read(path)) == documents.checked_numbers(path), \
        "where the new number is right: python tests/write_documents.py --numbers"


def documents_without_source(text):
    prose = re.sub(r"<!-- ([\w-]+): begin -->.*?<!-- \1: end -->", " ", text, flags=re.S)
    shown = " ".join(body for _, body in documents.fences(prose))
    known = {normal(number) for number in NUMBER.findall(shown)} | set(paper_facts.QUOTED)
    prose = PROSE_OF.sub(" ", prose)
    return sorted({number for number in map(normal, NUMBER.findall(prose))
                   if len(re.sub(r"\D", "", number)) > 1
                   and number not in known and not re.fullmatch(r"(19|20)\d\d", number)})


SECTIONS = {number for number, what in paper_facts.QUOTED.items() if what == "a section"}
NUMBER = re.compile(r"(?<![\w.])\d[\d,_]*(?:\.\d+)*(?:e-?\d+)?(?![\w])")


def normal(number):
    return number.replace(",", "").replace("_", "")


@pytest.mark.parametrize("path", ("paper_notes.md", "CHEATSHEET.md"))
def test_every_displayed_equation_is_one_of_the_checked_ones(path):
    """Equations in LaTeX cannot run: each was read against the paper once and is kept in paper_facts.EQUATIONS."""
    shown = equations(documents.read(path))
    assert set(shown) <= set(paper_facts.EQUATIONS)
    if path == "paper_notes.md":
        assert len(shown) == len(paper_facts.EQUATIONS)


def test_the_formulas_of_the_cheat_sheet_are_the_checked_ones():
    """They stand in words above the blocks that compute them, where no block can notice a slip."""
    assert formulas(documents.read("CHEATSHEET.md")) == paper_facts.FORMULAS


def formulas(text):
    part = re.sub(r"```.*?```", "", text.partition("## Formulas and gradients")[2].partition("\n## ")[0], flags=re.S)
    return [" ".join(paragraph.split()) for paragraph in part.split("\n\n") if paragraph.strip()]


@pytest.mark.parametrize("path", ("paper_notes.md", "CHEATSHEET.md"))
def test_table_1_is_that_of_the_paper(path):
    assert table_1(documents.read(path)) == paper_facts.TABLE_1


def table_1(text):
    table = re.search(r"^\| layer \| work.*\n\| --- .*\n((?:\|.*\n)+)", text, re.M)
    return [row.replace(" ", "").split("|")[2:5] for row in table[1].splitlines()] if table else None


@pytest.mark.parametrize("path", TEXTS)
def test_true_means_hidden_wherever_a_text_says_what_it_means(path):
    said = polarities(documents.read(path))
    assert said <= {("True", "hidden"), ("False", "visible")}
    assert said or path not in ("paper_notes.md", "CHEATSHEET.md", "notebook.text.py")


def polarities(text):
    return set(re.findall(r"\b(True|False)`? (?:means|=) (\w+)", text))


def test_training_leaves_the_paper_where_the_readme_says_so():
    """Nothing is dropped by default; the warm-up is 6000 steps, more for longer sequences, and outlasts both tasks."""
    assert train_minimal.DEFAULTS["dropout"] == 0 and train_minimal.DEFAULTS["warmup"] is None
    assert train_minimal.default_warmup(train_minimal.DEFAULTS["seq_len"]) == 6000 < train_minimal.default_warmup(9)
    tasks = write_documents.training_results()["tasks"]
    assert max(tasks["copy"]["steps"], tasks["reverse"]["steps"]) < 6000


def test_training_decodes_greedily_up_to_the_length_of_the_input(monkeypatch, capsys):
    asked, greedy = [], train_minimal.greedy_decode
    monkeypatch.setattr(train_minimal, "greedy_decode", lambda *given: asked.append(given[2:]) or greedy(*given))
    monkeypatch.setattr(train_minimal, "beam_search", None)
    checkpoint = str(ROOT / "visualizations/checkpoints/reverse.npz")
    assert train_minimal.main(["--predict", "5 3 9", "--checkpoint", checkpoint]) == 0
    assert capsys.readouterr().out == "5 3 9 -> 9 3 5\n" and asked == [(4,)]
    run = train_minimal.Run({**train_minimal.DEFAULTS, "d_model": 8})
    run.exact(run.held_out["test"][:20])
    assert asked[1:] == [(train_minimal.DEFAULTS["seq_len"] + 1,)]


def equations(text):
    return [" ".join(equation.split()) for equation in re.findall(r"\$\$(.*?)\$\$", text, re.S)]


@pytest.mark.slow
def test_a_changed_number_operator_or_polarity_is_noticed():
    import red_team_documents

    rows = red_team_documents.attack(edits=30, seed=0)
    missed = [row for row in rows if row[5] is None]
    assert len(rows) >= 25 and {row[0] for row in rows} == set(red_team_documents.PATHS)
    assert len(missed) <= 0.05 * len(rows), missed


PARTS_OF_A_SECTION = ("**In plain words.**", "**In the code.**", "**What people get wrong.**",
                      "<details><summary>Ask yourself:", "**Since then.**", "```python")


def test_the_notes_treat_every_section_of_the_paper_in_the_same_parts():
    text = documents.read("paper_notes.md")
    sections = re.findall(r"^#{2,3} ([^\n]+)\n(.*?)(?=^#{2,3} |\Z)", text, re.M | re.S)
    treated = {heading.split()[0].rstrip(":"): body for heading, body in sections}
    expected = ["Abstract", "1", "2", "3", "3.1", "3.2", "3.2.1", "3.2.2", "3.2.3", "3.3", "3.4", "3.5", "4", "5.1",
                "5.2", "5.3", "5.4", "6.1", "6.2", "6.3", "7"]
    assert set(expected) <= set(treated)
    for section in expected:
        missing = [part for part in PARTS_OF_A_SECTION if part not in treated[section]]
        assert not missing, f"section {section} has no {missing}"
