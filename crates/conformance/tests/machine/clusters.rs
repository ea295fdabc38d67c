//! Clusters: registers, addresses, the cluster's barrier, copies between blocks, and the reports about wrong uses.

use virtual_gpu_core::tensor_map::{ElementType, MOST_DIMENSIONS, Part, Swizzle, TensorMap};
use virtual_gpu_machine::{Access, Execution, Fault, FaultKind, Lifetime};

use crate::arguments;
use crate::bad_input::assert_refused_by_name;
use crate::gpu::Gpu;

/// The number of threads in a block.
const THREADS: u32 = 64;

/// The registers and the start of a kernel: `%t` is the thread, `%rank` is its block's rank in the cluster, `%next` and
/// `%last` are the ranks after and before it, `%own` is the thread's place in `tile`, `%r` is its result, and `%p1` is true in
/// thread 0.
const START: &str = "
    .reg .b32 %t, %rank, %blocks, %next, %last, %own, %peer, %r, %a<8>; .reg .b64 %x, %y, %d<8>, %s<2>; .reg .pred %p<8>;
    .shared .align 8 .b64 bar; .shared .align 128 .b8 tile[256]; .shared .align 128 .b8 inbox[512];
    ld.param.u64 %x, [x]; ld.param.u64 %y, [y];
    mov.u32 %t, %tid.x; mov.u32 %rank, %cluster_ctarank; mov.u32 %blocks, %cluster_nctarank;
    add.u32 %next, %rank, 1; rem.u32 %next, %next, %blocks;
    add.u32 %last, %rank, %blocks; sub.u32 %last, %last, 1; rem.u32 %last, %last, %blocks;
    mov.u32 %a1, tile; shl.b32 %own, %t, 2; add.u32 %own, %own, %a1; mov.u32 %r, 0;
    setp.eq.u32 %p1, %t, 0;";

/// `cluster.sync()`
const SYNC: &str = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n";

fn source(cluster: &str, body: &str) -> String {
    format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n
        .visible .entry test(.param .u64 x, .param .u64 y) .explicitcluster .reqnctapercluster {cluster}
        {{{START}\n{body}\n
        mov.u32 %a0, %ctaid.x; mad.lo.u32 %a0, %a0, {THREADS}, %t; mul.wide.u32 %d0, %a0, 4; add.u64 %d0, %d0, %y;
        st.global.u32 [%d0], %r; ret;\n}}"
    )
}

/// Runs `body` on some blocks in clusters of `cluster`. Returns what the threads leave in `%r`. The first argument points to
/// the numbers 100, 101, and so on.
fn run(cluster: u32, blocks: u32, body: &str) -> Result<(Execution, Vec<u32>), Box<Fault>> {
    let mut gpu = Gpu::new(&source(&cluster.to_string(), body));
    let numbers: Vec<u32> = (0..blocks * THREADS).map(|at| 100 + at).collect();
    let (x, y) = (gpu.buffer(&numbers), gpu.buffer(&vec![0_u32; numbers.len()]));
    let done = gpu.launch("test", [blocks, 1, 1], [THREADS, 1, 1], arguments!(x, y))?;
    Ok((done, gpu.read(y)))
}

/// Runs `body`, which must neither fail nor race, and compares the results with `expected(block, thread)`.
#[track_caller]
fn check(cluster: u32, blocks: u32, body: &str, expected: impl Fn(u32, u32) -> u32) {
    let (done, got) = run(cluster, blocks, body).unwrap_or_else(|fault| panic!("{fault}\n{body}"));
    assert!(done.race.is_none(), "{}\n{body}", done.race.unwrap());
    assert!(done.unwritten.is_none(), "{}\n{body}", done.unwritten.unwrap());
    for (at, got) in (0..).zip(got) {
        assert_eq!(
            got,
            expected(at / THREADS, at % THREADS),
            "block {}, thread {}",
            at / THREADS,
            at % THREADS
        );
    }
}

/// Runs `body` on two blocks, which must have a race, and returns the report and what is wrong with a block's lifetime.
#[track_caller]
fn race(body: &str) -> (String, Option<Lifetime>) {
    let (done, _) = run(2, 2, body).unwrap_or_else(|fault| panic!("{fault}\n{body}"));
    let race = done.race.unwrap_or_else(|| panic!("no race: {body}"));
    assert!(race.owner.is_some(), "{race}");
    (race.to_string(), race.lifetime)
}

