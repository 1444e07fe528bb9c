"""The wheel of scripts/wheel in a virtual environment, as its users have it.

torch is that of .venv, put beside the package as pip would. The CUDA libraries that torch is linked to,
3 GB, are not there: empty ones stand in their places.
"""

import argparse
import email
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = Path(sys.prefix)
PACKAGES = next(VENV.glob("lib/python3*/site-packages"))
# What every system has whose C library is as new as Debian 12's.
SYSTEM = re.compile(r"(libc|libm|libdl|librt|libpthread|libutil|libgcc_s|libstdc\+\+)\.so\.\d+|ld-linux-x86-64.*")
TORCH = re.compile(r"(libtorch\w*|libc10\w*|libgomp|libcudart)\.so(\.\d+)*")
MPI = re.compile(r"libmpi\.so\.40")
GENERATE = ["generate", "--model", "tiny-shakespeare", "--prompt", "KING HENRY:", "--max-tokens", "20",
            "--temperature", "0"]  # fmt: skip
checks = 0


def check(holds: object, what: object) -> None:
    global checks
    assert holds, what
    checks += 1


def run(*command: object, **options) -> subprocess.CompletedProcess:
    environment = {"PATH": f"{VENV}/bin:{os.environ['PATH']}", "HOME": os.environ.get("HOME", "/")}
    environment |= options.pop("env", {})
    return subprocess.run(
        [*map(str, command)], capture_output=True, text=True, env=environment, **options
    )


def pip(*arguments: object) -> None:
    done = run(sys.executable, "-m", "pip", "--quiet", *arguments, "--disable-pip-version-check")
    check(done.returncode == 0, done.stderr)


def install(wheel: Path) -> None:
    pip("install", "--no-deps", "--no-index", wheel)


def files() -> set[Path]:
    """All of the environment, but for what Python itself compiled beside packages of others."""
    return {p for p in VENV.rglob("*") if "__pycache__" not in p.parts or "attnres" in p.parts}


def torch_parts() -> list[Path]:
    theirs = next((ROOT / ".venv").glob("lib/python3*/site-packages"))
    return [path for name in ("torch", "torch-*", "torchgen", "functorch", "nvidia")
            for path in theirs.glob(name)]  # fmt: skip


def place_torch() -> None:
    for part in torch_parts():
        place = PACKAGES / part.name
        place.unlink(missing_ok=True)
        place.symlink_to(part)


def remove_torch() -> None:
    for part in torch_parts():
        (PACKAGES / part.name).unlink()


def empty_libraries(folder: Path) -> dict[str, str]:
    """What Python needs to import this torch: the environment's variables."""
    torch = PACKAGES / "torch/lib/libtorch_python.so"
    for line in run("ldd", torch).stdout.splitlines():
        if "not found" in line:
            name = line.split()[0]
            made = folder / name
            if not made.exists():
                done = run("c++", "-shared", "-x", "c++", "/dev/null", f"-Wl,-soname,{name}", "-o", made)
                assert done.returncode == 0, done.stderr
    (folder / "sitecustomize.py").write_text("import os, sys; sys.setdlopenflags(os.RTLD_LAZY)\n")
    return {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(folder)}


