//! Tests how many bytes a launch moves at each level of the memory.

use crate::arguments;
use crate::gpu::Gpu;

const PRODUCT: &str = include_str!("../ptx/product.ptx");

/// The extent of the matrices: two blocks by two.
const EXTENT: usize = 64;

/// The number of bytes of a matrix, and of those of a block's 32 rows or columns of one.
const MATRIX: u64 = 4 * 64 * 64;
const BLOCK: u64 = MATRIX / 2;

#[test]
fn what_a_block_repeats_is_counted_once_for_the_block() {
    let mut gpu = Gpu::new(PRODUCT);
    let factors = [gpu.buffer(&[1.0_f32; EXTENT * EXTENT]), gpu.buffer(&[2.0_f32; EXTENT * EXTENT])];
    let product = gpu.buffer(&[0.0_f32; EXTENT * EXTENT]);
    let arguments = arguments!(factors[0], factors[1], product, EXTENT as u32);
    let naive = gpu.launch("naive", [2, 2, 1], [32, 32, 1], arguments).unwrap();
    // Each element of the product takes a row and a column.
    assert_eq!(naive.bytes_read, 2 * MATRIX * EXTENT as u64);
    assert_eq!((naive.bytes_written, naive.shared_bytes), (MATRIX, 0));
    assert_eq!(naive.bytes_of_blocks, 4 * (2 * BLOCK + MATRIX / 4));

    let tiled = gpu.launch("tiled", [2, 2, 1], [32, 32, 1], arguments).unwrap();
    assert_eq!(tiled.bytes_read, 4 * 2 * BLOCK);
    assert_eq!(tiled.bytes_of_blocks, naive.bytes_of_blocks);
    // Each factor is written once by each block that uses it, and read once for each product.
    assert_eq!(tiled.shared_bytes, 4 * 2 * BLOCK + 2 * MATRIX * EXTENT as u64);
    assert_eq!(tiled.touched, naive.touched);
}
