"""Checks lm-eval against `attnres serve`: python tests/clients/lm_eval_check.py

Runs scripts/lm-eval on models/tiny-shakespeare with the tasks of tests/clients/lm_eval, and beside
it on the same model trained a little further. What lm-eval made of the server's answers is
compared, document by document, with other ways to the same numbers, which need no server: `attnres
eval`, `attnres score` and `attnres generate`. Takes some minutes, and lm-eval, which the script
installs (540 MB).
"""

import argparse
import importlib.machinery
import importlib.util
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

from checks import Checks
from server import MODEL, PROGRAM, ROOT

SCRIPT, TASKS = ROOT / "scripts" / "lm-eval", Path(__file__).resolve().parent / "lm_eval"
NAMES = ("rolling", "word_order", "speaker", "speaker_likelihood")
CONTEXT = 256
WINDOW = CONTEXT - 2  # what lm-eval scores at once: one token begins a window, one is generated
END = 0  # of a document, what the first window begins with
TOLERANCE = 1e-5  # relative

check = Checks("lm_eval_check")


class Program:
    """attnres on the command line, with one thread: others may use the machine."""

    def __init__(self, path, folder):
        self.path, self.folder = path, folder

    def run(self, *arguments):
        command = [self.path, *arguments, "--threads", "1"]
        done = subprocess.run(command, text=True, capture_output=True)
        if done.returncode != 0:
            raise SystemExit(f"lm_eval_check: attnres {arguments[0]} fails: {done.stderr[-2000:]}")
        return done.stdout

    def logprobs(self, sequences):
        """The log-probability of each token after the first."""
        file = self.folder / "ids.txt"
        file.write_text("".join(",".join(map(str, ids)) + "\n" for ids in sequences))
        lines = self.run("score", "--model", MODEL, "--ids-file", file).splitlines()
        return [json.loads(line)["logprobs"] for line in lines]

    def bits_per_byte(self, windows):
        """The score of windows that are equally long."""
        file = self.folder / "windows.bin"  # tokens of 16 bits
        file.write_bytes(array("H", [byte for window in windows for byte in window]).tobytes())
        said = self.run("eval", "--model", MODEL, "--data", file, "--context", str(len(windows[0])),
                        "--json")  # fmt: skip
        result = json.loads(said)
        check(result["tokens"] == sum(len(window) - 1 for window in windows),
              f"eval scores the bytes that lm-eval does: {result['tokens']}")  # fmt: skip
        return result["bits_per_byte"]

    def greedy(self, prompts, tokens, *stops):
        """What follows each prompt at temperature 0."""
        file, out = self.folder / "prompts.jsonl", self.folder / "texts.jsonl"
        file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
        out.unlink(missing_ok=True)
        ends = [word for stop in stops for word in ("--stop", stop)]
        self.run("generate", "--model", MODEL, "--prompts", file, "--out", out,
                 "--temperature", "0", "--max-tokens", str(tokens), *ends)  # fmt: skip
        return [json.loads(line)["text"] for line in out.read_text().splitlines()]

    def train_further(self, text, folder):
        data = self.folder / "text.txt"
        data.write_text(text)
        settings = {"train.steps": 10, "train.batch_size": 2, "train.eval_tokens": 1024,
                    "train.eval_every": 10, "train.checkpoint_every": 10, "train.warmup": 1,
                    "train.learning_rate": 0.001}  # fmt: skip
        given = [f"{key}={value}" for key, value in settings.items()]
        self.run("train", "--recipe", ROOT / "recipes" / "tiny-block-attn-res.json",
                 "--from", MODEL, "--data", data, "--out", folder, "--set", *given)  # fmt: skip


def near(one, other):
    return abs(one - other) <= TOLERANCE * abs(other)


def items_of(name):
    return [json.loads(line) for line in (TASKS / f"{name}.jsonl").read_text().splitlines()]


def run_script(attnres, out, *models):
    command = [SCRIPT, "--attnres", attnres, "--include", TASKS, "--out", out, "--tasks",
               ",".join(f"shakespeare_{name}" for name in NAMES), *models]  # fmt: skip
    # To addresses that are not this machine's it would go through a proxy that is not there.
    nowhere = "http://127.0.0.1:9"
    environment = {**os.environ, "https_proxy": nowhere, "http_proxy": nowhere}
    done = subprocess.run(command, text=True, env=environment, capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"lm_eval_check: scripts/lm-eval fails:\n{done.stderr[-4000:]}")
    return done.stdout


