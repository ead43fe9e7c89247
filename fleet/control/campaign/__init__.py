"""Fleet-wide scrub campaigns: select, plan, brake, run step by step, report. Pure."""
