//! Tensor maps, and kernels that copy parts of tensors with them.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult, CUtensorMap};
use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, DeviceRepr, PushKernelArg};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::device::{shape, untracked};
use crate::fails;
use crate::raw::address;

const PTX: &str = include_str!("../ptx/tensor_copies.ptx");
/// The number of words that `load` and `im2col` return.
const WORDS: usize = 1024;
/// What they contain where nothing was copied.
const UNTOUCHED: u32 = 0xdddd_dddd;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("tensor_maps::a_matrix_is_transposed_in_tiles", transpose),
        Check::new("tensor_maps::a_tile_beyond_the_edge_is_filled", edges),
        Check::new("tensor_maps::a_swizzled_tile", swizzles),
        Check::new("tensor_maps::elements_of_every_type", types),
        Check::new("tensor_maps::the_pixels_under_a_filter", im2col),
        Check::new("tensor_maps::another_address", replaced),
        Check::new("tensor_maps::wrong_parameters_are_named", wrong),
        Check::new("tensor_maps::memory_outside_of_a_buffer", outside),
    ]
}

/// A tensor map as a kernel's argument.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Map(CUtensorMap);

// SAFETY: it has the layout of a `CUtensorMap`, which kernels take by value.
unsafe impl DeviceRepr for Map {}

impl Map {
    fn new() -> Self {
        Self(CUtensorMap { opaque: [0; 16] })
    }
}

/// The parameters of a map of a tile; the types are CUDA's numbers.
#[derive(Clone)]
struct Tiled {
    element: u32,
    rank: u32,
    address: u64,
    dimensions: Vec<u64>,
    strides: Vec<u64>,
    size: Vec<u32>,
    steps: Vec<u32>,
    modes: [u32; 4],
}

const U16: u32 = 1;
const U32: u32 = 2;
const F32: u32 = 7;

impl Tiled {
    /// A matrix of 32-bit numbers.
    fn matrix(address: u64, [columns, rows]: [u64; 2], [width, height]: [u32; 2]) -> Self {
        Self {
            element: U32,
            rank: 2,
            address,
            dimensions: vec![columns, rows],
            strides: vec![4 * columns],
            size: vec![width, height],
            steps: vec![1, 1],
            modes: [0; 4],
        }
    }

    fn encode(&self, to: *mut CUtensorMap) -> CUresult {
        let [interleave, swizzle, promotion, fill] = self.modes;
        type Encode = unsafe extern "C" fn(
            *mut CUtensorMap,
            u32,
            u32,
            u64,
            *const u64,
            *const u64,
            *const u32,
            *const u32,
            u32,
            u32,
            u32,
            u32,
        ) -> CUresult;
        // SAFETY: the arrays have as many elements as the rank requires. The function is declared with numbers, because a
        // number that is not in one of Rust's enumerations must not become one.
        unsafe {
            let encode: Encode = driver("cuTensorMapEncodeTiled");
            encode(
                to,
                self.element,
                self.rank,
                self.address,
                self.dimensions.as_ptr(),
                self.strides.as_ptr(),
                self.size.as_ptr(),
                self.steps.as_ptr(),
                interleave,
                swizzle,
                promotion,
                fill,
            )
        }
    }

    fn map(&self) -> anyhow::Result<Map> {
        let mut map = Map::new();
        self.encode(&raw mut map.0).result()?;
        Ok(map)
    }
}

/// Returns a function of the driver.
///
/// # Safety
/// It has the type `F`.
unsafe fn driver<F: Copy>(name: &str) -> F {
    let name = std::ffi::CString::new(name).unwrap();
    let mut found = std::ptr::null_mut();
    // SAFETY: the pointers are valid, and the caller guarantees the type.
    unsafe {
        let status = std::ptr::null_mut();
        sys::cuGetProcAddress_v2(name.as_ptr(), &raw mut found, 12090, 0, status).result().unwrap();
        std::mem::transmute_copy(&found)
    }
}

