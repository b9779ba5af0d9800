#!/usr/bin/env python3
"""Fails unless the C++ blocks of docs/layouts.md are the snippets of tests/docs_snippets_test.cc, word for word, and the
figures of that page and of README.md exist.

  check_docs.py ROOT            compares
  check_docs.py ROOT --update   copies the snippets into the page

In the page a block follows `<!-- snippet: name -->`; in the test the text stands between `// [name]` and `// [/name]`.
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


def main():
    root = sys.argv[1]
    page_path = os.path.join(root, "docs", "layouts.md")
    page = read(page_path)
    snippets = {name: textwrap.dedent(text) for name, text in SNIPPET.findall(read(os.path.join(root, "tests", "docs_snippets_test.cc")))}
    if sys.argv[2:] == ["--update"]:
        page = BLOCK.sub(lambda m: f"<!-- snippet: {m[1]} -->\n```cpp\n{snippets.get(m[1], m[2])}```\n", page)
        with open(page_path, "w", encoding="utf-8") as file:
            file.write(page)

    faults = []
    blocks = BLOCK.findall(page)
    if page.count("```cpp") != len(blocks):
        faults.append(f"{page.count('```cpp')} C++ blocks, {len(blocks)} of them after a snippet comment; each needs one")
    for name, text in blocks:
        if name not in snippets:
            faults.append(f"snippet {name} is not in tests/docs_snippets_test.cc")
        elif snippets[name] != text:
            faults.append(f"snippet {name} differs from tests/docs_snippets_test.cc; run tests/check_docs.py . --update")
    for name in sorted(set(snippets) - {name for name, _ in blocks}):
        faults.append(f"snippet {name} of the test is not shown")
    if not blocks:
        faults.append("no snippets found")

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
        sys.exit("\n".join("docs/layouts.md: " + fault for fault in faults))


if __name__ == "__main__":
    main()
