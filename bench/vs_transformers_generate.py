#!/usr/bin/env python3
"""Compares greedy generation by Nebula-I with the transformers library's, same weights, prompts and lengths, in one call.

    bench/llama_weights.py WORK/hf WORK/text.txt && nebula-i import WORK/hf WORK/nebula
    bench/vs_transformers_generate.py --work WORK [--nebula build/release/nebula-i] [--seqs 1,64] [--json FILE]

transformers runs as its page on speed says: bf16, generate() with cache_implementation="static", which compiles the step
(reduce-overhead: CUDA graphs). Its first calls compile and are not counted; the median of the others is. Both sides' time is that
of whole calls, prompt and all tokens. First the copy bandwidth of the GPU is measured (bytes read and written): at one sequence
every token reads all weights, so the share of it says how near a decoder is to the end of what is possible.
"""
import argparse, json, os, statistics, subprocess, sys, time


def bandwidth(torch):
    """Bytes a second of a copy of 4 GiB."""
    x = torch.empty(1 << 32, dtype=torch.uint8, device="cuda").random_()
    y = torch.empty_like(x)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    best = 0.0
    for _ in range(6):
        begin.record()
        y.copy_(x)
        end.record()
        end.synchronize()
        best = max(best, 2 * x.numel() / begin.elapsed_time(end) * 1e3)
    return best


def nebula(a):
    command = [a.nebula, "bench", "decode", "--model", os.path.join(a.work, "nebula"), "--seqs", a.seqs, "--prompt", str(a.prompt),
               "--length", str(a.length), "--turns", str(a.turns), "--device", a.device, "--dtype", "bf16", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=a.seconds)
    if done.returncode:
        raise RuntimeError(done.stdout[-1500:] + done.stderr[-1500:])
    return {f["name"]: f["value"] for f in json.loads(done.stdout.splitlines()[-1])["figures"]}


def transformers(a):
    import torch
    from transformers import LlamaForCausalLM
    torch.set_float32_matmul_precision("high")
    out = {"bandwidth": bandwidth(torch)} if a.device == "cuda" else {}
    print(json.dumps(out), flush=True)
    torch.cuda.empty_cache()
    model = LlamaForCausalLM.from_pretrained(os.path.join(a.work, "hf"), dtype=torch.bfloat16, attn_implementation="sdpa",
                                             device_map=a.device).eval()
    model.generation_config.eos_token_id = None
    vocab = model.config.vocab_size
    for seqs in map(int, a.seqs.split(",")):
        torch._dynamo.reset()
        ids = (torch.arange(seqs * a.prompt, device=a.device) * 7919 % vocab).view(seqs, a.prompt)
        times, began = [], time.perf_counter()
        for turn in range(a.warm + a.turns):
            if a.device == "cuda":
                torch.cuda.synchronize()
            t = time.perf_counter()
            with torch.no_grad():
                made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=a.length, min_new_tokens=a.length,
                                      do_sample=False, cache_implementation="static", pad_token_id=0)
            if a.device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - t)
            if turn >= a.warm and time.perf_counter() - began > a.seconds / 2:
                break
        assert made.shape == (seqs, a.prompt + a.length), made.shape
        out[f"tokens.{seqs}"] = seqs * a.length / statistics.median(times[a.warm:])
        out[f"first.{seqs}"] = times[0]
        print(json.dumps(out), flush=True)


def theirs(a):
    command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--alone"]
    done = None
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=a.seconds)
        text = done.stdout
    except subprocess.TimeoutExpired as e:
        text = (e.stdout or b"").decode() if isinstance(e.stdout, bytes) else e.stdout or ""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    out = json.loads(lines[-1]) if lines else {}
    if not done or done.returncode:
        out["failed"] = "time is over" if not done else f"exit {done.returncode}"
    return out


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--nebula", default="build/release/nebula-i")
    args.add_argument("--work", required=True, help="the folder with hf and nebula")
    args.add_argument("--seqs", default="1,64")
    args.add_argument("--prompt", type=int, default=128)
    args.add_argument("--length", type=int, default=256)
    args.add_argument("--turns", type=int, default=3)
    args.add_argument("--warm", type=int, default=2)
    args.add_argument("--device", default="cuda")
    args.add_argument("--seconds", type=int, default=150, help="longest time of a side")
    args.add_argument("--json")
    args.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    a = args.parse_args()
    if a.alone:
        return transformers(a)
    ours, other = {}, {}
    try:
        ours = nebula(a)
        print("generate nebula-i: " + ", ".join(f"{k[7:]} {v:.4g}" for k, v in ours.items()), flush=True)
    except (RuntimeError, subprocess.TimeoutExpired) as e:
        print(f"generate nebula-i failed: {e}", flush=True)
    other = theirs(a)
    print(f"generate transformers: {other}", flush=True)
    for seqs in a.seqs.split(","):
        us, them = ours.get(f"decode.tokens.{seqs}"), other.get(f"tokens.{seqs}")
        if us and them:
            print(f"generate {seqs:>3} sequences: {us:9.1f} tokens/s, transformers {them:9.1f}, ratio {us / them:.3f}", flush=True)
        if us and seqs == "1" and "bandwidth" in other:
            share = ours["decode.weights.1"] * 1e9 / other["bandwidth"]
            print(f"generate   1 sequence: {share:.3f} of the copy bandwidth, {other['bandwidth'] / 1e12:.2f} TB/s", flush=True)
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"nebula": ours, "transformers": other}, f, indent=1)


if __name__ == "__main__":
    main()
