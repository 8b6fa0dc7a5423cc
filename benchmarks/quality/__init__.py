"""How well each system retrieves: the product's own measuring over recorded replies."""

import os

# Several threads of the linear algebra library only wait for one another here. The library reads
# this when it is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
