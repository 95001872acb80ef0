"""Writes a model of random weights, half a megabyte, for llama.cpp's server: tiny_gguf.py OUT.gguf

Its tokens are a few marks, the 256 bytes and the printable letters of ASCII: any text can be read, and each token that
is written is a letter. The weights come from a fixed seed: the file is the same each time.
"""

import sys

import gguf
import numpy as np

WIDTH, LAYERS, HEADS, INNER, CONTEXT = 64, 2, 4, 128, 2048
MARKS = ["<unk>", "<s>", "</s>"]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tokens():
    """Tokens, scores and types as SentencePiece has them: marks, a token for each byte, printable letters."""
    letters = [chr(code) for code in range(0x21, 0x7F)] + ["\u2581"]
    names = MARKS + [f"<0x{byte:02X}>" for byte in range(256)] + letters
    scores = [0.0] * (len(MARKS) + 256) + [-float(place) for place, _ in enumerate(letters, 1)]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * len(letters)
    return names, scores, kinds


def describe(writer, names, scores, kinds):
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(names))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(names)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)


def weigh(writer, vocabulary):
    random = np.random.default_rng(5)

    def matrix(name, *shape):
        writer.add_tensor(name, random.normal(0, 0.3, shape).astype(np.float32))

    def ones(name):
        writer.add_tensor(name, np.ones(WIDTH, dtype=np.float32))

    matrix("token_embd.weight", vocabulary, WIDTH)
    ones("output_norm.weight")
    # What is no letter gets nothing, and among the likely ones are letters only: a text that never ends by itself.
    output = random.normal(0, 0.3, (vocabulary, WIDTH)).astype(np.float32)
    output[: len(MARKS) + 256] = 0
    writer.add_tensor("output.weight", output)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        ones(f"{block}.attn_norm.weight")
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"{block}.{part}.weight", WIDTH, WIDTH)
        ones(f"{block}.ffn_norm.weight")
        matrix(f"{block}.ffn_gate.weight", INNER, WIDTH)
        matrix(f"{block}.ffn_up.weight", INNER, WIDTH)
        matrix(f"{block}.ffn_down.weight", WIDTH, INNER)


def main():
    names, scores, kinds = tokens()
    writer = gguf.GGUFWriter(sys.argv[1], "llama")
    describe(writer, names, scores, kinds)
    weigh(writer, len(names))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
