#!/usr/bin/env python3
"""Copies Python sources for pydoctor, with the formulas and examples of docstrings marked as such.

usage: scripts/site/docstrings.py OUT FOLDER

An indented block after an empty line becomes a literal block of reStructuredText, which it is to
people who read it.
"""

import io
import re
import sys
import tokenize
from pathlib import Path


def marked(docstring, base):
    """A docstring, whose lines are indented by `base`, with "::" before its indented blocks."""
    lines, out, inside = docstring.split("\n"), [], False
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if line.strip() and i > 0:
            begins = indent > base and not lines[i - 1].strip() and not inside
            if begins:
                out += [" " * base + "::", ""]
            inside = begins or (inside and indent > base)
        out.append(line)
    return "\n".join(out)


def transformed(source):
    """A source with its docstrings marked."""
    lines = source.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for token in reversed(tokens):
        if token.type == tokenize.STRING and re.match(r'r?"""', token.string):
            (first, column), (last, end) = token.start, token.end
            if lines[first - 1][:column].strip():
                continue  # a text that is no docstring
            text = marked(token.string, column)
            rest = lines[first - 1][:column] + text + lines[last - 1][end:]
            lines[first - 1 : last] = [rest]
    return "".join(lines)


def main():
    out, folder = map(Path, sys.argv[1:])
    out.mkdir(parents=True)
    for path in sorted(folder.glob("*.py")):
        (out / path.name).write_text(transformed(path.read_text()))


if __name__ == "__main__":
    main()
