"""An independent, slow simulator of a schedule, straight from the orders: the fast evaluator must agree with it."""


def simulate(schedule, forward, backward, weight, p2p=None, overlap=True, release=None):
    """End time of every (kind, virtual stage, microbatch), and the order in which ranks finished them.

    Polls the ranks until nothing moves. ``p2p[v]``: seconds over the boundary v | v + 1.
    """
    last = schedule.pp * schedule.vpp - 1
    home, whole = {}, set()
    for rank, order in enumerate(schedule.orders):
        low, high = schedule.joined[rank] if schedule.joined else (0, 0)
        for place, (kind, chunk, mb) in enumerate(order):
            stage = schedule.placement[rank][chunk]
            home[stage, mb] = rank
            if kind == "W" and low < place < high and order[place - 1] == ("B", chunk, mb):
                whole.add((stage, mb))  # its gradient leaves when W has ended
    p2p = p2p if p2p is not None else [0.0] * last
    seconds = {"F": forward, "B": backward, "W": weight}
    if not schedule.split:
        seconds["B"] = [b + w for b, w in zip(backward, weight, strict=True)]

    def hop(low, mb):
        """The message over the boundary above stage ``low``, if it leaves the rank."""
        return p2p[low] if 0 <= low < last and home[low, mb] != home[low + 1, mb] else 0.0

    def sent(kind, stage, mb):
        last_of_backward = "W" if (stage, mb) in whole else "B"
        return hop(stage, mb) if kind == "F" else hop(stage - 1, mb) if kind == last_of_backward else 0.0

    ends, at, clock, previous = {}, [0] * schedule.pp, [None] * schedule.pp, [None] * schedule.pp
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(schedule.orders):
            if at[rank] == len(order):
                continue
            kind, chunk, mb = order[at[rank]]
            stage = schedule.placement[rank][chunk]
            own = {"F": [], "B": [("F", stage, mb)], "W": [("B", stage, mb)]}[kind]
            assert all(need in ends for need in own), f"rank {rank}: {kind}{stage}.{mb} before what it needs"
            remote, wait = None, 0.0
            if kind == "F" and stage > 0:
                remote, wait = ("F", stage - 1, mb), hop(stage - 1, mb)
            if kind == "B" and stage < last:
                remote, wait = ("W" if (stage + 1, mb) in whole else "B", stage + 1, mb), hop(stage, mb)
            if remote is not None and remote not in ends:
                continue
            start = release[stage] if release is not None and kind == "F" else 0.0
            if clock[rank] is not None:
                pause = 0.0 if overlap else max(sent(*previous[rank]), wait)
                start = max(start, clock[rank] + pause)
            if remote is not None:
                start = max(start, ends[remote] + wait)
            assert (kind, stage, mb) not in ends, "done twice"
            ends[kind, stage, mb] = clock[rank] = start + seconds[kind][stage]
            previous[rank] = (kind, stage, mb)
            at[rank] += 1
            moved = True
    stuck = [rank for rank, order in enumerate(schedule.orders) if at[rank] < len(order)]
    assert not stuck, f"{schedule.name}: ranks {stuck} wait for ever"
    return ends