struct Gpu {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
}

impl Gpu {
    fn new() -> anyhow::Result<Self> {
        let context = untracked(0);
        Ok(Self { stream: context.new_stream()?, context })
    }

    fn function(&self, name: &str) -> anyhow::Result<CudaFunction> {
        Ok(self.context.load_module(Ptx::from_src(PTX))?.load_function(name)?)
    }

    fn words(&self, words: &[u32]) -> anyhow::Result<CudaSlice<u32>> {
        let words = self.stream.clone_htod(words)?;
        self.stream.synchronize()?;
        Ok(words)
    }

    /// Returns what one copy writes to shared memory.
    fn load(&self, map: Map, rank: i32, [x, y]: [i32; 2], bytes: u32) -> anyhow::Result<Vec<u32>> {
        let function = self.function("load")?;
        let to = self.stream.alloc_zeros::<u32>(WORDS)?;
        let to_address = address(&to);
        let mut launch = self.stream.launch_builder(&function);
        launch.arg(&map).arg(&to_address).arg(&rank).arg(&x).arg(&y).arg(&bytes);
        // SAFETY: the arguments are those of the kernel.
        unsafe { launch.launch(shape(1, 128)) }?;
        Ok(self.stream.clone_dtoh(&to)?)
    }
}

fn transpose() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    // 80 rows of 100 columns: no side is a multiple of the tile's.
    let (rows, columns) = (80_usize, 100_usize);
    let numbers: Vec<u32> = (0..rows * columns).map(|at| (at as f32).to_bits()).collect();
    let (from, to) = (gpu.words(&numbers)?, gpu.stream.alloc_zeros::<u32>(rows * columns)?);
    let map = |address, columns: usize, rows: usize| -> anyhow::Result<Map> {
        Tiled { element: F32, ..Tiled::matrix(address, [columns as u64, rows as u64], [32, 32]) }.map()
    };
    let maps = [map(address(&from), columns, rows)?, map(address(&to), rows, columns)?];
    let function = gpu.function("transpose")?;
    let mut launch = gpu.stream.launch_builder(&function);
    launch.arg(&maps[0]).arg(&maps[1]);
    let mut shape = shape(4, 256);
    shape.grid_dim.1 = 3;
    // SAFETY: the arguments are those of the kernel.
    unsafe { launch.launch(shape) }?;
    let received = gpu.stream.clone_dtoh(&to)?;
    for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
        assert_eq!(
            received[column * rows + row],
            numbers[row * columns + column],
            "row {row}, column {column}"
        );
    }
    Ok(())
}

fn edges() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let words = gpu.words(&(1..=64).collect::<Vec<_>>())?;
    let map = Tiled::matrix(address(&words), [8, 8], [8, 4]);
    let number = |x: i32, y: i32| match (0..8).contains(&x) && (0..8).contains(&y) {
        true => (1 + y * 8 + x) as u32,
        false => 0,
    };
    for [x, y] in [[0, 0], [-2, -1], [3, 6], [8, 0], [0, -4]] {
        let got = gpu.load(map.map()?, 2, [x, y], 128)?;
        let expected: Vec<u32> = (y..y + 4).flat_map(|y| (x..x + 8).map(move |x| number(x, y))).collect();
        assert_eq!(got[..32], expected, "({x}, {y})");
        assert!(got[32..].iter().all(|&word| word == UNTOUCHED), "({x}, {y})");
    }
    let map = Tiled { element: F32, modes: [0, 0, 3, 1], ..map };
    let got = gpu.load(map.map()?, 2, [-1, 0], 128)?;
    assert!(f32::from_bits(got[0]).is_nan() && got[1] == 1);
    Ok(())
}

