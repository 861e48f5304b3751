#!/usr/bin/env python3
"""Compares beam-search translation of Nebula-I with PyTorch's, with the same weights, in one call.

    bench/vs_torch_generate.py --nebula build/release/nebula-i --model FOLDER --text FILE --device cuda

FOLDER is a translation model as training leaves it (post-norm, sinusoidal positions, ReLU, as examples/multi30k.yaml). FILE has the
source sentences, one a line. Both sides translate the file twice. The second time counts, because kernels are chosen and recorded
by then. Both sort by length and translate `--batch` sentences at a time with `--beams` beams. The search is the same: 2 * beams
candidates a step, scores divided by length; a sentence is done when `beams` sequences have ended, none can still win, or it has 2 *
its source + 16 tokens. So both stop at the same lengths, and the share of equal translations is printed. Nebula-I's time is that of
`translate` from text to text. PyTorch's time begins and ends with token ids.

PyTorch keeps keys and values in a static cache and treats the beams of a sentence as queries of one cross attention. It searches on
the device; the host only asks at every fourth step whether all are done. It is measured eager and, on a GPU, as CUDA graphs of the
whole step with the search. torch.compile makes the step first for the types that --compile names. The decoder attends with
scaled_dot_product_attention or, as another way, with two products and a softmax (`plain`). The size decides which is faster for the
one query of a beam.
"""
import argparse, itertools, json, math, os, re, struct, subprocess, sys, tempfile, time

import numpy as np
import torch
import torch._dynamo
import torch.nn.functional as F


def read_model(folder):
    """Options of model.yaml and the tensors of model.safetensors."""
    text = open(os.path.join(folder, "model.yaml")).read()
    options = dict(re.findall(r'^\s+(\w+): "?([^"\n]*)"?$', text, re.M))
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    tensors = {}
    for name, t in head.items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            tensors[name] = torch.from_numpy(np.frombuffer(data[a:b], np.float32).reshape(t["shape"]).copy())
    for key, want in (("kind", "encoder-decoder"), ("norm_place", "post"), ("positions", "sinusoidal"), ("activation", "relu")):
        if options.get(key) != want:
            sys.exit(f"{folder}: {key} is {options.get(key)}; this comparison only knows {want}")
    return options, tensors


