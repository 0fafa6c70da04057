"""Peak memory of a run: ``projector.memory.plan.plan(resolved, gpu)``.

What modules hold and save is theirs to say. Here: ``parameters`` and ``state`` (what never leaves), ``transients`` and
``workspaces``, ``offload``, ``chunks`` (a model chunk's costliest moments), ``holding`` (all of it, by rank), ``plan`` and
``peaks`` (the peak of every rank, and of the fullest alone), ``verdict`` (reserved, device, does it fit) with its
``tolerance``, ``timeline`` and its pictures.
"""
