"""Random pairs of layouts of the same tensors: meshes of several dimensions, uneven shards, replicas, byte ranges."""

from hypothesis import strategies as st

from flowccl.resharding.layout import Layout, Mesh, Placement, TensorLayout, TensorRange

DTYPES = {"float32": 4, "bfloat16": 2, "int8": 1, "float64": 8}


@st.composite
def placed(draw, shape, ranks):
    """A mesh on some of the ranks, and placements of a tensor of this shape on it."""
    sizes = draw(st.sampled_from([(1,), (2,), (3,), (4,), (2, 2), (2, 3), (3, 2), (1, 4), (2, 1, 2), (5,), (6,)]))
    count = 1
    for size in sizes:
        count *= size
    chosen = draw(st.permutations(range(ranks)))[:count]
    dims = list(range(len(shape)))
    one = st.just(Placement()) | (
        st.builds(Placement, st.sampled_from(dims), st.sampled_from([1, 1, 1, 2, 3])) if dims else st.just(Placement())
    )
    return Mesh(sizes, tuple(chosen)), tuple(draw(one) for _ in sizes)


@st.composite
def ranges(draw, size, ranks, complete):
    """Byte ranges on ranks; every byte is on one rank if `complete`."""
    cuts = sorted(draw(st.lists(st.integers(0, size), max_size=4)))
    spans = list(zip([0, *cuts], [*cuts, size], strict=True))
    parts = [TensorRange(draw(st.integers(0, ranks - 1)), a, b) for a, b in spans]
    if not complete:
        parts = parts[: draw(st.integers(1, len(parts)))]
    owner = {(part.begin, part.end): part.rank for part in parts}
    more = [TensorRange(draw(st.integers(0, ranks - 1)), a, b) for a, b in spans[:2] if b > a]
    parts += [part for part in more if owner.get((part.begin, part.end)) not in (None, part.rank)]
    return tuple(draw(st.permutations(parts)))


@st.composite
def layout_pairs(draw, ranks=8, tensors=4):
    """Two layouts with the same tensors."""
    sides = ([], [])
    for number in range(draw(st.integers(1, tensors))):
        shape = tuple(draw(st.lists(st.integers(1, 13), min_size=0, max_size=3)))
        dtype = draw(st.sampled_from(sorted(DTYPES)))
        size = DTYPES[dtype]
        for side, complete in zip(sides, (True, False), strict=True):
            total = size
            for length in shape:
                total *= length
            if draw(st.integers(0, 4)) == 0:
                parts = draw(ranges(total, ranks, complete))
                side.append(TensorLayout(f"w{number}", shape, size, dtype, ranges=parts))
            else:
                mesh, placements = draw(placed(shape, ranks))
                side.append(TensorLayout(f"w{number}", shape, size, dtype, mesh, placements))
    return Layout(tuple(sides[0])), Layout(tuple(sides[1]))
