"""The server's side: the mean of the sites' models, round after round."""
from shared import *

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context):
    model, _ = make()
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=context.run_config["num-server-rounds"])
