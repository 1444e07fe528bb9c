#!/usr/bin/env python3
"""Copies C++ headers for Doxygen, which reads comments that begin with three slashes.

usage: scripts/site/doxygen_comments.py OUT HEADER[=NAME]...

Each HEADER, a path from the root, becomes OUT/HEADER, or OUT/NAME, with its comments in Doxygen's
form:

    // before `#pragma once`       of the file
    // before a declaration        of what is declared
    code;  // after it             of the code before it, with the lines that go on below it

Comments of C are read alike. What stands in a function's body, or apart from any declaration, stays
as it is. The text is not Doxygen's: its characters are escaped, and indented lines (formulas,
tables, examples) are printed as they are.
"""

import re
import sys
from pathlib import Path

COMMENT = re.compile(r"^(\s*)//(?!/) ?(.*)$")
TRAILING = re.compile(r"^(\s*\S.*?)(\s\s+)// (.*)$")
SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b")
NOT_DECLARATIONS = ("}", "#", "namespace", "public:", "private:")
ESCAPED = re.compile(r"([\\@<>#%&*\[\]!]|\b_|_\b|(?<!\w)::)")


def prose(text):
    """Escapes all but what stands between backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else ESCAPED.sub(r"\\\1", part) for part in parts)


def paragraphs(lines):
    """A comment's lines as Doxygen is to have them."""
    out, run, in_list = [], [], False
    for line in [*lines, None]:
        is_item = line is not None and re.match(r"- ", line)
        is_indented = line is not None and line.startswith("  ") and not in_list
        if run and not is_indented and line != "":
            while run[-1] == "":
                run.pop()
            out += ["@verbatim", *run, "@endverbatim"]
            run = []
        if line is None:
            break
        if is_indented or (run and line == ""):
            run.append(line)
            continue
        in_list = bool(is_item) or (in_list and line.startswith("  "))
        out.append(line)
    return escape(out)


def escape(lines):
    """Escapes what is not verbatim; a code span may go over lines."""
    out, chunk = [], []

    def flush():
        if chunk:
            out.extend(prose("\n".join(chunk)).split("\n"))
        chunk.clear()

    verbatim = False
    for line in lines:
        if line in ("@verbatim", "@endverbatim"):
            flush()
            verbatim = line == "@verbatim"
            out.append(line)
        elif verbatim:
            out.append(line)
        else:
            chunk.append(line)
    flush()
    return out


def with_slashes(text):
    """C's comments as those of C++ at the ends of their lines; those within a line stay."""
    out, inside = [], False
    for line in text.split("\n"):
        if "NOLINT" in line:
            continue
        if inside:
            body, closes = re.match(r"\s*(?:\*(?!/))? ?(.*?)\s*(\*/)?$", line).groups()
            indent = column * " "
            if body or not closes:
                out.append(f"{indent}// {body}".rstrip())
            inside = not closes
            continue
        start = re.match(r"^(.*?)/\* ?(.*)$", line)
        if not start or re.search(r"\*/\s*\S", start[2]):
            out.append(line)
            continue
        inside = not start[2].rstrip().endswith("*/")
        before = start[1] if not start[1].strip() else f"{start[1].rstrip()}  "
        column = len(before)
        out.append(before + "// " + re.sub(r"\s*\*/\s*$", "", start[2]))
    return "\n".join(out)


def without_texts(line):
    """A line of code without comments, texts and characters, so that its braces count."""
    line = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])*\'', '""', line)
    return re.sub(r"//.*|/\*.*?\*/", "", line)


class Braces:
    """Whether declarations stand where a file is read, or a function's body, or numbers."""

    def __init__(self):
        self.open, self.statement = [], ""

    def declares(self):
        return all(self.open)

    def read(self, line):
        for character in without_texts(line):
            if character == "{":
                is_scope = SCOPE.search(self.statement) and "(" not in self.statement
                self.open.append(bool(is_scope))
                self.statement = ""
            elif character == "}":
                if self.open:
                    self.open.pop()
                self.statement = ""
            elif character == ";":
                self.statement = ""
            else:
                self.statement += character
        self.statement += " "


def transformed(text):
    """A header with its comments in Doxygen's form."""
    lines, out, braces = with_slashes(text).split("\n"), [], Braces()
    i = 0
    if COMMENT.match(lines[0]):
        while i < len(lines) and COMMENT.match(lines[i]):
            i += 1
        about = [COMMENT.match(line)[2] for line in lines[:i]]
        out += ["/// @file", *[f"/// {line}".rstrip() for line in paragraphs(about)]]
    while i < len(lines):
        comment, trailing = COMMENT.match(lines[i]), TRAILING.match(lines[i])
        if comment and braces.declares():
            end = i
            while end < len(lines) and COMMENT.match(lines[end]):
                end += 1
            following = lines[end].strip() if end < len(lines) else ""
            is_doc = following and not following.startswith(NOT_DECLARATIONS)
            texts = [COMMENT.match(line)[2] for line in lines[i:end]]
            mark = "///" if is_doc else "//"
            texts = paragraphs(texts) if is_doc else texts
            out += [f"{comment[1]}{mark} {line}".rstrip() for line in texts]
            i = end
            continue
        braces_before = braces.declares()
        braces.read(lines[i])
        if trailing and braces_before and braces.declares() and trailing[1].lstrip()[0] not in "}#":
            texts = [trailing[3]]
            column = len(trailing[1]) + len(trailing[2])
            while i + 1 < len(lines) and lines[i + 1].startswith(" " * column + "//"):
                i += 1
                texts.append(COMMENT.match(lines[i])[2].strip())
            out.append(f"{trailing[1]}  ///< {prose(' '.join(texts))}")
        else:
            out.append(lines[i])
        i += 1
    return "\n".join(out)


def main():
    folder, *headers = sys.argv[1:]
    for given in headers:
        header, _, name = given.partition("=")
        path = Path(folder) / (name or header)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(transformed(Path(header).read_text()))


if __name__ == "__main__":
    main()
