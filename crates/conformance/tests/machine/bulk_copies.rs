//! `cp.async.bulk`: copies that an mbarrier tracks, and copies to global memory.

use virtual_gpu_machine::{Execution, Fault, FaultKind};

use crate::arguments;
use crate::bad_input::assert_refused_by_name;
use crate::gpu::Gpu;

/// Runs a block of 64 threads on 64 numbers at `[%x]` and 64 results at `[%y]`. `%p1` is true in thread 0, which has
/// initialized `bar` with the count 1; `%a` is the thread's place in `tile`, and `%z` its place in the results.
fn run(body: &str) -> Result<(Execution, Vec<u32>), Box<Fault>> {
    let source = format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n
        .visible .entry test(.param .u64 x, .param .u64 y)
        {{
        .reg .b32 %t, %a, %b, %n, %v; .reg .b64 %x, %y, %z, %policy; .reg .pred %p<3>;
        .shared .align 8 .b64 bar; .shared .align 16 .b8 tile[256];
        ld.param.u64 %x, [x]; ld.param.u64 %y, [y];
        mov.u32 %t, %tid.x; mul.wide.u32 %z, %t, 4; add.u64 %z, %z, %y;
        shl.b32 %a, %t, 2; mov.u32 %b, tile; add.u32 %a, %a, %b; mov.u32 %n, 256; mov.u64 %policy, 0;
        setp.eq.u32 %p1, %t, 0;
        @%p1 mbarrier.init.shared.b64 [bar], 1;
        fence.mbarrier_init.release.cluster;
        bar.sync 0;
        {body}
        ret;
        }}"
    );
    let mut gpu = Gpu::new(&source);
    let numbers: Vec<u32> = (0..64).map(|at| 100 + at).collect();
    let (x, y) = (gpu.buffer(&numbers), gpu.buffer(&[7_u32; 64]));
    let done = gpu.launch("test", [1; 3], [64, 1, 1], arguments!(x, y))?;
    Ok((done, gpu.read(y)))
}

const EXPECT: &str = "@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [bar], 256;";
const COPY: &str =
    "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%x], 256, [bar];";
const WAIT: &str = "WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0; @!%p2 bra WAIT;";
const READ: &str = "ld.shared.u32 %v, [%a]; st.global.u32 [%z], %v;";

#[test]
fn a_copy_completes_the_transactions_of_its_mbarrier() {
    let expected: Vec<u32> = (100..164).collect();
    for copy in [
        COPY,
        "@%p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [tile], [%x], %n, [bar];",
        "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [tile], [%x], 256, [bar], %policy;",
        "@%p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [tile], [%x], 64, [bar];
         @%p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [tile+64], [%x+64], 192, [bar];",
    ] {
        for body in [format!("{EXPECT} {copy} {WAIT} {READ}"), format!("{copy} {EXPECT} {WAIT} {READ}")] {
            let (done, got) = run(&body).unwrap_or_else(|fault| panic!("{fault}"));
            assert!(done.race.is_none() && done.unwritten.is_none(), "{copy}: {:?}", done.race);
            assert_eq!(got, expected, "{copy}");
        }
    }
}

#[test]
fn a_copy_is_unordered_until_a_thread_has_waited() {
    for wait in
        ["", "bar.sync 0;", "cp.async.wait_all; bar.sync 0;", "@%p1 cp.async.bulk.wait_group 0; bar.sync 0;"]
    {
        let (done, _) = run(&format!("{EXPECT} {COPY} {wait} {READ}")).unwrap();
        let race = done.race.unwrap_or_else(|| panic!("no race: {wait}"));
        assert_eq!((race.kind(), race.under_way), ("read after write", true), "{wait}");
    }
    // Threads that read the destination before must be done.
    let (done, _) = run(&format!("st.shared.u32 [%a], %t; {READ} {EXPECT} {COPY} {WAIT}")).unwrap();
    assert_eq!(done.race.expect("nothing orders the copy").kind(), "write after write");
    let (done, _) =
        run(&format!("st.shared.u32 [%a], %t; {READ} bar.sync 0; {EXPECT} {COPY} {WAIT}")).unwrap();
    assert!(done.race.is_none());
    // Only threads that have waited see the copy.
    let body = format!("{EXPECT} {COPY} @!%p1 bra OTHERS; {WAIT} OTHERS: {READ}");
    assert_eq!(run(&body).unwrap().0.race.expect("the others did not wait").kind(), "read after write");
}

