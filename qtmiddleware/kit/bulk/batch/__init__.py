"""Questions asked by OpenAI's Batch API: at half the price, answered within a day.

`transforming` is for files of questions. `work` submits, looks after, collects and cancels; `model`
answers prompts out of what came back and notes the requests that are still to be sent; `parts` cuts
those into files; `service` speaks to the API; `state` keeps all of it in a file that a killed
process leaves whole; `costs` says what it comes to.
"""

from qtmiddleware.kit.bulk.batch.service import BatchService
from qtmiddleware.kit.bulk.batch.state import BatchState, Part
from qtmiddleware.kit.bulk.batch.work import BatchStatus, BatchWork, Tally

__all__ = ["BatchService", "BatchState", "BatchStatus", "BatchWork", "Part", "Tally"]