def read_script():
    loader = importlib.machinery.SourceFileLoader("lm_eval_script", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


def answers(samples):
    """(log-likelihood, greedy) of each of a document's continuations."""
    return [[(float(text), flag == "True") for [[text, flag]] in s["resps"]] for s in samples]


def windows_of(text):
    """As lm-eval cuts a document: each window begins with the last token of the one before."""
    ids = [END, *text.encode()]
    return [ids[i : i + WINDOW + 1] for i in range(0, len(ids) - 1, WINDOW)]


def check_rolling(program, samples, results):
    items = items_of("rolling")
    windows = [windows_of(item["text"]) for item in items]
    scores = iter(program.logprobs([ids for window in windows for ids in window]))
    expected = [sum(sum(next(scores)) for _ in window) for window in windows]
    said = [float(s["resps"][0][0]) for s in samples]
    check(len(said) == len(items), "every passage is scored")
    for i, (one, other) in enumerate(zip(said, expected, strict=True)):
        check(near(one, other), f"passage {i}: {one} is {other} by attnres score")
    flat = [ids for window in windows for ids in window]
    bits = program.bits_per_byte(flat)
    value = results["shakespeare_rolling"]["bits_per_byte,none"]
    check(near(value, bits), f"bits per byte: {value} is {bits} by attnres eval")
    worst = max(abs(a / b - 1) for a, b in zip(said, expected, strict=True))
    print(f"lm_eval_check: bits per byte {value:.7f}, {bits:.7f} by attnres eval; "
          f"passages differ by {worst:.1e} at most")  # fmt: skip
    changed = [list(ids) for ids in flat]
    changed[5][100] = ord("#")
    check(
        not near(value, program.bits_per_byte(changed)),
        "control: another byte in the text is noticed",
    )
    begun = [[ord("\n"), *windows[0][0][1:]], *windows[0][1:]]
    check(not near(said[0], sum(map(sum, program.logprobs(begun)))),
          "control: a passage that begins after another token is noticed")  # fmt: skip


def split(context, continuation):
    """As lm-eval does: white space at the end of the context is the continuation's."""
    kept = context.rstrip()
    return kept, context[len(kept) :] + continuation


def check_likelihoods(program, name, pairs, said):
    """Sums and greedy flags of (context, continuation) against score and generate."""
    pairs = [split(*pair) for pair in pairs]
    scores = program.logprobs([(context + rest).encode() for context, rest in pairs])
    expected = [sum(score[len(context) - 1 :])
                for (context, _), score in zip(pairs, scores, strict=True)]  # fmt: skip
    for i, ((one, _), other) in enumerate(zip(said, expected, strict=True)):
        check(near(one, other), f"{name}, continuation {i}: {one} is {other} by attnres score")
    contexts = list(dict.fromkeys(context for context, _ in pairs))
    texts = program.greedy(contexts, max(len(rest) for _, rest in pairs))
    greedy = dict(zip(contexts, texts, strict=True))
    flags = [greedy[context].startswith(rest) for context, rest in pairs]
    for i, ((_, one), other) in enumerate(zip(said, flags, strict=True)):
        check(one == other, f"{name}, continuation {i}: greedy is {other} by attnres generate")
    worst = max(abs(a / b - 1) for (a, _), b in zip(said, expected, strict=True))
    print(f"lm_eval_check: {name}: {len(said)} log-likelihoods differ by {worst:.1e} at most; "
          f"{sum(flags)} are greedy")  # fmt: skip
    context, rest = pairs[0]
    wrong = rest[:-2] + rest[:-3:-1]
    [score] = program.logprobs([(context + wrong).encode()])
    check(not near(said[0][0], sum(score[len(context) - 1 :])),
          f"control: {name}: two letters exchanged are noticed")  # fmt: skip
    return flags


def accuracy(answered, items):
    right = [max(range(4), key=lambda i: one[i][0]) == item["answer"]
             for one, item in zip(answered, items, strict=True)]  # fmt: skip
    return sum(right) / len(right)


def check_word_order(program, samples, results):
    items, answered = items_of("word_order"), answers(samples)
    pairs = [(item["context"], choice) for item in items for choice in item["choices"]]
    said = [one for choices in answered for one in choices]
    check_likelihoods(program, "word_order", pairs, said)
    said = results["shakespeare_word_order"]["acc,none"]
    check(math.isclose(said, accuracy(answered, items)), f"accuracy: {said}")
    best = max(range(4), key=lambda i: answered[-1][i][0])
    turned = best if best != items[-1]["answer"] else (best + 1) % 4
    wrong = [*items[:-1], {**items[-1], "answer": turned}]
    check(not math.isclose(said, accuracy(answered, wrong)), "control: a wrong answer is noticed")


def check_speakers(program, generated, likelihoods, results):
    items = items_of("speaker")
    texts = program.greedy([item["context"] for item in items], 16, ":", "\n")
    for i, (sample, text) in enumerate(zip(generated, texts, strict=True)):
        said = sample["resps"][0][0]
        check(said == text, f"speaker {i}: {said!r} is {text!r} by attnres generate")
    right = [text == item["name"] for text, item in zip(texts, items, strict=True)]
    said = results["shakespeare_speaker"]["exact_match,none"]
    check(math.isclose(said, sum(right) / len(right)), f"exact matches: {said}")
    check(0 < sum(right) < len(right), "some names are right and some are wrong")
    pairs = [(item["context"], item["name"] + ":") for item in items]
    flags = check_likelihoods(program, "speaker_likelihood", pairs,
                              [one for [one] in answers(likelihoods)])  # fmt: skip
    check(0 < sum(flags) < len(flags), "some continuations are greedy and some are not")
    said = results["shakespeare_speaker_likelihood"]["acc,none"]
    check(math.isclose(said, sum(flags) / len(flags)), f"greedy continuations: {said}")


def numbers_in(cell):
    return [float(number) for number in re.findall(r"[+-]?[0-9.]+", cell)]


def jackknife(pairs):
    """The standard error of bits per byte, by leaving each document out."""

    def bits(some):
        return -sum(x for x, _ in some) / sum(w for _, w in some) / math.log(2)

    n = len(pairs)
    without = [bits(pairs[:i] + pairs[i + 1 :]) for i in range(n)]
    return (n - 1) / math.sqrt(n) * statistics.stdev(without)


def check_table(table, results, samples):
    """The cells against lm-eval's own numbers and, of differences, against the documents."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    check(rows[0][:3] == ["task", "metric", "documents"] and rows[0][-1].count(" − ") == 1,
          f"the table's head: {rows[0]}")  # fmt: skip
    check(len(rows) == 2 + 5, f"a row for every metric: {len(rows) - 2}")
    for task, metric, documents, *cells in rows[2:]:
        check(int(documents) == len(samples[0][task]), f"{task}: {documents} documents")
        for cell, result in zip(cells, results, strict=False):
            value, error = numbers_in(cell)
            theirs = result[task].get(f"{metric}_stderr,none")
            check(abs(value - result[task][f"{metric},none"]) < 6e-5, f"{task}, {metric}: {cell}")
            if isinstance(theirs, float):
                check(abs(error - theirs) < 6e-5, f"{task}, {metric}: {cell} is ± {theirs}")
        change, error = numbers_in(cells[2])
        parts = [[s[metric] for s in one[task]] for one in samples]
        if metric in ("acc", "exact_match"):
            each = [b - a for a, b in zip(*parts, strict=True)]
            own, spread = statistics.mean(each), statistics.stdev(each) / math.sqrt(len(each))
            check(abs(change - own) < 6e-5 and abs(error - spread) < 6e-5,
                  f"{task}, {metric}: {cells[2]} is {own} ± {spread}")  # fmt: skip
        if metric == "bits_per_byte":
            value, alone = numbers_in(cells[0])
            left_out = jackknife(parts[0])
            check(abs(alone / left_out - 1) < 0.1, f"{cells[0]} is ± {left_out}")
            # Passages are equally long: the difference is a mean.
            pairs = zip(*parts, strict=True)
            each = [(a - b) / weight / math.log(2) for (a, weight), (b, _) in pairs]
            own, spread = statistics.mean(each), statistics.stdev(each) / math.sqrt(len(each))
            check(abs(change - own) < 6e-5 and abs(error - spread) < 6e-5,
                  f"{task}, {metric}: {cells[2]} is {own} ± {spread}")  # fmt: skip
            apart = math.hypot(alone, numbers_in(cells[1])[1])
            check(0 < error < apart / 2, f"documents in pairs tell more: {error} of {apart}")


def check_pairs(script):
    """What keeps a difference from having a standard error, and what a difference is made of."""
    first, second = [0.0, 1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0, 1.0]
    one = script.summarize("acc", 0.6, 0.1, list(range(5)), first)
    other = script.summarize("acc", 0.8, 0.1, list(range(5)), second)
    each = [b - a for a, b in zip(first, second, strict=True)]
    spread = statistics.stdev(each) / math.sqrt(5)
    check(script.difference(one, other) == f"+0.2000 ± {spread:.4f}", script.difference(one, other))
    other["documents"] = [1, 2, 3, 4, 5]
    check(script.difference(one, other) == "+0.2000", "other documents make no pairs")
    strange = script.summarize("f1", 0.123, 0.05, list(range(5)), first)
    check(strange["error"] == 0.05 and strange["influences"] is None,
          "of a metric that is no mean lm-eval's own standard error is shown")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--attnres", default=PROGRAM, metavar="PROGRAM")
    options = parser.parse_args()
    script = read_script()
    script.install()
    check_pairs(script)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = Program(options.attnres, folder)
        further, out = folder / "further", folder / "out"
        program.train_further("".join(item["text"] for item in items_of("rolling")), further)
        table = run_script(options.attnres, out, MODEL, further)
        print(table, end="")
        results, samples = [], []
        for i in range(2):
            [file] = (out / str(i)).rglob("results_*.json")
            results.append(json.loads(file.read_text(encoding="utf-8"))["results"])
            tasks = [f"shakespeare_{name}" for name in NAMES]
            samples.append({task: script.read_samples(file, task) for task in tasks})
        check_table(table, results, samples)
        ours = {name: samples[0][f"shakespeare_{name}"] for name in NAMES}
        check_rolling(program, ours["rolling"], results[0])
        check_word_order(program, ours["word_order"], results[0])
        check_speakers(program, ours["speaker"], ours["speaker_likelihood"], results[0])
    return check.end()


if __name__ == "__main__":
    sys.exit(main())
