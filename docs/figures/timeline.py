# Time lines of kernels: a lane is a warp, a group of warps or a place in shared memory; boxes are work, dashed boxes are waits, numbered
# arrows lead from who arrives at a barrier to who waits there. Time runs to the right, not to scale.
import textwrap

from figure import INK, LINE, SOFT, Figure

KEY, VALUE, PRODUCT, WEIGHT, OTHER = "a", "b", "shared", "c", "none"
FULL, EMPTY = "#1d4f91", "#a3380f"  # arrows: something is there, something is free
MARKERS = (
    "<defs>"
    + "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto"><path d="M0 0L8 4L0 8z" '
        f'fill="{color}"/></marker>'
        for name, color in (("full", FULL), ("empty", EMPTY))
    )
    + "</defs>"
)


class Timeline(Figure):
    """Lanes from `left` on; x of works, waits and arrows is time."""

    def __init__(self, height, title, left=130, width=860):
        super().__init__(width, height, title)
        self.left = left
        self.lanes = {}
        self.parts.append(MARKERS)

    def lane(self, key, y, name, note="", h=24):
        self.lanes[key] = (y, h)
        self.text(12, y + (h / 2 + 4 if not note else h / 2 - 1), name, size=12, bold=True)
        if note:
            self.note(12, y + h / 2 + 12, note, size=10)
        self.line(self.left - 6, y + h + 3, self.width - 12, y + h + 3, color="#eceef1")

    def work(self, key, begin, end, kind, text="", size=10):
        y, h = self.lanes[key]
        end = min(end, self.width - 14 - self.left)
        self.box(self.left + begin, y, end - begin, h, kind, text, size=size)

    def works(self, key, *pieces):
        """(begin, end, kind, text)..."""
        for piece in pieces:
            self.work(key, *piece)

    def wait(self, key, begin, end, text=""):
        y, h = self.lanes[key]
        end = min(end, self.width - 14 - self.left)
        self.parts.append(
            f'<rect x="{self.left + begin:g}" y="{y + 4:g}" width="{end - begin:g}" height="{h - 8:g}" fill="#ffffff" '
            f'stroke="{LINE}" stroke-dasharray="2 3"/>'
        )
        if text:
            self.text(self.left + (begin + end) / 2, y + h / 2 + 3.5, text, size=10, anchor="middle", color=SOFT)

    def edge(self, key, other, from_side):
        """y of the side of lane `key` that faces lane `other`."""
        y, h = self.lanes[key]
        below = self.lanes[other][0] > y
        return y + h if below == from_side else y

    def signal(self, number, source, begin, target, end, free=False, at=0.5):
        """An arrow from lane `source` to lane `target`; `free`: it says that something may be used again."""
        color, marker = (EMPTY, "empty") if free else (FULL, "full")
        x1, x2 = self.left + begin, self.left + end
        y1 = self.edge(source, target, True)
        y, h = self.lanes[target]
        y2 = y if y > y1 else y + h
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}" stroke-width="1.3" marker-end="url(#{marker})"/>'
        )
        self.number(number, x1 + (x2 - x1) * at, y1 + (y2 - y1) * at, color)

    def number(self, number, x, y, color=FULL):
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="7" fill="#ffffff" stroke="{color}"/>')
        self.text(x, y + 3.5, str(number), size=10, anchor="middle", color=color, bold=True)

    def meets(self, time, first, last, text=""):
        """A barrier that all lanes from `first` to `last` reach."""
        x = self.left + time
        y1 = self.lanes[first][0] - 6
        y, h = self.lanes[last]
        self.parts.append(f'<line x1="{x:g}" y1="{y1:g}" x2="{x:g}" y2="{y + h + 6:g}" stroke="{INK}" stroke-width="2"/>')
        if text:
            self.text(x, y1 - 4, text, size=10, anchor="middle", color=INK)

    def legend(self, y, *rows):
        """(number, free, barrier, text)... from `y` down."""
        for i, (number, free, name, text) in enumerate(rows):
            self.number(number, 20, y + 18 * i - 4, EMPTY if free else FULL)
            self.code(34, y + 18 * i, name, size=11)
            self.note(178, y + 18 * i, text, size=11)

    def prose(self, x, y, text):
        """Sentences, in as many lines as they take."""
        for i, line in enumerate(textwrap.wrap(text, int((self.width - 14 - x) / 5.55))):
            self.note(x, y + 16 * i, line, size=11)

    def key(self, y, *kinds):
        """What the colours stand for."""
        x = 34
        for kind, text in kinds:
            self.box(x, y - 10, 14, 12, kind)
            self.note(x + 20, y, text, size=11)
            x += 34 + 6.1 * len(text)
        self.parts.append(f'<rect x="{x:g}" y="{y - 10:g}" width="14" height="12" fill="#ffffff" stroke="{LINE}" stroke-dasharray="2 3"/>')
        self.note(x + 20, y, "waits", size=11)
