"""evaluate.py RUN…: held-out loss of what the sites of each run hold at the end, one JSON object a line.

Sites whose models differ count as the better of site a's model and the mean of both: a user would keep that one."""
import json

from shared import *


def held_out_loss(model, rows):
    with torch.no_grad():
        return sum(loss_of(model, rows[i:i + 32]).item() for i in range(0, len(rows), 32)) / (len(rows) // 32)


def states(run):
    native = sorted(run.glob("?-out/model.safetensors"))
    if native:
        from safetensors.torch import load_file

        return [load_file(f) for f in native]
    return [torch.load(f, weights_only=True) for f in sorted(run.glob("end-?.pt"))]


model, _ = make()
rows = windows("held")[:128]
torch.set_num_threads(os.cpu_count())
for run in map(pathlib.Path, sys.argv[1:]):
    ends, losses = states(run), []
    same = len(ends) == 2 and all(torch.equal(ends[0][k], ends[1][k]) for k in ends[0])
    if len(ends) == 2 and not same:
        ends.append({k: (ends[0][k] + ends[1][k]) / 2 for k in ends[0]})
    for state in ends[:1] + ends[2:]:
        model.load_state_dict(state)
        losses.append(held_out_loss(model, rows))
    print(json.dumps({"run": str(run), "loss": min(losses) if losses else None, "same": same}), flush=True)
