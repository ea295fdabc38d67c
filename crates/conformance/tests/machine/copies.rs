//! `cp.async`: the results of a copy after its thread has waited for it, and the reports about a thread that does not
//! wait.

use virtual_gpu_machine::Execution;

use crate::arguments;
use crate::gpu::Gpu;

/// Runs a block of 32 threads. Each thread starts two copies of the 4 bytes `x[tid]`, each in its own group: the first
/// to `tile[tid]`, the second to `tile[32 + tid]`. Then `body` runs, and the value that it leaves in `%r4` is stored in
/// `y[tid]`.
fn copies(body: &str) -> (Execution, Vec<u32>) {
    let source = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n
        .visible .entry test(.param .u64 x, .param .u64 y)
        {{
        .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<4>;
        .shared .align 16 .b8 tile[256];
        ld.param.u64 %d1, [x]; ld.param.u64 %d2, [y];
        mov.u32 %r1, %tid.x;
        mul.wide.u32 %d3, %r1, 4;
        add.u64 %d1, %d1, %d3; add.u64 %d2, %d2, %d3;
        shl.b32 %r2, %r1, 2;
        mov.u32 %r3, tile; add.u32 %r2, %r2, %r3;
        xor.b32 %r5, %r2, 4;
        cp.async.ca.shared.global [%r2], [%d1], 4;
        cp.async.commit_group;
        cp.async.ca.shared.global [%r2+128], [%d1], 4;
        cp.async.commit_group;
        {body}
        st.global.u32 [%d2], %r4;
        ret;
        }}"
    );
    let mut gpu = Gpu::new(&source);
    let numbers: Vec<u32> = (0..32).map(|at| 100 + at).collect();
    let (x, y) = (gpu.buffer(&numbers), gpu.buffer(&[0_u32; 32]));
    let done = gpu.run("test", 1, 32, arguments!(x, y));
    (done, gpu.read(y))
}

/// Returns the numbers that the threads must read: their own, or their neighbor's.
fn numbers(of_neighbor: bool) -> Vec<u32> {
    (0..32).map(|at| 100 + if of_neighbor { at ^ 1 } else { at }).collect()
}

#[test]
fn a_thread_that_has_waited_sees_what_it_copied() {
    for wait in ["wait_all", "wait_group 0", "wait_group 1"] {
        let (done, got) = copies(&format!("cp.async.{wait}; ld.shared.u32 %r4, [%r2];"));
        assert!(done.race.is_none() && done.unwritten.is_none(), "{wait}: {:?}", done.race);
        assert_eq!(got, numbers(false), "{wait}");
    }
}

#[test]
fn a_neighbor_needs_a_barrier_after_the_wait() {
    let (done, got) = copies("cp.async.wait_all; bar.sync 0; ld.shared.u32 %r4, [%r5];");
    assert!(done.race.is_none() && done.unwritten.is_none());
    assert_eq!(got, numbers(true));
    for body in ["cp.async.wait_all;", "bar.sync 0; cp.async.wait_all;"] {
        let (done, _) = copies(&format!("{body} ld.shared.u32 %r4, [%r5];"));
        let race = done.race.expect(body);
        assert_eq!((race.kind(), race.under_way), ("read after write", false), "{body}");
    }
}

#[test]
fn nothing_but_a_wait_ends_a_copy() {
    for body in ["", "bar.sync 0;", "cp.async.wait_group 2;", "membar.gl; bar.warp.sync -1;"] {
        let (done, got) = copies(&format!("{body} ld.shared.u32 %r4, [%r2];"));
        let race = done.race.expect(body);
        assert_eq!((race.kind(), race.under_way), ("read after write", true), "{body}");
        assert_eq!((race.earlier.thread[0], race.later.thread[0]), (0, 0), "{body}");
        assert!(race.to_string().contains("a copy that its thread has not waited for"), "{race}");
        assert_eq!(got, [u32::MAX; 32], "{body}: the copied data must not have arrived yet");
        assert!(done.unwritten.is_some());
    }
    // The last group is still pending.
    let (done, _) = copies("cp.async.wait_group 1; ld.shared.u32 %r4, [%r2+128];");
    assert!(done.race.expect("it goes on").under_way);
}

#[test]
fn a_copy_races_with_stores_and_other_copies() {
    for body in ["st.shared.u32 [%r2], 5;", "cp.async.ca.shared.global [%r2], [%d1], 4;"] {
        let (done, _) = copies(&format!("{body} mov.u32 %r4, 0;"));
        let race = done.race.expect(body);
        assert_eq!((race.kind(), race.under_way), ("write after write", true), "{body}");
    }
    let (done, got) = copies(
        "cp.async.wait_all; ld.shared.u32 %r6, [%r2];
        cp.async.ca.shared.global [%r5], [%d1], 4;
        cp.async.wait_all; mov.u32 %r4, 0;",
    );
    assert_eq!(done.race.expect("a neighbor has read these bytes").kind(), "write after write");
    assert_eq!(got, [0; 32]);
}

#[test]
fn copies_that_are_not_committed_are_in_no_group() {
    let body = "cp.async.wait_all; cp.async.ca.shared.global [%r2], [%d1], 4;";
    let (done, _) = copies(&format!("{body} cp.async.wait_group 0; ld.shared.u32 %r4, [%r2];"));
    assert!(done.race.expect("the copy was never committed").under_way);
    let (done, _) = copies(&format!("{body} cp.async.wait_all; ld.shared.u32 %r4, [%r2];"));
    assert!(done.race.is_none());
}

#[test]
fn an_ignored_source_gives_zeros() {
    let (done, got) = copies(
        "cp.async.wait_all; setp.lt.u32 %p1, %r1, 8;
        cp.async.ca.shared.global [%r2], [%d1], 4, %p1;
        cp.async.wait_all; ld.shared.u32 %r4, [%r2];",
    );
    assert!(done.race.is_none());
    let expected: Vec<u32> = (0..32).map(|at| if at < 8 { 0 } else { 100 + at }).collect();
    assert_eq!(got, expected);
}

#[test]
fn copies_without_a_wait_need_bounded_memory() {
    let (done, _) = copies(
        "cp.async.wait_all; mov.u32 %r6, 0;
        LOOP: cp.async.ca.shared.global [%r2], [%d1], 4;
        add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, 10000; @%p1 bra LOOP;
        cp.async.wait_all; ld.shared.u32 %r4, [%r2];",
    );
    assert!(done.race.expect("the copies are unordered").under_way);
}
