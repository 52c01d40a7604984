"""Runs `ringmark prefill` as a user does and compares what it wrote with what was expected."""
import fnmatch
import os
import subprocess
import sys
import tempfile

import numpy as np

from safetensors_io import read_safetensors

TOLERANCE = 1e-5  # of the largest value of a document


def prefill(ringmark, ranks, layer, options, output):
    """The tensors of the result."""
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = ["mpirun", "--oversubscribe", "-n", str(ranks), ringmark, "prefill", "--input", layer, "--threads", "1",
               "--quiet", "--output", output, *options]
    run = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    if run.returncode != 0:
        said = [line for line in run.stderr.splitlines() if line.startswith("ringmark:")] or run.stderr.split("\n")
        raise AssertionError(f"exit {run.returncode}: {said[0]} ({' '.join(options)})")
    return read_safetensors(output)[0]


def scale_of(values):
    return np.max(np.abs(values[np.isfinite(values)]), initial=0.0)


def largest_difference(found, expected):
    """Over the largest expected value; values that are not finite must be equal."""
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite]) or not np.isfinite(found[finite]).all():
        return np.inf
    scale = scale_of(expected)
    return np.max(np.abs(found[finite] - expected[finite]), initial=0.0) / (scale if scale > 0 else 1.0)


def expect_close(found, expected, rows, first_token, what, tolerance=TOLERANCE):
    """Compares [n, H, ...] where rows [n, H] says so; fails with the first token and head that differ. Returns the
    largest difference."""
    found = np.asarray(found, np.float64)
    if found.shape != expected.shape:
        raise AssertionError(f"{what} has shape {found.shape}, expected {expected.shape}")
    worst = largest_difference(found[rows], expected[rows])
    if worst <= tolerance:
        return worst
    limit = tolerance * max(scale_of(expected[rows]), np.finfo(float).tiny)
    with np.errstate(invalid="ignore"):
        apart = ~((found == expected) | (np.abs(found - expected) <= limit))
    token, head, *element = np.argwhere(apart & rows.reshape(rows.shape + (1,) * (found.ndim - 2)))[0]
    at = (token, head, *element)
    raise AssertionError(f"{what} of token {first_token + token}, head {head}{f', element {element[0]}' if element else ''}"
                         f" is {found[at]:.9g}, expected {expected[at]:.9g}")


def compare_documents(layer, found, expected, clear=None):
    """o and lse of every document with its expected result, in all rows or in those that are clear [n, H]. Returns the
    largest difference."""
    worst = 0.0
    for at, wanted in enumerate(expected):
        rows = np.ones(wanted.lse.shape, bool) if clear is None else clear[at]
        for name in ("o", "lse"):
            worst = max(worst, expect_close(found[name][layer.rows(at)], getattr(wanted, name), rows,
                                            int(layer.starts[at]), name))
    return worst


def run_cases(cases, check, ringmark, patterns):
    """check(case, ringmark, folder) for every case, or for those whose names match a pattern; it returns what to print
    and raises AssertionError where a result differs. The exit code."""
    unknown = [p for p in patterns if not fnmatch.filter([case.name for case in cases], p)]
    if unknown:
        sys.exit(f"no case is named {unknown[0]}")
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            if patterns and not any(fnmatch.fnmatch(case.name, pattern) for pattern in patterns):
                continue
            try:
                print(f"{case.name:<18}ranks {' '.join(map(str, case.ranks)):<8} "
                      f"{check(case, os.path.abspath(ringmark), folder)}", flush=True)
            except AssertionError as difference:
                failures += 1
                print(f"{case.name:<18}FAIL: {difference}", flush=True)
    return 1 if failures else 0
