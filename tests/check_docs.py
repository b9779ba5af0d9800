#!/usr/bin/env python3
"""Fails unless the C++ blocks of docs/layouts.md and docs/cuda.md are the snippets of the tests that run them, word for word,
none of them or of these pages' headings stands twice, and the figures of layouts.md and of README.md exist.

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
    """The page's text, and what is wrong with its blocks."""
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
    return page, [f"docs/{name}: {fault}" for fault in faults]


def main():
    root = sys.argv[1]
    update = sys.argv[2:] == ["--update"]
    page, faults = check_page(root, "layouts.md", "docs_snippets_test.cc", update)
    faults += check_page(root, "cuda.md", "cuda_code_test.cc", update)[1]

    figures = os.path.join(root, "docs", "figures")
    shown = set(re.findall(r"\(figures/([\w.]+)\)", page))
    shown |= set(re.findall(r"\(docs/figures/([\w.]+)\)", read(os.path.join(root, "README.md"))))
    there = {name for name in os.listdir(figures) if name.endswith(".svg")}
    faults += [f"figure {name} does not exist" for name in sorted(shown - there)]
    faults += [f"figure {name} is not shown" for name in sorted(there - shown)]
    drawn = subprocess.run([sys.executable, os.path.join(figures, "make.py"), "--check"], capture_output=True, text=True, check=False)
    if drawn.returncode != 0:
        faults.append(drawn.stderr.strip())
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
