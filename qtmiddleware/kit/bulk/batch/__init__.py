"""Send questions to OpenAI's Batch API, for half the price and with replies within a day.

- `transforming` transforms files of questions.
- `work` submits, checks, collects and cancels batches.
- `model` answers prompts with the replies so far, and lists the requests to send.
- `parts` divides requests into files.
- `service` calls the API.
- `state` stores requests and replies in a file that survives a killed process.
- `costs` computes costs.
"""

from qtmiddleware.kit.bulk.batch.service import BatchService
from qtmiddleware.kit.bulk.batch.state import BatchState, Part
from qtmiddleware.kit.bulk.batch.work import BatchStatus, BatchWork, Tally

__all__ = ["BatchService", "BatchState", "BatchStatus", "BatchWork", "Part", "Tally"]
