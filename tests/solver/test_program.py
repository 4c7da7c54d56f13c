"""The builder turns blocks and row families into the expected matrices."""

import numpy as np
import pytest
from scipy import sparse

from flowccl.errors import InputError
from flowccl.solver import LinearProgram, ProgramBuilder, VariableBlock


def test_the_documented_example_gives_the_expected_matrix():
    link_src = np.array([0, 1, 1])
    model = ProgramBuilder()
    send = model.variables("send", (2, 3, 2), upper=1, integer=True)
    have = model.variables("have", (2, 2, 3), upper=1)
    model.rows("send what you have", send.shape, upper=0).add(send).add(have[:, link_src, :-1], times=-1)
    program = model.build()
    expected = np.zeros((12, 24))
    for chunk, link, epoch in np.ndindex(2, 3, 2):
        row = (chunk * 3 + link) * 2 + epoch
        expected[row, row] = 1
        expected[row, 12 + (chunk * 2 + link_src[link]) * 3 + epoch] = -1
    assert np.array_equal(program.matrix.toarray(), expected)
    assert program.integer.tolist() == [True] * 12 + [False] * 12
    assert program.row_upper.tolist() == [0] * 12
    assert np.all(program.row_lower == -np.inf)
    assert program.row_name(7) == "send what you have[1, 0, 1]"
    assert program.column_name(12 + 5) == "have[0, 1, 2]"


def test_sum_axis_sums_over_any_axes():
    model = ProgramBuilder()
    x = model.variables("x", (2, 3, 4))
    model.rows("over the first", (3, 4)).add(x, sum_axis=0)
    model.rows("over the outer two", 3).add(x, sum_axis=(0, -1))
    model.rows("over all").add(x, times=np.arange(24).reshape(2, 3, 4), sum_axis=(0, 1, 2))
    matrix = model.build().matrix.toarray()
    point = np.random.default_rng(0).random((2, 3, 4))
    expected = [point.sum(axis=0).ravel(), point.sum(axis=(0, 2)), [np.arange(24) @ point.ravel()]]
    assert np.allclose(matrix @ point.ravel(), np.concatenate(expected))


def test_a_small_block_is_broadcast_to_the_rows():
    model = ProgramBuilder()
    x, limit = model.variables("x", (2, 3)), model.variables("limit", 3)
    model.rows("below the limit", (2, 3), upper=0).add(x).add(limit, times=-1)
    model.rows("scalar", (2, 1), upper=0).add(limit[0], times=[[1], [2]])
    expected = np.zeros((8, 9))
    expected[:6, :6] = np.eye(6)
    expected[:6, 6:] = -np.tile(np.eye(3), (2, 1))
    expected[6:, 6] = [1, 2]
    assert np.array_equal(model.build().matrix.toarray(), expected)


def test_add_at_scatters_irregular_sums():
    link_dst = np.array([1, 1, 0])
    model = ProgramBuilder()
    send = model.variables("send", (2, 3))
    model.rows("in", (2, 2)).add_at(np.s_[:, link_dst], send, times=[1, 2, 3])
    model.rows("pairs", (2, 2)).add_at((np.array([0, 1, 1]), np.array([1, 0, 0])), send[0])
    matrix = model.build().matrix.toarray()
    point = np.array([1.0, 10, 100, 1000, 10000, 100000])
    assert (matrix @ point).tolist() == [300, 21, 300000, 21000, 1, 110]  # "pairs" has two empty rows


def test_a_variable_that_was_never_created_is_zero():
    where = np.array([[True, False, True], [False, True, True]])
    model = ProgramBuilder()
    x = model.variables("x", (2, 3), lower=np.arange(6).reshape(2, 3), upper=9, where=where)
    rows = model.rows("sum", 2, upper=1).add(x, sum_axis=1)
    program = model.build()
    assert x.columns.tolist() == [[0, -1, 1], [-1, 2, 3]]
    assert x.exists.tolist() == where.tolist()
    assert program.lower.tolist() == [0, 2, 4, 5]
    assert program.matrix.toarray().tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]]
    assert program.column_name(2) == "x[1, 1]"
    assert program.rows_of(rows).tolist() == [0, 1]


def test_masked_rows_get_no_entries():
    model = ProgramBuilder()
    x = model.variables("x", 3)
    rows = model.rows("some", 3, upper=[1, 2, 3], where=[True, False, True]).add(x)
    program = model.build()
    assert program.matrix.toarray().tolist() == [[1, 0, 0], [0, 0, 1]]
    assert program.row_upper.tolist() == [1, 3]
    assert program.row_name(1) == "some[2]"
    assert program.rows_of(rows).tolist() == [0, -1, 1]


def test_duplicate_entries_are_added_and_cancelled_entries_dropped():
    model = ProgramBuilder()
    x = model.variables("x", 2)
    model.rows("twice", 2).add(x).add(x, times=[1, -1]).add(x[0], times=[0.5, 0])
    model.rows("bound", 1, lower=1).add(x[:1])
    program = model.build()
    assert program.matrix.toarray().tolist() == [[2.5, 0], [1, 0]]  # the empty row is dropped
    assert program.num_entries == 2


def test_empty_rows_are_dropped_unless_infeasible():
    model = ProgramBuilder()
    model.variables("x", 1)
    rows = model.rows("nothing", 4, lower=[-1, 1, 0, -np.inf], upper=[1, 2, 0, -3])
    program = model.build()
    assert [program.row_name(row) for row in range(program.num_rows)] == ["nothing[1]", "nothing[3]"]
    assert program.rows_of(rows).tolist() == [-1, 0, -1, 1]