#[track_caller]
fn fault(body: &str) -> Box<Fault> {
    run(2, 2, body).err().unwrap_or_else(|| panic!("no fault: {body}"))
}

#[track_caller]
fn misuse(body: &str, words: &str) {
    let fault = fault(body);
    assert!(matches!(fault.kind, FaultKind::Undefined(why) if why.contains(words)), "{fault}");
}

/// Stores 1000 × rank + thread in the block's tile.
const FILL: &str = "mad.lo.u32 %a2, %rank, 1000, %t; st.shared.u32 [%own], %a2;\n";

/// Reads the thread's number in the next block's tile.
const READ_NEXT: &str = "mapa.shared::cluster.u32 %peer, %own, %next; ld.shared::cluster.u32 %r, [%peer];\n";

fn next(cluster: u32, block: u32) -> u32 {
    (block % cluster + 1) % cluster
}

#[test]
fn registers_describe_the_cluster() {
    let axes = |name: &str, at: u32| {
        let one = |(axis, at): (&str, u32)| {
            format!(
                "mov.u32 %a2, %{name}.{axis}; shl.b32 %a3, %a3, 4; or.b32 %a3, %a3, %a2; mov.u32 %a4, {at};"
            )
        };
        ["x", "y", "z"].map(|axis| one((axis, at))).concat()
    };
    let source = format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n
        .visible .entry test(.param .u64 y) .reqnctapercluster 2, 3, 1
        {{
        .reg .b32 %a<9>; .reg .b64 %y, %d; .reg .pred %p;
        ld.param.u64 %y, [y]; mov.u32 %a3, 0; {} mov.u32 %a5, %a3;
        mov.u32 %a3, 0; {} mov.u32 %a2, %cluster_ctarank; shl.b32 %a3, %a3, 4; or.b32 %a3, %a3, %a2;
        mov.u32 %a2, %cluster_nctarank; shl.b32 %a3, %a3, 4; or.b32 %a3, %a3, %a2;
        mov.pred %p, %is_explicit_cluster; selp.u32 %a2, 1, 0, %p; shl.b32 %a3, %a3, 1; or.b32 %a3, %a3, %a2;
        mov.u32 %a6, %ctaid.y; mov.u32 %a7, %nctaid.x; mov.u32 %a8, %ctaid.x; mad.lo.u32 %a6, %a6, %a7, %a8;
        mul.wide.u32 %d, %a6, 8; add.u64 %d, %d, %y; st.global.v2.u32 [%d], {{%a5, %a3}};
        ret;
        }}",
        axes("clusterid", 0) + &axes("nclusterid", 1),
        axes("cluster_ctaid", 0) + &axes("cluster_nctaid", 1),
    );
    let mut gpu = Gpu::new(&source);
    let y = gpu.buffer(&[0_u32; 2 * 4 * 6]);
    gpu.launch("test", [4, 6, 1], [1; 3], arguments!(y)).unwrap();
    for (at, got) in (0..).zip(gpu.read::<u32>(y).chunks_exact(2)) {
        let (x, y) = (at % 4, at / 4);
        assert_eq!(got[0], (x / 2) << 20 | (y / 3) << 16 | 2 << 8 | 2 << 4 | 1, "clusters of {x}, {y}");
        let within = (x % 2) << 20 | (y % 3) << 16 | 2 << 8 | 3 << 4 | 1;
        let rank = x % 2 + y % 3 * 2;
        assert_eq!(got[1], (within << 8 | rank << 4 | 6) << 1 | 1, "in the cluster of {x}, {y}");
    }
}

#[test]
fn blocks_read_and_write_each_others_shared_memory() {
    for cluster in [2, 4, 8, 16] {
        check(cluster, 2 * cluster, &format!("{FILL}{SYNC}{READ_NEXT}{SYNC}"), |block, thread| {
            next(cluster, block) * 1000 + thread
        });
    }
    let push = format!(
        "{SYNC} mov.u32 %a3, inbox; mad.lo.u32 %a3, %t, 4, %a3; mapa.shared::cluster.u32 %peer, %a3, %next;
        mad.lo.u32 %a2, %rank, 1000, %t; st.shared::cluster.u32 [%peer], %a2; {SYNC} ld.shared.u32 %r, [%a3];"
    );
    check(4, 8, &push, |block, thread| (block % 4 + 3) % 4 * 1000 + thread);
}

