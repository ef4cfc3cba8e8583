"""Reads pages that are to load nothing."""

from __future__ import annotations

from html.parser import HTMLParser


class Reader(HTMLParser):
    """Collects text, everything a browser would load or run, and the tags that are still open.

    With `pictures` the sources of images are collected in `images` and are no loads.
    """

    def __init__(self, *, pictures: bool = False) -> None:
        super().__init__()
        self.text: list[str] = []
        self.images: list[str] = []
        self.loads: list[str] = []
        self.open: list[str] = []
        self._pictures = pictures

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if self._pictures and tag == "img" and name == "src":
                self.images.append(value or "")
            elif name in ("src", "href", "xlink:href") or name.startswith("on"):
                self.loads.append(name)
        if tag in ("script", "link", "iframe", "object") or (tag == "img" and not self._pictures):
            self.loads.append(tag)
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
