"""The jobs of this folder by name, like tests/jobs/jobs.h for C++."""

import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent


def job_file(name):
    file = FOLDER / f"{name}.yaml"
    assert file.is_file(), f"no job {file}"
    return file
