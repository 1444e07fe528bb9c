"""Tokenizers of github.com/huggingface/tokenizers: trained, and documents encoded on all threads.

Answers the requests of bench/compare_tokenizers, which README.md lists.
"""

import json
import sys
import time
from array import array
from pathlib import Path

from tokenizers import Tokenizer

from line_protocol import serve

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "interop"))
import tokenizer_kinds as kinds  # noqa: E402


class Peer:
    def answer(self, request):
        return getattr(self, next(iter(request)))(**request)

    def train(self, train, texts, vocabulary, folder):
        """Writes a tokenizer of the kind."""
        folder = Path(folder)
        folder.mkdir(parents=True)
        tokenizer = kinds.train(train, json.loads(Path(texts).read_text()), vocabulary)
        tokenizer.save(str(folder / "tokenizer.json"))
        end = kinds.KINDS[train]["special"][-1]
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
        return {"done": True}

    def open(self, open, texts):
        self.tokenizer = Tokenizer.from_file(f"{open}/tokenizer.json")
        self.tokenizer.encode_special_tokens = True
        end = json.loads(Path(open, "tokenizer_config.json").read_text())["eos_token"]
        self.end = self.tokenizer.token_to_id(end)
        self.texts = json.loads(Path(texts).read_text())
        return {"done": True}

    def encode(self, encode):
        """With offsets, as encode_batch gives them, or without them."""
        batch = getattr(self.tokenizer, encode)
        self.encodings = []
        begin = time.perf_counter()
        self.encodings = batch(self.texts, add_special_tokens=False)
        ms = 1e3 * (time.perf_counter() - begin)
        return {"ms": ms, "tokens": sum(map(len, self.encodings)) + len(self.encodings)}

    def save(self, save):
        with open(save, "wb") as file:
            for encoding in self.encodings:
                array("i", [*encoding.ids, self.end]).tofile(file)
        return {"done": True}


if __name__ == "__main__":
    serve(Peer().answer)
