"""docs/gpus.md: its figures are of the kernels that the library dispatches today, and its tables are those of the files."""

from __future__ import annotations

import pytest

from benchmarks.gpu_model import LIMITS, Limits, Time, occupancy
from benchmarks.gpu_recording import kernels
from benchmarks.gpu_sass import hot_loop
from benchmarks.gpu_tables import DOCUMENT, read, written


def test_the_list_of_kernels_is_what_is_recorded() -> None:
    figures = read("gpu_static.json")["kernels"]
    expected, actual = kernels(), {name: tuple(of["used"]) for name, of in figures.items()}
    assert actual == expected, "run python -m benchmarks.gpu_static and python -m benchmarks.gpu_tables"


def test_the_tables_are_those_of_the_files() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == written(text), "run python -m benchmarks.gpu_tables"


@pytest.mark.parametrize(
    ("limits", "threads", "registers", "shared", "expected"),
    [
        # 65,536 registers hold 32 warps of 64, and 40 of 48.
        (LIMITS["sm_90"], 256, 64, 0, 0.5),
        (LIMITS["sm_90"], 256, 48, 0, 40 / 64),
        (LIMITS["sm_90"], 256, 32, 0, 1.0),
        # Seven blocks of 32 KiB, of a warp each.
        (LIMITS["sm_90"], 32, 32, 31 << 10, 7 / 64),
        (LIMITS["sm_75"], 32, 16, 0, 0.5),
        (Limits(48, 24, 100 << 10, 1 << 10), 1024, 32, 0, 32 / 48),
    ],
)
def test_occupancy(limits: Limits, threads: int, registers: int, shared: int, expected: float) -> None:
    assert occupancy(limits, threads, registers, shared) == pytest.approx(expected)


def test_what_binds_a_stage() -> None:
    time = Time(issue=1.0, memory=2.0, launch=0.5)
    assert (time.total, time.bound) == (2.5, "memory")


LISTING = """
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_1:
        /*0010*/                   LDG.E R1, desc[UR4][R2.64] ;
        /*0020*/                   FSETP.GT.AND P0, PT, R1, 1, PT ;
.L_x_2:
        /*0030*/                   MUFU.EX2 R1, R1 ;
        /*0040*/              @!P0 BRA `(.L_x_4) ;
        /*0050*/                   FADD R1, R1, R1 ;
.L_x_3:
        /*0060*/                   SHFL.BFLY PT, R1, R1, 0x1, 0x1f ;
        /*0070*/               @P1 BRA `(.L_x_3) ;
        /*0080*/                   RED.E.ADD.F32.FTZ.RN.STRONG.GPU desc[UR4][R2.64], R1 ;
.L_x_4:
        /*0090*/              @!P0 BRA.DIV UR4, `(.L_x_5) ;
        /*00a0*/               @P2 BRA `(.L_x_2) ;
        /*00b0*/               @P3 BRA `(.L_x_1) ;
        /*00c0*/                   EXIT ;
.L_x_5:
        /*00d0*/                   BRA `(.L_x_4) ;
"""


def test_the_hot_loop_of_a_listing() -> None:
    """The innermost one with the exponential; of it the part that a branch skips, with a loop that runs thrice."""
    loop = hot_loop(LISTING)
    assert loop is not None
    assert loop.conditional == {"shuffle": 3, "atomic": 1, "branch": 3, "fp32": 1}
    assert loop.counts == {"mufu": 1, "shuffle": 3, "mask": 1, "atomic": 1, "branch": 5, "fp32": 1}
    assert loop.around == {"global load": 1, "branch": 1, "fp32": 1}
    assert hot_loop(LISTING.replace("MUFU.EX2", "MUFU.RCP")) is None