def fields(message):
    """(number, value) of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        x = shift = 0
        while True:
            b = message[at]
            at += 1
            x |= (b & 127) << shift
            shift += 7
            if b < 128:
                return x
    while at < len(message):
        tag = varint()
        kind = tag & 7
        if kind == 0:
            yield tag >> 3, varint()
            continue
        n = varint() if kind == 2 else 8 if kind == 1 else 4
        yield tag >> 3, message[at:at + n]
        at += n


def read_pieces(folder):
    """The vocabulary of a SentencePiece model, by id."""
    pieces = []
    for number, value in fields(open(os.path.join(folder, "tokenizer.model"), "rb").read()):
        if number == 1:
            pieces.append(next(v for n, v in fields(value) if n == 1).decode())
    return pieces


def tokenise(nebula, folder, text, work):
    """Token ids of every line, made by nebula-i itself."""
    out = os.path.join(work, "set")
    run([nebula, "corpus", "tokenise", "--lang", "en", "--tokenizer", os.path.join(folder, "tokenizer.model"), "--out", out, text])
    lines = []
    for name in sorted(n for n in os.listdir(out) if n.endswith(".tok")):
        raw = open(os.path.join(out, name), "rb").read()
        sides, width = struct.unpack_from("<HH", raw, 12)
        samples, tokens = struct.unpack_from("<QQ", raw, 24)
        ids = np.frombuffer(raw, np.uint16 if width == 2 else np.uint32, tokens, 128).astype(np.int64)
        index = np.frombuffer(raw, np.uint32, samples * sides + 1, 128 + (tokens * width + 3) // 4 * 4)
        lines += [ids[index[i]:index[i + 1]] for i in range(0, samples * sides, sides)]
    return lines


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done


def plain_attention(q, k, v, seen):
    score = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    return torch.softmax(score.masked_fill(~seen, -math.inf), -1).to(v.dtype) @ v


class Net:
    def __init__(self, options, tensors, device, dtype):
        self.attend = F.scaled_dot_product_attention  # of the decoder
        self.w = {k: v.to(device, dtype) for k, v in tensors.items()}
        self.heads, self.d = int(options.get("heads", 4)), int(options["hidden"])
        self.layers = [sum(f"{s}.layers.{i}.ffn.in.weight" in tensors for i in range(100)) for s in ("encoder", "decoder")]
        self.eps = float(options.get("norm_eps", 1e-5))
        self.scale = math.sqrt(self.d) if options.get("embedding_scale") == "yes" else 1.0
        self.output = self.w.get("head.weight", self.w["embed.token.weight"])
        self.bias = self.w.get("head.bias")

    def lin(self, x, name):
        return F.linear(x, self.w[name + ".weight"], self.w.get(name + ".bias"))

    def norm(self, x, name):
        return F.layer_norm(x, (self.d,), self.w[name + ".weight"], self.w[name + ".bias"], self.eps)

    def split(self, x, parts):  # (B, T, parts * d) to parts of (B, heads, T, d / heads)
        return x.view(*x.shape[:2], parts, self.heads, self.d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)

    def join(self, x):
        return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], self.d)

    def ffn(self, x, name):
        return self.norm(x + self.lin(F.relu(self.lin(x, name + ".ffn.in")), name + ".ffn.out"), name + ".ffn.norm")

    def encode(self, ids, there):
        x = self.w["embed.token.weight"][ids] * self.scale + self.w["encoder.embed.sinusoid.weight"][:ids.shape[1]]
        for i in range(self.layers[0]):
            n = f"encoder.layers.{i}"
            q, k, v = self.split(self.lin(x, n + ".attention.qkv"), 3)
            y = F.scaled_dot_product_attention(q, k, v, there[:, None, None])
            x = self.norm(x + self.lin(self.join(y), n + ".attention.out"), n + ".attention.norm")
            x = self.ffn(x, n)
        return [self.split(self.lin(x, f"decoder.layers.{i}.cross.kv"), 2) for i in range(self.layers[1])]

    def decode(self, ids, t, seen, cache, cross, there, sentences):
        """Logits after one more token of every beam. cache: (layers, 2, beams in all, heads, length, d / heads)."""
        x = (self.w["embed.token.weight"][ids] * self.scale + self.w["decoder.embed.sinusoid.weight"][t])[:, None]
        for i in range(self.layers[1]):
            n = f"decoder.layers.{i}"
            q, k, v = self.split(self.lin(x, n + ".attention.qkv"), 3)
            cache[i, 0].index_copy_(2, t, k)
            cache[i, 1].index_copy_(2, t, v)
            y = self.attend(q, cache[i, 0], cache[i, 1], seen)
            x = self.norm(x + self.lin(self.join(y), n + ".attention.out"), n + ".attention.norm")
            q = self.split(self.lin(x, n + ".cross.q").view(sentences, -1, self.d), 1)[0]
            y = self.join(self.attend(q, *cross[i], there)).view(-1, 1, self.d)
            x = self.norm(x + self.lin(y, n + ".cross.out"), n + ".cross.norm")
            x = self.ffn(x, n)
        return F.linear(x[:, 0], self.output, self.bias)


class Search:
    """Beam search of one shape: sentences, longest source, longest result. Everything stays on the device."""

    def __init__(self, net, a, sentences, source, longest, bos, eos, compiled, graph):
        self.net, self.B, self.K, self.longest, self.bos, self.eos = net, sentences, a.beams, longest, bos, eos
        dev, dtype = net.output.device, net.output.dtype
        B, K = sentences, a.beams
        hd = net.d // net.heads
        self.cache = torch.zeros(net.layers[1], 2, B * K, net.heads, longest, hd, device=dev, dtype=dtype)
        self.cross = [tuple(torch.zeros(B, net.heads, source, hd, device=dev, dtype=dtype) for _ in range(2))
                      for _ in range(net.layers[1])]
        self.there = torch.zeros(B, 1, 1, source, device=dev, dtype=torch.bool)
        self.ids = torch.zeros(B * K, device=dev, dtype=torch.long)
        self.t = torch.zeros(1, device=dev, dtype=torch.long)
        self.tokens = torch.zeros(B, K, longest, device=dev, dtype=torch.long)
        self.score = torch.zeros(B, K, device=dev)
        self.best = torch.zeros(B, device=dev)
        self.best_tokens = torch.zeros(B, longest, device=dev, dtype=torch.long)
        self.best_len = torch.zeros(B, device=dev, dtype=torch.long)
        self.ended = torch.zeros(B, device=dev, dtype=torch.long)
        self.done = torch.zeros(B, device=dev, dtype=torch.bool)
        self.limit = torch.ones(B, device=dev)
        self.offset = (torch.arange(B, device=dev) * K)[:, None]
        self.places = torch.arange(longest, device=dev)
        self.order = torch.arange(2 * K, device=dev)
        self.first = torch.full((K,), -math.inf, device=dev)
        self.first[0] = 0
        self.run = torch.compile(self.step, dynamic=False) if compiled else self.step
        self.graph = None
        self.want_graph = graph

    def step(self):
        B, K, t = self.B, self.K, self.t
        logits = self.net.decode(self.ids, t, (self.places <= t)[None, None, None], self.cache, self.cross, self.there, B)
        score = torch.log_softmax(logits.float(), -1).view(B, K, -1) + self.score[:, :, None]
        vocab = score.shape[-1]
        top, at = score.view(B, -1).topk(2 * K)
        beam, token = at // vocab, at % vocab
        ends = token == self.eos
        before = (~ends).long().cumsum(1) - (~ends).long()
        ends_now = ends & (before < K)
        final = torch.where(ends_now, top / (t + 1), torch.full_like(top, -math.inf))
        value, which = final.max(1)
        better = (value > self.best) & ~self.done
        winner = self.tokens.gather(1, beam.gather(1, which[:, None])[:, :, None].expand(-1, -1, self.longest))[:, 0]
        self.best_tokens.copy_(torch.where(better[:, None], winner, self.best_tokens))
        self.best_len.copy_(torch.where(better, t, self.best_len))
        self.best.copy_(torch.where(better, value, self.best))
        self.ended.add_(torch.where(self.done, 0, ends_now.sum(1)))
        keep = (self.order + ends * 4 * K).argsort(1)[:, :K]
        beam, token = beam.gather(1, keep), token.gather(1, keep)
        self.score.copy_(top.gather(1, keep))
        moved = self.tokens.gather(1, beam[:, :, None].expand(-1, -1, self.longest))
        self.tokens.copy_(torch.where(self.places == t, token[:, :, None], moved))
        self.ids.copy_(token.view(-1))
        self.cache.copy_(self.cache.index_select(2, (beam + self.offset).view(-1)))
        reach = self.score[:, 0] / self.limit
        self.done.logical_or_((self.ended >= K) | (reach <= self.best))
        last = (t + 1 >= self.limit) & ~self.done  # at its longest: a sequence that has not ended wins as it is
        self.best_tokens.copy_(torch.where(last[:, None], self.tokens[:, 0], self.best_tokens))
        self.best_len.copy_(torch.where(last, t + 1, self.best_len))
        self.done.logical_or_(last)
        self.t.add_(1)

    def start(self, cross, there, limits):
        for mine, new in zip(self.cross, cross):
            for x, y in zip(mine, new):
                x[:, :, :y.shape[2]].copy_(y)
        self.there.zero_()
        self.there[..., :there.shape[1]].copy_(there[:, None, None])
        self.limit.fill_(1)
        self.limit[:len(limits)].copy_(limits)
        self.ids.fill_(self.bos)
        self.t.zero_()
        self.score.copy_(self.first.expand(self.B, -1))
        self.best.fill_(-math.inf)
        self.best_len.zero_()
        self.ended.zero_()
        self.done.zero_()

    def record(self):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.run()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.run()

    def search(self, cross, there, limits):
        """limits: the most tokens of each sentence's translation."""
        most = max(limits)
        limits = torch.tensor(limits, dtype=torch.float32).to(self.limit.device)
        if self.want_graph and self.graph is None:
            self.start(cross, there, limits)
            self.record()
        self.start(cross, there, limits)
        for i in range(most):
            self.graph.replay() if self.graph else self.run()
            if i % 4 == 3 and bool(self.done.all()):
                break
        return self.best_tokens.cpu().numpy().copy(), self.best_len.cpu().numpy().copy()  # the CPU's are ours


