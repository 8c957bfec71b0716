"""How keys are spelled: one slot for a partner, nobody's keys within another's."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from streams.envelope import NAME
from streams.keys import LIVE, Keys, PartnerKeys, batch_lane, returns_lane

NO_DEADLINE = hypothesis_settings(deadline=None)  # a busy machine is no fault
NAMES = st.from_regex(re.compile(f"^{NAME.pattern}$", re.ASCII), fullmatch=True).filter(NAME.fullmatch)


def every_key(keys: PartnerKeys) -> list[str]:
    """One of each kind."""
    lanes = [keys.lane(name) for name in (LIVE, batch_lane(7), returns_lane(7))]
    return [
        keys.pace,
        keys.lanes,
        keys.open,
        keys.delays,
        keys.dead,
        keys.delay(60),
        keys.outcomes(3),
        *lanes,
    ]


def test_spelling() -> None:
    """What operators see in Redis."""
    keys = Keys().partner("AB")
    assert every_key(keys) == [
        f"madeira:{{default.AB}}:{rest}"
        for rest in ("pace", "lanes", "open", "delays", "dead", "delay:60", "outcomes:3", "live", "batch:7",
                     "batch:7:returns")
    ]  # fmt: skip
    assert Keys("other").worker("w1") == "other:worker:w1"


@NO_DEADLINE
@given(name=NAMES, tenant=NAMES)
def test_one_slot_for_a_partner(name: str, tenant: str) -> None:
    """Every key of a partner has the same hash tag, and only that one."""
    for key in every_key(Keys().partner(name, tenant)):
        assert re.findall(r"\{([^}]*)\}", key) == [f"{tenant}.{name}"]


@NO_DEADLINE
@given(one=st.tuples(NAMES, NAMES), other=st.tuples(NAMES, NAMES))
def test_partners_do_not_meet(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Two partners share no key, and the pattern of one finds none of the other's."""
    mine, theirs = Keys().partner(*one), Keys().partner(*other)
    assert len(set(every_key(mine))) == len(every_key(mine))
    assert all(fnmatchcase(key, mine.every.replace("{", "[{]")) for key in every_key(mine))
    if one != other:
        assert not set(every_key(mine)) & set(every_key(theirs))
        assert not any(key.startswith(mine.every[:-1]) for key in every_key(theirs))


async def test_a_prefix_with_wildcards_is_taken_literally(redis: Redis, key_prefix: str) -> None:
    """The pattern for recovery finds the partner's keys and no others, whatever the prefix is."""
    odd = PartnerKeys(f"{key_prefix}:a*[b]?:{{default.AB}}")
    await redis.set(odd.pace, "1")
    await redis.set(f"{key_prefix}:aXXb!:{{default.AB}}:pace", "1")
    found = [key async for key in redis.scan_iter(match=odd.every, count=1000)]
    assert found == [odd.pace.encode()]
