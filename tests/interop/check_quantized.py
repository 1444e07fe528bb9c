"""GGUF files in each of llama.cpp's quantizations that attnres reads, as llama.cpp makes them.

usage: python check_quantized.py        (ATTNRES=PROGRAM; build/attnres if not set)

Of each file: log-probabilities of the numbers that it stands for, as the gguf package reads them,
in llama.cpp, against attnres's on the file; and with both programs' integer products. Then files
that attnres quantized: the same types for the same tensors, and no larger errors.
"""

import json

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize
from interop import Report, attnres, randomize, score, token_ids
from llama_cpp import build, quantize, score_in_llama_cpp

# llama.h's numbers.
TYPES = {
    "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12,
    "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25,
    "IQ4_XS": 30, "MXFP4_MOE": 38,
}  # fmt: skip
OURS = ("q8_0", "q4_k_s", "q4_k_m", "q5_k_m", "q6_k")
LLAMA = {"layers": 9, "width": 256, "heads": 4, "kv_heads": 2, "ffn_width": 512}
KIMI_K3 = {
    "layers": 4, "width": 256, "heads": 4, "ffn_width": 512, "norm_eps": 1e-6,
    "attention": ["delta", "delta", "delta", "latent"],
    "delta_attention": {"head_width": 64, "output_gate": "full_rank", "gate_lower_bound": -5.0},
    "latent_attention": {"kv_rank": 256, "key_width": 32, "shared_key_width": 16, "value_width": 64,
                         "q_rank": 256, "output_gate": True},
    "experts": {"count": 4, "chosen": 2, "width": 256, "scaling": 2.446, "latent_width": 256},
    "activation": {"type": "situ"},
    "depth_mixing": {"type": "block_attn_res", "block_size": 2},
}  # fmt: skip
# Of the same numbers: float32, which depth attention amplifies. With integer products both programs
# round what they multiply, llama.cpp to a scale for each 256 numbers and attnres for each 32: on
# average over tokens, beside what the quantization itself changes.
BOUNDS = {"llama": 1e-4, "kimi-k3": 1e-3}
OF_ROUNDING = 0.5
FEW = 24  # tokens, of which attnres multiplies with the packed numbers


def write_numbers(file, out):
    """The file with all tensors in float32, as the gguf package reads them."""
    reader = GGUFReader(file)
    writer = GGUFWriter(out, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind, inner = field.types[0], field.types[-1]
        # Ids are given: merges, of which there are none, matter only in being there.
        value = field.contents() or ["a b"] if name.endswith("merges") else field.contents()
        writer.add_key_value(name, value, kind, inner if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, numbers_of(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def numbers_of(tensor):
    numbers = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    return numbers.reshape([int(size) for size in reversed(tensor.shape)])


def tensors_of(file):
    return {tensor.name: tensor for tensor in GGUFReader(file).tensors}


def check_reading(report, what, exact, ids):
    for name, number in TYPES.items():
        file = quantize(exact, report.folder / f"{what}-{name}.gguf", number)
        kinds = {t.tensor_type.name for t in GGUFReader(file).tensors if len(t.shape) > 1}
        title = f"{what} as {name} ({', '.join(sorted(kinds))})"
        numbers = score_in_llama_cpp(write_numbers(file, report.folder / "numbers.gguf"), ids)
        ours = score(file, ids, "--weights", "f32")
        report.compare(f"{title}, its numbers", ours, numbers, BOUNDS[what])
        change = np.abs(numbers - score_in_llama_cpp(exact, ids)).mean()
        few, known = ids[:, :FEW], numbers[:, : FEW - 1]
        as_stored = np.abs(score(file, few) - known).mean()
        theirs = np.abs(score_in_llama_cpp(file, few) - known).mean()
        report.line(
            as_stored <= max(OF_ROUNDING * change, 2 * theirs),
            f"{title}, products in whole numbers: {as_stored:.1e} on average from its numbers' "
            f"({theirs:.1e} in llama.cpp, which changed by {change:.1e} in quantizing)",
        )
        file.unlink()


def error_of(tensor, exact):
    numbers = numbers_of(tensor)
    return float(np.square(numbers - numbers_of(exact)).mean())


def check_writing(report, what, folder, exact):
    originals = tensors_of(exact)
    for kind in OURS:
        out = report.folder / f"{what}-{kind}.gguf"
        attnres("export", "--model", folder, "--format", "gguf", "--type", kind, "--out", out)
        ours = tensors_of(out)
        theirs = tensors_of(quantize(exact, report.folder / "theirs.gguf", TYPES[kind.upper()]))
        types = {name: tensor.tensor_type.name for name, tensor in ours.items()}
        report.equal(f"{what} as {kind}: the types of its tensors", types,
                     {name: tensor.tensor_type.name for name, tensor in theirs.items()})  # fmt: skip
        worst = max(
            (error_of(ours[name], originals[name]) / error_of(tensor, originals[name]), name)
            for name, tensor in theirs.items()
            if tensor.tensor_type not in (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
        )
        report.line(worst[0] < 1.05,
                    f"{what} as {kind}: squared errors are at most {worst[0]:.3f} times llama.cpp's "
                    f"({worst[1]})")  # fmt: skip


def make_model(report, what, model):
    folder = report.folder / what
    folder.mkdir()
    recipe = folder / "recipe.json"
    recipe.write_text(json.dumps({"name": what, "model": model, "train": {"steps": 1, "context": 128}}))
    text = folder / "text.txt"
    text.write_text("Rows of numbers, a scale for each few of them. " * 400)
    attnres("train", "--recipe", recipe, "--data", text, "--out", folder / "run")
    last = folder / "run" / "checkpoints" / "last"
    randomize(last)
    return last


def main():
    build()
    report = Report()
    for what, model in (("llama", LLAMA), ("kimi-k3", KIMI_K3)):
        folder = make_model(report, what, model)
        exact = report.folder / f"{what}.gguf"
        attnres("export", "--model", folder, "--format", "gguf", "--out", exact)
        ids = token_ids(len(GGUFReader(exact).fields["tokenizer.ggml.tokens"].data))
        check_reading(report, what, exact, ids)
        check_writing(report, what, folder, exact)
    report.finish()


if __name__ == "__main__":
    main()
