"""Programs that take turns: what the compare_* drivers share.

Each program answers requests line by line, and only one works at a time, so that a machine whose
speed drifts is fair to all.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

BENCH = Path(__file__).resolve().parent
# OpenMP's threads spin for some milliseconds before they sleep; by then they are out of the way.
PAUSE = 0.05
# Freed memory stays with the process. By default glibc gives large tensors back to the system and
# faults their pages in again, which makes PyTorch several times slower.
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**64 - 1),
    "MALLOC_TOP_PAD_": "268435456",
}


class Program:
    """A process that answers requests."""

    def __init__(self, command, threads, pause=PAUSE):
        self.pause = pause
        self.name = Path(command[-1] if command[-1].endswith(".py") else command[0]).name
        limits = {"OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads)}
        environment = {**os.environ, **KEEP_FREED_MEMORY, **limits}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def request(self, **request):
        time.sleep(self.pause)
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended with exit code {self.process.wait()}")
        reply = json.loads(line)
        if "error" in reply:
            sys.exit(f"{self.name}: {reply['error']}")
        return reply

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()


def numbers(text):
    """An option's value such as 2,5,9."""
    return [int(word) for word in text.split(",")]


def words(text):
    """An option's value such as stack,loop."""
    return text.split(",")


def require_known(parser, option, given, known):
    for word in given:
        if word not in known:
            parser.error(f"{option}: {word} is none of {', '.join(known)}")


def add_program_options(parser, program):
    parser.add_argument(
        "--ours",
        default=BENCH.parent / "build" / program,
        help="default: %(default)s",
    )
    parser.add_argument(
        "--python",
        default=BENCH / "peers" / ".venv" / "bin" / "python",
        help="a Python with torch (see README.md); default: %(default)s",
    )


def require_programs(options):
    for option, remedy in (("ours", "build it"), ("python", "README.md says how to make it")):
        if not Path(getattr(options, option)).is_file():
            sys.exit(f"--{option}: {getattr(options, option)} is not there; {remedy}")


def describe_processor():
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else "unknown processor"


def describe_machine(python):
    """The processor and the version of PyTorch."""
    version = subprocess.run(
        [python, "-c", "import torch; print(torch.__version__)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    return f"{describe_processor()}, PyTorch {version}"


def median_interval(values):
    """The narrowest interval between order statistics that holds the distribution's median with
    probability 95 % or more; the whole range where there are fewer than six values."""
    ordered, n = sorted(values), len(values)
    below = [sum(math.comb(n, i) for i in range(k + 1)) / 2**n for k in range((n - 1) // 2)]
    k = max((k for k, tail in enumerate(below) if 2 * tail <= 0.05), default=0)
    return ordered[k], ordered[n - 1 - k]


def ratios(values, to):
    """Value over value, round by round."""
    return [a / b for a, b in zip(values, to, strict=True)]


def show_ratio(values, to):
    """Median of the ratios, with its interval."""
    paired = ratios(values, to)
    low, high = median_interval(paired)
    return f"{statistics.median(paired):.3f} ({low:.3f} to {high:.3f})"


def progress(text):
    print(text, file=sys.stderr, flush=True)


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def header(*cells):
    row(*cells)
    row(*("---" for _ in cells))
