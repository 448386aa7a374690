"""What the tests share: one BLAS thread for all of them, and `need` for whatever not every machine has."""

import importlib
import os
import shutil

import pytest
from threadpoolctl import threadpool_limits

REQUIRE_ALL_CHECKS = os.environ.get("REQUIRE_ALL_CHECKS") == "1"


def need(name):
    """The module ``name``, imported, or else the path of the program ``name``.

    Where both are missing the test is skipped; with REQUIRE_ALL_CHECKS=1 it fails instead. Call it inside a test or
    a fixture, or at the head of a test module of which nothing works without ``name``.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise                                       # the module is there, but something that it imports is not
    program = shutil.which(name)
    if program:
        return program
    if REQUIRE_ALL_CHECKS:
        pytest.fail(f"{name} is missing, and REQUIRE_ALL_CHECKS=1 forbids skipping what needs it", pytrace=False)
    pytest.skip(f"{name} is not installed", allow_module_level=True)


@pytest.fixture(scope="session", autouse=True)
def one_blas_thread():
    """Small products gain nothing from more threads, and a sum's order, so its last bit, depends on their number."""
    with threadpool_limits(limits=1):
        yield
