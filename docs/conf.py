# Documents as a site, by script/docs: the guides of this folder and the reference of the Python package, from its docstrings. The compiled
# part is read from its stubs, which a test compares with it: Sphinx sees functions and classes as it knows them, and nothing need be built.
# Docstrings are plain text, for help(): here their lists of arguments become lists.
import __future__

import importlib.machinery
import importlib.util
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class StubLoader(importlib.machinery.SourceFileLoader):
    def source_to_code(self, data, path, *, _optimize=-1):
        return compile(data, path, "exec", __future__.annotations.compiler_flag, dont_inherit=True)

    def exec_module(self, module):
        module.__version__ = version
        super().exec_module(module)


class StubFinder:
    """Finds girih._girih and girih._girih.variants in their stubs."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in ("girih._girih", "girih._girih.variants"):
            return None
        package = name == "girih._girih"
        file = str(ROOT / "python/girih/_girih" / ("__init__.pyi" if package else "variants.pyi"))
        where = [str(ROOT / "python/girih/_girih")] if package else None
        return importlib.util.spec_from_file_location(name, file, loader=StubLoader(name, file), submodule_search_locations=where)


version = release = re.search(r"project\(girih VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
sys.dont_write_bytecode = True
sys.meta_path.insert(0, StubFinder)
sys.path.insert(0, str(ROOT / "python"))

project = "Girih"
copyright = "the authors of Girih"  # noqa: A001
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "Girih"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch", "transformers"]  # optional, and never called here
autoclass_content = "class"

# "name: what it is", or "name, name: ..." at a line's start; its text goes on in lines that are indented.
ARGUMENT = re.compile(r"^(\w+(?:, \w+)*): (?=\S)")


def sections_flattened(lines):
    """Google's sections (Args:, Returns:, Raises:) as the other docstrings have them."""
    result = []
    section = None
    for line in lines:
        if line in ("Args:", "Returns:", "Raises:"):
            section = line
        elif section and line.startswith("    "):
            text = line[4:]
            if section != "Args:" and not text.startswith(" "):
                text = ("Raises " if section == "Raises:" else "Returns ") + text
            result.append(text)
        else:
            result.append(line)
    return result


def argument_list(app, what, name, obj, options, lines):
    """Lines of arguments as a list, whose other lines are told from it by blank lines."""
    result = []
    inside = False
    for line in sections_flattened(lines):
        match = ARGUMENT.match(line) if what in ("function", "method", "class") else None
        if match:
            if not inside and result and result[-1].strip():
                result.append("")
            line = f"- **{match[1]}**: {line[match.end() :]}"
        elif inside and line.strip():
            if line.startswith(" "):
                line = "  " + line.strip()
                match = True
            else:
                result.append("")
        result.append(line)
        inside = bool(match)
    lines[:] = result


def setup(app):
    app.connect("autodoc-process-docstring", argument_list)
