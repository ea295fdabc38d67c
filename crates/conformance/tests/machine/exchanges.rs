//! What the lanes of a warp know after they have exchanged values, and the shared memory of the system, through which
//! `cooperative_groups` synchronizes tiles that are larger than a warp.

use virtual_gpu_machine::Race;

use crate::arguments;
use crate::gpu::Gpu;

/// Warp 0 writes 32 numbers and sets a flag. Lane 0 of warp 1 waits for the flag, and then its lanes read the numbers. In
/// between, `exchange` runs on all lanes of warp 1.
fn after_a_flag(exchange: &str) -> Option<Race> {
    let source = format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n
        .visible .entry learn(.param .u64 y)
        {{
        .reg .b32 %r<10>; .reg .b64 %d<4>; .reg .pred %p<4>;
        .shared .align 4 .b32 numbers[32]; .shared .align 4 .b32 own[32]; .shared .align 4 .b32 flag;
        mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 31; shl.b32 %r3, %r2, 2;
        mov.u32 %r4, numbers; add.u32 %r4, %r4, %r3;
        mov.u32 %r5, own; add.u32 %r5, %r5, %r3;
        mov.u32 %r6, flag;
        st.shared.u32 [%r6], 0;
        bar.sync 0;
        setp.ge.u32 %p1, %r1, 32;
        @%p1 bra SECOND;
        st.shared.u32 [%r4], %r1;
        bar.warp.sync -1;
        setp.ne.u32 %p2, %r2, 0;
        @%p2 bra END;
        red.release.cta.shared.or.b32 [%r6], 1;
        bra END;
        SECOND:
        setp.ne.u32 %p2, %r2, 0;
        @%p2 bra READY;
        WAIT:
        ld.acquire.cta.shared.u32 %r7, [%r6];
        setp.eq.u32 %p3, %r7, 0;
        @%p3 bra WAIT;
        READY:
        st.shared.u32 [%r5], %r1;
        {exchange}
        ld.shared.u32 %r8, [%r4];
        ld.param.u64 %d1, [y]; cvt.u64.u32 %d2, %r3; add.u64 %d1, %d1, %d2;
        st.global.u32 [%d1], %r8;
        END: ret;
        }}"
    );
    let mut gpu = Gpu::new(&source);
    let y = gpu.buffer(&[0_i32; 32]);
    let race = gpu.run("learn", 1, 64, arguments!(y)).race.map(|race| *race);
    if race.is_none() {
        assert_eq!(gpu.read::<i32>(y), (0..32).collect::<Vec<i32>>());
    }
    race
}

#[test]
fn an_exchange_spreads_what_a_lane_knows_about_other_warps() {
    for exchange in [
        "shfl.sync.idx.b32 %r7, %r7, 0, 31, -1;",
        "vote.sync.any.pred %p1, %p1, -1;",
        "vote.sync.ballot.b32 %r7, %p1, -1;",
        "match.any.sync.b32 %r7, %r7, -1;",
        "redux.sync.add.u32 %r7, %r7, -1;",
        "elect.sync _|%p2, -1;",
        "bar.warp.sync -1;",
        // The second one spreads what the first one taught lane 1.
        "shfl.sync.up.b32 %r7, %r7, 1, 0, -1;\n shfl.sync.up.b32 %r7, %r7, 1, 0, -1;",
    ] {
        assert_eq!(after_a_flag(exchange), None, "{exchange}");
    }
    for other in ["", "mov.b32 %r7, %r7;"] {
        let race = after_a_flag(other).unwrap_or_else(|| panic!("`{other}` orders nothing"));
        assert_eq!((race.kind(), race.in_warp), ("read after write", false));
    }
}

#[test]
fn an_exchange_orders_no_plain_access_of_its_warp() {
    let neighbor = "xor.b32 %r9, %r5, 4;\n ld.shared.u32 %r9, [%r9];";
    for (exchange, races) in [("shfl.sync.idx.b32 %r7, %r7, 0, 31, -1;", true), ("bar.warp.sync -1;", false)]
    {
        let race = after_a_flag(&format!("{exchange}\n{neighbor}"));
        assert_eq!(race.map(|race| (race.kind(), race.in_warp)), races.then_some(("read after write", true)));
    }
}

#[test]
fn an_exchange_orders_tests_of_an_mbarrier_before_its_end() {
    for (exchange, races) in [("", true), ("match.any.sync.b32 %r2, %r1, -1;", false)] {
        let source = format!(
            ".version 8.0\n.target sm_90\n.address_size 64\n
            .visible .entry end()
            {{
            .reg .b32 %r<4>; .reg .b64 %d<2>; .reg .pred %p<3>;
            .shared .align 8 .b64 barrier;
            mov.u32 %r1, %tid.x;
            setp.ne.u32 %p1, %r1, 0;
            @!%p1 mbarrier.init.shared.b64 [barrier], 32;
            bar.sync 0;
            mbarrier.arrive.shared.b64 %d1, [barrier];
            WAIT:
            mbarrier.test_wait.shared.b64 %p2, [barrier], %d1;
            @!%p2 bra WAIT;
            {exchange}
            @!%p1 mbarrier.inval.shared.b64 [barrier];
            ret;
            }}"
        );
        let race = Gpu::new(&source).run("end", 1, 32, arguments!()).race;
        assert_eq!(race.is_some(), races, "`{exchange}`: {race:?}");
    }
}

/// The offsets come after the kernel's own shared memory, as on an RTX 3060. What lies there is 0 in each block.
#[test]
fn the_system_has_shared_memory_of_its_own() {
    const SOURCE: &str = "
        .version 8.0\n.target sm_90\n.address_size 64
        .extern .shared .align 4 .b8 dynamic[];
        .visible .entry reserved(.param .u64 y)
        {
        .reg .b32 %r<10>; .reg .b64 %d<3>;
        .shared .align 4 .b8 fixed[1000];
        ld.param.u64 %d1, [y];
        mov.u32 %r9, %ctaid.x; mul.wide.u32 %d2, %r9, 32; add.u64 %d1, %d1, %d2;
        mov.u32 %r1, %reserved_smem_offset_begin; mov.u32 %r2, %reserved_smem_offset_end;
        mov.u32 %r3, %reserved_smem_offset_cap; mov.u32 %r4, %reserved_smem_offset_0;
        mov.u32 %r5, %reserved_smem_offset_1; mov.u32 %r6, %total_smem_size;
        st.global.v4.u32 [%d1], {%r1, %r2, %r3, %r4};
        ld.shared.u32 %r7, [%r5];
        st.global.v4.u32 [%d1+16], {%r5, %r6, %r7, %r7};
        st.shared.u32 [%r5], 5;
        ret;
        }";
    for (dynamic, begin) in [(0, 1024), (100, 1152), (4096, 5120)] {
        let mut gpu = Gpu::new(SOURCE);
        let y = gpu.buffer(&[9_u32; 16]);
        gpu.dynamic_shared = dynamic;
        gpu.run("reserved", 2, 1, arguments!(y));
        let offsets = [begin, begin + 288, begin + 1024, begin, begin, 1000 + dynamic, 0, 0];
        assert_eq!(gpu.read::<u32>(y), [offsets, offsets].concat());
    }
}
