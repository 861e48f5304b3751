"""A site's side: PEERS_INTERVAL steps on the model that came, then it goes back. Every round may be a new process, so the optimizer's
state is kept in a file."""
from shared import *

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model, optimizer = make()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    round_ = 0
    if CHECKPOINT.exists():
        kept = torch.load(CHECKPOINT)
        optimizer.load_state_dict(kept["optimizer"])
        round_ = kept["round"] + 1
    clock = Clock(model, optimizer)
    clock.finish()  # the newest model of all sites; a round that the end of the time cuts short counts for nothing
    for _, ids in zip(range(INTERVAL), batches(round_)):
        loss = backward(model, optimizer, ids)
        optimizer.step()
        if clock.tick(loss):
            break
    save(optimizer=optimizer.state_dict(), round=round_)
    metrics = MetricRecord({"loss": loss.item(), "num-examples": INTERVAL * BATCH})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)
