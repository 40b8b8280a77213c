"""Files of released versions, and changes of files: of bytes, and of what a checksum protects."""

import hashlib
import json
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / "golden"


def golden_problem():
    """The rows that golden models are fitted to and predict; never to be changed."""
    rng = np.random.default_rng(20261115)
    X = rng.normal(size=(120, 4))
    task = np.repeat(["north", "south", "öst", "<west>", "5", ""], 20)
    y = X @ rng.normal(size=4) + np.repeat(rng.normal(size=6), 20) + rng.normal(size=120)
    return X, y, task


def mutated(content, rng):
    """The content with bytes flipped, removed, inserted or doubled, or with two pieces swapped."""
    data = bytearray(content)
    kind = rng.integers(6)
    a, b = sorted(rng.integers(0, len(data), 2).tolist())
    if kind == 0:
        for at in rng.integers(0, len(data), rng.integers(1, 20)):
            data[at] ^= int(rng.integers(1, 256))
    elif kind == 1:
        del data[a:]
    elif kind == 2:
        del data[a : b + 1]
    elif kind == 3:
        data[a:a] = rng.bytes(int(rng.integers(1, 50)))
    elif kind == 4:
        data[a:a] = data[a : b + 1]
    else:
        size = min(64, b - a, len(data) - b)
        data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
    return bytes(data)


def parts(content):
    """First line, tree and numbers of a file."""
    head, rest = content.split(b"\n", 1)
    size = int.from_bytes(rest[:8], "little")
    return head, json.loads(rest[8 : 8 + size]), rest[8 + size : -32]


def sealed(head, tree, numbers):
    """A file with these parts and their checksum."""
    text = json.dumps(tree).encode()
    body = head + b"\n" + len(text).to_bytes(8, "little") + text + numbers
    return body + hashlib.sha256(body).digest()


def places(tree, path=()):
    """Every place in a tree."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in inside:
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from places(value, (*path, key))


def at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


VALUES = (None, True, -1, 0, 1.5, "x", [], {}, [1, 2], {"<array>": ["<f8", [2], "C"]},
          {"<array>": ["|O", [1], "C"]}, {"<record>": ["Posterior", {}]}, {"<date>": "x"},
          {"<generator>": {"bit_generator": "os"}}, {"<tuple>": 3}, {"<what>": 1},
          10**400)  # fmt: skip


def changed(tree, every, rng, values=VALUES):
    """A copy of a tree with one place deleted, or replaced by a value or by another place."""
    tree, original = json.loads(json.dumps(tree)), tree
    one, other = (every[i] for i in rng.integers(0, len(every), 2))
    home = at(tree, one[:-1])
    if rng.random() < 0.3:
        del home[one[-1]]
    elif rng.random() < 0.5:
        home[one[-1]] = values[rng.integers(len(values))]
    else:
        home[one[-1]] = json.loads(json.dumps(at(original, other)))
    return tree
