"""Measure this Transformer against PyTorch, against its own matrix products, and against its length.

    python benchmarks/run.py --quick                     about a minute
    python benchmarks/run.py --json benchmarks/results.json
    python benchmarks/run.py --write-tables              put benchmarks/results.json into the README
"""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import numpy as np                                                                                   # noqa: E402
from threadpoolctl import threadpool_info                                                            # noqa: E402

import sections                                                                                      # noqa: E402
import tables                                                                                        # noqa: E402
from checkpoints import replacing                                                                    # noqa: E402

README, RESULTS, FIGURE = HERE.parent / "README.md", HERE / "results.json", HERE / "growth.png"


class UsageError(Exception):
    """Something the user can put right; the text is one line."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UsageError(message)


def processor():
    """The processor's model, without the machine's name."""
    try:
        return re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())[1].strip()
    except (OSError, TypeError):
        return platform.processor() or platform.machine()


def memory_gb():
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (AttributeError, ValueError, OSError):
        return None


def commit():
    """The short name of the commit that was measured, with a plus where measured files differ from it."""
    def git(*arguments):
        return subprocess.run(["git", "-C", str(HERE.parent), *arguments], capture_output=True, text=True)

    try:
        name = git("rev-parse", "--short", "HEAD").stdout.strip()
        changed = git("diff", "--quiet", "HEAD", "--", "*.py").returncode
    except OSError:
        return None
    return name + "+" * bool(changed) if name else None


def blas():
    found = [library for library in threadpool_info() if library["user_api"] == "blas" and "numpy" in
             library["filepath"].replace("\\", "/")]
    if not found:
        return "an unknown BLAS"
    return f"{found[0]['internal_api']} {found[0]['version']} ({found[0].get('architecture', 'unknown kernels')})"


def description(settings):
    return {"machine": {"processor": processor(), "cores": os.cpu_count(), "memory_gb": memory_gb(),
                        "system": f"{platform.system()} {platform.machine()}"},
            "versions": {"python": platform.python_version(), "numpy": np.__version__, "blas": blas(),
                         "torch": importlib.metadata.version("torch") if sections.torch else None},
            "commit": commit(), "blas_threads": settings.threads, "quick": settings.quick}


def write(path, text):
    try:
        with replacing(path) as beside:
            beside.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def read_results(path):
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{path} does not hold results of this program") from None


def tables_into_readme(check):
    """Exit status 0 when the README holds the tables of results.json, or is made to; 1 when a check finds others."""
    try:
        before = README.read_text(encoding="utf-8")
        after = tables.with_tables(before, read_results(RESULTS))
    except (OSError, ValueError) as error:
        raise UsageError(f"README.md: {error}") from None
    if before == after:
        return 0
    if check:
        print("README.md does not hold the tables of benchmarks/results.json: "
              "run python benchmarks/run.py --write-tables")
        return 1
    write(README, after)
    return 0


def parse_arguments(argv):
    parser = Parser("run.py", allow_abbrev=False, description=__doc__.splitlines()[0],
                    epilog="exit status: 0, 1 when --check finds other tables, 2 wrong usage")
    parser.add_argument("--quick", action="store_true", help="about a minute: small sizes, few rounds")
    parser.add_argument("--json", metavar="FILE", help="also write every figure to this file")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="BLAS threads on each side (default: 1)")
    parser.add_argument("--only", default=",".join(sections.SECTIONS), metavar="LIST",
                        help="sections, separated by commas (default: %(default)s)")
    parser.add_argument("--write-tables", action="store_true", help="write the tables of benchmarks/results.json into "
                        "the README and draw benchmarks/growth.png; measure nothing")
    parser.add_argument("--check", action="store_true", help="only compare the README with benchmarks/results.json")
    options = parser.parse_args(argv)
    options.only = [name for name in options.only.split(",") if name]
    unknown = [name for name in options.only if name not in sections.SECTIONS]
    if unknown or not options.only:
        raise UsageError(f"--only takes {', '.join(sections.SECTIONS)}; got {', '.join(unknown) or 'nothing'}")
    if options.threads < 1:
        raise UsageError(f"--threads must be at least 1, got {options.threads}")
    return options


def main(argv=None):
    try:
        options = parse_arguments(argv)
        if options.check or options.write_tables:
            if options.write_tables and "growth" in (results := read_results(RESULTS)):
                tables.draw_growth(results["growth"], FIGURE)
            return tables_into_readme(options.check)
        start = time.perf_counter()
        settings = sections.Settings(options.quick, options.threads, lambda line: print(line, file=sys.stderr))
        if not sections.torch:
            print("PyTorch is not installed: our own columns only.", file=sys.stderr)
        results = description(settings)
        for name in options.only:
            results[name] = sections.SECTIONS[name](settings)
        print(tables.markdown(results))
        print(f"{time.perf_counter() - start:.0f} seconds", file=sys.stderr)
        if options.json:
            write(options.json, json.dumps(results, indent=1) + "\n")
    except UsageError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
