"""A training script becomes a site of a run on several clusters.

    with nebula_i.Run("job.yaml", site="a") as run:
        loader = run.attach(model, optimizer, dataloader=loader)
        for batch in loader:
            ...
            optimizer.step()
            run.step(tokens)

`Run` joins the run that a job file and a site's folder describe (docs/python.md). libnebula-i does everything else, through
the C interface of <nebula/nebula.h>.
"""

from .errors import (
    AgainError,
    AuthError,
    BusyError,
    CancelledError,
    ConfigError,
    CorruptError,
    DeviceError,
    DtypeError,
    ExistsError,
    InternalError,
    InvalidError,
    IoError,
    LibraryError,
    LimitError,
    NebulaError,
    NetError,
    NoMemoryError,
    NonfiniteError,
    NoSpaceError,
    NotFoundError,
    PeerError,
    ProtocolError,
    RangeError,
    ShapeError,
    StateError,
    TimeoutError,
    UnsupportedError,
    VersionError,
)
from .run import Run

__version__ = "0.1.0"
__all__ = ["Run"] + sorted(name for name in dir() if name.endswith("Error"))
