"""Checks the wheel in a folder and says how large it is and how long `import girih` takes; called by script/wheel.

Arguments: FOLDER with one wheel, PYTHON that has it installed. Fails for a name, size or content that breaks what README promises. Time is
told only: it is the machine's as much as ours.
"""

import glob
import os
import re
import statistics
import subprocess
import sys
import zipfile

MAX_BYTES = 15e6
MAX_GLIBC = (2, 34)
IMPORT = "import time; start = time.perf_counter(); import {0}; print(time.perf_counter() - start, 'numpy' in __import__('sys').modules)"


def name_faults(name: str, version: tuple[int, int]) -> list[str]:
    """What is wrong with the wheel's file name."""
    match = re.fullmatch(r"girih-[\d.]+-(cp\d+-\w+)-(.+)\.whl", name)
    if match is None:
        return [f"the name {name} is no wheel's"]
    faults = []
    tag = "cp312-abi3" if version >= (3, 12) else "cp{0}{1}-cp{0}{1}".format(*version)
    if match[1] != tag:
        faults.append(f"{name}: must be for {tag}; below CMake 3.26 nanobind has no stable ABI")
    glibc = [(int(major), int(minor)) for major, minor in re.findall(r"manylinux_(\d+)_(\d+)_", match[2])]
    if not glibc or min(glibc) > MAX_GLIBC:
        faults.append(
            f"{name}: must be manylinux_{MAX_GLIBC[0]}_{MAX_GLIBC[1]} or older; `auditwheel show` names the symbols"
        )
    return faults


def content_faults(path: str) -> list[str]:
    """What the wheel lacks, or holds and should not."""
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
    faults = [
        f"{file} is missing"
        for file in ("girih/__init__.py", "girih/py.typed", "girih/_girih/__init__.pyi")
        if file not in names
    ]
    extensions = [name for name in names if name.endswith(".so") or ".so." in name]
    if len(extensions) != 1 or not re.fullmatch(r"girih/_girih\.[\w.-]+\.so", extensions[0]):
        faults.append(f"one shared object is wanted, the extension; there are {extensions}")
    if not any(name.endswith("/LICENSE") for name in names):
        faults.append("LICENSE is missing")
    faults += [f"{name} does not belong there" for name in names if not re.match(r"girih(-[\w.]+\.dist-info)?/", name)]
    return faults


def import_times(python: str, module: str) -> tuple[list[float], bool]:
    """Seconds of nine imports in fresh interpreters, and whether the import brought numpy."""
    runs = [
        subprocess.run(
            [python, "-I", "-c", IMPORT.format(module)], check=True, capture_output=True, text=True
        ).stdout.split()
        for _ in range(9)
    ]
    return sorted(float(seconds) for seconds, _ in runs), runs[0][1] == "True"


def main() -> None:
    folder, python = sys.argv[1:]
    (path,) = glob.glob(os.path.join(folder, "*.whl"))
    size = os.path.getsize(path)
    faults = name_faults(os.path.basename(path), sys.version_info[:2]) + content_faults(path)
    if size > MAX_BYTES:
        faults.append(f"{size / 1e6:.1f} MB; at most {MAX_BYTES / 1e6:.0f} MB")
    print(f"{os.path.basename(path)}: {size / 1e6:.2f} MB")
    for archive in glob.glob(os.path.join(folder, "*.tar.gz")):
        print(f"{os.path.basename(archive)}: {os.path.getsize(archive) / 1e6:.2f} MB")
    for module in ("girih", "numpy"):
        seconds, numpy = import_times(python, module)
        brings = " (numpy included)" if module == "girih" and numpy else ""
        print(
            f"import {module}{brings}: median {statistics.median(seconds) * 1e3:.0f} ms, {seconds[0] * 1e3:.0f} to {seconds[-1] * 1e3:.0f} ms"
        )
    if faults:
        sys.exit("\n".join(f"script/wheel: {fault}" for fault in faults))


if __name__ == "__main__":
    main()
