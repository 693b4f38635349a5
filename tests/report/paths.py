"""Numbers by their path, read from records without the report's own code."""


def numbers_at(runs, source):
    """The numbers that a source names; rows of maps are lists of sources."""
    if isinstance(source, list):
        return [numbers_at(runs, row) for row in source]
    steps, path = source["step"], source["path"]
    if isinstance(steps, list):
        pairs = zip(steps, path[1], strict=True)
        found = [
            None if i is None else _walk(runs, source["run"], s, ["rows", i, path[2]])
            for s, i in pairs
        ]
    elif path[0] == "rows" and isinstance(path[1], list):
        found = [_walk(runs, source["run"], steps, ["rows", i, path[2]]) for i in path[1]]
    elif isinstance(path[-1], list):
        whole = _walk(runs, source["run"], steps, path[:-1])
        found = [whole[i] for i in path[-1]]
    else:
        found = _walk(runs, source["run"], steps, path)
        if path[0] == "rows":
            return float(found)
    scale, offset = source.get("scale", 1), source.get("offset", 0)
    return [None if number is None else scale * float(number) + offset for number in found]


def layers_at(runs, source):
    """Names of the layers that the numbers of a source belong to; None for the whole model."""
    steps, path = source["step"], source["path"]
    record = runs[source["run"]].steps[steps[0] if isinstance(steps, list) else steps]
    if path[0] == "rows":
        indices = path[1] if isinstance(path[1], list) else [path[1]]
        # One layer over many steps: any of its rows will do.
        indices = indices[:1] if isinstance(steps, list) else indices
        return [record.contents["rows"][i]["layer"] for i in indices]
    number = path[1].split("/")[1]
    return [None if number == "model" else record.contents["layers"][int(number)]["name"]]


def _walk(runs, run, step, path):
    record = runs[run].steps[step]
    here = record.arrays if path[0] == "arrays" else record.contents["rows"]
    for key in path[1:]:
        here = here[key]
    return here
