from tpu_training.api import evaluate as evaluate
from tpu_training.api import export as export
from tpu_training.api import fit as fit
from tpu_training.api import load as load
from tpu_training.api import predict as predict
from tpu_training.api import write_data as write_data
from tpu_training.data.files import local_copy as local_copy
from tpu_training.errors import InputError as InputError
from tpu_training.errors import Interrupted as Interrupted
from tpu_training.errors import TrainingError as TrainingError
from tpu_training.job.job import Result as Result
from tpu_training.loop.callbacks import Callback as Callback
from tpu_training.loop.callbacks import LoopReport as LoopReport
from tpu_training.models.params import Params as Params
from tpu_training.models.spec import DataSpec as DataSpec
from tpu_training.models.spec import Metric as Metric
from tpu_training.models.spec import Task as Task
from tpu_training.models.spec import mean as mean

__version__: str