def test_costs_are_added():
    model = ProgramBuilder(maximize=True, offset=3)
    x = model.variables("x", (2, 2), cost=[[1, 2], [3, 4]], where=[[True, True], [True, False]])
    model.add_cost(x, times=10)
    model.add_cost(x[0, 0])
    program = model.build()
    assert program.cost.tolist() == [12, 12, 13]
    assert program.maximize
    assert program.objective(np.ones(3)) == 40


def test_a_block_is_an_array_of_columns_to_numpy():
    model = ProgramBuilder()
    x = model.variables("x", (2, 3))
    assert np.array_equal(np.flip(x, axis=1), [[2, 1, 0], [5, 4, 3]])
    assert x[1, ::2].columns.tolist() == [3, 5]
    assert x[:, None].shape == (2, 1, 3)
    assert len(x) == 2
    model.rows("flipped", (2, 3)).add(np.flip(x, axis=1))
    assert np.array_equal(model.build().matrix.toarray(), np.kron(np.eye(2), np.fliplr(np.eye(3))))
    assert "x" in repr(x)
    assert isinstance(x[0], VariableBlock)


def test_a_point_is_made_from_blocks():
    model = ProgramBuilder()
    x = model.variables("x", 3, where=[True, False, True])
    model.variables("y", 3, lower=[2, -5, -5], upper=[9, -3, 5])
    program = model.build()
    assert program.point((x, [4, 0, 5])).tolist() == [4, 5, 2, -3, 0]
    with pytest.raises(InputError, match="no variable at \\[1\\]"):
        program.point((x, [4, 1, 5]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda model, x: model.rows("r", (2, 2)).add(x), "rows 'r'.*does not match.*sum_axis"),
        (lambda model, x: model.rows("r", 2).add(x, sum_axis=0), "does not match"),
        (lambda model, x: model.rows("r", 2).add(x, sum_axis=2), "rows 'r'.*axis"),
        (lambda model, x: model.rows("r", 2).add(x, times=[1, 2], sum_axis=1), "rows 'r'.*broadcast"),
        (lambda model, x: model.rows("r", 3).add(np.array([0, 1, 6])), "not columns of this program, which has 6"),
        (lambda model, x: model.rows("r", 2).add(np.array([0.0, 1.0])), "not columns"),
        (lambda model, x: model.rows("r", 3).add_at(np.array([0, 3]), x[0, :2]), "rows 'r'.*out of bounds"),
        (lambda model, x: model.rows("r", 3).add_at(np.array([0, -1]), x[0, :2]), "negative"),
        (lambda model, x: x[:, np.array([0, -1])], "block 'x'.*negative"),
        (lambda model, x: x[5], "out of bounds"),
        (lambda model, x: model.variables("y", 3, upper=[1, 2]), "y: upper of shape"),
        (lambda model, x: model.rows("r", 3, where=[True, False]), "r: where of shape"),
    ],
)
def test_mistakes_are_reported(wrong, message):
    model = ProgramBuilder()
    x = model.variables("x", (2, 3))
    with pytest.raises(InputError, match=message):
        wrong(model, x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cost": [1, np.nan]}, "x\\[1\\]: cost"),
        ({"lower": [0, np.inf]}, "x\\[1\\]: lower"),
        ({"upper": [-np.inf, 0]}, "x\\[0\\]: upper"),
        ({"row_lower": [np.nan]}, "r: lower"),
        ({"entry_value": [1, np.inf]}, "r: coefficient of x\\[1\\]"),
        ({"offset": np.nan}, "offset"),
        ({"integer": [True]}, "integer must have 2 entries"),
        ({"entry_row": [0, 1]}, "entry_row must be from 0 to 0"),
        ({"column_start": [0, 2, 1]}, "column_start"),
    ],
)
def test_a_program_is_validated_on_creation(change, message):
    model = ProgramBuilder()
    model.rows("r", upper=1).add(model.variables("x", 2), sum_axis=0)
    good = vars(model.build())
    fields = {name: good[name] for name in LinearProgram.__dataclass_fields__}
    with pytest.raises(InputError, match=message):
        LinearProgram(**fields | change)


def test_a_program_is_frozen():
    model = ProgramBuilder()
    model.rows("r", upper=1).add(model.variables("x", 2), sum_axis=0)
    program = model.build()
    with pytest.raises(ValueError, match="read-only"):
        program.cost[0] = 1


def test_columns_and_rows_can_be_added():
    model = ProgramBuilder()
    x = model.variables("x", 2, cost=1)
    family = model.rows("r", 2, equals=1).add(x)
    program = model.build().with_columns([5, 6], np.array([[1, 0], [2, 3]]), upper=[7, 8])
    program = program.with_rows(sparse.coo_array(np.array([[0, 0, 4, 0]])), lower=9).with_cost([0, 3], [10, 11])
    assert program.matrix.toarray().tolist() == [[1, 0, 1, 0], [0, 1, 2, 3], [0, 0, 4, 0]]
    assert program.cost.tolist() == [10, 1, 5, 11]
    assert program.upper.tolist() == [np.inf, np.inf, 7, 8]
    assert program.row_lower.tolist() == [1, 1, 9]
    assert [program.row_name(1), program.row_name(2)] == ["r[1]", "row 2"]
    assert [program.column_name(1), program.column_name(3)] == ["x[1]", "column 3"]
    assert program.rows_of(family).tolist() == [0, 1]
    with pytest.raises(InputError, match="new columns have 1 rows, the program has 3"):
        program.with_columns(1, np.ones((1, 1)))
    with pytest.raises(InputError, match="new rows have 2 columns, the program has 4"):
        program.with_rows(np.ones((1, 2)))


def test_an_empty_program():
    program = ProgramBuilder(offset=4).build()
    assert (program.num_columns, program.num_rows, program.num_entries) == (0, 0, 0)
    assert "minimize, 0 columns" in repr(program)
