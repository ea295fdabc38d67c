//! Instructions that came with compute capability 9.0: `stmatrix`, `movmatrix`, `elect.sync`, and hints.

use crate::arguments;
use crate::gpu::Gpu;
use crate::manual::{assert_loads, assert_refused};

/// Runs `body` on a warp whose lane `l` has `2 l` and `2 l + 1` in the halves of `%r2`, and returns what the lanes leave in
/// `%r3`. `%r8` is the address of the lane's row of 16 bytes in `tile`.
fn run(body: &str) -> Vec<u32> {
    let source = format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n
        .visible .entry test(.param .u64 y)
        {{
        .reg .b32 %r<20>; .reg .b64 %d<6>; .reg .pred %p<4>;
        .shared .align 16 .b8 tile[512];
        ld.param.u64 %d1, [y]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2;
        shl.b32 %r2, %r1, 1; add.u32 %r4, %r2, 1; shl.b32 %r4, %r4, 16; or.b32 %r2, %r2, %r4;
        mov.u32 %r6, tile; shl.b32 %r7, %r1, 4; add.u32 %r8, %r6, %r7; mov.u32 %r3, 0;
        {body}
        st.global.u32 [%d1], %r3;
        ret;
        }}"
    );
    let mut gpu = Gpu::new(&source);
    let y = gpu.buffer(&[0_u32; 32]);
    let done = gpu.run("test", 1, 32, arguments!(y));
    assert!(done.race.is_none(), "{}", done.race.unwrap());
    gpu.read(y)
}

fn pair(low: usize, high: usize) -> u32 {
    (low | high << 16) as u32
}

#[test]
fn a_stored_matrix_has_its_rows_at_the_lanes_addresses() {
    let read = "bar.warp.sync -1; shl.b32 %r5, %r1, 2; add.u32 %r5, %r5, %r6; ld.shared.u32 %r3, [%r5];";
    let stored = run(&format!("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r8], {{%r2}}; {read}"));
    for (at, got) in stored.into_iter().enumerate() {
        // Row at / 4 has the elements of the lanes 4 row to 4 row + 3.
        assert_eq!(got, pair(2 * at, 2 * at + 1), "word {at}");
    }
    let stored = run(&format!("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%r8], {{%r2}}; {read}"));
    for (at, got) in stored.into_iter().enumerate() {
        // The element in row r and column c is that of row c and column r.
        let element = |column: usize| 8 * column + at / 4;
        let first = 2 * (at % 4);
        assert_eq!(got, pair(element(first), element(first + 1)), "word {at}");
    }
}

#[test]
fn a_matrix_that_is_stored_and_loaded_is_the_same() {
    let modifiers = ["x4.shared::cta", "x4", "x4.trans.shared"];
    for modifiers in modifiers {
        let (address, convert) = match modifiers {
            "x4" => ("%d3", "cvt.u64.u32 %d3, %r8; cvta.shared.u64 %d3, %d3;"),
            _ => ("%r8", ""),
        };
        let got = run(&format!(
            "{convert} add.u32 %r10, %r2, 1; add.u32 %r11, %r2, 2; add.u32 %r12, %r2, 3;
            stmatrix.sync.aligned.m8n8.{modifiers}.b16 [{address}], {{%r2, %r10, %r11, %r12}}; bar.warp.sync -1;
            ldmatrix.sync.aligned.m8n8.{modifiers}.b16 {{%r13, %r14, %r15, %r16}}, [{address}];
            xor.b32 %r3, %r12, %r16; xor.b32 %r4, %r10, %r14; or.b32 %r3, %r3, %r4; xor.b32 %r4, %r2, %r13; or.b32 %r3, %r3, %r4;"
        ));
        assert_eq!(got, [0; 32], "{modifiers}");
    }
}

#[test]
fn movmatrix_transposes() {
    for (lane, got) in run("movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r2;").into_iter().enumerate() {
        let element = |column: usize| 8 * column + lane / 4;
        let first = 2 * (lane % 4);
        assert_eq!(got, pair(element(first), element(first + 1)), "lane {lane}");
    }
}

#[test]
fn one_of_the_members_is_elected() {
    let got = run("elect.sync %r4|%p1, -1; selp.u32 %r3, 100, 0, %p1; add.u32 %r3, %r3, %r4;");
    assert_eq!(got[0], 100);
    assert_eq!(got[1..], [0; 31]);
    let got = run(
        "setp.lt.u32 %p2, %r1, 20; @%p2 bra END; elect.sync _|%p1, 0xfff00000; selp.u32 %r3, 7, 1, %p1; END:",
    );
    let expected: Vec<u32> =
        (0..32).map(|lane| [u32::from(lane >= 20), 7][usize::from(lane == 20)]).collect();
    assert_eq!(got, expected);
}

#[test]
fn hints_change_nothing() {
    let got = run("createpolicy.fractional.L2::evict_last.b64 %d3, 0f3f800000;
        createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %d3, 0f3e800000;
        createpolicy.fractional.L2::evict_first.b64 %d3; createpolicy.cvt.L2.b64 %d3, 1;
        applypriority.global.L2::evict_normal [%d1], 128; griddepcontrol.wait; griddepcontrol.launch_dependents;
        mov.u32 %r3, 5;");
    assert_eq!(got, [5; 32]);
}

#[test]
fn forms_are_those_of_the_manual() {
    assert_loads(&["setmaxnreg.inc.sync.aligned.u32 240;", "setmaxnreg.dec.sync.aligned.u32 24;"]);
    assert_refused(&[
        "stmatrix.sync.aligned.m8n8.x3.shared.b16 [%r0], {%r1, %r2, %r3};",
        "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r0], {%r1};",
        "movmatrix.sync.aligned.m8n8.b16 %r0, %r1;",
        "elect.any %r0|%p1, -1;",
        "createpolicy.fractional.L2::evict_normal.L2::evict_last.b64 %d0;",
        "createpolicy.range.global.L2::evict_last.b64 %d0, [%d1], 128, 256;",
        "applypriority.global.L2::evict_last [%d0], 128;",
        "griddepcontrol.start;",
        "setmaxnreg.set.sync.aligned.u32 24;",
    ]);
}
