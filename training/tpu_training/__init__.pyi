from tpu_training.api import (
    evaluate as evaluate,
    export as export,
    fit as fit,
    load as load,
    predict as predict,
    write_data as write_data,
)
from tpu_training.data.files import local_copy as local_copy
from tpu_training.errors import (
    InputError as InputError,
    Interrupted as Interrupted,
    TrainingError as TrainingError,
)
from tpu_training.job.job import Result as Result
from tpu_training.loop.callbacks import Callback as Callback, LoopReport as LoopReport
from tpu_training.models.params import Params as Params
from tpu_training.models.spec import (
    DataSpec as DataSpec,
    Metric as Metric,
    Task as Task,
    mean as mean,
)

__version__: str
