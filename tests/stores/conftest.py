from __future__ import annotations

import pytest

# It is no test module itself, and its assertions should explain themselves all the same.
pytest.register_assert_rewrite("store_contract")
