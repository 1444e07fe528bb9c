#!/usr/bin/env python3
"""Makes HTML pages of the project's Markdown pages, and checks every link in them.

usage: scripts/site/pages.py OUT

Run in the root. PATH/NAME.md becomes OUT/PATH/NAME.html, and a link to it a link to that. Files and
folders that pages link to are copied. OUT/index.html is docs/README.md's page. A link to what is
not there is told, and makes the exit code 1.
"""

import html
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt

ROOT = Path.cwd()
# What the column at the left shows; a page that none of the patterns matches stands under the last.
GROUPS = [
    ("Begin", ["README.md", "docs/README.md", "docs/install.md"]),
    ("Tutorials", ["docs/tutorials/*.md"]),
    ("Reference", ["docs/commands.md", "docs/recipe.md", "docs/run-folder.md"]),
    ("Explained", ["docs/*.md"]),
    ("The project", ["CONTRIBUTING.md", "CHANGELOG.md"]),
    ("Records", ["records/*.md"]),
]
LINKED_ONLY = ["models/*/README.md"]
OTHER_INTERFACES = [("cpp/index.html", "C++ and C"), ("python/index.html", "Python")]


def slug(text):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def text_of(inline):
    parts = [part for part in inline.children or [] if part.type in ("text", "code_inline")]
    return "".join(part.content for part in parts)


class Page:
    """A Markdown page: its title, its anchors, and what it links to."""

    def __init__(self, path):
        self.path = path
        self.parser = MarkdownIt("commonmark").enable("table")
        self.tokens = self.parser.parse((ROOT / path).read_text())
        self.title, self.anchors = path.stem, set()
        for i, token in enumerate(self.tokens):
            if token.type == "heading_open":
                text = text_of(self.tokens[i + 1])
                if token.tag == "h1":
                    self.title = text
                token.attrSet("id", self._anchor(text))

    def _anchor(self, text):
        name, k = slug(text), 0
        while (anchor := f"{name}-{k}" if k else name) in self.anchors:
            k += 1
        self.anchors.add(anchor)
        return anchor

    def links(self):
        """Tokens with a link, and the name of its attribute."""
        for token in self.tokens:
            for child in token.children or []:
                if child.type in ("link_open", "image"):
                    yield child, "href" if child.type == "link_open" else "src"

    def raw_sources(self):
        """Addresses of pictures that are written as HTML."""
        for token in self.tokens:
            for part in [token, *(token.children or [])]:
                if part.type in ("html_block", "html_inline"):
                    yield from re.findall(r'src="([^"]+)"', part.content)

    def html(self):
        return self.parser.renderer.render(self.tokens, self.parser.options, {})


class Site:
    """All pages, and the folder that they are written to."""

    def __init__(self, out):
        self.out, self.wrong, self.groups, self.pages = out, [], [], {}
        for name, patterns in GROUPS:
            found = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
            paths = [path.relative_to(ROOT) for path in found]
            self.groups.append((name, [path for path in paths if path not in self.pages]))
            self.pages |= {path: Page(path) for path in self.groups[-1][1]}
        for pattern in LINKED_ONLY:
            paths = [path.relative_to(ROOT) for path in sorted(ROOT.glob(pattern))]
            self.pages |= {path: Page(path) for path in paths}

    def address(self, page, link):
        """Where a link of a page leads on the site; tells of one that leads nowhere."""
        if re.match(r"[a-z]+:", link):
            return link
        name, _, anchor = unquote(link).partition("#")
        target = (ROOT / page.path.parent / name).resolve() if name else ROOT / page.path
        if not target.exists() or not target.is_relative_to(ROOT):
            self.wrong.append(f"{page.path}: links to {link}, which is not there")
            return link
        path = target.relative_to(ROOT)
        if target.is_dir():
            path = path / "README.md" if path / "README.md" in self.pages else path
        if path not in self.pages:
            return self._copied(path, link)
        if anchor and anchor not in self.pages[path].anchors:
            self.wrong.append(f"{page.path}: links to {link}, where no heading is called so")
        leads_to = "" if not name else self._relative(page.path.parent, path.with_suffix(".html"))
        return leads_to + (f"#{anchor}" if anchor else "")

    def _relative(self, folder, path):
        return "../" * len(folder.parts) + path.as_posix()

    def _copied(self, path, link):
        source, copy = ROOT / path, self.out / path
        if source.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
            files = sorted(entry.name for entry in source.iterdir() if entry.is_file())
            items = "".join(f'<li><a href="{name}">{name}</a></li>' for name in files)
            (copy / "index.html").write_text(
                f"<!doctype html><title>{path}</title><h1>{path}</h1><ul>{items}</ul>\n"
            )
            for name in files:
                self._copied(path / name, link)
            return link.rstrip("/") + "/index.html"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        return link

    def navigation(self, page):
        parts, groups = [], []
        for name, paths in self.groups:
            entries = [(path.with_suffix(".html"), self.pages[path].title) for path in paths]
            groups.append((name, entries))
        groups.insert(3, ("Interfaces", [(Path(path), title) for path, title in OTHER_INTERFACES]))
        for name, entries in groups:
            parts.append(f"<h2>{name}</h2>\n<ul>\n")
            for path, title in entries:
                here = " class=here" if path == page.path.with_suffix(".html") else ""
                address = self._relative(page.path.parent, path)
                parts.append(f'<li><a href="{address}"{here}>{html.escape(title)}</a></li>\n')
            parts.append("</ul>\n")
        return "".join(parts)

    def write(self, page):
        for token, attribute in page.links():
            token.attrSet(attribute, self.address(page, token.attrs[attribute]))
        for source in page.raw_sources():
            self.address(page, source)
        style = self._relative(page.path.parent, Path("style.css"))
        path = self.out / page.path.with_suffix(".html")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(page.title)} - attnres</title>\n"
            f'<link rel="stylesheet" href="{style}">\n<nav>\n{self.navigation(page)}</nav>\n'
            f"<main>\n{page.html()}</main>\n</html>\n"
        )

    def write_all(self):
        for page in self.pages.values():
            self.write(page)
        index = Path("docs/README.md")
        first = (index if index in self.pages else Path("README.md")).with_suffix(".html")
        (self.out / "index.html").write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0; url={first}">\n'
        )
        shutil.copyfile(Path(__file__).with_name("style.css"), self.out / "style.css")


def main():
    site = Site(Path(sys.argv[1]))
    site.write_all()
    for line in site.wrong:
        print(line)
    return 1 if site.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