#[test]
fn generic_addresses_reach_other_blocks() {
    let body = format!(
        "{FILL}{SYNC} cvt.u64.u32 %d1, %own; cvta.shared.u64 %d1, %d1; mapa.u64 %d2, %d1, %next; ld.u32 %r, [%d2];
        getctarank.u64 %a2, %d2; mad.lo.u32 %r, %a2, 100000, %r; cvta.to.shared.u64 %d3, %d2; cvt.u32.u64 %a3, %d3;
        getctarank.shared::cluster.u32 %a4, %a3; mad.lo.u32 %r, %a4, 1000000, %r;
        isspacep.shared %p2, %d1; isspacep.shared::cta %p3, %d2; isspacep.shared::cluster %p4, %d2;
        and.pred %p2, %p2, %p4; not.pred %p3, %p3; and.pred %p2, %p2, %p3; selp.u32 %a5, 10000000, 0, %p2; add.u32 %r, %r, %a5;
        {SYNC}"
    );
    check(2, 2, &body, |block, thread| (1 - block) * 1_101_000 + thread + 10_000_000);
}

#[test]
fn a_block_can_send_the_address_of_its_own_variable() {
    let body = format!(
        "{FILL}{SYNC} mov.u32 %a3, inbox; mapa.shared::cluster.u32 %peer, %a3, %next;
        @%p1 st.shared::cluster.u32 [%peer], %a1; {SYNC}
        ld.shared.u32 %a4, [inbox]; mad.lo.u32 %a4, %t, 4, %a4; ld.shared::cluster.u32 %r, [%a4]; {SYNC}"
    );
    check(4, 4, &body, |block, thread| (block + 3) % 4 * 1000 + thread);
}

#[test]
fn atomics_of_all_blocks_meet_in_one() {
    for operation in
        ["red.relaxed.cluster.shared::cluster.add.u32 [%peer], 1;", "atom.add.u32 %a3, [%d2], 1;"]
    {
        let body = format!(
            "@%p1 st.shared.u32 [tile], 0; {SYNC} mapa.shared::cluster.u32 %peer, %a1, 0;
            cvt.u64.u32 %d1, %a1; cvta.shared.u64 %d1, %d1; mapa.u64 %d2, %d1, 0;
            {operation} {SYNC} ld.shared::cluster.u32 %r, [%peer]; {SYNC}"
        );
        check(4, 8, &body, |_, _| 4 * THREADS);
    }
}

#[test]
fn threads_that_have_ended_count_as_arrived() {
    let body = format!("{FILL} setp.ge.u32 %p2, %t, 40; @%p2 ret; {SYNC}{READ_NEXT}{SYNC}");
    for cluster in [1, 2] {
        check(
            cluster,
            4,
            &body,
            |block, thread| {
                if thread < 40 { next(cluster, block) * 1000 + thread } else { 0 }
            },
        );
    }
    // A thread that ends without having arrived has not released what it stored.
    let gone = "setp.eq.u32 %p2, %t, 40; mapa.shared::cluster.u32 %peer, %a1, %next;
        @%p2 st.shared::cluster.u32 [%peer], 7; @%p2 ret;";
    assert_eq!(race(&format!("{SYNC}{gone}{SYNC} ld.shared.u32 %r, [tile]; {SYNC}")).1, None);
}

#[test]
fn work_between_arrival_and_wait_overlaps() {
    let body = format!(
        "{FILL} barrier.cluster.arrive; st.shared.u32 [inbox], 7; barrier.cluster.wait; {READ_NEXT}
        barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
    );
    check(2, 2, &body, |block, thread| (1 - block) * 1000 + thread);
    // What a thread stores after it has arrived is not ordered.
    let late = format!("{SYNC} barrier.cluster.arrive; {FILL} barrier.cluster.wait; {READ_NEXT}{SYNC}");
    assert!(race(&late).0.contains("read after write"), "{}", race(&late).0);
}

