"""The check of names finds each kind of offence, and the tree has none."""

from __future__ import annotations

import ast

import pytest

from deploy.dev.naming import find_long, find_names, find_repeats, find_words


def test_a_module_name_of_three_packages_is_found_and_one_of_two_is_not() -> None:
    twice = ["orchestrator/store/jobs.py", "orchestrator/cli/jobs.py", "trainer/a/errors.py"]
    assert list(find_repeats(twice)) == []
    (found,) = find_repeats([*twice, "trainer/elastic/jobs.py", "trainer/b/errors.py", "trainer/c/errors.py"])
    assert found.startswith("jobs.py is in orchestrator/cli, orchestrator/store, trainer/elastic")


@pytest.mark.parametrize(
    "line",
    [
        "def pending_wishes():",
        "class SnapshotWish:",
        "# The Office",
        "its pace",
        "x = _MOST_DEEDS",
        "it tells of no steps",
    ],
)
def test_a_forbidden_word_is_found_in_names_and_sentences(line: str) -> None:
    (found,) = find_words("orchestrator/cli/x.py", f"\n{line}\n")
    assert found.startswith("orchestrator/cli/x.py:2: ")


def test_a_forbidden_word_is_found_in_the_name_of_a_file() -> None:
    assert len(list(find_words("orchestrator/store/harvest.py", ""))) == 1


@pytest.mark.parametrize("line", ["namespace", "SimpleNamespace", "recommend", "amend", "--paced-s", "officer"])
def test_words_that_contain_a_forbidden_word_are_allowed(line: str) -> None:
    assert list(find_words("orchestrator/cli/x.py", line)) == []


def test_a_stored_name_is_allowed_where_it_is_stored() -> None:
    assert list(find_words("orchestrator/wire/insight.py", "deeds: list[DeedView]")) == []
    assert len(list(find_words("orchestrator/cli/x.py", "deeds"))) == 1


@pytest.mark.parametrize(
    "text", ["told = 1", "def _told(): ...", "def f(is_told): ...", "self.keeping = 1", "class Told: ..."]
)
def test_a_word_that_is_only_forbidden_in_names_is_found_there(text: str) -> None:
    assert len(list(find_names("orchestrator/cli/x.py", ast.parse(text)))) == 1


def test_a_word_that_is_only_forbidden_in_names_is_allowed_in_a_sentence() -> None:
    assert list(find_names("orchestrator/cli/x.py", ast.parse('"""The agent is told to stop."""'))) == []


def test_more_than_six_parameters_without_self_are_found() -> None:
    tree = ast.parse("class A:\n    def f(self, a, b, c, d, e, *, g): ...\ndef h(a, b, c, d, e, f, **rest): ...")
    (found,) = find_long("orchestrator/cli/x.py", tree)
    assert found == "orchestrator/cli/x.py:3: h takes 7 parameters: group what travels together"
