//! Tests which forms of an instruction load: exactly those that the manual's syntax lists for the supported types.

use virtual_gpu_ptx as ptx;

use crate::opcodes::run_on_threads;

/// Returns the error about a kernel with these statements, if any.
fn error(body: &str) -> Option<String> {
    let source = format!(
        ".version 9.2\n.target sm_100\n.address_size 64\n
        .func g() {{ ret; }}
        .visible .entry f(.param .u64 p)
        {{
        .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<9>; .shared .align 16 .b8 s[64];
        {body}
        ret;
        }}"
    );
    ptx::load(&source).err().map(|error| error.to_string())
}

#[track_caller]
pub(crate) fn assert_loads(instructions: &[&str]) {
    for instruction in instructions {
        assert_eq!(error(instruction), None, "{instruction}");
    }
}

#[track_caller]
pub(crate) fn assert_refused(instructions: &[&str]) {
    for instruction in instructions {
        let name = instruction.split([' ', ';']).next().unwrap_or("");
        let error = error(instruction).unwrap_or_default();
        let wanted = format!("unsupported instruction `{name}`");
        assert!(error.contains(&wanted) || error.contains("number of operands"), "{instruction}: {error}");
    }
}

#[test]
fn integers_and_bits() {
    assert_loads(&[
        "mad.hi.sat.s32 %r0, %r1, %r2, %r3;",
        "mad.hi.s16 %h0, %h1, %h2, %h3;",
        "min.relu.s32 %r0, %r1, %r2;",
        "shr.b64 %d0, %d1, %r1;",
    ]);
    assert_refused(&[
        "add.b32 %r0, %r1, %r2;",
        "mad.lo.sat.s32 %r0, %r1, %r2, %r3;",
        "mul24.lo.u16 %h0, %h1, %h2;",
        "min.relu.u32 %r0, %r1, %r2;",
        "abs.relu.s32 %r0, %r1;",
        "popc.u32 %r0, %r1;",
        "clz.shiftamt.b32 %r0, %r1;",
        "bfind.b32 %r0, %r1;",
        "shl.u32 %r0, %r1, %r2;",
        "shr.f32 %r0, %r1, %r2;",
    ]);
}

#[test]
fn comparisons_and_selections() {
    assert_loads(&[
        "setp.lo.u32 %p0, %r1, %r2;",
        "setp.eq.b16 %p0, %h1, %h2;",
        "setp.nan.f16x2 %p0|%p1, %r1, %r2;",
        "set.lt.u16.f16 %h0, %h1, %h2;",
        "set.lt.bf16.f16 %h0, %h1, %h2;",
        "set.nan.bf16.bf16 %h0, %h1, %h2;",
        "set.lt.f16.s32 %h0, %r1, %r2;",
        "slct.ftz.b16.f32 %h0, %h1, %h2, %r1;",
    ]);
    assert_refused(&[
        "setp.lt.b32 %p0, %r1, %r2;",
        "setp.lo.s32 %p0, %r1, %r2;",
        "setp.lo.f32 %p0, %r1, %r2;",
        "setp.ltu.s32 %p0, %r1, %r2;",
        "setp.lt.f16 %p0|%p1, %h1, %h2;",
        "set.lt.u16.s32 %h0, %r1, %r2;",
        "set.lt.f32.f16 %r0, %h1, %h2;",
        "selp.f16 %h0, %h1, %h2, %p1;",
        "selp.pred %p0, %p1, %p2, %p3;",
        "slct.ftz.b32.s32 %r0, %r1, %r2, %r3;",
    ]);
}

