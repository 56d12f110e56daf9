"""What the script that measures a GPU makes of its measurements: rates, spreads, limits, sensors and versions."""

import itertools
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tests.bench.gpu import limits, sensors, versions
from tests.bench.gpu.child import Gone
from tests.bench.gpu.client import Load
from tests.bench.gpu.sensors import NoSensors, Sample, Sensors, summary
from tests.bench.gpu.serving import answered_of, read_metrics, tree_cpu_s
from tests.bench.gpu.spread import median, slices_of

ANSWER = {"failed": {}, "failure": "", "seconds": 1.0, "cpu_s": 0.1}


def answer(count: int, **more: Any) -> dict[str, Any]:
    """What a client returns that got ``count`` answers, evenly over a second, after 1, 2, 3 ... ms."""
    return {**ANSWER, "ends": [[(number + 1) / count, number + 1.0, 1] for number in range(count)], **more}


def test_the_spread_has_the_extremes_and_the_quartiles_of_all_rounds() -> None:
    assert median([3.0, 1.0, 2.0, 5.0, 4.0]).value == 3.0
    assert median([3.0, 1.0, 2.0, 5.0, 4.0]).spread() == {"min": 1.0, "q1": 2.0, "q3": 4.0, "max": 5.0, "rounds": 5}
    assert median([3.0]).spread() == {"min": 3.0, "q1": 3.0, "q3": 3.0, "max": 3.0, "rounds": 1}


def test_slices_have_the_rate_of_their_own_time_and_leave_out_the_beginning() -> None:
    ends = [(0.1, 5), (0.6, 1), (0.8, 2), (1.4, 3), (1.5, 1)]

    assert slices_of(ends, 0.5, 2) == pytest.approx([6.0, 8.0])
    assert slices_of([], 0.0, 2) == []


def test_a_failed_call_is_counted_by_its_code_and_costs_no_rate() -> None:
    found = answered_of([answer(100, failed={"CANCELLED": 1}, failure="CANCELLED: too many"), answer(100, failed={"CANCELLED": 2})], 0.0)

    assert found.rate.value == pytest.approx(200)
    assert found.failed == {"CANCELLED": 3}
    assert found.failure == "CANCELLED: too many"
    assert found.p99_ms.value == 100
    assert len(found.rate.rounds) == len(found.p99_ms.rounds) == 5


def test_the_rate_begins_when_all_callers_have_begun() -> None:
    # Half of the calls end in the first quarter of the second.
    slow = [[0.25 * (number + 1) / 100, 1.0, 1] for number in range(100)] + [
        [0.25 + 0.75 * (number + 1) / 75, 1.0, 1] for number in range(75)
    ]

    assert answered_of([{**ANSWER, "ends": slow}], 0.25).rate.value == pytest.approx(100, rel=0.02)


def test_a_load_without_an_answer_says_what_the_first_call_was_told() -> None:
    with pytest.raises(Gone, match="none of 3 texts was answered; the first call that failed had UNAVAILABLE: gone"):
        answered_of([{**ANSWER, "ends": [], "failed": {"UNAVAILABLE": 3}, "failure": "UNAVAILABLE: gone"}], 0.0)


async def test_the_texts_of_a_stream_that_ends_early_are_counted_as_failed() -> None:
    class Ends:
        def ClassifyStream(self, items: AsyncIterator[object]) -> AsyncIterator[object]:  # noqa: N802  # gRPC's name
            async def answers() -> AsyncIterator[object]:
                await anext(items)
                await anext(items)
                raise grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, grpc.aio.Metadata(), grpc.aio.Metadata(), details="ended")
                yield

            return answers()

    load = Load("127.0.0.1:1", ["a text"], 1)
    load._stubs = itertools.cycle([Ends()])

    await load.stream(until=float("inf"), in_flight=2)

    found = await load.close()
    assert (found["failed"], found["failure"], found["ends"]) == ({"CANCELLED": 2}, "CANCELLED: ended", [])


