"""Train the included forecaster by `recipe.toml` and write it here: `python -m foretell.included.almanac.make`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from foretell.config.toml import read_toml
from foretell.forecasting.calibration import INTERVALS
from foretell.forecasting.codec import SeriesCodecPart
from foretell.forecasting.forecaster import PART, load_forecaster
from foretell.forecasting.output import write_table
from foretell.forecasting.synthetic import synthetic_series
from foretell.forecasting.train import ForecastRequest, ForecastTraining
from foretell.saved_model.part import DECODER, DecoderPart
from foretell.saved_model.parts_on_disk import save_parts
from foretell.session.display import choose_display
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporters
from foretell.storage.files import CONFIG, WEIGHTS
from foretell.storage.manifest import write_manifest

HOME, RUN = Path(__file__).parent, Path("runs/almanac")
# These series choose the checkpoint and calibrate the intervals; the training draws from another seed
HELD_OUT_SEED, HELD_OUT_SERIES, HELD_OUT_LENGTH = 0, 64, 512


def make() -> None:
    """Train, then write the best checkpoint into this folder."""
    with TemporaryDirectory() as folder, Reporters(choose_display(True)) as reporter:
        file = Path(folder) / "held-out.csv"
        write_held_out(file)
        request = ForecastRequest(
            data=file,
            out=RUN,
            size="tiny",
            horizon=48,
            season=24,  # for errors in the log alone: the series have many
            is_from_scratch=True,
            overrides=read_toml(HOME / "recipe.toml"),
        )
        session = run_training(ForecastTraining(request), reporter)
    best = session.run.best()
    save(best.directory)
    print(f"almanac is step {best.step}: held-out loss {best.training()['validation_loss']:.3f} nats per value")


def write_held_out(path: Path) -> None:
    """A file of synthetic series in the long format."""
    rows = (
        [f"synthetic {index}", str(step), repr(float(value))]
        for index in range(HELD_OUT_SERIES)
        for step, value in enumerate(synthetic_series(HELD_OUT_SEED, index, HELD_OUT_LENGTH))
    )
    write_table(path, iter([["unique_id", "ds", "y"], *rows]))


def save(directory: Path) -> None:
    """Write a checkpoint as the included forecaster, without a fixed horizon, which depends on the series."""
    trained = load_forecaster(directory, "cpu", "float32")
    codec = SeriesCodecPart(trained.codec, horizon=None, season=None, calibration=trained.calibration)
    save_parts(HOME, {PART: codec, DECODER: DecoderPart(trained.decoder)})
    write_manifest(HOME, (CONFIG, WEIGHTS, INTERVALS))


if __name__ == "__main__":
    make()
