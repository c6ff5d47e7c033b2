"""Names of pictures of views."""

from __future__ import annotations

from splat_py.scene.picture_names import picture_names


def test_names_are_short_where_they_can_be() -> None:
    assert picture_names(["images/b.jpg", "a.JPG", "r_0.5.png"]) == ["b.png", "a.png", "r_0.5.png"]


def test_equal_names_in_different_folders() -> None:
    views = ["left/001.jpg", "right/001.jpg", "right/002.jpg", "002.png", "a-b/3.png", "a/b-3.png", "A/B-3.png"]
    names = picture_names(views)
    assert names[:4] == ["left-001.png", "right-001.png", "right-002.png", "002.png"]
    assert len({name.lower() for name in names}) == len(views)
    assert not any("/" in name for name in names)


def test_photographs_that_differ_by_suffix_or_case_alone() -> None:
    assert picture_names(["a.jpg", "a.png"]) == ["a.jpg.png", "a.png.png"]
    assert picture_names(["x/A.jpg", "x/a.jpg"]) == ["0-x-A.jpg.png", "1-x-a.jpg.png"]
