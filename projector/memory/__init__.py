"""Peak memory of a run: ``projector.memory.plan.plan(resolved, gpu)``.

One file a concern: ``parameters`` and ``state`` (what never leaves), ``activations``, ``moe`` and ``head`` (what a
forward saves), ``recompute``, ``transients`` and ``workspaces``, ``chunks`` (a model chunk's costliest moments),
``plan`` (the peak of every rank) and ``verdict`` (reserved, device,
does it fit).
"""