fn swizzles() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let numbers: Vec<u32> = (0..1024).collect();
    let words = gpu.words(&numbers)?;
    for (swizzle, columns) in [(1, 8), (2, 16), (3, 32)] {
        let mut map = Tiled::matrix(address(&words), [32, 32], [columns, 32]);
        map.modes[1] = swizzle;
        let got = gpu.load(map.map()?, 2, [0, 0], columns * 128)?;
        for (row, column) in (0..32).flat_map(|row| (0..columns).map(move |column| (row, column))) {
            let byte = row * columns * 4 + column * 4;
            let line = byte / 128 % (1 << swizzle);
            let at = (byte ^ line << 4) / 4;
            assert_eq!(got[at as usize], row * 32 + column, "swizzle {swizzle}, row {row}, column {column}");
        }
    }
    Ok(())
}

fn types() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let numbers: Vec<u32> = (0..64).map(|at| at * 0x0101_0101).collect();
    let words = gpu.words(&numbers)?;
    for (element, bytes) in [1_u32, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4].into_iter().enumerate() {
        // 32 bytes of one dimension, from the second element on.
        let map = Tiled {
            element: element as u32,
            rank: 1,
            address: address(&words),
            dimensions: vec![u64::from(256 / bytes)],
            strides: Vec::new(),
            size: vec![32 / bytes],
            steps: vec![1],
            modes: [0; 4],
        };
        let got = gpu.load(map.map()?, 1, [1, 0], 32)?;
        let all: Vec<u8> = numbers.iter().flat_map(|word| word.to_le_bytes()).collect();
        let got: Vec<u8> = got[..8].iter().flat_map(|word| word.to_le_bytes()).collect();
        let flushes = element == 10;
        if !flushes {
            assert_eq!(got, all[bytes as usize..][..32], "type {element}");
        }
    }
    Ok(())
}

fn im2col() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    // Two images of 4x3 pixels with 4 channels.
    let words = gpu.words(&(1..=96).collect::<Vec<_>>())?;
    let (mut map, rank) = (Map::new(), 4);
    let (dimensions, strides) = ([4_u64, 4, 3, 2], [16_u64, 64, 192]);
    let (lower, upper, steps) = ([-1, -1], [-1, 0], [1, 2, 1, 1]);
    // SAFETY: the arrays have as many elements as the rank requires.
    unsafe {
        sys::cuTensorMapEncodeIm2col(
            &raw mut map.0,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT32,
            rank,
            address(&words) as *mut _,
            dimensions.as_ptr(),
            strides.as_ptr(),
            lower.as_ptr(),
            upper.as_ptr(),
            4,
            10,
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    }
    .result()?;
    let function = gpu.function("im2col")?;
    for (dw, dh) in [(0_u16, 0_u16), (1, 0), (2, 1)] {
        let to = gpu.stream.alloc_zeros::<u32>(WORDS)?;
        let (to_address, w, h, bytes) = (address(&to), -1, 0, 160);
        let mut launch = gpu.stream.launch_builder(&function);
        launch.arg(&map).arg(&to_address).arg(&w).arg(&h).arg(&dw).arg(&dh).arg(&bytes);
        // SAFETY: the arguments are those of the kernel.
        unsafe { launch.launch(shape(1, 128)) }?;
        let got = gpu.stream.clone_dtoh(&to)?;
        // The filter goes from -1 to 2 along W, in steps of 2, and from -1 to 2 along H.
        let positions = (0..2).flat_map(|n| (-1..3).flat_map(move |h| [-1, 1].map(move |w| (n, h, w))));
        for (at, (n, y, x)) in positions.skip(2).take(10).enumerate() {
            let (y, x) = (y + i32::from(dh), x + i32::from(dw));
            let is_inside = (0..3).contains(&y) && (0..4).contains(&x);
            let expected = if is_inside { (n * 48 + (y * 4 + x) * 4 + 1) as u32 } else { 0 };
            assert_eq!(got[at * 4], expected, "offsets ({dw}, {dh}), pixel {at}");
        }
        assert_eq!(got[40], UNTOUCHED);
    }
    Ok(())
}

