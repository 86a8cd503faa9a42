"""Builds the library of native calls into the package, for several torches and Pythons: `make dist PREBUILT=1`.

python .ci/prebuilt.py TORCH... [--pythons PYTHON...] [--jobs N]

Of torch only the headers are used: they come from its wheels, and libraries without contents stand for its own when
the library is linked. They run on systems as old as those that torch supports.
"""

import argparse
import hashlib
import itertools
import os
import platform
import shutil
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from custom_autograd.kernels.compilers import CPP_FLAGS, HEADERS, PLATFORM, SMALL, TORCH
from custom_autograd.kernels.portable import FOR_OLDER_SYSTEMS
from custom_autograd.kernels.prebuilt import FOLDER, Manifest, manifest_path, sha256
from custom_autograd.native.library import SOURCE

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "prebuilt"
PYTHONS = ("python3.10", "python3.11", "python3.12", "python3.13", "python3.14")
LIBRARIES = ("torch", "torch_cpu", "c10", "torch_python")
LEVELS = {"x86_64": "x86-64-v2", "aarch64": "armv8-a"}
ASKED = "import sys, sysconfig; print(sys.implementation.cache_tag, sysconfig.get_paths()['include'])"


def headers_of(torch: str) -> Path:
    """Return the folder of a torch's headers, which is that of the torch that is installed, or taken from a wheel."""
    if torch == version("torch").partition("+")[0]:
        return TORCH / "include"
    folder = WORK / f"torch-{torch}"
    if not folder.exists():
        wheels = WORK / f"wheel-{torch}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels)]
        subprocess.run([*command, f"torch=={torch}"], check=True)
        (wheel,) = wheels.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("torch/include/")]
            archive.extractall(folder.with_suffix(".part"), names)
        shutil.rmtree(wheels)
        folder.with_suffix(".part").rename(folder)
    return folder / "torch" / "include"


def stand_ins() -> Path:
    """Return a folder with an empty library for each of torch's that a built library names."""
    folder = WORK / "libraries"
    folder.mkdir(parents=True, exist_ok=True)
    for name in LIBRARIES:
        file = f"lib{name}.so"
        subprocess.run(["cc", "-shared", f"-Wl,-soname,{file}", "-o", folder / file, "-xc", os.devnull], check=True)
    return folder


def build(torch: str, headers: Path, tag: str, python_headers: str, libraries: Path) -> Path:
    """Build the library for one torch and one Python, and return its manifest."""
    minor = ".".join(torch.split(".")[:2])
    target = f"{PLATFORM}-torch{minor}-{tag}"
    sources = sorted(path for path in SOURCE.parent.iterdir() if path.suffix in (".cpp", ".h"))
    files = {path.name: sha256(path) for path in sources}
    digest = hashlib.sha256(repr((target, files)).encode()).hexdigest()[:20]
    name, level = f"call_{digest}", LEVELS.get(platform.machine(), "")
    library = SOURCE.parent / FOLDER / f"{name}.so"
    folders = (headers, headers / "torch" / "csrc" / "api" / "include", python_headers)
    command = [
        *("c++", *FOR_OLDER_SYSTEMS, *CPP_FLAGS, *SMALL, "-w", "-s", f"-DKERNEL_NAMESPACE={name}"),
        *([f"-march={level}"] if level else []),
        *(f"-ffile-prefix-map={folder}/=" for folder in (SOURCE.parent, HEADERS, headers)),
        *(f"-isystem{folder}" for folder in folders),
        *(f"-I{HEADERS}", str(SOURCE), "-o", str(library), f"-L{libraries}", "-Wl,--no-as-needed"),
        *(f"-l{one}" for one in LIBRARIES),
    ]
    subprocess.run(command, check=True)
    path = manifest_path(SOURCE, (), target)
    Manifest(minor, [], files, {level: name}, {name: sha256(library)}).write(path)
    return path


def main() -> None:
    """Build for each torch and each Python that is there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("torches", nargs="+", metavar="TORCH")
    parser.add_argument("--pythons", nargs="+", default=PYTHONS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    started = time.perf_counter()
    shutil.rmtree(SOURCE.parent / FOLDER, ignore_errors=True)
    (SOURCE.parent / FOLDER).mkdir()
    asked = [
        subprocess.run([one, "-c", ASKED], capture_output=True, text=True)
        for one in arguments.pythons
        if shutil.which(one)
    ]
    pythons = [done.stdout.split() for done in asked if done.returncode == 0]
    headers, libraries = {torch: headers_of(torch) for torch in arguments.torches}, stand_ins()
    with ThreadPoolExecutor(arguments.jobs) as threads:
        pairs = itertools.product(headers.items(), pythons)
        jobs = [threads.submit(build, *torch, *python, libraries) for torch, python in pairs]
        for job in jobs:
            print(f"built {job.result().name} (after {time.perf_counter() - started:.0f} s)", flush=True)
    size = sum(path.stat().st_size for path in (SOURCE.parent / FOLDER).iterdir())
    print(f"{len(jobs)} libraries, {size / 1e6:.1f} MB, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
