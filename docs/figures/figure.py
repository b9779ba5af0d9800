# What all figures are drawn with: boxes, cells, arrows and text on a Figure, which becomes an SVG file. The palette and the text sizes are
# here once, so that all pictures look alike. Every picture brings its own white background.
from xml.sax.saxutils import escape

NBSP = "\u00a0"   # SVG joins plain spaces
INK, SOFT, LINE = "#1f2430", "#5b6270", "#8a92a0"
FILLS = {
    "a": ("#cfe0fb", "#3a67ad"),       # request A, or head 0
    "b": ("#fde0bd", "#b06a1a"),       # request B, or head 1
    "c": ("#d3eed6", "#3a8644"),       # request C
    "shared": ("#e6defa", "#7355b8"),  # shared by several requests
    "off": ("#f3f4f6", "#c3c8d0"),     # there, but not read
    "none": ("#ffffff", "#8a92a0"),
}


class Figure:
    def __init__(self, width, height, title):
        self.width, self.height, self.title = width, height, title
        self.parts = []

    def text(self, x, y, text, size=13, anchor="start", color=INK, mono=False, bold=False):
        family = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" if mono else "Helvetica, Arial, 'DejaVu Sans', sans-serif"
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-family="{family}" text-anchor="{anchor}" '
                          f'fill="{color}"{weight}>{escape(text.replace("  ", NBSP * 2))}</text>')

    def code(self, x, y, text, **kw):
        self.text(x, y, text, mono=True, **{"size": 12, **kw})

    def note(self, x, y, text, **kw):
        self.text(x, y, text, **{"size": 12, "color": SOFT, **kw})

    def box(self, x, y, w, h, kind="none", text="", size=12, dash=False, mono=False):
        fill, stroke = FILLS[kind]
        dashes = ' stroke-dasharray="3 3"' if dash else ""
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="2" fill="{fill}" stroke="{stroke}"{dashes}/>')
        if text:
            self.text(x + w / 2, y + h / 2 + size * 0.36, text, size=size, anchor="middle", mono=mono,
                      color=LINE if kind == "off" else INK)

    def cells(self, x, y, texts, kinds, w=28, h=24, mono=True, size=12):
        """A row of cells; `kinds` is one kind or one per cell."""
        for i, text in enumerate(texts):
            kind = kinds if isinstance(kinds, str) else kinds[i]
            self.box(x + i * w, y, w, h, kind, str(text), mono=mono, size=size)

    def page(self, x, y, used, size, kind, label="", w=14, h=22):
        """A page of `size` slots, the first `used` of which hold keys."""
        for i in range(size):
            self.box(x + i * w, y, w, h, kind if i < used else "off")
        if label != "":
            self.text(x + size * w / 2, y - 5, str(label), size=11, anchor="middle", color=SOFT, mono=True)

    def grid(self, x, y, rows, cols, kind_of, cell=16):
        for r in range(rows):
            for c in range(cols):
                self.box(x + c * cell, y + r * cell, cell, cell, kind_of(r, c))

    def arrow(self, x1, y1, x2, y2, color=LINE):
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}" stroke-width="1.3" '
                          f'marker-end="url(#tip)"/>')

    def line(self, x1, y1, x2, y2, color=LINE, dash=False):
        dashes = ' stroke-dasharray="3 3"' if dash else ""
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}" stroke-width="1.3"{dashes}/>')

    def span(self, x1, x2, y, text, below=True):
        """A dimension line from x1 to x2 with its text."""
        self.line(x1, y, x2, y)
        self.line(x1, y - 4, x1, y + 4)
        self.line(x2, y - 4, x2, y + 4)
        self.text((x1 + x2) / 2, y + (15 if below else -7), text, size=12, anchor="middle", color=SOFT, mono=True)

    def svg(self):
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
                f'viewBox="0 0 {self.width} {self.height}" role="img">\n<title>{escape(self.title)}</title>\n'
                f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
                f'<path d="M0 0L8 4L0 8z" fill="{LINE}"/></marker></defs>\n'
                f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>\n')
        return head + "\n".join(self.parts) + "\n</svg>\n"
