"""`work` and `serve --processes N`: N processes, each started again when it ends without being asked to."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0
_HEALTHY_AFTER_S = 30.0
_PARENT = "MADEIRA_SUPERVISOR"
_PROCESSES = "MADEIRA_PROCESSES"
_LOOKED_EVERY_S = 1.0


async def supervise(
    command: Sequence[str], *, processes: int, stop: asyncio.Event, grace_s: Callable[[], float]
) -> int:
    """Keep `processes` children of this program running with `command` until `stop`; then end them.

    Children get SIGTERM and `grace_s()` seconds before SIGKILL. Returns 0 when all of them left cleanly.
    """
    codes = await asyncio.gather(
        *(_keep(command, number, processes, stop, grace_s) for number in range(processes))
    )
    # Whoever dies of SIGTERM was not yet listening for it, and had nothing in hand.
    return 0 if all(code in (0, -signal.SIGTERM) for code in codes) else 1


async def _keep(
    command: Sequence[str], number: int, processes: int, stop: asyncio.Event, grace_s: Callable[[], float]
) -> int:
    loop = asyncio.get_running_loop()
    pause = _FIRST_PAUSE_S
    while True:
        started = loop.time()
        # A session of its own: Ctrl-C at the terminal reaches the supervisor alone, who asks once, politely.
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "madeira", *command),
            start_new_session=True,
            env=os.environ | {_PARENT: str(os.getpid()), _PROCESSES: str(processes)},
        )
        code = await _wait(child, stop, grace_s)
        if stop.is_set():
            return code
        pause = (
            _FIRST_PAUSE_S if loop.time() - started > _HEALTHY_AFTER_S else min(2 * pause, _LONGEST_PAUSE_S)
        )
        log.error("worker_ended", extra={"fields": {"number": number, "code": code, "again_in_s": pause}})
        try:
            async with asyncio.timeout(pause):
                await stop.wait()
        except TimeoutError:
            continue
        return code


async def _wait(child: asyncio.subprocess.Process, stop: asyncio.Event, grace_s: Callable[[], float]) -> int:
    ended = asyncio.create_task(child.wait())
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            child.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(grace_s()):
                    await asyncio.shield(ended)
            except TimeoutError:
                child.kill()
        return await ended
    finally:
        stopped.cancel()


def processes_like_this() -> int:
    """How many processes the supervisor of this one keeps, this one included; 1 where there is none."""
    return int(os.environ.get(_PROCESSES, "1")) if _PARENT in os.environ else 1


def supervisor_gone() -> bool:
    """Whether this process was started by a supervisor that was killed since.

    Who went on without one would keep the rates and partners of an old jobs.toml, and nobody could end it.
    """
    return os.environ.get(_PARENT, str(os.getppid())) != str(os.getppid())


async def leave_with_supervisor(stop: asyncio.Event, asked: Callable[[], object]) -> None:
    """Call `asked` and set `stop` when the supervisor is gone."""
    while not stop.is_set():
        if supervisor_gone():
            log.warning("supervisor_gone")
            asked()
            stop.set()
        await asyncio.sleep(_LOOKED_EVERY_S)
