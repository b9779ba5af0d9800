#!/usr/bin/env python3
"""Fails unless the C++ blocks of docs/layouts.md and docs/cuda.md are the snippets of the tests that run them, word for word,
none of them or of these pages' headings stands twice, all figures exist, are shown and have a text in their place, and files have the names
that docs/kernels.md says are to be looked for there.

  check_docs.py ROOT            compares
  check_docs.py ROOT --update   copies the snippets into the pages

In a page a block follows `<!-- snippet: name -->`; in the test the text stands between `// [name]` and `// [/name]`.
"""
import os
import re
import subprocess
import sys
import textwrap

BLOCK = re.compile(r"<!-- snippet: (\w+) -->\n```cpp\n(.*?)```\n", re.S)
SNIPPET = re.compile(r"^ *// \[(\w+)\]\n(.*?)^ *// \[/\1\]\n", re.S | re.M)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def check_page(root, name, test, update):
    """What is wrong with the page's blocks."""
    path = os.path.join(root, "docs", name)
    page = read(path)
    snippets = {name: textwrap.dedent(text) for name, text in SNIPPET.findall(read(os.path.join(root, "tests", test)))}
    if update:
        page = BLOCK.sub(lambda m: f"<!-- snippet: {m[1]} -->\n```cpp\n{snippets.get(m[1], m[2])}```\n", page)
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)

    faults = []
    for kind, found in (("heading", re.findall(r"^##+ .*", page, re.M)), ("snippet", [name for name, _ in BLOCK.findall(page)])):
        faults += [f"{kind} `{name}` stands {found.count(name)} times" for name in sorted(set(found)) if found.count(name) > 1]
    blocks = BLOCK.findall(page)
    if page.count("```cpp") != len(blocks):
        faults.append(f"{page.count('```cpp')} C++ blocks, {len(blocks)} of them after a snippet comment; each needs one")
    for snippet, text in blocks:
        if snippet not in snippets:
            faults.append(f"snippet {snippet} is not in tests/{test}")
        elif snippets[snippet] != text:
            faults.append(f"snippet {snippet} differs from tests/{test}; run tests/check_docs.py . --update")
    for snippet in sorted(set(snippets) - {snippet for snippet, _ in blocks}):
        faults.append(f"snippet {snippet} of the test is not shown")
    if not blocks:
        faults.append("no snippets found")
    return [f"docs/{name}: {fault}" for fault in faults]


def check_places(root, page):
    """Faults of the lists "- `file`: `name`, `name()` ...; `file`: ..." of what to look for where."""
    faults = []
    for line in re.findall(r"^- `.*", page, re.M):
        for place in re.findall(r"`((?:kernels|src)/[\w./]+)`: ((?:`[^`]+`(?:, )?)+)", line):
            file = os.path.join(root, place[0])
            text = read(file) if os.path.exists(file) else None
            if text is None:
                faults.append(f"docs/kernels.md: {place[0]} does not exist")
                continue
            names = re.findall(r"`(\w+)(?:\(\))?`", place[1])
            faults += [f"docs/kernels.md: {place[0]} has no {name}" for name in names if not re.search(rf"\b{name}\b", text)]
    return faults


def main():
    root = sys.argv[1]
    update = sys.argv[2:] == ["--update"]
    faults = check_page(root, "layouts.md", "docs_snippets_test.cc", update)
    faults += check_page(root, "cuda.md", "cuda_code_test.cc", update)
    faults += check_places(root, read(os.path.join(root, "docs", "kernels.md")))

    docs = os.path.join(root, "docs")
    figures = os.path.join(docs, "figures")
    pages = [os.path.join(docs, name) for name in sorted(os.listdir(docs)) if name.endswith(".md")] + [os.path.join(root, "README.md")]
    images = [image for path in pages for image in re.findall(r"!\[(.*?)\]\((?:docs/)?figures/([\w.]+)\)", read(path))]
    faults += [f"figure {name} is shown without a text in its place" for text, name in images if not text.strip()]
    shown = {name for _, name in images}
    there = {name for name in os.listdir(figures) if name.endswith((".svg", ".png"))}
    faults += [f"figure {name} does not exist" for name in sorted(shown - there)]
    faults += [f"figure {name} is not shown" for name in sorted(there - shown)]
    drawn = subprocess.run([sys.executable, "-B", os.path.join(figures, "make.py"), "--check"], capture_output=True, text=True, check=False)
    if drawn.returncode != 0:
        faults.append(drawn.stderr.strip())
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
