"""Runs the Python of pages: python tests/python/pages_check.py PAGE.md ...

The ```python blocks of a page, from top to bottom, as one program. Where a ```text block is the next
one, it must be what the block prints, but for the digits of its numbers.
"""

import contextlib
import io
import re
import sys
from pathlib import Path

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]\d+)?")


def run(page):
    """The number of blocks that ran."""
    text = page.read_text()
    blocks = [
        (found[1], found[2], text.count("\n", 0, found.start()) + 1)
        for found in BLOCK.finditer(text)
    ]
    names, ran = {"__name__": "__main__"}, 0
    for (tag, code, line), following in zip(blocks, [*blocks[1:], ("", "", 0)], strict=True):
        if tag != "python":
            continue
        ran += 1
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # Errors name the page's own lines.
            exec(compile("\n" * line + code, page, "exec"), names)
        if following[0] == "text":
            shown, came = (NUMBER.sub("#", part) for part in (following[1], printed.getvalue()))
            assert came == shown, f"{page}:{following[2]}: prints\n{printed.getvalue()}"
    assert ran > 0, f"{page}: has no Python"
    return ran


def main():
    for page in map(Path, sys.argv[1:]):
        print(f"{page}: {run(page)} blocks of Python run")


if __name__ == "__main__":
    main()
