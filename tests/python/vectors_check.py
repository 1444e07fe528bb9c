"""Checks test vectors: python vectors_check.py VECTORS  (the file that attnres vectors writes)

They have to agree with plain_mechanisms.py wherever a site reads, to 1e-12 of the largest magnitude
of what it reads. As a negative control the rows of one role after the other are reversed, which has
to show.
"""

import json
import struct
import sys
from math import prod

from plain_mechanisms import Entry, forward

TOLERANCE, CONTROL = 1e-12, 1e-6


def flat(numbers):
    return [x for part in numbers for x in flat(part)] if isinstance(numbers, list) else [numbers]


def largest_error(e):
    results = {n for n in e.tensors if n.startswith(("mixed.", "input.", "adapted.", "log_decay"))}
    magnitude = {n: max(abs(x) for x in flat(e.tensors[n])) for n in results}
    error = 0.0
    for b in range(e.batch):
        for t in range(e.tokens):
            e.token, seen = (b, t), set()
            for name, numbers in forward(e):
                pairs = zip(flat(numbers), flat(e.at(name)), strict=True)
                error = max([error] + [abs(x - y) / magnitude[name] for x, y in pairs])
                seen.add(name)
            if seen != results:
                sys.exit(f"{e.name}: not the results of the file: {sorted(seen ^ results)}")
    return error


def error_with_rows_reversed(e, role):
    kept = dict(e.tensors)
    for name, numbers in kept.items():
        if name == f"parameter.{role}" or name.startswith(f"parameter.{role}."):
            e.tensors[name] = numbers[::-1]
    try:
        return largest_error(e)
    finally:
        e.tensors = kept


def nested(numbers, shape):
    if len(shape) < 2:
        return list(numbers)
    size = prod(shape[1:])
    return [nested(numbers[i * size : (i + 1) * size], shape[1:]) for i in range(shape[0])]


def read(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    metadata, about, tensors = header.pop("__metadata__"), {}, {}
    for full_name, info in header.items():
        entry, name = full_name.split("/")
        if entry not in about:
            about[entry], tensors[entry] = json.loads(metadata[entry]), {}
        begin, end = info["data_offsets"]
        numbers = struct.unpack(f"<{(end - begin) // 8}d", data[begin:end])
        tensors[entry][name] = nested(numbers, info["shape"])
    return [Entry(name, about[name], tensors[name]) for name in about]


def main(path):
    entries, wrong = read(path), 0
    for e in entries:
        error = largest_error(e)
        lists = [r for r in e.roles if any(len(v) > 1 for n, v in e.tensors.items()
                                           if n.startswith(f"parameter.{r}"))]  # fmt: skip
        unseen = [r for r in lists if error_with_rows_reversed(e, r) < CONTROL]
        if error > TOLERANCE or unseen:
            wrong += 1
            print(f"{e.name}: off by {error:.1e}; reversed without effect: {unseen}")
    print(f"{len(entries) - wrong} of {len(entries)} entries agree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
