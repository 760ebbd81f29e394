"""Live state: all that changes while layers run, one file for each kind.

======================  =====================================================================
kind                    rule
======================  =====================================================================
active.py, autocast.py  which recipe is active: a value of each thread and asyncio task
seeds.py                random numbers come from torch's generator, as dropout's do
scaling.py              delayed scaling's scales behave as BatchNorm's statistics
weights.py              a quantized weight is cached on the user's word only
recompute.py            a call inside a backward never silently computes something else
checkpoint.py           octet.checkpoint
layer.py                the part of a layer that holds state; saving, loading, moving
======================  =====================================================================
"""
