"""What a kernel cannot do raises eager's error, with the model's line, and harms no later call."""

import threading

import pytest
import torch
import torch.nn.functional as F

TABLE = torch.randn(5, 3)
GOOD, BAD = torch.tensor([1, 4, -5]), torch.tensor([1, 5, 0])

FAILURES = [
    (lambda i: TABLE[i] * 2, GOOD, BAD),
    (lambda i: TABLE.index_select(0, i) * 2, GOOD.abs() % 5, BAD),
    (lambda i: F.embedding(i, TABLE) + 1, GOOD.abs() % 5, BAD),
    (lambda i: TABLE.gather(0, i[:, None]) * 2, GOOD.abs() % 5, BAD),
    (lambda i: F.cross_entropy(TABLE[:3] * 2, i), torch.tensor([0, 2, 1]), torch.tensor([0, 3, 1])),
    (lambda i: (i + 1) // i, GOOD, torch.tensor([1, 0, 2])),
    (lambda i: (i + 1) % i, GOOD, torch.tensor([1, 0, 2])),
]


@pytest.mark.parametrize(("function", "good", "bad"), FAILURES)
def test_failure(function, good, bad):
    compiled = torch.compile(function, backend="straightline")
    expected = function(good)
    torch.testing.assert_close(compiled(good), expected)
    with pytest.raises(Exception) as eager:  # noqa: PT011 - whichever eager raises
        function(bad)
    with pytest.raises(eager.type) as ours:
        compiled(bad)
    assert any(__file__ in note for note in getattr(ours.value, "__notes__", ()))
    torch.testing.assert_close(compiled(good), expected)


def chain(x, y):
    return F.layer_norm(torch.tanh(x) * y + x, x.shape[-1:]).softmax(0).sum(-1), (x * y).sum()


def test_two_threads_give_the_same_bits():
    x, y = torch.randn(257, 1000), torch.randn(257, 1000)
    compiled = torch.compile(chain, backend="straightline")
    before = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 1, 2):
            torch.set_num_threads(count)
            found.append(compiled(x, y))
    finally:
        torch.set_num_threads(before)
    for results in found[1:]:
        assert all(map(torch.equal, results, found[0]))


def test_many_callers():
    inputs = [(torch.randn(33, 64), torch.randn(33, 64)) for _ in range(8)]
    compiled = torch.compile(chain, backend="straightline")
    expected = [compiled(*pair) for pair in inputs]
    wrong: list[int] = []

    def call(at):
        results = [compiled(*inputs[at]) for _ in range(50)]
        wrong.extend(at for each in results if not all(map(torch.equal, each, expected[at])))

    threads = [threading.Thread(target=call, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
