#!/usr/bin/env python3
"""Compares LoRA training of a Llama by Nebula-I with PyTorch's peft, from the same weights, in one call.

    bench/llama_weights.py WORK/hf WORK/text.txt && nebula-i import WORK/hf WORK/nebula
    bench/vs_peft.py --work WORK [--nebula build/release/nebula-i] [--arms nebula:bf16,peft,nebula:nf4,peft:bf16] [--json FILE]

Both sides train the same thing: LoRA of rank 16 on all seven matrices of every layer, one sequence of 2,048 tokens a step,
activations recomputed layer by layer, AdamW, clipping. An arm is

    nebula:KIND   nebula-i train, frozen weights kept as KIND (bf16, int8, nf4), computed in bf16
    peft          a transformers model in bf16 with peft's adapters in fp32 under autocast, as its Trainer runs it
    peft:bf16     the same with adapters and their optimizer in bf16

PyTorch runs as its users run it for speed: each decoder layer compiled and checkpointed (not reentrant), output layer and loss
compiled together, fused AdamW, flash attention. A rate is taken after the warm-up: nebula-i's from the moments at which its lines
of two steps arrive, PyTorch's from the median of three rounds. Memory is what nvidia-smi shows over what it showed before the arm,
with each side's context; for PyTorch also the peak of its allocator. Every arm has `--seconds` and prints its line at once.
"""
import argparse, json, os, re, shutil, signal, statistics, subprocess, sys, time

MATRICES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
OURS = "*.attention.q,*.attention.k,*.attention.v,*.attention.out,*.ffn.gate,*.ffn.up,*.ffn.out"
LENGTH, RANK = 2048, 16


def gpu_used():
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True)
        return float(out.stdout.split()[0]) / 1024
    except (OSError, IndexError, ValueError):
        return 0.0


def job(a, kind, extra=""):
    return (f"name: lora\ntask: causal\nout: {a.work}/out-{kind}\ncache: {a.work}/tokens\ninit: {{from: {a.work}/nebula}}\nmodel: {{recompute: yes}}\n"
            f"peft: {{method: lora, frozen: {kind}, lora_rank: {RANK}, lora_alpha: {2 * RANK}, lora_on: \"{OURS}\"}}\n"
            f"train: {{steps: 1000000, tokens: {LENGTH}, max_len: {LENGTH}, lr: 1e-4, warmup: 0, weight_decay: 0, device: {a.device}, "
            f"dtype: bf16, save_every: 1000000000, log_every: 1}}\ndata: [{{file: {a.work}/text.txt}}]\n" + extra)


