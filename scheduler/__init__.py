"""Running a job: a pure state machine, and the Ray shell that carries its instructions out."""
