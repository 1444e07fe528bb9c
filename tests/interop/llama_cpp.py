"""llama.cpp, built by scripts/llama-cpp into build/llama.cpp (LLAMA_CPP=FOLDER): questions about GGUF
files, and its own converter."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from interop import REPOSITORY

FOLDER = REPOSITORY / os.environ.get("LLAMA_CPP", "build/llama.cpp")
ASK, QUANTIZE = FOLDER / "llama_cpp", FOLDER / "llama_quantize"
HERE = Path(__file__).resolve().parent


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nfailed: {done.stdout}{done.stderr}")
    return done.stdout


def build():
    """The folder of its sources."""
    print(f"building llama.cpp in {FOLDER}, if it is not there", flush=True)
    sources = Path(run(REPOSITORY / "scripts" / "llama-cpp").strip())
    library = FOLDER / "build" / "bin"
    for tool in (ASK, QUANTIZE):
        run("cc", "-O1", "-Wall", "-I", sources / "include", "-I", sources / "ggml" / "include",
            HERE / f"{tool.name}.c", "-o", tool, "-L", library, f"-Wl,-rpath,{library}", "-lllama", "-lm")  # fmt: skip
    return sources


def ask(file, *questions, options=()):
    """A list of numbers for each question."""
    done = subprocess.run([ASK, file, *options], input="".join(f"{question}\n" for question in questions),
                          capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        sys.exit(f"llama.cpp on {file} failed: {done.stderr}")
    return [list(map(float, line.split())) for line in done.stdout.splitlines()]


def quantize(file, out, number):
    """A file of that number's type (llama.h), of one in float32."""
    run(QUANTIZE, file, out, number)
    return out


def words(ids):
    return " ".join(map(str, ids))


def score_in_llama_cpp(file, ids):
    """The log-probability of each token after the first, [B, T-1]."""
    return np.array(ask(file, *(f"score {words(sequence)}" for sequence in ids)))


def tokenize_in_llama_cpp(file, texts, adds=True):
    """With what a file says to add around a text, or without."""
    kind = "tokenize" if adds else "encode"
    questions = (f"{kind} {text.encode().hex()}" for text in texts)
    return [list(map(int, ids)) for ids in ask(file, *questions, options=["--vocabulary"])]


def convert(sources, folder, file):
    """A folder of Hugging Face's, by llama.cpp's converter, without a tokenizer."""
    run(sys.executable, HERE / "convert_to_gguf.py", sources, folder, file)
    return file