def check_what_it_needs(wheel: Path, folder: Path) -> None:
    """Every library is in the wheel, of torch, or of every Debian from 12 on."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        names = archive.namelist()
    info = next(name for name in names if name.endswith("METADATA"))
    metadata = email.message_from_bytes((folder / info).read_bytes())
    torch = next((ROOT / ".venv").glob("lib/python3*/site-packages/torch-*.dist-info")).name
    minor = re.match(r"torch-(\d+\.\d+)", torch)[1]
    check(metadata["Requires-Dist"] == f"torch (=={minor}.*)", metadata["Requires-Dist"])
    notice = (folder / info).with_name("NOTICE").read_text()
    for package in ("libicu", "libhwy", "libsentencepiece", "libpcre2", "zlib1g", "libzstd"):
        check(f"\n{package}" in notice, package)
    elf = [p for p in folder.rglob("*") if p.is_file() and p.read_bytes()[:4] == b"\x7fELF"]
    ours = {path.name for path in elf}
    for path in elf:
        dynamic = run("readelf", "-dVW", path).stdout
        for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
            known = needed in ours or SYSTEM.fullmatch(needed) or TORCH.fullmatch(needed)
            check(known or (path.name == "libattnres_mpi.so" and MPI.fullmatch(needed)), (path, needed))
        for name, newest in (("GLIBC", (2, 36)), ("GLIBCXX", (3, 4, 30))):
            for version in re.findall(rf"\b{name}_([0-9.]+)", dynamic):
                check(tuple(map(int, version.split("."))) <= newest, (path, name, version))
    check(sum(path.stat().st_size for path in elf) < 40e6, "the tables of ICU are 30 MB")


def check_command(built: Path) -> None:
    """It computes what the built program does, and is named as it was typed."""
    version = run(built, "--version").stdout
    expected = run(built, *GENERATE, cwd=ROOT)
    check(expected.returncode == 0 and len(expected.stdout) > 15, expected.stderr)
    with tempfile.TemporaryDirectory() as elsewhere:
        by_path = os.path.relpath(VENV / "bin/attnres", os.path.realpath(elsewhere))
        module = ["python", "-m", "attnres"]
        for command in (["attnres"], [by_path], module, ["python", "-s", *module[1:]]):
            check(run(*command, "--version", cwd=elsewhere).stdout == version, command)
            done = run(*command, *GENERATE, cwd=elsewhere)
            check((done.stdout, done.returncode) == (expected.stdout, 0), done.stderr)
            done = run(*command, "train", "--nonsense", cwd=elsewhere)
            typed = " ".join(command).replace(" -s", "")
            check(f"see {typed} train --help" in done.stderr, done.stderr)
            check(done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.returncode)


def check_process() -> None:
    """The program takes the place of Python: its signals and streams; and torch is not imported."""
    for command in (["attnres"], ["python", "-m", "attnres"]):
        with subprocess.Popen(
            [*command, "tokenize", "--model", "tiny-shakespeare"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env={"PATH": f"{VENV}/bin:{os.environ['PATH']}"},
        ) as process:  # fmt: skip
            out, _ = process.communicate(b"to be")
            check(json.loads(out), out)
        reads, writes = os.pipe()
        os.close(reads)
        done = subprocess.run(
            [*command, "--help"], stdout=writes, env={"PATH": f"{VENV}/bin:{os.environ['PATH']}"}
        )
        os.close(writes)
        check(done.returncode == -signal.SIGPIPE, done.returncode)
        imported = run(*command, "--version", env={"PYTHONPROFILEIMPORTTIME": "1"}).stderr
        check("attnres.launch" in imported and "| torch" not in imported, imported)


def check_training(folder: Path) -> None:
    text = folder / "text.txt"
    text.write_text((ROOT / "LICENSE").read_text() * 4)
    sizes = ["train.steps=3", "train.batch_size=1", "train.context=32", "train.eval_tokens=64"]
    done = run("attnres", "train", "--recipe", "tiny-block-attn-res", "--data", text, "--out", folder / "run",
               "--set", *sizes)  # fmt: skip
    check(done.returncode == 0, done.stderr)
    done = run("attnres", "score", "--model", folder / "run", "--ids", "1,2,3")
    check(done.returncode == 0, done.stderr)


def check_unicode(folder: Path) -> None:
    """The few tables of ICU that are in the wheel do, in any locale."""
    model = folder / "model"
    shutil.copytree(ROOT / "models/tiny-shakespeare", model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    ids = []
    for form in (None, "NFC", "NFD", "NFKC", "NFKD"):
        tokenizer["normalizer"] = form and {"type": form}
        (model / "tokenizer.json").write_text(json.dumps(tokenizer))
        for locale in ("C", "C.UTF-8", "ja_JP.EUC-JP"):
            done = run("attnres", "tokenize", "--model", model, input="ﬁ é", env={"LC_ALL": locale})
            check(done.returncode == 0, done.stderr)
            ids.append(json.loads(done.stdout))
    check(len({json.dumps(found) for found in ids}) == 4, "none is NFC here, the others differ")


def check_package(env: dict[str, str]) -> None:
    program = """
