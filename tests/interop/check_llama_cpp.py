"""Models that attnres exported as GGUF files in llama.cpp.

usage: python check_llama_cpp.py        (ATTNRES=PROGRAM; build/attnres if not set)

Builds libllama from the sources in llama-cpp-python's source distribution, some minutes, into
build/llama.cpp (LLAMA_CPP=FOLDER), and llama_cpp.c with it.
"""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from interop import REPOSITORY, Report, attnres, randomize, score, token_ids, train

VERSION = "llama-cpp-python==0.3.36"
FOLDER = Path(os.environ.get("LLAMA_CPP", REPOSITORY / "build" / "llama.cpp"))
ASK = FOLDER / "llama_cpp"
OFF = ("CURL", "OPENSSL", "BUILD_UI", "BUILD_COMMON", "BUILD_TOOLS", "BUILD_TESTS",
       "BUILD_EXAMPLES", "BUILD_SERVER", "BUILD_APP")  # fmt: skip
# Log-probabilities in float32; with depth attention, which amplifies rounding.
BOUND, BOUND_ATTN_RES = 5e-5, 5e-4
# Text with spaces, line ends, bytes beyond ASCII, and characters that no token has.
TEXTS = ("The copyright", " two  spaces\n\n\tand\r\n", "naïve — 日本語 🙂", "a\0b\0\0c", "")


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nfailed: {done.stdout}{done.stderr}")


def build():
    source = REPOSITORY / "tests" / "interop" / "llama_cpp.c"
    if ASK.exists() and ASK.stat().st_mtime > source.stat().st_mtime:
        return
    library = FOLDER / "build" / "bin" / "libllama.so"
    if not library.exists():
        print(f"building llama.cpp in {FOLDER}", flush=True)
        run(sys.executable, "-m", "pip", "download", VERSION, "--no-deps", "--no-binary", ":all:",
            "--dest", FOLDER)  # fmt: skip
        with tarfile.open(next(FOLDER.glob("*.tar.gz"))) as archive:
            archive.extractall(FOLDER, filter="data")
        run("cmake", "-S", sources(), "-B", FOLDER / "build", "-DCMAKE_BUILD_TYPE=Release",
            *(f"-DLLAMA_{option}=OFF" for option in OFF))  # fmt: skip
        run("cmake", "--build", FOLDER / "build", "--target", "llama", "--parallel")
    run("cc", "-O1", "-Wall", "-I", sources() / "include", "-I", sources() / "ggml" / "include",
        source, "-o", ASK, "-L", library.parent, f"-Wl,-rpath,{library.parent}",
        "-lllama", "-lm")  # fmt: skip


def sources():
    return next(FOLDER.glob("llama_cpp_python-*/vendor/llama.cpp"))


def ask(file, *questions):
    """A list of numbers for each question."""
    done = subprocess.run([ASK, file], input="".join(f"{question}\n" for question in questions),
                          capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        sys.exit(f"llama.cpp on {file} failed: {done.stderr}")
    return [list(map(float, line.split())) for line in done.stdout.splitlines()]


def export(report, folder, kind="f32"):
    file = report.folder / f"{len(list(report.folder.glob('*.gguf')))}.gguf"
    attnres("export", "--model", folder, "--format", "gguf", "--type", kind, "--out", file)
    return file


def words(ids):
    return " ".join(map(str, ids))


def compare(report, what, folder, bound, kind="f32"):
    """Log-probabilities of one model in both programs. Returns the GGUF file."""
    file = export(report, folder, kind)
    reader = GGUFReader(file)
    ids = token_ids(len(reader.fields["tokenizer.ggml.tokens"].data))
    theirs = ask(file, *(f"score {words(sequence)}" for sequence in ids))
    report.compare(f"{what}, {kind}", score(folder, ids), np.array(theirs), bound)
    return file


def compare_text(report, what, folder, file):
    """Tokens of texts, by asking both programs to continue them, and greedy continuations."""
    questions, expected = [], []
    for text in TEXTS:
        if "\0" in text:  # no argument of a program can hold it
            continue
        questions.append(f"tokenize {text.encode().hex()}")
        expected.append(tokens_of(folder, text))
    theirs = [list(map(int, answer)) for answer in ask(file, *questions)]
    report.equal(f"{what}: tokens of texts", expected, theirs)
