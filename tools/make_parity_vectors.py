#!/usr/bin/env python3
"""Records the results of PyTorch for small models of each family, for tests/test_parity.c.

    python3 tools/make_parity_vectors.py tests/data          (needs torch and transformers)

Each model is that of the transformers library with random weights. So the comparison is with an independent implementation, not with
a second reading of the paper by the same author. A file parity_NAME.bin holds, under the names that Nebula-I uses: the weights, the packed batch, the logits, the loss, the gradient of every parameter and the losses of 20 AdamW steps.

File: "NEBVEC1\n", then entries up to the end of the file, all little-endian:
    u16 length of the name, the name, u8 type (0: float32, 1: int32), u8 dimensions, u32 each dimension, the values.
"""
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F
import transformers as tf

STEPS, LR, DECAY, CLIP = 20, 2e-3, 0.01, 1.0


class Writer:
    def __init__(self, path):
        self.f = open(path, "wb")
        self.f.write(b"NEBVEC1\n")

    def put(self, name, x):
        x = x.detach().cpu().numpy() if torch.is_tensor(x) else np.asarray(x)
        kind = 1 if np.issubdtype(x.dtype, np.integer) else 0
        x = np.ascontiguousarray(x, dtype="<i4" if kind else "<f4")
        shape = x.shape or (1,)
        self.f.write(struct.pack("<H", len(name)) + name.encode() + struct.pack("<BB", kind, len(shape)))
        self.f.write(struct.pack("<%dI" % len(shape), *shape) + x.tobytes())


def cat(*names):
    """One parameter of ours that stacks several of theirs."""
    return lambda p: torch.cat([p[n] for n in names])


def one(name):
    return lambda p: p[name]


def turned(name):
    """Conv1D of GPT-2 stores (in, out)."""
    return lambda p: p[name].t()


def linear(ours, theirs, out, bias=True):
    out[ours + ".weight"] = one(theirs + ".weight")
    if bias:
        out[ours + ".bias"] = one(theirs + ".bias")


def qkv(ours, theirs, out, parts, bias=True):
    for kind in ["weight", "bias"] if bias else ["weight"]:
        out[f"{ours}.{kind}"] = cat(*[f"{theirs}.{p}.{kind}" for p in parts])


def bert_stack(m, root, layers):
    for ours, theirs in [("position", "position_embeddings"), ("type", "token_type_embeddings")]:
        m[f"encoder.embed.{ours}.weight"] = one(f"{root}.embeddings.{theirs}.weight")
    m["embed.token.weight"] = one(f"{root}.embeddings.word_embeddings.weight")
    linear("encoder.embed.norm", f"{root}.embeddings.LayerNorm", m)
    for i in range(layers):
        a, b = f"encoder.layers.{i}", f"{root}.encoder.layer.{i}"
        qkv(f"{a}.attention.qkv", f"{b}.attention.self", m, ["query", "key", "value"])
        linear(f"{a}.attention.out", f"{b}.attention.output.dense", m)
        linear(f"{a}.attention.norm", f"{b}.attention.output.LayerNorm", m)
        linear(f"{a}.ffn.in", f"{b}.intermediate.dense", m)
        linear(f"{a}.ffn.out", f"{b}.output.dense", m)
        linear(f"{a}.ffn.norm", f"{b}.output.LayerNorm", m)


def bert():
    c = tf.BertConfig(vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48,
                      max_position_embeddings=16, type_vocab_size=2, hidden_dropout_prob=0,
                      attention_probs_dropout_prob=0, attn_implementation="eager")
    m = {}
    bert_stack(m, "bert", 2)
    linear("head.transform", "cls.predictions.transform.dense", m)
    linear("head.norm", "cls.predictions.transform.LayerNorm", m)
    m["head.bias"] = one("cls.predictions.bias")
    return tf.BertForMaskedLM(c), m


def electra():
    c = tf.ElectraConfig(vocab_size=61, embedding_size=12, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
                         intermediate_size=48, max_position_embeddings=16, hidden_dropout_prob=0,
                         attention_probs_dropout_prob=0, attn_implementation="eager")
    m = {}
    bert_stack(m, "electra", 2)
    linear("encoder.embed.project", "electra.embeddings_project", m)
    linear("head.pool", "discriminator_predictions.dense", m)
    linear("head.out", "discriminator_predictions.dense_prediction", m)
    return tf.ElectraForPreTraining(c), m