#[test]
fn floating_point() {
    assert_loads(&[
        "mad.rn.f32 %r0, %r1, %r2, %r3;",
        "rcp.approx.ftz.f64 %d0, %d1;",
        "rsqrt.approx.f64 %d0, %d1;",
        "rsqrt.approx.ftz.f64 %d0, %d1;",
        "div.full.ftz.f32 %r0, %r1, %r2;",
        "fma.rn.ftz.relu.f16 %h0, %h1, %h2, %h3;",
        "ex2.approx.ftz.bf16x2 %r0, %r1;",
        "tanh.approx.bf16 %h0, %h1;",
    ]);
    assert_refused(&[
        "fma.f32 %r0, %r1, %r2, %r3;",
        "div.f32 %r0, %r1, %r2;",
        "div.approx.rn.f32 %r0, %r1, %r2;",
        "div.rn.sat.f32 %r0, %r1, %r2;",
        "sqrt.f64 %d0, %d1;",
        "rcp.approx.f64 %d0, %d1;",
        "min.rn.f32 %r0, %r1, %r2;",
        "min.NaN.f64 %d0, %d1, %d2;",
        "copysign.ftz.f32 %r0, %r1, %r2;",
        "tanh.approx.ftz.f32 %r0, %r1;",
        "mad.rn.f16 %h0, %h1, %h2, %h3;",
        "add.ftz.bf16 %h0, %h1, %h2;",
        "add.sat.bf16 %h0, %h1, %h2;",
        "fma.rn.sat.relu.f16 %h0, %h1, %h2, %h3;",
        "ex2.approx.bf16 %h0, %h1;",
        "ex2.approx.ftz.f16 %h0, %h1;",
    ]);
}

#[test]
fn conversions_and_moves() {
    assert_loads(&[
        "cvt.rz.relu.bf16.f32 %h0, %r1;",
        "cvt.rp.bf16.f32 %h0, %r1;",
        "cvt.rz.bf16.f16 %h0, %h1;",
        "cvt.rpi.bf16.bf16 %h0, %h1;",
        "cvt.sat.f32.f32 %r0, %r1;",
        "cvta.param::entry.u64 %d0, p;",
        "isspacep.param::entry %p0, %d1;",
    ]);
    assert_refused(&[
        "cvt.f32.f64 %r0, %d1;",
        "cvt.rn.f64.f32 %d0, %r1;",
        "cvt.rni.f32.f64 %r0, %d1;",
        "cvt.rn.rni.f32.f32 %r0, %r1;",
        "cvt.rn.u32.u64 %r0, %d1;",
        "cvt.ftz.u32.u64 %r0, %d1;",
        "cvt.b32.u16 %r0, %h1;",
        "cvt.rn.sat.bf16.f32 %h0, %r1;",
        "cvt.rp.relu.f16.f32 %h0, %r1;",
        "cvt.rm.f16x2.f32 %r0, %r1, %r2;",
        "cvt.rn.ftz.f16x2.f32 %r0, %r1, %r2;",
        "mov.f16 %h0, %h1;",
        "mov.u32 %r0, {%h1, %h2};",
        "cvta.global.b64 %d0, %d1;",
        "isspacep.param::func %p0, %d1;",
    ]);
}

#[test]
fn loads_and_stores() {
    assert_loads(&[
        "ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%r0, %r1, %r2, %r3}, [%d1];",
        "ld.relaxed.gpu.global.L1::no_allocate.u32 %r0, [%d1];",
        "ld.global.L1::evict_last.L2::evict_first.v4.b64 {%d0, %d1, %d2, %d3}, [%d4];",
        "ld.mmio.relaxed.sys.global.u32 %r0, [%d1];",
        "st.release.cluster.shared::cta.u32 [s], %r0;",
        "st.global.L1::no_allocate.u32 [%d1], %r0;",
        "ldu.global.v2.f32 {%r0, %r1}, [%d1];",
        "prefetch.global.L2::evict_last [%d1];",
        "prefetch.L1 [%d1];",
        "prefetchu.L1 [%d1];",
    ]);
    assert_refused(&[
        "ld.f16 %h0, [%d1];",
        "ld.relaxed.u32 %r0, [%d1];",
        "ld.gpu.u32 %r0, [%d1];",
        "ld.release.gpu.u32 %r0, [%d1];",
        "ld.relaxed.volatile.gpu.u32 %r0, [%d1];",
        "ld.relaxed.gpu.local.u32 %r0, [%d1];",
        "ld.volatile.ca.u32 %r0, [%d1];",
        "ld.volatile.param.u64 %d0, [p];",
        "ld.volatile.local.u32 %r0, [%d1];",
        "ld.shared.nc.u32 %r0, [s];",
        "ld.global.cv.nc.u32 %r0, [%d1];",
        "ld.ca.L1::evict_last.u32 %r0, [%d1];",
        "ld.shared.L2::128B.u32 %r0, [s];",
        "ld.L1::sometimes.u32 %r0, [%d1];",
        "ld.shared.v4.b64 {%d0, %d1, %d2, %d3}, [s];",
        "ld.mmio.relaxed.gpu.u32 %r0, [%d1];",
        "ld.wb.u32 %r0, [%d1];",
        "st.ca.u32 [%d1], %r0;",
        "st.const.u32 [%d1], %r0;",
        "st.acquire.gpu.u32 [%d1], %r0;",
        "st.global.L2::128B.u32 [%d1], %r0;",
        "ldu.shared.u32 %r0, [s];",
        "ldu.cg.u32 %r0, [%d1];",
        "prefetch.shared.L1 [s];",
        "prefetchu.L2 [%d1];",
        "cp.async.ca.shared.global.L2::64B.L2::128B [s], [%d1], 4;",
    ]);
}

