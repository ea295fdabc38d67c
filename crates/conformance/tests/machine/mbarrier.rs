//! `mbarrier`: phases, counts, states, what they order, and the reports about phases that never complete.

use virtual_gpu_machine::{Execution, Fault, FaultKind};

use crate::arguments;
use crate::bad_input::assert_refused_by_name;
use crate::gpu::Gpu;

/// The registers and the start of a kernel: `%r1` is the thread, `%d1` and `%d2` are its places in a source and in a
/// destination, `bar` is an mbarrier, and `%r2` is the thread's place in `tile`.
const START: &str = "
    .reg .b32 %r<12>; .reg .b64 %d<6>, %s<4>; .reg .pred %p<6>;
    .shared .align 8 .b64 bar; .shared .align 8 .b64 other; .shared .align 16 .b8 tile[512];
    ld.param.u64 %d1, [x]; ld.param.u64 %d2, [y];
    mov.u32 %r1, %tid.x; mul.wide.u32 %d3, %r1, 4; add.u64 %d1, %d1, %d3; add.u64 %d2, %d2, %d3;
    shl.b32 %r2, %r1, 2; mov.u32 %r3, tile; add.u32 %r2, %r2, %r3; mov.u32 %r4, 0;
    setp.eq.u32 %p1, %r1, 0;";

/// Runs `body` on `threads`, and returns what they leave in `%r4`.
fn run(threads: u32, body: &str) -> Result<(Execution, Vec<u32>), Box<Fault>> {
    let source = format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n
        .visible .entry test(.param .u64 x, .param .u64 y)\n{{{START}\n{body}\nst.global.u32 [%d2], %r4;\nret;\n}}"
    );
    let mut gpu = Gpu::new(&source);
    let numbers: Vec<u32> = (0..threads).map(|at| 100 + at).collect();
    let (x, y) = (gpu.buffer(&numbers), gpu.buffer(&vec![0_u32; threads as usize]));
    let done = gpu.launch("test", [1; 3], [threads, 1, 1], arguments!(x, y))?;
    Ok((done, gpu.read(y)))
}

/// Runs `body`, which must neither fail nor race.
#[track_caller]
fn ok(threads: u32, body: &str) -> Vec<u32> {
    let (done, got) = run(threads, body).unwrap_or_else(|fault| panic!("{fault}\n{body}"));
    assert!(done.race.is_none() && done.unwritten.is_none(), "{body}: {:?}", done.race);
    got
}

/// Runs `body`, which must have a race in shared memory, and returns the report.
#[track_caller]
fn race(threads: u32, body: &str) -> String {
    let (done, _) = run(threads, body).unwrap_or_else(|fault| panic!("{fault}\n{body}"));
    done.race.unwrap_or_else(|| panic!("no race: {body}")).to_string()
}

/// Runs `body`, which must use an mbarrier wrongly.
#[track_caller]
fn misuse(threads: u32, body: &str, words: &str) {
    let fault = run(threads, body).err().unwrap_or_else(|| panic!("no fault: {body}"));
    assert!(matches!(fault.kind, FaultKind::Undefined(why) if why.contains(words)), "{fault}");
}

fn init(count: u32) -> String {
    format!("@%p1 mbarrier.init.shared.b64 [bar], {count};\nbar.sync 0;\n")
}

/// A loop until an instruction sets `%p2`.
fn until(name: &str, test: &str) -> String {
    format!("{name}: {test}\n@!%p2 bra {name};\n")
}