def nebula_arm(a, kind):
    path, out = os.path.join(a.work, f"job-{kind}.yaml"), os.path.join(a.work, f"out-{kind}")
    shutil.rmtree(out, ignore_errors=True)
    with open(path, "w") as f:
        f.write(job(a, kind))
    before, began, at, tail = gpu_used(), time.perf_counter(), {}, []
    child = subprocess.Popen([a.nebula, "train", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    signal.signal(signal.SIGALRM, lambda *_: child.kill())
    signal.alarm(a.seconds)
    first = last = None
    for line in child.stdout:
        tail = (tail + [line])[-8:]
        step = re.search(r"step (\d+)/\d+ +loss ([\d.]+)", line)
        if not step:
            continue
        n = int(step[1])
        at[n] = time.perf_counter() - began
        first, last = first or float(step[2]), float(step[2])
        if n >= a.warm + a.steps:
            break
    memory = gpu_used() - before
    child.kill()
    child.wait()
    signal.alarm(0)
    if len(at) < a.warm + 3:
        raise RuntimeError("".join(tail))
    end = max(at)
    rounds = [(at[n + a.steps // 3] - at[n]) / (a.steps // 3) for n in range(a.warm, end - a.steps // 3 + 1, a.steps // 3)]
    took = statistics.median(rounds) if rounds else (at[end] - at[a.warm]) / (end - a.warm)
    return dict(tokens_per_second=(LENGTH - 1) / took, step_ms=took * 1e3, memory=memory, first_loss=first, last_loss=last,
                start=at[min(at)])


def peft_model(a, half):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaForCausalLM
    model = LlamaForCausalLM.from_pretrained(os.path.join(a.work, "hf"), dtype=torch.bfloat16, attn_implementation="sdpa",
                                             device_map=a.device)
    lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, lora_dropout=0.0, target_modules=MATRICES, bias="none", task_type="CAUSAL_LM")
    model = get_peft_model(model, lora, autocast_adapter_dtype=not half)
    base = model.get_base_model()
    base.config.use_cache = False
    base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    if not a.eager:
        for layer in base.model.layers:
            layer.compile()
    return base, [p for p in model.parameters() if p.requires_grad]


def peft_arm(a, half):
    import torch
    import torch.nn.functional as F
    cuda = a.device == "cuda"
    torch.set_float32_matmul_precision("high")
    before, began, stop = gpu_used(), time.perf_counter(), time.perf_counter() + a.seconds
    base, trained = peft_model(a, half)
    opt = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.98), weight_decay=0.0, fused=cuda)
    lines = open(os.path.join(a.work, "text.txt"), "rb").read().split(b"\n")

    def ids(i):  # as the tokenizer of llama_weights.py has them
        return torch.tensor([[1, *(3 + byte for byte in lines[i % (len(lines) - 1)]), 2]], device=a.device)

    def output(h, w, target):
        return F.cross_entropy(F.linear(h, w).float(), target)
    loss_of = output if a.eager else torch.compile(output)

    def step(i):
        x = ids(i)
        with torch.autocast(a.device, torch.bfloat16, enabled=not half):
            h = base.model(input_ids=x[:, :-1], use_cache=False).last_hidden_state
            loss = loss_of(h[0], base.lm_head.weight, x[0, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
        opt.step()
        opt.zero_grad(set_to_none=True)
        return loss

    wait = torch.cuda.synchronize if cuda else lambda: None
    first, start = step(0).item(), time.perf_counter() - began
    for i in range(1, 4):
        step(i)
    wait()
    times, at = [], 4
    for _ in range(3):
        if times and time.perf_counter() > stop:
            break
        t = time.perf_counter()
        for _ in range(max(a.steps // 3, 1)):
            loss, at = step(at), at + 1
        wait()
        times.append((time.perf_counter() - t) / max(a.steps // 3, 1))
    took = statistics.median(times)
    gib = 2**30
    return dict(tokens_per_second=(LENGTH - 1) / took, step_ms=took * 1e3, memory=gpu_used() - before,
                allocated=torch.cuda.max_memory_allocated() / gib if cuda else 0,
                reserved=torch.cuda.max_memory_reserved() / gib if cuda else 0, first_loss=first, last_loss=loss.item(), start=start)


def peft_alone(a, arm):
    """In a process of its own, so that its memory is given back and its end is certain."""
    command = [sys.executable, os.path.abspath(__file__), "--work", a.work, "--device", a.device, "--steps", str(a.steps),
               "--seconds", str(a.seconds), "--alone", arm] + (["--eager"] if a.eager else [])
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=a.seconds + 20)
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--nebula", default="build/release/nebula-i")
    args.add_argument("--work", required=True, help="the folder with hf, nebula and text.txt")
    args.add_argument("--arms", default="nebula:bf16,peft,nebula:nf4,peft:bf16")
    args.add_argument("--device", default="cuda")
    args.add_argument("--steps", type=int, default=30)
    args.add_argument("--warm", type=int, default=12, help="nebula-i: steps before the measured ones")
    args.add_argument("--seconds", type=int, default=90, help="longest time of an arm")
    args.add_argument("--eager", action="store_true", help="PyTorch without torch.compile")
    args.add_argument("--json")
    args.add_argument("--alone", help=argparse.SUPPRESS)
    a = args.parse_args()
    if a.alone:
        print(json.dumps(peft_arm(a, a.alone == "peft:bf16")), flush=True)
        return
    results = {}
    for arm in a.arms.split(","):
        try:
            r = results[arm] = nebula_arm(a, arm.split(":")[1]) if arm.startswith("nebula") else peft_alone(a, arm)
            print(f"lora {arm:12} {r['tokens_per_second']:8.0f} tokens/s {r['step_ms']:7.1f} ms  {r['memory']:6.2f} GiB of the GPU"
                  + (f" (allocated {r['allocated']:.2f})" if "allocated" in r else "")
                  + f"  loss {r['first_loss']:.4f} to {r['last_loss']:.4f}  first step after {r['start']:.1f} s", flush=True)
        except Exception as e:
            results[arm] = {"failed": str(e)[-2000:]}
            print(f"lora {arm:12} failed: {str(e)[-1500:]}", flush=True)
        if a.json:
            with open(a.json, "w") as f:
                json.dump(results, f, indent=1)
    theirs = [r["tokens_per_second"] for arm, r in results.items() if arm.startswith("peft") and "failed" not in r]
    if theirs and "tokens_per_second" in results.get("nebula:bf16", {}):
        print(f"lora nebula:bf16 over the faster peft: {results['nebula:bf16']['tokens_per_second'] / max(theirs):.3f} x", flush=True)


if __name__ == "__main__":
    main()
