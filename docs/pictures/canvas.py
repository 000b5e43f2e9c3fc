"""A page to draw SVG pictures on that are read in light and in dark, on a telephone and on paper."""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH = 480  # units; at the width of a telephone a letter of 15 units has 11 pixels

# A file by itself has these; in a page the style sheet defines them, for the theme that is chosen there.
LIGHT = {
    "paper": "#ffffff",
    "ink": "#1c2733",
    "soft": "#55636f",
    "line": "#8b98a5",
    "box": "#f2f5f8",
    "blue": "#d9e8ff",
    "blue-ink": "#1d5fd1",
    "orange": "#ffe6cf",
    "orange-ink": "#b8500a",
    "green": "#d8f3df",
    "green-ink": "#18793a",
    "violet": "#e9e2ff",
    "violet-ink": "#6a3fcf",
}
DARK = {
    "paper": "#14181d",
    "ink": "#e4eaf0",
    "soft": "#9fabb7",
    "line": "#6d7a87",
    "box": "#20272e",
    "blue": "#17345a",
    "blue-ink": "#86b8ff",
    "orange": "#4a2b10",
    "orange-ink": "#ffb375",
    "green": "#143c22",
    "green-ink": "#74dc92",
    "violet": "#33265c",
    "violet-ink": "#c3acff",
}
# ``svg:root`` is a picture that is a document; one that stands in a page takes the page's colours.
STYLE = """svg:root{{{light}}}
@media (prefers-color-scheme:dark){{svg:root{{{dark}}}}}
.rb{{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;font-size:15px}}
.rb-code{{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:13.5px}}
.rb-small{{font-size:13px}}.rb-bold{{font-weight:600}}"""


def colour(name: str) -> str:
    """A colour by its name, as a page or the picture itself defines it."""
    return f"var(--rb-{name})"


def css() -> str:
    """The style sheet that gives pictures the colours of the page that they stand in."""
    light, dark = (
        "".join(f"--rb-{name}:{value};" for name, value in {**tones, "paper": "transparent"}.items())
        for tones in (LIGHT, DARK)
    )
    return f"""/* Made by pictures/draw.py. */
body{{{light}}}
body[data-theme="dark"]{{{dark}}}
@media (prefers-color-scheme:dark){{body:not([data-theme="light"]){{{dark}}}}}
svg.rb{{display:block;width:100%;max-width:32rem;height:auto;margin:1.5rem auto}}
.sd-card{{border:1px solid var(--color-background-border)!important}}
"""


class Canvas:
    """Shapes in the order in which they are drawn.

    Args:
        name: of the file, without its ending.
        height: in units.
        title: what the picture shows, for who does not see it.
    """

    def __init__(self, name: str, height: float, title: str) -> None:
        self.name = name
        self.height = height
        self.title = title
        self.parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        look: str = "",
        fill: str = "ink",
        at: str = "middle",
    ) -> None:
        """A line of text; ``look`` is any of code, small, bold, separated by spaces."""
        classes = " ".join(f"rb-{word}" for word in look.split())
        kind = f' class="{classes}"' if classes else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{at}"{kind} style="fill:{colour(fill)}">'
            f"{escape(words)}</text>"
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = "box",
        edge: str = "line",
        round: float = 6,
        stroke: float = 1.2,
        dashed: bool = False,
    ) -> None:
        """A rectangle with round corners."""
        dash = ";stroke-dasharray:5 4" if dashed else ""
        inside = "none" if fill == "none" else colour(fill)
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round:g}" '
            f'style="fill:{inside};stroke:{colour(edge)};stroke-width:{stroke:g}{dash}"/>'
        )

    def line(
        self, *points: tuple[float, float], edge: str = "line", width: float = 1.6, dashed: bool = False
    ) -> None:
        """A line through points."""
        dash = ";stroke-dasharray:4 4" if dashed else ""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(
            f'<polyline points="{path}" style="fill:none;stroke:{colour(edge)};stroke-width:{width:g}'
            f';stroke-linejoin:round;stroke-linecap:round{dash}"/>'
        )

    def arrow(
        self, *points: tuple[float, float], edge: str = "line", width: float = 1.6, dashed: bool = False
    ) -> None:
        """A line through points with a head at the last one."""
        (x0, y0), (x1, y1) = points[-2:]
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        dx, dy = (x1 - x0) / length, (y1 - y0) / length
        neck = (x1 - 7 * dx, y1 - 7 * dy)
        self.line(*points[:-1], neck, edge=edge, width=width, dashed=dashed)
        wings = [
            (x1, y1),
            (x1 - 9 * dx - 4.5 * dy, y1 - 9 * dy + 4.5 * dx),
            (x1 - 9 * dx + 4.5 * dy, y1 - 9 * dy - 4.5 * dx),
        ]
        path = " ".join(f"{x:.2f},{y:.2f}" for x, y in wings)
        self.parts.append(f'<polygon points="{path}" style="fill:{colour(edge)}"/>')

    def dot(self, x: float, y: float, radius: float, *, fill: str, edge: str) -> None:
        """A circle."""
        self.parts.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" '
            f'style="fill:{colour(fill)};stroke:{colour(edge)};stroke-width:1.6"/>'
        )

    def svg(self) -> str:
        """The picture as a document, which may also stand in a page as it is."""
        style = STYLE.format(
            light=";".join(f"--rb-{name}:{value}" for name, value in LIGHT.items()),
            dark=";".join(f"--rb-{name}:{value}" for name, value in DARK.items()),
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:g}" class="rb" '
            f'role="img" aria-labelledby="rb-{self.name}">\n'
            f'<title id="rb-{self.name}">{escape(self.title)}</title>\n'
            f"<style>{style}</style>\n"
            f'<rect width="{WIDTH}" height="{self.height:g}" rx="10" style="fill:{colour("paper")}"/>\n'
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"

    def save(self, folder: Path) -> None:
        """Write the file."""
        (folder / f"{self.name}.svg").write_text(self.svg(), encoding="utf-8")
