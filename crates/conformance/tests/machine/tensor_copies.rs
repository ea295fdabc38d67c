//! `cp.async.bulk.tensor`: copies of parts of tensors, with a tensor map as a parameter or in global memory.

use virtual_gpu_core::tensor_map::{ElementType, MOST_DIMENSIONS, Part, Swizzle, TensorMap};
use virtual_gpu_machine::{Execution, Fault, FaultKind};

use crate::arguments;
use crate::bad_input::assert_refused_by_name;
use crate::gpu::Gpu;

/// The number of words in shared memory.
const WORDS: usize = 512;

/// Runs a block of 64 threads. `%map` is the generic address of the map, a parameter; `%p1` is true in thread 0, which has
/// initialized `bar` with the count 1. After `body`, each thread writes `tile` to the results; `words` is what tensor `x` has
/// afterwards.
fn run(map: &TensorMap, words: &[u32], body: &str) -> Result<(Execution, Vec<u32>, Vec<u32>), Box<Fault>> {
    let source = format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n
        .visible .entry test(.param .align 64 .b8 map[128], .param .u64 y, .param .u64 copy)
        {{
        .reg .b32 %t, %a, %b, %c, %n, %v; .reg .b16 %h; .reg .b64 %map, %copy, %y, %z, %policy; .reg .pred %p<3>;
        .shared .align 8 .b64 bar; .shared .align 1024 .b8 tile[2048];
        mov.b64 %map, map; cvta.param.u64 %map, %map; ld.param.u64 %y, [y]; ld.param.u64 %copy, [copy];
        mov.u32 %t, %tid.x; mov.u64 %policy, 0; mov.u32 %b, tile;
        setp.eq.u32 %p1, %t, 0;
        @%p1 mbarrier.init.shared.b64 [bar], 1;
        fence.mbarrier_init.release.cluster;
        bar.sync 0;
        {body}
        mov.u32 %n, 0;
        WRITE: shl.b32 %a, %t, 2; shl.b32 %c, %n, 8; add.u32 %a, %a, %c; cvt.u64.u32 %z, %a; add.u64 %z, %z, %y;
        add.u32 %a, %a, %b; ld.shared.u32 %v, [%a]; st.global.u32 [%z], %v;
        add.u32 %n, %n, 1; setp.lt.u32 %p2, %n, 8; @%p2 bra WRITE;
        ret;
        }}"
    );
    let mut gpu = Gpu::new(&source).virtual_alone();
    let x = gpu.buffer(words);
    let y = gpu.buffer(&[0_u32; WORDS]);
    let map = TensorMap { address: map.address + x, ..*map }.to_bytes();
    let copy = gpu.buffer(&map);
    let mut arguments = arguments!(y, copy).to_vec();
    arguments.insert(0, map.to_vec());
    let done = gpu.launch("test", [1; 3], [64, 1, 1], &arguments)?;
    Ok((done, gpu.read(y), gpu.read(x)))
}

/// A matrix of 8 rows of 16 numbers, of which the tile is 4 rows of 8.
fn matrix() -> TensorMap {
    TensorMap {
        element: ElementType::U32,
        rank: 2,
        address: 0,
        dimensions: [16, 8, 1, 1, 1],
        strides: [64, 0, 0, 0],
        steps: [1; MOST_DIMENSIONS],
        swizzle: Swizzle::None,
        fills_with_nan: false,
        part: Part::Tile { size: [8, 4, 1, 1, 1] },
    }
}

fn numbers() -> Vec<u32> {
    (0..128).map(|at| 1000 + at).collect()
}

/// The matrix's number in a row and column; 0 outside.
fn number(row: i32, column: i32) -> u32 {
    match (0..8).contains(&row) && (0..16).contains(&column) {
        true => 1000 + (row * 16 + column) as u32,
        false => 0,
    }
}

/// Waits for `bytes` in all threads, after thread 0 has executed `copy`.
fn load(copy: &str, bytes: u32) -> String {
    format!(
        "@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [bar], {bytes};
         @%p1 {copy}
         WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0; @!%p2 bra WAIT;"
    )
}

const LOAD: &str = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes";

fn assert_clean(done: &Execution) {
    assert!(done.race.is_none(), "{:?}", done.race);
    let unwritten = done.unwritten.as_ref().map(ToString::to_string);
    assert!(done.unnoticed.is_none(), "{:?}", done.unnoticed);
    // The results contain all of `tile`, most of which no copy has written.
    assert!(unwritten.is_none_or(|report| report.contains("in shared memory")), "{:?}", done.unwritten);
}

