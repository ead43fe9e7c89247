"""Health: readings taken by back ends, judged by pure checks against thresholds kept as data."""