#[test]
fn atomics_fences_and_control_flow() {
    assert_loads(&[
        "atom.acq_rel.cluster.global.add.u32 %r0, [%d1], %r1;",
        "red.release.gpu.add.noftz.bf16x2 [%d1], %r1;",
        "fence.gpu;",
        "fence.acquire.cluster;",
        "fence.cta.sc;",
        "fence.sys.acq_rel;",
        "ret.uni;",
        "bar.cta.sync 0;",
    ]);
    assert_refused(&[
        "atom.add.f16 %h0, [%d1], %h1;",
        "atom.add.noftz.f32 %r0, [%d1], %r1;",
        "atom.acquire.release.add.u32 %r0, [%d1], %r1;",
        "red.exch.b32 [%d1], %r1;",
        "red.cas.b32 [%d1], %r1, %r2;",
        "red.acquire.gpu.add.u32 [%d1], %r1;",
        "fence.sc;",
        "fence.gpu.sys;",
        "fence.sc.acq_rel;",
        "ret.twice;",
        "barrier.warp.sync 1;",
        "bar.cta.warp.sync 1;",
    ]);
}

#[test]
fn products_and_minima_of_two_steps() {
    let edges = [0, 1, 2, 0x7fff, 0x8000, 0xffff, 0x4000_0000, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];
    let triples: Vec<[u64; 3]> =
        edges.iter().flat_map(|&a| edges.map(|b| edges.map(|c| [a, b, c]))).flatten().collect();
    let inputs: Vec<&[u64]> = triples.iter().map(|triple| triple.as_slice()).collect();
    type Case = (&'static str, &'static str, fn(i32, i32, i32) -> u32);
    let cases: [Case; 5] = [
        ("%r0", "mad.hi.sat.s32 %r0, %r1, %r2, %r3;", |a, b, c| {
            (((i64::from(a) * i64::from(b)) >> 32) as i32).saturating_add(c) as u32
        }),
        ("%h0", "mad.hi.s16 %h0, %h1, %h2, %h3;", |a, b, c| {
            let product = i32::from(a as i16) * i32::from(b as i16);
            u32::from(((product >> 16) as u16).wrapping_add(c as u16))
        }),
        ("%h0", "mad.hi.u16 %h0, %h1, %h2, %h3;", |a, b, c| {
            let product = u32::from(a as u16) * u32::from(b as u16);
            u32::from(((product >> 16) as u16).wrapping_add(c as u16))
        }),
        ("%r0", "min.relu.s32 %r0, %r1, %r2;", |a, b, _| a.min(b).max(0) as u32),
        ("%r0", "max.relu.s32 %r0, %r1, %r2;", |a, b, _| a.max(b).max(0) as u32),
    ];
    for (result, instruction, expected) in cases {
        for (got, [a, b, c]) in run_on_threads(result, instruction, &inputs).into_iter().zip(&triples) {
            let expected = expected(*a as i32, *b as i32, *c as i32);
            assert_eq!(got, u64::from(expected), "{instruction} of {a:#x} {b:#x} {c:#x}");
        }
    }
}

#[test]
fn parameters_lie_in_the_global_window() {
    let body = "cvta.param.u64 %d5, in; isspacep.param %p1, %d5; isspacep.global %p2, %d5;
        isspacep.shared %p3, %d5; isspacep.param %p4, %in; isspacep.global %p5, %in;
        and.pred %p0, %p1, %p2; and.pred %p0, %p0, !%p3; and.pred %p0, %p0, !%p4; and.pred %p0, %p0, %p5;";
    assert_eq!(run_on_threads("%p0", body, &[&[0]]), [1]);
}
