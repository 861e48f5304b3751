"""Plain PyTorch at both sites; nothing crosses. Its speed is what the others are measured by."""
from shared import *

model, optimizer = make()
clock = Clock(model, optimizer)
for ids in batches():
    loss = backward(model, optimizer, ids)
    optimizer.step()
    if clock.tick(loss):
        break
clock.finish()
