"""A folder of Hugging Face's as a GGUF file in float32, by llama.cpp's own converter.

usage: python convert_to_gguf.py LLAMA_CPP FOLDER FILE        (LLAMA_CPP: the sources)

The converter knows published tokenizers only: the file has none, but a vocabulary's size.
"""

import json
import sys
from pathlib import Path

sources, folder, file = map(Path, sys.argv[1:])
sys.path[:0] = [str(sources), str(sources / "gguf-py")]

import gguf  # noqa: E402
import torch  # noqa: E402
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class  # noqa: E402


def without_tokenizer(model):
    model.gguf_writer.add_tokenizer_model("none")
    if model.model_arch not in (gguf.MODEL_ARCH.LLAMA, gguf.MODEL_ARCH.SMOLLM3,
                                gguf.MODEL_ARCH.DEEPSEEK2):  # fmt: skip
        model.gguf_writer.add_vocab_size(model.hparams["vocab_size"])


def main():
    hparams = ModelBase.load_hparams(folder, False)
    model_class = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    model_class.set_vocab = without_tokenizer
    # Gemma's reads how many tokens there are.
    tokens = {str(i): i for i in range(hparams["vocab_size"])}
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(json.dumps({"model": {"vocab": tokens}, "added_tokens": []}))
    with torch.inference_mode():
        model_class(folder, gguf.LlamaFileType.ALL_F32, file).write()
    tokenizer.unlink()


main()
