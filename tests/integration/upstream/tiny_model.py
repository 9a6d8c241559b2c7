"""Writes a language model of random weights that llama.cpp can serve: half a megabyte, nonsense, and fast."""

from pathlib import Path

import gguf
import numpy as np

WORDS = [
    "the",
    "lane",
    "is",
    "fair",
    "and",
    "a",
    "queue",
    "waits",
    "for",
    "its",
    "turn",
    "while",
    "tokens",
    "flow",
]
WIDTH = 64
LAYERS = 2
HEADS = 4
INNER = 128
CONTEXT = 32_768


def write_model(path: Path) -> None:
    """A model in llama's shape, the same at every call. It never says its end token, so it talks until it is stopped."""
    random = np.random.default_rng(7)
    tokens, kinds, special = _vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(place) for place in range(len(tokens))])
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def matrix(name: str, rows: int, columns: int, scale: float) -> None:
        writer.add_tensor(name, (random.standard_normal((rows, columns)) * scale).astype(np.float32))

    def ones(name: str) -> None:
        writer.add_tensor(name, np.ones(WIDTH, np.float32))

    matrix("token_embd.weight", len(tokens), WIDTH, 1.0)
    output = (random.standard_normal((len(tokens), WIDTH)) * 0.5).astype(np.float32)
    output[:special] = 0  # control and byte tokens lose against the best of the others
    writer.add_tensor("output.weight", output)
    ones("output_norm.weight")
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        ones(f"{block}attn_norm.weight")
        ones(f"{block}ffn_norm.weight")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"{block}{name}.weight", WIDTH, WIDTH, WIDTH**-0.5)
        matrix(f"{block}ffn_gate.weight", INNER, WIDTH, WIDTH**-0.5)
        matrix(f"{block}ffn_up.weight", INNER, WIDTH, WIDTH**-0.5)
        matrix(f"{block}ffn_down.weight", WIDTH, INNER, INNER**-0.5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _vocabulary() -> tuple[list[str], list[int], int]:
    """Tokens, their kinds, and how many of them, from the first, are no text: control tokens and bytes."""
    control = ["<unk>", "<s>", "</s>"]
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    text = [f"▁{word}" for word in WORDS] + [chr(code) for code in range(33, 127)] + ["▁"]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * len(raw) + [gguf.TokenType.NORMAL] * len(text)
    return control + raw + text, [int(kind) for kind in kinds], len(control) + len(raw)