#[test]
fn a_missing_barrier_is_a_race() {
    let (text, lifetime) = race(&format!("{SYNC}{FILL}{READ_NEXT}{SYNC}"));
    assert!(text.contains("read after write") || text.contains("write after read"), "{text}");
    assert_eq!(lifetime, None);
    // A barrier of the block doesn't order the other block's threads.
    assert_eq!(race(&format!("{SYNC}{FILL} bar.sync 0; {READ_NEXT}{SYNC}")).1, None);
    // Neither does a relaxed arrival.
    let relaxed = "barrier.cluster.arrive.relaxed; barrier.cluster.wait;";
    assert_eq!(race(&format!("{SYNC}{FILL}{relaxed}{READ_NEXT}{SYNC}")).1, None);
    let write = "mapa.shared::cluster.u32 %peer, %own, %next; st.shared::cluster.u32 [%peer], %t;\n";
    assert_eq!(race(&format!("{SYNC}{FILL}{write}{SYNC}")).1, None);
    // The second reader has no barrier after its block's own write.
    assert_eq!(race(&format!("{FILL}{SYNC}{READ_NEXT}{FILL}{SYNC}")).1, None);
    check(2, 2, &format!("{FILL}{SYNC}{READ_NEXT}{SYNC}{FILL}"), |block, thread| (1 - block) * 1000 + thread);
}

#[test]
fn an_access_needs_a_block_that_has_started_and_not_ended() {
    let (text, lifetime) = race(&format!(
        "mapa.shared::cluster.u32 %peer, %own, %next; st.shared::cluster.u32 [%peer], %t; {SYNC}"
    ));
    assert_eq!(lifetime, Some(Lifetime::Start), "{text}");
    assert!(text.contains("may not have started"), "{text}");
    let (text, lifetime) = race(&format!("{FILL}{SYNC}{READ_NEXT}"));
    assert_eq!(lifetime, Some(Lifetime::End), "{text}");
    assert!(text.contains("may have ended"), "{text}");
}

#[test]
fn fences_of_the_cluster_publish_what_came_before() {
    // Block 0 sets a flag in block 1, which spins on it.
    let body = |scope: &str| {
        format!(
            "@%p1 st.shared.u32 [inbox], 0; {SYNC}
            setp.ne.u32 %p2, %rank, 0; @%p2 bra RECEIVE; @!%p1 bra DONE;
            mapa.shared::cluster.u32 %peer, %a1, 1; st.shared::cluster.u32 [%peer], 42;
            mov.u32 %a3, inbox; mapa.shared::cluster.u32 %a3, %a3, 1;
            fence.acq_rel.{scope}; st.relaxed.cluster.shared::cluster.u32 [%a3], 1; bra DONE;
            RECEIVE: @!%p1 bra DONE;
            SPIN: ld.relaxed.cluster.shared.u32 %a4, [inbox]; setp.eq.u32 %p3, %a4, 0; @%p3 bra SPIN;
            fence.acq_rel.{scope}; ld.shared.u32 %r, [tile];
            DONE: {SYNC}"
        )
    };
    check(2, 2, &body("cluster"), |block, thread| if (block, thread) == (1, 0) { 42 } else { 0 });
    assert_eq!(race(&body("cta")).1, None);
}

/// A loop until the mbarrier's phase with this parity is complete.
fn wait(name: &str, parity: u32) -> String {
    format!(
        "{name}: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p5, [bar], {parity}; @!%p5 bra {name};\n"
    )
}

fn init(count: u32) -> String {
    format!("@%p1 mbarrier.init.shared.b64 [bar], {count}; fence.mbarrier_init.release.cluster;\n{SYNC}")
}

#[test]
fn threads_arrive_at_another_blocks_mbarrier() {
    let body = format!(
        "{} {FILL} mov.u32 %a3, bar; mapa.shared::cluster.u32 %a4, %a3, %last;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%a4]; {} {READ_NEXT}{SYNC}",
        init(THREADS),
        wait("LOOP", 0)
    );
    check(4, 8, &body, |block, thread| next(4, block) * 1000 + thread);
    // Block 0's threads don't wait.
    let early =
        body.replace("{READ_NEXT}", "").replace("LOOP:", "setp.eq.u32 %p6, %rank, 0; @%p6 bra GO; LOOP:");
    let early = early.replace("mapa.shared::cluster.u32 %peer", "GO: mapa.shared::cluster.u32 %peer");
    assert_eq!(race(&early).1, None);
    let relaxed = body.replace("arrive.release.cluster", "arrive.relaxed.cluster");
    assert_eq!(race(&relaxed).1, None);
}

