"""Writes a tiny llama-architecture model with random weights, for a real engine without a download.

Usage: make_model.py FILE [WIDTH]

Not a language model: it says word salad. But every weight comes from one seed, so at temperature 0
the same prompt yields the same text on every machine of one kind, and that is what the tests
compare. Two layers of 64 wide keep it near half a megabyte and at thousands of tokens per second
on one thread. Wider ones are for measurements, which want tokens that take time.
"""

import os
import sys

import gguf
import numpy

SEED = 20
WIDTH, LAYERS, HEADS, KV_HEADS = 64, 2, 4, 2
CONTEXT = 131072
END_OF_TEXT = 2
WORDS = """a able about all an and any are as at away be been before between but by came can change
city cold could day did do down each early end even every far few find first for from get give go
good great had has have he her here him his home house how if in into is it its just know land last
left line little long look made make man many may me might more most much must my near never new
next night no not now of off old on one only or other our out over own part people place right road
said same say see she so some station still such take than that the their them then there they
thing this those time to train track two under until up us very was water way we well went were
what when where which while who will with work would year you your""".split()


def vocabulary():
    """Tokens, scores and types of a sentencepiece vocabulary with byte fallback."""
    kind = gguf.TokenType
    entries = [(b"<unk>", 0.0, kind.UNKNOWN), (b"<s>", 0.0, kind.CONTROL)]
    entries.append((b"</s>", 0.0, kind.CONTROL))
    entries += [(f"<0x{byte:02X}>".encode(), 0.0, kind.BYTE) for byte in range(256)]
    pieces = [chr(code) for code in range(33, 127)] + ["\u2581"]
    pieces += ["\u2581" + word for word in WORDS]
    for rank, piece in enumerate(dict.fromkeys(pieces)):
        token = piece.encode()
        if all(token != known for known, _, _ in entries):
            entries.append((token, -1.0 - rank, kind.NORMAL))
    return entries


def write(path, width):
    """Writes the model to `path`, whole or not at all."""
    feed = width * 5 // 2
    entries = vocabulary()
    rng = numpy.random.default_rng(SEED)
    unfinished = f"{path}.{os.getpid()}.unfinished"
    out = gguf.GGUFWriter(unfinished, "llama")
    out.add_name("tiny")
    out.add_context_length(CONTEXT)
    out.add_embedding_length(width)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(feed)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_rope_dimension_count(width // HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(len(entries))
    out.add_file_type(0)
    out.add_tokenizer_model("llama")
    out.add_token_list([token for token, _, _ in entries])
    out.add_token_scores([score for _, score, _ in entries])
    out.add_token_types([int(kind) for _, _, kind in entries])
    out.add_unk_token_id(0)
    out.add_bos_token_id(1)
    out.add_eos_token_id(END_OF_TEXT)
    out.add_add_bos_token(True)
    out.add_add_space_prefix(True)
    out.add_chat_template(
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    )

    def tensor(name, values):
        out.add_tensor(name, values.astype(numpy.float32))

    def normal(*shape, scale=0.3):
        return rng.normal(0.0, scale, shape)

    tensor("token_embd.weight", normal(len(entries), width, scale=1.0))
    tensor("output_norm.weight", numpy.ones(width))
    output = normal(len(entries), width)
    # Control tokens and bare bytes are made unlikely: an answer should end by `max_tokens`, and
    # be printable.
    output[:3] = 0.0
    output[3:259] *= 0.05
    tensor("output.weight", output)
    kv_width = width // HEADS * KV_HEADS
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        tensor(block + "attn_norm.weight", numpy.ones(width))
        tensor(block + "attn_q.weight", normal(width, width))
        tensor(block + "attn_k.weight", normal(kv_width, width))
        tensor(block + "attn_v.weight", normal(kv_width, width))
        tensor(block + "attn_output.weight", normal(width, width))
        tensor(block + "ffn_norm.weight", numpy.ones(width))
        tensor(block + "ffn_gate.weight", normal(feed, width))
        tensor(block + "ffn_up.weight", normal(feed, width))
        tensor(block + "ffn_down.weight", normal(width, feed))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    os.replace(unfinished, path)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: make_model.py FILE [WIDTH]")
    write(sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else WIDTH)