#[test]
fn threads_wait_until_all_have_arrived() {
    let write = "st.shared.u32 [%r2], %r1;";
    let read = "mov.u32 %r5, tile; mov.u32 %r6, 252; sub.u32 %r6, %r6, %r2; add.u32 %r6, %r6, %r5;
        add.u32 %r6, %r6, %r5; ld.shared.u32 %r4, [%r6];";
    let expected: Vec<u32> = (0..64).rev().collect();
    for wait in [
        "mbarrier.test_wait.shared.b64 %p2, [bar], %s1;",
        "mbarrier.test_wait.acquire.cta.shared::cta.b64 %p2, [bar], %s1;",
        "mbarrier.try_wait.shared.b64 %p2, [bar], %s1;",
        "mbarrier.try_wait.acquire.cluster.shared.b64 %p2, [bar], %s1, 1000;",
        "mbarrier.test_wait.parity.shared.b64 %p2, [bar], 0;",
        "mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], %r4, %r1;",
    ] {
        let wait = until("WAIT", wait);
        let arrive = "mbarrier.arrive.shared.b64 %s1, [bar];";
        assert_eq!(ok(64, &format!("{}{write} {arrive} {wait} {read}", init(64))), expected);
    }
    // Without an acquire or a release, the reads are unordered.
    for (arrive, wait) in [
        (
            "mbarrier.arrive.relaxed.cta.shared.b64 %s1, [bar];",
            "mbarrier.test_wait.shared.b64 %p2, [bar], %s1;",
        ),
        (
            "mbarrier.arrive.release.cta.shared.b64 %s1, [bar];",
            "mbarrier.test_wait.relaxed.cta.shared.b64 %p2, [bar], %s1;",
        ),
    ] {
        let text = race(64, &format!("{}{write} {arrive} {} {read}", init(64), until("WAIT", wait)));
        assert!(text.contains("read after write"), "{text}");
    }
    // What a thread writes after it has arrived is unordered, too.
    let wait = until("WAIT", "mbarrier.test_wait.shared.b64 %p2, [bar], %s1;");
    let text = race(64, &format!("{}mbarrier.arrive.shared.b64 %s1, [bar]; {write} {wait} {read}", init(64)));
    assert!(text.contains("read after write"), "{text}");
}

#[test]
fn generic_addresses_name_the_same_object() {
    let body = format!(
        "mov.u64 %d4, bar; cvta.shared.u64 %d4, %d4;
        @%p1 mbarrier.init.b64 [%d4], 64; bar.sync 0;
        mbarrier.arrive.b64 %s1, [%d4]; {}
        mov.u32 %r4, 1; bar.sync 0; @%p1 mbarrier.inval.shared.b64 [bar]; bar.sync 0;
        @%p1 st.shared.u64 [bar], 0;",
        until("WAIT", "mbarrier.test_wait.b64 %p2, [%d4], %s1;")
    );
    assert_eq!(ok(64, &body), [1; 64]);
}

#[test]
fn phases_alternate_between_a_producer_and_consumers() {
    // In each of five rounds, warp 0 writes 100 times the round plus the lane, and warp 1 sums what it reads.
    let body = |full: &str, empty: &str| {
        format!(
            "@%p1 mbarrier.init.shared.b64 [bar], 32; @%p1 mbarrier.init.shared.b64 [other], 32; bar.sync 0;
            mov.u32 %r5, 0; and.b32 %r7, %r1, 31; shl.b32 %r8, %r7, 2; add.u32 %r8, %r8, %r3;
            setp.lt.u32 %p3, %r1, 32; @!%p3 bra CONSUMER;
            PRODUCER: and.b32 %r6, %r5, 1; xor.b32 %r6, %r6, 1;
            {} mad.lo.u32 %r9, %r5, 100, %r7; st.shared.u32 [%r8], %r9; {full}
            add.u32 %r5, %r5, 1; setp.lt.u32 %p4, %r5, 5; @%p4 bra PRODUCER; bra END;
            CONSUMER: and.b32 %r6, %r5, 1;
            {} ld.shared.u32 %r9, [%r8]; add.u32 %r4, %r4, %r9; {empty}
            add.u32 %r5, %r5, 1; setp.lt.u32 %p4, %r5, 5; @%p4 bra CONSUMER; END:",
            until("FREE", "mbarrier.try_wait.parity.shared.b64 %p2, [other], %r6;"),
            until("FULL", "mbarrier.try_wait.parity.shared.b64 %p2, [bar], %r6;"),
        )
    };
    let (full, empty) = ("mbarrier.arrive.shared.b64 _, [bar];", "mbarrier.arrive.shared.b64 _, [other];");
    let expected: Vec<u32> =
        (0..64).map(|thread| if thread < 32 { 0 } else { 1000 + 5 * (thread - 32) }).collect();
    assert_eq!(ok(64, &body(full, empty)), expected);
    let relaxed = empty.replace("arrive", "arrive.relaxed.cta");
    assert!(race(64, &body(full, &relaxed)).contains("write after read"));
    let relaxed = full.replace("arrive", "arrive.relaxed.cta");
    assert!(race(64, &body(&relaxed, empty)).contains("read after write"));
}