#[test]
fn copies_go_to_another_block_and_complete_its_transactions() {
    let send = |copy: &str, bytes: u32, from: &str| {
        format!(
            "{}{FILL} @%p1 mbarrier.arrive.expect_tx.shared.b64 %s1, [bar], {bytes}; bar.sync 0; {SYNC}
            mov.u32 %a3, inbox; mapa.shared::cluster.u32 %peer, %a3, %next;
            mov.u32 %a4, bar; mapa.shared::cluster.u32 %a4, %a4, %next;
            {copy} {} mad.lo.u32 %a5, %t, 4, %a3; {from} {SYNC}",
            init(1),
            wait("LOOP", 0)
        )
    };
    let read = "ld.shared.u32 %r, [%a5];";
    let bulk = "@%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%peer], [%a1], 256, [%a4];";
    check(2, 4, &send(bulk, 256, read), |block, thread| (1 - block % 2) * 1000 + thread);
    let store = "mad.lo.u32 %peer, %t, 4, %peer; mad.lo.u32 %a2, %rank, 1000, %t;
        st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%peer], %a2, [%a4];";
    check(2, 4, &send(store, 256, read), |block, thread| (1 - block % 2) * 1000 + thread);
    let vector = "shl.b32 %a5, %t, 3; add.u32 %peer, %peer, %a5; add.u32 %a6, %t, 500;
        st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%peer], {%t, %a6}, [%a4];";
    check(2, 2, &send(vector, 512, read), |_, thread| thread / 2 + thread % 2 * 500);
    let reduce =
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%peer], %t, [%a4];";
    let zero = "@%p1 st.shared.u32 [inbox], 5; ";
    let reduced = send(reduce, 256, "ld.shared.u32 %r, [%a3];").replacen(FILL, &format!("{FILL}{zero}"), 1);
    check(2, 2, &reduced, |_, _| 5 + 63 * 64 / 2);
    let (done, _) = run(2, 2, &reduced.replace(zero, "")).unwrap();
    let unwritten = done.unwritten.expect("nothing has written the sum");
    assert_eq!(unwritten.access.map(|access| access.access), Some(Access::Atomic));
    let combine = "@%p1 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%peer], [%a1], 256, [%a4];";
    let tens = "mov.u32 %a6, inbox; mad.lo.u32 %a6, %t, 4, %a6; st.shared.u32 [%a6], 10000;";
    let combined = send(combine, 256, read).replacen(FILL, &format!("{FILL}{tens}"), 1);
    check(2, 2, &combined, |block, thread| (1 - block) * 1000 + thread + 10_000);
    // A reader that doesn't wait races with the copy.
    let early = send(bulk, 256, read).replace("@!%p5 bra LOOP;", "");
    let (done, _) = run(2, 2, &early).unwrap();
    assert!(done.race.is_some());
    let elsewhere = send(&bulk.replace("[%a4]", "[bar]"), 256, read);
    misuse(&elsewhere, "the block that receives the copy");
}

#[test]
fn one_copy_goes_to_several_blocks() {
    let body = |blocks: u32| {
        format!(
            "{} @%p1 mbarrier.arrive.expect_tx.shared.b64 %s1, [bar], 256; {SYNC}
            setp.eq.u32 %p2, %rank, 1; and.pred %p2, %p2, %p1; mov.b16 %h, {blocks};
            @%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [tile], [%x], 256, [bar], %h;
            {} ld.shared.u32 %r, [%own]; {SYNC}",
            init(1),
            wait("LOOP", 0)
        )
    };
    let with_register = |body: String| format!(".reg .b16 %h;\n{body}");
    check(4, 4, &with_register(body(0b1111)), |_, thread| 100 + thread);
    let only_two = with_register(body(0b0110)).replace(
        &wait("LOOP", 0),
        &format!(
            "add.u32 %a2, %rank, 1; and.b32 %a2, %a2, 2; setp.eq.u32 %p3, %a2, 0; @%p3 bra END;\n{}",
            wait("LOOP", 0)
        ),
    );
    let only_two = only_two.replace(&format!("[%own]; {SYNC}"), &format!("[%own]; END: {SYNC}"));
    check(4, 4, &only_two, |block, thread| if block == 1 || block == 2 { 100 + thread } else { 0 });
    misuse(&with_register(body(0b1111)), "names a block that the cluster does not have");
}

