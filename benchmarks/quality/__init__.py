"""How well each system retrieves, beside other libraries and with one factor changed at a time.

python -m benchmarks.quality --data ../shared/data --recordings ../shared/recordings
"""
