"""Python blocks of documents run: those of a page in order, as one program, and print what the block of text after them shows. The site
builds without warnings."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\s*^```text\n(.*?)^```\n)?", re.S | re.M)
# docs/integration.md sketches code for other programs, docs/serve.md asks a server: test_integration_docs.py and test_serve.py run these.
OTHERS = [ROOT / "docs/integration.md", ROOT / "docs/serve.md"]
PAGES = sorted(
    path
    for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    if "```python\n" in path.read_text() and path not in OTHERS
)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    text = page.read_text()
    if "girih.flashinfer" in "".join(match[1] for match in BLOCK.finditer(text)):
        pytest.importorskip("torch")
    # A file for tracebacks and tracing to read, with lines numbered as in the page.
    program = tmp_path / f"{page.stem}.py"
    matches = list(BLOCK.finditer(text))
    for match in matches:
        lines = program.read_text() if program.exists() else ""
        program.write_text(lines + "\n" * (text[: match.start(1)].count("\n") - lines.count("\n")) + match[1])
    for match in matches:
        code = compile("\n" * text[: match.start(1)].count("\n") + match[1], str(program), "exec")
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(code, names)
        if match[2] is not None:
            assert output.getvalue() == match[2]


def test_pages_with_examples() -> None:
    assert [page.name for page in PAGES][:1] == ["README.md"]
    assert ROOT / "docs/python.md" in PAGES


def test_site_builds_without_warnings(tmp_path: Path) -> None:
    for module in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(module)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "girih.Attention.plan" in (tmp_path / "reference/girih.html").read_text()
