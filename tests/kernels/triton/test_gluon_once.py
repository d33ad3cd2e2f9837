"""The hint that is written into PTX where Triton has no argument for it."""

from __future__ import annotations

from deepinfer.kernels.gluon_once import _add_hints

_COPY = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
_OPERANDS = "[%r1], [%rd2, {%r3, %r4}], [%r5]"


def _hinted(ptx: str) -> str:
    stages = {"ptx": lambda source, metadata: source + metadata}
    assert _add_hints(None, stages, None, None, 90) == ("", "")
    return stages["ptx"](ptx, "")


def test_a_marked_copy_takes_the_hint_and_no_other() -> None:
    plain = f"@%p1 {_COPY} {_OPERANDS};\n"
    marked = f"mov.u32 %r9, 0; // read once\nelect.sync %r8|%p1, -1;\n{plain}"
    for ptx in (plain + marked + plain, marked + plain + marked):
        hinted = _hinted(ptx)
        count = ptx.count("// read once")
        assert hinted.count(f"@%p1 {_COPY}.L2::cache_hint {_OPERANDS}, once; }}\n") == count
        assert hinted.count(plain) == ptx.count(plain) - count
        assert hinted.count("createpolicy.fractional.L2::evict_first.b64 once, 1.0;") == count


def test_ptx_without_marks_stays() -> None:
    ptx = f"@%p1 {_COPY} {_OPERANDS};\n@%p2 cp.async.bulk.commit_group;\n"
    assert _hinted(ptx) == ptx


def test_other_stages_stay() -> None:
    stages = {"llir": str.upper}
    assert _add_hints(None, stages) == _add_hints() == ("", "")
    assert stages == {"llir": str.upper}