def test_the_limit_is_the_side_that_was_busy_and_the_clients_count_first() -> None:
    busy = {limits.CLIENT: 0.5, limits.DEVICE: 0.3, limits.LOOP: 0.95, limits.TOKENIZER: 0.7}

    assert limits.limit_of(busy) == limits.LOOP
    assert limits.limit_of({**busy, limits.CLIENT: 0.93}) == limits.CLIENT
    assert limits.limit_of({**busy, limits.LOOP: 0.6}).startswith("no side")
    assert limits.server_busy(busy) == 0.95
    assert limits.host_limit(950.0, busy) == pytest.approx(1000)
    assert limits.host_limit(950.0, {}) == 0


def test_the_cpu_time_of_a_server_has_that_of_processes_in_sessions_of_their_own() -> None:
    spin = "import sys, time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\nsys.stdin.read()"
    nest = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}], start_new_session=True)"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", nest], stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()

        # The kernel counts in hundredths, and rounds down for each process.
        assert tree_cpu_s(process.pid) > 0.2 - 0.03

        # Both end with their input.
        process.communicate()


def test_metrics_are_summed_over_all_labels_but_kind_and_process() -> None:
    page = "\n".join(
        [
            "# HELP x y",
            'x_total{kind="real",model="a"} 1.0',
            'x_total{kind="real",model="b"} 2.0',
            'busy_total{process="front-0"} 3.0',
            "plain 4.0",
        ]
    )

    assert read_metrics(page) == {"x_total.real": 3.0, "busy_total.front-0": 3.0, "plain": 4.0}


class Fault(Exception):
    """NVML's error."""


def nvml(**more: Any) -> SimpleNamespace:
    """An nvidia-ml-py that knows one GPU."""

    def handle(uuid: str) -> str:
        if uuid != "GPU-1":
            raise Fault("not found")
        return "it"

    def power(_: str) -> int:
        raise Fault("not supported")

    return SimpleNamespace(
        NVMLError=Fault,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=handle,
        nvmlDeviceGetClockInfo=lambda _, clock: 1980,
        nvmlDeviceGetPowerUsage=power,
        nvmlDeviceGetTemperature=lambda _, sensor: 61,
        **more,
    )


def test_sensors_that_cannot_be_read_are_null_with_the_reason() -> None:
    read = Sensors("1", nvml())

    found = summary([read.read(), read.read()], read.absent)

    assert found["sm_clock_mhz"] == {"min": 1980, "median": 1980, "max": 1980}
    assert found["temperature_c"]["max"] == 61
    assert found["power_w"] is found["held_back"] is None
    assert found["absent"]["power_w"] == "not supported"
    assert "nvmlDeviceGetCurrentClocksEventReasons" in found["absent"]["held_back"]
    json.dumps(found)


def test_samples_of_an_idle_gpu_do_not_count_and_reasons_have_their_share() -> None:
    samples = [Sample(345, 70, 40, 0x1), Sample(1755, 690, 60, 0x4), Sample(1980, 400, 58, 0x0)]

    found = summary(samples, {})

    assert found["sm_clock_mhz"] == {"min": 1755, "median": 1867.5, "max": 1980}
    assert found["held_back"] == {"power cap": 0.5}
    assert (found["samples"], found["at_work"], found["absent"]) == (3, 2, {})
    assert "1755-1980 MHz, 400-690 W, 58-60 C, power cap 50%" in sensors.line("checks", 3.0, found)


def test_a_gpu_that_nvml_does_not_know_has_no_sensors() -> None:
    with pytest.raises(NoSensors, match="NVML does not know the GPU: not found"):
        Sensors("2", nvml())


def test_libraries_that_are_not_loaded_have_no_version(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r--p 00000000 00:00 12 /nowhere/libcudnn.so.9\n7f02-7f03 rw-p 00000000 00:00 0\n")

    found = versions.loaded(maps)

    assert found["cublas"] is None
    assert "/nowhere/libcudnn.so.9" in (found["cudnn"] or "")
