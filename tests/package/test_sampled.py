"""Which cases of a sampled test `make test` leaves out (conftest.py)."""

import pytest

from conftest import pytest_collection_modifyitems


class Item:
    """What the hook reads and writes of an item of pytest."""

    def __init__(self, nodeid, *marks):
        self.nodeid = nodeid
        self.marks = {mark.name: mark for mark in marks}

    def get_closest_marker(self, name):
        return self.marks.get(name)

    def add_marker(self, name):
        self.marks[name] = None


def left_out(items):
    pytest_collection_modifyitems(items)
    return {item.nodeid for item in items if "unsampled" in item.marks}


@pytest.mark.parametrize(("cases", "share", "rest"), [(10, 3, 6), (9, 3, 6), (1, 4, 0), (5, 2, 2)])
def test_one_case_in_so_many_stays_and_every_test_has_one(cases, share, rest):
    sampled = pytest.mark.sampled(share).mark
    items = [Item(f"test_a.py::test_it[{case}]", sampled) for case in range(cases)]
    others = [Item(f"test_b.py::test_other[{case}]") for case in range(4)]
    gone = left_out([*items, *others])
    assert len(gone) == rest
    assert gone == left_out([Item(item.nodeid, sampled) for item in reversed(items)])
    assert not gone & {item.nodeid for item in others}


@pytest.mark.parametrize("cases", [1, 7, 9])
def test_other_samples_are_of_other_cases(cases, monkeypatch):
    """Three of them, of one in three, are all cases."""
    kept = []
    for sample in range(3):
        monkeypatch.setenv("SIMDFORMER_SAMPLE", str(sample))
        marks = [pytest.mark.sampled(3).mark]
        items = [Item(f"test_a.py::test_it[{case}]", *marks) for case in range(cases)]
        kept.append({item.nodeid for item in items} - left_out(items))
        assert len(kept[-1]) == -(-cases // 3)
    assert len(set.union(*kept)) == cases


def test_what_is_slow_anyway_is_not_counted():
    sampled, slow = pytest.mark.sampled(2).mark, pytest.mark.slow.mark
    items = [Item(f"test_a.py::test_it[{case}]", sampled, slow) for case in range(6)]
    quick = Item("test_a.py::test_it[quick]", sampled)
    assert left_out([*items, quick]) == set()