#[test]
fn a_phase_that_no_thread_can_complete_is_a_deadlock() {
    for wait in [
        "mbarrier.try_wait.shared.b64 %p2, [bar], %s1;",
        "mbarrier.test_wait.shared.b64 %p2, [bar], %s1;\n@!%p2 nanosleep.u32 20;",
    ] {
        let body = format!("{}mbarrier.arrive.shared.b64 %s1, [bar];\n{}", init(65), until("WAIT", wait));
        let fault = run(64, &body).unwrap_err();
        assert!(
            matches!(fault.kind, FaultKind::IncompletePhase { arrived: 64, expected: 65, transactions: 0 }),
            "{fault}"
        );
        let text = fault.to_string();
        assert!(text.contains("whose phase can no longer complete: 64 of 65 arrivals"), "{text}");
        // The line of the wait, after six lines of the kernel, eight of its start, and three of the body.
        assert_eq!(fault.at.ptx_line, 16, "{text}");
    }
    let wait = until("WAIT", "mbarrier.try_wait.shared.b64 %p2, [bar], %s1;");
    let body = format!("{}mbarrier.arrive.expect_tx.shared.b64 %s1, [bar], 8; {wait}", init(64));
    let fault = run(64, &body).unwrap_err();
    assert!(
        matches!(fault.kind, FaultKind::IncompletePhase { expected: 64, transactions: 512, .. }),
        "{fault}"
    );
    assert!(fault.to_string().contains("512 transactions are pending"), "{fault}");
    // Some threads wait at another barrier, which comes too late.
    let body = format!(
        "{}@%p1 bra LATER; mbarrier.arrive.shared.b64 %s1, [bar]; {wait} LATER: bar.sync 0;",
        init(64)
    );
    assert!(matches!(
        run(64, &body).unwrap_err().kind,
        FaultKind::IncompletePhase { arrived: 63, expected: 64, .. }
    ));
}

#[test]
fn transactions_hold_up_a_phase() {
    // The arrival completes the phase only after all transactions.
    let body = format!(
        "{}@!%p1 bra END;
        mbarrier.expect_tx.relaxed.cta.shared.b64 [bar], 48; mbarrier.complete_tx.shared::cluster.b64 [bar], 32;
        mbarrier.arrive.shared.b64 %s1, [bar];
        mbarrier.test_wait.shared.b64 %p2, [bar], %s1; @%p2 add.u32 %r4, %r4, 1;
        mbarrier.complete_tx.relaxed.cluster.shared.b64 [bar], 16;
        mbarrier.test_wait.shared.b64 %p2, [bar], %s1; @%p2 add.u32 %r4, %r4, 10;
        mbarrier.complete_tx.shared.b64 [bar], 8; mbarrier.expect_tx.shared.b64 [bar], 4;
        mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [bar], 4;
        mbarrier.test_wait.parity.shared.b64 %p2, [bar], 1; @%p2 add.u32 %r4, %r4, 100; END:",
        init(1)
    );
    assert_eq!(ok(2, &body), [110, 0]);
}

#[test]
fn arrivals_count_and_drop_out() {
    let body = format!(
        "{}@!%p1 bra END;
        mbarrier.arrive.noComplete.release.cta.shared.b64 %s1, [bar], 3; mbarrier.pending_count.b64 %r4, %s1;
        mbarrier.arrive_drop.noComplete.shared.b64 %s2, [bar], 4; mbarrier.pending_count.b64 %r5, %s2;
        mad.lo.u32 %r4, %r4, 100, %r5;
        mbarrier.arrive_drop.shared.b64 %s2, [bar];
        mbarrier.test_wait.shared.b64 %p2, [bar], %s2; @%p2 add.u32 %r4, %r4, 10000;
        mbarrier.arrive.shared.b64 %s3, [bar], 2;
        mbarrier.test_wait.shared.b64 %p2, [bar], %s3; @%p2 add.u32 %r4, %r4, 20000;
        mbarrier.test_wait.shared.b64 %p2, [bar], %s1; @%p2 add.u32 %r4, %r4, 40000;
        mbarrier.arrive.shared.b64 _, [bar];
        mbarrier.test_wait.shared.b64 %p2, [bar], %s3; @%p2 add.u32 %r4, %r4, 80000; END:",
        init(8)
    );
    // Eight arrivals complete the first phase, three the second. The third is incomplete.
    assert_eq!(ok(1, &body), [130_805]);
}

