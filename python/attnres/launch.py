"""Starts the program that lies in this package, in the place of this process.

torch is found and not imported, which would take longer than most commands.
"""

import importlib.util
import os
import re
import sys
from typing import NoReturn

from .built_for import TORCH


def run(typed: str, arguments: list[str]) -> NoReturn:
    """The program with these arguments; `typed` is what started it, which its messages repeat."""
    here = os.path.dirname(os.path.realpath(__file__))
    program = os.path.join(here, "bin", "attnres")
    if not os.path.exists(program):
        sys.exit(
            "attnres: error: this installation has the operations for PyTorch alone; the program "
            "is in the wheel that scripts/wheel makes"
        )
    torch = _torch_folder()
    beside = os.path.join(os.path.dirname(here), "torch")
    # The program finds what lies beside this package by itself.
    if os.path.realpath(torch) != os.path.realpath(beside):
        libraries = [os.path.join(torch, "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
        os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, libraries))
    os.execv(program, [typed, *arguments])


def run_command() -> NoReturn:
    """As the command `attnres`, whose name a shell gives with the folder of the PATH in front."""
    script = sys.argv[0]
    folders = os.environ.get("PATH", "").split(":")
    on_path = (os.path.join(folder, "attnres") for folder in folders)
    first = next((path for path in on_path if os.access(path, os.X_OK)), None)
    run("attnres" if script == first else script, sys.argv[1:])


def run_module() -> NoReturn:
    """As `python -m attnres`."""
    run(f"{sys.orig_argv[0]} -m attnres", sys.argv[1:])


def is_run_as_module() -> bool:
    """Whether `python -m attnres` imports the package, to find the module that it then runs."""
    of_python = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    return sys.argv[:1] == ["-m"] and of_python[-2:] == ["-m", "attnres"]


def _torch_folder() -> str:
    install = f"{sys.executable} -m pip install 'torch=={TORCH}.*'"
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"attnres: error: needs torch {TORCH}, and this Python has none: {install}")
    folder = spec.submodule_search_locations[0]
    with open(os.path.join(folder, "version.py")) as file:
        version = re.search(r"^__version__ = '(.*)'", file.read(), re.MULTILINE)
    found = version[1] if version else "unknown"
    if found.split(".")[:2] != TORCH.split("."):
        sys.exit(f"attnres: error: needs torch {TORCH}, and this Python has {found}: {install}")
    return folder
