"""Storage that fails, falls short or takes the process along: no answer lies, and all recovers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import fault_works, faults
from tests.sites import Site

from memoranda.ledger.bundles import FILE_NAME

STRIDE = 7
"""The gate takes every seventh fault that a call can notice."""

WORKERS = min(4, os.cpu_count() or 1)
ROOT = Path(__file__).parents[1]


def walked(shim: Path | None, site: Site, first: int, stride: int) -> dict[str, dict[str, Any]]:
    """What each work met, from programs that share its faults between them."""
    if shim is None:
        pytest.fail("spoiling writes needs a C compiler on this machine")
    programs = []
    for worker in range(WORKERS):
        folder = site.folder / f"worker {worker}"
        folder.mkdir()
        which = "all" if stride == 1 else "noticed"
        share = [str(folder), str(first + worker * stride), str(WORKERS * stride), which]
        command = [sys.executable, "-W", "error", "-m", "tests.faults", *share]
        environment = {"LD_PRELOAD": str(shim), "PATH": os.defpath}
        programs.append(
            subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    said = [program.communicate() for program in programs]
    assert [program.returncode for program in programs] == [0] * WORKERS, said
    shares = [json.loads(out) for out, _ in said]
    return {
        name: {
            "tried": sum(share[name]["tried"] for share in shares),
            "wrong": [it for share in shares for it in share[name]["wrong"]],
        }
        for name in faults.WORKS
    }


@pytest.mark.untraced
@pytest.mark.skipif(sys.platform != "linux", reason="calls are spoiled by Linux means")
@pytest.mark.sqlite("writes to files of this machine are spoiled")
def test_after_any_single_fault_the_answer_holds_and_a_retry_has_one_effect(
    shim, ram_site, exhaustive
):
    stride = 1 if exhaustive else STRIDE
    first = os.urandom(1)[0] % stride

    works = walked(shim, ram_site, first, stride)

    wrong = [it for work in works.values() for it in work["wrong"]]
    assert wrong == [], f"among every {stride}th fault from number {first} on"
    assert all(work["tried"] for work in works.values())


def test_an_answer_that_lies_is_found_out():
    work, empty = faults.WORKS["commit"], {"position": 3, "operations": {}}
    receipt = {"operation_id": "op-1", "position": 4}
    written = {"position": 4, "operations": {"op-1": ["committed", receipt]}}

    def lies(ended: list[Any], after: dict[str, Any]) -> int:
        return len(list(faults.lies(work, empty, after, ended)))

    assert lies(["done", receipt], written) == lies(["fault", "full"], empty) == 0
    assert lies(["unknown", "op-1"], written) == lies(["unknown", "op-1"], empty) == 0
    assert (
        lies(["done", receipt], empty) == lies(["done", {**receipt, "position": 5}], written) == 1
    )
    assert lies(["fault", "full"], written) == lies(["refused", "BUSY"], written) == 2
    assert lies(["unknown", None], written) == 1

    batch = fault_works.Work(fault_works.batch, ids=("op-1", "op-2"))
    other = {"operation_id": "op-2", "position": 5}
    both = {"position": 5, "operations": {it["operation_id"]: ["committed", it]
                                          for it in (receipt, other)}}  # fmt: skip

    def found(ended: list[Any], after: dict[str, Any]) -> int:
        return len(list(faults.lies(batch, empty, after, ended)))

    assert found(["done", [receipt, other]], both) == found(["unknown", "op-1"], both) == 0
    assert found(["done", [receipt, other]], written) == found(["unknown", "op-2"], both) == 1
    assert found(["done", [other, receipt]], both) == found(["done", [receipt]], both) == 1


def test_a_backup_that_does_not_hold_is_found_out(tmp_path):
    work, inner = fault_works.WORKS["backup"], tmp_path / "away" / fault_works.SPACE
    with fault_works.opened(tmp_path, work) as memory:
        (tmp_path / "code").write_text(memory.recovery_code)
        fault_works.backed_up(memory)
        old_bundle = (inner / FILE_NAME).read_bytes()
        fault_works.forget(memory)
        records = fault_works.records_of(memory)

    def found() -> str:
        return "\n".join(fault_works.is_tidy(tmp_path, work, records))

    assert found() == ""
    (inner / "log.new").touch()
    assert "beside the backup lie" in found()
    (inner / "log.new").unlink()
    bundle = (inner / FILE_NAME).read_bytes()
    (inner / FILE_NAME).write_bytes(old_bundle)
    assert "still found" in found()
    assert "the bundle is of key epoch 1" in found()
    (inner / FILE_NAME).write_bytes(bundle)
    (log,) = inner.glob("log-*.db")
    log.write_bytes(log.read_bytes()[:-4096])
    assert "does not come back" in found()
