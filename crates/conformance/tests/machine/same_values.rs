//! Registers whose value is the same in all threads, and addresses in a row: the machine handles a block's threads together
//! until they differ.

use crate::arguments;
use crate::gpu::Gpu;

const SOURCE: &str = "\
.version 8.0
.target sm_70
.address_size 64
.visible .entry differ(.param .u64 out, .param .u64 in)
{
    .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<9>;
    ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [in];
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 40;
    ld.global.u32 %r2, [%rd2];
    cvt.u64.u32 %rd3, %r2;
    mov.u32 %r3, 5;
    add.u32 %r3, %r3, %r2;
    setp.gt.u32 %p2, %r3, 100;
    @%p1 add.u32 %r2, %r2, %r1;
    @%p1 add.u64 %rd3, %rd3, 7;
    @%p2 add.u32 %r3, %r3, %r3;
    mad.wide.u32 %rd4, %r1, 16, %rd1;
    st.global.u32 [%rd4], %r2;
    cvt.u32.u64 %r6, %rd3;
    st.global.u32 [%rd4+4], %r6;
    st.global.u32 [%rd4+8], %r3;
    mad.wide.u32 %rd5, %r1, 4, %rd2;
    ld.global.u32 %r4, [%rd5];
    @%p1 add.u64 %rd5, %rd5, 4;
    ld.global.u32 %r5, [%rd5];
    sub.u32 %r4, %r5, %r4;
    st.global.u32 [%rd4+12], %r4;
    ret;
}
";

#[test]
fn a_value_that_all_threads_share_can_be_changed_by_some_of_them() {
    let mut gpu = Gpu::new(SOURCE);
    for (threads, first) in [(1, 1_u32), (40, 1), (64, 200), (100, 3), (256, 1000)] {
        let input: Vec<u32> = (0..=threads).map(|at| first + at).collect();
        let (out, input) = (gpu.buffer(&vec![0_u32; 4 * threads as usize]), gpu.buffer(&input));
        gpu.run("differ", 1, threads, arguments!(out, input));
        for (thread, found) in (0..).zip(gpu.read::<u32>(out).chunks_exact(4)) {
            let is_low = thread < 40;
            let sum = first + 5;
            let expected = [
                first + if is_low { thread } else { 0 },
                first + if is_low { 7 } else { 0 },
                if sum > 100 { 2 * sum } else { sum },
                u32::from(is_low),
            ];
            assert_eq!(found, expected, "thread {thread} of {threads}");
        }
    }
}
