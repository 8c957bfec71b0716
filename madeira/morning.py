"""`madeira reconcile`: the morning's reports, once the recorder has passed what was there. Imported late: pandas."""

from __future__ import annotations

import asyncio
import time
from datetime import date, timedelta
from pathlib import Path

from madeira import show
from madeira.reconciliation import shown
from madeira.settings import Settings
from madeira.wiring import Servers, servers
from madeira.worker import open_stores
from pipelines.reconcile import reconcile as write_reports
from pipelines.record import Recorder
from streams import gauges, outcomes
from streams.errors import StoreUnavailable


def reconcile(settings: Settings, day: date, *, out: Path, as_json: bool) -> int:
    """Write the morning's reports for one business date. 0 closed, 1 open items, 2 does not balance."""
    with servers(settings) as where:
        result = write_reports(
            database_url=where.database_url,
            business_date=day,
            out=out,
            as_of_recorder=lambda: asyncio.run(recorder_passed(settings, where)),
        )
    if as_json:
        show.say_json(
            {
                "business_date": result.business_date,
                "as_of": result.as_of,
                "verdict": result.verdict,
                "revision": result.revision,
                "directory": result.directory,
                "problems": result.problems,
                "totals": result.totals,
            }
        )
    else:
        show.console().print(shown(result))
    return result.exit_code


async def recorder_passed(
    settings: Settings, where: Servers, *, patience: timedelta = timedelta(seconds=60)
) -> None:
    """Return once PostgreSQL has every outcome that Redis held at the call; records them itself where nobody does.

    Raises `StoreUnavailable` when they are not recorded within `patience`.
    """
    async with open_stores(
        where.database_url, where.redis_url, key_prefix=settings.key_prefix, connections=2
    ) as stores:
        recorder = Recorder(stores.pool, stores.transit, settings.partners)
        deadline = time.monotonic() + patience.total_seconds()
        for partner in settings.partners.values():
            keys = stores.transit.keys.partner(partner.name, partner.tenant)
            generation = (await gauges.gauge(stores.transit, keys)).generation
            if generation is None:
                continue
            upto = outcomes.order(await outcomes.end(stores.transit.redis, keys.outcomes(generation)))
            while outcomes.order((await gauges.gauge(stores.transit, keys)).recorded) < upto:
                if await recorder.step() == 0:
                    await asyncio.sleep(0.05)
                if time.monotonic() > deadline:
                    raise StoreUnavailable(
                        f"the outcomes of {partner.name} are not recorded; is a worker running?"
                    )
