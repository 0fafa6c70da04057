"""Peak memory of a run: ``projector.memory.plan.plan(resolved, gpu)``.

Modules declare what they hold and save. Here: ``parameters`` and ``state`` (bytes that never leave), ``transients``,
``offload``, ``chunks`` (a model chunk's costliest moments), ``holding`` (all of it, by rank), ``plan`` and ``peaks``
(the peak of every rank, and of the fullest alone), ``verdict`` (reserved, device, does it fit) with its ``tolerance``,
``timeline`` and its pictures.
"""