#[test]
fn copies_arrive_when_they_complete() {
    let copy = "cp.async.ca.shared.global [%r2], [%d1], 4;";
    let read = "xor.b32 %r6, %r2, 4; ld.shared.u32 %r4, [%r6];";
    let expected: Vec<u32> = (0..32).map(|at| 100 + (at ^ 1)).collect();
    let wait = until("WAIT", "mbarrier.test_wait.shared.b64 %p2, [bar], %s1;");
    let arrive = "mbarrier.arrive.shared.b64 %s1, [bar];";
    for (count, after) in [
        (32, "cp.async.mbarrier.arrive.shared.b64 [bar];"),
        (64, "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [bar];"),
    ] {
        let body = format!("{}{copy} {after} {arrive} {wait} {read}", init(count));
        assert_eq!(ok(32, &body), expected, "{after}");
        // The copy after the arrival is not waited for.
        let late = "cp.async.ca.shared.global [%r2+128], [%d1], 4;";
        let body =
            format!("{}{copy} {after} {late} {arrive} {wait} ld.shared.u32 %r4, [%r2+128];", init(count));
        assert!(race(32, &body).contains("a copy that its thread has not waited for"));
    }
    // Without `.noinc`, an arrival that the count includes is missing.
    let body = format!("{}{copy} cp.async.mbarrier.arrive.shared.b64 [bar]; {arrive} {wait}", init(64));
    assert!(matches!(
        run(32, &body).unwrap_err().kind,
        FaultKind::IncompletePhase { arrived: 32, expected: 64, .. }
    ));
    // A plain arrival waits for no copy.
    let body = format!("{}{copy} {arrive} {wait} {read}", init(32));
    assert!(race(32, &body).contains("a copy that its thread has not waited for"));
}

#[test]
fn an_object_is_initialized_before_other_threads_use_it() {
    let arrive = "mbarrier.arrive.shared.b64 %s1, [bar];";
    let text = race(64, &format!("@%p1 mbarrier.init.shared.b64 [bar], 64; {arrive}"));
    assert!(text.contains("byte 0 of `bar`: write after write"), "{text}");
    assert!(text.contains("thread (1,0,0): atomically changes 8 bytes"), "{text}");
    // Every thread may initialize it in the same way, as in the manual's examples.
    ok(64, &format!("mbarrier.init.shared.b64 [bar], 64; bar.sync 0; {arrive}"));
    let text = race(64, &format!("{}{arrive} @%p1 mbarrier.inval.shared.b64 [bar];", init(64)));
    assert!(text.contains("write after write"), "{text}");
}

#[test]
fn uses_without_a_defined_result_are_faults() {
    let arrive = "mbarrier.arrive.shared.b64 %s1, [bar];";
    misuse(1, arrive, "no initialized mbarrier");
    misuse(1, &format!("{}mbarrier.inval.shared.b64 [bar]; {arrive}", init(1)), "no initialized mbarrier");
    misuse(1, "mbarrier.init.shared.b64 [bar], 0;", "from 1 to 1048575");
    misuse(1, "mbarrier.init.shared.b64 [bar], 1048576;", "from 1 to 1048575");
    misuse(1, &format!("{}mbarrier.init.shared.b64 [bar], 2;", init(1)), "must be invalidated");
    misuse(1, &format!("{}mbarrier.arrive.shared.b64 _, [bar], 2;", init(1)), "more threads arrive");
    misuse(1, &format!("{}mbarrier.arrive.shared.b64 _, [bar], 0;", init(1)), "number of arrivals");
    misuse(1, &format!("{}mbarrier.arrive.noComplete.shared.b64 _, [bar], 1;", init(1)), "`.noComplete`");
    misuse(1, &format!("{}mbarrier.expect_tx.shared.b64 [bar], 1048576;", init(1)), "transactions");
    misuse(1, "mbarrier.init.b64 [%d1], 1;", "must be in shared memory");
    let fault = run(1, "mov.u32 %r3, bar; mbarrier.init.shared.b64 [%r3+4], 1;").unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Misaligned { needed: 8 }), "{fault}");
    let fault = run(1, "mov.u32 %r3, 65536; mbarrier.init.shared.b64 [%r3], 1;").unwrap_err();
    assert!(matches!(fault.kind, FaultKind::SharedOutOfBounds { .. }), "{fault}");
}