fn replaced() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let [one, other] = [1, 2].map(|number| gpu.words(&[number; 64]));
    let (one, other) = (one?, other?);
    let mut map = Tiled::matrix(address(&one), [8, 8], [8, 8]).map()?;
    assert_eq!(gpu.load(map, 2, [0, 0], 256)?[0], 1);
    // SAFETY: the map is one that the driver has made.
    let replace = |map: &mut Map, address: u64| unsafe {
        sys::cuTensorMapReplaceAddress(&raw mut map.0, address as *mut _)
    };
    replace(&mut map, address(&other)).result()?;
    assert_eq!(gpu.load(map, 2, [0, 0], 256)?[0], 2);
    assert_eq!(replace(&mut map, address(&one) + 4), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(replace(&mut Map::new(), address(&other)), CUresult::CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

fn wrong() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let words = gpu.words(&[0; 64])?;
    let right = Tiled::matrix(address(&words), [8, 8], [8, 4]);
    let mut to = right.map()?;
    type Change = fn(&mut Tiled);
    let changes: [(Change, &str); 20] = [
        (|map| map.element = 16, "tensorDataType 16"),
        (|map| map.rank = 0, "tensorRank"),
        (|map| map.rank = 6, "tensorRank"),
        (|map| map.address += 8, "globalAddress"),
        (|map| map.address = 0, "globalAddress"),
        (|map| map.dimensions[1] = 0, "globalDim[1]"),
        (|map| map.dimensions[0] = (1 << 32) + 1, "globalDim[0]"),
        (|map| map.strides[0] = 24, "globalStrides[0]"),
        (|map| map.strides[0] = 1 << 40, "globalStrides[0]"),
        (|map| map.size[1] = 0, "boxDim[1]"),
        (|map| map.size[1] = 257, "boxDim[1]"),
        (|map| map.size[0] = 6, "multiple of 16"),
        (|map| map.steps[1] = 0, "elementStrides[1]"),
        (|map| map.steps[1] = 9, "elementStrides[1]"),
        (|map| map.modes[0] = 3, "interleave 3"),
        (|map| map.modes[1] = 7, "swizzle 7"),
        (|map| (map.modes[1], map.size[0]) = (1, 16), "at most 32"),
        (|map| map.modes[2] = 4, "l2Promotion 4"),
        (|map| map.modes[3] = 2, "oobFill 2"),
        (|map| (map.modes[3], map.element) = (1, U16), "floating-point"),
    ];
    for (change, words) in changes {
        let mut map = right.clone();
        change(&mut map);
        fails(map.encode(&raw mut to.0).result(), CUresult::CUDA_ERROR_INVALID_VALUE, &[words]);
    }
    let unsupported: [Change; 3] = [|map| map.element = 13, |map| map.modes[0] = 1, |map| map.modes[1] = 4];
    for change in unsupported {
        let mut map = right.clone();
        change(&mut map);
        fails(map.encode(&raw mut to.0).result(), CUresult::CUDA_ERROR_NOT_SUPPORTED, &["not supported"]);
    }
    let mut maps = [Map::new(); 2];
    let unaligned = (&raw mut maps).cast::<u8>().wrapping_add(32).cast();
    fails(right.encode(unaligned).result(), CUresult::CUDA_ERROR_INVALID_VALUE, &["aligned to 64"]);
    fails(right.encode(std::ptr::null_mut()).result(), CUresult::CUDA_ERROR_INVALID_VALUE, &["null"]);
    Ok(())
}

fn outside() -> anyhow::Result<()> {
    let gpu = Gpu::new()?;
    let words = gpu.words(&[0; 64])?;
    // The tensor has one row more than the buffer.
    let map = Tiled::matrix(address(&words), [8, 9], [8, 4]).map()?;
    let error = gpu.load(map, 2, [0, 8], 128).unwrap_err().to_string();
    assert!(error.contains("ILLEGAL_ADDRESS"), "{error}");
    Ok(())
}