import torch, attnres
torch.manual_seed(0)
sources = [torch.randn(5, 24, dtype=torch.float64) for _ in range(4)]
query, gain = torch.randn(24, dtype=torch.float64), torch.rand(24, dtype=torch.float64)
v = torch.stack(sources)
scores = (gain * v / (v.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()) @ query
expected = (scores.softmax(0)[..., None] * v).sum(0)
torch.testing.assert_close(attnres.depth_attention(sources, query, gain), expected)
print("agrees")
"""
    done = run(sys.executable, "-c", program, env=env)
    check(done.stdout == "agrees\n", done.stderr)


def check_types() -> None:
    user = Path(__file__).with_name("typed_user.py")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", VENV / "mypy_cache"]
    done = run(*mypy, user)
    check(done.returncode == 0, done.stdout)
    with tempfile.TemporaryDirectory() as folder:
        wrong = Path(folder) / "wrong_user.py"
        for right, replaced in (("block_size=2", "block_size='2'"), ("-> list[Tensor]", "-> int")):
            wrong.write_text(user.read_text().replace(right, replaced))
            check(run(*mypy, wrong).returncode == 1, replaced)


def check_other_torches(folder: Path, env: dict[str, str]) -> None:
    """Another torch, or none, is refused in a line that says what to do."""
    other = folder / "torch"
    other.mkdir()
    (other / "version.py").write_text("__version__ = '2.10.0+cpu'\n")
    (other / "__init__.py").write_text("__version__ = '2.10.0+cpu'\n")
    for command in (["attnres"], ["python", "-m", "attnres"]):
        done = run(*command, "--version", env={"PYTHONPATH": str(folder)})
        check((done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr)
        check(re.search(r"has 2\.10\.0\+cpu: .*pip install 'torch==\d", done.stderr), done.stderr)
    done = run(sys.executable, "-c", "import attnres", env={"PYTHONPATH": str(folder)})
    check("torch 2.10.0+cpu: pip install 'torch==" in done.stderr.splitlines()[-1], done.stderr)
    remove_torch()
    done = run("attnres", "--version")
    check("this Python has none" in done.stderr and done.returncode == 1, done.stderr)
    # Elsewhere, as in the system's packages.
    beside = folder / "elsewhere"
    beside.mkdir()
    for part in torch_parts():
        (beside / part.name).symlink_to(part)
    found = {"PYTHONPATH": str(beside)}
    check(run("attnres", *GENERATE, env=found).returncode == 0, "torch elsewhere")
    place_torch()


def check_mpi(folder: Path) -> None:
    """Loaded where processes ask for each other, and nowhere else."""
    lone = run("attnres", *GENERATE)
    if shutil.which("mpirun"):
        many = run("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", "attnres", *GENERATE)
        check(many.stdout == lone.stdout, many.stderr)
    broken = folder / "libmpi.so.40"
    broken.write_text("no library")
    without = {"LD_LIBRARY_PATH": str(folder)}
    check(run("attnres", *GENERATE, env=without).stdout == lone.stdout, "MPI was loaded")
    done = run("attnres", *GENERATE, env={"OMPI_COMM_WORLD_SIZE": "2", **without})
    check(done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr)
    check("install OpenMPI 4 or 5 (Debian: openmpi-bin)" in done.stderr, done.stderr)


def older(wheel: Path, folder: Path) -> Path:
    """The same as version 0.0.9, with a file that this one does not have."""
    version = wheel.name.split("-")[1]
    out = folder / wheel.name.replace(version, "0.0.9")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            name, data = entry.filename.replace(f"attnres-{version}.", "attnres-0.0.9."), old.read(entry)
            if name.endswith("METADATA"):
                data = data.replace(f"\nVersion: {version}\n".encode(), b"\nVersion: 0.0.9\n")
            if name.endswith("RECORD"):
                data = data.replace(f"attnres-{version}.".encode(), b"attnres-0.0.9.")
                data = re.sub(rb"(METADATA),.*", rb"\1,,", data) + b"attnres/stale.py,,\n"
            new.writestr(name, data)
        new.writestr("attnres/stale.py", "")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--attnres", type=Path, default=ROOT / "build/attnres")
    options = parser.parse_args()
    built, wheel = options.attnres.resolve(), options.wheel.resolve()
    if importlib.util.find_spec("attnres"):  # of a check that was stopped
        pip("uninstall", "--yes", "attnres")
    place_torch()
    before = files()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("tree", "empty", "work", "other", "mpi", "old"):
            (folder / part).mkdir()
        check_what_it_needs(wheel, folder / "tree")
        install(older(wheel, folder / "old"))
        check((PACKAGES / "attnres/stale.py").exists(), "the older one")
        install(wheel)
        check(not (PACKAGES / "attnres/stale.py").exists(), "upgrading leaves a file")
        env = empty_libraries(folder / "empty")
        check_command(built)
        check_process()
        check_training(folder / "work")
        check_unicode(folder / "work")
        check_package(env)
        check_types()
        check_other_torches(folder / "other", env)
        check_mpi(folder / "mpi")
    pip("uninstall", "--yes", "attnres")
    left = {path for path in files() - before if "mypy_cache" not in path.parts}
    check(not left, left)
    print(f"wheel_check: ok: {checks} checks")


if __name__ == "__main__":
    main()
