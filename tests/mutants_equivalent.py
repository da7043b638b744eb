"""Mutants that change nothing, by `Mutant.key`, and why: nobody can write a test against them."""

_LOOP, _STEPS = "mmspec/engine/loop.py: ", "mmspec/draft/steps.py: "
_EMPTY = "self._good = torch.zeros({}, 0, dtype=torch.bool)"
_ROOM = "room = max({}, int(max(self._steps.counts)) + 1 - self._good.shape[1])"
_CHAIN, _EXCESS = "mmspec/engine/accept/chain.py: ", "mmspec/engine/accept/gaussian/excess.py: "
_SIZES, _AT = "mmspec/methods/tree_sizes.py: ", "step = 1 if {} else -1"
_RING = "outside, 1 + math.sqrt({}) * root, torch.maximum(1 - root, share * math.exp(-0.5))"

EQUIVALENT: dict[str, str] = {
    f"{_CHAIN}if count > 1: -> if (count >= 1):": "of a single row 0 is added",
    f"{_EXCESS}{_RING.format('2')} -> {_RING.format('(3)')}": (
        "Newton's steps begin somewhat further off, on the same side, and come to the same place"
    ),
    f"{_SIZES}{_AT.format('nodes(best) < wanted')} -> {_AT.format('(nodes(best) <= wanted)')}": (
        "of a tree that is as large as wanted any step leads away, and none is taken"
    ),
    f"{_STEPS}{_EMPTY.format('0')} -> {_EMPTY.format('(1)')}": "a start puts another in its place",
    f"{_STEPS}{_ROOM.format('0')} -> {_ROOM.format('(1)')}": "places behind all rows' steps wait",
    f"{_LOOP}if over > 0: -> if (over >= 0):": "0 is taken off, and what is kept is emitted anyway",
}
