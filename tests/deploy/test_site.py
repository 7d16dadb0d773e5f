"""The site of the documentation: it builds, its links work, and it loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from deploy.dev.site import list_navigation, rewrite_links

ROOT = Path(__file__).parents[2]
HERE = "http://site"
_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
_NOT_LOADED = {"canonical", "prev", "next", "alternate"}


class Links(HTMLParser):
    """What a page refers to, what it loads, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        self.targets += [found[name] for name in ("href", "src") if name in found]
        if tag in _LOADED and _LOADED[tag] in found and found.get("rel") not in _NOT_LOADED:
            self.loaded.append(found[_LOADED[tag]])


def build(folder: Path, into: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--config-file",
            folder / "mkdocs.yml",
            "--site-dir",
            into,
        ],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("site")
    done = build(ROOT, into)
    assert done.returncode == 0, done.stderr
    return into


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Links]:
    """The pages by their URL."""
    found = (path for path in site.rglob("*.html") if path.name != "404.html")
    return {_url(site, path): Links(path.read_text()) for path in found}


def _url(site: Path, path: Path) -> str:
    return f"{HERE}/{path.relative_to(site).as_posix().removesuffix('index.html')}"


def _absolute(pages: dict[str, Links]) -> Iterator[tuple[str, str]]:
    for url, page in pages.items():
        yield from ((url, urljoin(url, target)) for target in page.targets)


def test_every_link_leads_to_a_page_and_its_anchor(site: Path, pages: dict[str, Links]) -> None:
    inside = {(at, target) for at, target in _absolute(pages) if target.startswith(HERE)}
    assert len(inside) > 1000
    for at, target in inside:
        url, _, anchor = target.partition("#")
        if url in pages:
            assert (
                anchor in ("", "__skip", *map(unquote, pages[url].anchors)) or unquote(anchor) in pages[url].anchors
            ), (
                at,
                target,
            )
        else:
            assert (site / unquote(urlsplit(url).path).lstrip("/")).is_file(), (at, target)


def test_links_to_other_sites_are_addresses(pages: dict[str, Links]) -> None:
    outside = {target for _, target in _absolute(pages) if not target.startswith(HERE)}
    assert "https://semver.org" in outside
    for target in outside - {"javascript:void(0)"}:
        parts = urlsplit(target)
        assert parts.scheme in ("http", "https"), target
        assert parts.port is None or parts.port > 0, target
        assert re.fullmatch(r"[\w.-]+", parts.hostname or ""), target


def test_pages_load_nothing_from_elsewhere(site: Path, pages: dict[str, Links]) -> None:
    loaded = {urljoin(url, target) for url, page in pages.items() for target in page.loaded}
    assert len(loaded) > 10
    assert {urlsplit(target).netloc for target in loaded} == {urlsplit(HERE).netloc}
    sheets = list(site.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)]*", sheet.read_text()) == [], sheet


def test_diagrams_need_no_library(site: Path) -> None:
    """Material's own script fetches Mermaid for a block of this class."""
    text = (site / "concepts" / "index.html").read_text()
    assert 'class="mermaid"' not in text
    drawings = re.findall(r'src="\.\./(images/diagrams/[^"]+\.svg)"', text)
    assert len(drawings) == (ROOT / "docs" / "concepts.md").read_text().count("```mermaid") > 0
    assert all("QUEUED" in (site / each).read_text() for each in drawings[1:2])


def test_lists_are_lists(site: Path) -> None:
    """Python-Markdown needs an empty line before a list, GitHub does not."""
    for path in site.rglob("*.html"):
        paragraphs = re.findall(r"<p>.*?</p>", path.read_text(), re.DOTALL)
        assert [each for each in paragraphs if re.search(r"\n(?:[-*]|\d+\.) ", each)] == [], path


def test_a_linked_source_file_is_a_page(site: Path) -> None:
    page = site / "source" / "orchestrator" / "supervisor" / "reconcile.py" / "index.html"
    assert "Reconciler" in page.read_text()
    assert "0001-one-process-and-a-run-directory" in (site / "source" / "docs" / "adr" / "index.html").read_text()


@pytest.mark.parametrize("broken", ["[a](absent.md)", "[a](goodput.md#absent)", "[a](../orchestrator/absent.py)"])
def test_a_broken_link_fails_the_build(tmp_path: Path, broken: str) -> None:
    for name in ("mkdocs.yml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    hooks = tmp_path / "deploy" / "dev"
    hooks.mkdir(parents=True)
    shutil.copy(ROOT / "deploy" / "dev" / "site.py", hooks)
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "README.md").write_text(f"# Docs\n\n## Learn\n\n- [Goodput](goodput.md)\n\n{broken}\n")
    (docs / "goodput.md").write_text("# Goodput\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0, done.stderr
    assert "absent" in done.stderr


def test_the_navigation_has_every_link_of_the_list() -> None:
    readme = "# D\n\nNew? [This](x.md)\n\n## Learn\n\n- [`why` x](a.md), [b](b/c.md#d)\n  and [d](d.md)\n"
    learn = {"Learn": [{"Why x": "a.md"}, {"B": "b/c.md"}, {"D": "d.md"}]}
    assert list_navigation(readme) == [{"Overview": "README.md"}, learn]


def test_links_to_sources_keep_their_anchor_and_others_stay(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "adr").mkdir(parents=True)
    (docs / "a.md").touch()
    (tmp_path / "b.py").touch()
    text = "[a](../a.md#x) [b](../../b.py#L3) [c](https://c.org/b.py) [d](../absent.py)"
    stated = "[a](../a.md#x) [b](../source/b.py.md#L3) [c](https://c.org/b.py) [d](../absent.py)"
    assert rewrite_links(text, "adr/1.md", docs) == stated
