"""Ask questions by OpenAI's Batch API: at half the price, answered within a day.

- `transforming` transforms files of questions.
- `work` submits, checks, collects and cancels.
- `model` answers prompts from the replies so far, and notes the requests that are still to be sent.
- `parts` divides requests among files.
- `service` calls the API.
- `state` stores everything in a file that stays intact if the process is killed.
- `costs` computes costs.
"""

from qtmiddleware.kit.bulk.batch.service import BatchService
from qtmiddleware.kit.bulk.batch.state import BatchState, Part
from qtmiddleware.kit.bulk.batch.work import BatchStatus, BatchWork, Tally

__all__ = ["BatchService", "BatchState", "BatchStatus", "BatchWork", "Part", "Tally"]
