"""Studies: many points of one scenario, or searches of a space, as tables, plots and a record of the run."""

from crossflow.study.reading import Study, read_study
from crossflow.study.run import StudyResult, run_study

__all__ = ["Study", "StudyResult", "read_study", "run_study"]
