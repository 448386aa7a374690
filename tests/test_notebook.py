"""The notebook runs and says what its stored outputs say, equals its text form, and copies nothing of the library."""

import ast
import copy
import re

import pytest

from conftest import need
from documents import ROOT

need("nbformat.v4")                                      # by a module's name: programs are called jupytext, not modules
import nbformat                                                                                      # noqa: E402

TEXT, NOTEBOOK = ROOT / "notebook.text.py", ROOT / "notebook.ipynb"


def stored():
    return nbformat.read(NOTEBOOK, as_version=4)


def executed(notebook, folder):
    need("ipykernel.kernelbase")
    client = need("nbclient.client").NotebookClient(notebook, timeout=600, kernel_name="python3",
                                                    resources={"metadata": {"path": folder}})
    return client.execute()


def text_outputs(cell):
    """What a cell printed or showed as text. A picture's own text (its size) is left out: it depends on fonts."""
    printed = "".join(output["text"] for output in cell.get("outputs", ()) if output["output_type"] == "stream")
    shown = [output["data"].get("text/plain", "") for output in cell.get("outputs", ())
             if output["output_type"] in ("execute_result", "display_data") and "image/png" not in output["data"]]
    return printed, shown


def pictures(cell):
    return sum("image/png" in output.get("data", ()) for output in cell.get("outputs", ()))


@pytest.mark.slow
@pytest.mark.parametrize("folder", [".", "exercises"])
def test_executed_anew_it_says_what_is_stored(folder):
    before = stored()
    after = executed(copy.deepcopy(before), str(ROOT / folder))
    for was, now in zip(before.cells, after.cells, strict=True):
        assert text_outputs(now) == text_outputs(was), was.source
        assert pictures(now) == pictures(was), was.source


def test_outputs_are_stored_in_order_and_without_errors_or_warnings():
    code = [cell for cell in stored().cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert all(output["output_type"] != "error" and output.get("name") != "stderr" for output in outputs)
    assert sum(pictures(cell) for cell in code) >= 9


def test_it_equals_its_text_form():
    paired = need("jupytext.jupytext").read(TEXT)
    assert [(cell.cell_type, cell.source) for cell in paired.cells] == \
        [(cell.cell_type, cell.source) for cell in stored().cells]


def test_it_imports_the_library_and_redefines_nothing_of_it():
    import implementation
    import train_minimal

    library = {name for module in (implementation, train_minimal) for name, value in vars(module).items()
               if callable(value) or isinstance(value, type)}
    tree = ast.parse(TEXT.read_text(encoding="utf-8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert defined <= called, f"defined and never called: {defined - called}"
    assert not defined & (library - {"train"}), "the notebook must import these, not define them"
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert imported - {"Path"} <= names, f"imported and never used: {imported - names}"


def test_a_cell_that_trains_prints_no_loss():
    for cell in stored().cells:
        printed, _ = text_outputs(cell)
        assert not re.search(r"\bloss\b", printed), cell.source