#[test]
fn missing_transactions_are_a_deadlock() {
    let expect = EXPECT.replace("256", "272");
    let fault = run(&format!("{expect} {COPY} {WAIT}")).unwrap_err();
    assert!(
        matches!(fault.kind, FaultKind::IncompletePhase { arrived: 1, expected: 1, transactions: 16 }),
        "{fault}"
    );
}

#[test]
fn a_copy_to_global_memory_reads_shared_memory() {
    let write = "add.u32 %v, %t, 500; st.shared.u32 [%a], %v; fence.proxy.async.shared::cta;";
    let copy = "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%y], [tile], 256;
        @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group.read 0; @%p1 cp.async.bulk.wait_group 0;";
    let (done, got) = run(&format!("{write} bar.sync 0; {copy}")).unwrap();
    assert!(done.race.is_none() && done.unwritten.is_none(), "{:?}", done.race);
    assert_eq!(got, (500..564).collect::<Vec<u32>>());
    let (done, _) = run(&format!("{write} {copy}")).unwrap();
    assert_eq!(done.race.expect("nothing orders the copy").kind(), "read after write");
    let (done, _) = run(&format!("{write} bar.sync 0; {copy} st.shared.u32 [%a], 1;")).unwrap();
    assert_eq!(done.race.expect("nothing orders the store").kind(), "write after read");
}

#[test]
fn a_reduction_combines_elements_with_global_memory() {
    let write = "add.u32 %v, %t, 5; st.shared.u32 [%a], %v; fence.proxy.async.shared::cta; bar.sync 0;";
    let old: Vec<u32> = vec![7; 64];
    let new = |combine: fn(u32, u32) -> u32| -> Vec<u32> {
        old.iter().zip(0..).map(|(&old, at)| combine(old, at + 5)).collect()
    };
    let inc = |old, most| if old >= most { 0 } else { old + 1 };
    let dec = |old, most| if old == 0 || old > most { most } else { old - 1 };
    for (op, expected) in [
        ("add.u32", new(|a, b| a + b)),
        ("add.s32", new(|a, b| a + b)),
        ("min.u32", new(u32::min)),
        ("max.s32", new(u32::max)),
        ("and.b32", new(|a, b| a & b)),
        ("or.b32", new(|a, b| a | b)),
        ("xor.b32", new(|a, b| a ^ b)),
        ("inc.u32", new(inc)),
        ("dec.u32", new(dec)),
    ] {
        let reduce = format!(
            "@%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.{op} [%y], [tile], 256;
             @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0;"
        );
        let (done, got) = run(&format!("{write} {reduce}")).unwrap_or_else(|fault| panic!("{fault}"));
        assert!(done.race.is_none() && done.unwritten.is_none(), "{op}");
        assert_eq!(got, expected, "{op}");
    }
    let reduce = "@%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.f32 [%y], [tile], 16, %policy;";
    let (_, got) =
        run(&format!("mov.b32 %v, 0f3F800000; st.shared.u32 [%a], %v; bar.sync 0; {reduce}")).unwrap();
    assert_eq!(got[..5], [1.0_f32.to_bits(); 4].into_iter().chain([7]).collect::<Vec<_>>());
}

#[test]
fn copies_without_a_wait_need_bounded_memory() {
    // Each copy is expected, and completed in the end, so the number of pending transactions stays small.
    let body = format!(
        "mov.u32 %n, 0; @!%p1 bra END;
        LOOP: mbarrier.expect_tx.shared.b64 [bar], 16;
        cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [tile], [%x], 16, [bar];
        add.u32 %n, %n, 1; setp.lt.u32 %p2, %n, 65000; @%p2 bra LOOP;
        mbarrier.arrive.shared.b64 _, [bar]; {WAIT} END:"
    );
    assert!(run(&body).unwrap().0.race.expect("the copies are unordered").under_way);
}

