"""llama.cpp as a program that answers requests (peers/llama_cpp.cc)."""

import os
import subprocess

from alternation import BENCH

ROOT = BENCH.parent
# Relative to the largest logits of each step: rounded weights are multiplied by inputs that both
# programs round too, in different blocks.
TOLERANCES = {"f32": 1e-3, "f16": 2e-3, "bf16": 2e-2, "q8_0": 0.1, "q6_k": 0.1, "q5_k_m": 0.2,
              "q4_k_m": 0.2, "q4_k_s": 0.2, "q4_0": 0.2}  # fmt: skip


def build_peer():
    sources = subprocess.run([ROOT / "scripts" / "llama-cpp"], check=True, capture_output=True,
                             text=True).stdout.strip()  # fmt: skip
    folder = ROOT / os.environ.get("LLAMA_CPP", "build/llama.cpp")
    program, library = folder / "bench_peer", folder / "build" / "bin"
    subprocess.run(["c++", "-std=c++20", "-O1", "-I", f"{sources}/include", "-I",
                    f"{sources}/ggml/include", BENCH / "peers" / "llama_cpp.cc", "-o", program,
                    "-L", library, f"-Wl,-rpath,{library}", "-lllama"], check=True)  # fmt: skip
    return str(program)
