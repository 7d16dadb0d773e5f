"""Hooks of mkdocs.yml. They build the parts of the site that are not Markdown pages below docs/.

- The navigation is the list of docs/README.md.
- A linked source file or folder of the repository becomes a page below source/.
- A Mermaid diagram becomes an SVG file, so that a reader's browser loads no library.

docs/ stays readable without the site: links there are relative paths of the repository.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = "changelog.md"
_LINK = re.compile(r"(?<!!)\[(?P<title>[^\]\n]*)\]\((?P<target>[^()#\s]+)(?P<anchor>#[^()\s]*)?\)")
_DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^## (.+)$")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".toml": "toml", ".sh": "sh"}
_IMAGES = (".png", ".svg")


def on_config(config: MkDocsConfig) -> None:
    config.nav = list_navigation((Path(config.docs_dir) / "README.md").read_text())


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages of linked sources, and the diagrams."""
    docs = Path(config.docs_dir)
    linked = {CHANGELOG: ROOT / "CHANGELOG.md"}
    for file in list(files.documentation_pages()):
        text = (docs / file.src_uri).read_text()
        for source in _list_sources(text, file.src_uri, docs):
            linked |= {_uri_of(path, docs): path for path in (source, *_files_of(source))}
        for number, diagram in enumerate(_find_diagrams(text)):
            files.append(File.generated(config, diagram_uri(file.src_uri, number), content=render_diagram(diagram)))
    for uri, source in linked.items():
        files.append(File.generated(config, uri, content=_render_source(source, docs)))


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.generated_by is not None:
        return markdown
    uri = page.file.src_uri
    for number, diagram in enumerate(_find_diagrams(markdown)):
        image = f"![Diagram]({_relative(diagram_uri(uri, number), uri)})"
        markdown = markdown.replace(f"```mermaid\n{diagram}```", image, 1)
    return rewrite_links(markdown.replace("```sh service\n", "```sh\n"), uri, Path(config.docs_dir))


def list_navigation(readme: str) -> list[Any]:
    """Return MkDocs' `nav`: a section for each heading, with every link of its list."""
    sections: dict[str, list[dict[str, str]]] = {}
    below: list[dict[str, str]] = []
    for line in readme.splitlines():
        if heading := _HEADING.match(line):
            below = sections.setdefault(heading[1], [])
        elif line.startswith(("- ", "  ")):
            below += [{_title(found["title"]): _nav_target(found["target"])} for found in _LINK.finditer(line)]
    return [{"Overview": "README.md"}, *({name: entries} for name, entries in sections.items())]


def rewrite_links(markdown: str, uri: str, docs: Path) -> str:
    """Point links to source files and folders at their pages of the site."""

    def rewrite(found: re.Match[str]) -> str:
        source = _source_of(found["target"], uri, docs)
        if source is None:
            return found[0]
        return f"[{found['title']}]({_relative(_uri_of(source, docs), uri)}{found['anchor'] or ''})"

    return _LINK.sub(rewrite, markdown)


def _find_diagrams(markdown: str) -> list[str]:
    """Return the text of each diagram. Empty where mmdr has no build: the site then shows the text."""
    return _DIAGRAM.findall(markdown) if find_spec("mmdr") else []


def render_diagram(text: str) -> str:
    """Render Mermaid's text as SVG. In a process of its own: at its exit, the library prints about leaks."""
    command = [sys.executable, "-m", "mmdr", "--input", "-", "--output", "-", "--format", "svg"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def diagram_uri(uri: str, number: int) -> str:
    return f"images/diagrams/{uri.removesuffix('.md').replace('/', '-')}-{number}.svg"


def _title(text: str) -> str:
    plain = text.replace("`", "")
    return plain[:1].upper() + plain[1:]


def _nav_target(target: str) -> str:
    return target if target.endswith(".md") and not target.startswith("..") else _uri_of_name(target)


def _uri_of_name(target: str) -> str:
    docs = ROOT / "docs"
    return _uri_of((docs / target).resolve(), docs)


def _list_sources(markdown: str, uri: str, docs: Path) -> Iterator[Path]:
    for found in _LINK.finditer(markdown):
        if source := _source_of(found["target"], uri, docs):
            yield source


def _files_of(folder: Path) -> list[Path]:
    """Return the files of a folder that become pages with it."""
    if not folder.is_dir():
        return []
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith("."))
    return [path for path in files if path.suffix not in (".md", *_IMAGES)]


def _source_of(target: str, uri: str, docs: Path) -> Path | None:
    """Return the linked file or folder if it needs a page of its own. MkDocs reports links to nothing."""
    if ":" in target:
        return None
    path = (docs / posixpath.dirname(uri) / target).resolve()
    is_page = path.is_relative_to(docs) and path.suffix in (".md", *_IMAGES)
    return None if is_page or not path.exists() or not path.is_relative_to(docs.parent) else path


def _uri_of(source: Path, docs: Path) -> str:
    if source.name == "CHANGELOG.md":
        return CHANGELOG
    name = source.relative_to(docs.parent).as_posix()
    return f"source/{name}/index.md" if source.is_dir() else f"source/{name}.md"


def _relative(target: str, uri: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(uri) or ".")


def _render_source(source: Path, docs: Path) -> str:
    if source.name == "CHANGELOG.md":
        # Python-Markdown needs an empty line before a list.
        return re.sub(r"^(\*\*.*)\n- ", r"\1\n\n- ", source.read_text().replace("](docs/", "]("), flags=re.MULTILINE)
    name = source.relative_to(docs.parent).as_posix()
    head = f"---\nsearch: {{exclude: true}}\ntitle: {source.name}\n---\n# {name}\n\n"
    if source.is_dir():
        return head + "".join(_list_folder(source, docs))
    fence = "`" * 6  # longer than any fence in a file
    return f"{head}{fence}{_LANGUAGES.get(source.suffix, 'text')}\n{source.read_text()}\n{fence}\n"


def _list_folder(folder: Path, docs: Path) -> Iterator[str]:
    here = _uri_of(folder, docs)
    for path in sorted(folder.iterdir()):
        if path.suffix == ".md" and path.is_relative_to(docs):
            title = path.read_text().partition("\n")[0].removeprefix("# ")
            yield f"- [{title}]({_relative(path.relative_to(docs).as_posix(), here)})\n"
        elif path in _files_of(folder):
            yield f"- [`{path.name}`]({_relative(_uri_of(path, docs), here)})\n"
        elif not path.name.startswith("."):
            yield f"- `{path.name}`\n"