def gpt2():
    c = tf.GPT2Config(vocab_size=61, n_embd=24, n_layer=2, n_head=3, n_inner=48, n_positions=16, resid_pdrop=0,
                      embd_pdrop=0, attn_pdrop=0, attn_implementation="eager")
    m = {"embed.token.weight": one("transformer.wte.weight"),
         "decoder.embed.position.weight": one("transformer.wpe.weight")}
    for i in range(2):
        a, b = f"decoder.layers.{i}", f"transformer.h.{i}"
        for ours, theirs in [("attention.qkv", "attn.c_attn"), ("attention.out", "attn.c_proj"),
                             ("ffn.in", "mlp.c_fc"), ("ffn.out", "mlp.c_proj")]:
            m[f"{a}.{ours}.weight"] = turned(f"{b}.{theirs}.weight")
            m[f"{a}.{ours}.bias"] = one(f"{b}.{theirs}.bias")
        linear(f"{a}.attention.norm", f"{b}.ln_1", m)
        linear(f"{a}.ffn.norm", f"{b}.ln_2", m)
    linear("decoder.norm", "transformer.ln_f", m)
    return tf.GPT2LMHeadModel(c), m


def llama():
    c = tf.LlamaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                       num_key_value_heads=2, intermediate_size=40, max_position_embeddings=16, rms_norm_eps=1e-5,
                       tie_word_embeddings=False, attn_implementation="eager")
    m = {"embed.token.weight": one("model.embed_tokens.weight"), "decoder.norm.weight": one("model.norm.weight"),
         "head.weight": one("lm_head.weight")}
    for i in range(2):
        a, b = f"decoder.layers.{i}", f"model.layers.{i}"
        qkv(f"{a}.attention.qkv", f"{b}.self_attn", m, ["q_proj", "k_proj", "v_proj"], bias=False)
        linear(f"{a}.attention.out", f"{b}.self_attn.o_proj", m, bias=False)
        m[f"{a}.attention.norm.weight"] = one(f"{b}.input_layernorm.weight")
        m[f"{a}.ffn.norm.weight"] = one(f"{b}.post_attention_layernorm.weight")
        m[f"{a}.ffn.in.weight"] = cat(f"{b}.mlp.gate_proj.weight", f"{b}.mlp.up_proj.weight")
        linear(f"{a}.ffn.out", f"{b}.mlp.down_proj", m, bias=False)
    return tf.LlamaForCausalLM(c), m


def marian():
    c = tf.MarianConfig(vocab_size=61, d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3,
                        decoder_attention_heads=3, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=16,
                        activation_function="swish", dropout=0, attention_dropout=0, activation_dropout=0,
                        scale_embedding=True, pad_token_id=0, eos_token_id=1, bos_token_id=2,
                        decoder_start_token_id=2, attn_implementation="eager")
    m = {"embed.token.weight": one("model.shared.weight")}
    for side in ["encoder", "decoder"]:
        for i in range(2):
            a, b = f"{side}.layers.{i}", f"model.{side}.layers.{i}"
            qkv(f"{a}.attention.qkv", f"{b}.self_attn", m, ["q_proj", "k_proj", "v_proj"])
            linear(f"{a}.attention.out", f"{b}.self_attn.out_proj", m)
            linear(f"{a}.attention.norm", f"{b}.self_attn_layer_norm", m)
            if side == "decoder":
                linear(f"{a}.cross.q", f"{b}.encoder_attn.q_proj", m)
                qkv(f"{a}.cross.kv", f"{b}.encoder_attn", m, ["k_proj", "v_proj"])
                linear(f"{a}.cross.out", f"{b}.encoder_attn.out_proj", m)
                linear(f"{a}.cross.norm", f"{b}.encoder_attn_layer_norm", m)
            linear(f"{a}.ffn.in", f"{b}.fc1", m)
            linear(f"{a}.ffn.out", f"{b}.fc2", m)
            linear(f"{a}.ffn.norm", f"{b}.final_layer_norm", m)
    return tf.MarianMTModel(c), m


def sequences(lengths, rng):
    return [torch.tensor(rng.integers(3, 61, n)) for n in lengths]