#[test]
fn a_tile_is_copied_and_zeros_stand_for_what_is_outside() {
    for (x, y) in [(0, 0), (5, 3), (8, 4), (-3, -2), (12, 6), (20, 0), (-8, 0), (0, -4)] {
        for copy in [
            format!("{LOAD} [tile], [%map, {{{x}, {y}}}], [bar];"),
            format!("{LOAD} [tile], [%copy, {{{x}, {y}}}], [bar];"),
            format!(
                "{} [tile], [%map, {{{x}, {y}}}], [bar];",
                LOAD.replace("global", "global.tile").replace("cluster", "cta")
            ),
            format!("{LOAD}.L2::cache_hint [tile], [%map, {{{x}, {y}}}], [bar], %policy;"),
        ] {
            let (done, tile, _) =
                run(&matrix(), &numbers(), &load(&copy, 128)).unwrap_or_else(|fault| panic!("{fault}"));
            assert_clean(&done);
            let expected: Vec<u32> =
                (y..y + 4).flat_map(|row| (x..x + 8).map(move |at| number(row, at))).collect();
            assert_eq!(tile[..32], expected, "{copy}");
        }
    }
}

#[test]
fn a_swizzled_tile_has_its_pieces_where_the_manual_draws_them() {
    // Rows of 32, 64, and 128 bytes, which are as long as the pattern.
    for (swizzle, columns, shift) in [(Swizzle::B32, 8, 2), (Swizzle::B64, 16, 1), (Swizzle::B128, 32, 0)] {
        let rows = 16;
        let words: Vec<u32> = (0..32 * rows).collect();
        let map = TensorMap {
            dimensions: [32, rows.into(), 1, 1, 1],
            strides: [128, 0, 0, 0],
            swizzle,
            part: Part::Tile { size: [columns, rows as u16, 1, 1, 1] },
            ..matrix()
        };
        let bytes = u32::from(columns) * 4 * rows;
        let copy = format!("{LOAD} [tile], [%map, {{0, 0}}], [bar];");
        let (done, tile, _) = run(&map, &words, &load(&copy, bytes)).unwrap();
        assert_clean(&done);
        let pieces = usize::from(columns) / 4;
        for row in 0..rows as usize {
            for piece in 0..pieces {
                // The number of 128-byte lines before the row decides.
                let placed = piece ^ ((row >> shift) % pieces);
                let at = row * usize::from(columns) + placed * 4;
                assert_eq!(tile[at], words[row * 32 + piece * 4], "{swizzle:?}, row {row}, piece {piece}");
            }
        }
        // A store reads the same places.
        let body = format!(
            "{} @%p1 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%map, {{0, 1}}], [tile];
             @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0;",
            load(&copy, bytes)
        );
        let (done, _, after) = run(&map, &words, &body).unwrap();
        assert_clean(&done);
        assert_eq!(after[32..32 + usize::from(columns)], words[..usize::from(columns)]);
        assert_eq!(after[32 * 15], words[32 * 14]);
    }
}

#[test]
fn a_store_leaves_out_what_is_outside_of_the_tensor() {
    let write = "shl.b32 %a, %t, 2; add.u32 %a, %a, %b; setp.lt.u32 %p2, %t, 32; @%p2 st.shared.u32 [%a], %t;
        fence.proxy.async.shared::cta; bar.sync 0;";
    for (x, y) in [(0, 0), (3, 2), (12, 6), (-3, -2), (16, 0)] {
        for mode in ["", ".tile"] {
            let body = format!(
                "{write} @%p1 cp.async.bulk.tensor.2d.global.shared::cta{mode}.bulk_group [%map, {{{x}, {y}}}], [tile];
                 @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group.read 0;"
            );
            let (done, _, after) = run(&matrix(), &numbers(), &body).unwrap();
            assert_clean(&done);
            let is_stored = |row: i32, column: i32| (y..y + 4).contains(&row) && (x..x + 8).contains(&column);
            for (row, column) in (0..8).flat_map(|row| (0..16).map(move |column| (row, column))) {
                let expected = match is_stored(row, column) {
                    true => ((row - y) * 8 + column - x) as u32,
                    false => number(row, column),
                };
                assert_eq!(
                    after[(row * 16 + column) as usize],
                    expected,
                    "({x}, {y}): row {row}, column {column}"
                );
            }
        }
    }
    let body = format!(
        "{write} @%p1 cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%map, {{12, 6}}], [tile];"
    );
    let (_, _, after) = run(&matrix(), &numbers(), &body).unwrap();
    assert_eq!(after[6 * 16 + 12..7 * 16], [1108, 1109 + 1, 1110 + 2, 1111 + 3]);
    assert_eq!(after[..6 * 16 + 12], numbers()[..6 * 16 + 12]);
}

