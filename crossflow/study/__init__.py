"""Studies: many points of one scenario, as tables, plots and a record of the run."""

from crossflow.study.run import Study, StudyResult, read_study, run_study

__all__ = ["Study", "StudyResult", "read_study", "run_study"]