def padded(rows):
    ids = torch.zeros(len(rows), max(len(r) for r in rows), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, r in enumerate(rows):
        ids[i, :len(r)] = r
        mask[i, :len(r)] = 1
    return ids, mask


def side(w, name, rows, types=None):
    starts = np.cumsum([0] + [len(r) for r in rows])
    w.put(name + ".ids", torch.cat(rows).int())
    w.put(name + ".position", np.concatenate([np.arange(len(r)) for r in rows]).astype(np.int32))
    w.put(name + ".starts", starts.astype(np.int32))
    w.put(name + ".type", (types if types is not None else torch.zeros(int(starts[-1]))).int())


def record(path, name, make, seed):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model, names = make()
    with torch.no_grad():  # initial biases of 0 and norms of 1 would hide mistakes
        for n, p in model.named_parameters():
            if "embed_positions" in n:  # computed, not learned
                p.requires_grad_(False)
            elif p.dim() == 1:
                p.add_(0.1 * torch.randn_like(p))
            else:
                p.mul_(5)
    model.train()
    w = Writer(f"{path}/parity_{name}.bin")
    source = sequences([7, 1, 12, 5], rng)
    ids, mask = padded(source)
    keep = mask.bool()
    types = torch.cat([(torch.arange(len(r)) > len(r) // 2).long() for r in source])
    kind = name
    if kind in ("bert", "electra"):
        type_ids = torch.zeros_like(ids)
        type_ids[keep] = types
        side(w, "source", source, types)
        call = dict(input_ids=ids, attention_mask=mask, token_type_ids=type_ids)
    elif kind == "marian":
        target = sequences([6, 3, 2, 9], rng)
        target = [torch.cat([torch.tensor([2]), r[1:]]) for r in target]
        dec, dec_mask = padded(target)
        side(w, "source", source)
        side(w, "target", target)
        call = dict(input_ids=ids, attention_mask=mask, decoder_input_ids=dec, decoder_attention_mask=dec_mask)
        keep = dec_mask.bool()
    else:
        side(w, "source", source)
        call = dict(input_ids=ids, attention_mask=mask)
    n = int(keep.sum())
    if kind == "electra":
        labels = torch.tensor(rng.integers(0, 2, n))
        rows = torch.arange(n)
    elif kind == "bert":
        rows = torch.tensor(sorted(rng.choice(n, 6, replace=False)))
        labels = torch.tensor(rng.integers(3, 61, 6))
    else:
        rows = torch.arange(n)
        labels = torch.tensor(rng.integers(3, 61, n))
    smoothing = 0.1 if kind == "marian" else 0.0
    w.put("rows", rows.int())
    w.put("labels", labels.int())

    def loss_of():
        logits = model(**call).logits[keep][rows]
        if kind == "electra":
            return logits, F.binary_cross_entropy_with_logits(logits, labels.float())
        return logits, F.cross_entropy(logits, labels, label_smoothing=smoothing)

    params = dict(model.named_parameters())
    used = set()

    class Spy(dict):
        def __getitem__(self, k):
            used.add(k)
            return params[k]

    for ours, get in names.items():
        w.put("weight:" + ours, get(Spy()))
    left = [n for n in params if n not in used and "embed_positions" not in n]
    assert not left, left
    logits, loss = loss_of()
    loss.backward()
    w.put("logits", logits.reshape(len(rows), -1))
    w.put("loss", np.float32(loss.item()))
    grads = {n: p.grad for n, p in params.items()}
    for ours, get in names.items():
        w.put("grad:" + ours, get(grads))
    groups = [dict(params=[p for p in params.values() if p.dim() > 1 and p.requires_grad], weight_decay=DECAY),
              dict(params=[p for p in params.values() if p.dim() == 1], weight_decay=0.0)]
    opt = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.999), eps=1e-8)
    losses = []
    for _ in range(STEPS):
        opt.zero_grad()
        loss = loss_of()[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        opt.step()
        losses.append(loss.item())
    w.put("losses", np.array(losses, dtype=np.float32))
    print(f"{name}: loss {losses[0]:.5f} -> {losses[-1]:.5f}")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    path = sys.argv[1] if len(sys.argv) > 1 else "tests/data"
    for seed, make in enumerate([bert, electra, gpt2, llama, marian], 1):
        record(path, make.__name__, make, seed)


if __name__ == "__main__":
    main()