#[test]
fn steps_types_and_fills_are_those_of_the_map() {
    let mut map = matrix();
    map.steps = [4, 2, 1, 1, 1];
    let copy = format!("{LOAD} [tile], [%map, {{4, 1}}], [bar];");
    let (_, tile, _) = run(&map, &numbers(), &load(&copy, 64)).unwrap();
    // The innermost dimension has no step.
    let expected: Vec<u32> =
        [1, 3].into_iter().flat_map(|row| (4..12).map(move |at| number(row, at))).collect();
    assert_eq!(tile[..16], expected);

    let map = TensorMap { element: ElementType::F32, fills_with_nan: true, ..matrix() };
    let (_, tile, _) =
        run(&map, &numbers(), &load(&format!("{LOAD} [tile], [%map, {{-1, 0}}], [bar];"), 128)).unwrap();
    assert!(f32::from_bits(tile[0]).is_nan());
    assert_eq!(tile[1..8], (0..7).map(|at| number(0, at)).collect::<Vec<_>>());

    // 1000 to 1127 are the bits of subnormal numbers.
    let map = TensorMap { element: ElementType::F32Flushed, ..matrix() };
    let (_, tile, _) =
        run(&map, &numbers(), &load(&format!("{LOAD} [tile], [%map, {{0, 0}}], [bar];"), 128)).unwrap();
    assert_eq!(tile[..32], [0; 32]);
}

#[test]
fn tensors_have_one_to_five_dimensions() {
    let words: Vec<u32> = (0..4 * 3 * 3 * 3 * 3).collect();
    for rank in 1..=5 {
        let names = ["1d", "2d", "3d", "4d", "5d"][rank - 1];
        let mut map = TensorMap {
            rank,
            dimensions: [4, 3, 3, 3, 3],
            strides: [16, 48, 144, 432],
            part: Part::Tile { size: [4, 2, 2, 2, 2] },
            ..matrix()
        };
        map.dimensions[rank..].fill(1);
        let coordinates = vec!["0"; 1].into_iter().chain(vec!["1"; rank - 1]).collect::<Vec<_>>().join(", ");
        let copy = format!(
            "cp.async.bulk.tensor.{names}.shared::cluster.global.tile.mbarrier::complete_tx::bytes [tile], [%map, {{{coordinates}}}], [bar];"
        );
        let bytes = 16 << (rank - 1);
        let (done, tile, _) = run(&map, &words, &load(&copy, bytes)).unwrap();
        assert_clean(&done);
        let outer = |at: usize| {
            (0..rank - 1).map(|bit| (1 + (at >> bit & 1)) * 4 * 3_usize.pow(bit as u32)).sum::<usize>()
        };
        for at in 0..1 << (rank - 1) {
            assert_eq!(tile[at * 4..][..4], words[outer(at)..][..4], "{names}, row {at}");
        }
    }
}

#[test]
fn im2col_copies_the_pixels_under_a_filter() {
    // Two images of 3x3 pixels with 4 channels, a filter of 2x2, and padding of 1 on the left and at the top.
    let words: Vec<u32> = (1..=2 * 9 * 4).collect();
    let map = TensorMap {
        rank: 4,
        dimensions: [4, 3, 3, 2, 1],
        strides: [16, 48, 144, 0],
        part: Part::Im2col { lower: [-1, -1, 0], upper: [-1, -1, 0], channels: 4, pixels: 12 },
        ..matrix()
    };
    for (w, h) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        // The first pixel is the second position in the first image.
        let copy = format!(
            "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [tile], [%map, {{0, 0, -1, 0}}], [bar], {{{w}, {h}}};"
        );
        let (done, tile, _) = run(&map, &words, &load(&copy, 12 * 16)).unwrap();
        assert_clean(&done);
        let positions =
            (0..2).flat_map(|n| (-1..2).flat_map(move |h| (-1..2).map(move |w| (n, h, w)))).skip(1).take(12);
        for (at, (n, y, x)) in positions.enumerate() {
            let (y, x) = (y + h, x + w);
            let is_inside = (0..3).contains(&y) && (0..3).contains(&x);
            let expected = if is_inside { (n * 36 + (y * 3 + x) * 4 + 1) as u32 } else { 0 };
            assert_eq!(tile[at * 4], expected, "offsets ({w}, {h}), pixel {at}");
        }
    }
}

#[test]
fn a_copy_is_unordered_until_a_thread_has_waited() {
    let copy = format!("@%p1 {LOAD} [tile], [%map, {{0, 0}}], [bar];");
    let expect = "@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [bar], 128;";
    let (done, _, _) = run(&matrix(), &numbers(), &format!("{expect} {copy} bar.sync 0;")).unwrap();
    assert_eq!(done.race.expect("no thread waited").kind(), "read after write");
    let fault = run(&matrix(), &numbers(), &load(copy.trim_start_matches("@%p1 "), 144)).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::IncompletePhase { transactions: 16, .. }), "{fault}");
}