#[test]
fn wrong_addresses_and_sizes_are_faults() {
    let copy = |from: &str, to: &str| COPY.replace(from, to);
    let fault = run(&copy("256", "24")).unwrap_err();
    assert!(fault.to_string().contains("multiple of 16"), "{fault}");
    let fault = run(&copy("[tile]", "[tile+8]")).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Misaligned { needed: 16 }), "{fault}");
    let fault = run(&copy("[%x]", "[%x+4]")).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Misaligned { needed: 16 }), "{fault}");
    let fault = run(&copy("[tile]", "[tile+16]")).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::SharedOutOfBounds { .. }), "{fault}");
    let fault = run(&copy("256", "272")).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::BadAddress(_) | FaultKind::SharedOutOfBounds { .. }), "{fault}");
    let fault = run(&copy("[bar]", "[tile]")).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Undefined(_)), "{fault}");
}

#[test]
fn forms_that_do_not_exist_are_refused_by_name() {
    for instruction in [
        "cp.async.bulk.shared.global.mbarrier::complete_tx::bytes [tile], [%x], 256, [bar];",
        "cp.async.bulk.shared::cta.shared::cta.mbarrier::complete_tx::bytes [tile], [tile], 256, [bar];",
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.multicast::cluster [tile], [%x], 256, [bar], %h;",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [tile], [%x], 256, [bar];",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%x], 256;",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [tile], [%x], 256, [bar];",
        "cp.async.bulk.global.shared::cta.bulk_group [%x], [tile], 256, [bar];",
        "cp.async.bulk.global.shared::cta.mbarrier::complete_tx::bytes [%x], [tile], 256, [bar];",
        "cp.async.bulk.wait_group %n;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.cas.b32 [%x], [tile], 256;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f16 [%x], [tile], 256;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.noftz.f16 [%x], [tile], 256;",
        "cp.reduce.async.bulk.global.shared::cta.add.u32 [%x], [tile], 256;",
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.f32 [tile], [tile], 256, [bar];",
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [tile], [tile], 256;",
        "fence.proxy.tensormap::generic.relaxed.gpu;",
    ] {
        let declarations =
            ".reg .b32 %n; .reg .b64 %x; .reg .b16 %h; .shared .b64 bar; .shared .align 16 .b8 tile[256];";
        assert_refused_by_name(declarations, instruction, "");
    }
}

#[test]
fn programs_that_use_the_headers_of_cuda_copy_in_bulk() {
    let mut gpu = Gpu::new(include_str!("../ptx/bulk_copies.ptx"));
    let numbers: Vec<f32> = (0..256).map(|at| at as f32).collect();
    let (x, y, total) = (gpu.buffer(&numbers), gpu.unwritten(1024), gpu.buffer(&[0.5_f32; 4]));
    let done = gpu.run("twice", 1, 64, arguments!(x, y, total));
    assert!(done.race.is_none() && done.unwritten.is_none(), "{}", done.race.unwrap());
    assert_eq!(gpu.read::<f32>(y), numbers.iter().map(|x| 2.0 * x).collect::<Vec<_>>());
    let sums: Vec<f32> =
        (0..4).map(|at| 0.5 + numbers.iter().skip(at).step_by(4).map(|x| 2.0 * x).sum::<f32>()).collect();
    assert_eq!(gpu.read::<f32>(total), sums);

    let numbers: Vec<f32> = (0..128).map(|at| 1.37_f32.powi(at - 64) * (1 - at % 3) as f32).collect();
    let (x, y) = (gpu.buffer(&numbers), gpu.unwritten(512));
    gpu.run("rounded", 1, 128, arguments!(x, y));
    for (at, (got, x)) in gpu.read::<f32>(y).into_iter().zip(numbers).enumerate() {
        let format = ["e4m3", "e5m2"][at % 2];
        let expected = crate::fp8::value_of(format, crate::fp8::nearest(format, x.into()));
        assert_eq!(f64::from(got), expected, "{x} as {format}");
    }
}
