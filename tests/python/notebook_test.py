#!/usr/bin/env python3
"""A notebook runs a job, plots it live and predicts, in a real Jupyter kernel; `jupyter nbconvert --execute` runs docs/notebooks.

    tests/python/notebook_test.py build/release/bin/trainctl"""
import os
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import ipykernel  # noqa: F401
    import matplotlib  # noqa: F401
    import nbclient
    import nbformat
    import numpy  # noqa: F401
    import yaml  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]

CELLS = [
    "import sys; sys.path.insert(0, {package!r})\nimport trainctl",
    "job = trainctl.Job({{'name': 'notebook', 'dataset': {{'type': 'random', 'shape': [8], 'classes': 4, 'samples': 256, 'batch': 8}},\n"
    "  'validation': {{'dataset': {{'samples': 32}}}}, 'network': [{{'type': 'dense', 'units': 4}}], 'loss': 'softmax_cross_entropy',\n"
    "  'optimizer': 'adam', 'train': {{'epochs': 3}}, 'launch': {{'device': 'cpu'}}}})\njob",
    "job.plan()['parameters']",
    "run = job.run()\nfigure = run.plot(live=True)\nfigure",
    "result = run.wait()\nresult.step, sorted(result.validation)",
    "run.checkpoint().numpy()['dense1.weight'].shape if 'dense1.weight' in run.checkpoint().numpy() else len(run.checkpoint().names())",
    "len(job.predict())",
]


def texts_of(cell):
    return "".join("".join(output.get("text") or output.get("data", {}).get("text/plain", [])) for output in cell["outputs"])


def executes_the_notebooks_of_the_documentation(folder):
    try:
        import nbconvert  # noqa: F401
    except ImportError as error:
        return f"docs/notebooks skipped: {error}"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    subprocess.run([sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--ExecutePreprocessor.timeout=300", "--output-dir", folder,
                    ROOT / "docs/notebooks/photos.ipynb"], check=True, capture_output=True, env=env)
    cells = [cell for cell in json.loads(pathlib.Path(folder, "photos.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])
    assert "parameters" in texts_of(cells[1]), texts_of(cells[1])
    assert any("image/png" in output.get("data", {}) for output in cells[2]["outputs"]), "the plot is an image"
    assert "(40, 1.0)" in texts_of(cells[2]), texts_of(cells[2])
    assert texts_of(cells[4]).rstrip().endswith("6"), texts_of(cells[4])
    return "nbconvert executes docs/notebooks/photos.ipynb"


def main():
    folder = tempfile.mkdtemp(prefix="trainctl-notebook-")
    os.environ.update(TRAINCTL_BINARY=os.path.abspath(sys.argv[1]), XDG_RUNTIME_DIR=folder, MPLBACKEND="module://matplotlib_inline.backend_inline")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.format(package=str(ROOT / "python"))) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    def outputs(cell):
        return [output for output in notebook.cells[cell].outputs if "data" in output]
    assert outputs(2)[0]["data"]["text/plain"] == str(8 * 4 + 4), outputs(2)
    assert any("image/png" in output["data"] for output in outputs(3)), "the plot is an image"
    assert outputs(4)[0]["data"]["text/plain"] == "(96, ['loss'])", outputs(4)
    assert outputs(6)[0]["data"]["text/plain"] == "32", outputs(6)
    print("a notebook runs, plots and predicts;", executes_the_notebooks_of_the_documentation(folder))


if __name__ == "__main__":
    main()
