"""JSON lines to a file of tokens, with `tokenizers` of Hugging Face: TOKENIZER LINES OUT.

As nanoGPT's scripts do it, but in batches: each document's ids and then its end, in 2 bytes each.
"""

import json
import sys
from itertools import islice
from pathlib import Path

import numpy
from tokenizers import Tokenizer

BATCH = 1000


def main(folder, lines, out):
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.encode_special_tokens = True
    end = json.loads(Path(folder, "tokenizer_config.json").read_text())["eos_token"]
    end = tokenizer.token_to_id(end)
    with open(lines) as source, open(out, "wb") as file:
        while batch := list(islice(source, BATCH)):
            texts = [json.loads(line)["text"] for line in batch]
            for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
                numpy.array(encoding.ids + [end], dtype="<u2").tofile(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
