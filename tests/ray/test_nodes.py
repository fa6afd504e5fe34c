"""What is asked of the nodes of a Ray cluster before a task starts; there is no cluster here."""

from types import SimpleNamespace
from typing import Any

import pytest

from course_lib.errors import Unavailable


@pytest.mark.parametrize(
    ("what", "theirs", "said"),
    [
        ("Python", "3.10.1", r"node 1 \(10\.0\.0\.2\) has Python 3\.10\.1, this is"),
        ("torch", "2.0.0", r"node 1 \(10\.0\.0\.2\) has torch 2\.0\.0, this is"),
        ("tensorflow", None, r"node 1 \(10\.0\.0\.2\) has tensorflow not at all, this is"),
        ("lockstep-course", "0.0.1", r"has lockstep-course 0\.0\.1, this is"),
    ],
)
def test_a_node_with_another_version_is_named_with_both(
    monkeypatch: pytest.MonkeyPatch, what: str, theirs: str | None, said: str
) -> None:
    from course_lib.engines.ray import link
    from course_lib.engines.ray.node import versions

    def node(name: str, its: dict[str, str]) -> Any:
        actor = SimpleNamespace(versions=SimpleNamespace(remote=lambda: its))
        return link.RayNodeOf(name, name, actor, "")

    monkeypatch.setattr(link.ray, "get", lambda found, timeout: found)
    same, other = node("node 0 (10.0.0.1)", versions()), versions()
    link.check_versions([same])
    other.pop(what)
    other |= {what: theirs} if theirs else {}
    with pytest.raises(Unavailable, match=said) as refused:
        link.check_versions([same, node("node 1 (10.0.0.2)", other)])
    assert f"Install the same there: {what} {versions()[what]}." in str(refused.value)
