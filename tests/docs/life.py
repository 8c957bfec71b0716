"""The drawing of a delivery's life, made from `MOVES`. `python -m tests.docs.life` prints it for the docs."""

from __future__ import annotations

from streams.delivery import MOVES, TERMINAL, State

BEGINS = (State.PENDING, State.HELD)
"""As what a delivery comes into being; no move of `MOVES` says that."""


def life() -> str:
    """A Mermaid state diagram: one arrow for each pair of states, its moves beside it."""
    lines = ["stateDiagram-v2", *(f"    [*] --> {state}" for state in BEGINS)]
    for state, moves in MOVES.items():
        arrows: dict[State, list[str]] = {}
        for move, target in moves.items():
            arrows.setdefault(target, []).append(move.value)
        lines += [f"    {state} --> {target}: {', '.join(names)}" for target, names in arrows.items()]
    lines += [f"    {state} --> [*]" for state in State if state in TERMINAL]
    return "\n".join(lines)


if __name__ == "__main__":
    print(life())