#[test]
fn each_block_has_its_own_objects() {
    let source = format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n
        .visible .entry test(.param .u64 x, .param .u64 y)\n{{{START}\n{}
        mbarrier.arrive.shared.b64 %s1, [bar];\n{}\nred.global.add.u32 [%d2], 1;\nret;\n}}",
        init(64),
        until("WAIT", "mbarrier.try_wait.shared.b64 %p2, [bar], %s1;")
    );
    let mut gpu = Gpu::new(&source);
    let (x, y) = (gpu.buffer(&[0_u32; 64]), gpu.buffer(&[0_u32; 64]));
    gpu.run("test", 5, 64, arguments!(x, y));
    assert_eq!(gpu.read::<u32>(y), [5; 64]);
}

#[test]
fn forms_that_do_not_exist_are_refused_by_name() {
    for (instruction, words) in [
        ("mbarrier.init.shared.b32 [bar], 1;", "unsupported"),
        ("mbarrier.init.global.b64 [bar], 1;", "unsupported"),
        ("mbarrier.init.shared::cluster.b64 [bar], 1;", "unsupported"),
        ("mbarrier.init.shared.b64 [bar];", "2 operands"),
        ("mbarrier.arrive.shared.b64 [bar];", "operands"),
        ("mbarrier.arrive.release.shared.b64 _, [bar];", "unsupported"),
        ("mbarrier.arrive.acquire.cta.shared.b64 _, [bar];", "unsupported"),
        ("mbarrier.arrive.noComplete.shared.b64 _, [bar];", "operands"),
        ("mbarrier.arrive.noComplete.relaxed.cta.shared.b64 _, [bar], 1;", "unsupported"),
        ("mbarrier.arrive.shared::cluster.b64 %s1, [bar];", "must be `_`"),
        ("mbarrier.test_wait.shared.b64 %p1, [bar], %s1, 5;", "operands"),
        ("mbarrier.try_wait.release.cta.shared.b64 %p1, [bar], %s1;", "unsupported"),
        ("mbarrier.expect_tx.release.cta.shared.b64 [bar], 5;", "unsupported"),
        ("mbarrier.frobnicate.shared.b64 [bar];", "unsupported"),
        ("mbarrier.pending_count.shared.b64 %r1, %s1;", "unsupported"),
        ("cp.async.mbarrier.arrive.noinc.global.b64 [bar];", "unsupported"),
    ] {
        let declarations = ".reg .b32 %r<3>; .reg .b64 %s<3>; .reg .pred %p<3>; .shared .b64 bar;";
        assert_refused_by_name(declarations, instruction, words);
    }
}

#[test]
fn programs_that_use_the_classes_of_cuda_wait_for_each_other() {
    let mut gpu = Gpu::new(include_str!("../ptx/block_barriers.ptx"));
    let numbers: Vec<i32> = (0..96).map(|at| at * at).collect();
    let (x, y) = (gpu.buffer(&numbers), gpu.buffer(&[0_i32; 96]));
    let done = gpu.run("rounds", 1, 96, arguments!(x, y, 5_i32));
    assert!(done.race.is_none() && done.unwritten.is_none(), "{}", done.race.unwrap());
    let mut expected = numbers.clone();
    for _ in 0..5 {
        let sum: i32 = expected.iter().sum();
        expected = (0..96).map(|at| sum % 1000 + at).collect();
    }
    assert_eq!(gpu.read::<i32>(y), expected);
    let done = gpu.run("reversed", 1, 96, arguments!(x, y));
    assert!(done.race.is_none() && done.unwritten.is_none(), "{}", done.race.unwrap());
    assert_eq!(gpu.read::<i32>(y), numbers.iter().rev().copied().collect::<Vec<_>>());
    // The wait reads the time again and again, so the threads never repeat themselves exactly.
    let fault = gpu.fault("missing", 1, 96, arguments!(x, y));
    assert!(matches!(fault.kind, FaultKind::IncompletePhase { arrived: 95, expected: 96, .. }), "{fault}");
    let fault = gpu.fault("missing", 300, 96, arguments!(x, y));
    assert!(matches!(fault.kind, FaultKind::IncompletePhase { arrived: 95, expected: 96, .. }), "{fault}");
}

#[test]
fn a_thread_that_computes_for_long_holds_up_the_others_without_a_deadlock() {
    let body = format!(
        "{}mov.u32 %r5, 0; @!%p1 bra WAIT;
        BUSY: add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 3000000; @%p3 bra BUSY;
        mbarrier.arrive.shared.b64 _, [bar]; {} mov.u32 %r4, 1;",
        init(1),
        until("WAIT", "mov.u64 %d5, %clock64; mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0;")
    );
    assert_eq!(ok(64, &body), [1; 64]);
}