#[test]
fn the_barrier_needs_arrivals_and_waits_in_turn() {
    misuse("barrier.cluster.arrive; barrier.cluster.arrive; barrier.cluster.wait;", "has not waited");
    misuse("barrier.cluster.wait;", "has not arrived");
    misuse("mapa.shared::cluster.u32 %peer, %own, 2;", "no block with the rank");
    let alone = source("1", SYNC);
    let mut gpu = Gpu::new(&alone);
    let y = gpu.buffer(&[0_u32; THREADS as usize]);
    gpu.run("test", 1, THREADS, arguments!(y, y));
}

#[test]
fn a_barrier_that_a_block_never_reaches_is_a_deadlock() {
    // Block 1's thread 0 waits for a phase that nothing completes.
    let body = format!(
        "{} setp.eq.u32 %p2, %rank, 1; and.pred %p2, %p2, %p1; @!%p2 bra SKIP; {} SKIP: {SYNC}",
        init(2),
        wait("LOOP", 0)
    );
    let found = fault(&body);
    assert!(matches!(found.kind, FaultKind::IncompletePhase { expected: 2, .. }), "{found}");
    assert_eq!(found.at.block, [1, 0, 0], "{found}");
    // Block 1's thread 0 spins on a flag that nothing sets.
    let spin = "LOOP: ld.volatile.shared.u32 %a3, [inbox]; setp.ne.u32 %p5, %a3, 9; @%p5 bra LOOP;";
    let body = format!(
        "@%p1 st.shared.u32 [inbox], 0; {SYNC} setp.eq.u32 %p2, %rank, 1; and.pred %p2, %p2, %p1; @!%p2 bra SKIP;
        {spin} SKIP: {SYNC}"
    );
    let found = fault(&body);
    let FaultKind::ClusterBarrier { arrived, expected, missing } = &found.kind else { panic!("{found}") };
    assert_eq!((*arrived, *expected), (2 * THREADS - 1, 2 * THREADS));
    assert_eq!((missing.block, missing.thread), ([1, 0, 0], [0, 0, 0]));
}

#[test]
fn addresses_outside_of_a_block_are_faults() {
    let body = format!(
        "{SYNC} mapa.shared::cluster.u32 %peer, %own, %next; ld.shared::cluster.u32 %r, [%peer+2048]; {SYNC}"
    );
    assert!(matches!(fault(&body).kind, FaultKind::SharedOutOfBounds { .. }));
    let body = format!("{SYNC} add.u32 %peer, %own, 0x5000000; ld.shared::cluster.u32 %r, [%peer]; {SYNC}");
    assert!(matches!(fault(&body).kind, FaultKind::SharedOutOfBounds { .. }));
    let body = format!(
        "{SYNC} mapa.shared::cluster.u32 %peer, %own, %next; ld.shared::cluster.u32 %r, [%peer]; {SYNC}"
    );
    let (done, _) = run(2, 2, &body).unwrap();
    assert!(done.unwritten.is_some());
}

#[test]
fn a_tensor_copy_goes_to_several_blocks() {
    let map = TensorMap {
        element: ElementType::U32,
        rank: 1,
        address: 0,
        dimensions: [64, 1, 1, 1, 1],
        strides: [0; 4],
        steps: [1; MOST_DIMENSIONS],
        swizzle: Swizzle::None,
        fills_with_nan: false,
        part: Part::Tile { size: [32, 1, 1, 1, 1] },
    };
    // Each block sends the half with its rank to both blocks.
    let body = format!(
        ".reg .b16 %h; .reg .b32 %c; {} @%p1 mbarrier.arrive.expect_tx.shared.b64 %s1, [bar], 256; {SYNC}
        shl.b32 %c, %rank, 5; mov.b16 %h, 3; shl.b32 %a2, %rank, 7; add.u32 %a2, %a2, %a1;
        @%p1 cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%a2], [%x, {{%c}}], [bar], %h;
        {} ld.shared.u32 %r, [%own]; {SYNC}",
        init(1),
        wait("LOOP", 0)
    );
    let mut gpu = Gpu::new(&source("2", &body)).virtual_alone();
    let numbers: Vec<u32> = (0..64).map(|at| at * at).collect();
    let x = gpu.buffer(&numbers);
    let map = gpu.buffer(&TensorMap { address: x, ..map }.to_bytes());
    let y = gpu.buffer(&[0_u32; 2 * THREADS as usize]);
    let done = gpu.launch("test", [2, 1, 1], [THREADS, 1, 1], arguments!(map, y)).unwrap();
    assert!(done.race.is_none(), "{}", done.race.unwrap());
    assert_eq!(gpu.read::<u32>(y), [&numbers[..], &numbers].concat());
}

