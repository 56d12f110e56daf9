"""TensorBoard's own reader of the logs that training writes."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

SPEED = "train/tokens_per_second"


def read_scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return (step, value) of each scalar of a run as TensorBoard shows them, in the order written."""
    events = EventAccumulator(str(run / "logs"), size_guidance={"scalars": 0}).Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
