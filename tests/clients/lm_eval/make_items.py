"""Makes the items of the tasks beside it: python tests/clients/lm_eval/make_items.py FILE

FILE is tinyshakespeare.txt (public domain, as collected in char-rnn). The items are from its last
55,000 bytes, which models/tiny-shakespeare was not trained on. Equal files give equal items.

    rolling.jsonl     passages, each four windows long for a context of 256 bytes
    word_order.jsonl  some lines, and which of four lines comes next: the other three are the same
                      with two neighbouring words exchanged
    speaker.jsonl     some lines and the first two letters of who speaks then, who spoke before
"""

import json
import random
import re
import sys
from pathlib import Path

HELD_OUT = 55_000
WINDOW = 254  # of 256 lm-eval keeps one for the answer and one for what the window begins with
PASSAGES = 32
LINES = 100
SPEAKERS = 60


def lines_of(text):
    """Where each line begins, and the line."""
    return [(m.start(), m[0]) for m in re.finditer(r"[^\n]*", text) if m[0]]


def is_speech(line):
    return not line.endswith(":") and 25 <= len(line) <= 50


def context_before(text, start, size):
    """At most `size` bytes, from the beginning of a line."""
    before = text[max(start - size, 0) : start]
    return before[before.index("\n") + 1 :]


def passages(text):
    size = 4 * WINDOW
    return [{"text": text[i * size : (i + 1) * size]} for i in range(PASSAGES)]


def exchanged(line):
    """The line with two neighbouring words exchanged, in every place."""
    words = line.split(" ")
    lines = {
        " ".join([*words[:i], words[i + 1], words[i], *words[i + 2 :]])
        for i in range(len(words) - 1)
    }
    return sorted(lines - {line})


def word_orders(text, draw):
    places = [(at, line) for at, line in lines_of(text)
              if at > 170 and is_speech(line) and len(exchanged(line)) >= 3]  # fmt: skip
    items = []
    for at, line in sorted(draw.sample(places, LINES)):
        choices = [line, *draw.sample(exchanged(line), 3)]
        draw.shuffle(choices)
        items.append({"context": context_before(text, at, 170), "choices": choices,
                      "answer": choices.index(line)})  # fmt: skip
    return items


def speakers(text, draw):
    items = []
    for match in re.finditer(r"\n\n([A-Z]{5,}):\n", text):
        name, start = match[1], match.start(1)
        context = context_before(text, start, 220) if start > 220 else ""
        if f"{name}:\n" in context:
            items.append({"context": context + name[:2], "name": name[2:]})
    chosen = sorted(draw.sample(range(len(items)), SPEAKERS))
    return [items[i] for i in chosen]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    text = Path(sys.argv[1]).read_bytes()[-HELD_OUT:].decode("ascii")
    draw = random.Random(1)
    folder = Path(__file__).parent
    for name, items in (
        ("rolling", passages(text)),
        ("word_order", word_orders(text, draw)),
        ("speaker", speakers(text, draw)),
    ):
        lines = "".join(json.dumps(item) + "\n" for item in items)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        print(f"{name}: {len(items)} items, {len(lines)} bytes")


if __name__ == "__main__":
    main()