#[test]
fn forms_that_do_not_exist_are_refused_by_name() {
    for instruction in [
        "barrier.cluster.sync;",
        "barrier.cluster.arrive.acquire;",
        "barrier.cluster.wait.relaxed;",
        "mapa.u32 %n, %n, 1;",
        "mapa.shared::cta.u32 %n, %n, 1;",
        "getctarank.global.u64 %n, %x;",
        "st.async.shared::cta.mbarrier::complete_tx::bytes.u32 [%n], %n, [%n];",
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b16 [%n], %h, [%n];",
        "red.async.relaxed.gpu.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%n], %n, [%n];",
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.f32 [%n], %n, [%n];",
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.exch.b32 [%n], %n, [%n];",
        "ld.global.shared::cluster.u32 %n, [%n];",
    ] {
        let declarations = ".reg .b32 %n; .reg .b64 %x; .reg .b16 %h;";
        assert_refused_by_name(declarations, instruction, "unsupported");
    }
}

#[test]
fn a_relaxed_arrival_publishes_what_came_before_a_fence() {
    // The start of CUTLASS's kernels: the barrier itself needs no order, because the fence publishes the mbarrier.
    let start = format!(
        "@%p1 mbarrier.init.shared.b64 [bar], {THREADS}; fence.mbarrier_init.release.cluster;
        barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;"
    );
    let body = format!(
        "{start} {FILL} mov.u32 %a3, bar; mapa.shared::cluster.u32 %a4, %a3, %last;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%a4]; {} {READ_NEXT}{SYNC}",
        wait("LOOP", 0)
    );
    check(4, 8, &body, |block, thread| next(4, block) * 1000 + thread);
    let no_fence = body.replace("fence.mbarrier_init.release.cluster;", "");
    assert_eq!(race(&no_fence).1, None);
}

/// Stores in the inbox of the block with rank 0, from the threads of the last block.
const SEND_TO_FIRST: &str =
    "mov.u32 %a3, inbox; mad.lo.u32 %a3, %t, 4, %a3; mapa.shared::cluster.u32 %peer, %a3, 0;
    mov.u32 %a4, bar; mapa.shared::cluster.u32 %a4, %a4, 0;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%peer], %t, [%a4];\n";

#[test]
fn a_block_waits_for_another_that_takes_its_time() {
    let body = format!(
        "{} setp.eq.u32 %p2, %rank, 0; @%p2 bra RECEIVE;
        mov.u32 %a5, 0; DELAY: mov.u64 %d3, %clock64; add.u32 %a5, %a5, 1; setp.lt.u32 %p3, %a5, 30000; @%p3 bra DELAY;
        {SEND_TO_FIRST} bra DONE;
        RECEIVE: @%p1 mbarrier.arrive.expect_tx.shared.b64 %s1, [bar], 256;
        mov.u32 %a6, 0;
        LOOP: add.u32 %a6, %a6, 1; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p5, [bar], 0; @!%p5 bra LOOP;
        mov.u32 %a3, inbox; mad.lo.u32 %a3, %t, 4, %a3; ld.shared.u32 %r, [%a3];
        DONE:",
        init(1)
    );
    check(2, 2, &body, |block, thread| if block == 0 { thread } else { 0 });
}

#[test]
fn a_block_must_not_end_while_a_store_to_it_is_under_way() {
    let body = format!("{} setp.eq.u32 %p2, %rank, 0; @%p2 bra DONE; {SEND_TO_FIRST} DONE: {SYNC}", init(1));
    let (text, lifetime) = race(&body);
    assert_eq!(lifetime, Some(Lifetime::End), "{text}");
}