#[test]
fn wrong_maps_and_addresses_are_faults() {
    let fault = |map: &TensorMap, copy: &str| run(map, &numbers(), &load(copy, 128)).unwrap_err();
    let good = format!("{LOAD} [tile], [%map, {{0, 0}}], [bar];");
    let replaced = |from: &str, to: &str| good.replace(from, to);
    let found = fault(&matrix(), &replaced("[tile]", "[tile+64]"));
    assert!(matches!(found.kind, FaultKind::Misaligned { needed: 128 }), "{found}");
    let found = fault(&matrix(), &replaced("[tile]", "[tile+2048]"));
    assert!(matches!(found.kind, FaultKind::SharedOutOfBounds { .. }), "{found}");
    // A box of 2^32 rows, all of them outside of the tensor.
    let huge = TensorMap {
        rank: 5,
        dimensions: [16, 8, 1, 1, 1],
        strides: [64, 512, 512, 512],
        part: Part::Tile { size: [8, 256, 256, 256, 256] },
        ..matrix()
    };
    let outside = "{0, -300, 0, 0, 0}";
    let store =
        format!("@%p1 cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%map, {outside}], [tile];");
    let found = run(&huge, &numbers(), &store).unwrap_err();
    assert!(matches!(found.kind, FaultKind::SharedOutOfBounds { .. }), "{found}");
    let found = fault(&matrix(), &replaced("%map", "%map+32"));
    assert!(matches!(found.kind, FaultKind::Misaligned { needed: 64 }), "{found}");
    let found = fault(&matrix(), &replaced("%map", "%y"));
    assert!(found.to_string().contains("no tensor map"), "{found}");
    let found = fault(&TensorMap { rank: 3, ..matrix() }, &good);
    assert!(found.to_string().contains("number of dimensions"), "{found}");
    let im2col = Part::Im2col { lower: [0; 3], upper: [0; 3], channels: 8, pixels: 4 };
    let found = fault(&TensorMap { part: im2col, ..matrix() }, &good);
    assert!(found.to_string().contains("mode"), "{found}");
    // The matrix is larger than its buffer.
    let found = fault(&TensorMap { dimensions: [16, 9, 1, 1, 1], ..matrix() }, &replaced("{0, 0}", "{0, 5}"));
    assert!(matches!(found.kind, FaultKind::BadAddress(_)), "{found}");
}

#[test]
fn forms_that_do_not_exist_are_refused_by_name() {
    for instruction in [
        "cp.async.bulk.tensor.6d.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%x, {%n}], [bar];",
        "cp.async.bulk.tensor.1d.shared.global.mbarrier::complete_tx::bytes [tile], [%x, {%n}], [bar];",
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%x, {%n}], [bar];",
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%x], [bar];",
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%x, {%n}];",
        "cp.async.bulk.tensor.1d.shared::cta.global.mbarrier::complete_tx::bytes.multicast::cluster [tile], [%x, {%n}], [bar], %h;",
        "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [tile], [%x, {%n}], [bar];",
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [tile], [%x, {%n, %n, %n}], [bar];",
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [tile], [%x, {%n, %n, %n}], [bar], {%h, %h};",
        "cp.async.bulk.tensor.1d.global.shared::cta.mbarrier::complete_tx::bytes [%x, {%n}], [tile], [bar];",
        "cp.async.bulk.tensor.1d.global.shared::cta.add.bulk_group [%x, {%n}], [tile];",
        "cp.async.bulk.tensor.3d.global.shared::cta.im2col.bulk_group [%x, {%n, %n, %n}], [tile];",
        "cp.reduce.async.bulk.tensor.1d.global.shared::cta.bulk_group [%x, {%n}], [tile];",
        "cp.reduce.async.bulk.tensor.1d.global.shared::cta.cas.bulk_group [%x, {%n}], [tile];",
        "cp.async.bulk.prefetch.tensor.1d.global [%x, {%n}];",
        "prefetch.global.tensormap [%x];",
    ] {
        let declarations =
            ".reg .b32 %n; .reg .b64 %x; .reg .b16 %h; .shared .b64 bar; .shared .align 128 .b8 tile[256];";
        assert_refused_by_name(declarations, instruction, "");
    }
}

#[test]
fn hints_about_tensor_maps_have_no_effect() {
    let hints = "prefetch.tensormap [%map]; cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%map, {0, 0}];
        cp.async.bulk.prefetch.tensor.2d.L2.global.L2::cache_hint [%map, {0, 0}], %policy;
        fence.proxy.tensormap::generic.release.gpu; fence.proxy.tensormap::generic.acquire.gpu [%map], 128;";
    let copy = load(&format!("{LOAD} [tile], [%map, {{0, 0}}], [bar];"), 128);
    let (done, tile, _) = run(&matrix(), &numbers(), &format!("{hints} {copy}")).unwrap();
    assert_clean(&done);
    assert_eq!(tile[..8], numbers()[..8]);
}