def torch_file(net, a, lines, bos, eos, searches, compiled, graph):
    """Token ids of every line's translation, and the seconds it took."""
    order = sorted(range(len(lines)), key=lambda i: (len(lines[i]), i))
    out = [None] * len(lines)
    dev = net.output.device
    began = time.perf_counter()
    for first in range(0, len(order), a.batch):
        numbers = order[first:first + a.batch]
        longest = max(len(lines[i]) for i in numbers) + 1
        source = -(-longest // 8) * 8
        limits = [min(2 * (len(lines[i]) + 1) + 16, a.max_len - 1) for i in numbers]
        room = min(-(-max(limits) // 64) * 64, a.max_len)
        ids = np.zeros((a.batch, source), np.int64)
        there = np.zeros((a.batch, source), bool)
        there[:, 0] = True  # an empty place of the batch must have one token to attend to
        for r, i in enumerate(numbers):
            ids[r, :len(lines[i]) + 1] = np.append(lines[i], eos)
            there[r, :len(lines[i]) + 1] = True
        key = (-(-source // 64) * 64, room)
        if key not in searches:
            searches[key] = Search(net, a, a.batch, *key, bos, eos, compiled, graph)
        there = torch.from_numpy(there).to(dev)
        cross = net.encode(torch.from_numpy(ids).to(dev), there)
        tokens, lengths = searches[key].search(cross, there, limits)
        for r, i in enumerate(numbers):
            out[i] = tokens[r, :lengths[r]]
    if dev.type == "cuda":
        torch.cuda.synchronize()
    return out, time.perf_counter() - began


def nebula_file(a, dtype, text):
    done = run([a.nebula, "translate", "--device", a.device, "--dtype", dtype, "--beams", str(a.beams), "--batch",
                str(a.batch), "--max-len", str(a.max_len), "--stats", a.model, text, text])
    rates = [float(x) for x in re.findall(r"([\d.]+) lines/s", done.stderr)]
    lines = done.stdout.split("\n")[:-1]
    return lines[len(lines) // 2:], rates[-1]


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--nebula", default="build/release/nebula-i")
    args.add_argument("--model", required=True)
    args.add_argument("--text", required=True)
    args.add_argument("--device", default="cuda", help="cuda or cpu, for both sides")
    args.add_argument("--dtype", default="bf16,f32")
    args.add_argument("--beams", type=int, default=5)
    args.add_argument("--batch", type=int, default=64)
    args.add_argument("--max-len", type=int, default=256)
    args.add_argument("--lines", type=int, default=1000, help="most lines of the text")
    args.add_argument("--compile", default="bf16", help="types for which PyTorch's step is compiled (10 to 20 s a shape)")
    a = args.parse_args()
    torch._dynamo.config.cache_size_limit = 64
    gpu = a.device == "cuda"
    options, tensors = read_model(a.model)
    pieces = read_pieces(a.model)
    bos, eos = pieces.index("<s>"), pieces.index("</s>")
    a.max_len = min(a.max_len, len(tensors["decoder.embed.sinusoid.weight"]))
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if gpu else 'CPU'}; beams {a.beams}, batch {a.batch}")
    with tempfile.TemporaryDirectory() as work, torch.inference_mode():
        text = os.path.join(work, "text")
        with open(a.text) as f, open(text, "w") as g:
            kept = [line for line in f if line.strip()][:a.lines]
            g.writelines(kept)
        lines = tokenise(a.nebula, a.model, text, work)
        if len(lines) != len(kept):
            sys.exit(f"{len(kept)} sentences became {len(lines)} token lists")
        for dtype in a.dtype.split(","):
            ours, rate = nebula_file(a, dtype, text)
            print(f"{dtype:5} nebula-i                      {rate:9.1f} sentences/s", flush=True)
            net = Net(options, tensors, a.device, torch.bfloat16 if dtype == "bf16" else torch.float32)
            ways = [("eager", False, False)]
            if gpu:
                compiled = dtype in a.compile.split(",")
                ways.append(("compiled, graphs" if compiled else "graphs", compiled, True))
            for (name, compiled, graph), plain in itertools.product(ways, (False, True)):
                searches = {}
                net.attend = plain_attention if plain else F.scaled_dot_product_attention
                name += ", plain" if plain else ""
                torch._dynamo.reset()
                torch_file(net, a, lines if gpu else lines[:a.batch], bos, eos, searches, compiled, graph)
                out, took = torch_file(net, a, lines, bos, eos, searches, compiled, graph)
                texts = ["".join(pieces[t] for t in ids).replace("\u2581", " ").strip() for ids in out]
                same = sum(x == y for x, y in zip(texts, ours)) / len(ours)
                mean = sum(map(len, out)) / len(out)
                print(f"{dtype:5} torch {name:23} {len(lines) / took:9.1f} sentences/s, nebula-i {rate * took / len(lines):5.2f} x;"
                      f" {100 * same:.1f} % the same text, {mean:.1f} tokens a sentence", flush=True)


if __name__ == "__main__":
    main()
